//! A search, page by page, through the rows of an index or the documents by id.
//!
//! ```text
//!   Rest::Rows ─────── rows of an index; with a requested order, up to the first cut key
//!     │    ▲
//!     ▼    │
//!   Rest::Alike ────── all rows with that cut key, sorted by their whole keys
//!
//!   Rest::Documents ── documents by id
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use mango::{Bookmark, MAX_KEY};
use model::{
    AllDocsEntry, AllDocsRequest, ErrorKind, GetOptions, IndexPage, IndexRequest, JsonText, JsonWriter, NotFound,
};

use crate::http::app::App;
use crate::http::app::statistics::Count;
use crate::http::app::stores::Documents;
use crate::http::error::{ApiError, Result};
use crate::http::handlers::find::plan::PlannedQuery;

/// Maximum number of documents in a page. The first page has as many as the answer may have; each next one has `GROWTH`
/// times as many.
const PAGE_ROWS: usize = 2_000;
const GROWTH: usize = 4;

/// A page ends after the document with which its output exceeds this many bytes.
const PAGE_BYTES: usize = 1_000_000;

/// Maximum number of bytes of documents with the same cut key that are sorted at once.
const ALIKE_BYTES: usize = 16_000_000;

/// Number of documents that are matched before other tasks have a turn.
const ROWS_IN_A_TURN: usize = 50;

/// Number of documents for each result above which a search warns, as in CouchDB.
const MANY_DOCUMENTS: u64 = 10;

const TOO_MANY: &str = "The number of documents examined is high in proportion to the number of results returned. Consider adding a more specific index to improve this.";

/// A search in progress.
pub(crate) struct Search {
    app: Arc<App>,
    database: Documents,
    plan: PlannedQuery,
    /// The part that is left; `None` when the search is done.
    rest: Option<Rest>,
    page_rows: usize,
    tally: Tally,
    began: Instant,
}

/// The remaining part of a search.
enum Rest {
    Documents(AllDocsRequest),
    Rows(IndexRequest),
    /// Rows with the same cut key, and the rows after them.
    Alike {
        key: Vec<u8>,
        /// Whole key and id of the last document that was returned.
        after: Option<(Vec<u8>, String)>,
        /// The request for the rows after them.
        rows: IndexRequest,
    },
}

/// Counts of a search so far.
#[derive(Default)]
struct Tally {
    /// Number of matches still to be skipped.
    skip: u64,
    /// Number of matches still to be returned.
    left: u64,
    /// Number of rows examined.
    keys: u64,
    /// Number of documents examined.
    documents: u64,
    returned: u64,
    /// Number of documents that cannot be read.
    damaged: u64,
    /// The place of the last match.
    last: Option<Bookmark>,
}

impl Search {
    pub(crate) fn new(app: Arc<App>, database: Documents, plan: PlannedQuery) -> Search {
        let query = &plan.query;
        let tally = Tally { skip: query.skip, left: query.limit, ..Tally::default() };
        let wanted = usize::try_from(query.skip.saturating_add(query.limit)).unwrap_or(usize::MAX);
        Search {
            app,
            database,
            rest: Some(Rest::of(&plan)).filter(|_| query.limit > 0 && !plan.has_no_ids()),
            page_rows: wanted.clamp(1, PAGE_ROWS),
            tally,
            plan,
            began: Instant::now(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.rest.is_none()
    }

    /// Writes the matches of the next page. To be called on the threads for scans.
    pub(crate) async fn page(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Some(rest) = self.rest.take() else { return Ok(()) };
        let rows = self.page_rows;
        let (app, database, plan) = (&self.app, &self.database, &self.plan);
        let mut page = PageSearch { app, database, plan, tally: &mut self.tally, found: out };
        let next = match rest {
            Rest::Documents(request) => page.documents(request, rows).await?,
            Rest::Rows(request) => page.rows(request, rows).await?,
            Rest::Alike { key, after, rows } => page.alike(key, after, rows).await?,
        };
        self.rest = next.filter(|_| self.tally.left > 0);
        self.page_rows = rows.saturating_mul(GROWTH).min(PAGE_ROWS);
        Ok(())
    }

    /// Writes the members after the documents.
    pub(crate) fn write_end(&self, out: &mut Vec<u8>) {
        let (tally, query) = (&self.tally, &self.plan.query);
        self.count();
        out.extend_from_slice(b"\r\n],\r\n\"bookmark\": ");
        let bookmark = match &tally.last {
            Some(last) => last.encode(),
            None => query.bookmark.clone().unwrap_or_else(|| Bookmark::NIL.to_owned()),
        };
        JsonWriter::new(out).str(&bookmark);
        if query.execution_stats {
            out.extend_from_slice(b",\r\n\"execution_stats\": ");
            // As in CouchDB: with `r` above 1, documents are read separately from their rows.
            let (documents, quorum) = if query.r > 1 { (0, tally.documents) } else { (tally.documents, 0) };
            let mut json = JsonWriter::new(out);
            json.begin_object();
            json.name("total_keys_examined").u64(tally.keys);
            json.name("total_docs_examined").u64(documents);
            json.name("total_quorum_docs_examined").u64(quorum);
            json.name("results_returned").u64(tally.returned);
            json.name("execution_time_ms").f64((self.began.elapsed().as_secs_f64() * 1e6).round() / 1e3);
            json.end_object();
        }
        let warnings = self.warnings();
        if !warnings.is_empty() {
            out.extend_from_slice(b",\r\n\"warning\": ");
            JsonWriter::new(out).str(&warnings);
        }
        out.extend_from_slice(b"}\r");
    }

    /// Counts the search.
    fn count(&self) {
        let (tally, statistics) = (&self.tally, &self.app.statistics);
        statistics.searched(self.began.elapsed());
        let counts = [
            (Count::DocsExamined, tally.documents),
            (Count::KeysExamined, tally.keys),
            (Count::ResultsReturned, tally.returned),
            (Count::TooManyScanned, u64::from(self.examined_many())),
            (Count::UnindexedQueries, u64::from(self.plan.chosen.has_no_index())),
        ];
        counts.into_iter().for_each(|(count, number)| statistics.add(count, number));
    }

    fn examined_many(&self) -> bool {
        self.tally.documents > MANY_DOCUMENTS.saturating_mul(self.tally.returned.max(1))
    }

    fn warnings(&self) -> String {
        let tally = &self.tally;
        let mut warnings = self.plan.chosen.warnings.clone();
        if self.examined_many() {
            warnings.push(TOO_MANY.to_owned());
        }
        if tally.damaged > 0 {
            warnings.push(format!("{} documents cannot be read and were left out.", tally.damaged));
        }
        warnings.join("\n")
    }
}

impl Rest {
    /// The whole search, or the part after the bookmark.
    fn of(plan: &PlannedQuery) -> Rest {
        let bookmark = plan.bookmark.as_ref();
        let Some(scan) = plan.scan() else {
            return Rest::Documents(plan.listing(bookmark.map(|bookmark| bookmark.id.as_str())));
        };
        let mut rows = plan.rows(scan);
        let Some(Bookmark { id, row: Some((_, whole)) }) = bookmark else { return Rest::Rows(rows) };
        let key = whole[..whole.len().min(MAX_KEY)].to_vec();
        if !plan.query.sort.is_empty() && key.len() == MAX_KEY {
            return Rest::Alike { key, after: Some((whole.clone(), id.clone())), rows };
        }
        rows.after = Some((key, id.clone()));
        Rest::Rows(rows)
    }
}

/// A page in progress.
struct PageSearch<'s> {
    app: &'s App,
    database: &'s Documents,
    plan: &'s PlannedQuery,
    tally: &'s mut Tally,
    found: &'s mut Vec<u8>,
}

impl PageSearch<'_> {
    fn is_full(&self) -> bool {
        self.tally.left == 0 || self.found.len() > PAGE_BYTES
    }

    /// Searches documents by id.
    async fn documents(&mut self, mut request: AllDocsRequest, rows: usize) -> Result<Option<Rest>> {
        request.limit = Some(rows);
        let page = self.database.all_docs(&request).await?;
        let (mut last, mut done) = (None, request.skip);
        for (at, row) in page.rows.iter().enumerate() {
            // A listed id may not exist.
            self.tally.keys += u64::from(row.entry != AllDocsEntry::Missing);
            done += 1;
            // A search finds no design documents.
            if let Some(text) = self.examine(&row.entry)?.filter(|_| !row.id.starts_with("_design/")) {
                self.take(Bookmark { id: row.id.clone(), row: None }, &text);
            }
            last = Some(&row.id);
            if self.is_full() && at + 1 < page.rows.len() {
                break;
            }
            pause(at).await;
        }
        if let Some(ids) = &request.keys {
            let is_left = done < ids.len();
            return Ok(is_left.then_some(Rest::Documents(AllDocsRequest { skip: done, ..request })));
        }
        let is_whole = last == page.rows.last().map(|row| &row.id);
        let next = page.next.filter(|_| is_whole).or_else(|| {
            let start = last.filter(|_| !is_whole || page.rows.len() >= rows)?.clone();
            Some(AllDocsRequest { start: Some(start), inclusive_start: false, ..request })
        });
        Ok(next.map(Rest::Documents))
    }

    /// Searches rows of an index.
    async fn rows(&mut self, mut request: IndexRequest, rows: usize) -> Result<Option<Rest>> {
        request.limit = Some(rows);
        let page = self.read(&request).await?;
        let mut after = None;
        let count = page.rows.len();
        for (at, row) in page.rows.into_iter().enumerate() {
            if row.key.len() == MAX_KEY && !self.plan.query.sort.is_empty() {
                return Ok(Some(Rest::Alike { key: row.key, after: None, rows: request }));
            }
            self.tally.keys += 1;
            let text = match (row.values, row.entry) {
                (_, Some(entry)) => self.examine(&entry)?,
                (Some(values), None) => self.derive(&row.id, &values)?,
                // The values were too long for the row.
                (None, None) => self.open(&row.id).await?,
            };
            if let Some(text) = text {
                self.take(Bookmark { id: row.id.clone(), row: Some((request.number, row.key.clone())) }, &text);
            }
            after = Some((row.key, row.id));
            if self.is_full() && at + 1 < count {
                return Ok(Some(Rest::Rows(IndexRequest { after, ..request })));
            }
            pause(at).await;
        }
        let next = page.next.or_else(|| {
            let after = after.filter(|_| count >= rows);
            after.map(|after| IndexRequest { after: Some(after), ..request })
        });
        Ok(next.map(Rest::Rows))
    }

    /// Searches all rows with the same cut key, and returns the first documents by their whole keys.
    async fn alike(
        &mut self,
        key: Vec<u8>,
        after: Option<(Vec<u8>, String)>,
        rows: IndexRequest,
    ) -> Result<Option<Rest>> {
        let plan = self.plan;
        let Some(scan) = plan.scan() else { return Ok(None) };
        let descending = rows.descending;
        let wanted = usize::try_from(self.tally.skip.saturating_add(self.tally.left)).unwrap_or(usize::MAX);
        let above = [&key[..], &[0]].concat();
        let mut best: BTreeMap<(Vec<u8>, String), Vec<u8>> = BTreeMap::new();
        let (mut bytes, mut are_all) = (0, true);
        let mut next = Some(IndexRequest {
            start: key.clone(),
            end: above.clone(),
            after: None,
            limit: None,
            include_docs: true,
            ..rows.clone()
        });
        while let Some(request) = next {
            let page = self.read(&request).await?;
            for (at, row) in page.rows.into_iter().enumerate() {
                pause(at).await;
                self.tally.keys += 1;
                let text = row.entry.map_or(Ok(None), |entry| self.examine(&entry))?;
                let Some((whole, text)) = text.and_then(|text| Some((scan.index.whole_key(text.root())?, text))) else {
                    continue;
                };
                let place = (whole, row.id);
                let is_new =
                    after.as_ref().is_none_or(|after| if descending { place < *after } else { place > *after });
                if !is_new {
                    continue;
                }
                let mut out = Vec::new();
                plan.query.fields.write(text.root(), &mut out);
                bytes += place.0.len() + out.len();
                best.insert(place, out);
                while best.len() > wanted || (bytes > ALIKE_BYTES && best.len() > 1) {
                    let worst = if descending { best.pop_first() } else { best.pop_last() };
                    bytes -= worst.map_or(0, |((whole, _), out)| whole.len() + out.len());
                    are_all = false;
                }
            }
            next = page.next;
        }
        let mut last = None;
        let in_order: Vec<_> = if descending { best.into_iter().rev().collect() } else { best.into_iter().collect() };
        for ((whole, id), out) in in_order {
            last = Some((whole.clone(), id.clone()));
            self.give(Bookmark { id, row: Some((rows.number, whole)) }, |found| found.extend_from_slice(&out));
        }
        Ok(Some(match last {
            Some(last) if !are_all => Rest::Alike { key, after: Some(last), rows },
            _ if descending => Rest::Rows(IndexRequest { end: key, after: None, ..rows }),
            _ => Rest::Rows(IndexRequest { start: above, after: None, ..rows }),
        }))
    }

    async fn read(&self, request: &IndexRequest) -> Result<IndexPage> {
        // Only the first page, for which a client waits, is halved: if documents are so large that a half fills a page,
        // the other half is read in vain.
        let page = match self.tally.keys {
            0 => self.database.index_rows_in_parallel(request, |reading| self.app.in_parallel(reading)).await,
            _ => self.database.index_rows(request).await,
        };
        page.map_err(|error| match error.kind() {
            ErrorKind::NotFound(NotFound::Index) => {
                ApiError::unavailable("The index was deleted or changed while it was read. Try again.")
            }
            _ => error.into(),
        })
    }

    /// The document that was read with a row, if it matches.
    fn examine(&mut self, entry: &AllDocsEntry) -> Result<Option<JsonText>> {
        match entry {
            AllDocsEntry::Live { doc: Some(document), .. } => {
                self.tally.documents += 1;
                self.matching(document.to_text())
            }
            AllDocsEntry::Damaged { .. } => {
                self.tally.damaged += 1;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// A document, if it matches.
    fn matching(&self, text: JsonText) -> Result<Option<JsonText>> {
        Ok(self.plan.query.matches(text.root())?.then_some(text))
    }

    /// The part of a document that its row has, if that matches.
    fn derive(&self, id: &str, values: &JsonText) -> Result<Option<JsonText>> {
        let text = self.plan.scan().and_then(|scan| scan.index.document(id, values));
        text.map_or(Ok(None), |text| self.matching(text))
    }

    /// Reads a document by its id, and returns it if it matches. It may have been deleted since its row was read.
    async fn open(&mut self, id: &str) -> Result<Option<JsonText>> {
        let options = GetOptions { conflicts: self.plan.query.conflicts, ..GetOptions::default() };
        let document = match self.database.get(id, &options).await {
            Ok(document) => document,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing | NotFound::Deleted)) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.tally.documents += 1;
        self.matching(document.to_text())
    }

    /// Writes the requested fields of a match, or skips it.
    fn take(&mut self, place: Bookmark, text: &JsonText) {
        let fields = &self.plan.query.fields;
        self.give(place, |found| fields.write(text.root(), found));
    }

    /// Appends a match to the page with `write`, or skips it.
    fn give(&mut self, place: Bookmark, write: impl FnOnce(&mut Vec<u8>)) {
        // The next page starts after skipped matches, even if nothing was found after them.
        self.tally.last = Some(place);
        if self.tally.skip > 0 {
            self.tally.skip -= 1;
            return;
        }
        self.found.extend_from_slice(if self.tally.returned == 0 { b"\r\n" } else { b",\r\n" });
        write(self.found);
        self.tally.left -= 1;
        self.tally.returned += 1;
    }
}

/// Yields now and then, so that other tasks get a turn, and a search whose client is gone is aborted here.
async fn pause(at: usize) {
    if at % ROWS_IN_A_TURN == ROWS_IN_A_TURN - 1 {
        tokio::task::yield_now().await;
    }
}
