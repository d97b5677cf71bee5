//! The rows of a range of the tables of one moment.
//!
//! The runs are merged. Damage that a read meets is an error that names its place.

use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;

use kv_api::keys::key_after;
use kv_api::{Direction, Result};
use lsm_tree::{InternalValue, Slice, Table, UserKey};

use crate::damage::located;
use crate::error::{failed_to_read, is_damage};
use crate::tables::{BoxedRows, Tables};

/// Number of damaged blocks of a run that a clear goes past.
const MOST_SKIPPED: usize = 1_000;

impl Tables {
    /// The rows from `begin` up to, not including, `end`.
    pub(crate) fn range(self: &Arc<Self>, begin: &[u8], end: &[u8], direction: Direction) -> Rows {
        let far = match direction {
            Direction::Forward => Slice::from(end),
            Direction::Reverse => Slice::from(begin),
        };
        let sources = self.sources(begin, end, direction, Bounds::Near);
        let merged = Merged { far: Some(far), direction, ..Merged::over(sources) };
        let range = (Slice::from(begin), Slice::from(end));
        Rows { merged, range, last: None, bounds: Bounds::Near, tables: self.clone() }
    }

    /// The readable rows of the range, forward. Only for a caller that removes them.
    pub(crate) fn readable(self: &Arc<Self>, begin: &[u8], end: &[u8]) -> Rows {
        let mut rows = self.range(begin, end, Direction::Forward);
        rows.merged.skips_damage = true;
        rows
    }

    /// The rows of each run.
    fn sources(&self, begin: &[u8], end: &[u8], direction: Direction, bounds: Bounds) -> Vec<Source> {
        let (from, to) = (Slice::from(begin), Slice::from(end));
        let sources = self.levels().iter().flatten().filter_map(|run| {
            let from_begin = &run[run.partition_point(|member| member.last() < begin)..];
            let members = from_begin.iter().take_while(|member| member.first() < end);
            let members =
                members.filter(|member| member.prefixes.as_ref().is_none_or(|prefixes| prefixes.may_have(begin, end)));
            let mut tables: Vec<Table> = members.map(|member| member.reader().clone()).collect();
            if direction == Direction::Reverse {
                tables.reverse();
            }
            let (from, to) = (from.clone(), to.clone());
            let rows_of = move |table: Table| -> BoxedRows {
                match (bounds, direction) {
                    (Bounds::Both, _) => exact(&table, from.clone(), to.clone(), direction),
                    (_, Direction::Forward) => Box::new(table.range((Bound::Included(from.clone()), Bound::Unbounded))),
                    (_, Direction::Reverse) => {
                        Box::new(table.range((Bound::Unbounded, Bound::Excluded(to.clone()))).rev())
                    }
                }
            };
            let rows = match tables.pop()? {
                // Usually one table.
                table if tables.is_empty() => rows_of(table),
                table => {
                    tables.push(table);
                    Box::new(tables.into_iter().flat_map(rows_of))
                }
            };
            Some(Source::new(rows))
        });
        sources.collect()
    }
}

/// The bounds that tables search for. Searching for both before the first row costs more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bounds {
    /// The one at which a read begins.
    Near,
    Both,
}

/// The rows of a table in a range, without reading blocks that cannot have any. The index has only the last key of each
/// block, so it leads to a block beyond a bound, which may be damaged.
fn exact(table: &Table, from: UserKey, to: UserKey, direction: Direction) -> BoxedRows {
    let rows = table.range((Bound::Included(from.clone()), Bound::Excluded(to.clone())));
    let mut rows: BoxedRows = match direction {
        Direction::Forward => Box::new(rows),
        Direction::Reverse => Box::new(rows.rev()),
    };
    // No key is between a key and the same key with another NUL.
    let is_just_before_end = move |key: &[u8]| to.split_last() == Some((&0, key));
    let mut last: Option<UserKey> = None;
    Box::new(std::iter::from_fn(move || {
        let is_at_end = |last: &UserKey| match direction {
            Direction::Forward => is_just_before_end(last),
            Direction::Reverse => *last == from,
        };
        if last.as_ref().is_some_and(is_at_end) {
            return None;
        }
        let mut row = rows.next()?;
        if direction == Direction::Reverse && last.is_none() && row.as_ref().is_err_and(is_damage) {
            match rows.next() {
                Some(Ok(next)) if is_just_before_end(&next.key.user_key) => row = Ok(next),
                _ => {}
            }
        }
        if let Ok(row) = &row {
            last = Some(row.key.user_key.clone());
        }
        Some(row)
    }))
}

/// A run's rows in a range.
struct Source {
    rows: BoxedRows,
    /// The next row, once it has been read.
    head: Option<InternalValue>,
    ended: bool,
    /// Number of damaged blocks that may be skipped. Where an index is damaged, blocks have no end.
    most_skipped: usize,
}

impl Source {
    fn new(rows: BoxedRows) -> Self {
        Source { rows, head: None, ended: false, most_skipped: MOST_SKIPPED }
    }

    fn next_row(&mut self, skips_damage: bool) -> lsm_tree::Result<Option<InternalValue>> {
        loop {
            match self.rows.next() {
                Some(Err(failure)) if skips_damage && self.most_skipped > 0 && is_damage(&failure) => {
                    self.most_skipped -= 1;
                }
                row => return row.transpose(),
            }
        }
    }

    /// Reads the next row, up to the far end of the range.
    fn fill(&mut self, far: Option<&UserKey>, direction: Direction, skips_damage: bool) -> lsm_tree::Result<()> {
        if self.head.is_none() && !self.ended {
            let is_within = |row: &InternalValue| match direction {
                Direction::Forward => far.is_none_or(|end| row.key.user_key < *end),
                Direction::Reverse => far.is_none_or(|begin| row.key.user_key >= *begin),
            };
            self.head = self.next_row(skips_damage)?.filter(is_within);
            self.ended = self.head.is_none();
        }
        Ok(())
    }
}

/// The rows of several runs in key order: for each key the newest row or tombstone. Must not be used after an error.
pub(crate) struct Merged {
    /// Sources, newest first.
    sources: Vec<Source>,
    /// The end of the range, in its direction. Checked here: a table would search its index and a block for it
    /// before it returns the first row.
    far: Option<UserKey>,
    direction: Direction,
    /// Whether it continues after damaged blocks.
    skips_damage: bool,
    /// Whether the last row is in place of an older one.
    pub(crate) has_replaced: bool,
    /// The source of the last row, and the one whose head was next after it. Until the first passes the second, the others
    /// need not be looked at: the rows of a document come from one run.
    last: Option<(usize, Option<usize>)>,
}

impl Merged {
    /// All rows of runs, which come newest first.
    pub(crate) fn of(runs: impl Iterator<Item = BoxedRows>) -> Self {
        Merged::over(runs.map(Source::new).collect())
    }

    /// The rows of sources, which come newest first, forward to the end.
    fn over(sources: Vec<Source>) -> Self {
        let direction = Direction::Forward;
        Merged { sources, far: None, direction, skips_damage: false, has_replaced: false, last: None }
    }

    /// Whether a key comes before another one.
    fn is_before(&self, key: &UserKey, other: &UserKey) -> bool {
        match self.direction {
            Direction::Forward => key < other,
            Direction::Reverse => key > other,
        }
    }

    /// The next row of the source of the last one, if it comes before the heads of all others.
    fn next_of_last(&mut self) -> lsm_tree::Result<Option<InternalValue>> {
        let Some((at, second)) = self.last else { return Ok(None) };
        let source = &mut self.sources[at];
        source.fill(self.far.as_ref(), self.direction, self.skips_damage)?;
        let head = |at: usize| self.sources[at].head.as_ref().map(|head| &head.key.user_key);
        let is_first = match (head(at), second.and_then(head)) {
            (Some(key), Some(other)) => self.is_before(key, other),
            (Some(_), None) => second.is_none(),
            (None, _) => false,
        };
        Ok(if is_first { self.sources[at].head.take() } else { None })
    }

    pub(crate) fn next(&mut self) -> lsm_tree::Result<Option<InternalValue>> {
        if let Some(row) = self.next_of_last()? {
            self.has_replaced = false;
            return Ok(Some(row));
        }
        for source in &mut self.sources {
            source.fill(self.far.as_ref(), self.direction, self.skips_damage)?;
        }
        let mut first: Option<(usize, &UserKey)> = None;
        let mut second = None;
        for (at, source) in self.sources.iter().enumerate() {
            let Some(head) = &source.head else { continue };
            let key = &head.key.user_key;
            let is_before =
                |other: Option<(usize, &UserKey)>| other.is_none_or(|(_, other)| self.is_before(key, other));
            if is_before(first) {
                (first, second) = (Some((at, key)), first);
            } else if is_before(second) {
                second = Some((at, key));
            }
        }
        self.last = first.map(|(at, _)| (at, second.map(|(at, _)| at)));
        let Some((at, _)) = self.last else { return Ok(None) };
        let row = self.sources[at].head.take();
        if let Some(row) = &row {
            // Skip the key in older runs.
            self.has_replaced = false;
            for source in &mut self.sources[at + 1..] {
                let older = source.head.take_if(|head| head.key.user_key == row.key.user_key);
                self.has_replaced |= older.is_some_and(|older| !older.is_tombstone());
            }
        }
        Ok(row)
    }
}

/// The rows of a range of [`Tables`]. Must not be used after an error.
pub(crate) struct Rows {
    merged: Merged,
    range: (UserKey, UserKey),
    /// The key of the last row, or tombstone.
    last: Option<UserKey>,
    bounds: Bounds,
    /// A table's iterator opens the file at its first read, and does not keep the table alive.
    tables: Arc<Tables>,
}

impl Rows {
    /// Handles a failed read. First it reads the rest once more, with both bounds: the failed block may be beyond them.
    fn failed(&mut self, failure: lsm_tree::Error) -> Result<()> {
        let (direction, (mut begin, mut end)) = (self.merged.direction, self.range.clone());
        match (direction, &self.last) {
            (Direction::Forward, Some(last)) => begin = Slice::from(&*key_after(last)),
            (Direction::Reverse, Some(last)) => end = last.clone(),
            (_, None) => {}
        }
        let is_first = std::mem::replace(&mut self.bounds, Bounds::Both) == Bounds::Near;
        self.merged.last = None;
        self.merged.sources = match is_first && is_damage(&failure) {
            true => self.tables.sources(&begin, &end, direction, Bounds::Both),
            false => return Err(located(failed_to_read(failure), &self.tables, &begin, &end, direction)),
        };
        Ok(())
    }
}

impl Iterator for Rows {
    type Item = Result<(UserKey, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.merged.next() {
                Ok(row) => {
                    let row = row?;
                    self.last = Some(row.key.user_key.clone());
                    if !row.is_tombstone() {
                        return Some(Ok((row.key.user_key, row.value)));
                    }
                }
                Err(failure) => {
                    if let Err(error) = self.failed(failure) {
                        self.merged.sources.clear();
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

impl FusedIterator for Rows {}
