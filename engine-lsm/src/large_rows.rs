//! Tables of large rows, which are read past the cache.
//!
//! ```text
//!   small rows   table ── cache of the engine ── blocks of some 4 KB, read again and again
//!   large rows   table ── small cache, shared ── blocks of a row each: parts of attachments, read once, in order
//! ```
//!
//! `lsm-tree` puts each block that it reads into the table's cache. One download of a large attachment would fill it,
//! and drop what small reads need. So a table whose blocks are large on average is opened a second time, with another
//! cache, and read there. The operating system still caches its file.

use std::sync::Arc;

use disk::panics::caught;
use lsm_tree::{Cache, DescriptorTable, Table};

use crate::error::failed_to_read;

/// A table's blocks are large from this mean size on.
const LARGE_BLOCK: u64 = 64 << 10;

/// Size of the cache of all tables of large rows: enough that a reader that continues finds the block where it stopped.
const CACHE_BYTES: u64 = 2 << 20;

/// Maximum number of these tables whose files are kept open.
const MOST_OPEN: usize = 32;

/// Tree id in the keys of a cache. Each cache has one tree.
pub(crate) const TREE: u64 = 0;

/// A table of large rows, opened a second time.
pub(crate) struct LargeRowsTable {
    pub(crate) table: Table,
    descriptors: Arc<DescriptorTable>,
}

impl Drop for LargeRowsTable {
    /// Closes the file. An open file of a deleted table would keep its space on the disk.
    fn drop(&mut self) {
        self.descriptors.remove_for_table(&(TREE, self.table.id()).into());
    }
}

/// Opens tables of large rows a second time.
pub(crate) struct LargeRows {
    cache: Arc<Cache>,
    descriptors: Arc<DescriptorTable>,
}

impl LargeRows {
    pub(crate) fn new() -> Self {
        let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
        LargeRows { cache, descriptors: Arc::new(DescriptorTable::new(MOST_OPEN)) }
    }

    /// The second handle of a table of large rows. `None` for any other, and for one that cannot be opened again: it is
    /// read as all others are, which reports what is wrong.
    pub(crate) fn of(&self, table: &Table) -> Option<LargeRowsTable> {
        if table.metadata.file_size / table.metadata.data_block_count.max(1) < LARGE_BLOCK {
            return None;
        }
        let again = caught("a table", || {
            let (path, cache, descriptors) = (table.path.to_path_buf(), self.cache.clone(), self.descriptors.clone());
            let (checksum, number) = (table.checksum(), table.global_seqno());
            Table::recover(path, checksum, number, TREE, cache, Some(descriptors), true, true).map_err(failed_to_read)
        });
        Some(LargeRowsTable { table: again.ok()?, descriptors: self.descriptors.clone() })
    }
}
