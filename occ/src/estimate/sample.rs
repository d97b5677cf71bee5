//! The byte sample: how many bytes a range holds, without walking it.
//!
//! A row is sampled with a probability of its size over [`UNIT`], decided by a hash of its key. A sampled row
//! counts as a whole unit; a row that is larger than a unit counts as itself. The sum over a range is right on
//! average: within a tenth at a hundred units, within a thirtieth at a thousand.
//!
//! The sample is kept in memory. A store that outlives the process also keeps it beside the rows, in the batch
//! that changes them:
//!
//! ```text
//!   \xff/occ/sample            marks that every row since the store was empty was considered
//!   \xff/occ/sample/<key>      8 bytes big-endian: the bytes of that key and its value
//! ```
//!
//! In a store with rows but without the mark, ranges are walked. The sample describes the newest commit, whatever a
//! transaction's read version.
//!
//! Source: FoundationDB's `fdbserver/storageserver.actor.cpp`, `isKeyValueInSample`.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use kv_api::{Direction, Error, Result, error};
use twox_hash::XxHash64;

use crate::KeyRange;
use crate::store::{Batch, Snapshot};

/// The key of the mark. With a slash and a key it is the key of a sampled row.
const PREFIX: &[u8] = b"\xff/occ/sample";

/// The first key that is not sampled: the system's keys are not.
pub(crate) const END: &[u8] = b"\xff";

/// Bytes that a sampled row stands for.
const UNIT: u64 = 128 << 10;

/// The sample of the newest commit.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Sampled keys, with the bytes of their rows.
    rows: BTreeMap<Bytes, u64>,
    /// The largest row that was ever sampled.
    largest: u64,
    /// Whether every row of the store was considered.
    complete: bool,
    /// Whether the store has the mark.
    marked: bool,
    /// Whether the sample is written to the store too.
    kept: bool,
}

/// What a batch changes in the sample, in order.
#[derive(Debug, Default)]
pub(crate) struct SampleChanges(Vec<SampleChange>);

#[derive(Debug)]
enum SampleChange {
    Insert(Bytes, u64),
    Remove(Bytes),
    RemoveRange(KeyRange),
}

impl Sample {
    /// The sample of a store; 1522 if it is damaged.
    pub(crate) fn open(snapshot: &impl Snapshot, kept: bool) -> Result<Self> {
        let marked = snapshot.get(PREFIX)?.is_some();
        let complete = marked || snapshot.range(b"", b"\xff\xff", Direction::Forward).next().transpose()?.is_none();
        let mut sample = Sample { rows: BTreeMap::new(), largest: 0, complete, marked, kept };
        let (begin, end) = (sample_key(b""), [PREFIX, b"0"].concat());
        for row in snapshot.range(&begin, &end, Direction::Forward) {
            let (key, bytes) = row?;
            let bytes = bytes.as_ref().try_into().map_err(|_| {
                Error::new(error::FILE_CORRUPT).with_context("a row of the store's byte sample is damaged")
            })?;
            sample.insert(key.slice(begin.len()..), u64::from_be_bytes(bytes));
        }
        Ok(sample)
    }

    fn insert(&mut self, key: Bytes, bytes: u64) {
        self.largest = self.largest.max(bytes);
        // Copied: the key may share its memory with something large.
        self.rows.insert(Bytes::copy_from_slice(&key), bytes);
    }

    /// Finds what a batch changes in the sample, and adds the rows that record it to the batch.
    pub(crate) fn observe(&self, batch: &mut Batch) -> SampleChanges {
        let mut changes = Vec::new();
        if !self.complete {
            return SampleChanges(changes);
        }
        for (begin, end) in batch.clears().iter() {
            if self.between(begin, end).next().is_some() {
                changes.push(SampleChange::RemoveRange(KeyRange { begin: begin.clone(), end: end.clone() }));
            }
        }
        for (key, value) in batch.rows().take_while(|(key, _)| !key.starts_with(END)) {
            let hash = hash(key);
            let bytes = value.map_or(0, |value| (key.len() + value.len()) as u64);
            if is_sampled(hash, bytes) {
                changes.push(SampleChange::Insert(key.clone(), bytes));
            } else if is_sampled(hash, self.largest) && self.rows.contains_key(key) {
                changes.push(SampleChange::Remove(key.clone()));
            }
        }
        if self.kept {
            changes.iter().for_each(|change| change.record(batch));
            if !self.marked {
                batch.set(Bytes::from_static(PREFIX), Bytes::new());
            }
        }
        SampleChanges(changes)
    }

    /// Takes over the changes of a batch that is in the store.
    pub(crate) fn apply(&mut self, changes: SampleChanges) {
        self.marked |= self.complete;
        for change in changes.0 {
            match change {
                SampleChange::Insert(key, bytes) => self.insert(key, bytes),
                SampleChange::Remove(key) => drop(self.rows.remove(&key)),
                SampleChange::RemoveRange(KeyRange { begin, end }) => {
                    self.rows.extract_if(begin..end, |_, _| true).for_each(drop);
                }
            }
        }
    }

    /// Bytes in the range, roughly; `None` if that is not known.
    pub(crate) fn bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        if !self.complete || end > END {
            return None;
        }
        if begin >= end {
            return Some(0);
        }
        Some(self.between(begin, end).map(|bytes| (*bytes).max(UNIT)).sum())
    }

    fn between(&self, begin: &[u8], end: &[u8]) -> impl Iterator<Item = &u64> {
        self.rows.range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end))).map(|(_, bytes)| bytes)
    }
}

impl SampleChange {
    fn record(&self, batch: &mut Batch) {
        match self {
            SampleChange::Insert(key, bytes) => {
                batch.set(sample_key(key), Bytes::copy_from_slice(&bytes.to_be_bytes()));
            }
            SampleChange::Remove(key) => batch.clear(sample_key(key)),
            SampleChange::RemoveRange(KeyRange { begin, end }) => {
                batch.clear_range(KeyRange { begin: sample_key(begin), end: sample_key(end) });
            }
        }
    }
}

fn sample_key(key: &[u8]) -> Bytes {
    [PREFIX, b"/", key].concat().into()
}

/// A hash of a key. It decides from which size its row is sampled. Must never change: stores rely on it.
fn hash(key: &[u8]) -> u32 {
    (XxHash64::oneshot(0, key) >> 32) as u32
}

fn is_sampled(hash: u32, bytes: u64) -> bool {
    u64::from(hash) * UNIT < bytes << 32
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::MapSnapshot;

    fn empty() -> Sample {
        Sample { rows: BTreeMap::new(), largest: 0, complete: true, marked: true, kept: true }
    }

    fn key(n: u32) -> Bytes {
        Bytes::from(format!("key {n:08}"))
    }

    enum Op {
        Set(u32, usize),
        Clear(u32),
        ClearRange(u32, u32),
    }

    fn set(n: u32, bytes: usize) -> Op {
        Op::Set(n, bytes)
    }

    fn batch(ops: impl IntoIterator<Item = Op>) -> Batch {
        let mut batch = Batch::new(1);
        for op in ops {
            match op {
                Op::Set(n, bytes) => batch.set(key(n), Bytes::from(vec![0; bytes - key(n).len()])),
                Op::Clear(n) => batch.clear(key(n)),
                Op::ClearRange(begin, end) => batch.clear_range(KeyRange { begin: key(begin), end: key(end) }),
            }
        }
        batch
    }

    /// Writes a batch, and returns it with the rows that record the sample.
    fn write(sample: &mut Sample, ops: impl IntoIterator<Item = Op>) -> Batch {
        let mut batch = batch(ops);
        let changes = sample.observe(&mut batch);
        sample.apply(changes);
        batch
    }

    fn is_about(estimate: u64, bytes: u64) -> bool {
        estimate.abs_diff(bytes) < bytes / 5
    }

    #[test]
    fn a_range_is_estimated_from_a_few_of_its_rows() {
        let mut sample = empty();
        let rows = 400_000;
        write(&mut sample, (0..rows).map(|n| set(n, 200)));
        assert!(sample.rows.len() < 1_000, "{} of {rows} rows", sample.rows.len());
        let whole = sample.bytes(b"", END).unwrap();
        assert!(is_about(whole, 80_000_000), "{whole}");
        let half = sample.bytes(&key(rows / 2), &key(rows)).unwrap();
        assert!(is_about(half, 40_000_000), "{half}");
        assert_eq!(sample.bytes(b"k", b"k"), Some(0));
        assert_eq!(sample.bytes(b"", b"\xff\xff"), None, "the system's keys are not sampled");
    }

    #[test]
    fn rows_that_change_and_go_are_followed() {
        let mut sample = empty();
        write(&mut sample, (0..2_000).map(|n| set(n, 90_000)));
        assert!(is_about(sample.bytes(b"", END).unwrap(), 180_000_000));
        write(&mut sample, (0..2_000).map(|n| set(n, 9_000)));
        let shrunk = sample.bytes(b"", END).unwrap();
        assert!(is_about(shrunk, 18_000_000), "{shrunk}");
        write(&mut sample, [Op::ClearRange(500, 2_000)]);
        assert_eq!(sample.bytes(&key(500), END), Some(0));
        write(&mut sample, (0..500).map(Op::Clear));
        assert_eq!(sample.bytes(b"", END), Some(0));
        assert!(sample.rows.is_empty());
    }

    #[test]
    fn within_a_batch_the_later_change_wins() {
        let mut sample = empty();
        let large = |n| set(n, UNIT as usize);
        write(&mut sample, [large(1), Op::Clear(1), large(2), set(2, 20)]);
        assert_eq!(sample.bytes(b"", END), Some(0));
        write(&mut sample, [large(3), Op::ClearRange(0, 9), large(4)]);
        assert_eq!(sample.bytes(b"", END), Some(UNIT));
        assert_eq!(sample.bytes(&key(4), END), Some(UNIT));
    }

    #[test]
    fn what_keeps_it_in_the_store_brings_it_back() {
        let mut store = MapSnapshot::default();
        let mut sample = Sample::open(&store, true).unwrap();
        let batches = [
            (0..3_000).map(|n| set(n, 1 + 40 * n as usize % 70_000 + key(n).len())).collect::<Vec<_>>(),
            vec![Op::ClearRange(100, 900)],
            (0..3_000).step_by(7).map(|n| set(n, 20)).collect(),
            vec![Op::Clear(2_999)],
        ];
        for ops in batches {
            write(&mut sample, ops).apply_to(Arc::make_mut(&mut store.0));
        }
        let opened = Sample::open(&store, true).unwrap();
        assert!(opened.complete && !opened.rows.is_empty());
        assert_eq!(opened.rows, sample.rows);
    }

    #[test]
    fn a_store_that_was_written_without_a_sample_has_none() {
        let mut store = MapSnapshot::default();
        batch([set(1, 100)]).apply_to(Arc::make_mut(&mut store.0));
        let sample = Sample::open(&store, true).unwrap();
        assert_eq!(sample.bytes(b"", END), None);
        let mut large = batch([set(2, 100_000)]);
        sample.observe(&mut large);
        assert_eq!(large.row_count(), 1, "a sample of a part of the store would be wrong");
        Arc::make_mut(&mut store.0).insert(sample_key(b"k"), Bytes::from_static(b"short"));
        assert_eq!(Sample::open(&store, true).unwrap_err().code(), error::FILE_CORRUPT);
    }
}
