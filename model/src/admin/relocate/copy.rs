//! Copies documents.
//!
//! ```text
//!  a transaction at the target      reads   its run's id; the winner and the first row of each document
//!                                   clears  the target's rows of the documents, and their changes
//!                                   sets    the documents' rows, and the checkpoint after the last of them
//!  a document too large for one     its winner and change are removed first and written last; its other rows
//!                                   are mirrored in between
//! ```
//!
//! So a row of `changes` at the target always belongs to the document's winner there. If the copy of a document is
//! interrupted, its other rows are cleared when it is copied again.

use kv_api::{Bytes, Database, KeyValue, Read, Transaction};

use crate::documents::Documents;
use crate::error::Result;
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::read::winner::TreePart;
use crate::rows::body::row_cost;
use crate::write::unguarded::Unguarded;

use super::arrival::Arriving;
use super::mirror::{self, Ranges};
use super::rows::{DocumentRows, DocumentsPage, without_prefix};

/// Approximate size of a transaction's writes, as FoundationDB counts bytes: a tenth of its limit.
const TRANSACTION_BYTES: usize = 1_000_000;

/// A part of a page, copied at a time.
pub(super) enum Part {
    /// Whole documents.
    Some(Vec<DocumentRows>),
    /// A document that takes several transactions, with its sequence.
    Large(Seq, String),
}

impl Part {
    /// Number of its documents.
    pub(super) fn documents(&self) -> u64 {
        match self {
            Part::Some(documents) => documents.len() as u64,
            Part::Large(..) => 1,
        }
    }
}

/// Splits a page into parts of one transaction each, in order.
pub(super) fn parts(page: DocumentsPage) -> Vec<Part> {
    let (mut parts, mut some, mut bytes) = (Vec::new(), Vec::new(), 0);
    for document in page.documents {
        let Some(rows) = &document.rows else {
            if !some.is_empty() {
                parts.push(Part::Some(std::mem::take(&mut some)));
            }
            parts.push(Part::Large(document.seq, document.id));
            bytes = 0;
            continue;
        };
        let cost: usize = rows.iter().map(|row| row_cost(row.key.len(), row.value.len())).sum();
        if bytes + cost > TRANSACTION_BYTES && !some.is_empty() {
            parts.push(Part::Some(std::mem::take(&mut some)));
            bytes = 0;
        }
        bytes += cost;
        some.push(document);
    }
    if !some.is_empty() {
        parts.push(Part::Some(some));
    }
    parts
}

/// Copies a part, and moves the checkpoint after it.
pub(super) async fn copy<S: Database, T: Database>(
    source: &Documents<S>,
    target: &mut Arriving<T>,
    part: Part,
) -> Result<()> {
    match part {
        Part::Some(documents) => copy_some(target, &documents).await,
        Part::Large(seq, id) => copy_large(source, target, seq, &id).await,
    }
}

async fn copy_some<T: Database>(target: &mut Arriving<T>, documents: &[DocumentRows]) -> Result<()> {
    let Some(last) = documents.last() else { return Ok(()) };
    let next = target.arrival.after(last.seq, documents.len() as u64);
    let keys = target.documents.keys().clone();
    target
        .write(Some(&next), |transaction| {
            let reads: Vec<_> = documents
                .iter()
                .map(|document| {
                    let body = keys.range(DatabaseKey::DocsOf(&document.id)).limit(1);
                    let winner = TreePart::Winner.read(&transaction, &keys, &document.id);
                    (document, winner, transaction.get_range(&body, Read::Snapshot))
                })
                .collect();
            let keys = &keys;
            async move {
                for (document, winner, body) in reads {
                    let id = &document.id;
                    if let Some(winner) = winner.await?.first() {
                        if let Some(winner_info) = winner.winner_info {
                            transaction.clear_unguarded(&keys.key(DatabaseKey::Change(winner_info.seq)));
                        }
                        clear(&transaction, keys, DatabaseKey::RevisionsOf(id));
                        transaction.clear_unguarded(&keys.key(DatabaseKey::AllDoc(id)));
                    }
                    if !body.await?.rows.is_empty() {
                        clear(&transaction, keys, DatabaseKey::DocsOf(id));
                    }
                    set(&transaction, keys, document.rows.iter().flatten());
                }
                Ok(())
            }
        })
        .await?;
    target.arrival = next;
    Ok(())
}

async fn copy_large<S: Database, T: Database>(
    source: &Documents<S>,
    target: &mut Arriving<T>,
    seq: Seq,
    id: &str,
) -> Result<()> {
    let next = target.arrival.after(seq, 1);
    // A document edited meanwhile comes again later, and may be incomplete until then.
    if let Some(last) = last_rows(source, seq, id).await? {
        take_winner_info(target, id).await?;
        let (from, to) = (source, &target.documents);
        let bodies = Ranges::whole(from, to, DatabaseKey::DocsOf(id));
        let branches = Ranges::whole(from, to, DatabaseKey::RevisionsOf(id)).without(last.winner.key.clone());
        for ranges in [bodies, branches] {
            let mut cursor = Some(ranges.begin());
            while let Some(from) = cursor {
                cursor = mirror::mirror(source, target, &ranges, &from).await?;
            }
        }
        if let Some(last) = last_rows(source, seq, id).await? {
            let keys = target.documents.keys().clone();
            target
                .write(Some(&next), |transaction| {
                    let (keys, last) = (&keys, &last);
                    async move {
                        if last.listed.is_none() {
                            transaction.clear_unguarded(&keys.key(DatabaseKey::AllDoc(id)));
                        }
                        set(&transaction, keys, [&last.winner, &last.change].into_iter().chain(&last.listed));
                        Ok(())
                    }
                })
                .await?;
            target.arrival = next;
            return Ok(());
        }
    }
    target.write(Some(&next), |_| std::future::ready(Ok(()))).await?;
    target.arrival = next;
    Ok(())
}

/// The rows of a document that must be written last.
struct LastRows {
    winner: KeyValue,
    change: KeyValue,
    listed: Option<KeyValue>,
}

/// Reads these rows; `None` if the document has changed since.
async fn last_rows<D: Database>(documents: &Documents<D>, seq: Seq, id: &str) -> Result<Option<LastRows>> {
    let keys = documents.keys();
    let winner = keys.range(DatabaseKey::RevisionsOf(id)).reverse().limit(1);
    let (change_key, listed_key) = (keys.key(DatabaseKey::Change(seq)), keys.key(DatabaseKey::AllDoc(id)));
    documents
        .read(|transaction| {
            let instance = documents.instance(&transaction, Read::Snapshot);
            let winner = transaction.get_range(&winner, Read::Snapshot);
            let change = transaction.get(&change_key, Read::Snapshot);
            let listed = transaction.get(&listed_key, Read::Snapshot);
            let row = |key: &[u8], value| without_prefix(keys, KeyValue { key: Bytes::copy_from_slice(key), value });
            let (change_key, listed_key) = (&change_key, &listed_key);
            async move {
                instance.await?;
                let (Some(winner), Some(change)) = (winner.await?.rows.pop(), change.await?) else { return Ok(None) };
                Ok(Some(LastRows {
                    winner: without_prefix(keys, winner),
                    change: row(change_key, change),
                    listed: listed.await?.map(|listed| row(listed_key, listed)),
                }))
            }
        })
        .await
}

/// Removes the document's winner at the target, with the rows that name it.
async fn take_winner_info<T: Database>(target: &Arriving<T>, id: &str) -> Result<()> {
    let keys = target.documents.keys().clone();
    target
        .write(None, |transaction| {
            let winner = TreePart::Winner.read(&transaction, &keys, id);
            let keys = &keys;
            async move {
                if let Some(winner) = winner.await?.first()
                    && let Some(winner_info) = winner.winner_info
                {
                    transaction.clear_unguarded(&keys.key(DatabaseKey::Change(winner_info.seq)));
                    transaction.clear_unguarded(&keys.key(DatabaseKey::Revision(id, &winner.leaf)));
                    transaction.clear_unguarded(&keys.key(DatabaseKey::AllDoc(id)));
                }
                Ok(())
            }
        })
        .await
}

fn clear<T: Transaction>(transaction: &T, keys: &DatabaseKeys, key: DatabaseKey<'_>) {
    let (begin, end) = keys.bounds(key);
    transaction.clear_range_unguarded(&begin, &end);
}

/// Sets rows whose keys have no prefix.
pub(super) fn set<'r, T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    rows: impl IntoIterator<Item = &'r KeyValue>,
) {
    let mut key = keys.prefix().to_vec();
    let prefix = key.len();
    for row in rows {
        key.truncate(prefix);
        key.extend_from_slice(&row.key);
        transaction.set_unguarded(&key, &row.value);
    }
}
