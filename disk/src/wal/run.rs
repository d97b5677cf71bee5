//! A run: sorted changes in one piece of memory. The log holds the same bytes, or [packs](super::pack) them.
//!
//! ```text
//!   clears  rows │ clear: begin, end … │ row: key length, value length, key, value … in key order
//!   ───── 4 bytes big-endian each ─────                 └ ABSENT: the key is removed
//! ```
//!
//! A run clears ranges first, then writes rows. So one search in a run tells what it does to a key, and two
//! runs merge into one.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Error, Result, error};

use occ::store::Batch;
use occ::{KeyRange, RangeSet};

use super::pack::packed;
use super::row::{ABSENT, ROW_HEAD};

/// Largest number of runs merged at once. A merge looks at every run for each row.
const MAX_MERGED: usize = 16;

/// A run with large rows is bulky from this size on.
const BULKY_RUN: usize = 1 << 20;

/// Rows are large from this mean size on.
const LARGE_ROW: usize = 16 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Run {
    bytes: Bytes,
    /// The offset of each row.
    rows: Vec<u32>,
    clears: RangeSet,
}

/// What a run does to a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InRun<'r> {
    /// Nothing: older runs or the store below decide.
    Nothing,
    /// It sets the key to a value, or removes it.
    Value(Option<&'r [u8]>),
}

/// A run that is being written, after a number of zero bytes that the caller asked for.
#[derive(Debug)]
pub(crate) struct RunBuilder {
    pub(crate) bytes: Vec<u8>,
    rows: Vec<u32>,
    clears: RangeSet,
    /// Offset of the two counts.
    head: usize,
}

impl RunBuilder {
    /// The run of a batch.
    pub(crate) fn of(batch: &Batch, head: usize) -> Result<Self> {
        let size = batch.rows().map(|(key, value)| ROW_HEAD + key.len() + value.map_or(0, Bytes::len)).sum();
        let mut run = RunBuilder::begin(batch.clears().clone(), head, size, batch.row_count());
        for (key, value) in batch.rows() {
            run.push(key, value.map(Bytes::as_ref))?;
        }
        run.finish()
    }

    fn begin(clears: RangeSet, head: usize, size: usize, rows: usize) -> Self {
        let cleared: usize = clears.iter().map(|(begin, end)| begin.len() + end.len() + 8).sum();
        let mut bytes = Vec::with_capacity(head + 8 + cleared + size);
        bytes.resize(head + 8, 0);
        for key in clears.iter().flat_map(|(begin, end)| [begin, end]) {
            bytes.extend_from_slice(&(key.len() as u32).to_be_bytes());
            bytes.extend_from_slice(key);
        }
        RunBuilder { bytes, rows: Vec::with_capacity(rows), clears, head }
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

    /// Copies rows of another run.
    fn copy(&mut self, run: &Run, places: std::ops::Range<usize>) {
        let (from, to) = (run.offset(places.start), run.offset(places.end));
        let here = self.bytes.len() as u32;
        self.rows.extend(run.rows[places].iter().map(|row| here + (row - from as u32)));
        self.bytes.extend_from_slice(&run.bytes[from..to]);
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

    /// The [packed](super::pack) run, after as many zeros. `None` if the record has the run unpacked.
    pub(crate) fn packed(&self) -> Option<Vec<u8>> {
        // Keys of large rows are a small part of the run: packing would only copy it.
        let are_large = self.bytes.len() / self.rows.len().max(1) >= LARGE_ROW;
        if are_large { None } else { packed(&self.bytes, self.head, &self.rows) }
    }

    /// The finished run.
    pub(crate) fn run(self) -> Run {
        Run { bytes: self.bytes.into(), rows: self.rows, clears: self.clears }
    }
}

fn too_large() -> Error {
    Error::new(error::TRANSACTION_TOO_LARGE).with_context("a batch of commits takes more than 4 GiB")
}

impl Run {
    /// Reads a run; 1522 if `bytes` do not hold one.
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

    /// Merges runs, oldest first, into one with the same effect.
    pub(crate) fn merged(runs: &[Arc<Run>]) -> Result<Run> {
        if runs.len() > MAX_MERGED {
            let merged: Result<Vec<Arc<Run>>> =
                runs.chunks(MAX_MERGED).map(|part| Run::merged(part).map(Arc::new)).collect();
            return Run::merged(&merged?);
        }
        let (size, rows) =
            runs.iter().fold((0, 0), |(size, rows), run| (size + run.bytes.len(), rows + run.rows.len()));
        let mut merged = RunBuilder::begin(Run::all_clears(runs), 0, size, rows);
        Run::merge(runs, |run, places| merged.copy(run, places));
        Ok(merged.finish()?.run())
    }

    /// The batch with the effect of these runs, oldest first. It shares their memory, except that of small rows in very
    /// many runs.
    pub(crate) fn batch_of(runs: &[Arc<Run>], version: i64) -> Result<Batch> {
        if runs.len() > MAX_MERGED && runs.iter().any(|run| !run.is_bulky()) {
            // Bulky runs have few rows, so that a merge may look at many of them for each row.
            let parts = runs.chunk_by(|one, other| !one.is_bulky() && !other.is_bulky());
            let merged: Result<Vec<Arc<Run>>> = parts
                .map(|part| match part {
                    [run] => Ok(run.clone()),
                    part => Run::merged(part).map(Arc::new),
                })
                .collect();
            return Ok(Run::batch_of_merged(&merged?, version));
        }
        Ok(Run::batch_of_merged(runs, version))
    }

    fn batch_of_merged(runs: &[Arc<Run>], version: i64) -> Batch {
        let mut batch = Batch::of_parts(version, Run::all_clears(runs), []);
        Run::merge(runs, |run, places| {
            for place in places {
                match run.row_bytes(place) {
                    Some((key, value)) => batch.set(key, value),
                    None => batch.clear(run.bytes.slice_ref(run.key(place))),
                }
            }
        });
        batch
    }

    fn all_clears(runs: &[Arc<Run>]) -> RangeSet {
        let mut clears = RangeSet::default();
        for (begin, end) in runs.iter().flat_map(|run| run.clears.iter()) {
            clears.insert(KeyRange { begin: begin.clone(), end: end.clone() });
        }
        clears
    }

    /// Gives `take` the rows of all runs in key order: a run, and the places of consecutive rows of it. For each key
    /// the newest run's row counts. Rows that a newer run clears are left out.
    fn merge(runs: &[Arc<Run>], mut take: impl FnMut(&Run, std::ops::Range<usize>)) {
        let last_clear = runs.iter().rposition(|run| !run.clears.is_empty());
        let mut places = vec![0; runs.len()];
        let mut heads: Vec<Option<&[u8]>> = runs.iter().map(|run| run.key_at(0)).collect();
        loop {
            // The newest run among those with the least key, and the least key of the others.
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
                        take(run, place..place + 1);
                    }
                }
            } else {
                take(run, from..to);
            }
            places[newest] = to;
            for (at, head) in heads.iter_mut().enumerate() {
                *head = runs[at].key_at(places[at]);
            }
        }
    }

    /// Number of rows, removals included.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The memory of a run that was built, with what the caller asked for before it.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Bytes of memory, without the clears.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.rows.len() * 4
    }

    /// Whether the run has much memory and few rows, such as parts of attachments. Such runs are not merged in memory:
    /// a merge would copy much and save little searching.
    pub(crate) fn is_bulky(&self) -> bool {
        self.size() >= BULKY_RUN && self.size() / self.len().max(1) >= LARGE_ROW
    }

    /// The cleared ranges.
    pub(crate) fn cleared(&self) -> &RangeSet {
        &self.clears
    }

    /// Whether the run clears `key`.
    pub(crate) fn clears(&self, key: &[u8]) -> bool {
        !self.clears.is_empty() && self.clears.contains(key)
    }

    fn number(&self, at: usize) -> u32 {
        self.bytes[at..].first_chunk::<4>().map_or(0, |four| u32::from_be_bytes(*four))
    }

    /// The bytes of a row, with its lengths. `place` is below [`len`](Self::len).
    fn row(&self, place: usize) -> &[u8] {
        let end = self.rows.get(place + 1).map_or(self.bytes.len(), |end| *end as usize);
        &self.bytes[self.rows[place] as usize..end]
    }

    /// The key of a row. `place` is below [`len`](Self::len).
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

    /// The value of a row, or `None` for a removal. `place` is below [`len`](Self::len).
    pub(crate) fn value(&self, place: usize) -> Option<&[u8]> {
        let row = self.row(place);
        (!self.is_absent(place)).then(|| &row[ROW_HEAD + self.key(place).len()..])
    }

    /// The key and value of a row, sharing the run's memory; `None` for a removal.
    pub(crate) fn row_bytes(&self, place: usize) -> Option<(Bytes, Bytes)> {
        let start = self.rows[place] as usize + ROW_HEAD;
        let end = start + self.key(place).len();
        let value = self.value(place)?;
        Some((self.bytes.slice(start..end), self.bytes.slice(end..end + value.len())))
    }

    /// Where a row begins; the end of the run after the last one.
    fn offset(&self, place: usize) -> usize {
        self.rows.get(place).map_or(self.bytes.len(), |at| *at as usize)
    }

    /// Bytes of the rows between two keys.
    pub(crate) fn bytes_between(&self, begin: &[u8], end: &[u8]) -> u64 {
        self.offset(self.before(end)).saturating_sub(self.offset(self.before(begin))) as u64
    }

    /// Number of rows before `key`.
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

    /// What the run does to a key.
    pub(crate) fn get(&self, key: &[u8]) -> InRun<'_> {
        let place = self.before(key);
        if place < self.len() && self.key(place) == key {
            return InRun::Value(self.value(place));
        }
        if self.clears(key) { InRun::Value(None) } else { InRun::Nothing }
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

    fn batch(random: &Random) -> Batch {
        let mut batch = Batch::new(1);
        for _ in 0..random.next() % 12 {
            match random.next() % 6 {
                0 => {
                    let (one, other) = (key(random), key(random));
                    let begin = one.clone().min(other.clone());
                    batch.clear_range(KeyRange { begin, end: [&*one.max(other), b"\0"].concat().into() });
                }
                1 => batch.clear(key(random)),
                _ => batch.set(key(random), vec![7; (random.next() % 9) as usize].into()),
            }
        }
        batch
    }

    /// Runs, merged, decoded, and turned into a batch again: all have the effect of their batches.
    #[test]
    fn runs_do_what_their_batches_do() {
        for seed in 0..400 {
            let random = Random::new(seed);
            let mut model = BTreeMap::new();
            let mut below = BTreeMap::new();
            batch(&random).apply_to(&mut below);
            model.extend(below.clone());
            let mut runs = Vec::new();
            for _ in 0..1 + random.next() % 40 {
                let batch = batch(&random);
                runs.push(Arc::new(RunBuilder::of(&batch, 5).unwrap().run()));
                batch.apply_to(&mut model);
            }
            let get = |runs: &[Arc<Run>], key: &Bytes| -> Option<Bytes> {
                for run in runs.iter().rev() {
                    if let InRun::Value(value) = run.get(key) {
                        return value.map(Bytes::copy_from_slice);
                    }
                }
                below.get(key).cloned()
            };
            let merged = Run::merged(&runs).unwrap();
            let decoded = Arc::new(Run::decode(merged.bytes.clone()).unwrap());
            let mut batched = below.clone();
            Run::batch_of(&[Arc::new(merged)], 1).unwrap().apply_to(&mut batched);
            assert_eq!(batched, model, "seed {seed}");
            let mut batched = below.clone();
            Run::batch_of(&runs, 1).unwrap().apply_to(&mut batched);
            assert_eq!(batched, model, "seed {seed}");
            for n in 0..40 {
                let key = Bytes::from(format!("{n:02}"));
                assert_eq!(get(&runs, &key), model.get(&key).cloned(), "seed {seed}, {key:?}");
                assert_eq!(get(std::slice::from_ref(&decoded), &key), model.get(&key).cloned(), "seed {seed}, {key:?}");
            }
        }
    }

    /// Bulky runs have few rows in much memory. Among many others they are not copied.
    #[test]
    fn a_batch_shares_the_memory_of_bulky_runs() {
        for seed in 0..3 {
            let random = Random::new(seed);
            let mut model = BTreeMap::new();
            let mut runs = Vec::new();
            for n in 0..2 * MAX_MERGED {
                let mut batch = batch(&random);
                if n % 5 == 0 {
                    batch = Batch::new(1);
                    batch.clear(key(&random));
                    batch.set(key(&random), vec![n as u8; BULKY_RUN].into());
                }
                let run = RunBuilder::of(&batch, 5).unwrap().run();
                assert_eq!(run.is_bulky(), n % 5 == 0);
                runs.push(Arc::new(run));
                batch.apply_to(&mut model);
            }
            let batch = Run::batch_of(&runs, 1).unwrap();
            let mut batched = BTreeMap::new();
            batch.clone().apply_to(&mut batched);
            assert_eq!(batched, model, "seed {seed}");
            for (_, value) in batch.rows().filter(|(_, value)| value.is_some_and(|value| value.len() == BULKY_RUN)) {
                let value = value.unwrap().as_ptr_range();
                let of_run = |run: &Arc<Run>| run.bytes.as_ptr_range().contains(&value.start);
                assert!(runs.iter().any(of_run), "copied, seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_no_run_is_an_error() {
        let mut batch = Batch::new(1);
        batch.clear_range(KeyRange::copied(b"a", b"c"));
        batch.set(Bytes::from_static(b"b"), Bytes::from_static(b"value"));
        batch.clear(Bytes::from_static(b"d"));
        let run = RunBuilder::of(&batch, 0).unwrap().run();
        assert!(Run::decode(run.bytes.clone()).is_ok());
        for length in 0..run.bytes.len() {
            assert_eq!(Run::decode(run.bytes.slice(..length)).unwrap_err().code(), error::FILE_CORRUPT);
        }
        for at in 0..run.bytes.len() {
            for bit in 0..8 {
                let mut bytes = run.bytes.to_vec();
                bytes[at] ^= 1 << bit;
                // It decodes to another run or fails. It never panics.
                if let Ok(other) = Run::decode(bytes.into()) {
                    drop(Run::batch_of(&[Arc::new(other)], 1));
                }
            }
        }
    }
}
