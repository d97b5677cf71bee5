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

use std::fs::File;
use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::panics::caught;
use kv_api::keys::key_after;
use kv_api::{Direction, Result};
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::table::{Block, BlockHandle, IndexBlock};
use lsm_tree::{InternalValue, SeqNo, Slice, Table, UserKey};

use crate::aside::AsideTable;
use crate::damage::{is_damage, located};
use crate::error::failed_to_read;
use crate::prefixes::Prefixes;

/// Number of levels, as in every folder of `lsm-tree`.
pub(crate) const LEVELS: usize = 7;

/// The last level. Nothing is below it.
pub(crate) const LAST: usize = LEVELS - 1;

/// Number of damaged blocks of a run that a clear goes past.
const MOST_SKIPPED: usize = 1_000;

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

    /// Bytes of the file before a key. What is not rows, such as the index, counts as if it were spread among them. Rows of
    /// a table whose index cannot be read count for none: reads of them tell what is wrong.
    fn position(&self, key: &[u8]) -> u64 {
        if key <= self.first() {
            return 0;
        }
        if key > self.last() {
            return self.bytes();
        }
        let offset = caught("a table", || offset(&self.table, key).map_err(failed_to_read)).unwrap_or(0);
        let scaled = u128::from(offset) * u128::from(self.bytes()) / u128::from(data_bytes(&self.table).max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX).min(self.bytes())
    }

    pub(crate) fn first(&self) -> &[u8] {
        self.table.metadata.key_range.min()
    }

    pub(crate) fn last(&self) -> &[u8] {
        self.table.metadata.key_range.max()
    }
}

/// Bytes of a table's blocks of rows, which are the beginning of its file.
fn data_bytes(table: &Table) -> u64 {
    *table.regions.tli.offset()
}

/// Where the block begins that has a key, or the next one. The index is read from the file: that in memory cannot be asked
/// for places.
fn offset(table: &Table, key: &[u8]) -> lsm_tree::Result<u64> {
    let file = File::open(&*table.path)?;
    // The first block whose last key is not before `key`.
    let find = |handle: BlockHandle| -> lsm_tree::Result<Option<BlockHandle>> {
        let index = IndexBlock::new(Block::from_file(&file, handle, table.metadata.index_block_compression)?);
        let mut blocks = index.iter();
        let found = if blocks.seek(key, SeqNo::MAX) { blocks.next() } else { None };
        Ok(found.map(|found| BlockHandle::new(found.offset, found.size)))
    };
    let mut found = find(table.regions.tli)?;
    // An index of two levels.
    if let (Some(part), Some(_)) = (found, table.regions.index) {
        found = find(part)?;
    }
    Ok(found.map_or(data_bytes(table), |block| *block.offset()))
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

    /// Bytes of the files of everything between two keys, to the block.
    pub(crate) fn file_bytes(&self, begin: &[u8], end: &[u8]) -> u64 {
        let runs = self.levels.iter().flatten();
        let tables = runs.flat_map(|run| overlapping(run, begin, end));
        tables.map(|member| member.position(end).saturating_sub(member.position(begin))).sum()
    }

    /// These tables with others in the place of one, which have no more keys.
    pub(crate) fn replaced(&self, old: &Member, new: &Run) -> Self {
        let mut tables = self.clone();
        for runs in &mut tables.levels {
            for run in &mut *runs {
                if let Some(at) = run.iter().position(|member| member.number() == old.number()) {
                    run.splice(at..=at, new.iter().cloned());
                }
            }
            runs.retain(|run| !run.is_empty());
        }
        tables
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
        let far = match direction {
            Direction::Forward => Slice::from(end),
            Direction::Reverse => Slice::from(begin),
        };
        let sources = self.sources(begin, end, direction, Bounds::Near);
        let merged = Merged { sources, far: Some(far), direction, skips_damage: false };
        let range = (Slice::from(begin), Slice::from(end));
        Rows { merged, range, last: None, bounds: Bounds::Near, tables: self.clone() }
    }

    /// The same, forward, of the rows that can be read. Only for what removes them.
    pub(crate) fn readable(self: &Arc<Self>, begin: &[u8], end: &[u8]) -> Rows {
        let mut rows = self.range(begin, end, Direction::Forward);
        rows.merged.skips_damage = true;
        rows
    }

    /// The rows of each run.
    fn sources(&self, begin: &[u8], end: &[u8], direction: Direction, bounds: Bounds) -> Vec<Source> {
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

/// The bounds that tables look for. They look for both before they return the first row, which costs more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bounds {
    /// The one at which a read begins.
    Near,
    Both,
}

/// The rows of a table in a range, without a look at blocks that cannot have any. The index has the last key of each block, and leads
/// to a block beyond a bound, which may be damaged.
fn exact(table: &Table, from: UserKey, to: UserKey, direction: Direction) -> BoxedRows {
    let rows = table.range((Bound::Included(from.clone()), Bound::Excluded(to.clone())));
    let mut rows: BoxedRows = match direction {
        Direction::Forward => Box::new(rows),
        Direction::Reverse => Box::new(rows.rev()),
    };
    // No key is between one and the same with another NUL.
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

pub(crate) type BoxedRows = Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>> + Send>;

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

/// The rows of several runs in key order: of each key the newest row, or the tombstone. Must not be used after an error.
pub(crate) struct Merged {
    /// Sources, newest first.
    sources: Vec<Source>,
    /// The end of the range, in its direction. Checked here: a table would search its index and a block for it
    /// before it returns the first row.
    far: Option<UserKey>,
    direction: Direction,
    /// Whether it goes on after damaged blocks.
    skips_damage: bool,
}

impl Merged {
    /// All rows of runs, which come newest first.
    pub(crate) fn of(runs: impl Iterator<Item = BoxedRows>) -> Self {
        let sources = runs.map(Source::new).collect();
        Merged { sources, far: None, direction: Direction::Forward, skips_damage: false }
    }

    pub(crate) fn next(&mut self) -> lsm_tree::Result<Option<InternalValue>> {
        for source in &mut self.sources {
            source.fill(self.far.as_ref(), self.direction, self.skips_damage)?;
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
    range: (UserKey, UserKey),
    /// The key of the last row, or tombstone.
    last: Option<UserKey>,
    bounds: Bounds,
    /// A table's iterator opens the file at its first read, and does not keep the table alive.
    tables: Arc<Tables>,
}

impl Rows {
    /// The error of a failed read. At first the rest is read once more, with both bounds: what failed may be beyond them.
    fn failed(&mut self, failure: lsm_tree::Error) -> Result<()> {
        let (direction, (mut begin, mut end)) = (self.merged.direction, self.range.clone());
        match (direction, &self.last) {
            (Direction::Forward, Some(last)) => begin = Slice::from(&*key_after(last)),
            (Direction::Reverse, Some(last)) => end = last.clone(),
            (_, None) => {}
        }
        let is_first = std::mem::replace(&mut self.bounds, Bounds::Both) == Bounds::Near;
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
