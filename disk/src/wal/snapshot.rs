//! A snapshot of runs over a snapshot of the store below.
//!
//! ```text
//!   runs, newest first     b=2        e=–                 a row wins over older ones, and
//!                               ├─ cleared ─┤             a clear hides what is older
//!   the store below    a=1 b=1 c=1 d=1 e=1 f=1
//!   read               a=1 b=2 c=1         f=1
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Direction, Result};

use super::run::{InRun, Run};
use crate::clears::uncovered;
use occ::store::Snapshot;
use occ::{KeyRange, RangeSet};

/// A snapshot of a [`WalStore`](super::WalStore).
#[derive(Clone, Debug)]
pub struct WalSnapshot<V> {
    /// All runs, oldest first.
    pub(super) runs: Arc<[Arc<Run>]>,
    pub(super) below: V,
    /// Version of the newest batch.
    pub(super) version: i64,
    /// Number of flushes before this snapshot was taken.
    pub(super) flushes: u64,
}

impl<V: Snapshot> Snapshot for WalSnapshot<V> {
    type Range<'a> = WalRange<'a, V>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        for run in self.runs.iter().rev() {
            if let InRun::Value(value) = run.get(key) {
                // Copied: a kept value should not keep its large run in memory.
                return Ok(value.map(Bytes::copy_from_slice));
            }
        }
        self.below.get(key)
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> WalRange<'a, V> {
        let sources = self.sources(begin, end);
        match sources.is_empty() {
            true => WalRange(Rows::Below(self.below.range(begin, end, direction))),
            false => self.merged(sources, begin, end, direction),
        }
    }
}

impl<V: Snapshot> WalSnapshot<V> {
    /// The runs that have rows or clears in a range, newest first.
    fn sources<'a>(&'a self, begin: &[u8], end: &[u8]) -> Vec<Source<'a>> {
        self.runs.iter().rev().filter_map(|run| Source::of(run, begin, end)).collect()
    }

    fn merged<'a>(
        &'a self,
        sources: Vec<Source<'a>>,
        begin: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> WalRange<'a, V> {
        let mut cleared = RangeSet::default();
        for (begin, end) in sources.iter().flat_map(|source| source.run.cleared().overlapping(begin, end)) {
            cleared.insert(KeyRange { begin: begin.clone(), end: end.clone() });
        }
        let parts = uncovered(&cleared, begin, end).into();
        let below = Below { snapshot: &self.below, parts, rows: None, direction };
        WalRange(Rows::Merged(Box::new(Merged { sources, below, head: None, direction })))
    }
}

/// Rows of a [`WalSnapshot`].
#[derive(Debug)]
pub struct WalRange<'a, V: Snapshot>(Rows<'a, V>);

enum Rows<'a, V: Snapshot> {
    /// No run has anything in the range.
    Below(V::Range<'a>),
    Merged(Box<Merged<'a, V>>),
}

impl<V: Snapshot> std::fmt::Debug for Rows<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

impl<V: Snapshot> Iterator for WalRange<'_, V> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Rows::Below(rows) => rows.next(),
            Rows::Merged(merged) => merged.next(),
        }
    }
}

/// The remaining rows of a run in the range.
struct Source<'a> {
    run: &'a Run,
    from: usize,
    to: usize,
    /// Whether the run clears a part of the range.
    clears: bool,
}

impl<'a> Source<'a> {
    /// `None` if the run has nothing in the range.
    fn of(run: &'a Run, begin: &[u8], end: &[u8]) -> Option<Self> {
        let clears = !run.cleared().is_empty() && run.cleared().intersects(begin, end);
        let from = run.before(begin);
        let to = match from < run.len() && run.key(from) < end {
            true => run.before(end),
            false => from,
        };
        (clears || from < to).then_some(Source { run, from, to, clears })
    }

    /// Place of the next row.
    fn next(&self, direction: Direction) -> Option<usize> {
        let place = match direction {
            Direction::Forward => self.from,
            Direction::Reverse => self.to.checked_sub(1)?,
        };
        (self.from..self.to).contains(&place).then_some(place)
    }

    fn advance(&mut self, direction: Direction) {
        match direction {
            Direction::Forward => self.from += 1,
            Direction::Reverse => self.to -= 1,
        }
    }
}

/// Rows of the store below, in the parts of the range that no run clears.
struct Below<'a, V: Snapshot> {
    snapshot: &'a V,
    parts: VecDeque<KeyRange>,
    rows: Option<V::Range<'a>>,
    direction: Direction,
}

impl<V: Snapshot> Iterator for Below<'_, V> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.as_mut().and_then(Iterator::next) {
                return Some(row);
            }
            let part = match self.direction {
                Direction::Forward => self.parts.pop_front()?,
                Direction::Reverse => self.parts.pop_back()?,
            };
            self.rows = Some(self.snapshot.range(&part.begin, &part.end, self.direction));
        }
    }
}

struct Merged<'a, V: Snapshot> {
    /// Newest first.
    sources: Vec<Source<'a>>,
    below: Below<'a, V>,
    /// The next row of the store below, once it was read.
    head: Option<Option<(Bytes, Bytes)>>,
    direction: Direction,
}

impl<V: Snapshot> Merged<'_, V> {
    fn next(&mut self) -> Option<Result<(Bytes, Bytes)>> {
        let direction = self.direction;
        let before = |one: &[u8], other: &[u8]| match direction {
            Direction::Forward => one < other,
            Direction::Reverse => one > other,
        };
        loop {
            if self.head.is_none() {
                self.head = Some(match self.below.next().transpose() {
                    Ok(row) => row,
                    Err(error) => return Some(Err(error)),
                });
            }
            let mut first: Option<(usize, &[u8])> = None;
            for (at, source) in self.sources.iter().enumerate() {
                if let Some(place) = source.next(direction) {
                    let key = source.run.key(place);
                    if first.is_none_or(|(_, first)| before(key, first)) {
                        first = Some((at, key));
                    }
                }
            }
            let below = self.head.as_ref().and_then(Option::as_ref);
            let (newest, key) = match (first, below) {
                (None, None) => return None,
                (Some((_, key)), Some((row, _))) if before(row, key) => return self.head.take().flatten().map(Ok),
                (None, Some(_)) => return self.head.take().flatten().map(Ok),
                (Some((newest, key)), below) => {
                    if below.is_some_and(|(row, _)| row == key) {
                        self.head = None;
                    }
                    (newest, key)
                }
            };
            let hidden = self.sources[..newest].iter().any(|source| source.clears && source.run.clears(key));
            let source = &self.sources[newest];
            let row = source.next(direction).filter(|_| !hidden).and_then(|place| source.run.row_bytes(place));
            for source in &mut self.sources[newest..] {
                if source.next(direction).is_some_and(|place| source.run.key(place) == key) {
                    source.advance(direction);
                }
            }
            if row.is_some() {
                return row.map(Ok);
            }
        }
    }
}
