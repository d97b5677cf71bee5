//! The changes feed, as it goes over the wire.
//!
//! ```text
//!   normal, longpoll   {"results":[⏎ row ,⏎ row ⏎],⏎"last_seq":"…","pending":0}
//!   continuous         row⏎ row⏎ … {"last_seq":"…","pending":0}⏎
//!   eventsource        data: row⏎id: seq⏎⏎ …
//! ```
//!
//! Rows are read in bounded pages, each on the threads for scans, from where the page before it ended;
//! so no feed holds more memory than a page or two, however slow its client and long its history. A
//! feed that waits does so on the database's watch. Heartbeats are sent by this task, not by the one
//! that reads, and go on while a cold page is read.
//!
//! A watcher is told what has been read *after* reading it, and fires for everything beyond: nothing
//! that is committed between the two is missed.
//!
//! A feed whose database moves to another store goes on there, from the same sequence.
//!
//! A feed ends well when its limit is reached, its timeout passes, the server stops or the database is
//! dropped: with the sequence from which the client goes on. A list of changes, which is as long as it is,
//! breaks off when the database is dropped within it.
//!
//! What is pending is said at the end of an answer, and counted there where it is not known by then.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use model::{
    BulkGet, Change, ChangesBatch, ChangesRequest, ErrorKind, GetOptions, JsonText, JsonWriter, OpenRev, Seq, Since,
    Style,
};
use tokio::time::Instant;

use super::error::{ApiError, Result};
use super::request::Request;
use super::response::{self, BodyWriter, Gone, Response, Stop};
use super::state::{App, Documents};
use crate::mango::Selector;

/// How a feed is framed, and whether it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedKind {
    /// What there is, then the end.
    Normal,
    /// As normal; where there is nothing, it waits for something.
    Longpoll,
    /// A line for each change, without end.
    Continuous,
    /// A server-sent event for each change, without end.
    EventSource,
}

impl FeedKind {
    /// Whether the rows are elements of one JSON answer.
    fn is_array(self) -> bool {
        matches!(self, FeedKind::Normal | FeedKind::Longpoll)
    }

    /// What is sent so that the connection is not taken for dead.
    fn heartbeat(self) -> &'static str {
        match self {
            FeedKind::EventSource => "event: heartbeat\ndata: \n\n",
            _ => "\n",
        }
    }
}

/// How often a database may move while a page of it is read.
const MOST_MOVES: usize = 16;

/// Which changes pass.
#[derive(Clone, Debug)]
pub(crate) enum Filter {
    All,
    Ids(Vec<String>),
    /// Design documents.
    Design,
    Selector(Box<Selector>),
}

/// What a feed does while there is nothing to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Idle {
    /// It ends after this long.
    Timeout(Duration),
    /// It shows that it is alive, this often, and goes on for ever.
    Heartbeat(Duration),
}

/// What a client asks for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: FeedKind,
    pub(crate) since: Seq,
    pub(crate) limit: Option<u64>,
    pub(crate) descending: bool,
    pub(crate) style: Style,
    pub(crate) include_docs: bool,
    pub(crate) conflicts: bool,
    pub(crate) filter: Filter,
    pub(crate) idle: Idle,
}

/// Rows, framed, and where they end.
struct Page {
    bytes: Vec<u8>,
    rows: u64,
    /// Whether there is more to read right now, within the limit.
    more: bool,
}

/// Reads a feed page by page.
struct Reader {
    app: Arc<App>,
    database: Documents,
    plan: Plan,
    /// Up to where the client knows everything.
    last: Seq,
    /// Changes behind `last`, where that is known.
    pending: Option<u64>,
    /// Rows sent.
    sent: u64,
    /// Whether a page has been read.
    begun: bool,
    /// How often the database turned out to have moved.
    moves: u64,
}

pub(crate) async fn respond(request: &Request, database: Documents, plan: Plan) -> Result<Response> {
    let kind = plan.kind;
    let last = plan.since;
    let mut reader =
        Reader { app: request.app.clone(), database, plan, last, pending: None, sent: 0, begun: false, moves: 0 };
    // The first page goes before the status, so that what is wrong has a status of its own.
    let first = reader.page().await?;
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
        return Ok(response::with_json(StatusCode::OK, response::Body::Whole(Some(body.into()))));
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

impl Reader {
    /// The next page. Empty where there is nothing yet, or nothing that passes.
    async fn page(&mut self) -> Result<Page> {
        let plan = &self.plan;
        let left = plan.limit.map(|limit| limit.saturating_sub(self.sent));
        if left == Some(0) {
            // Nothing was asked for.
            return Ok(Page { bytes: Vec::new(), rows: 0, more: false });
        }
        let by_selector = matches!(plan.filter, Filter::Selector(_));
        let selects = matches!(plan.filter, Filter::Selector(_) | Filter::Design);
        let request = ChangesRequest {
            since: Since::Seq(self.last),
            before: Some(self.last).filter(|_| plan.descending && self.begun),
            // What is filtered here is read without the limit, which counts what passes.
            limit: if selects { None } else { left.map(|left| usize::try_from(left).unwrap_or(usize::MAX)) },
            descending: plan.descending,
            style: plan.style,
            include_docs: plan.include_docs || by_selector,
            conflicts: plan.conflicts,
            doc_ids: match &plan.filter {
                Filter::Ids(ids) => Some(ids.clone()),
                _ => None,
            },
        };
        let batch = self.batch(request).await?;
        let mut page = Page { bytes: Vec::new(), rows: 0, more: batch.more };
        let mut last = batch.last_seq;
        for mut change in batch.rows {
            if !self.passes(&mut change).await? {
                continue;
            }
            if !self.plan.include_docs {
                change.doc = None;
            }
            self.write_row(&mut page.bytes, &change);
            page.rows += 1;
            self.sent += 1;
            if self.plan.limit.is_some_and(|limit| self.sent >= limit) {
                last = change.seq;
                page.more = false;
                break;
            }
        }
        self.last = last;
        self.begun = true;
        self.pending = match batch.pending {
            // What is known of the batch does not hold for a row within it.
            Some(pending) if last == batch.last_seq => Some(pending),
            _ if !batch.more && last == batch.last_seq => Some(0),
            _ => None,
        };
        Ok(page)
    }

    async fn batch(&mut self, request: ChangesRequest) -> Result<ChangesBatch> {
        let asked = Arc::new(request);
        self.read(|database| {
            let request = asked.clone();
            async move { database.changes(&request).await }
        })
        .await
    }

    /// Reads from the database, wherever it is by now.
    async fn read<T, F>(&mut self, read: impl Fn(Documents) -> F) -> Result<T>
    where
        F: Future<Output = model::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let mut moves = 0;
        loop {
            match self.app.scan(read(self.database.clone())).await {
                Err(error) if error.is_moved() && moves < MOST_MOVES => {
                    moves += 1;
                    self.follow().await?;
                }
                read => return read,
            }
        }
    }

    /// Finds the database where it is now.
    async fn follow(&mut self) -> Result<()> {
        let name = self.database.name().to_owned();
        self.app.forget(&name);
        self.database = self.app.stores.database(&name).await?;
        self.moves += 1;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.plan.limit.is_some_and(|limit| self.sent >= limit)
    }

    async fn passes(&mut self, change: &mut Change) -> Result<bool> {
        match &self.plan.filter {
            Filter::All | Filter::Ids(_) => Ok(true),
            // What cannot be read may match.
            Filter::Selector(_) if change.error.is_some() => Ok(true),
            Filter::Design => Ok(change.id.starts_with("_design/")),
            Filter::Selector(selector) if self.plan.style == Style::AllDocs && change.revs.len() > 1 => {
                let selector = selector.clone();
                match self.select_leaves(&selector, change).await {
                    Err(error) if error.is_moved() => {
                        self.follow().await?;
                        self.select_leaves(&selector, change).await
                    }
                    selected => selected,
                }
            }
            Filter::Selector(selector) => match &change.doc {
                Some(document) => matches(selector, &document.to_json()),
                None => Ok(false),
            },
        }
    }

    /// Keeps the leaves that match. The row passes while there are any.
    async fn select_leaves(&self, selector: &Selector, change: &mut Change) -> Result<bool> {
        let leaf = |rev: &model::RevId| BulkGet { id: change.id.clone(), rev: Some(rev.clone()) };
        let requests: Vec<BulkGet> = change.revs.iter().map(leaf).collect();
        let database = self.database.clone();
        let found = self.app.scan(async move { database.get_many(requests, &GetOptions::default()).await }).await?;
        let mut passing = HashSet::new();
        for (_, leaves) in found {
            let leaves = match leaves {
                Ok(leaves) => leaves,
                // What cannot be read may match: the row passes, and says so.
                Err(error) => {
                    change.error = Some(error);
                    return Ok(true);
                }
            };
            for leaf in leaves {
                if let OpenRev::Found(document) = leaf
                    && matches(selector, &document.to_json())?
                {
                    passing.insert(document.rev);
                }
            }
        }
        change.revs.retain(|rev| passing.contains(rev));
        Ok(!change.revs.is_empty())
    }

    fn write_row(&self, out: &mut Vec<u8>, change: &Change) {
        match self.plan.kind {
            FeedKind::Normal | FeedKind::Longpoll if self.sent > 0 => out.extend_from_slice(b",\n"),
            FeedKind::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
        let mut json = JsonWriter::new(out);
        json.begin_object();
        json.name("seq").display(change.seq);
        json.name("id").str(&change.id);
        json.name("changes").begin_array();
        for rev in &change.revs {
            json.begin_object().name("rev").display(rev).end_object();
        }
        json.end_array();
        if change.deleted {
            json.name("deleted").bool(true);
        }
        if let Some(error) = &change.error {
            json.name("error").str(error.error()).name("reason").str(&error.reason());
        }
        if let Some(document) = &change.doc {
            json.name("doc");
            document.write_json(out);
        }
        out.push(b'}');
        match self.plan.kind {
            FeedKind::Continuous => out.push(b'\n'),
            FeedKind::EventSource => {
                out.extend_from_slice(b"\nid: ");
                out.extend_from_slice(change.seq.to_string().as_bytes());
                out.extend_from_slice(b"\n\n");
            }
            FeedKind::Normal | FeedKind::Longpoll => {}
        }
    }

    /// How many changes are behind the last row.
    async fn pending(&mut self) -> Result<u64> {
        if let Some(pending) = self.pending {
            return Ok(pending);
        }
        let (last, descending) = (self.last, self.plan.descending);
        let exact = usize::try_from(self.sent).unwrap_or(usize::MAX);
        // A feed that goes backwards and was not begun has everything before it.
        let backwards = descending && self.begun;
        match self.read(move |database| async move { database.pending(last, backwards, exact).await }).await {
            // The feed ends since the database did.
            Err(error) if error.is_no_database() && self.begun => Ok(0),
            pending => pending,
        }
    }

    /// What a feed ends with.
    async fn write_end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.plan.kind == FeedKind::EventSource {
            return Ok(());
        }
        let pending = self.pending().await?;
        let tail = out.len();
        let mut json = JsonWriter::new(out);
        json.begin_object();
        json.name("last_seq").display(self.last);
        json.name("pending").u64(pending);
        json.end_object();
        out.push(b'\n');
        if self.plan.kind.is_array() {
            // The same members, but into the object that holds the results.
            out.splice(tail..=tail, *b"\n],\n");
        }
        Ok(())
    }
}

fn matches(selector: &Selector, document: &[u8]) -> Result<bool> {
    let document = JsonText::parse(document).map_err(|_| ApiError::internal())?;
    Ok(selector.matches(document.root()))
}

/// Why a feed waits no longer.
enum Woken {
    /// There may be something to read.
    Changed,
    /// It is over: the timeout, the end of the server or of the database.
    Over,
}

/// Writes a feed.
struct Feed {
    reader: Reader,
    writer: BodyWriter,
    /// When the connection has been silent for too long, or the feed has waited for too long.
    alarm: Instant,
}

impl Feed {
    fn new(reader: Reader, writer: BodyWriter) -> Self {
        let mut feed = Feed { reader, writer, alarm: Instant::now() };
        feed.wind();
        feed
    }

    fn wind(&mut self) {
        let (Idle::Timeout(pause) | Idle::Heartbeat(pause)) = self.reader.plan.idle;
        self.alarm = Instant::now() + pause;
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), Gone> {
        self.writer.send(bytes).await?;
        self.wind();
        Ok(())
    }

    async fn run(mut self, first: Page) -> Result<(), Stop> {
        let kind = self.reader.plan.kind;
        let mut watcher = self.reader.database.watch_changes(self.reader.last);
        let mut moves = self.reader.moves;
        if kind.is_array() {
            self.send(b"{\"results\":[\n".to_vec()).await?;
        }
        let mut page = first;
        loop {
            let Page { bytes, rows, more } = page;
            self.send(bytes).await?;
            let answered = kind == FeedKind::Longpoll && (rows > 0 || self.reader.sent > 0);
            if !more {
                if kind == FeedKind::Normal || answered || self.reader.is_full() {
                    break;
                }
                if self.reader.moves != moves {
                    moves = self.reader.moves;
                    watcher = self.reader.database.watch_changes(self.reader.last);
                }
                watcher.saw(self.reader.last);
                if let Woken::Over = self.wait(&mut watcher).await? {
                    break;
                }
            }
            if kind != FeedKind::Normal && self.reader.app.is_stopping() {
                break;
            }
            page = match self.next_page().await? {
                Some(page) => page,
                None => break,
            };
        }
        let mut end = Vec::new();
        self.reader.write_end(&mut end).await?;
        Ok(self.writer.send(end).await?)
    }

    /// The next page, with heartbeats while it is read; `None` when the database is gone.
    async fn next_page(&mut self) -> Result<Option<Page>, Stop> {
        let heartbeat = match self.reader.plan.idle {
            Idle::Heartbeat(every) => Some(every),
            Idle::Timeout(_) => None,
        };
        let kind = self.reader.plan.kind;
        let sign = kind.heartbeat();
        // A list that breaks off must not look like a whole one; a feed has no whole.
        let ends_anywhere = !kind.is_array() || (kind == FeedKind::Longpoll && self.reader.sent == 0);
        let reading = self.reader.page();
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
    async fn wait(&mut self, watcher: &mut model::Watcher<kv_api::AnyDatabase>) -> Result<Woken, Stop> {
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
                    // The next page is read where it is now.
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
