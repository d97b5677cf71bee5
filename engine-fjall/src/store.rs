//! The store: one fjall keyspace. A snapshot is a snapshot of it, a batch a write batch, synced as it is
//! written.
//!
//! Invariants: a view and what is pending in it are taken together; batches, the purge's too, are written one
//! at a time under one lock, and numbered.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use disk::DiskStore;
use disk::clears::{decode, encode};
use disk::folder::{io_error, sync_folder};
use disk::panics::{Panicked, caught, silently};
use disk::purge::{Purger, Step};
use disk::synced::Synced;
use fjall::config::{HashRatioPolicy, RestartIntervalPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use kv_api::{Durability, Error, Result, error};
use occ::store::{ApplyError, Batch, Store};
use occ::{KeyRange, RangeSet};

use crate::batch::{Settled, settle};
use crate::error::{corrupt, failed, kv_error};
use crate::journals::NUMBER_KEY;
use crate::view::FjallView;
use crate::{journals, keys, manifests};

/// Where the record of pending clears is. A system key, out of the user's reach.
const CLEARS_KEY: &[u8] = b"\xff/fjall/clears";

/// A clear of more rows than this is made pending.
const BULK: usize = 4_096;

/// How many rows one step of the purge removes.
const STEP: usize = 1_024;

/// What is in memory becomes a table when it has this part of the cache's size, but no less and no more bytes
/// than these.
const MEMTABLE_PART: u64 = 8;
const MEMTABLE_LEAST: u64 = 64 << 10;
const MEMTABLE_MOST: u64 = 16 << 20;

/// So many tables' worth of rows may wait in memory before commits do. fjall itself waits at four, and
/// then for ever if the thread has failed that writes them.
const MOST_WAITING: usize = 2;

/// Tables that are kept open.
const MOST_OPEN: usize = 200;

/// Journals are let go of, by writing down what is in them, when they take so much together.
const JOURNALS: u64 = 192 << 20;

/// What is written to find out whether the disk is full.
const PROBE: usize = 16 << 20;

/// One fjall keyspace as a store.
pub struct FjallStore {
    /// First, so that it ends before the rest.
    purger: Purger,
    shared: Arc<Shared>,
}

/// What the committer and the purge work on.
struct Shared {
    /// Before the database, whose end waits for no one who has it.
    rows: Keyspace,
    database: Database,
    durability: Durability,
    folder: PathBuf,
    /// A clear of more rows than this is made pending.
    bulk: usize,
    head: Mutex<Head>,
}

/// What the newest batch has left.
struct Head {
    number: u64,
    pending: Arc<RangeSet>,
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl DiskStore for FjallStore {
    const ENGINE: &'static str = "fjall";
    const FORMAT: u32 = 1;
    const DURABILITIES: &'static [Durability] = &[Durability::Disk, Durability::OperatingSystem];

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        Self::open_with_bulk(folder, cache_bytes, durability, BULK)
    }
}

impl FjallStore {
    fn open_with_bulk(folder: &Path, cache_bytes: u64, durability: Durability, bulk: usize) -> Result<Self> {
        let data = folder.join("data");
        let tried = format!("cannot open {}", data.display());
        let failed_to_open = |cause: &std::io::Error| io_error(&tried, cause);
        if !data.try_exists().map_err(|cause| failed_to_open(&cause))? {
            create(folder, &data, cache_bytes)?;
        }
        let synced = Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read());
        manifests::check(&data)?;
        journals::check(folder, &data, synced.map_err(|cause| failed_to_open(&cause))?)?;
        // A panic is told by the error.
        let opened = silently("fjall", || open(&data, cache_bytes));
        let (database, rows) = match opened {
            Ok(opened) => opened.map_err(|failure| kv_error(&failure, &tried))?,
            Err(Panicked) => return Err(corrupt(&format!("{tried}: the data is damaged"))),
        };
        let row = |key: &[u8]| caught("fjall", || rows.get(key).map_err(failed));
        let number = row(NUMBER_KEY)?.map_or(Some(0), |number| number.as_ref().try_into().ok().map(u64::from_be_bytes));
        let number = number.ok_or_else(|| corrupt(&format!("{tried}: the number of batches is damaged")))?;
        let pending = row(CLEARS_KEY)?.map_or_else(|| Ok(RangeSet::default()), |record| decode(&record))?;
        let head = Mutex::new(Head { number, pending: Arc::new(pending) });
        let shared = Shared { rows, database, durability, folder: folder.to_owned(), bulk, head };
        let store = FjallStore { purger: Purger::new("fjall-purge"), shared: Arc::new(shared) };
        store.purge_if_pending();
        Ok(store)
    }

    fn purge_if_pending(&self) {
        if !self.shared.head().pending.is_empty() {
            let shared = self.shared.clone();
            self.purger.wake(move || shared.purge_step());
        }
    }
}

/// Makes a new database, whole or not at all: fjall removes what it finds half made, and what it takes for that.
fn create(folder: &Path, data: &Path, cache_bytes: u64) -> Result<()> {
    let new = folder.join("data.new");
    let tried = format!("cannot create {}", data.display());
    if new.exists() {
        fs::remove_dir_all(&new).map_err(|cause| io_error(&tried, &cause))?;
    }
    let opened = open(&new, cache_bytes).and_then(|(database, rows)| {
        // fjall (3.1.13) takes a snapshot at its sequence number 0, of when nothing was written, for none when
        // it looks for the oldest, and forgets others: so there is none.
        let mut first = database.batch().durability(Some(PersistMode::SyncAll));
        first.insert(&rows, NUMBER_KEY, 1_u64.to_be_bytes());
        first.commit()
    });
    opened.map_err(|failure| kv_error(&failure, &tried))?;
    let settled = sync_folders(&new).and_then(|()| fs::rename(&new, data)).and_then(|()| sync_folder(folder));
    settled.map_err(|cause| io_error(&tried, &cause))
}

/// Makes the names in a folder, and in those below it, durable.
fn sync_folders(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync_folder(folder)
}

fn open(data: &Path, cache_bytes: u64) -> fjall::Result<(Database, Keyspace)> {
    let database = Database::builder(data)
        .cache_size(cache_bytes)
        .max_cached_files(Some(MOST_OPEN))
        // With more, one of them hands what is to be merged round and round while another merges.
        .worker_threads(1)
        .max_journaling_size(JOURNALS)
        .open()?;
    let rows = database.keyspace("rows", || {
        let memtable = (cache_bytes / MEMTABLE_PART).clamp(MEMTABLE_LEAST, MEMTABLE_MOST);
        // What the layer asks for by key is mostly there; and short steps inside a block cost little room.
        KeyspaceCreateOptions::default()
            .max_memtable_size(memtable)
            .expect_point_read_hits(true)
            .data_block_hash_ratio_policy(HashRatioPolicy::all(0.75))
            .data_block_restart_interval_policy(RestartIntervalPolicy::all(4))
    })?;
    Ok((database, rows))
}

impl Shared {
    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self, range: &KeyRange) -> impl Iterator<Item = Result<Bytes>> + use<> {
        let rows = self.rows.range(keys::stored(&range.begin)..keys::stored(&range.end));
        rows.map(|row| row.key().map(|key| Bytes::copy_from_slice(keys::ours(&key))).map_err(failed))
    }

    /// Waits until fjall's threads have made room in memory, or have failed.
    fn make_way(&self) -> fjall::Result<()> {
        while self.rows.sealed_memtable_count() >= MOST_WAITING {
            self.database.persist(PersistMode::Buffer)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Writes a batch, and takes it for the head.
    fn write(&self, head: &mut Head, Settled { points, pending }: Settled, mode: PersistMode) -> fjall::Result<()> {
        let number = head.number + 1;
        let mut batch = self.database.batch().durability(Some(mode));
        batch.insert(&self.rows, NUMBER_KEY, number.to_be_bytes());
        match &pending {
            Some(pending) if pending.is_empty() => batch.remove(&self.rows, CLEARS_KEY),
            Some(pending) => batch.insert(&self.rows, CLEARS_KEY, encode(pending)),
            None => {}
        }
        for (key, value) in points {
            let key = keys::stored(&key);
            match value {
                Some(value) => batch.insert(&self.rows, key.as_ref(), value.as_ref()),
                None => batch.remove(&self.rows, key.as_ref()),
            }
        }
        batch.commit()?;
        head.number = number;
        if let Some(pending) = pending {
            head.pending = Arc::new(pending);
        }
        Ok(())
    }

    /// Removes some rows of a pending clear.
    fn purge_step(&self) -> Step {
        let mut head = self.head();
        let Some((begin, end)) = head.pending.iter().next() else { return Step::Idle };
        let range = KeyRange { begin: begin.clone(), end: end.clone() };
        let purged = caught("fjall", || {
            self.make_way().map_err(failed)?;
            let rows = self.list(&range).take(STEP).collect::<Result<Vec<Bytes>>>()?;
            let last = rows.last().filter(|_| rows.len() == STEP).map(|last| KeyRange::point(last).end);
            let mut left = RangeSet::clone(&head.pending);
            left.remove(&range.begin, &last.unwrap_or(range.end));
            let settled = Settled { points: rows.into_iter().map(|key| (key, None)).collect(), pending: Some(left) };
            // The rows and the record go together: it need not be synced.
            self.write(&mut head, settled, PersistMode::Buffer).map_err(failed)
        });
        if purged.is_ok() { Step::Removed } else { Step::Failed }
    }

    /// A failure in the codes of the contract. fjall does not say what its threads have failed of: mostly a full
    /// disk, which can be tried.
    fn told(&self, failure: fjall::Error) -> Error {
        if !matches!(failure, fjall::Error::Poisoned) {
            return failed(failure);
        }
        let path = self.folder.join("probe");
        let tried = File::create(&path).and_then(|mut file| {
            (0..PROBE >> 16).try_for_each(|_| file.write_all(&[0x55; 1 << 16]))?;
            file.sync_data()
        });
        // Removed as the folder is opened again, if not here.
        let _ = fs::remove_file(&path);
        match tried {
            Err(cause) => io_error(format!("cannot write to {}", self.folder.display()), &cause),
            Ok(()) => Error::new(error::IO_ERROR).with_context(format!(
                "fjall has stopped: it could not write or read a file in {}; open it again",
                self.folder.display()
            )),
        }
    }
}

impl Store for FjallStore {
    type View = FjallView;

    fn view(&self) -> Result<FjallView> {
        let head = self.shared.head();
        Ok(FjallView::new(self.shared.database.snapshot(), self.shared.rows.clone(), head.pending.clone()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let shared = &self.shared;
        let mut head = shared.head();
        let settled = caught("fjall", || settle(batch, &head.pending, shared.bulk, |range| shared.list(range)));
        let settled = settled.map_err(ApplyError::NothingApplied)?;
        shared.make_way().map_err(|failure| ApplyError::Unknown(shared.told(failure)))?;
        let mode = match shared.durability {
            Durability::Disk => PersistMode::SyncData,
            _ => PersistMode::Buffer,
        };
        let cleared = settled.pending.is_some();
        // Synced under the lock that it is written under: no thread of fjall's comes between, to be told
        // of a failure that this sync is then not told of.
        shared.write(&mut head, settled, mode).map_err(|failure| ApplyError::Unknown(shared.told(failure)))?;
        drop(head);
        if cleared {
            self.purge_if_pending();
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.shared.durability
    }

    fn close(&self) -> Result<()> {
        self.purger.stop();
        self.shared.database.persist(PersistMode::SyncAll).map_err(|failure| self.shared.told(failure))
    }
}

#[cfg(test)]
mod tests;
