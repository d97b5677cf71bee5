//! A store in a folder, for who copies its tables and its log elsewhere while it is in use; and one that follows it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use kv_api::Result;
use occ::store::Store;
use occ::{OccDatabase, last_version};

use crate::folder::io_error;
use crate::on_disk::{CopiedTable, DiskStore, LINKS, OnDisk};
use crate::wal::follow::{Tail, Together};
use crate::wal::{LogRecord, WalStore};

/// The tables of a store as of a flush, as a store of its own in a folder of links. Dropping it removes the folder.
#[derive(Debug)]
pub struct LinkedTables {
    /// The folder.
    pub folder: PathBuf,
    /// Version of their newest batch.
    pub version: i64,
    /// The files that never change. All others in the folder are small.
    pub tables: Vec<CopiedTable>,
}

impl Drop for LinkedTables {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A store whose log can be followed.
pub trait FollowedStore: Send + Sync + 'static {
    /// The engine's name.
    fn engine(&self) -> &'static str;

    /// Follows the log, in place of who followed it before. The first cut has everything that is in no table of
    /// [`link_tables`](Self::link_tables), if these are linked later. `most`: bytes of records that may wait to be taken.
    ///
    /// # Errors
    /// 2108 without a log; the disk's errors.
    fn follow(&self, most: usize) -> Result<Tail>;

    /// Asks the store to flush its log. Returns at once.
    fn flush(&self);

    /// Links the tables of the last flush in a folder inside of the store's. One at a time.
    ///
    /// # Errors
    /// As [`DiskStore::copy_snapshot`].
    fn link_tables(&self) -> Result<LinkedTables>;

    /// Whether these bytes are those of the table of this [name](CopiedTable::name).
    fn is_table(&self, name: &str, bytes: &[u8]) -> bool;
}

/// A store that follows the log of another one ([`DiskOptions::standby`](crate::DiskOptions::standby)).
pub trait StandbyStore: Send + Sync + 'static {
    /// The version of the newest batch.
    ///
    /// # Errors
    /// The store's errors.
    fn version(&self) -> Result<i64>;

    /// Applies the records that the store does not have, oldest first, some in one batch. Each is durable and readable
    /// then. After an error the store has a part of them.
    ///
    /// # Errors
    /// 1522 if they do not continue the store, or are damaged; the store's errors.
    fn replay(&self, records: &[LogRecord]) -> Result<()>;
}

impl<S: DiskStore> StandbyStore for OccDatabase<OnDisk<WalStore<S>>> {
    fn version(&self) -> Result<i64> {
        // After a failed sync the store has rows that the disk may not have.
        self.check_open()?;
        last_version(&self.store().snapshot()?)
    }

    fn replay(&self, records: &[LogRecord]) -> Result<()> {
        let mut together = Together::after(self.version()?);
        for (at, record) in records.iter().enumerate() {
            let are_enough = together.add(record)?;
            if (are_enough || at + 1 == records.len())
                && let Some(batch) = together.take()?
            {
                OccDatabase::replay(self, batch)?;
            }
        }
        Ok(())
    }
}

impl<S: DiskStore> FollowedStore for OccDatabase<OnDisk<WalStore<S>>> {
    fn engine(&self) -> &'static str {
        S::ENGINE
    }

    fn follow(&self, most: usize) -> Result<Tail> {
        self.store().store().follow(most)
    }

    fn flush(&self) {
        self.store().store().ask_flush();
    }

    fn is_table(&self, name: &str, bytes: &[u8]) -> bool {
        S::is_table(name, bytes)
    }

    fn link_tables(&self) -> Result<LinkedTables> {
        let folder = self.store().path().join(LINKS);
        let cannot = |cause| io_error(format!("cannot create {}", folder.display()), &cause);
        match fs::remove_dir_all(&folder) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(cannot(cause)),
            _ => fs::create_dir(&folder).map_err(cannot)?,
        }
        let mut linked = LinkedTables { folder, version: 0, tables: Vec::new() };
        (linked.version, linked.tables) = self.store().store().copy_tables(&linked.folder)?;
        Ok(linked)
    }
}
