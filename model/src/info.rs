//! Information about a database, and its counters.
//!
//! ```text
//!  (3) = doc_count ‖ doc_del_count ‖ external     three u64, little-endian
//! ```
//!
//! The store sees the counters as one number of 24 bytes. An edit adds its differences in one atomic operation, without
//! a read and without a conflict. A negative difference borrows from the fields above it. The sum undoes that, since no
//! field of the sum is negative.

use kv_api::{Database, Read, Transaction};

use crate::body::BodyFormat;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::DatabaseKey;
use crate::policy::ConflictPolicy;
use crate::purge;
use crate::seq::Seq;

const FIELDS: usize = 3;
const FIELD_BYTES: usize = 8;

/// A database's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Number of documents whose winner is live.
    pub(crate) doc_count: i64,
    /// Number of documents whose winner is a tombstone.
    pub(crate) doc_del_count: i64,
    /// Size of all leaves' bodies in bytes, as compact JSON.
    pub(crate) external: i64,
}

impl Stats {
    fn fields(self) -> [i64; FIELDS] {
        [self.doc_count, self.doc_del_count, self.external]
    }

    /// The operand of the atomic addition.
    pub(crate) fn operand(self) -> [u8; FIELDS * FIELD_BYTES] {
        let mut operand = [0; FIELDS * FIELD_BYTES];
        let mut borrow = 0i128;
        for (field, chunk) in self.fields().into_iter().zip(operand.chunks_exact_mut(FIELD_BYTES)) {
            let value = i128::from(field) + borrow;
            chunk.copy_from_slice(&(value as u64).to_le_bytes());
            borrow = value >> 64;
        }
        operand
    }

    /// Reads the counters' row. A database without edits has none.
    pub(crate) fn read(value: Option<&[u8]>) -> Result<Stats> {
        let Some(value) = value else { return Ok(Stats::default()) };
        let fields = value.as_chunks::<FIELD_BYTES>();
        match fields {
            ([doc_count, doc_del_count, external], []) => Ok(Stats {
                doc_count: i64::from_le_bytes(*doc_count),
                doc_del_count: i64::from_le_bytes(*doc_del_count),
                external: i64::from_le_bytes(*external),
            }),
            _ => Err(Error::corrupt("counters of wrong length")),
        }
    }
}

/// Reads the row of the last sequence.
pub(crate) fn read_last(value: Option<&[u8]>) -> Result<Seq> {
    let value = value.ok_or_else(|| Error::corrupt("the last sequence is missing"))?;
    value.try_into().map(Seq::from_bytes).map_err(|_| Error::corrupt("a last sequence of wrong length"))
}

/// Sizes of a database, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of all leaves' bodies as compact JSON. Exact.
    pub external: u64,
    /// Size of all rows of the database. Estimated by the store.
    pub active: u64,
}

/// Information about a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// Its name.
    pub name: String,
    /// Number of documents whose winner is live.
    pub doc_count: u64,
    /// Number of documents whose winner is a tombstone.
    pub doc_del_count: u64,
    /// The last sequence.
    pub update_seq: Seq,
    /// The sequence of the last purge; 0 if nothing was purged.
    pub purge_seq: u64,
    /// Its sizes.
    pub sizes: Sizes,
    /// Number of times that it moved to another store.
    pub incarnation: u8,
    /// Time of its creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// An id that distinguishes it from other databases with its name.
    pub instance_id: [u8; 16],
    /// The layout of new bodies.
    pub format: BodyFormat,
    /// Maximum number of revisions that a branch remembers.
    pub revs_limit: u32,
    /// Its conflict policy.
    pub conflicts: ConflictPolicy,
}

impl<D: Database> Documents<D> {
    /// Reads information about the database, all as of one moment except the estimate.
    ///
    /// # Errors
    /// 404.
    pub async fn info(&self) -> Result<DatabaseInfo> {
        let keys = self.keys();
        let (last_key, stats_key) = (keys.key(DatabaseKey::Last), keys.key(DatabaseKey::Stats));
        let (begin, end) = keys.everything();
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = transaction.get(&last_key, Read::Snapshot);
            let stats = transaction.get(&stats_key, Read::Snapshot);
            let purged = transaction.get_range(&purge::newest(keys), Read::Snapshot);
            let size = transaction.get_estimated_range_size(&begin, &end);
            async move {
                let instance = instance.await?;
                let stats = Stats::read(stats.await?.as_deref())?;
                let count = |value: i64| u64::try_from(value).unwrap_or(0);
                Ok(DatabaseInfo {
                    name: self.name().to_owned(),
                    doc_count: count(stats.doc_count),
                    doc_del_count: count(stats.doc_del_count),
                    update_seq: read_last(last.await?.as_deref())?,
                    purge_seq: purge::seq_of(keys, &purged.await?.rows)?,
                    sizes: Sizes { external: count(stats.external), active: size.await? },
                    incarnation: instance.incarnation,
                    created_ms: instance.created_ms,
                    instance_id: instance.id,
                    format: instance.format,
                    revs_limit: instance.revs_limit,
                    conflicts: instance.policy,
                })
            }
        })
        .await
    }

    /// The sequence of the last edit.
    ///
    /// # Errors
    /// 404.
    pub async fn last_seq(&self) -> Result<Seq> {
        let key = self.keys().key(DatabaseKey::Last);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = transaction.get(&key, Read::Snapshot);
            async move {
                instance.await?;
                read_last(last.await?.as_deref())
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(sum: &mut [u8; 24], operand: [u8; 24]) {
        let mut carry = 0;
        for (byte, other) in sum.iter_mut().zip(operand) {
            let total = u16::from(*byte) + u16::from(other) + carry;
            *byte = total as u8;
            carry = total >> 8;
        }
    }

    #[test]
    fn differences_add_up_whatever_their_signs() {
        let stats = |doc_count, doc_del_count, external| Stats { doc_count, doc_del_count, external };
        let steps = [
            stats(1, 0, 300),
            stats(2, 3, 70),
            stats(-1, 1, -370),
            stats(-2, -4, 1 << 40),
            stats(0, 0, -(1 << 40)),
            stats(5, 0, 0),
            stats(-5, 9, 1),
        ];
        let (mut sum, mut expected) = ([0; 24], [0i64; 3]);
        for step in steps {
            add(&mut sum, step.operand());
            for (total, field) in expected.iter_mut().zip(step.fields()) {
                *total += field;
            }
            assert_eq!(Stats::read(Some(&sum)).unwrap().fields(), expected, "after {step:?}");
        }
        assert!(Stats::read(Some(&[0; 23])).is_err());
    }
}
