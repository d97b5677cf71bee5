//! Clears of very many rows: recorded at once, applied little by little.
//!
//! Removing a million rows from a sled tree takes half a minute, and their before-images a gigabyte. So
//! a clear of more than a few thousand rows becomes a pending interval: one durable record, written in
//! the commit's own batch, that makes everything between two keys absent. A thread then removes the
//! rows, some at a time, between commits.
//!
//! ```text
//!   pending    ├───────────────────────────┤         all rows here are absent
//!   set(k)     ├──────────┤ k ├────────────┤         a write cuts its key out: it is there again
//!   purge                     ├────────────┤         rows go from the front; so does the interval
//! ```
//!
//! Invariants: a key in a pending interval is absent, whatever the tree holds; a key outside is what
//! the tree says. Every snapshot carries the intervals of its epoch. Rows are removed only once no
//! snapshot from before the clear lives, so that none needs their before-images. The record changes in
//! the batch that makes it change, and after the rows that a purge removed, so a crash leaves it true:
//! what was purged twice is gone all the same.
//!
//! The record and what it is read with are [`disk::clears`].
//!
//! A purge removes the rows of one stretch at a time while commits go on beside it; only one that sets a
//! key in that very stretch waits, lest its row be taken for an old one.

use std::sync::Arc;

use occ::store::Batch;
use occ::{KeyRange, RangeSet};

/// Where the tree keeps the record. A system key, out of the user's reach.
pub(crate) const RECORD_KEY: &[u8] = b"\xff/sled/clears";

/// A clear of more rows than this is made pending.
pub(crate) const BULK: usize = 4_096;

/// How many rows one step of the purge removes.
pub(crate) const STEP: usize = 512;

/// The pending intervals.
#[derive(Debug, Default)]
pub(crate) struct Clears {
    pub(crate) pending: Arc<RangeSet>,
    /// The epoch in which the newest of them began.
    pub(crate) since: u64,
    /// Where rows are being removed: part of a pending interval.
    pub(crate) purging: Option<KeyRange>,
}

impl Clears {
    /// Whether the batch has to wait for what is being removed.
    pub(crate) fn in_the_way(&self, batch: &Batch) -> bool {
        let Some(purging) = &self.purging else { return false };
        batch.rows().any(|(key, value)| value.is_some() && purging.begin <= *key && *key < purging.end)
    }
}
