//! Finds documents by selector, with the indexes that make it fast, for programs that embed this crate.
//!
//! ```text
//!   index().fields(["type", "at"]).create()   a design document, as `POST /db/_index` writes it, and its build
//!   find(selector).sort(["type", "at"])       mango::QueryPlan ─┬─ rows of an index ─┬─ documents that match, in order
//!                                                               └─ documents by id ──┘
//! ```
//!
//! An edit maintains the rows of indexes in its own transaction, in a caller's transaction too
//! ([`Edits`](crate::Edits)). So a search sees what was written before it. It reads page by page, each in a transaction
//! of its own, and never more than a page ahead of the stream. Rows whose keys are cut are an exception: with a
//! requested order, those with the same cut key are sorted in memory.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, Stream, TryStreamExt};
use json::{JsonText, JsonWriter};
use kv_api::Database;
use mango::{Choice, Direction, Index, MAX_KEY, NewIndex, Purpose, Query, QueryPlan};

use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::indexes::{IndexInfo, IndexPage, IndexRequest};
use crate::limits::DESIGN_PREFIX;
use crate::read::all_docs::{AllDocsEntry, AllDocsRequest};
use crate::read::document::{Document, GetOptions};
use crate::write::edit::Edit;

/// Number of documents in the first page, the factor of its growth, and the maximum.
const FIRST_PAGE: usize = 32;
const GROWTH: usize = 4;
const PAGE: usize = 500;

/// An index to create, from [`Documents::index`].
#[must_use]
pub struct IndexBuilder<D> {
    documents: Documents<D>,
    fields: Vec<String>,
    filter: Option<JsonText>,
    name: Option<String>,
    is_global: bool,
}

/// A search, from [`Documents::find`].
#[must_use]
pub struct Find<D> {
    documents: Documents<D>,
    selector: JsonText,
    sort: Vec<String>,
    descending: bool,
    skip: u64,
    limit: u64,
    index: Option<String>,
    partition: String,
}

impl<D> fmt::Debug for IndexBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexBuilder").field("fields", &self.fields).field("name", &self.name).finish_non_exhaustive()
    }
}

impl<D> fmt::Debug for Find<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Find").field("selector", &self.selector).field("sort", &self.sort).finish_non_exhaustive()
    }
}

impl<D: Database> Documents<D> {
    /// A new index. It has rows of the documents that have all its fields.
    pub fn index(&self) -> IndexBuilder<D> {
        IndexBuilder { documents: self.clone(), fields: Vec::new(), filter: None, name: None, is_global: false }
    }

    /// Searches documents by a selector of Mango, such as `{"type": "song", "at": {"$gt": 3}}`. It does not find design
    /// documents.
    pub fn find(&self, selector: JsonText) -> Find<D> {
        let (documents, sort) = (self.clone(), Vec::new());
        Find {
            documents,
            selector,
            sort,
            descending: false,
            skip: 0,
            limit: u64::MAX,
            index: None,
            partition: String::new(),
        }
    }
}

impl<D: Database> IndexBuilder<D> {
    /// The fields, in the order in which rows are sorted by them. A dot separates the names of nested members.
    pub fn fields<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// Only documents that match this selector have rows. A search must [name](Find::using) such an index.
    pub fn only(mut self, selector: JsonText) -> Self {
        self.filter = Some(selector);
        self
    }

    /// In a partitioned database, an index for searches of all partitions. Others are for searches in a partition.
    pub fn global(mut self) -> Self {
        self.is_global = true;
        self
    }

    /// The name of the index and of its design document. The default is made from the fields.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Creates the index, and builds it over the existing documents. Returns false if it existed already. An index of
    /// the same name with other fields is replaced.
    ///
    /// # Errors
    /// 400 if the fields or the filter are invalid; errors of the design document's edit and of the build.
    pub async fn create(self) -> Result<bool> {
        let new = NewIndex::parse(&self.request()?).map_err(refused)?;
        let name = self.name.unwrap_or_else(|| format!("by-{}", self.fields.join("-")));
        let id = format!("{DESIGN_PREFIX}{name}");
        let created = loop {
            let known = match self.documents.get(&id, &GetOptions::default()).await {
                Ok(known) => Some(known),
                Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Missing) => None,
                Err(error) if *error.kind() == ErrorKind::NotFound(NotFound::Deleted) => None,
                Err(error) => return Err(error),
            };
            let body = new.add_to(&id, &name, known.as_ref().map(|known| &known.body)).map_err(refused)?;
            let Some(body) = body else { break false };
            let mut edit = Edit::new(&id, body);
            edit.rev = known.map(|known| known.rev);
            match self.documents.put(edit).await {
                Ok(_) => break true,
                // Another writer changed the design document.
                Err(error) if *error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        };
        Box::pin(self.documents.build_indexes(|_| ())).await?;
        Ok(created)
    }

    /// The body of a request to `_index`.
    fn request(&self) -> Result<JsonText> {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object().name("index").begin_object().name("fields").begin_array();
        for field in &self.fields {
            json.str(field);
        }
        json.end_array();
        if let Some(filter) = &self.filter {
            json.name("partial_filter_selector").text(filter);
        }
        json.end_object();
        if self.is_global {
            json.name("partitioned").bool(false);
        }
        json.end_object();
        JsonText::parse(&out).map_err(|error| Error::bad_request(error.to_string()))
    }
}

impl<D: Database> Find<D> {
    /// Searches one partition of a partitioned database, which has its own indexes.
    pub fn in_partition(mut self, partition: impl Into<String>) -> Self {
        self.partition = partition.into();
        self
    }

    /// Sorts by these fields. There must be an index with this order.
    pub fn sort<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.sort = fields.into_iter().map(Into::into).collect();
        self
    }

    /// Sorts in descending order.
    pub fn descending(mut self) -> Self {
        self.descending = true;
        self
    }

    /// Skips this many of the first matches.
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Returns at most this many documents.
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Uses the index of this [name](IndexBuilder::name), or one of the design document of this name.
    pub fn using(mut self, name: impl Into<String>) -> Self {
        self.index = Some(name.into());
        self
    }

    /// The documents that match.
    ///
    /// # Errors
    /// 400 if the selector is invalid, or no index has the requested order; 404 if the index is deleted meanwhile; the
    /// error of a document that cannot be read; the store's errors.
    pub async fn all(self) -> Result<Vec<Document>> {
        self.stream().try_collect().await
    }

    /// The documents that match, as they are found. The stream ends after an error.
    pub fn stream(self) -> impl Stream<Item = Result<Document>> + Send {
        let (skip, left) = (self.skip, self.limit);
        let state = Search { find: self, planned: None, found: VecDeque::new(), skip, left, page: FIRST_PAGE };
        stream::try_unfold(state, |mut search| async move {
            let document = search.next().await?;
            Ok(document.map(|document| (document, search)))
        })
    }

    fn query(&self) -> Result<Query> {
        let mut out = Vec::new();
        let mut json = JsonWriter::new(&mut out);
        json.begin_object().name("selector").text(&self.selector).name("sort").begin_array();
        let direction = if self.descending { Direction::Descending } else { Direction::Ascending };
        for field in &self.sort {
            json.begin_object().name(field).str(direction.as_str()).end_object();
        }
        json.end_array();
        json.name("partition").str(&self.partition);
        if let Some(index) = &self.index {
            json.name("use_index").begin_array().str(index).end_array().name("allow_fallback").bool(false);
        }
        json.end_object();
        let body = JsonText::parse(&out).map_err(|error| Error::bad_request(error.to_string()))?;
        let query = Query::parse(&body).map_err(refused)?;
        Ok(Query { in_partitioned: self.documents.is_partitioned(), ..query })
    }

    /// Chooses an index. An index that is not built yet is built first, if no other one can answer.
    async fn plan(&self) -> Result<Planned> {
        let query = self.query()?;
        if !query.partition.is_empty() {
            self.documents.require_partitioned().await?;
        }
        loop {
            let known = self.documents.indexes().await?;
            let active: Vec<_> = known.iter().filter(|info| info.active).collect();
            let (plan, number) = match choose_index(&query, &active, Purpose::Find) {
                Ok(chosen) => chosen,
                Err(_) if active.len() < known.len() => {
                    Box::pin(self.documents.build_indexes(|_| ())).await?;
                    continue;
                }
                Err(error) => return Err(refused(error)),
            };
            let rest = match &plan.choice {
                Choice::Scan(scan) => {
                    let request = IndexRequest {
                        number,
                        start: scan.range.start.clone(),
                        end: scan.range.end.clone(),
                        descending: self.descending,
                        include_docs: true,
                        ..IndexRequest::default()
                    };
                    (!scan.is_empty).then_some(Rest::Rows(request))
                }
                Choice::AllDocs | Choice::Nothing => self.by_id(&query).map(Rest::Documents),
            };
            let index = match plan.choice {
                Choice::Scan(scan) => Some(scan.index),
                Choice::AllDocs | Choice::Nothing => None,
            };
            return Ok(Planned { query, index, rest });
        }
    }

    /// The documents by id, in the range that the selector allows; `None` if it is empty.
    fn by_id(&self, query: &Query) -> Option<AllDocsRequest> {
        let ids = query.id_range();
        let is_empty = ids.is_empty || query.selector.is_empty_combination();
        (!is_empty).then(|| AllDocsRequest::of_ids(ids, self.descending))
    }
}

/// Chooses among these indexes. Also returns the number of the chosen one, or 0 if none is chosen.
///
/// # Errors
/// As [`QueryPlan::of`].
pub fn choose_index(
    query: &Query,
    among: &[&IndexInfo],
    purpose: Purpose,
) -> std::result::Result<(QueryPlan, u64), mango::Error> {
    let indexes: Vec<_> = among.iter().map(|info| info.index.clone()).collect();
    let plan = QueryPlan::of(query, &indexes, purpose)?;
    let chosen = match &plan.choice {
        Choice::Scan(scan) => among.iter().find(|info| Arc::ptr_eq(&info.index, &scan.index)),
        Choice::AllDocs | Choice::Nothing => None,
    };
    let number = chosen.map_or(0, |info| info.number);
    Ok((plan, number))
}

/// The plan of a search: the rows that it reads.
struct Planned {
    query: Query,
    index: Option<Arc<Index>>,
    /// The remaining part; `None` at the end.
    rest: Option<Rest>,
}

enum Rest {
    Documents(AllDocsRequest),
    Rows(IndexRequest),
}

/// A search in progress.
struct Search<D> {
    find: Find<D>,
    planned: Option<Planned>,
    /// Matches that were read but not taken.
    found: VecDeque<Document>,
    skip: u64,
    left: u64,
    page: usize,
}

impl<D: Database> Search<D> {
    async fn next(&mut self) -> Result<Option<Document>> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut planned = match self.planned.take() {
            Some(planned) => planned,
            None => Box::pin(self.find.plan()).await?,
        };
        loop {
            while let Some(document) = self.found.pop_front() {
                if self.skip == 0 {
                    self.left -= 1;
                    self.planned = Some(planned);
                    return Ok(Some(document));
                }
                self.skip -= 1;
            }
            planned.rest = match planned.rest.take() {
                None => return Ok(None),
                Some(Rest::Documents(request)) => Box::pin(self.documents(&planned, request)).await?,
                Some(Rest::Rows(request)) => Box::pin(self.rows(&planned, request)).await?,
            };
            self.page = (self.page * GROWTH).min(PAGE);
        }
    }

    async fn documents(&mut self, planned: &Planned, mut request: AllDocsRequest) -> Result<Option<Rest>> {
        request.at_once = Some(self.page);
        let page = Box::pin(self.find.documents.all_docs(&request)).await?;
        for row in page.rows.into_iter().filter(|row| !row.id.starts_with(DESIGN_PREFIX)) {
            self.examine(planned, row.entry)?;
        }
        Ok(page.next.map(Rest::Documents))
    }

    async fn rows(&mut self, planned: &Planned, request: IndexRequest) -> Result<Option<Rest>> {
        let page = self.index_page(&IndexRequest { limit: Some(self.page), ..request.clone() }).await?;
        let (count, mut last) = (page.rows.len(), None);
        for row in page.rows {
            if row.key.len() == MAX_KEY && !self.find.sort.is_empty() {
                return self.alike(planned, row.key, request).await.map(Some);
            }
            last = Some((row.key, row.id));
            self.examine(planned, row.entry.unwrap_or(AllDocsEntry::Missing))?;
        }
        // A page may have fewer rows than its limit even if it is not the last one.
        let is_last = page.next.is_none() && count < self.page;
        Ok(last.filter(|_| !is_last).map(|last| Rest::Rows(IndexRequest { after: Some(last), ..request })))
    }

    /// Reads all rows with the same cut key, sorts their documents by their whole keys, and continues after them.
    async fn alike(&mut self, planned: &Planned, key: Vec<u8>, request: IndexRequest) -> Result<Rest> {
        let above = [&key[..], &[0]].concat();
        let (start, end) = (key.clone(), above.clone());
        let mut next = Some(IndexRequest { start, end, after: None, ..request.clone() });
        let (mut sorted, before) = (Vec::new(), std::mem::take(&mut self.found));
        while let Some(request) = next {
            let page = self.index_page(&request).await?;
            for row in page.rows {
                self.examine(planned, row.entry.unwrap_or(AllDocsEntry::Missing))?;
            }
            next = page.next;
        }
        for document in std::mem::replace(&mut self.found, before) {
            let whole = planned.index.as_ref().and_then(|index| index.whole_key(document.to_text().root()));
            sorted.push((whole, document));
        }
        sorted.sort_by(|(a, one), (b, other)| (a, &one.id).cmp(&(b, &other.id)));
        if request.descending {
            sorted.reverse();
        }
        self.found.extend(sorted.into_iter().map(|(_, document)| document));
        Ok(Rest::Rows(match request.descending {
            true => IndexRequest { end: key, after: None, ..request },
            false => IndexRequest { start: above, after: None, ..request },
        }))
    }

    async fn index_page(&self, request: &IndexRequest) -> Result<IndexPage> {
        Box::pin(self.find.documents.index_rows(request)).await
    }

    /// Keeps a document that matches. One that cannot be read ends the search: it might match.
    fn examine(&mut self, planned: &Planned, entry: AllDocsEntry) -> Result<()> {
        match entry {
            AllDocsEntry::Live { doc: Some(document), .. } => {
                if planned.query.matches(document.to_text().root()).map_err(refused)? {
                    self.found.push_back(*document);
                }
                Ok(())
            }
            AllDocsEntry::Damaged { error } => Err(error),
            _ => Ok(()),
        }
    }
}

/// The error for a refused query or index.
fn refused(error: mango::Error) -> Error {
    Error::bad_request(error.reason().to_owned())
}
