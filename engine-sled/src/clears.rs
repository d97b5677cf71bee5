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
//! A purge removes the rows of one stretch at a time while commits go on beside it; only one that sets a
//! key in that very stretch waits, lest its row be taken for an old one.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Error, Result, error};
use occ::store::Op;
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
    pub(crate) fn in_the_way(&self, ops: &[Op]) -> bool {
        let Some(purging) = &self.purging else { return false };
        ops.iter().any(|op| matches!(op, Op::Set { key, .. } if *key >= purging.begin && *key < purging.end))
    }
}

/// The record of some intervals: each key with its length before it, in four bytes big-endian.
pub(crate) fn encode(pending: &RangeSet) -> Vec<u8> {
    let mut record = Vec::new();
    for key in pending.iter().flat_map(|(begin, end)| [begin, end]) {
        record.extend_from_slice(&(key.len() as u32).to_be_bytes());
        record.extend_from_slice(key);
    }
    record
}

/// The intervals of a record: 1522 for one that is damaged.
pub(crate) fn decode(record: &[u8]) -> Result<RangeSet> {
    let damaged = || Error::new(error::FILE_CORRUPT).with_context("sled's record of pending clears is damaged");
    let mut rest = record;
    let mut key = || -> Option<Bytes> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (key, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after;
        Some(Bytes::copy_from_slice(key))
    };
    let mut pending = RangeSet::default();
    while let Some(begin) = key() {
        let range = KeyRange { begin, end: key().ok_or_else(damaged)? };
        if range.is_empty() {
            return Err(damaged());
        }
        pending.insert(range);
    }
    if rest.is_empty() { Ok(pending) } else { Err(damaged()) }
}

/// The parts of the range from `begin` to `end` that no interval covers, in order.
pub(crate) fn uncovered(pending: &RangeSet, begin: &[u8], end: &[u8]) -> Vec<KeyRange> {
    let mut parts = Vec::new();
    let mut from = Bytes::copy_from_slice(begin);
    for (cleared, until) in pending.overlapping(begin, end) {
        if from < *cleared {
            parts.push(KeyRange { begin: from, end: cleared.clone() });
        }
        from = until.clone();
    }
    if from.as_ref() < end {
        parts.push(KeyRange { begin: from, end: Bytes::copy_from_slice(end) });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_damage_is_noticed() {
        let mut pending = RangeSet::default();
        assert_eq!(decode(&encode(&pending)).unwrap().iter().count(), 0);
        pending.insert(KeyRange::copied(b"", b"a"));
        pending.insert(KeyRange::copied(b"b\0", b"c"));
        let record = encode(&pending);
        assert!(decode(&record).unwrap().iter().eq(pending.iter()));
        for length in 1..record.len() {
            if let Ok(part) = decode(&record[..length]) {
                assert_eq!(part.iter().count(), 1, "cut at {length}");
            }
        }
        let parts = uncovered(&pending, b"", b"d");
        let expected = [KeyRange::copied(b"a", b"b\0"), KeyRange::copied(b"c", b"d")];
        assert_eq!(parts, expected);
        assert!(uncovered(&pending, b"bb", b"bc").is_empty());
    }
}
