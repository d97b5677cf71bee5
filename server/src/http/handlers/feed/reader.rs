//! Reads a feed page by page.
//!
//! Each page is bounded and starts where the previous one ended. So a feed holds a page or two in memory at most,
//! however slow its client is and however long its history.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use mango::Selector;
use model::{
    BulkGet, Change, ChangesBatch, ChangesRequest, Document, GetOptions, JsonWriter, NumberedSeq, OpenRev, RevId, Seq,
    Since, Style,
};

use crate::http::app::App;
use crate::http::app::stores::{Documents, Watcher};
use crate::http::error::Result;
use crate::http::functions::FilterFunction;
use crate::http::handlers::document::contents;
use crate::http::handlers::feed::plan::{FeedKind, FeedRequest, Filter};
use crate::http::wire::response::{MOST_PAGE, PageRows};

/// Maximum number of times that a database may move while one page is read.
const MOST_MOVES: usize = 16;

/// Rows in the format of the feed.
pub(crate) struct FeedPage {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: u64,
    /// Whether further rows can be read at once, within the limit.
    pub(crate) more: bool,
}

/// Reads a feed page by page.
pub(crate) struct Reader {
    pub(crate) app: Arc<App>,
    pub(crate) database: Documents,
    pub(crate) plan: FeedRequest,
    /// The last sequence that was read for the client.
    pub(crate) last: Seq,
    /// The number of `last`, once a page has been read.
    number: Option<u64>,
    /// Number of changes after `last`, if known.
    pending: Option<u64>,
    /// Number of rows sent.
    pub(crate) sent: u64,
    /// Whether a page has been read.
    begun: bool,
    /// Where a waiting feed in descending order continues after the end of its list.
    resume: Option<Seq>,
    /// Number of times that the database has moved.
    pub(crate) moves: u64,
    pub(crate) pace: PageRows,
}

impl Reader {
    /// `resume`: the last sequence, for a feed in descending order that waits.
    pub(crate) fn new(app: Arc<App>, database: Documents, plan: FeedRequest, since: Seq, resume: Option<Seq>) -> Self {
        let pace = PageRows::new(plan.include_docs);
        let (number, pending) = (None, None);
        Reader { app, database, plan, last: since, number, pending, sent: 0, begun: false, resume, moves: 0, pace }
    }

    /// Reads the next page. It is empty if there are no changes, or none that pass the filter. A feed that has waited
    /// shares the read with others, through its watcher.
    pub(crate) async fn page(&mut self, watcher: Option<&mut Watcher>) -> Result<FeedPage> {
        let plan = &self.plan;
        let left = plan.limit.map(|limit| limit.saturating_sub(self.sent));
        if left == Some(0) {
            // The limit was 0 or is reached.
            return Ok(FeedPage { bytes: Vec::new(), rows: 0, more: false });
        }
        let most = self.pace.rows;
        let by_document = matches!(plan.filter, Filter::Selector(_) | Filter::Function(_));
        let selects = by_document || matches!(plan.filter, Filter::Design);
        let request = ChangesRequest {
            since: Since::Seq(self.last),
            before: Some(self.last).filter(|_| plan.descending && self.begun),
            // The limit counts rows that pass, so a feed that is filtered here is read without it.
            limit: Some(left.filter(|_| !selects).map_or(most, |left| usize::try_from(left).unwrap_or(most).min(most))),
            descending: plan.descending,
            style: plan.style,
            include_docs: plan.include_docs || by_document,
            conflicts: plan.conflicts,
            deleted_conflicts: false,
            doc_ids: match &plan.filter {
                Filter::Ids(ids) => Some(ids.clone()),
                _ => None,
            },
            numbered: true,
        };
        let shared = match watcher {
            // The contents are read later, and must still be there.
            Some(watcher) if !plan.attachments => self.app.shared_changes(watcher, &request).await,
            _ => None,
        };
        let mut batch = match shared {
            Some(batch) => batch,
            None => self.batch(request).await?,
        };
        if let Filter::Function(function) = &self.plan.filter {
            let function = function.clone();
            batch.rows = self.ask(&function, batch.rows).await?;
        }
        let mut page = FeedPage { bytes: Vec::new(), rows: 0, more: batch.more };
        let (mut last, mut number) = (batch.last_seq, batch.last_number);
        for mut change in batch.rows {
            // The change is sent once, when the feed continues from there.
            if self.resume.is_some_and(|resume| change.seq > resume) {
                continue;
            }
            if !self.passes(&mut change).await? {
                continue;
            }
            if !self.plan.include_docs {
                change.doc = None;
            }
            let mut _held = None;
            if let Some(document) = &mut change.doc {
                document.att_encoding_info = self.plan.att_encoding_info;
                if self.plan.attachments {
                    _held = Some(contents::load_all(&self.app, &self.database, document).await?);
                }
            }
            self.write_row(&mut page.bytes, &mut change);
            page.rows += 1;
            self.pace.written += 1;
            self.sent += 1;
            if page.bytes.len() > MOST_PAGE && change.seq != batch.last_seq {
                // Attachments can make a page large. The next page starts after this row.
                (last, number) = (change.seq, change.number);
                page.more = true;
                break;
            }
            if self.plan.limit.is_some_and(|limit| self.sent >= limit) {
                (last, number) = (change.seq, change.number);
                page.more = false;
                break;
            }
        }
        (self.last, self.number) = (last, number);
        self.begun = true;
        self.pending = match batch.pending {
            // The batch's count does not apply to a row within the batch.
            Some(pending) if last == batch.last_seq => Some(pending),
            _ if !batch.more && last == batch.last_seq => Some(0),
            _ => None,
        };
        if !page.more && !self.is_full() && self.plan.waits_after(self.sent) {
            // From here on the feed is like any other.
            if let Some(resume) = self.resume.take() {
                (self.plan.descending, self.last) = (false, resume);
                (self.number, self.pending) = (None, None);
            }
        }
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

    /// Reads from the database, also if it has moved.
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

    /// Opens the database in the store to which it has moved.
    async fn follow(&mut self) -> Result<()> {
        let name = self.database.name().to_owned();
        self.app.databases.forget(&name);
        self.database = self.app.databases.stores.database(&name).await?;
        self.moves += 1;
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.plan.limit.is_some_and(|limit| self.sent >= limit)
    }

    async fn passes(&mut self, change: &mut Change) -> Result<bool> {
        match &self.plan.filter {
            // A function was asked about all rows of the page.
            Filter::All | Filter::Ids(_) | Filter::Named(_) | Filter::Function(_) => Ok(true),
            // A document that cannot be read may match.
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
                Some(document) => Ok(matches(selector, document)),
                None => Ok(false),
            },
        }
    }

    /// Removes the leaves that do not match. Returns whether any are left.
    async fn select_leaves(&self, selector: &Selector, change: &mut Change) -> Result<bool> {
        let Some(leaves) = self.leaves(change).await? else { return Ok(true) };
        let mut passing = HashSet::new();
        for leaf in leaves {
            if matches(selector, &leaf) {
                passing.insert(leaf.rev);
            }
        }
        change.revs.retain(|rev| passing.contains(rev));
        Ok(!change.revs.is_empty())
    }

    /// The leaves of a change. `None` if one cannot be read: it may match, so the row passes, with the error.
    async fn leaves(&self, change: &mut Change) -> Result<Option<Vec<Document>>> {
        let leaf = |rev: &RevId| BulkGet { id: change.id.clone(), rev: Some(rev.clone()) };
        let requests: Vec<BulkGet> = change.revs.iter().map(leaf).collect();
        let database = self.database.clone();
        let found = self.app.scan(async move { database.get_many(requests, &GetOptions::default()).await }).await?;
        let mut documents = Vec::new();
        for (_, leaves) in found {
            match leaves {
                Ok(leaves) => documents.extend(leaves.into_iter().filter_map(|leaf| match leaf {
                    OpenRev::Found(document) => Some(document),
                    OpenRev::Missing(_) => None,
                })),
                Err(error) => {
                    change.error = Some(error);
                    return Ok(None);
                }
            }
        }
        Ok(Some(documents))
    }

    /// The rows and leaves that a filter function accepts. It is called with a whole page at once.
    async fn ask(&mut self, function: &FilterFunction, mut rows: Vec<Change>) -> Result<Vec<Change>> {
        let mut asked: Vec<(usize, RevId)> = Vec::new();
        let mut documents = Vec::new();
        for (place, change) in rows.iter_mut().enumerate() {
            if change.error.is_some() {
                // A document that cannot be read may match.
                continue;
            }
            if self.plan.style == Style::AllDocs && change.revs.len() > 1 {
                let leaves = match self.leaves(change).await {
                    Err(error) if error.is_moved() => {
                        self.follow().await?;
                        self.leaves(change).await?
                    }
                    leaves => leaves?,
                };
                for leaf in leaves.into_iter().flatten() {
                    documents.push(leaf.to_text());
                    asked.push((place, leaf.rev));
                }
            } else if let Some(document) = &change.doc {
                documents.push(document.to_text());
                asked.push((place, document.rev.clone()));
            }
        }
        let verdicts = self.app.functions.filter(function, documents).await?;
        let passing: HashSet<(usize, RevId)> =
            asked.into_iter().zip(verdicts).filter(|(_, passes)| *passes).map(|(asked, _)| asked).collect();
        let mut kept = Vec::new();
        for (place, mut change) in rows.into_iter().enumerate() {
            if change.error.is_none() {
                change.revs.retain(|rev| passing.contains(&(place, rev.clone())));
            }
            if !change.revs.is_empty() {
                kept.push(change);
            }
        }
        Ok(kept)
    }

    fn write_row(&self, out: &mut Vec<u8>, change: &mut Change) {
        match self.plan.kind {
            FeedKind::Normal | FeedKind::Longpoll if self.sent > 0 => out.extend_from_slice(b",\n"),
            FeedKind::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
        let parts = self.plan.fields.as_ref().and_then(|fields| Some((fields, change.doc.take()?)));
        change.write_json(out);
        if let Some((fields, document)) = parts {
            // Reopens the row's complete object to add the parts of its document.
            out.pop();
            out.extend_from_slice(b",\"doc\":");
            fields.write(document.to_text().root(), out);
            out.push(b'}');
        }
        match self.plan.kind {
            FeedKind::Continuous => out.push(b'\n'),
            FeedKind::EventSource => {
                out.extend_from_slice(b"\nid: ");
                out.extend_from_slice(change.shown_seq().as_bytes());
                out.extend_from_slice(b"\n\n");
            }
            FeedKind::Normal | FeedKind::Longpoll => {}
        }
    }

    /// The number of changes after the last row.
    async fn pending(&mut self) -> Result<u64> {
        if let Some(pending) = self.pending {
            return Ok(pending);
        }
        let (last, descending) = (self.last, self.plan.descending);
        let exact = usize::try_from(self.sent).unwrap_or(usize::MAX);
        // A descending feed that has read nothing has all changes before it.
        let backwards = descending && self.begun;
        match self.read(move |database| async move { database.pending(last, backwards, exact).await }).await {
            // The feed ends because the database was dropped.
            Err(error) if error.is_no_database() && self.begun => Ok(0),
            pending => pending,
        }
    }

    /// Writes the end of the feed.
    pub(crate) async fn write_end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.plan.kind == FeedKind::EventSource {
            return Ok(());
        }
        let pending = self.pending().await?;
        let last = self.last;
        let number = match self.number {
            Some(number) => number,
            None => self.read(move |database| async move { database.numbered(last).await }).await?.number,
        };
        let tail = out.len();
        let mut json = JsonWriter::new(out);
        json.begin_object();
        json.name("last_seq").display(NumberedSeq { number, seq: last });
        json.name("pending").u64(pending);
        json.end_object();
        out.push(b'\n');
        if self.plan.kind.is_array() {
            // The members belong into the object that has the results.
            out.splice(tail..=tail, *b"\n],\n");
        }
        Ok(())
    }
}

/// Whether a document passes a selector. As in CouchDB, a document on which an expression takes too many steps does not
/// pass; the feed continues.
fn matches(selector: &Selector, document: &Document) -> bool {
    selector.matches(document.to_text().root()).unwrap_or_else(|error| {
        tracing::info!(id = document.id, %error, "a document is left out of a feed");
        false
    })
}
