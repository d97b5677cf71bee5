//! The tables of one moment, and reads of them.
//!
//! ```text
//!   runs, newest first   │ a flush │  │ a flush │        they overlap
//!                        │ table │ table │ table │       level 1: its tables do not
//!                        │ table │ table │ table │ …     level 2, ten times as large
//! ```
//!
//! Of a key the newest run that has it decides; a tombstone there means that it is absent. A table never changes, and
//! its file stays as long as anyone holds the table. So these are a snapshot without sequence numbers: a run
//! has each key once, whatever was merged since.

use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;

use kv_api::Direction;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{AbstractTree, AnyTree, InternalValue, SeqNo, Slice, Table, UserKey};

/// See the [module](self).
pub(crate) struct Tables {
    /// Newest first. The tables of a run are in key order and do not overlap.
    runs: Vec<Vec<Table>>,
}

impl Tables {
    /// The tables that `tree` has now.
    pub(crate) fn of(tree: &AnyTree) -> Self {
        let version = tree.current_version();
        Tables { runs: version.iter_levels().flat_map(|level| level.iter()).map(|run| run.to_vec()).collect() }
    }

    /// The numbers in the names of their files.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flatten().map(Table::id)
    }

    pub(crate) fn get(&self, key: &[u8]) -> lsm_tree::Result<Option<Slice>> {
        let hash = Builder::get_hash(key);
        for run in &self.runs {
            let Some(table) = run.get(run.partition_point(|table| last(table) < key)) else { continue };
            if first(table) > key {
                continue;
            }
            if let Some(row) = table.get(key, SeqNo::MAX, hash)? {
                return Ok((!row.is_tombstone()).then_some(row.value));
            }
        }
        Ok(None)
    }

    /// The rows from `begin` up to, not including, `end`.
    pub(crate) fn range(self: &Arc<Self>, begin: &[u8], end: &[u8], direction: Direction) -> Rows {
        let (from, to) = (Slice::from(begin), Slice::from(end));
        let sources = self.runs.iter().filter_map(|run| {
            let tables =
                run.partition_point(|table| last(table) < begin)..run.partition_point(|table| first(table) < end);
            let mut tables = run.get(tables)?.to_vec();
            let bounds = (Bound::Included(from.clone()), Bound::Excluded(to.clone()));
            let rows: BoxedRows = match tables.pop()? {
                // One table, as a rule.
                table if tables.is_empty() => Box::new(table.range(bounds)),
                table => {
                    tables.push(table);
                    Box::new(tables.into_iter().flat_map(move |table| table.range(bounds.clone())))
                }
            };
            Some(Source { rows, head: None, ended: false })
        });
        Rows { sources: sources.collect(), direction, _tables: self.clone() }
    }
}

fn first(table: &Table) -> &[u8] {
    table.metadata.key_range.min()
}

fn last(table: &Table) -> &[u8] {
    table.metadata.key_range.max()
}

type BoxedRows = Box<dyn DoubleEndedIterator<Item = lsm_tree::Result<InternalValue>> + Send>;

/// A run's rows in a range.
struct Source {
    rows: BoxedRows,
    /// The next row, once it was asked for.
    head: Option<InternalValue>,
    ended: bool,
}

impl Source {
    fn fill(&mut self, direction: Direction) -> lsm_tree::Result<()> {
        if self.head.is_none() && !self.ended {
            let next = match direction {
                Direction::Forward => self.rows.next(),
                Direction::Reverse => self.rows.next_back(),
            };
            self.head = next.transpose()?;
            self.ended = self.head.is_none();
        }
        Ok(())
    }
}

/// Rows of [`Tables`], merged. Nothing may be asked of it after an error.
pub(crate) struct Rows {
    /// Newest first.
    sources: Vec<Source>,
    direction: Direction,
    /// A table's own iterator opens its file when it first reads, and does not keep it.
    _tables: Arc<Tables>,
}

impl Rows {
    fn next_or_tombstone(&mut self) -> lsm_tree::Result<Option<InternalValue>> {
        for source in &mut self.sources {
            source.fill(self.direction)?;
        }
        let mut chosen: Option<(usize, &UserKey)> = None;
        for (at, source) in self.sources.iter().enumerate() {
            let Some(head) = &source.head else { continue };
            let key = &head.key.user_key;
            let is_before = |other: &UserKey| match self.direction {
                Direction::Forward => key < other,
                Direction::Reverse => key > other,
            };
            if chosen.is_none_or(|(_, other)| is_before(other)) {
                chosen = Some((at, key));
            }
        }
        let Some((at, _)) = chosen else { return Ok(None) };
        let row = self.sources[at].head.take();
        if let Some(row) = &row {
            // What older runs have of the key.
            for source in &mut self.sources[at + 1..] {
                source.head.take_if(|head| head.key.user_key == row.key.user_key);
            }
        }
        Ok(row)
    }
}

impl Iterator for Rows {
    type Item = lsm_tree::Result<(UserKey, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_or_tombstone().transpose()? {
                Ok(row) if row.is_tombstone() => {}
                Ok(row) => return Some(Ok((row.key.user_key, row.value))),
                Err(failure) => {
                    self.sources.clear();
                    return Some(Err(failure));
                }
            }
        }
    }
}

impl FusedIterator for Rows {}
