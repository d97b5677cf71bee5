//! The store: one redb table. A snapshot is a read transaction, a batch a write transaction.
//!
//! redb writes changed pages elsewhere and then turns a root pointer, with a checksum over what the
//! root reaches; a commit of durability `Immediate` syncs the file before it returns. So `apply`
//! leaves nothing for `sync` to do, and costs one sync of the file: the same as applying first and
//! syncing after, without a second, empty commit.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use kv_api::{Direction, Durability, Error, Result, error};
use occ::folder::{Folder, Mark, io_error};
use occ::panics::{Panicked, silently};
use occ::store::{ApplyError, Batch, Op, Store, View};
use occ::synced::Synced;
use redb::{Database, Range, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction};

use crate::error::kv_error;

fn failed(failure: impl Into<redb::Error>) -> Error {
    kv_error(failure, "redb")
}

/// The engine's name in a folder's mark, and the version of its format.
const ENGINE: &str = "redb";
const FORMAT: u32 = 1;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

/// One redb table as a store.
#[derive(Debug)]
pub struct RedbStore {
    database: Database,
    durability: Durability,
    synced: Mutex<Synced>,
    /// Last, so that the folder is released when the file is closed.
    _folder: Folder,
}

impl RedbStore {
    /// Opens the table in the folder at `path`, which is created where there is none. Fails as
    /// [`RedbDatabase::open`](crate::RedbDatabase::open) does.
    pub fn open(path: &Path, cache_bytes: usize, durability: Durability) -> Result<Self> {
        if !matches!(durability, Durability::Disk | Durability::Process) {
            return Err(Error::new(error::INVALID_OPTION_VALUE)
                .with_context("redb is durable to the disk, or not beyond the process; nothing in between"));
        }
        let folder = Folder::open(path, &Mark { engine: ENGINE.into(), format: FORMAT })?;
        let file = path.join("data.redb");
        let tried = format!("cannot open {}", file.display());
        let mut synced = Synced::open(&path.join("synced")).map_err(|cause| io_error(&tried, &cause))?;
        let opened = silently("", || Database::builder().set_cache_size(cache_bytes).create(&file));
        let database = match opened {
            Ok(database) => database.map_err(|failure| kv_error(failure, &tried))?,
            Err(Panicked) => {
                return Err(Error::new(error::FILE_CORRUPT)
                    .with_context(format!("{tried}: the data is damaged; restore it from a backup")));
            }
        };
        let remembered = synced.read().map_err(|cause| io_error(&tried, &cause))?;
        let store = RedbStore { database, durability, synced: Mutex::new(synced), _folder: folder };
        // Views need the table to be there.
        let write = store.begin_write()?;
        write.open_table(ROWS).map_err(failed)?;
        write.commit().map_err(failed)?;
        let last = occ::last_version(&store.view()?)?;
        if last < remembered {
            return Err(Error::new(error::FILE_CORRUPT).with_context(format!(
                "the data in {} came back older than what was acknowledged (version {last}, once {remembered}): \
                 restore it from a backup, or remove the file `synced` there to go on with what is left",
                path.display()
            )));
        }
        Ok(store)
    }

    fn begin_write(&self) -> Result<WriteTransaction> {
        let mut write = self.database.begin_write().map_err(failed)?;
        let durability = match self.durability {
            Durability::Disk => redb::Durability::Immediate,
            _ => redb::Durability::None,
        };
        write.set_durability(durability).map_err(failed)?;
        Ok(write)
    }
}

fn write_ops(write: &WriteTransaction, ops: &[Op]) -> Result<()> {
    let mut rows = write.open_table(ROWS).map_err(failed)?;
    for op in ops {
        match op {
            Op::Set { key, value } => {
                rows.insert(key.as_ref(), value.as_ref()).map_err(failed)?;
            }
            Op::Clear { key } => {
                rows.remove(key.as_ref()).map_err(failed)?;
            }
            Op::ClearRange { begin, end } => {
                rows.retain_in(begin.as_ref()..end.as_ref(), |_, _| false).map_err(failed)?;
            }
        }
    }
    Ok(())
}

impl Store for RedbStore {
    type View = RedbView;

    fn view(&self) -> Result<RedbView> {
        let read = self.database.begin_read().map_err(failed)?;
        // The table keeps the transaction's snapshot alive.
        Ok(RedbView(Arc::new(read.open_table(ROWS).map_err(failed)?)))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let version = batch.version;
        let write = self.begin_write().map_err(ApplyError::NothingApplied)?;
        // Until the commit turns the root, the pages written belong to nobody.
        write_ops(&write, &batch.ops).map_err(ApplyError::NothingApplied)?;
        write.commit().map_err(|failure| ApplyError::Unknown(failed(failure)))?;
        if self.durability == Durability::Disk {
            let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
            synced
                .write(version)
                .map_err(|cause| ApplyError::Unknown(io_error("cannot write the side file", &cause)))?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn close(&self) -> Result<()> {
        if self.durability == Durability::Disk {
            return Ok(());
        }
        // A synced commit takes every commit before it to the disk.
        let mut last = self.database.begin_write().map_err(failed)?;
        last.set_durability(redb::Durability::Immediate).map_err(failed)?;
        last.commit().map_err(failed)
    }
}

/// A snapshot of a [`RedbStore`].
#[derive(Clone)]
pub struct RedbView(Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>);

impl std::fmt::Debug for RedbView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbView").finish_non_exhaustive()
    }
}

impl View for RedbView {
    type Range<'a> = RedbRange;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.0.get(key).map_err(failed)?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    fn range(&self, begin: &[u8], end: &[u8], direction: Direction) -> RedbRange {
        RedbRange { rows: self.0.range(begin..end).map_err(|failure| Some(failed(failure))), direction }
    }
}

/// Rows of a [`RedbView`].
pub struct RedbRange {
    /// Or what opening the range failed with, until it has been told.
    rows: Result<Range<'static, &'static [u8], &'static [u8]>, Option<Error>>,
    direction: Direction,
}

impl std::fmt::Debug for RedbRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbRange").field("direction", &self.direction).finish_non_exhaustive()
    }
}

impl Iterator for RedbRange {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = match &mut self.rows {
            Ok(rows) => rows,
            Err(failure) => return failure.take().map(Err),
        };
        let row = match self.direction {
            Direction::Forward => rows.next(),
            Direction::Reverse => rows.next_back(),
        };
        row.map(|row| {
            let (key, value) = row.map_err(failed)?;
            Ok((Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value())))
        })
    }
}
