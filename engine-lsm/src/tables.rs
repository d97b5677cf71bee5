//! The tables of one moment, and reads of single keys from them.
//!
//! ```text
//!   level 0, newest first   │ flush   │  │ flush   │                     these overlap
//!   level 1, newest first   │ table │ table │  │ table │ table │        these too: runs of merged flushes
//!   a level below           │ table │ table │ table │ …                  one run of disjoint tables
//! ```
//!
//! The newest run that has a key decides; a tombstone means that the key is absent. A table never changes, and its file
//! stays while anyone holds the table. So a set of tables is a snapshot without sequence numbers: each run has a key at
//! most once.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::panics::caught;
use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::table::{Block, BlockHandle, IndexBlock};
use lsm_tree::{InternalValue, SeqNo, Slice, Table};

use crate::error::failed_to_read;
use crate::large_rows::LargeRowsTable;
use crate::prefixes::Prefixes;

/// Number of levels, as in every folder of `lsm-tree`.
pub(crate) const LEVELS: usize = 7;

/// Up to this level there may be several runs: flushes, and merged flushes. Levels below have one.
pub(crate) const YOUNG: usize = 1;

/// The last level. Nothing is below it.
pub(crate) const LAST: usize = LEVELS - 1;

/// Rows of tables in key order, or in reverse.
pub(crate) type BoxedRows = Box<dyn Iterator<Item = lsm_tree::Result<InternalValue>> + Send>;

/// Disjoint tables in key order.
pub(crate) type Run = Vec<Arc<Member>>;

/// See the [module](self).
#[derive(Clone, Default)]
pub(crate) struct Tables {
    /// The runs of each level, newest first. Below level [`YOUNG`] there is one run at most.
    levels: [Vec<Run>; LEVELS],
}

/// A table of a run.
pub(crate) struct Member {
    pub(crate) table: Table,
    /// The filter of a table that its [place](crate::maker::Place::has_prefixes) gives one. One that was opened has none
    /// at first.
    pub(crate) prefixes: Option<Arc<Prefixes>>,
    /// The handle past the cache of a table of large rows.
    large_rows: Option<Arc<LargeRowsTable>>,
    /// Bytes of the rows below that its tombstones hide, about.
    pub(crate) hides: u64,
}

impl Member {
    pub(crate) fn new(
        table: Table,
        prefixes: Option<Arc<Prefixes>>,
        large_rows: Option<LargeRowsTable>,
        hides: u64,
    ) -> Self {
        Member { table, prefixes, large_rows: large_rows.map(Arc::new), hides }
    }

    /// The same table with another filter, or none: it takes memory, and is useful only above other tables.
    pub(crate) fn with_prefixes(&self, prefixes: Option<Arc<Prefixes>>) -> Self {
        let (table, large_rows) = (self.table.clone(), self.large_rows.clone());
        Member { table, prefixes, large_rows, hides: self.hides }
    }

    /// Deletes its file once nobody holds the table any more.
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
    pub(crate) fn reader(&self) -> &Table {
        self.large_rows.as_ref().map_or(&self.table, |large_rows| &large_rows.table)
    }

    /// Bytes of the file before a key. Other parts of the file, such as the index, count as if spread among the rows. A
    /// table with an unreadable index counts as zero: reads of its rows report the damage.
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

/// The offset of the block that has a key, or else the next one. The index is read from the file: the one in memory
/// does not give offsets.
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

    /// Number of runs of flushes that were not merged.
    pub(crate) fn flushes(&self) -> usize {
        self.levels[0].len()
    }

    /// The tables that `keep` selects.
    pub(crate) fn filtered(&self, keep: impl Fn(&Member) -> bool) -> Self {
        let kept = |run: &Run| -> Run { run.iter().filter(|member| keep(member)).cloned().collect() };
        let level = |runs: &Vec<Run>| runs.iter().map(kept).filter(|run| !run.is_empty()).collect();
        Tables { levels: self.levels.each_ref().map(level) }
    }

    /// Bytes of a key's row from a level on, roughly: those of a mean row of the lowest table that may have the key. Tables
    /// of lower levels span fewer keys, so their rows are more alike. `None` if no table may have it.
    pub(crate) fn row_bytes(&self, from: usize, key: &[u8]) -> Option<u64> {
        let runs = self.levels[from..].iter().rev().flatten();
        let member = runs.filter_map(|run| overlapping(run, key, key).first()).next()?;
        Some(member.bytes() / member.table.metadata.item_count.max(1))
    }

    /// Bytes of the files of everything between two keys, to the block.
    pub(crate) fn file_bytes(&self, begin: &[u8], end: &[u8]) -> u64 {
        let runs = self.levels.iter().flatten();
        let tables = runs.flat_map(|run| overlapping(run, begin, end));
        tables.map(|member| member.position(end).saturating_sub(member.position(begin))).sum()
    }

    /// These tables with `old` replaced by new ones, which have no other keys.
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
}
