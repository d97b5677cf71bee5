//! Listing documents by id: `_all_docs`.
//!
//! The rows of `all_docs` hold only the winners of live documents. So a listing does not read ancestors, and reads only
//! requested bodies. One call reads one batch in one transaction, and returns the request for the rest. So a listing of
//! any length takes bounded memory, and its transactions do not become too old.
//!
//! Ids are listed in byte order, as in CouchDB.
//!
//! A document with damaged rows has a row with the error ([`AllDocsEntry::Damaged`]), and the listing continues after
//! it.

use std::future::Future;
use std::sync::Arc;

use kv_api::{Database, KeySelector, KeyValue, RangeRequest, Read, Transaction};

use crate::admin::info::read_last;
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::feed::seq::Seq;
use crate::keys::{self, DatabaseKey, Leaf};
use crate::read::batch::{BODIES_AT_ONCE, Batch};
use crate::read::document::{Body, Document, GetOptions};
use crate::read::winner::{TreePart, add_meta, body_of, body_or_empty};
use crate::rows::branch::Branch;
use crate::rows::revid::RevId;
use crate::rows::row::Reader;
use crate::rows::stats::Stats;

/// Maximum number of rows in a batch.
const ROWS_AT_ONCE: usize = 2_000;

/// Maximum number of rows skipped in one transaction.
const SKIPPED_AT_ONCE: usize = 20_000;

/// The rows to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllDocsRequest {
    /// These ids, in this order, instead of a range. Repeated ids are listed repeatedly.
    pub keys: Option<Arc<[String]>>,
    /// The first id; with `descending` the highest.
    pub start: Option<String>,
    /// Whether `start` itself is listed.
    pub inclusive_start: bool,
    /// The last id; with `descending` the lowest.
    pub end: Option<String>,
    /// Whether `end` itself is listed.
    pub inclusive_end: bool,
    /// In descending order of ids.
    pub descending: bool,
    /// Maximum number of rows.
    pub limit: Option<usize>,
    /// Maximum number of rows in a batch, if it is less than the built-in one. The rest is in its `next`.
    pub at_once: Option<usize>,
    /// Number of rows to skip first.
    pub skip: usize,
    /// Include the documents.
    pub include_docs: bool,
    /// Include the live losing leaves in the documents.
    pub conflicts: bool,
    /// Include the last sequence.
    pub update_seq: bool,
}

impl Default for AllDocsRequest {
    fn default() -> Self {
        AllDocsRequest {
            keys: None,
            start: None,
            inclusive_start: true,
            end: None,
            inclusive_end: true,
            descending: false,
            limit: None,
            at_once: None,
            skip: 0,
            include_docs: false,
            conflicts: false,
            update_seq: false,
        }
    }
}

/// A row of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllDocsRow {
    /// The id, which is also the row's key.
    pub id: String,
    /// The document's state.
    pub entry: AllDocsEntry,
}

/// The state of an id in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllDocsEntry {
    /// A live document.
    Live {
        /// Its winner.
        rev: RevId,
        /// The document, if requested.
        doc: Option<Box<Document>>,
    },
    /// A deleted document; only if its id was requested.
    Deleted {
        /// The winning tombstone.
        rev: RevId,
    },
    /// No document; only if the id was requested.
    Missing,
    /// A document that cannot be read.
    Damaged {
        /// The reason.
        error: Error,
    },
}

/// A batch of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllDocs {
    /// Number of live documents in the database.
    pub total_rows: u64,
    /// Number of rows before the first one in the whole listing; `None` if unknown.
    pub offset: Option<u64>,
    /// The last sequence, if requested.
    pub update_seq: Option<Seq>,
    /// The rows. A batch that is not the last may be empty.
    pub rows: Vec<AllDocsRow>,
    /// The request for the rest; `None` after the last batch.
    pub next: Option<AllDocsRequest>,
}

/// The rows of a batch, and its end.
pub(crate) struct ListedRows {
    pub(crate) rows: Vec<AllDocsRow>,
    /// Number of rows that were skipped.
    skipped: usize,
    /// The last id that was read, and whether there may be more.
    last: Option<String>,
    more: bool,
    /// After rows that the store cannot read: the id at which to continue instead, and whether it belongs to the rest.
    resume: Option<(String, bool)>,
}

impl<D: Database> Documents<D> {
    /// Reads the first batch of a listing. Continue with its `next`.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn all_docs(&self, request: &AllDocsRequest) -> Result<AllDocs> {
        let keys = self.keys();
        let (last_key, stats_key) = (keys.key(DatabaseKey::Last), keys.key(DatabaseKey::Stats));
        self.read_batch(BODIES_AT_ONCE, |transaction, at_once| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = request.update_seq.then(|| transaction.get(&last_key, Read::Snapshot));
            let stats = transaction.get(&stats_key, Read::Snapshot);
            async move {
                let batch = match &request.keys {
                    Some(ids) => self.list_keys(&transaction, request, ids, at_once).await?,
                    None => self.list_range(&transaction, request, at_once).await?,
                };
                instance.await?;
                let stats = Stats::read(stats.await?.as_deref())?;
                let update_seq = match last {
                    Some(last) => Some(read_last(last.await?.as_deref())?),
                    None => None,
                };
                let total_rows = u64::try_from(stats.doc_count).unwrap_or(0);
                let from_the_edge = request.keys.is_none() && request.start.is_none();
                Ok(AllDocs {
                    total_rows,
                    offset: from_the_edge.then(|| total_rows.min(request.skip as u64)),
                    update_seq,
                    next: request.after(&batch),
                    rows: batch.rows,
                })
            }
        })
        .await
    }

    async fn list_range(
        &self,
        transaction: &D::Transaction,
        request: &AllDocsRequest,
        at_once: usize,
    ) -> Result<ListedRows> {
        let wanted = request.limit.unwrap_or(usize::MAX).min(request.rows_at_once());
        let mut batch = ListedRows { rows: Vec::new(), skipped: 0, last: None, more: false, resume: None };
        if wanted == 0 {
            return Ok(batch);
        }
        let mut next = request.range(self.keys());
        let mut found: Vec<KeyValue> = Vec::new();
        while let Some(range) = next.take() {
            let left = (request.skip - batch.skipped).min(SKIPPED_AT_ONCE - batch.skipped) + wanted - found.len();
            let range = range.limit(left);
            let mut read = match transaction.get_range(&range, Read::Snapshot).await {
                Ok(read) => read,
                // The next batch starts with the damage.
                Err(error) if error.damage().is_some() && batch.last.is_some() => {
                    batch.more = true;
                    break;
                }
                Err(error) => return self.past_damage(request, batch, error.into()),
            };
            next = range.after(&read);
            batch.more = read.more;
            if let Some(last) = read.rows.last() {
                batch.last = Some(self.keys().read_all_doc(&last.key)?);
            }
            let skip = (request.skip - batch.skipped).min(read.rows.len());
            batch.skipped += skip;
            found.extend(read.rows.drain(..).skip(skip));
            if found.len() >= wanted || batch.skipped >= SKIPPED_AT_ONCE {
                break;
            }
        }
        for row in &found {
            let id = self.keys().read_all_doc(&row.key)?;
            let entry = match read_winner(&row.value) {
                Ok(rev) => AllDocsEntry::Live { rev, doc: None },
                Err(error) => AllDocsEntry::Damaged { error: error.of_document(&id) },
            };
            batch.rows.push(AllDocsRow { id, entry });
        }
        let whole = self.add_docs(transaction, request, &mut batch.rows, at_once).await?;
        if whole < batch.rows.len() {
            batch.rows.truncate(whole);
            batch.last = batch.rows.last().map(|row| row.id.clone());
            batch.more = true;
        }
        Ok(batch)
    }

    /// A batch of one row, for rows that the store cannot read. Its id is the first one that may be missing. A document
    /// with this id need not exist.
    fn past_damage(&self, request: &AllDocsRequest, mut batch: ListedRows, error: Error) -> Result<ListedRows> {
        let Some((begin, end)) = error.unreadable() else { return Err(error) };
        // The bounds are keys of rows, or the keys just after them.
        let id_at = |key: &[u8]| match (self.keys().read_all_doc(key), key.split_last()) {
            (Ok(id), _) => Some((id, false)),
            (Err(_), Some((0, before))) => self.keys().read_all_doc(before).ok().map(|id| (id, true)),
            _ => None,
        };
        let (low, high) = (id_at(begin), id_at(end));
        let named =
            |edge: &Option<(String, bool)>| edge.as_ref().map_or("the end".to_owned(), |(id, _)| format!("{id:?}"));
        let what =
            format!("documents between {} and {} cannot be listed: {}", named(&low), named(&high), error.reason());
        let id = low
            .as_ref()
            .map_or_else(String::new, |(id, is_after)| format!("{id}{}", if *is_after { "\0" } else { "" }));
        if request.skip > batch.skipped {
            batch.skipped += 1;
        } else {
            batch.rows.push(AllDocsRow { id, entry: AllDocsEntry::Damaged { error: Error::corrupt(what) } });
        }
        batch.resume = match request.descending {
            true => low,
            false => high.map(|(id, is_after)| (id, !is_after)),
        };
        batch.more = batch.resume.is_some();
        Ok(batch)
    }

    /// Looks these ids up.
    pub(crate) async fn list_keys(
        &self,
        transaction: &D::Transaction,
        request: &AllDocsRequest,
        ids: &[String],
        at_once: usize,
    ) -> Result<ListedRows> {
        let wanted = request.limit.unwrap_or(usize::MAX).min(request.rows_at_once());
        let some = request.next_of(ids, wanted);
        let winners: Vec<_> =
            some.iter().map(|id| transaction.get(&self.keys().key(DatabaseKey::AllDoc(id)), Read::Snapshot)).collect();
        let mut entries = Vec::with_capacity(some.len());
        for winner in winners {
            entries.push(winner.await?.map(|row| read_winner(&row)));
        }
        // The requested documents that are deleted or never existed.
        let trees: Vec<_> = some
            .iter()
            .zip(&entries)
            .map(|(id, entry)| entry.is_none().then(|| TreePart::Winner.read(transaction, self.keys(), id)))
            .collect();
        let mut rows = Vec::with_capacity(some.len());
        for ((id, live), tree) in some.into_iter().zip(entries).zip(trees) {
            let live = match (live, tree) {
                (Some(rev), _) => rev.map(|rev| AllDocsEntry::Live { rev, doc: None }),
                (None, Some(tree)) => alone(tree.await)?.map(|tree| match tree.into_iter().next() {
                    Some(winner) => AllDocsEntry::Deleted { rev: winner.leaf.rev },
                    None => AllDocsEntry::Missing,
                }),
                (None, None) => Ok(AllDocsEntry::Missing),
            };
            let entry = live.unwrap_or_else(|error| AllDocsEntry::Damaged { error });
            rows.push(AllDocsRow { id: id.clone(), entry });
        }
        let whole = self.add_docs(transaction, request, &mut rows, at_once).await?;
        rows.truncate(whole);
        let more = request.skip + rows.len() < ids.len();
        // The request for the rest skips the returned rows too, so nothing is counted as skipped here.
        Ok(ListedRows { skipped: 0, last: None, more, resume: None, rows })
    }

    /// Adds documents to the first rows, as many as a batch holds, reading `at_once` of them at the same time. Returns
    /// the number of rows that are complete.
    async fn add_docs(
        &self,
        transaction: &D::Transaction,
        request: &AllDocsRequest,
        rows: &mut [AllDocsRow],
        at_once: usize,
    ) -> Result<usize> {
        if !request.include_docs {
            return Ok(rows.len());
        }
        let listed = |row: &AllDocsRow| {
            let AllDocsEntry::Live { rev, .. } = &row.entry else { return None };
            let leaf = Leaf { not_deleted: true, rev: rev.clone() };
            let body = body_of(transaction, self.keys(), &row.id, &leaf);
            Some(async move {
                let body = body_or_empty(&leaf, body.await?)?;
                Ok((leaf, body))
            })
        };
        self.read_docs(transaction, request.conflicts, rows, at_once, listed).await
    }

    /// The same. `live` starts to read the winner of a row, or returns `None` for a row without a document.
    pub(crate) async fn read_docs<F: Future<Output = Result<(Leaf, Body)>>>(
        &self,
        transaction: &D::Transaction,
        conflicts: bool,
        rows: &mut [AllDocsRow],
        at_once: usize,
        live: impl Fn(&AllDocsRow) -> Option<F>,
    ) -> Result<usize> {
        let options = GetOptions { conflicts, ..GetOptions::default() };
        let mut batch = Batch::of(rows.len());
        for some in rows.chunks_mut(at_once) {
            let mut reads = Vec::with_capacity(some.len());
            for row in some {
                let read = live(row).map(|live| {
                    let tree = conflicts.then(|| TreePart::Whole.read(transaction, self.keys(), &row.id));
                    (live, tree)
                });
                reads.push((row, read));
            }
            for (row, read) in reads {
                if batch.is_full() {
                    return Ok(batch.items());
                }
                let Some((live, tree)) = read else {
                    batch.add(0);
                    continue;
                };
                match document(&row.id, live, tree, &options).await {
                    Ok((entry, bytes)) => {
                        row.entry = entry;
                        batch.add(bytes);
                    }
                    // The read version became too old. The rows read before are valid.
                    Err(error) if error.is_retryable() && batch.items() > 0 => return Ok(batch.items()),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(batch.items())
    }
}

/// The entry of a live document with its body, and the number of bytes that were read.
async fn document(
    id: &str,
    live: impl Future<Output = Result<(Leaf, Body)>>,
    tree: Option<impl Future<Output = Result<Vec<Branch>>>>,
    options: &GetOptions,
) -> Result<(AllDocsEntry, usize)> {
    let mut bytes = 0;
    let read = async {
        let (leaf, body) = live.await?;
        bytes += body.bytes_read();
        let mut document = Document::new(id.to_owned(), leaf.rev, false, body);
        if let Some(tree) = tree {
            let tree = tree.await?;
            bytes += tree.iter().map(Branch::row_bytes).sum::<usize>();
            add_meta(&mut document, &tree, options)?;
        }
        Ok(document)
    };
    let entry = match alone(read.await)? {
        Ok(document) => AllDocsEntry::Live { rev: document.rev.clone(), doc: Some(Box::new(document)) },
        Err(error) => AllDocsEntry::Damaged { error: error.of_document(id) },
    };
    Ok((entry, bytes))
}

impl AllDocsRequest {
    /// The request for the documents in a range of ids, with their bodies. The caller must not pass an empty range.
    pub fn of_ids(ids: mango::IdRange, descending: bool) -> Self {
        if let Some(list) = ids.list {
            return AllDocsRequest { keys: Some(list.into()), descending, include_docs: true, ..Self::default() };
        }
        let (from, to) = if descending { (ids.high, ids.low) } else { (ids.low, ids.high) };
        let part = |bound: Option<(String, bool)>| match bound {
            Some((id, inclusive)) => (Some(id), inclusive),
            None => (None, true),
        };
        let ((start, inclusive_start), (end, inclusive_end)) = (part(from), part(to));
        let include_docs = true;
        AllDocsRequest { start, inclusive_start, end, inclusive_end, descending, include_docs, ..Self::default() }
    }

    /// The range of rows; `None` if it is inverted.
    pub(crate) fn range(&self, keys: &keys::DatabaseKeys) -> Option<RangeRequest> {
        let (first, beyond) = keys.bounds(DatabaseKey::AllDocs);
        let at = |id: &String| KeySelector::first_greater_or_equal(keys.key(DatabaseKey::AllDoc(id)));
        let after = |id: &String| KeySelector::first_greater_than(keys.key(DatabaseKey::AllDoc(id)));
        let (start, end) = (self.start.as_ref(), self.end.as_ref());
        let (low, high) = if self.descending {
            (
                end.map(|id| if self.inclusive_end { at(id) } else { after(id) }),
                start.map(|id| if self.inclusive_start { after(id) } else { at(id) }),
            )
        } else {
            (
                start.map(|id| if self.inclusive_start { at(id) } else { after(id) }),
                end.map(|id| if self.inclusive_end { after(id) } else { at(id) }),
            )
        };
        let low = low.unwrap_or_else(|| KeySelector::first_greater_or_equal(first));
        let high = high.unwrap_or_else(|| KeySelector::first_greater_or_equal(beyond));
        let inverted = high.key < low.key;
        let range = RangeRequest::selectors(low, high);
        let range = if self.descending { range.reverse() } else { range };
        Some(range).filter(|_| !inverted)
    }

    /// The next of the requested ids, in the order of the rows.
    pub(crate) fn next_of<'i>(&self, ids: &'i [String], most: usize) -> Vec<&'i String> {
        if self.descending {
            ids.iter().rev().skip(self.skip).take(most).collect()
        } else {
            ids.iter().skip(self.skip).take(most).collect()
        }
    }

    fn rows_at_once(&self) -> usize {
        self.at_once.map_or(ROWS_AT_ONCE, |rows| rows.clamp(1, ROWS_AT_ONCE))
    }

    /// The request for the rows after this batch.
    fn after(&self, batch: &ListedRows) -> Option<AllDocsRequest> {
        let limit = self.limit.map(|limit| limit.saturating_sub(batch.rows.len()));
        if !batch.more || limit == Some(0) {
            return None;
        }
        let mut rest = AllDocsRequest { limit, ..self.clone() };
        if self.keys.is_some() {
            rest.skip = self.skip + batch.rows.len();
            return Some(rest);
        }
        let last = || batch.last.clone().map(|id| (id, false));
        let (start, inclusive) = batch.resume.clone().or_else(last)?;
        rest.start = Some(start);
        rest.inclusive_start = inclusive;
        rest.skip = self.skip - batch.skipped;
        Some(rest)
    }
}

/// The winner in a row of `all_docs`: `(RevPosition, RevHash)`.
pub(crate) fn read_winner(value: &[u8]) -> Result<RevId> {
    let mut reader = Reader::new(value);
    let rev = keys::read_rev(&mut reader)?;
    reader.end().map_err(|_| Error::corrupt("a row of all_docs that goes on"))?;
    Ok(rev)
}
