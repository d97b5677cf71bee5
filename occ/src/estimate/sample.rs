//! The byte sample: how many bytes a range holds, without walking it.
//!
//! A row is in the sample with a probability of its size over [`UNIT`], by a hash of its key, and stands
//! there for a whole unit; a row that is larger stands for itself. The sum over a range is right on
//! average: off by a tenth at a hundred units, a thirtieth at a thousand. It is kept in memory, and in
//! a store that outlives the process beside the rows, in the batch that changes them:
//!
//! ```text
//!   \xff/occ/sample            there: every row since the store was empty has been looked at
//!   \xff/occ/sample/<key>      8 bytes big-endian: the bytes of that key and its value
//! ```
//!
//! A store that was written before there was a sample has none, and its ranges are walked. The sample is
//! of the newest commit, whatever the version that is read at.
//!
//! Source: FoundationDB's `fdbserver/storageserver.actor.cpp`, `isKeyValueInSample`.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use kv_api::{Direction, Error, Result, error};
use twox_hash::XxHash64;

use crate::store::{Op, View};

/// The mark of a complete sample; a slash and a key make the key of a sampled row.
const PREFIX: &[u8] = b"\xff/occ/sample";

/// The end of the keys that are sampled: the system's are not.
pub(crate) const END: &[u8] = b"\xff";

/// So many bytes are behind a sampled row, on average.
const UNIT: u64 = 128 << 10;

/// A sample, as of the newest commit.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Keys, and the bytes of their rows.
    rows: BTreeMap<Bytes, u64>,
    /// The largest of them so far.
    largest: u64,
    /// Every row of the store was looked at.
    complete: bool,
    marked: bool,
    /// What is sampled is written to the store too.
    kept: bool,
}

/// What a batch does to the sample, once it is in the store.
#[derive(Debug, Default)]
pub(crate) struct Change(Vec<Step>);

#[derive(Debug)]
enum Step {
    Insert(Bytes, u64),
    Remove(Bytes),
    RemoveRange(Bytes, Bytes),
}

impl Sample {
    /// The sample of a store; 1522 where it is damaged.
    pub(crate) fn open(view: &impl View, kept: bool) -> Result<Self> {
        let marked = view.get(PREFIX)?.is_some();
        let complete = marked || view.range(b"", b"\xff\xff", Direction::Forward).next().transpose()?.is_none();
        let mut sample = Sample { rows: BTreeMap::new(), largest: 0, complete, marked, kept };
        let (begin, end) = (sample_key(b""), [PREFIX, b"0"].concat());
        for row in view.range(&begin, &end, Direction::Forward) {
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
        // A copy: the key may be a part of something large.
        self.rows.insert(Bytes::copy_from_slice(&key), bytes);
    }

    /// Looks at what a batch does, and adds to it what keeps the sample.
    pub(crate) fn observe(&self, ops: &mut Vec<Op>) -> Change {
        let mut change = Change::default();
        if !self.complete {
            return change;
        }
        for op in ops.iter() {
            match op {
                Op::Set { key, value } if key.as_ref() < END => {
                    let bytes = (key.len() + value.len()) as u64;
                    let hash = hash(key);
                    if is_sampled(hash, bytes) {
                        // Copied: what it shares its memory with is not to live as long.
                        change.0.push(Step::Insert(Bytes::copy_from_slice(key), bytes));
                    } else if self.may_hold(key, hash, &change) {
                        change.0.push(Step::Remove(key.clone()));
                    }
                }
                Op::Clear { key } if self.may_hold(key, hash(key), &change) => {
                    change.0.push(Step::Remove(key.clone()));
                }
                Op::ClearRange { begin, end } if self.may_hold_any(begin, end, &change) => {
                    change.0.push(Step::RemoveRange(begin.clone(), end.clone()));
                }
                Op::Set { .. } | Op::Clear { .. } | Op::ClearRange { .. } => {}
            }
        }
        if self.kept {
            ops.extend(change.0.iter().map(Step::op));
            if !self.marked {
                ops.push(Op::Set { key: Bytes::from_static(PREFIX), value: Bytes::new() });
            }
        }
        change
    }

    /// Takes over what [`observe`](Self::observe) saw, now that it is in the store.
    pub(crate) fn apply(&mut self, change: Change) {
        self.marked |= self.complete;
        for step in change.0 {
            match step {
                Step::Insert(key, bytes) => self.insert(key, bytes),
                Step::Remove(key) => {
                    self.rows.remove(&key);
                }
                Step::RemoveRange(begin, end) => {
                    let range = (Bound::Included(&begin), Bound::Excluded(&end));
                    let gone: Vec<Bytes> = self.rows.range::<Bytes, _>(range).map(|(key, _)| key.clone()).collect();
                    for key in gone {
                        self.rows.remove(&key);
                    }
                }
            }
        }
    }

    /// About how many bytes the range holds; `None` where that is not known.
    pub(crate) fn bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        if !self.complete || end > END {
            return None;
        }
        if begin >= end {
            return Some(0);
        }
        let range = (Bound::Included(begin), Bound::Excluded(end));
        Some(self.rows.range::<[u8], _>(range).map(|(_, bytes)| (*bytes).max(UNIT)).sum())
    }

    /// Hardly any key's hash lets it be in the sample, with rows as large as there were.
    fn may_hold(&self, key: &Bytes, hash: u32, change: &Change) -> bool {
        let inserted = || change.0.iter().any(|step| matches!(step, Step::Insert(inserted, _) if inserted == key));
        (is_sampled(hash, self.largest) && self.rows.contains_key(key)) || inserted()
    }

    fn may_hold_any(&self, begin: &Bytes, end: &Bytes, change: &Change) -> bool {
        let range = (Bound::Included(begin), Bound::Excluded(end));
        let within = |step: &Step| matches!(step, Step::Insert(key, _) if begin <= key && key < end);
        self.rows.range::<Bytes, _>(range).next().is_some() || change.0.iter().any(within)
    }
}

impl Step {
    fn op(&self) -> Op {
        match self {
            Step::Insert(key, bytes) => {
                Op::Set { key: sample_key(key), value: Bytes::copy_from_slice(&bytes.to_be_bytes()) }
            }
            Step::Remove(key) => Op::Clear { key: sample_key(key) },
            Step::RemoveRange(begin, end) => Op::ClearRange { begin: sample_key(begin), end: sample_key(end) },
        }
    }
}

fn sample_key(key: &[u8]) -> Bytes {
    [PREFIX, b"/", key].concat().into()
}

/// A key's place among all, from which it follows at what size it is sampled. In the store for ever.
fn hash(key: &[u8]) -> u32 {
    (XxHash64::oneshot(0, key) >> 32) as u32
}

fn is_sampled(hash: u32, bytes: u64) -> bool {
    u64::from(hash) * UNIT < bytes << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Rows(BTreeMap<Bytes, Bytes>);

    impl Rows {
        fn write(&mut self, ops: &[Op]) {
            for op in ops.iter().cloned() {
                match op {
                    Op::Set { key, value } => drop(self.0.insert(key, value)),
                    Op::Clear { key } => drop(self.0.remove(&key)),
                    Op::ClearRange { begin, end } => self.0.retain(|key, _| *key < begin || *key >= end),
                }
            }
        }
    }

    impl View for Rows {
        type Range<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

        fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
            Ok(self.0.get(key).cloned())
        }

        fn range<'a>(&'a self, begin: &[u8], end: &[u8], _: Direction) -> Self::Range<'a> {
            let rows = self.0.range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end)));
            Box::new(rows.map(|(key, value)| Ok((key.clone(), value.clone()))))
        }
    }

    fn empty() -> Sample {
        Sample { rows: BTreeMap::new(), largest: 0, complete: true, marked: true, kept: true }
    }

    fn key(n: u32) -> Bytes {
        Bytes::from(format!("key {n:08}"))
    }

    fn set(n: u32, bytes: usize) -> Op {
        Op::Set { key: key(n), value: Bytes::from(vec![0; bytes - key(n).len()]) }
    }

    /// Gives the ops to the sample, and returns those that keep it.
    fn write(sample: &mut Sample, mut ops: Vec<Op>) -> Vec<Op> {
        let given = ops.len();
        let change = sample.observe(&mut ops);
        sample.apply(change);
        ops.split_off(given)
    }

    fn is_about(estimate: u64, bytes: u64) -> bool {
        estimate.abs_diff(bytes) < bytes / 5
    }

    #[test]
    fn a_range_is_estimated_from_a_few_of_its_rows() {
        let mut sample = empty();
        let rows = 400_000;
        write(&mut sample, (0..rows).map(|n| set(n, 200)).collect());
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
        write(&mut sample, (0..2_000).map(|n| set(n, 90_000)).collect());
        assert!(is_about(sample.bytes(b"", END).unwrap(), 180_000_000));
        write(&mut sample, (0..2_000).map(|n| set(n, 9_000)).collect());
        let shrunk = sample.bytes(b"", END).unwrap();
        assert!(is_about(shrunk, 18_000_000), "{shrunk}");
        write(&mut sample, vec![Op::ClearRange { begin: key(500), end: key(2_000) }]);
        assert_eq!(sample.bytes(&key(500), END), Some(0));
        write(&mut sample, (0..500).map(|n| Op::Clear { key: key(n) }).collect());
        assert_eq!(sample.bytes(b"", END), Some(0));
        assert!(sample.rows.is_empty());
    }

    #[test]
    fn within_a_batch_the_later_change_wins() {
        let mut sample = empty();
        let large = |n| set(n, UNIT as usize);
        write(&mut sample, vec![large(1), Op::Clear { key: key(1) }, large(2), set(2, 20)]);
        assert_eq!(sample.bytes(b"", END), Some(0));
        write(&mut sample, vec![large(3), Op::ClearRange { begin: key(0), end: key(9) }, large(4)]);
        assert_eq!(sample.bytes(b"", END), Some(UNIT));
        assert_eq!(sample.bytes(&key(4), END), Some(UNIT));
    }

    #[test]
    fn what_keeps_it_in_the_store_brings_it_back() {
        let mut store = Rows::default();
        let mut sample = Sample::open(&store, true).unwrap();
        let mut batches = vec![
            (0..3_000).map(|n| set(n, 1 + 40 * n as usize % 70_000 + key(n).len())).collect::<Vec<_>>(),
            vec![Op::ClearRange { begin: key(100), end: key(900) }],
            (0..3_000).step_by(7).map(|n| set(n, 20)).collect(),
            vec![Op::Clear { key: key(2_999) }],
        ];
        for ops in &mut batches {
            let change = sample.observe(ops);
            sample.apply(change);
            store.write(ops);
        }
        let opened = Sample::open(&store, true).unwrap();
        assert!(opened.complete && !opened.rows.is_empty());
        assert_eq!(opened.rows, sample.rows);
    }

    #[test]
    fn a_store_that_was_written_without_a_sample_has_none() {
        let mut store = Rows::default();
        store.write(&[set(1, 100)]);
        let sample = Sample::open(&store, true).unwrap();
        assert_eq!(sample.bytes(b"", END), None);
        let mut ops = vec![set(2, 100_000)];
        sample.observe(&mut ops);
        assert_eq!(ops.len(), 1, "and gets none that would be of a part of it");
        store.write(&[Op::Set { key: sample_key(b"k"), value: Bytes::from_static(b"short") }]);
        assert_eq!(Sample::open(&store, true).unwrap_err().code(), error::FILE_CORRUPT);
    }
}
