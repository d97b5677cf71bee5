//! `/_db_updates`: the feed of the databases that were created, updated and dropped.
//!
//! The rows come from the store ([`model::DatabaseEvents`]), so all servers of a store give the same answers, and a
//! client may continue at another server. The feed has each database with its creation and its last update, and each
//! name with its last drop. A waiting feed reads again when a database changed, with a pause between two reads: each
//! reads three rows of every database.
//!
//! Source: CouchDB's `global_changes_httpd.erl`.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use kv_api::AnyDatabase;
use model::{DatabaseEvent, DatabaseEvents, DatabaseWatcher, JsonWriter, Seq};
use tokio::time::Instant;

use crate::http::app::App;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::feed::plan::{self, FeedKind, Idle};
use crate::http::handlers::feed::plan::{FEEDS, IDLE, LAST_EVENT_ID};
use crate::http::operation::{Content, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::response::{self, BodyWriter, Response, Stop};

/// Minimum pause between two reads of a feed. A longer read is followed by a longer pause.
const PAUSE: Duration = Duration::from_millis(50);

/// Length of a pause, as a multiple of the time of the read before it.
const COOLDOWN: u32 = 9;

/// Interval of reads while not all databases are watched.
const POLL: Duration = Duration::from_secs(5);

/// Parameters of the client.
struct UpdatesRequest {
    kind: FeedKind,
    /// `None`: the last event at the time of the request.
    since: Option<Seq>,
    limit: usize,
    descending: bool,
    idle: Idle,
}

impl UpdatesRequest {
    fn read(request: &Request) -> Result<UpdatesRequest> {
        let mut plan = UpdatesRequest {
            kind: FeedKind::Normal,
            since: Some(Seq::ZERO),
            limit: usize::MAX,
            descending: false,
            idle: plan::idle(&request.params)?,
        };
        let mut since = None;
        for (name, value) in request.params.iter() {
            match name {
                "feed" => {
                    plan.kind = plan::feed_kind(value).map_err(|_| {
                        ApiError::bad_request("Supported `feed` types: normal, continuous, longpoll, eventsource")
                    })?;
                }
                "since" => since = Some(value),
                "limit" => plan.limit = value.parse().map_err(|_| ApiError::bad_request("invalid_integer"))?,
                "descending" => plan.descending = value == "true",
                _ => {}
            }
        }
        if plan.kind == FeedKind::EventSource {
            // Sent by a browser that reconnects.
            since = request.header("last-event-id").or(since);
        }
        plan.since = match since.map(|since| since.trim_matches('"')) {
            None | Some("") => Some(Seq::ZERO),
            Some("now") => None,
            Some(since) => Some(since.parse()?),
        };
        Ok(plan)
    }
}

/// What [`db_updates`] does.
pub(crate) const DB_UPDATES: Operation = Operation::new(
    "The feed of databases that were created, updated or dropped.",
    &[Reply::new(200, &[Content::json(Kind::Json), Content::of("text/event-stream")])],
)
.query(&[
    IDLE,
    &[
        Param::choice("feed", FEEDS, "How the events come."),
        Param::text("since", "The sequence to begin after, or `now`."),
        Param::count("limit", "How many events at most."),
        Param::flag("descending", "In descending order."),
    ],
])
.headers(&[LAST_EVENT_ID]);

/// `GET /_db_updates`
pub(crate) async fn db_updates(request: &Request) -> Result<Response> {
    // Its pages end at the version of a read, and a batch that a standby applies later may have a lower one.
    if request.app.options.standby.is_some() {
        return Err(ApiError::unavailable(
            "A standby does not tell the events of databases: ask the server that it follows.",
        ));
    }
    let plan = UpdatesRequest::read(request)?;
    let app = &request.app;
    let layer = app.layer.clone();
    let since = match plan.since {
        Some(since) => since,
        None => {
            let layer = layer.clone();
            app.scan(async move { layer.database_events(Seq::ZERO).await }).await?.last_seq
        }
    };
    if plan.kind == FeedKind::Normal {
        let mut page = app.scan(async move { layer.database_events(since).await }).await?;
        if plan.descending {
            page.events.reverse();
        }
        let mut out = Output { kind: plan.kind, left: plan.limit, sent: 0, last: since, lacks_drops: false };
        return Ok(out.whole(page));
    }
    let mut feed = Feed {
        app: app.clone(),
        watcher: Some(layer.watch_databases()),
        idle: plan.idle,
        out: Output { kind: plan.kind, left: plan.limit, sent: 0, last: since, lacks_drops: false },
        rested: Instant::now(),
    };
    // Read before the status is sent, so that an error has its own status.
    let first = feed.read().await?;
    if plan.kind == FeedKind::Longpoll && (!first.events.is_empty() || feed.out.left == 0) {
        return Ok(feed.out.whole(first));
    }
    let mut response = response::with_json(StatusCode::OK, response::stream(|writer| feed.run(writer, first)));
    if plan.kind == FeedKind::EventSource {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

/// Warns a client that continues from long ago.
const LACKS_DROPS: &str =
    "Databases that were dropped after `since` are missing, since only the last drops are kept: see `_all_dbs`.";

/// Writes rows.
struct Output {
    kind: FeedKind,
    /// Number of rows that may follow.
    left: usize,
    sent: u64,
    /// Where a client can continue.
    last: Seq,
    /// Drops are missing, and the client was not told yet.
    lacks_drops: bool,
}

impl Output {
    /// A complete answer.
    fn whole(&mut self, page: DatabaseEvents) -> Response {
        let mut body = b"{\"results\":[\n".to_vec();
        self.rows(page, &mut body);
        self.end(&mut body);
        response::with_json(StatusCode::OK, response::Body::whole(body))
    }

    fn rows(&mut self, page: DatabaseEvents, out: &mut Vec<u8>) {
        self.lacks_drops |= page.lacks_drops;
        let mut before = None;
        for event in page.events {
            // Events of one transaction may share a sequence, after which a client continues behind all of them.
            if self.left == 0 && before != Some(event.seq) {
                return;
            }
            before = Some(event.seq);
            self.left = self.left.saturating_sub(1);
            self.row(&event, out);
            self.last = self.last.max(event.seq);
        }
        self.last = self.last.max(page.last_seq);
    }

    fn row(&mut self, event: &DatabaseEvent, out: &mut Vec<u8>) {
        match self.kind {
            FeedKind::Normal | FeedKind::Longpoll if self.sent > 0 => out.extend_from_slice(b",\n"),
            FeedKind::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
        self.sent += 1;
        let mut json = JsonWriter::new(out);
        json.begin_object().name("db_name").str(&event.name).name("type").str(event.kind.name());
        json.name("seq").display(event.seq);
        // A feed of rows may never end, so the first row has the warning.
        if !self.kind.is_array() && std::mem::take(&mut self.lacks_drops) {
            json.name("warning").str(LACKS_DROPS);
        }
        json.end_object();
        match self.kind {
            FeedKind::Continuous => out.push(b'\n'),
            FeedKind::EventSource => out.extend_from_slice(format!("\nid: {}\n\n", event.seq).as_bytes()),
            FeedKind::Normal | FeedKind::Longpoll => {}
        }
    }

    fn end(&self, out: &mut Vec<u8>) {
        let warning = if self.lacks_drops { format!(",\"warning\":\"{LACKS_DROPS}\"") } else { String::new() };
        let last = format!("\"last_seq\":\"{}\"{warning}}}\n", self.last);
        match self.kind {
            FeedKind::EventSource => {}
            FeedKind::Continuous => out.extend_from_slice(format!("{{{last}").as_bytes()),
            FeedKind::Normal | FeedKind::Longpoll => out.extend_from_slice(format!("\n],\n{last}").as_bytes()),
        }
    }
}

/// A waiting feed.
struct Feed {
    app: Arc<App>,
    /// `None` during a read.
    watcher: Option<DatabaseWatcher<AnyDatabase>>,
    idle: Idle,
    out: Output,
    /// When the next read may start.
    rested: Instant,
}

impl Feed {
    async fn read(&mut self) -> Result<DatabaseEvents> {
        let (begun, since) = (Instant::now(), self.out.last);
        let watcher = self.watcher.take().unwrap_or_else(|| self.app.layer.watch_databases());
        let reading = async move {
            let mut watcher = watcher;
            let page = watcher.read(since).await?;
            Ok((watcher, page))
        };
        let (watcher, page) = self.app.scan(reading).await?;
        self.watcher = Some(watcher);
        self.rested = Instant::now() + (begun.elapsed() * COOLDOWN).max(PAUSE);
        Ok(page)
    }

    async fn run(mut self, writer: BodyWriter, first: DatabaseEvents) -> Result<(), Stop> {
        if self.out.kind.is_array() {
            writer.send(b"{\"results\":[\n".to_vec()).await?;
        }
        let mut page = first;
        loop {
            let mut bytes = Vec::new();
            self.out.rows(page, &mut bytes);
            writer.send(bytes).await?;
            let is_answered = self.out.kind == FeedKind::Longpoll && self.out.sent > 0;
            if is_answered || self.out.left == 0 || !self.wait(&writer).await? {
                break;
            }
            page = self.read().await?;
        }
        let mut end = Vec::new();
        self.out.end(&mut end);
        Ok(writer.send(end).await?)
    }

    /// Waits for an event. `false` at the timeout, and when the server stops.
    async fn wait(&mut self, writer: &BodyWriter) -> Result<bool, Stop> {
        let (app, rested) = (self.app.clone(), self.rested);
        let mut watcher = self.watcher.take().unwrap_or_else(|| app.layer.watch_databases());
        let misses_some = watcher.misses_some();
        let outcome = {
            let changed = async {
                tokio::select! {
                    () = watcher.changed() => {}
                    () = tokio::time::sleep(POLL), if misses_some => {}
                }
                tokio::time::sleep_until(rested).await;
            };
            let stopping = app.stopping();
            tokio::pin!(changed, stopping);
            let (Idle::Timeout(pause) | Idle::Heartbeat(pause)) = self.idle;
            let mut alarm = Instant::now() + pause;
            loop {
                tokio::select! {
                    () = &mut changed => break true,
                    () = &mut stopping => break false,
                    () = writer.gone() => return Err(Stop::Gone),
                    () = tokio::time::sleep_until(alarm) => match self.idle {
                        Idle::Timeout(_) => break false,
                        Idle::Heartbeat(_) => {
                            writer.send(self.out.kind.heartbeat()).await?;
                            alarm = Instant::now() + pause;
                        }
                    },
                }
            }
        };
        self.watcher = Some(watcher);
        Ok(outcome)
    }
}
