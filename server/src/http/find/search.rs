//! A search through the documents by id, page by page.

use std::sync::Arc;
use std::time::Instant;

use mango::Bookmark;
use model::{AllDocsEntry, AllDocsRequest, AllDocsRow, JsonWriter};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::find::plan::Plan;

/// The most documents of a page. The first page is as long as its answer may be, and each is this many times as
/// long as the one before.
const PAGE_ROWS: usize = 2_000;
const GROWTH: usize = 4;

/// A page of answers ends behind the document with which it has more bytes than these.
const PAGE_BYTES: usize = 1_000_000;

/// How many documents are matched before other searches have their turn.
const ROWS_IN_A_TURN: usize = 50;

/// Above how many documents for each result a search warns, as in CouchDB.
const MANY_DOCUMENTS: u64 = 10;

const NO_INDEX: &str = "No matching index found, create an index to optimize query time.";
const TOO_MANY: &str = "The number of documents examined is high in proportion to the number of results returned. Consider adding a more specific index to improve this.";

/// A search on its way.
pub(crate) struct Search {
    app: Arc<App>,
    database: Documents,
    plan: Arc<Plan>,
    /// What is still to be looked at.
    rest: Option<AllDocsRequest>,
    page_rows: usize,
    tally: Tally,
    began: Instant,
}

/// What has been found so far.
#[derive(Default)]
struct Tally {
    /// Matches to leave out, and to give back, from here on.
    skip: u64,
    left: u64,
    /// Rows and documents that were looked at.
    keys: u64,
    documents: u64,
    returned: u64,
    /// Documents that cannot be read.
    damaged: u64,
    /// The last one that was given back.
    last: Option<String>,
}

impl Search {
    /// # Errors
    /// `invalid_bookmark`
    pub(crate) fn new(app: &Arc<App>, database: Documents, plan: Plan) -> Result<Search> {
        let query = &plan.query;
        let bookmark = query.bookmark.as_deref().map(Bookmark::decode).transpose()?;
        let tally = Tally { skip: query.skip, left: query.limit, ..Tally::default() };
        let wanted = usize::try_from(query.skip.saturating_add(query.limit)).unwrap_or(usize::MAX);
        Ok(Search {
            app: app.clone(),
            database,
            rest: Some(plan.listing(bookmark.as_ref())).filter(|_| query.limit > 0),
            plan: Arc::new(plan),
            page_rows: wanted.clamp(1, PAGE_ROWS),
            tally,
            began: Instant::now(),
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.rest.is_none()
    }

    /// Writes what matches of the next page.
    pub(crate) async fn page(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Some(mut request) = self.rest.take() else { return Ok(()) };
        let rows = self.page_rows;
        request.limit = Some(rows);
        let (database, plan, mut tally) = (self.database.clone(), self.plan.clone(), std::mem::take(&mut self.tally));
        let (found, next, tally) = self
            .app
            .scan(async move {
                let mut page = database.all_docs(&request).await?;
                let mut found = Vec::new();
                let mut read = page.rows.len();
                for (at, row) in page.rows.iter().enumerate() {
                    tally.examine(&plan, row, &mut found);
                    if tally.left == 0 || found.len() > PAGE_BYTES {
                        read = at + 1;
                        break;
                    }
                    // Others have their turn, and a search whose client is gone ends here.
                    if at % ROWS_IN_A_TURN == ROWS_IN_A_TURN - 1 {
                        tokio::task::yield_now().await;
                    }
                }
                let next = if read < page.rows.len() {
                    page.rows.truncate(read);
                    after(request, read, &page.rows)
                } else {
                    page.next.or_else(|| after(request, rows, &page.rows))
                };
                Ok((found, next, tally))
            })
            .await?;
        out.extend_from_slice(&found);
        self.rest = next.filter(|_| tally.left > 0);
        self.tally = tally;
        self.page_rows = rows.saturating_mul(GROWTH).min(PAGE_ROWS);
        Ok(())
    }

    /// Writes what stands behind the documents.
    pub(crate) fn write_end(&self, out: &mut Vec<u8>) {
        let (tally, query) = (&self.tally, &self.plan.query);
        out.extend_from_slice(b"\r\n],\r\n\"bookmark\": ");
        let bookmark = match &tally.last {
            Some(id) => Bookmark { id: id.clone() }.encode(),
            None => query.bookmark.clone().unwrap_or_else(|| Bookmark::NIL.to_owned()),
        };
        JsonWriter::new(out).str(&bookmark);
        if query.execution_stats {
            out.extend_from_slice(b",\r\n\"execution_stats\": ");
            // With several copies to read each document is read apart from its row.
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
        out.extend_from_slice(b",\r\n\"warning\": ");
        JsonWriter::new(out).str(&self.warning());
        out.extend_from_slice(b"}\r");
    }

    fn warning(&self) -> String {
        let tally = &self.tally;
        let many = tally.documents > MANY_DOCUMENTS.saturating_mul(tally.returned.max(1));
        let damaged = format!("{} documents cannot be read and were left out.", tally.damaged);
        let warnings = [
            self.plan.index_warning(),
            Some(NO_INDEX.to_owned()),
            many.then(|| TOO_MANY.to_owned()),
            (tally.damaged > 0).then_some(damaged),
        ];
        warnings.into_iter().flatten().collect::<Vec<_>>().join("\n")
    }
}

/// The request for what comes after a page that was to have `limit` rows: where it has, the listing may go on.
fn after(request: AllDocsRequest, limit: usize, rows: &[AllDocsRow]) -> Option<AllDocsRequest> {
    let last = rows.last().filter(|_| rows.len() >= limit)?;
    Some(AllDocsRequest { start: Some(last.id.clone()), inclusive_start: false, ..request })
}

impl Tally {
    fn examine(&mut self, plan: &Plan, row: &AllDocsRow, out: &mut Vec<u8>) {
        self.keys += 1;
        let document = match &row.entry {
            AllDocsEntry::Live { doc: Some(document), .. } => document,
            AllDocsEntry::Damaged { .. } => {
                self.damaged += 1;
                return;
            }
            _ => return,
        };
        self.documents += 1;
        let text = document.to_text();
        // Design documents are never found.
        if row.id.starts_with("_design/") || !plan.query.selector.matches(text.root()) {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        out.extend_from_slice(if self.returned == 0 { b"\r\n" } else { b",\r\n" });
        plan.query.fields.write(text.root(), out);
        self.left -= 1;
        self.returned += 1;
        self.last = Some(row.id.clone());
    }
}
