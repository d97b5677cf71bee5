//! The tables of one moment, and reads from them.
//!
//! ```text
//!   runs, newest first   │ flush   │  │ flush   │        these overlap
//!                        │ table │ table │ table │       level 1: disjoint tables
//!                        │ table │ table │ table │ …     level 2, ten times as large
//! ```
//!
//! The newest run that has a key decides; a tombstone means that the key is absent. A table never changes, and its
//! file stays as long as anyone holds the table. So a set of tables is a snapshot without sequence numbers: each
//! run has a key at most once.

use std::collections::HashMap;
use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;

use kv_api::Direction;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{AbstractTree, AnyTree, InternalValue, SeqNo, Slice, Table, UserKey};

use crate::aside::{Aside, AsideTable};
use crate::prefixes::Prefixes;

/// See the [module](self).
pub(crate) struct Tables {
    /// Newest first. The tables of a run are in key order and disjoint.
    runs: Vec<Vec<Member>>,
}

/// A table of a run.
struct Member {
    table: Table,
    /// The filter of a flushed table.
    prefixes: Option<Arc<Prefixes>>,
    /// The handle past the cache of a table of large rows.
    aside: Option<Arc<AsideTable>>,
}

/// Filters of tables, by the numbers in their file names.
pub(crate) type ByNumber = HashMap<u64, Arc<Prefixes>>;

impl Tables {
    /// The current tables of `tree`.
    pub(crate) fn of(tree: &AnyTree, prefixes: &ByNumber, aside: &mut Aside) -> Self {
        let version = tree.current_version();
        let mut member = |table: &Table| Member {
            table: table.clone(),
            prefixes: prefixes.get(&table.id()).cloned(),
            aside: aside.of(table),
        };
        let runs = version.iter_levels().flat_map(|level| level.iter());
        Tables { runs: runs.map(|run| run.iter().map(&mut member).collect()).collect() }
    }

    /// The numbers in their file names.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flatten().map(|member| member.table.id())
    }

    pub(crate) fn get(&self, key: &[u8]) -> lsm_tree::Result<Option<Slice>> {
        let hash = Builder::get_hash(key);
        for run in &self.runs {
            let Some(member) = run.get(run.partition_point(|member| member.last() < key)) else { continue };
            if member.first() > key {
                continue;
            }
            if let Some(row) = member.reader().get(key, SeqNo::MAX, hash)? {
                return Ok((!row.is_tombstone()).then_some(row.value));
            }
        }
        Ok(None)
    }

    /// The rows from `begin` up to, not including, `end`.
    pub(crate) fn range(self: &Arc<Self>, begin: &[u8], end: &[u8], direction: Direction) -> Rows {
        let (from, to) = (Slice::from(begin), Slice::from(end));
        let sources = self.runs.iter().filter_map(|run| {
            let members =
                run.partition_point(|member| member.last() < begin)..run.partition_point(|member| member.first() < end);
            let members = run.get(members)?.iter();
            let members =
                members.filter(|member| member.prefixes.as_ref().is_none_or(|prefixes| prefixes.may_have(begin, end)));
            let mut tables: Vec<Table> = members.map(|member| member.reader().clone()).collect();
            let bounds = match direction {
                Direction::Forward => (Bound::Included(from.clone()), Bound::Unbounded),
                Direction::Reverse => (Bound::Unbounded, Bound::Excluded(to.clone())),
            };
            let rows: BoxedRows = match tables.pop()? {
                // Usually one table.
                table if tables.is_empty() => Box::new(table.range(bounds)),
                table => {
                    tables.push(table);
                    Box::new(tables.into_iter().flat_map(move |table| table.range(bounds.clone())))
                }
            };
            Some(Source { rows, head: None, ended: false })
        });
        let far = match direction {
            Direction::Forward => to.clone(),
            Direction::Reverse => from.clone(),
        };
        Rows { sources: sources.collect(), far, direction, _tables: self.clone() }
    }
}

impl Member {
    /// The handle that is read.
    fn reader(&self) -> &Table {
        self.aside.as_ref().map_or(&self.table, |aside| &aside.table)
    }

    fn first(&self) -> &[u8] {
        self.table.metadata.key_range.min()
    }

    fn last(&self) -> &[u8] {
        self.table.metadata.key_range.max()
    }
}

type BoxedRows = Box<dyn DoubleEndedIterator<Item = lsm_tree::Result<InternalValue>> + Send>;

/// A run's rows in a range.
struct Source {
    rows: BoxedRows,
    /// The next row, once it has been read.
    head: Option<InternalValue>,
    ended: bool,
}

impl Source {
    /// Reads the next row, up to the far end of the range.
    fn fill(&mut self, far: &UserKey, direction: Direction) -> lsm_tree::Result<()> {
        if self.head.is_none() && !self.ended {
            let (next, is_within): (_, fn(&UserKey, &UserKey) -> bool) = match direction {
                Direction::Forward => (self.rows.next(), |key, end| key < end),
                Direction::Reverse => (self.rows.next_back(), |key, begin| key >= begin),
            };
            self.head = next.transpose()?.filter(|row| is_within(&row.key.user_key, far));
            self.ended = self.head.is_none();
        }
        Ok(())
    }
}

/// Merged rows of [`Tables`]. Must not be used after an error.
pub(crate) struct Rows {
    /// Sources, newest first.
    sources: Vec<Source>,
    /// The end of the range, in its direction. Checked here: a table would search its index and a block for it
    /// before it returns the first row.
    far: UserKey,
    direction: Direction,
    /// A table's iterator opens the file at its first read, and does not keep the table alive.
    _tables: Arc<Tables>,
}

impl Rows {
    fn next_or_tombstone(&mut self) -> lsm_tree::Result<Option<InternalValue>> {
        for source in &mut self.sources {
            source.fill(&self.far, self.direction)?;
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
            // Skip the key in older runs.
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
