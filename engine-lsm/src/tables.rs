//! The tables of one moment, and reads from them.
//!
//! ```text
//!   level 0, newest first   │ flush   │  │ flush   │        these overlap
//!   level 1                 │ table │ table │ table │       disjoint tables
//!   level 2                 │ table │ table │ table │ …     ten times as large
//! ```
//!
//! The newest run that has a key decides; a tombstone means that the key is absent. A table never changes, and its
//! file stays as long as anyone holds the table. So a set of tables is a snapshot without sequence numbers: each
//! run has a key at most once.

use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kv_api::Direction;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{InternalValue, SeqNo, Slice, Table, UserKey};

use crate::aside::AsideTable;
use crate::prefixes::Prefixes;

/// Number of levels, as in every folder of `lsm-tree`.
pub(crate) const LEVELS: usize = 7;

/// The last level. Nothing is below it.
pub(crate) const LAST: usize = LEVELS - 1;

/// Tables in key order, which are disjoint.
pub(crate) type Run = Vec<Arc<Member>>;

/// See the [module](self).
#[derive(Clone, Default)]
pub(crate) struct Tables {
    /// The runs of each level, newest first. Below level 0 there is one run at most.
    levels: [Vec<Run>; LEVELS],
}

/// A table of a run.
pub(crate) struct Member {
    pub(crate) table: Table,
    /// The filter of a flushed table.
    prefixes: Option<Arc<Prefixes>>,
    /// The handle past the cache of a table of large rows.
    aside: Option<Arc<AsideTable>>,
}

impl Member {
    pub(crate) fn new(table: Table, prefixes: Option<Arc<Prefixes>>, aside: Option<AsideTable>) -> Self {
        Member { table, prefixes, aside: aside.map(Arc::new) }
    }

    /// The same table without the filter, which takes memory and is of use in level 0 only.
    pub(crate) fn without_prefixes(&self) -> Self {
        Member { table: self.table.clone(), prefixes: None, aside: self.aside.clone() }
    }

    /// Its file is deleted when nobody holds the table any more.
    pub(crate) fn delete(&self) {
        self.table.is_deleted.store(true, Ordering::Release);
    }

    pub(crate) fn number(&self) -> u64 {
        self.table.id()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.table.metadata.file_size
    }

    /// Number of rows, without tombstones.
    pub(crate) fn rows(&self) -> u64 {
        self.table.metadata.item_count.saturating_sub(self.tombstones())
    }

    pub(crate) fn tombstones(&self) -> u64 {
        self.table.tombstone_count()
    }

    /// The handle that is read.
    fn reader(&self) -> &Table {
        self.aside.as_ref().map_or(&self.table, |aside| &aside.table)
    }

    pub(crate) fn first(&self) -> &[u8] {
        self.table.metadata.key_range.min()
    }

    pub(crate) fn last(&self) -> &[u8] {
        self.table.metadata.key_range.max()
    }
}

/// The tables of a run that have keys from `first` to `last`, both included.
pub(crate) fn overlapping<'a>(run: &'a [Arc<Member>], first: &[u8], last: &[u8]) -> &'a [Arc<Member>] {
    let begin = run.partition_point(|member| member.last() < first);
    let end = run.partition_point(|member| member.first() <= last);
    run.get(begin..end).unwrap_or_default()
}

impl Tables {
    pub(crate) fn new(levels: [Vec<Run>; LEVELS]) -> Self {
        Tables { levels }
    }

    pub(crate) fn levels(&self) -> &[Vec<Run>; LEVELS] {
        &self.levels
    }

    /// The tables of a level.
    pub(crate) fn level(&self, level: usize) -> impl Iterator<Item = &Arc<Member>> {
        self.levels[level].iter().flatten()
    }

    /// All tables.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.levels.iter().flatten().flatten()
    }

    /// Number of runs of flushes.
    pub(crate) fn flushes(&self) -> usize {
        self.levels[0].len()
    }

    /// Those tables that `keep` selects.
    pub(crate) fn filtered(&self, keep: impl Fn(&Member) -> bool) -> Self {
        let kept = |run: &Run| -> Run { run.iter().filter(|member| keep(member)).cloned().collect() };
        let level = |runs: &Vec<Run>| runs.iter().map(kept).filter(|run| !run.is_empty()).collect();
        Tables { levels: self.levels.each_ref().map(level) }
    }

    /// Bytes of rows from `begin` up to, not including, `end`, about. Of a table that lies there in part only, one row counts.
    pub(crate) fn bytes_between(&self, begin: &[u8], end: &[u8]) -> u64 {
        let runs = self.levels.iter().flatten();
        let tables = runs.flat_map(|run| overlapping(run, begin, end)).filter(|member| member.first() < end);
        let is_within = |member: &Member| member.first() >= begin && member.last() < end;
        let bytes = |member: &Arc<Member>| match is_within(member) {
            true => member.bytes(),
            false => member.bytes() / member.table.metadata.item_count.max(1),
        };
        tables.map(bytes).sum()
    }

    /// Adds tables in key order to a level. They are newer than what it has of their keys.
    pub(crate) fn add(&mut self, level: usize, tables: Run) {
        let (Some(first), Some(last)) = (tables.first(), tables.last()) else { return };
        let runs = &mut self.levels[level];
        match runs.first_mut() {
            Some(run) if overlapping(run, first.first(), last.last()).is_empty() => {
                let at = run.partition_point(|member| member.last() < first.first());
                run.splice(at..at, tables);
            }
            _ => runs.insert(0, tables),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> lsm_tree::Result<Option<Slice>> {
        let hash = Builder::get_hash(key);
        for run in self.levels.iter().flatten() {
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
        let sources = self.levels.iter().flatten().filter_map(|run| {
            let members =
                run.partition_point(|member| member.last() < begin)..run.partition_point(|member| member.first() < end);
            let members = run.get(members)?.iter();
            let members =
                members.filter(|member| member.prefixes.as_ref().is_none_or(|prefixes| prefixes.may_have(begin, end)));
            let mut tables: Vec<Table> = members.map(|member| member.reader().clone()).collect();
            if direction == Direction::Reverse {
                tables.reverse();
            }
            let (from, to) = (from.clone(), to.clone());
            let rows_of = move |table: Table| -> BoxedRows {
                match direction {
                    Direction::Forward => Box::new(table.range((Bound::Included(from.clone()), Bound::Unbounded))),
                    Direction::Reverse => Box::new(table.range((Bound::Unbounded, Bound::Excluded(to.clone()))).rev()),
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
        let far = match direction {
            Direction::Forward => to.clone(),
            Direction::Reverse => from.clone(),
        };
        Rows { merged: Merged { sources: sources.collect(), far: Some(far), direction }, _tables: self.clone() }
    }
}

pub(crate) type BoxedRows = Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>> + Send>;

/// A run's rows in a range.
struct Source {
    rows: BoxedRows,
    /// The next row, once it has been read.
    head: Option<InternalValue>,
    ended: bool,
}

impl Source {
    fn new(rows: BoxedRows) -> Self {
        Source { rows, head: None, ended: false }
    }

    /// Reads the next row, up to the far end of the range.
    fn fill(&mut self, far: Option<&UserKey>, direction: Direction) -> lsm_tree::Result<()> {
        if self.head.is_none() && !self.ended {
            let is_within = |row: &InternalValue| match direction {
                Direction::Forward => far.is_none_or(|end| row.key.user_key < *end),
                Direction::Reverse => far.is_none_or(|begin| row.key.user_key >= *begin),
            };
            self.head = self.rows.next().transpose()?.filter(is_within);
            self.ended = self.head.is_none();
        }
        Ok(())
    }
}

/// The rows of several runs in key order: of each key the newest row, or the tombstone. Must not be used after an error.
pub(crate) struct Merged {
    /// Sources, newest first.
    sources: Vec<Source>,
    /// The end of the range, in its direction. Checked here: a table would search its index and a block for it
    /// before it returns the first row.
    far: Option<UserKey>,
    direction: Direction,
}

impl Merged {
    /// All rows of runs, which come newest first.
    pub(crate) fn of(runs: impl Iterator<Item = BoxedRows>) -> Self {
        Merged { sources: runs.map(Source::new).collect(), far: None, direction: Direction::Forward }
    }

    pub(crate) fn next(&mut self) -> lsm_tree::Result<Option<InternalValue>> {
        for source in &mut self.sources {
            source.fill(self.far.as_ref(), self.direction)?;
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

/// The rows of a range of [`Tables`]. Must not be used after an error.
pub(crate) struct Rows {
    merged: Merged,
    /// A table's iterator opens the file at its first read, and does not keep the table alive.
    _tables: Arc<Tables>,
}

impl Iterator for Rows {
    type Item = lsm_tree::Result<(UserKey, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.merged.next().transpose()? {
                Ok(row) if row.is_tombstone() => {}
                Ok(row) => return Some(Ok((row.key.user_key, row.value))),
                Err(failure) => {
                    self.merged.sources.clear();
                    return Some(Err(failure));
                }
            }
        }
    }
}

impl FusedIterator for Rows {}
