//! `_changes`: sends the feed to the client.
//!
//! ```text
//!   normal, longpoll   {"results":[⏎ row ,⏎ row ⏎],⏎"last_seq":"…","pending":0}
//!   continuous         row⏎ row⏎ … {"last_seq":"…","pending":0}⏎
//!   eventsource        data: row⏎id: seq⏎⏎ …
//! ```
//!
//! The reader fetches bounded pages on the threads for scans. This task sends them, and heartbeats, which continue
//! while a cold page is read. A feed with nothing to send waits on the database's watch, and shares the reads of what
//! comes then with all feeds that wait for the database.
//!
//! The watcher is told *after* each read what was read, and fires for every later change. So no commit in between is
//! missed.
//!
//! A feed continues in the other store when its database moves there, from the same sequence.
//!
//! A feed ends when its limit is reached, when its timeout passes, when the server stops, or when the database is
//! dropped. It ends with the sequence from which the client can continue. A list of changes must be complete, so it
//! breaks off when its database is dropped.
//!
//! `pending` is at the end of a response. If it is not known by then, it is counted there.

pub(crate) mod plan;
mod reader;
pub(crate) mod times;

use std::ops::ControlFlow;

use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use model::{ErrorKind, JsonText};
use tokio::time::Instant;

use crate::http::app::statistics::Entered;
use crate::http::app::stores::{Documents, Watcher};
use crate::http::error::Result;
use crate::http::handlers::feed::plan::{Begin, FeedKind, FeedRequest, Filter, Idle};
use crate::http::handlers::feed::reader::{FeedPage, Reader};
use crate::http::operation::{Content, IF_NONE_MATCH, Kind, Operation, Param, Reply};
use crate::http::request::Request;
use crate::http::wire::body::require_json;
use crate::http::wire::response::{self, BodyWriter, Gone, Response, Stop, Tag};

/// What [`changes`] does.
pub(crate) const CHANGES: Operation = Operation::new(
    "The feed of changes. Filter functions get all parameters.",
    &[Reply::new(200, &[Content::json(Kind::Json), Content::of("text/event-stream")]), Reply::NOT_MODIFIED],
)
.query(&[plan::PARAMS, plan::IDLE])
.headers(&[plan::LAST_EVENT_ID, IF_NONE_MATCH])
.refusals(&[500, 501]);

/// `GET /{db}/_changes`
pub(crate) async fn changes(request: &Request, db: &str) -> Result<Response> {
    respond(request, db, plan::plan(request, None).await?, None).await
}

/// What [`changes_posted`] does.
pub(crate) const CHANGES_POSTED: Operation = Operation::new(
    "The feed of changes, with a filter in the body.",
    &[Reply::new(200, &[Content::json(Kind::Json), Content::of("text/event-stream")]), Reply::NOT_MODIFIED],
)
.query(&[plan::PARAMS, plan::IDLE])
.headers(&[plan::LAST_EVENT_ID, IF_NONE_MATCH])
.bodies(&[Content::members(&[
    Param::texts("doc_ids", "With the filter `_doc_ids`: only these documents."),
    Param::object("selector", "With the filter `_selector`: only documents that match."),
    Param::texts("fields", "With the filter `_selector`: the members of documents."),
])])
.refusals(&[500, 501]);

/// `POST /{db}/_changes`: the filter may be in the body.
pub(crate) async fn changes_posted(request: &mut Request, db: &str) -> Result<Response> {
    require_json(&request.headers)?;
    let body = if request.body.is_absent() { None } else { Some(request.json_object().await?) };
    respond(request, db, plan::plan(request, body.as_ref()).await?, body.as_ref()).await
}

async fn respond(request: &Request, db: &str, mut plan: FeedRequest, body: Option<&JsonText>) -> Result<Response> {
    if let Filter::Named(named) = &plan.filter {
        let function = named.open(request, db, body.map(JsonText::as_str)).await?;
        plan.filter = Filter::Function(Box::new(function));
    }
    let plan = &plan;
    let kind = plan.kind;
    // Reads the first page before it sends the status, so that an error has its own status.
    let begin = |database: Documents| async move {
        let since = match plan.since {
            Begin::Seq(since) => since,
            Begin::Now => database.last_seq().await?,
            Begin::Time(time_ms) => database.since_time(time_ms).await?,
        };
        // Read before the page, so that the tag is never newer than the page.
        let tag = match kind {
            FeedKind::Normal if request.method == Method::GET => Some(tag_of(&database).await?),
            _ => None,
        };
        if let Some(known) = tag.as_ref().filter(|tag| tag.is_known(&request.headers)) {
            return Ok(ControlFlow::Break(known.clone()));
        }
        let resume = match plan.descending && kind != FeedKind::Normal {
            true => Some(database.last_seq().await?),
            false => None,
        };
        let mut reader = Reader::new(request.app.clone(), database, plan.clone(), since, resume);
        let first = reader.page(None).await?;
        Ok(ControlFlow::Continue((reader, first, tag)))
    };
    let (reader, first, tag) = match request.with_database(db, begin).await? {
        ControlFlow::Break(known) => return Ok(response::not_modified(known)),
        ControlFlow::Continue(begun) => begun,
    };
    let mut response = send(kind, reader, first).await?;
    if let Some(tag) = tag {
        response::set_etag(&mut response, tag);
    }
    Ok(response)
}

/// The tag of a list of changes. It changes with each edit and each purge, as in CouchDB.
async fn tag_of(database: &Documents) -> Result<Tag> {
    // A purge that removes something also changes the last sequence.
    let last = database.last_seq().await?;
    Ok(Tag::of_content(&[&database.instance_id(), &last.as_bytes()[..]].concat()))
}

async fn send(kind: FeedKind, mut reader: Reader, first: FeedPage) -> Result<Response> {
    let ends = match kind {
        FeedKind::Normal => !first.more,
        FeedKind::Longpoll => !first.more && (first.rows > 0 || reader.is_full()),
        FeedKind::Continuous | FeedKind::EventSource => false,
    };
    if ends {
        let mut body = Vec::with_capacity(first.bytes.len() + 80);
        body.extend_from_slice(b"{\"results\":[\n");
        body.extend_from_slice(&first.bytes);
        reader.write_end(&mut body).await?;
        return Ok(response::with_json(StatusCode::OK, response::Body::whole(body)));
    }
    let body = response::stream(|writer| Feed::new(reader, writer).run(first));
    let mut response = response::with_json(StatusCode::OK, body);
    if kind == FeedKind::EventSource {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

/// Why a feed stops waiting.
enum Woken {
    /// There may be something to read.
    Changed,
    /// The feed ends: after the timeout, or with the server or the database.
    Over,
}

/// Writes a feed.
struct Feed {
    reader: Reader,
    writer: BodyWriter,
    /// When the next heartbeat is due, or the timeout.
    alarm: Instant,
    /// Counts this feed as open.
    _open: Option<Entered>,
}

impl Feed {
    fn new(reader: Reader, writer: BodyWriter) -> Self {
        let is_feed = reader.plan.kind != FeedKind::Normal;
        let _open = is_feed.then(|| reader.app.statistics.feeds.enter());
        let mut feed = Feed { reader, writer, alarm: Instant::now(), _open };
        feed.wind();
        feed
    }

    /// Sets the alarm again.
    fn wind(&mut self) {
        let (Idle::Timeout(pause) | Idle::Heartbeat(pause)) = self.reader.plan.idle;
        self.alarm = Instant::now() + pause;
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.writer.send(bytes).await?;
        self.wind();
        Ok(())
    }

    async fn send_page(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.reader.pace.send(&self.writer, bytes).await?;
        self.wind();
        Ok(())
    }

    async fn run(mut self, first: FeedPage) -> Result<(), Stop> {
        let kind = self.reader.plan.kind;
        let mut watcher = None;
        let mut moves = self.reader.moves;
        if kind.is_array() {
            self.send(b"{\"results\":[\n".to_vec()).await?;
        }
        let mut page = first;
        loop {
            let FeedPage { bytes, rows, more } = page;
            self.send_page(bytes).await?;
            let answered = kind == FeedKind::Longpoll && (rows > 0 || self.reader.sent > 0);
            if self.reader.moves != moves {
                moves = self.reader.moves;
                watcher = None;
            }
            if !more {
                if kind == FeedKind::Normal || answered || self.reader.is_full() {
                    break;
                }
                let last = self.reader.last;
                let watcher = watcher.get_or_insert_with(|| self.reader.database.watch_changes(last));
                watcher.saw(last);
                if let Woken::Over = self.wait(watcher).await? {
                    break;
                }
            }
            if kind != FeedKind::Normal && self.reader.app.is_stopping() {
                break;
            }
            page = match self.next_page(watcher.as_mut()).await? {
                Some(page) => page,
                None => break,
            };
        }
        let mut end = Vec::new();
        self.reader.write_end(&mut end).await?;
        Ok(self.writer.send(end).await?)
    }

    /// The next page, with heartbeats while it is read; `None` when the database is gone.
    async fn next_page(&mut self, watcher: Option<&mut Watcher>) -> Result<Option<FeedPage>, Stop> {
        let heartbeat = match self.reader.plan.idle {
            Idle::Heartbeat(every) => Some(every),
            Idle::Timeout(_) => None,
        };
        let kind = self.reader.plan.kind;
        let sign = kind.heartbeat();
        // A list that breaks off must not look complete. A feed is never complete.
        let ends_anywhere = !kind.is_array() || (kind == FeedKind::Longpoll && self.reader.sent == 0);
        let reading = self.reader.page(watcher);
        tokio::pin!(reading);
        loop {
            tokio::select! {
                page = &mut reading => return match page {
                    Ok(page) => Ok(Some(page)),
                    Err(error) if error.is_no_database() && ends_anywhere => Ok(None),
                    Err(error) => Err(error.into()),
                },
                () = tokio::time::sleep_until(self.alarm), if heartbeat.is_some() => {
                    self.writer.send(sign).await?;
                    self.alarm = Instant::now() + heartbeat.unwrap_or_default();
                }
                () = self.writer.gone() => return Err(Stop::Gone),
            }
        }
    }

    /// Waits for a change.
    async fn wait(&mut self, watcher: &mut Watcher) -> Result<Woken, Stop> {
        self.wind();
        let app = self.reader.app.clone();
        let changed = watcher.changed();
        let stopping = app.stopping();
        tokio::pin!(changed, stopping);
        loop {
            tokio::select! {
                changed = &mut changed => return match changed {
                    Ok(_) => Ok(Woken::Changed),
                    Err(error) if error.status() == 404 => Ok(Woken::Over),
                    // The next page is read from the database's new place.
                    Err(error) if matches!(error.kind(), ErrorKind::Moved(_)) => Ok(Woken::Changed),
                    Err(error) => Err(error.into()),
                },
                () = &mut stopping => return Ok(Woken::Over),
                () = self.writer.gone() => return Err(Stop::Gone),
                () = tokio::time::sleep_until(self.alarm) => match self.reader.plan.idle {
                    Idle::Timeout(_) => return Ok(Woken::Over),
                    Idle::Heartbeat(_) => {
                        let sign = self.reader.plan.kind.heartbeat();
                        self.send(sign.into()).await?;
                    }
                },
            }
        }
    }
}
