//! Bodies of replaced revisions, in databases that keep them.
//!
//! An edit drops the body of the revision that it replaces (RFC 004). In a database with the setting it moves the body
//! to other keys instead:
//!
//! ```text
//!  docs   (6, DocID, Leaf, …)          of leaves only
//!            │ the edit that replaces the leaf copies these rows, with the list of attachments
//!            ▼
//!  (19, DocID, Leaf, …)                its body, the same rows
//!  (18, DocID, Leaf)                   (Format = 1, SinceMs, Size, HasAttachments)
//!  (18, SinceMs, DocID, Leaf)          empty: bodies that are too old are found by time
//! ```
//!
//! So readers of `docs` see only leaves, as in other databases. References to contents do not change: a replaced
//! revision refers to its attachments as the leaf did.
//!
//! `SinceMs` is the clock of the process that replaced the revision, and reads compare it with their own clock.
//! Versions would not work: on FoundationDB they cannot be turned into times for as long as bodies are kept.
//!
//! # Invariants
//! * A revision is a leaf, or has rows here, or neither. An edit that adds a leaf removes the rows that it had here.
//! * Every edit of a document reads the document's rows in `(18, DocID)`, with a conflict range, if the instance row
//!   says that there may be some. A database without the setting reads and writes nothing for it.
//! * Whatever removes a row of `(18, DocID)` reads it with a conflict range. So an edit and a removal that meet
//!   conflict.
//!   A removal never touches `docs`.
//!
//! A purge of a document removes all its rows here: purged data can no longer be read.

mod forget;
pub(crate) mod keep_replaced;
mod read;

pub use forget::FORGET_JOBS;

use std::collections::HashSet;
use std::future::Future;

use kv_api::{KeyValue, Transaction};

use crate::attachments::{ContentId, list_at};
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf};
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::unguarded::Unguarded;

const FORMAT: u64 = 1;

/// The row of a replaced revision whose body is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) leaf: Leaf,
    /// When it was replaced, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Size of its body in bytes; zero for a tombstone without a stored body.
    pub(crate) size: u64,
    /// Whether it has attachments.
    pub(crate) attachments: bool,
}

impl Replaced {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        for number in [FORMAT, self.since_ms, self.size] {
            tuple::append_u64(&mut out, number);
        }
        tuple::append_bool(&mut out, self.attachments);
        out
    }

    pub(crate) fn read(leaf: Leaf, value: &[u8]) -> Result<Replaced> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a replaced revision in format {other}"))),
        }
        let replaced = Replaced { leaf, since_ms: reader.int()?, size: reader.int()?, attachments: reader.bool()? };
        reader.end()?;
        Ok(replaced)
    }

    /// The replaced revisions in the rows of a document. An unreadable row is left out, and kept.
    pub(crate) fn of_document(keys: &DatabaseKeys, rows: &[KeyValue]) -> Vec<Replaced> {
        let read = |row: &KeyValue| Replaced::read(keys.read_replaced(&row.key)?.1, &row.value);
        rows.iter().filter_map(|row| read(row).ok()).collect()
    }

    /// Sets its rows. `docs` are the rows of its body as a leaf.
    pub(crate) fn set(&self, transaction: &impl Transaction, keys: &DatabaseKeys, id: &str, docs: &[KeyValue]) {
        let leaf = &self.leaf;
        transaction.set(keys.key(DatabaseKey::Replaced(id, leaf)), self.write());
        transaction.set_unguarded(keys.key(DatabaseKey::ReplacedSince(self.since_ms, id, leaf)), &[]);
        let (from, to) = (keys.key(DatabaseKey::Doc(id, leaf)).len(), keys.key(DatabaseKey::ReplacedDoc(id, leaf)));
        for row in docs {
            transaction.set_unguarded([&to, &row.key[from..]].concat(), row.value.clone());
        }
    }

    /// Clears its rows.
    pub(crate) fn clear(&self, transaction: &impl Transaction, keys: &DatabaseKeys, id: &str) {
        transaction.clear(&keys.key(DatabaseKey::Replaced(id, &self.leaf)));
        transaction.clear_unguarded(&keys.key(DatabaseKey::ReplacedSince(self.since_ms, id, &self.leaf)));
        if self.size > 0 {
            let (begin, end) = keys.bounds(DatabaseKey::ReplacedDoc(id, &self.leaf));
            transaction.clear_range_unguarded(&begin, &end);
        }
    }

    /// Reads the contents of its attachments. The call issues the read.
    pub(crate) fn contents<T: Transaction>(
        &self,
        transaction: &T,
        keys: &DatabaseKeys,
        id: &str,
    ) -> impl Future<Output = Result<HashSet<ContentId>>> + Send + use<T> {
        let key = DatabaseKey::ReplacedAttachments(id, &self.leaf);
        let list = self.attachments.then(|| list_at(transaction, keys, key));
        async move {
            let Some(list) = list else { return Ok(HashSet::new()) };
            Ok(list.await?.into_iter().map(|attachment| attachment.content).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let leaf = Leaf { not_deleted: true, rev: "2-ab".parse().unwrap() };
        let replaced = Replaced { leaf: leaf.clone(), since_ms: 1 << 41, size: 300, attachments: true };
        let row = replaced.write();
        assert_eq!(Replaced::read(leaf.clone(), &row).unwrap(), replaced);
        for cut in 0..row.len() {
            assert!(Replaced::read(leaf.clone(), &row[..cut]).is_err(), "cut at {cut}");
        }
    }
}
