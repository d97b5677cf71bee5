//! Clears of very many rows: recorded at once, applied in the background.
//!
//! Removing a million rows from a sled tree takes half a minute, and their before-images take a gigabyte of memory. So
//! a clear of more than a few thousand rows becomes a pending interval: one durable record in the commit's own batch
//! makes all keys between two keys absent. A thread then removes the rows in steps, between commits.
//!
//! ```text
//!   pending    ├───────────────────────────┤         all rows here count as absent
//!   set(k)     ├──────────┤ k ├────────────┤         a write cuts its key out
//!   purge                     ├────────────┤         rows are removed from the front
//! ```
//!
//! Invariants: a key in a pending interval is absent, whatever the tree holds; every other key is as in the tree.
//! Every snapshot has the intervals of its epoch. Rows are removed only when no snapshot from before the clear is
//! alive, so none needs their before-images. A batch that changes the intervals contains their record. A purge
//! changes the record after it has removed the rows. So after a crash the record is right. Rows may be purged twice,
//! without effect.
//!
//! The record's format is in [`disk::clears`].
//!
//! A purge removes one group of rows at a time while commits continue. Only a commit that sets a key in the range
//! of that group waits, because its row must not be removed.

use std::sync::Arc;

use occ::store::Batch;
use occ::{KeyRange, RangeSet};

/// Key of the record in the tree: a system key, which users cannot reach.
pub(crate) const RECORD_KEY: &[u8] = b"\xff/sled/clears";

/// Number of rows above which a clear becomes pending.
pub(crate) const BULK: usize = 4_096;

/// Number of rows that one step of the purge removes.
pub(crate) const STEP: usize = 512;

/// The pending intervals.
#[derive(Debug, Default)]
pub(crate) struct Clears {
    pub(crate) pending: Arc<RangeSet>,
    /// Epoch in which the newest of them began.
    pub(crate) since: u64,
    /// The range whose rows are being removed: part of a pending interval.
    pub(crate) purging: Option<KeyRange>,
}

impl Clears {
    /// Whether the batch must wait for the purge step in progress.
    pub(crate) fn in_the_way(&self, batch: &Batch) -> bool {
        let Some(purging) = &self.purging else { return false };
        batch.rows().any(|(key, value)| value.is_some() && purging.begin <= *key && *key < purging.end)
    }
}
