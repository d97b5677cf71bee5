//! The write-ahead log before the simplest possible store: a map in a file that each sync writes in full. An error
//! found here is in the log or the folder.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use disk::folder::{io_error, sync_folder};
use disk::wal::WalStore;
use disk::{DiskOptions, DiskStore, OnDisk};
use kv_api::{Bytes, Durability, Error, Result, error};
use occ::OccDatabase;
use occ::store::{ApplyError, Batch, MapSnapshot, Store};
use powercut::Rows;

#[derive(Debug)]
struct Tree {
    folder: PathBuf,
    rows: Mutex<Arc<Rows>>,
}

impl DiskStore for Tree {
    const ENGINE: &'static str = "tree";
    const DURABILITIES: &'static [Durability] = &[Durability::Disk];

    fn open(folder: &Path, _: u64, _: Durability) -> Result<Self> {
        let damaged = || Error::new(error::FILE_CORRUPT).with_context("the tree is damaged");
        let mut rows = Rows::new();
        if let Ok(bytes) = fs::read(folder.join("tree")) {
            let mut rest = bytes.as_slice();
            let mut next = || -> Option<Bytes> {
                let (length, after) = rest.split_first_chunk::<4>()?;
                let (bytes, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                rest = after;
                Some(Bytes::copy_from_slice(bytes))
            };
            let count = next().ok_or_else(damaged)?.len();
            for _ in 0..count {
                rows.insert(next().ok_or_else(damaged)?, next().ok_or_else(damaged)?);
            }
        }
        Ok(Tree { folder: folder.to_owned(), rows: Mutex::new(Arc::new(rows)) })
    }
}

impl Store for Tree {
    type Snapshot = MapSnapshot;

    fn snapshot(&self) -> Result<MapSnapshot> {
        Ok(MapSnapshot(self.rows.lock().unwrap().clone()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let mut rows = self.rows.lock().unwrap();
        let rows = Arc::make_mut(&mut rows);
        batch.apply_to(rows);
        Ok(())
    }

    /// As many bytes as there are rows, then the rows, each after its length. The file is new each time, so
    /// nothing relies on what a failed sync did not write.
    fn sync(&self) -> Result<()> {
        let rows = self.rows.lock().unwrap().clone();
        let count = vec![0; rows.len()];
        let parts = std::iter::once(count.as_slice()).chain(rows.iter().flat_map(|(key, value)| [&**key, &**value]));
        let bytes: Vec<u8> = parts.flat_map(|part| [&(part.len() as u32).to_be_bytes(), part].concat()).collect();
        let write = || {
            let new = self.folder.join("tree.new");
            let _ = fs::remove_file(&new);
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, self.folder.join("tree"))?;
            sync_folder(&self.folder)
        };
        write().map_err(|cause| io_error("cannot write the tree", &cause))
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }
}

type TreeDatabase = OccDatabase<OnDisk<WalStore<Tree>>>;

struct Logs;

impl powercut::Engine for Logs {
    type Database = TreeDatabase;
    const NAME: &'static str = "the log";

    fn open(folder: &Path) -> Result<TreeDatabase> {
        TreeDatabase::open(folder, DiskOptions::new().cache_bytes(1))
    }

    fn close(database: &TreeDatabase) -> Result<()> {
        database.close()
    }
}

powercut::power_loss!(Logs);
powercut::log_before_store!(Logs);
