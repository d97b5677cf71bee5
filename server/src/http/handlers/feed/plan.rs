//! Parameters of a feed.

use std::num::{IntErrorKind, ParseIntError};
use std::time::{Duration, UNIX_EPOCH};

use mango::{Projection, Selector};
use model::{IdSet, JsonRef, JsonText, Seq, Style};

use crate::http::error::{ApiError, Result};
use crate::http::functions::FilterFunction;
use crate::http::functions::filter::Named;
use crate::http::jobs::run::now_ms;
use crate::http::operation::Param;
use crate::http::request::Request;
use crate::http::wire::body::off_thread_if_large;
use crate::http::wire::fields;
use crate::http::wire::params::{self, Params};

/// The parameters that [`plan`] reads.
pub(crate) const PARAMS: &[Param] = &[
    Param::choice("feed", FEEDS, "How the changes come, and whether the feed waits for more."),
    Param::text("since", "The sequence to begin after, `now`, a time, or `-1h`."),
    Param::text("last-event-id", "The same as `since`."),
    Param::count("limit", "How many changes at most."),
    Param::choice("style", &["main_only", "all_docs"], "Whether all leaves are named, or the winner only."),
    Param::flag("descending", "In descending order."),
    Param::flag("include_docs", "With the documents."),
    Param::text("fields", "With `include_docs`: only these members, with commas or as a JSON array."),
    Param::flag("conflicts", "With `include_docs`: with their conflicts."),
    Param::flag("attachments", "With `include_docs`: with the contents of attachments."),
    Param::flag("att_encoding_info", "With `include_docs`: with the encodings of attachments."),
    Param::text("filter", "`_doc_ids`, `_selector`, `_design`, `_view`, or a function: `design/name`."),
    Param::texts("doc_ids", "With the filter `_doc_ids`: only these documents."),
    Param::text("view", "With the filter `_view`: `design/name`."),
    Param::count("seq_interval", "Checked, without effect."),
];

/// The parameters that [`idle`] reads.
pub(crate) const IDLE: &[Param] = &[
    Param::count("timeout", "After how many milliseconds without changes a waiting feed ends; 60000 at most."),
    Param::text("heartbeat", "Instead of ending, a sign of life after this many milliseconds, or `true`."),
];

/// The kinds that [`feed_kind`] reads.
pub(crate) const FEEDS: &[&str] = &["normal", "longpoll", "continuous", "live", "eventsource"];

/// The header with which a browser reconnects.
pub(crate) const LAST_EVENT_ID: Param = Param::text("Last-Event-ID", "With `feed=eventsource`: as `since`.");

/// Maximum pause of a feed, and the default.
const DEFAULT_PAUSE: Duration = Duration::from_secs(60);

/// Framing of a feed, and whether the feed ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedKind {
    /// The present changes, then the end.
    Normal,
    /// Like normal; without changes, it waits for some.
    Longpoll,
    /// A line for each change, without end.
    Continuous,
    /// A server-sent event for each change, without end.
    EventSource,
}

impl FeedKind {
    /// Whether the rows are elements of one JSON response.
    pub(crate) fn is_array(self) -> bool {
        matches!(self, FeedKind::Normal | FeedKind::Longpoll)
    }

    /// Sent so that the connection does not look dead.
    pub(crate) fn heartbeat(self) -> &'static str {
        match self {
            FeedKind::EventSource => "event: heartbeat\ndata: \n\n",
            _ => "\n",
        }
    }
}

/// Selects changes.
#[derive(Clone, Debug)]
pub(crate) enum Filter {
    All,
    Ids(IdSet),
    /// Design documents.
    Design,
    Selector(Box<Selector>),
    /// A function of a design document, which still has to be read.
    Named(Named),
    Function(Box<FilterFunction>),
}

/// Where a feed starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    Seq(Seq),
    /// The last sequence at the time of the request.
    Now,
    /// All changes since this time, in milliseconds since 1970, and perhaps some older ones.
    Time(u64),
}

impl Begin {
    /// Reads `now`, a sequence, a time such as `2026-01-09T19:01:02Z`, or a time span before now: `-30m`.
    fn parse(text: &str, now_ms: u64) -> Result<Begin> {
        match text {
            "" => Ok(Begin::Seq(Seq::ZERO)),
            "now" => Ok(Begin::Now),
            _ => match time(text).or_else(|| ago(text, now_ms)) {
                Some(time_ms) => Ok(Begin::Time(time_ms)),
                None => Ok(Begin::Seq(text.parse()?)),
            },
        }
    }
}

/// A time in milliseconds since 1970.
fn time(text: &str) -> Option<u64> {
    let time = text.ends_with('Z').then(|| humantime::parse_rfc3339(text).ok())??;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The time that `-30m` means.
fn ago(text: &str, now_ms: u64) -> Option<u64> {
    Some(now_ms.saturating_sub(model::parse_time(text.strip_prefix('-')?)?))
}

/// Behaviour while there is nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Ends after this time.
    Timeout(Duration),
    /// Sends a heartbeat at this interval.
    Heartbeat(Duration),
}

/// Parameters of the client.
#[derive(Clone, Debug)]
pub(crate) struct FeedRequest {
    pub(crate) kind: FeedKind,
    pub(crate) since: Begin,
    pub(crate) limit: Option<u64>,
    pub(crate) descending: bool,
    pub(crate) style: Style,
    pub(crate) include_docs: bool,
    /// With `include_docs`: the requested members of documents.
    pub(crate) fields: Option<Projection>,
    pub(crate) conflicts: bool,
    /// With `include_docs`: the contents of attachments.
    pub(crate) attachments: bool,
    pub(crate) att_encoding_info: bool,
    pub(crate) filter: Filter,
    pub(crate) idle: Idle,
}

impl FeedRequest {
    /// Whether the feed waits for changes once it has sent this many rows and has no more.
    pub(crate) fn waits_after(&self, rows: u64) -> bool {
        match self.kind {
            FeedKind::Normal => false,
            FeedKind::Longpoll => rows == 0,
            FeedKind::Continuous | FeedKind::EventSource => true,
        }
    }
}

/// Reads the client's parameters.
pub(crate) async fn plan(request: &Request, body: Option<&JsonText>) -> Result<FeedRequest> {
    let mut kind = FeedKind::Normal;
    let mut since = None;
    let mut limit = None;
    let mut style = Style::MainOnly;
    let (mut descending, mut include_docs, mut conflicts) = (false, false, false);
    let (mut attachments, mut att_encoding_info) = (false, false);
    let (mut filter, mut projection) = ("", None);
    for (name, value) in request.params.iter() {
        match name.to_ascii_lowercase().as_str() {
            "feed" => kind = feed_kind(value)?,
            "since" | "last-event-id" => since = Some(value.to_owned()),
            "limit" => {
                let count: i128 = value
                    .parse()
                    .map_err(|_| ApiError::bad_request("The limit parameter should be a non-negative integer"))?;
                // As in CouchDB, a limit below 0 means no limit.
                limit = u64::try_from(count).ok();
            }
            "style" => {
                style = match value {
                    "main_only" => Style::MainOnly,
                    "all_docs" => Style::AllDocs,
                    _ => return Err(ApiError::query_parse("The style should be main_only or all_docs")),
                }
            }
            "descending" => descending = value == "true",
            "include_docs" => include_docs = value == "true",
            "fields" => projection = Some(fields::parse(value)?),
            "conflicts" => conflicts = value == "true",
            "attachments" => attachments = value == "true",
            "att_encoding_info" => att_encoding_info = value == "true",
            "filter" => filter = value,
            "seq_interval" if !value.parse::<u64>().is_ok_and(|interval| interval > 0) => {
                return Err(ApiError::bad_request("invalid_seq_interval"));
            }
            _ => {}
        }
    }
    if kind == FeedKind::EventSource
        && let Some(last) = request.header("last-event-id")
    {
        // Sent by a browser that reconnects.
        since = Some(last.to_owned());
    }
    if filter == "_selector"
        && let Some(fields) = body.and_then(|body| body.get("fields"))
    {
        projection = Some(selected(fields)?);
    }
    let filter = configure(filter, request, body).await?;
    let since = Begin::parse(since.as_deref().unwrap_or_default().trim_matches('"'), now_ms())?;
    Ok(FeedRequest {
        kind,
        since,
        limit,
        descending,
        style,
        include_docs,
        fields: projection.filter(|fields: &Projection| !fields.is_everything()),
        conflicts,
        attachments,
        att_encoding_info,
        filter,
        idle: idle(&request.params)?,
    })
}

/// The behaviour of a feed while there is nothing to send.
pub(crate) fn idle(params: &Params) -> Result<Idle> {
    let (mut timeout, mut heartbeat) = (None, None);
    for (name, value) in params.iter() {
        match name.to_ascii_lowercase().as_str() {
            "heartbeat" if value == "true" => heartbeat = Some(DEFAULT_PAUSE),
            // CouchDB's `list_to_integer` refuses the same values. PouchDB sends `false` for no heartbeat.
            "heartbeat" if value == "false" => heartbeat = None,
            "heartbeat" => match milliseconds(value) {
                Ok(ms) if ms > 0 => heartbeat = Some(Duration::from_millis(ms).min(DEFAULT_PAUSE)),
                _ => {
                    let reason = match value.parse::<i128>() {
                        Ok(_) => "The heartbeat value should be a positive integer (in milliseconds).",
                        Err(_) => "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).",
                    };
                    return Err(ApiError::bad_request(reason));
                }
            },
            "timeout" => {
                let ms = milliseconds(value)
                    .map_err(|_| ApiError::bad_request("The timeout parameter should be a non-negative integer"))?;
                timeout = Some(Duration::from_millis(ms).min(DEFAULT_PAUSE));
            }
            _ => {}
        }
    }
    Ok(match heartbeat {
        Some(every) => Idle::Heartbeat(every),
        None => Idle::Timeout(timeout.unwrap_or(DEFAULT_PAUSE)),
    })
}

/// Integers of CouchDB have any size.
fn milliseconds(value: &str) -> std::result::Result<u64, ParseIntError> {
    value.parse().or_else(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => Ok(u64::MAX),
        _ => Err(error),
    })
}

pub(crate) fn feed_kind(value: &str) -> Result<FeedKind> {
    match value {
        "normal" => Ok(FeedKind::Normal),
        "longpoll" => Ok(FeedKind::Longpoll),
        "continuous" | "live" => Ok(FeedKind::Continuous),
        "eventsource" => Ok(FeedKind::EventSource),
        _ => Err(ApiError::bad_request("Supported `feed` types: normal, continuous, live, longpoll, eventsource")),
    }
}

async fn configure(filter: &str, request: &Request, body: Option<&JsonText>) -> Result<Filter> {
    match filter {
        "" => Ok(Filter::All),
        "_doc_ids" => {
            let ids = match body {
                Some(body) => body.get("doc_ids").map(|ids| body.slice_ref(ids)),
                None => request.params.get("doc_ids").map(params::parse_json).transpose()?,
            };
            // Sorting many takes a while.
            let bytes = ids.as_ref().map_or(0, JsonText::len);
            Ok(Filter::Ids(off_thread_if_large(bytes, move || doc_ids(ids.as_ref().map(JsonText::root))).await??))
        }
        "_design" => Ok(Filter::Design),
        "_selector" => {
            let body = body.ok_or_else(|| ApiError::bad_request("Selector must be specified in POST payload"))?;
            let selector = body.get("selector").filter(|selector| selector.is_object());
            let selector = selector.ok_or_else(|| ApiError::bad_request("Selector error: expected a JSON object"))?;
            let selector = body.slice_ref(selector);
            let selector = off_thread_if_large(selector.len(), move || Selector::parse(&selector)).await?;
            let selector = selector.map_err(|error| ApiError::bad_request(error.to_string()))?;
            Ok(Filter::Selector(Box::new(selector)))
        }
        "_view" => {
            let view = request.params.get("view");
            let view = view.ok_or_else(|| ApiError::bad_request("`view` filter parameter is not provided."))?;
            Ok(Filter::Named(Named::parse(view, true)?))
        }
        _ if filter.starts_with('_') => Err(ApiError::bad_request("unknown builtin filter name")),
        _ => Ok(Filter::Named(Named::parse(filter, false)?)),
    }
}

/// The members of documents that the body of a request with a selector asks for.
fn selected(fields: JsonRef<'_>) -> Result<Projection> {
    if !fields.is_array() {
        return Err(ApiError::bad_request("Selector error: fields must be JSON array"));
    }
    Projection::parse(fields).map_err(|error| ApiError::bad_request(error.to_string()))
}

fn doc_ids(ids: Option<JsonRef<'_>>) -> Result<IdSet> {
    let wrong = || ApiError::bad_request("`doc_ids` filter parameter is not a list of doc ids.");
    let ids = ids.filter(|ids| ids.is_array()).ok_or_else(wrong)?;
    ids.elements().map(|id| id.as_str().ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_begins_at_a_sequence_at_a_time_or_some_time_ago() {
        let (now, hour) = (1_800_000_000_000, 3_600_000);
        let from = |text: &str| Begin::parse(text, now).unwrap();
        assert_eq!((from(""), from("0"), from("now")), (Begin::Seq(Seq::ZERO), Begin::Seq(Seq::ZERO), Begin::Now));
        assert_eq!(from("2026-01-09T19:01:02Z"), Begin::Time(1_767_985_262_000));
        assert_eq!(from("1970-01-01T00:00:00Z"), Begin::Time(0));
        assert_eq!((from("-90s"), from("-30m")), (Begin::Time(now - 90_000), Begin::Time(now - hour / 2)));
        assert_eq!((from("-1h"), from("-2d")), (Begin::Time(now - hour), Begin::Time(now - 48 * hour)));
        assert_eq!((from("-99999999999999999w"), from("-0s")), (Begin::Time(0), Begin::Time(now)));
        for wrong in [
            "-",
            "-1",
            "-h",
            "-+1h",
            "--1h",
            "-1x",
            "-é",
            "2026-13-01T00:00:00Z",
            "1969-12-31T00:00:00Z",
            "2026-01-09",
            "Z",
        ] {
            assert_eq!(Begin::parse(wrong, now).unwrap_err().status(), 400, "{wrong}");
        }
    }

    #[test]
    fn a_pause_may_be_of_any_length() {
        let idle_of = |query: &str| idle(&Params::parse(query).unwrap());
        assert_eq!(idle_of("heartbeat=99999999999999999999999").unwrap(), Idle::Heartbeat(DEFAULT_PAUSE));
        assert_eq!(idle_of("timeout=99999999999999999999999").unwrap(), Idle::Timeout(DEFAULT_PAUSE));
        assert_eq!(idle_of("timeout=-99999999999999999999999").unwrap_err().status(), 400);
    }
}
