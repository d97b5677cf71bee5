//! Lists the indexes of a database, and reads ranges of their rows.
//!
//! A call reads one batch in one transaction, and returns the request for the rest. Documents are read in the same
//! transaction as their rows, or in one of the same read version, so the two agree.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::join;
use json::JsonText;
use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};
use mango::Index;

use crate::documents::Documents;
use crate::error::{Error, NotFound, Result};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::read::all_docs::{AllDocsEntry, AllDocsRow};
use crate::read::batch::BODIES_AT_ONCE;
use crate::read::winner::last_live_of_many;

use super::build::Built;

/// Maximum number of rows in a batch.
const ROWS_AT_ONCE: usize = 2_000;

/// Maximum number of rows in a batch that reads documents.
const DOCUMENTS_AT_ONCE: usize = 500;

/// From this number of documents on, half of them are read in parallel with the others. A search of a hundred exploded
/// documents on engine-lsm takes 0.6 ms instead of 0.9 (docs/adr/0066).
const WORTH_HALVING: usize = 40;

/// The reading of a batch's second half of documents, which may run on another thread.
pub type ParallelRead = Pin<Box<dyn Future<Output = Option<ParallelDocuments>> + Send>>;

/// Documents that were read in parallel with others.
#[derive(Debug)]
pub struct ParallelDocuments(Vec<AllDocsRow>);

type Spawn<'s> = &'s (dyn Fn(ParallelRead) -> ParallelRead + Sync);

/// An index of a database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IndexInfo {
    /// Its number in the database, which requests name.
    pub number: u64,
    /// Its definition.
    pub index: Arc<Index>,
    /// Whether it has the rows of all documents. If not, it is being built, or will be.
    pub active: bool,
    /// Number of documents processed so far, if it is not active.
    pub documents: u64,
}

/// A request for rows of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexRequest {
    /// The index's number.
    pub number: u64,
    /// The lowest key, inclusive.
    pub start: Vec<u8>,
    /// The highest key, exclusive.
    pub end: Vec<u8>,
    /// Continue after the row with this key and id, in the direction of reading.
    pub after: Option<(Vec<u8>, String)>,
    /// In descending order.
    pub descending: bool,
    /// Maximum number of rows.
    pub limit: Option<usize>,
    /// Include the documents.
    pub include_docs: bool,
    /// Include the live losing leaves in the documents.
    pub conflicts: bool,
}

/// A row of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexRow {
    /// The key, as in [`mango::IndexRow`].
    pub key: Vec<u8>,
    /// The document.
    pub id: String,
    /// The values of the index's fields; `None` if they are too long.
    pub values: Option<JsonText>,
    /// The document, if requested.
    pub entry: Option<AllDocsEntry>,
}

/// A batch of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexPage {
    /// The rows. A batch may be empty and not be the last one.
    pub rows: Vec<IndexRow>,
    /// The request for the rest; `None` after the last batch.
    pub next: Option<IndexRequest>,
}

impl IndexRequest {
    /// The range of rows; `None` if it is empty.
    fn range(&self, keys: &DatabaseKeys) -> Option<RangeRequest> {
        let at = |key: &[u8]| KeySelector::first_greater_or_equal(keys.key(DatabaseKey::IndexKey(self.number, key)));
        let (mut low, mut high) = (at(&self.start), at(&self.end));
        if let Some((key, id)) = &self.after {
            let after = keys.key(DatabaseKey::IndexRow(self.number, key, id));
            if self.descending {
                if after.as_slice() < high.key.as_ref() {
                    high = KeySelector::first_greater_or_equal(after);
                }
            } else if after.as_slice() >= low.key.as_ref() {
                low = KeySelector::first_greater_than(after);
            }
        }
        let is_empty = high.key <= low.key;
        let range = RangeRequest::selectors(low, high);
        Some(if self.descending { range.reverse() } else { range }).filter(|_| !is_empty)
    }

    fn after_rows(&self, rows: &[IndexRow], more: bool) -> Option<IndexRequest> {
        let limit = self.limit.map(|limit| limit.saturating_sub(rows.len()));
        if !more || limit == Some(0) {
            return None;
        }
        let last = rows.last()?;
        Some(IndexRequest { after: Some((last.key.clone(), last.id.clone())), limit, ..self.clone() })
    }
}

impl<D: Database> Documents<D> {
    /// The indexes of the database, sorted by number.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn indexes(&self) -> Result<Vec<IndexInfo>> {
        self.read(|transaction| async move {
            let instance = self.instance(&transaction, Read::Snapshot).await?;
            let definitions = self.definitions(&transaction, &instance).await?;
            let mut found = Vec::with_capacity(definitions.len());
            for (kept, index) in definitions {
                let key = self.keys().key(DatabaseKey::IndexRows(kept.number));
                let built = if kept.active { None } else { transaction.get(&key, Read::Snapshot).await? };
                found.push(IndexInfo {
                    number: kept.number,
                    index,
                    active: kept.active,
                    documents: Built::read(built.as_deref())?.documents,
                });
            }
            Ok(found)
        })
        .await
    }

    /// Reads the first batch of rows of an index. Continue with its `next`.
    ///
    /// # Errors
    /// 404 if the database or the index is gone, or if the index is not built yet.
    pub async fn index_rows(&self, request: &IndexRequest) -> Result<IndexPage> {
        self.read_batch(DOCUMENTS_AT_ONCE, |transaction, at_once| self.index_page(transaction, request, at_once, None))
            .await
    }

    /// The same, but if there are many documents, half of them are read in parallel. `spawn` gets the reading of that
    /// half: it may start it on another thread, or return it as it is. An embedded engine reads on the calling thread.
    ///
    /// # Errors
    /// Like [`index_rows`](Self::index_rows).
    pub async fn index_rows_in_parallel(
        &self,
        request: &IndexRequest,
        spawn: impl Fn(ParallelRead) -> ParallelRead + Sync,
    ) -> Result<IndexPage> {
        let page = |transaction, at_once| self.index_page(transaction, request, at_once, Some(&spawn));
        self.read_batch(DOCUMENTS_AT_ONCE, page).await
    }

    async fn index_page(
        &self,
        transaction: D::Transaction,
        request: &IndexRequest,
        at_once: usize,
        spawn: Option<Spawn<'_>>,
    ) -> Result<IndexPage> {
        let keys = self.keys();
        let most = if request.include_docs { at_once } else { ROWS_AT_ONCE };
        let wanted = request.limit.unwrap_or(usize::MAX).min(most);
        let range = request.range(keys).filter(|_| wanted > 0);
        let instance = self.instance(&transaction, Read::Snapshot);
        let rows = range.map(|range| transaction.get_range(&range.limit(wanted), Read::Snapshot));
        let instance = instance.await?;
        let kept = instance.indexes.kept.iter().find(|kept| kept.number == request.number && kept.active);
        let Some(rows) = rows.filter(|_| kept.is_some()) else {
            return match kept {
                Some(_) => Ok(IndexPage { rows: Vec::new(), next: None }),
                None => Err(Error::not_found(NotFound::Index)),
            };
        };
        let batch = rows.await?;
        let mut found = Vec::with_capacity(batch.rows.len());
        for row in &batch.rows {
            let (_, place) = keys.read_index_row(&row.key)?;
            let (key, id) = place.ok_or_else(|| Error::corrupt("a row of an index without a document"))?;
            let values = (!row.value.is_empty()).then(|| JsonText::from_normalised(row.value.clone()));
            let values = match values {
                Some(None) => return Err(Error::corrupt("values of an index that are not UTF-8")),
                values => values.flatten(),
            };
            found.push(IndexRow { key, id, values, entry: None });
        }
        let whole = self.add_entries(&transaction, request, &mut found, at_once, spawn).await?;
        let more = batch.more || whole < found.len();
        found.truncate(whole);
        Ok(IndexPage { next: request.after_rows(&found, more), rows: found })
    }

    /// Adds documents to the first rows, as many as a batch holds. Returns the number of rows that are complete.
    async fn add_entries(
        &self,
        transaction: &D::Transaction,
        request: &IndexRequest,
        rows: &mut [IndexRow],
        at_once: usize,
        spawn: Option<Spawn<'_>>,
    ) -> Result<usize> {
        if !request.include_docs {
            return Ok(rows.len());
        }
        let ids = |rows: &[IndexRow]| rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>();
        let spawn = spawn.filter(|_| rows.len() >= WORTH_HALVING);
        let (first, second) = rows.split_at(if spawn.is_some() { rows.len() / 2 } else { rows.len() });
        let second_half: ParallelRead = match spawn {
            None => Box::pin(ready(None)),
            Some(spawn) => {
                let version = transaction.get_read_version().await?;
                spawn(read_in_parallel(self.clone(), version, ids(second), request.conflicts, at_once))
            }
        };
        let own = self.entries(transaction, ids(first), request.conflicts, at_once);
        let (own, second_half) = join(own, second_half).await;
        let mut entries = own?;
        if entries.len() == first.len() {
            let others = match second_half {
                Some(ParallelDocuments(others)) => others,
                // They were not read, or with an error that will occur again here.
                None => self.entries(transaction, ids(second), request.conflicts, at_once).await?,
            };
            entries.extend(others);
        }
        let whole = entries.len();
        for (row, entry) in rows.iter_mut().zip(entries) {
            row.entry = Some(entry.entry);
        }
        Ok(whole)
    }

    /// The first of these documents, as many as a batch holds.
    async fn entries(
        &self,
        transaction: &D::Transaction,
        ids: Vec<String>,
        conflicts: bool,
        at_once: usize,
    ) -> Result<Vec<AllDocsRow>> {
        let mut entries: Vec<AllDocsRow> =
            ids.into_iter().map(|id| AllDocsRow { id, entry: AllDocsEntry::Missing }).collect();
        let winner = |row: &AllDocsRow| {
            let live = last_live_of_many(transaction, self.keys(), &row.id);
            let gone = || Error::corrupt("an index has a row of a missing document");
            Some(async move { live.await?.ok_or_else(gone) })
        };
        let at_once = at_once.min(BODIES_AT_ONCE);
        let whole = self.read_docs(transaction, conflicts, &mut entries, at_once, winner).await?;
        entries.truncate(whole);
        Ok(entries)
    }
}

/// Reads documents at the read version of another transaction. `None` if that fails, for example because the engine no
/// longer keeps that version.
fn read_in_parallel<D: Database>(
    documents: Documents<D>,
    version: i64,
    ids: Vec<String>,
    conflicts: bool,
    at_once: usize,
) -> ParallelRead {
    Box::pin(async move {
        let transaction = documents.engine().begin().ok()?;
        transaction.set_read_version(version);
        documents.entries(&transaction, ids, conflicts, at_once).await.ok().map(ParallelDocuments)
    })
}
