//! Reads all rows of documents, for copying and comparing.
//!
//! One transaction reads a page of documents, so each document is complete and as of one moment. Rows have no
//! database prefix: a document's rows have the same bytes in every store. A document whose rows do not fit in a
//! page is named in it, and read separately, range by range.

use std::future::Future;

use kv_api::{Bytes, Database, KeySelector, KeyValue, RangeBatch, RangeRequest, Read, Transaction};

use crate::documents::Documents;
use crate::error::Result;
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::read::winner::TreePart;
use crate::rows::body::BodyFormat;
use crate::rows::change_row::ChangeRow;

/// Maximum number of documents in a page.
const PAGE_DOCUMENTS: usize = 200;

/// Number of documents whose rows are requested at a time.
const AT_ONCE: usize = 50;

/// Size in bytes at which a page ends.
const PAGE_BYTES: usize = 2_000_000;

/// Maximum size of the revisions, and of the bodies, of a document that is read with others.
const DOCUMENT_BYTES: usize = 64_000;

/// A document's rows.
pub(super) struct DocumentRows {
    /// Sequence of its last change.
    pub(super) seq: Seq,
    pub(super) id: String,
    /// Its rows without their prefix, in key order. `None` if there are too many.
    pub(super) rows: Option<Vec<KeyValue>>,
}

impl DocumentRows {
    fn bytes(&self) -> usize {
        self.rows.iter().flatten().map(|row| row.key.len() + row.value.len()).sum()
    }
}

/// Documents in the order of the feed.
pub(super) struct DocumentsPage {
    pub(super) documents: Vec<DocumentRows>,
    /// The last sequence in the page.
    pub(super) reached: Option<Seq>,
    /// Whether the feed has more.
    pub(super) more: bool,
    /// The database's layout, and whether some bodies may have another one.
    pub(super) layout: (BodyFormat, bool),
}

/// The reads of a document for a page.
struct Pieces {
    revisions: RangeBatch,
    docs: RangeBatch,
    listed: Option<Bytes>,
}

impl Pieces {
    /// Issues the reads.
    fn read<T: Transaction>(
        transaction: &T,
        keys: &DatabaseKeys,
        id: &str,
    ) -> impl Future<Output = Result<Pieces>> + Send + use<T> {
        let range = |key| keys.range(key).target_bytes(DOCUMENT_BYTES);
        let revisions = transaction.get_range(&range(DatabaseKey::RevisionsOf(id)), Read::Snapshot);
        let docs = transaction.get_range(&range(DatabaseKey::DocsOf(id)), Read::Snapshot);
        let listed = transaction.get(&keys.key(DatabaseKey::AllDoc(id)), Read::Snapshot);
        async move { Ok(Pieces { revisions: revisions.await?, docs: docs.await?, listed: listed.await? }) }
    }

    /// All rows, if the reads have returned all.
    fn rows(self, keys: &DatabaseKeys, id: &str, seq: Seq, change: Option<Bytes>) -> Option<Vec<KeyValue>> {
        if self.revisions.more || self.docs.more {
            return None;
        }
        let row = |key, value| KeyValue { key: Bytes::from(keys.key(key)), value };
        let change = change.map(|value| row(DatabaseKey::Change(seq), value));
        let listed = self.listed.map(|value| row(DatabaseKey::AllDoc(id), value));
        let rows = self.revisions.rows.into_iter().chain(change).chain(self.docs.rows).chain(listed);
        Some(rows.map(|row| without_prefix(keys, row)).collect())
    }
}

/// A row whose key has no database prefix.
pub(super) fn without_prefix(keys: &DatabaseKeys, row: KeyValue) -> KeyValue {
    KeyValue { key: row.key.slice(keys.prefix().len()..), value: row.value }
}

impl<D: Database> Documents<D> {
    /// The documents whose last change is after `after`, in the order of the feed.
    pub(super) async fn rows_after(&self, after: Seq) -> Result<DocumentsPage> {
        let keys = self.keys();
        let (_, beyond) = keys.bounds(DatabaseKey::Changes);
        let begin = KeySelector::first_greater_than(keys.key(DatabaseKey::Change(after)));
        let request = RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(beyond)).limit(PAGE_DOCUMENTS);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let feed = transaction.get_range(&request, Read::Snapshot);
            async move {
                let instance = instance.await?;
                let feed = feed.await?;
                let layout = (instance.format, instance.rewrites);
                let mut page = DocumentsPage { documents: Vec::new(), reached: None, more: feed.more, layout };
                let mut bytes = 0;
                for some in feed.rows.chunks(AT_ONCE) {
                    if bytes >= PAGE_BYTES {
                        page.more = true;
                        break;
                    }
                    let mut reads = Vec::with_capacity(some.len());
                    for row in some {
                        let (seq, id) = (keys.read_change(&row.key)?, ChangeRow::read(&row.value)?.id);
                        let pieces = Pieces::read(&transaction, keys, &id);
                        reads.push((seq, id, row.value.clone(), pieces));
                    }
                    for (seq, id, change, pieces) in reads {
                        let rows = pieces.await?.rows(keys, &id, seq, Some(change));
                        let document = DocumentRows { seq, id, rows };
                        bytes += document.bytes();
                        page.documents.push(document);
                        page.reached = Some(seq);
                    }
                }
                Ok(page)
            }
        })
        .await
    }

    /// These documents, in order; `None` for one that does not exist.
    pub(super) async fn rows_of(&self, ids: &[&str]) -> Result<Vec<Option<DocumentRows>>> {
        let keys = self.keys();
        self.read(|transaction| async move {
            let instance = self.instance(&transaction, Read::Snapshot);
            let reads: Vec<_> = ids
                .iter()
                .map(|id| (TreePart::Winner.read(&transaction, keys, id), Pieces::read(&transaction, keys, id)))
                .collect();
            instance.await?;
            let mut found = Vec::with_capacity(ids.len());
            for (winner, pieces) in reads {
                let winner_info = winner.await?.into_iter().next().and_then(|winner| winner.winner_info);
                let change = winner_info.map(|winner_info| {
                    transaction.get(&keys.key(DatabaseKey::Change(winner_info.seq)), Read::Snapshot)
                });
                found.push((winner_info, change, pieces.await?));
            }
            let mut documents = Vec::with_capacity(ids.len());
            for (id, (winner_info, change, pieces)) in ids.iter().zip(found) {
                documents.push(match (winner_info, change) {
                    (Some(winner_info), Some(change)) => {
                        let rows = pieces.rows(keys, id, winner_info.seq, change.await?);
                        Some(DocumentRows { seq: winner_info.seq, id: (*id).to_owned(), rows })
                    }
                    _ => None,
                });
            }
            Ok(documents)
        })
        .await
    }
}
