//! Makes tables: writes rows into new files, and opens them.
//!
//! Rows come in key order. A table ends when its file, its rows, or the tables that it overlaps below are large enough:
//! so its next compaction is short.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use disk::room;
use lsm_tree::config::BloomConstructionPolicy;
use lsm_tree::table::Writer;
use lsm_tree::{Cache, Checksum, CompressionType, DescriptorTable, InternalValue, Slice, Table};

use crate::large_rows::{LargeRows, TREE};
use crate::manifest::{self, List, Listed};
use crate::prefixes::{Collector, Prefixes};
use crate::tables::{LAST, LEVELS, Member, Run, Tables, YOUNG};

/// Size of a table, and less on a small disk. Small in unit tests, where a few MB fill some levels.
pub(crate) const TABLE_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 16 << 20 };

/// Maximum size of a table's uncompressed rows, as a multiple of the table's size.
const ROWS_OF_A_TABLE: u64 = 4;

/// The file's size is asked for after each 1/`ASKED_PART` of a table's size in rows.
const ASKED_PART: u64 = 16;

/// Maximum number of table files that are kept open.
const MOST_OPEN: usize = 200;

/// Filter bits for each key. The last level, with nine of ten rows, has no filter: most keys that are looked up exist.
const FILTER_BITS: f32 = 10.0;

/// One key in this many is stored whole in a block.
const RESTART_INTERVAL: u8 = 8;

/// See the [module](self).
pub(crate) struct Maker {
    pub(crate) folder: PathBuf,
    /// Size of a table.
    pub(crate) table_bytes: u64,
    cache: Arc<Cache>,
    descriptors: Arc<DescriptorTable>,
    large_rows: LargeRows,
    /// Number in the name of the next file.
    next_table: AtomicU64,
    /// Number of the next flush. Rows keep the number of their flush, which tells `lsm-tree` the newest row of a key.
    next_flush: AtomicU64,
}

/// What a table is for.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) level: usize,
    /// The first level that has tables.
    pub(crate) base: usize,
}

impl Place {
    /// Whether its tables have filters of prefixes: those that are searched, mostly in vain, before the last level.
    pub(crate) fn has_prefixes(self) -> bool {
        self.level < LAST && self.level <= self.base.max(YOUNG)
    }
}

impl Maker {
    /// The number of the next flush.
    pub(crate) fn next_flush(&self) -> u64 {
        self.next_flush.load(Ordering::Relaxed)
    }

    /// Bytes that are cached, and how many may be.
    pub(crate) fn cache_bytes(&self) -> (u64, u64) {
        (self.cache.size(), self.cache.capacity())
    }

    /// Opens the listed tables in a folder.
    pub(crate) fn open(folder: PathBuf, list: &List, cache_bytes: u64) -> lsm_tree::Result<(Self, Tables)> {
        let mut maker = Maker {
            cache: Arc::new(Cache::with_capacity_bytes(cache_bytes)),
            descriptors: Arc::new(DescriptorTable::new(MOST_OPEN)),
            large_rows: LargeRows::new(),
            next_table: AtomicU64::new(manifest::greatest(&folder, "") + 1),
            next_flush: AtomicU64::new(1),
            table_bytes: room::table_bytes(&folder, TABLE_BYTES),
            folder,
        };
        let mut levels: [Vec<Run>; LEVELS] = Default::default();
        for (level, (runs, listed)) in levels.iter_mut().zip(list).enumerate() {
            for run in listed {
                let run = run.iter().map(|listed| maker.opened(listed, level)).collect::<lsm_tree::Result<_>>()?;
                runs.push(run);
            }
        }
        let tables = Tables::new(levels);
        let newest = tables.iter().map(|member| member.table.get_highest_seqno()).max();
        *maker.next_flush.get_mut() = newest.map_or(1, |number| number + 1);
        Ok((maker, tables))
    }

    /// Opens a listed table of a level. Filters of flushes, and indexes of the levels below them, stay in memory.
    fn opened(&self, listed: &Listed, level: usize) -> lsm_tree::Result<Arc<Member>> {
        let path = self.folder.join(listed.number.to_string());
        let checksum = Checksum::from_raw(listed.checksum);
        let table = self.recover(path, checksum, listed.flush, level == 0, level <= 1)?;
        // Otherwise the file is another table under this name.
        let is_listed = table.id() == listed.number;
        if is_listed { Ok(self.member(table, None, listed.hides)) } else { Err(lsm_tree::Error::Unrecoverable) }
    }

    fn recover(
        &self,
        path: PathBuf,
        checksum: Checksum,
        flush: u64,
        pin_filter: bool,
        pin_index: bool,
    ) -> lsm_tree::Result<Table> {
        let (cache, descriptors) = (self.cache.clone(), Some(self.descriptors.clone()));
        Table::recover(path, checksum, flush, TREE, cache, descriptors, pin_filter, pin_index)
    }

    fn member(&self, table: Table, prefixes: Option<Arc<Prefixes>>, hides: u64) -> Arc<Member> {
        let large_rows = self.large_rows.of(&table);
        Arc::new(Member::new(table, prefixes, large_rows, hides))
    }

    /// Begins tables for a place.
    pub(crate) fn begin(&self, place: Place) -> NewTables<'_> {
        NewTables { maker: self, place, open: None, finished: Vec::new() }
    }

    fn writer(&self, place: Place) -> lsm_tree::Result<Open> {
        let number = self.next_table.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(number.to_string());
        let bits = if place.level == LAST { 0.0 } else { FILTER_BITS };
        let level = u8::try_from(place.level).unwrap_or(u8::MAX);
        let mut writer = Writer::new(path.clone(), number, level)?;
        // Indexes and filters of large levels are read in parts.
        if place.level >= place.base + 2 {
            writer = writer.use_partitioned_index().use_partitioned_filter();
        }
        let writer = writer
            .use_data_block_restart_interval(RESTART_INTERVAL)
            .use_data_block_compression(CompressionType::Lz4)
            .use_bloom_policy(BloomConstructionPolicy::BitsPerKey(bits));
        let prefixes = place.has_prefixes().then(Collector::default);
        Ok(Open { writer, path, prefixes, bytes: 0, asked_at: 0, hides: 0, is_full: false })
    }
}

/// A table that is being written.
struct Open {
    writer: Writer,
    path: PathBuf,
    /// The prefixes of its keys, if its place has filters.
    prefixes: Option<Collector>,
    /// Bytes of its rows.
    bytes: u64,
    /// Bytes of its rows when the size of its file was asked for.
    asked_at: u64,
    /// Bytes that its tombstones hide.
    hides: u64,
    is_full: bool,
}

/// Tables that are being written. Their files are deleted when this is dropped, unless they are
/// [taken](Finished::take).
pub(crate) struct NewTables<'a> {
    maker: &'a Maker,
    place: Place,
    open: Option<Open>,
    finished: Vec<Written>,
}

/// A table that is written.
struct Written {
    path: PathBuf,
    checksum: Checksum,
    prefixes: Option<Arc<Prefixes>>,
    hides: u64,
}

impl NewTables<'_> {
    /// Writes a row, or a tombstone that hides about so many bytes. Returns whether it is the first of a table.
    pub(crate) fn write(&mut self, row: InternalValue, hides: u64) -> lsm_tree::Result<bool> {
        if self.open.as_ref().is_some_and(|open| open.is_full) {
            self.end_table()?;
        }
        let is_first = self.open.is_none();
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(self.maker.writer(self.place)?),
        };
        open.bytes += (row.key.user_key.len() + row.value.len()) as u64;
        open.hides += hides;
        if let Some(prefixes) = &mut open.prefixes {
            prefixes.add(&row.key.user_key);
        }
        // Copied: the writer keeps the last key of each block to the end, and a key that was read keeps its whole block
        // in memory.
        let key = Slice::new(&row.key.user_key);
        open.writer.write(InternalValue::from_components(key, row.value, row.key.seqno, row.key.value_type))?;
        let table_bytes = self.maker.table_bytes;
        if open.bytes - open.asked_at >= table_bytes / ASKED_PART {
            open.asked_at = open.bytes;
            // Level 0 has flushes, which are never stopped.
            if self.place.level > 0 && room::is_short(&self.maker.folder) {
                return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
            }
            open.is_full =
                open.bytes >= ROWS_OF_A_TABLE * table_bytes || fs::metadata(&open.path)?.len() >= table_bytes;
        }
        Ok(is_first)
    }

    /// The next row begins another table.
    pub(crate) fn end_table(&mut self) -> lsm_tree::Result<()> {
        let Some(Open { writer, path, prefixes, hides, .. }) = self.open.take() else { return Ok(()) };
        let outcome = writer.finish();
        if !matches!(outcome, Ok(Some(_))) {
            let _ = fs::remove_file(&path);
        }
        if let Some((_, checksum)) = outcome? {
            let prefixes = prefixes.map(|prefixes| Arc::new(prefixes.finish()));
            self.finished.push(Written { path, checksum, prefixes, hides });
        }
        Ok(())
    }

    /// Ends the tables of a compaction. Everything is synced.
    pub(crate) fn finish(self) -> lsm_tree::Result<Finished> {
        self.finish_as(0)
    }

    /// Ends the tables of a flush, which are newer than all others. Everything is synced.
    pub(crate) fn finish_flush(self) -> lsm_tree::Result<Finished> {
        let number = self.maker.next_flush.fetch_add(1, Ordering::Relaxed);
        self.finish_as(number)
    }

    fn finish_as(mut self, flush: u64) -> lsm_tree::Result<Finished> {
        self.end_table()?;
        // The index of the first level stays in memory.
        let is_pinned = self.place.level > 0 && self.place.level == self.place.base;
        let mut finished = Finished(Vec::new());
        for Written { path, checksum, prefixes, hides } in &self.finished {
            let table = self.maker.recover(path.clone(), *checksum, flush, false, is_pinned)?;
            finished.0.push(self.maker.member(table, prefixes.clone(), *hides));
        }
        self.finished.clear();
        Ok(finished)
    }
}

impl Drop for NewTables<'_> {
    fn drop(&mut self) {
        let open = self.open.take().map(|open| open.path);
        for path in self.finished.drain(..).map(|written| written.path).chain(open) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Synced tables that no manifest lists. Their files are deleted when this is dropped, unless they are taken.
pub(crate) struct Finished(Run);

impl Finished {
    pub(crate) fn take(mut self) -> Run {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Finished {
    fn drop(&mut self) {
        self.0.iter().for_each(|member| member.delete());
    }
}
