//! Sorted changes in one piece of memory, as they are in the log too.
//!
//! ```text
//!   clears  rows │ clear: begin, end … │ row: key length, value length, key, value … in key order
//!   ───── 4 bytes big-endian each ─────                 └ ABSENT: the key is removed
//! ```
//!
//! The clears come first in effect: a row of the run lies over them. So one search in a run tells what it
//! knows of a key, and a run over another is one run again.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Error, Result, error};

use occ::settle::{Point, settle};
use occ::store::Op;
use occ::{KeyRange, RangeSet};

/// In place of a value's length: the key is removed.
const ABSENT: u32 = u32::MAX;

/// Of the lengths before a row's key.
const ROW_HEAD: usize = 8;

/// So many runs are merged at once. For each row, a merge looks at every run.
const AT_ONCE: usize = 16;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Run {
    bytes: Bytes,
    /// Where the rows begin.
    rows: Vec<u32>,
    clears: RangeSet,
}

/// What a run knows of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known<'r> {
    /// Nothing: what lies below decides.
    Nothing,
    /// The key has this value, or none.
    Value(Option<&'r [u8]>),
}

/// A run on its way into memory: behind as many bytes of zeros as were asked for.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) bytes: Vec<u8>,
    rows: Vec<u32>,
    clears: RangeSet,
    /// Where the counts are.
    head: usize,
}

impl Draft {
    /// The run of a batch, in effect in its order.
    pub(crate) fn of(ops: Vec<Op>, head: usize) -> Result<Self> {
        let mut points = Vec::with_capacity(ops.len());
        let mut cleared: Vec<(usize, KeyRange)> = Vec::new();
        let mut size = 0;
        for (place, op) in ops.into_iter().enumerate() {
            let (key, value) = match op {
                Op::Set { key, value } => (key, Some(value)),
                Op::Clear { key } => (key, None),
                Op::ClearRange { begin, end } => {
                    cleared.push((place, KeyRange { begin, end }));
                    continue;
                }
            };
            size += ROW_HEAD + key.len() + value.as_ref().map_or(0, Bytes::len);
            points.push(Point { key, value, place });
        }
        settle(&mut points, &cleared);
        let mut clears = RangeSet::default();
        cleared.into_iter().for_each(|(_, range)| clears.insert(range));
        let mut draft = Draft::begin(clears, head, size, points.len());
        for Point { key, value, .. } in &points {
            draft.push(key, value.as_deref())?;
        }
        draft.finish()
    }

    fn begin(clears: RangeSet, head: usize, size: usize, rows: usize) -> Self {
        let cleared: usize = clears.iter().map(|(begin, end)| begin.len() + end.len() + 8).sum();
        let mut bytes = Vec::with_capacity(head + 8 + cleared + size);
        bytes.resize(head + 8, 0);
        for key in clears.iter().flat_map(|(begin, end)| [begin, end]) {
            bytes.extend_from_slice(&(key.len() as u32).to_be_bytes());
            bytes.extend_from_slice(key);
        }
        Draft { bytes, rows: Vec::with_capacity(rows), clears, head }
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let lengths = match value {
            None => Some((key.len() as u32, ABSENT)),
            Some(value) => u32::try_from(value.len()).ok().map(|length| (key.len() as u32, length)),
        };
        let (Some((key_length, value_length)), Ok(at)) = (lengths, u32::try_from(self.bytes.len())) else {
            return Err(too_large());
        };
        self.rows.push(at);
        self.bytes.extend_from_slice(&key_length.to_be_bytes());
        self.bytes.extend_from_slice(&value_length.to_be_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        Ok(())
    }

    /// Takes rows as they are in another run.
    fn copy(&mut self, run: &Run, places: std::ops::Range<usize>) {
        let from = run.rows[places.start];
        let to = run.rows.get(places.end).map_or(run.bytes.len(), |end| *end as usize);
        let here = self.bytes.len() as u32;
        self.rows.extend(run.rows[places].iter().map(|row| here + (row - from)));
        self.bytes.extend_from_slice(&run.bytes[from as usize..to]);
    }

    fn finish(mut self) -> Result<Self> {
        if u32::try_from(self.bytes.len()).is_err() {
            return Err(too_large());
        }
        let clears = self.clears.iter().count() as u32;
        let counts = [clears.to_be_bytes(), (self.rows.len() as u32).to_be_bytes()].concat();
        self.bytes[self.head..self.head + 8].copy_from_slice(&counts);
        Ok(self)
    }

    /// The run.
    pub(crate) fn run(self) -> Run {
        Run { bytes: self.bytes.into(), rows: self.rows, clears: self.clears }
    }
}

fn too_large() -> Error {
    Error::new(error::TRANSACTION_TOO_LARGE).with_context("a batch of commits takes more than 4 GiB")
}

impl Run {
    /// The run that `bytes` hold, as a draft of theirs wrote it; 1522 where they do not hold one.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self> {
        let damaged = || Error::new(error::FILE_CORRUPT).with_context("a record of the log is damaged");
        let number = |at: usize| -> Option<u32> {
            let four = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_be_bytes(four.try_into().ok()?))
        };
        let read = || -> Option<Run> {
            let (cleared, count) = (number(0)?, number(4)?);
            let mut at: usize = 8;
            let mut key = || -> Option<Bytes> {
                let end = (at + 4).checked_add(number(at)? as usize).filter(|end| *end <= bytes.len())?;
                let key = bytes.slice(at + 4..end);
                at = end;
                Some(key)
            };
            let mut clears = RangeSet::default();
            for _ in 0..cleared {
                let range = KeyRange { begin: key()?, end: key()? };
                if range.is_empty() {
                    return None;
                }
                clears.insert(range);
            }
            let mut rows = Vec::new();
            for _ in 0..count {
                rows.push(u32::try_from(at).ok()?);
                let (key, value) = (number(at)?, number(at + 4)?);
                let value = if value == ABSENT { 0 } else { value };
                at = (at + ROW_HEAD).checked_add(key as usize)?.checked_add(value as usize)?;
            }
            (at == bytes.len()).then(|| Run { bytes: bytes.clone(), rows, clears })
        };
        let run = read().ok_or_else(damaged)?;
        let ordered = (1..run.rows.len()).all(|at| run.key(at - 1) < run.key(at));
        if ordered { Ok(run) } else { Err(damaged()) }
    }

    /// One run that does what these do one after the other.
    pub(crate) fn merged(runs: &[Arc<Run>]) -> Result<Run> {
        if runs.len() > AT_ONCE {
            let merged: Result<Vec<Arc<Run>>> =
                runs.chunks(AT_ONCE).map(|part| Run::merged(part).map(Arc::new)).collect();
            return Run::merged(&merged?);
        }
        let mut clears = RangeSet::default();
        for (begin, end) in runs.iter().flat_map(|run| run.clears.iter()) {
            clears.insert(KeyRange { begin: begin.clone(), end: end.clone() });
        }
        let (size, rows) =
            runs.iter().fold((0, 0), |(size, rows), run| (size + run.bytes.len(), rows + run.rows.len()));
        let mut draft = Draft::begin(clears, 0, size, rows);
        let last_clear = runs.iter().rposition(|run| !run.clears.is_empty());
        let mut places = vec![0; runs.len()];
        let mut heads: Vec<Option<&[u8]>> = runs.iter().map(|run| run.key_at(0)).collect();
        loop {
            // The newest of those with the least key, and the least key of the others.
            let mut least: Option<(usize, &[u8])> = None;
            let mut next: Option<&[u8]> = None;
            for (at, key) in heads.iter().enumerate().filter_map(|(at, head)| Some((at, (*head)?))) {
                match least {
                    Some((_, first)) if key > first => next = Some(next.map_or(key, |next| next.min(key))),
                    Some((older, first)) => {
                        least = Some((at, key));
                        if key < first {
                            next = Some(first);
                            continue;
                        }
                        places[older] += 1;
                        let after = runs[older].key_at(places[older]);
                        next = next.into_iter().chain(after).min();
                    }
                    None => least = Some((at, key)),
                }
            }
            let Some((newest, _)) = least else { break };
            let run = &runs[newest];
            let from = places[newest];
            let mut to = from + 1;
            while run.key_at(to).is_some_and(|key| next.is_none_or(|next| key < next)) {
                to += 1;
            }
            if last_clear.is_some_and(|last| last > newest) {
                for place in from..to {
                    let key = run.key(place);
                    if !runs[newest + 1..].iter().any(|run| run.clears(key)) {
                        draft.copy(run, place..place + 1);
                    }
                }
            } else {
                draft.copy(run, from..to);
            }
            places[newest] = to;
            for (at, head) in heads.iter_mut().enumerate() {
                *head = runs[at].key_at(places[at]);
            }
        }
        Ok(draft.finish()?.run())
    }

    /// Rows and what removes one.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of memory, but for the clears'.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.rows.len() * 4
    }

    /// What is cleared below the rows.
    pub(crate) fn cleared(&self) -> &RangeSet {
        &self.clears
    }

    /// Whether what lies below is cleared at `key`.
    pub(crate) fn clears(&self, key: &[u8]) -> bool {
        !self.clears.is_empty() && self.clears.contains(key)
    }

    fn number(&self, at: usize) -> u32 {
        self.bytes[at..].first_chunk::<4>().map_or(0, |four| u32::from_be_bytes(*four))
    }

    /// The row at a place below [`len`](Self::len), with its lengths.
    fn row(&self, place: usize) -> &[u8] {
        let end = self.rows.get(place + 1).map_or(self.bytes.len(), |end| *end as usize);
        &self.bytes[self.rows[place] as usize..end]
    }

    /// The key at a place below [`len`](Self::len).
    pub(crate) fn key(&self, place: usize) -> &[u8] {
        let start = self.rows[place] as usize;
        &self.bytes[start + ROW_HEAD..start + ROW_HEAD + self.number(start) as usize]
    }

    fn key_at(&self, place: usize) -> Option<&[u8]> {
        (place < self.len()).then(|| self.key(place))
    }

    fn is_absent(&self, place: usize) -> bool {
        self.number(self.rows[place] as usize + 4) == ABSENT
    }

    /// The value at a place below [`len`](Self::len).
    pub(crate) fn value(&self, place: usize) -> Option<&[u8]> {
        let row = self.row(place);
        (!self.is_absent(place)).then(|| &row[ROW_HEAD + self.key(place).len()..])
    }

    /// The row at a place below [`len`](Self::len), unless it removes its key: a part of the run, which lives as
    /// long.
    pub(crate) fn shared(&self, place: usize) -> Option<(Bytes, Bytes)> {
        let start = self.rows[place] as usize + ROW_HEAD;
        let end = start + self.key(place).len();
        let value = self.value(place)?;
        Some((self.bytes.slice(start..end), self.bytes.slice(end..end + value.len())))
    }

    /// How many rows are before `key`.
    pub(crate) fn before(&self, key: &[u8]) -> usize {
        let (mut from, mut to) = (0, self.rows.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if self.key(middle) < key {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// What it knows of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Known<'_> {
        let place = self.before(key);
        if place < self.len() && self.key(place) == key {
            return Known::Value(self.value(place));
        }
        if self.clears(key) { Known::Value(None) } else { Known::Nothing }
    }

    /// A batch that does what the run does.
    pub(crate) fn ops(&self) -> Vec<Op> {
        let clears = self.clears.iter().map(|(begin, end)| Op::ClearRange { begin: begin.clone(), end: end.clone() });
        let rows = (0..self.len()).map(|place| match self.shared(place) {
            Some((key, value)) => Op::Set { key, value },
            None => Op::Clear { key: self.bytes.slice_ref(self.key(place)) },
        });
        clears.chain(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use occ::Random;

    fn key(random: &Random) -> Bytes {
        Bytes::from(format!("{:02}", random.next() % 40))
    }

    fn batch(random: &Random) -> Vec<Op> {
        let op = |_| match random.next() % 6 {
            0 => {
                let (one, other) = (key(random), key(random));
                Op::ClearRange { begin: one.clone().min(other.clone()), end: [&*one.max(other), b"\0"].concat().into() }
            }
            1 => Op::Clear { key: key(random) },
            _ => Op::Set { key: key(random), value: vec![7; (random.next() % 9) as usize].into() },
        };
        (0..random.next() % 12).map(op).collect()
    }

    fn write(model: &mut BTreeMap<Bytes, Bytes>, ops: &[Op]) {
        for op in ops.iter().cloned() {
            match op {
                Op::Set { key, value } => drop(model.insert(key, value)),
                Op::Clear { key } => drop(model.remove(&key)),
                Op::ClearRange { begin, end } => model.retain(|key, _| *key < begin || *key >= end),
            }
        }
    }

    /// Runs over each other, merged, read back, and turned into a batch again: all do what the batches do.
    #[test]
    fn runs_do_what_their_batches_do() {
        for seed in 0..400 {
            let random = Random::new(seed);
            let mut model = BTreeMap::new();
            let mut below = BTreeMap::new();
            write(&mut below, &batch(&random));
            model.extend(below.clone());
            let mut runs = Vec::new();
            for _ in 0..1 + random.next() % 40 {
                let ops = batch(&random);
                write(&mut model, &ops);
                runs.push(Arc::new(Draft::of(ops, 5).unwrap().run()));
            }
            let get = |runs: &[Arc<Run>], key: &Bytes| -> Option<Bytes> {
                for run in runs.iter().rev() {
                    if let Known::Value(value) = run.get(key) {
                        return value.map(Bytes::copy_from_slice);
                    }
                }
                below.get(key).cloned()
            };
            let merged = Run::merged(&runs).unwrap();
            let decoded = Arc::new(Run::decode(merged.bytes.clone()).unwrap());
            let mut batched = below.clone();
            write(&mut batched, &merged.ops());
            assert_eq!(batched, model, "seed {seed}");
            for n in 0..40 {
                let key = Bytes::from(format!("{n:02}"));
                assert_eq!(get(&runs, &key), model.get(&key).cloned(), "seed {seed}, {key:?}");
                assert_eq!(get(std::slice::from_ref(&decoded), &key), model.get(&key).cloned(), "seed {seed}, {key:?}");
            }
        }
    }

    #[test]
    fn what_is_no_run_is_an_error() {
        let ops = vec![
            Op::ClearRange { begin: Bytes::from_static(b"a"), end: Bytes::from_static(b"c") },
            Op::Set { key: Bytes::from_static(b"b"), value: Bytes::from_static(b"value") },
            Op::Clear { key: Bytes::from_static(b"d") },
        ];
        let run = Draft::of(ops, 0).unwrap().run();
        assert!(Run::decode(run.bytes.clone()).is_ok());
        for length in 0..run.bytes.len() {
            assert_eq!(Run::decode(run.bytes.slice(..length)).unwrap_err().code(), error::FILE_CORRUPT);
        }
        for at in 0..run.bytes.len() {
            for bit in 0..8 {
                let mut bytes = run.bytes.to_vec();
                bytes[at] ^= 1 << bit;
                // Another run or none: never a panic.
                if let Ok(other) = Run::decode(bytes.into()) {
                    other.ops();
                }
            }
        }
    }
}
