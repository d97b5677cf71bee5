//! A write-ahead log and sorted runs in memory, in front of a store with expensive commits.
//!
//! ```text
//!                      ┌ append, sync ─► log        commits that are not flushed yet
//!   apply(batch) ─► run
//!                      └ runs in memory ─ flushed together, in key order, by a thread ─► store below
//!
//!   runs    │ frozen: being flushed       │ active: merged as they come │
//!   log     │ one file                    │ the other file              │
//! ```
//!
//! A tree on the disk copies pages for each commit; a log appends. With the log a synced commit costs one short
//! write and one sync. A flush gives the tree the changes of many commits at once, in key order, so that each
//! page is written once for all of them. Reads look at the runs first, then at the store below. FoundationDB's
//! storage servers work like this: the log answers for the last seconds, which are in memory.
//!
//! Invariants:
//!
//! * A batch is in the log before it can be read, and synced before its commits are answered. (There is no log
//!   for the durability of a process.)
//! * The store below holds everything up to one version. The log has everything after it, without a gap. What
//!   was flushed is synced before its log file is overwritten.
//! * A snapshot has its runs and a snapshot of the store below, taken together. A flush changes no snapshot.
//! * The log is empty after a store was opened, and after it was closed. After a crash the whole log is applied to the
//!   store below and synced, whatever the store has already. If the disk is full, the log is only read and stays as it
//!   is, and commits fail until there is room.
//!
//! A failed flush is retried, from the first row to the sync. Meanwhile commits fail with its error, and nothing is
//! lost. A failed sync of the log is not retried, because Linux marks the unwritten pages as clean. Instead everything
//! in memory is flushed and a new log begun. If that fails too, the commit's outcome is unknown.

mod figures;
mod flusher;
pub mod follow;
mod log;
mod pack;
mod row;
mod run;
mod snapshot;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use kv_api::error::STORAGE_QUOTA_EXCEEDED;
use kv_api::{Durability, Error, Figure, Result, error};
use parking_lot::{Condvar, Mutex};

use self::figures::LogCounts;
use self::flusher::{Asked, IDLE_PART, Inner, Logging, State};
use self::follow::{Followed, Tail};
use self::log::Log;
pub use self::log::{FORM, LogRecord};
use self::run::{Run, RunBuilder};
pub use self::snapshot::{WalRange, WalSnapshot};
use crate::folder::io_error;
use crate::on_disk::{CopiedTable, DiskStore, older};
use crate::room;
use crate::synced::Synced;
use occ::store::{ApplyError, Batch, Store};
use occ::{KeyRange, last_version};

/// Active runs are flushed at 1/`CACHE_PART` of the cache, within these bounds, and earlier on a small disk.
const CACHE_PART: u64 = 6;
const MIN_FLUSH_BYTES: u64 = 16 << 10;
const MAX_FLUSH_BYTES: u64 = 16 << 20;

/// See the [module](self).
pub struct WalStore<S: DiskStore> {
    inner: Arc<Inner<S>>,
    /// The thread that flushes, started by the first batch.
    flusher: Mutex<Option<JoinHandle<()>>>,
}

impl<S: DiskStore> std::fmt::Debug for WalStore<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalStore").field("below", &S::ENGINE).finish_non_exhaustive()
    }
}

impl<S: DiskStore> WalStore<S> {
    /// The store below.
    pub fn below(&self) -> &S {
        &self.inner.below
    }

    /// Starts the flusher, if it is not running.
    fn start_flusher(&self) -> Result<()> {
        let mut flusher = self.flusher.lock();
        if flusher.is_none() {
            let inner = self.inner.clone();
            let thread = std::thread::Builder::new().name("occ-flusher".into()).spawn(move || inner.run());
            *flusher =
                Some(thread.map_err(|cause| io_error("cannot start the thread that writes to the disk", &cause))?);
        }
        Ok(())
    }

    /// Follows the log, in place of who followed it before: from the records that are not flushed yet, which continue what
    /// [`copy_tables`](Self::copy_tables) copies from now on. `most`: bytes of records that may wait to be taken.
    ///
    /// # Errors
    /// 2108 without a log; the disk's errors.
    pub fn follow(&self, most: usize) -> Result<Tail> {
        let mut log = self.inner.log.lock();
        let log = log.log().ok_or_else(no_log)?;
        // Not shown to anybody before it is durable. If this fails, the log tells the committer.
        log.sync()?;
        let are_frozen = self.inner.state.lock().frozen > 0;
        let mut records = Vec::new();
        // The file that is being written comes first.
        for (path, bytes) in log.records(are_frozen)?.into_iter().rev() {
            let damaged = || {
                let sentence = format!("the log {} does not have what was written", path.display());
                Error::new(error::FILE_CORRUPT).with_context(sentence)
            };
            records.extend(log::split(&bytes.into(), log::FILE_HEAD).ok_or_else(damaged)?);
        }
        Ok(self.inner.followed.begin(records, log.version(), most))
    }

    /// Lets the flusher flush what is in memory, unless it is flushing.
    pub(crate) fn ask_flush(&self) {
        self.inner.freeze();
    }

    /// Copies the tables of the last flush into an empty folder. Returns the version of their newest batch, and which
    /// files they are.
    ///
    /// # Errors
    /// As [`DiskStore::copy_snapshot`].
    pub fn copy_tables(&self, folder: &Path) -> Result<(i64, Vec<CopiedTable>)> {
        let snapshot = self.inner.state.lock().below.clone();
        Ok((last_version(&snapshot)?, self.inner.below.copy_snapshot(&snapshot, folder)?))
    }

    fn stop_flusher(&self) {
        self.inner.state.lock().stopped = true;
        self.inner.changed.notify_all();
        let thread = self.flusher.lock().take();
        // The flusher itself drops the store if it dropped the last snapshot of a closed database.
        match thread {
            // The folder is unlocked when the store is dropped, and the store below must not write after that.
            Some(thread) if thread.thread().id() == std::thread::current().id() => drop(self.inner.below.close()),
            // The log has everything that it did not flush.
            Some(thread) => drop(thread.join()),
            None => {}
        }
    }
}

fn no_log() -> Error {
    let sentence =
        "a store that has no log, or whose log waits for room on the disk, can be neither copied nor shipped";
    Error::new(error::UNSUPPORTED_OPERATION).with_context(sentence)
}

impl<S: DiskStore> Drop for WalStore<S> {
    fn drop(&mut self) {
        self.stop_flusher();
    }
}

impl<S: DiskStore> DiskStore for WalStore<S> {
    const ENGINE: &'static str = S::ENGINE;
    const DURABILITIES: &'static [Durability] = S::DURABILITIES;

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        let below = S::open(folder, cache_bytes, durability)?;
        let (runs, version) = log::recover(folder, last_version(&below.snapshot()?)?)?;
        // Checked before anything is changed: a damaged log may be the only copy left.
        let cannot_read =
            |cause| io_error(format!("cannot read the side file `synced` in {}", folder.display()), &cause);
        let once = Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).map_err(cannot_read)?;
        if version < once {
            return Err(older(folder, version, once));
        }
        let mut runs: Vec<Arc<Run>> = runs.into_iter().map(Arc::new).collect();
        let begun = || -> Result<Logging> {
            if !runs.is_empty() {
                below.apply(Run::batch_of(&runs, version)?).map_err(ApplyError::into_error)?;
                below.sync()?;
            }
            match durability {
                Durability::Process => Ok(Logging::Off),
                _ => Ok(Logging::On(Log::begin(folder, version, durability == Durability::Disk)?)),
            }
        };
        let log = match begun() {
            Ok(log) => {
                runs.clear();
                log
            }
            // The data can be read. Commits fail until there is room.
            Err(error) if error.code() == STORAGE_QUOTA_EXCEEDED && durability == Durability::Disk => {
                if !runs.is_empty() {
                    runs = vec![Arc::new(Run::merged(&runs)?)];
                }
                Logging::Found
            }
            Err(error) => return Err(error),
        };
        let state = State {
            frozen: runs.len(),
            active_bytes: 0,
            frozen_bytes: runs.iter().map(|run| run.size()).sum(),
            runs: runs.into(),
            version,
            frozen_version: version,
            below: below.snapshot()?,
            is_resting: false,
            asked: Vec::new(),
            failed: None,
            stopped: false,
        };
        let most = room::table_bytes(folder, MAX_FLUSH_BYTES);
        let flush_bytes = (cache_bytes / CACHE_PART).clamp(MIN_FLUSH_BYTES, most) as usize;
        let idle_bytes = if matches!(log, Logging::Off) { 1 } else { flush_bytes / IDLE_PART };
        let (log, state) = (Mutex::new(log), Mutex::new(state));
        let (folder, flushes, changed) = (folder.to_owned(), AtomicU64::new(0), Condvar::new());
        let (counts, let_go) = (LogCounts::default(), OnceLock::new());
        let followed = Followed::default();
        let inner =
            Inner { below, folder, flush_bytes, idle_bytes, log, state, flushes, counts, followed, changed, let_go };
        Ok(WalStore { inner: Arc::new(inner), flusher: Mutex::default() })
    }

    /// The store below as of a flush, and the log of what came after it.
    ///
    /// ```text
    ///   below   ──────── flush │                       a snapshot
    ///   log            a file  │ frozen │ the other    both files while runs are frozen, else one
    /// ```
    /// While the log is locked nothing is appended, and no file is overwritten. A flush that runs meanwhile changes
    /// neither the snapshot nor the records.
    fn copy(&self, folder: &Path) -> Result<i64> {
        let (snapshot, version, files) = {
            let mut log = self.inner.log.lock();
            let log = log.log().ok_or_else(no_log)?;
            // A batch may be appended and not synced, and so not acknowledged. It is durable before it is copied. If
            // that fails, the log says so to its committer too.
            log.sync()?;
            let (snapshot, version, are_frozen) = {
                let state = self.inner.state.lock();
                (state.below.clone(), state.version, state.frozen > 0)
            };
            (snapshot, version, log.records(are_frozen)?)
        };
        self.inner.below.copy_snapshot(&snapshot, folder)?;
        for (name, bytes) in files {
            let path = folder.join(name);
            let written = File::create_new(&path).and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            });
            written.map_err(|cause| io_error(format!("cannot write {}", path.display()), &cause))?;
        }
        Ok(version)
    }
}

impl<S: DiskStore> Store for WalStore<S> {
    type Snapshot = WalSnapshot<S::Snapshot>;

    fn snapshot(&self) -> Result<Self::Snapshot> {
        Ok(self.inner.snapshot(&self.inner.state.lock()))
    }

    /// After a flush: the new snapshot no longer searches or keeps the flushed runs. Does not wait for the lock.
    fn refreshed(&self, snapshot: &Self::Snapshot) -> Option<Self::Snapshot> {
        if snapshot.runs.is_empty() || snapshot.flushes == self.inner.flushes.load(Ordering::Acquire) {
            return None;
        }
        let state = self.inner.state.try_lock()?;
        (state.version == snapshot.version).then(|| self.inner.snapshot(&state))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let version = batch.version();
        let ready = self.start_flusher().and_then(|()| self.inner.replace_found_log());
        let ready = ready.and_then(|()| self.inner.make_room());
        let record = ready.and_then(|()| RunBuilder::of(&batch, log::HEAD));
        let mut record = record.map_err(ApplyError::NothingApplied)?;
        let mut appended = None;
        // The lock is held until the run is active: runs and their log file are frozen together.
        let mut log = self.inner.log.lock();
        if let Some(log) = log.log() {
            let (run_length, mut packed) = (record.bytes.len() - log::HEAD, record.packed());
            let bytes = packed.as_mut().unwrap_or(&mut record.bytes);
            let previous = log.version();
            log.append(version, bytes, run_length).map_err(ApplyError::NothingApplied)?;
            self.inner.counts.bytes.add(bytes.len() as u64);
            appended = Some((previous, packed));
        }
        let run = record.run();
        if let Some((previous, packed)) = appended {
            let bytes = || packed.map_or_else(|| run.bytes().clone(), Into::into);
            self.inner.followed.add(|| LogRecord::new(previous, version, bytes()));
        }
        let mut state = self.inner.state.lock();
        state.push(run).map_err(ApplyError::Unknown)?;
        state.version = version;
        if std::mem::take(&mut state.is_resting) {
            self.inner.changed.notify_all();
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let outcome = self.inner.log.lock().log().map_or(Ok(()), |log| {
            let started = figures::now();
            let outcome = log.sync();
            self.inner.counts.syncs.observe_time(started.elapsed());
            outcome
        });
        outcome.or_else(|error| self.inner.restart_log().map_err(|_| error))?;
        self.inner.followed.synced();
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.inner.below.durability()
    }

    fn outlives_process(&self) -> bool {
        self.inner.below.outlives_process()
    }

    fn when_quiet(&self, let_go: Box<dyn Fn() + Send + Sync>) {
        let _ = self.inner.let_go.set(let_go);
    }

    /// After a flush, so that everything removed until now counts.
    fn compact(&self, begin: &[u8], end: &[u8]) {
        let is_running = self.start_flusher().is_ok();
        let mut state = self.inner.state.lock();
        if is_running {
            let (range, version) = (KeyRange::copied(begin, end), state.version);
            state.asked.retain(|asked| asked.range != range);
            state.asked.push(Asked { range, version });
            self.inner.changed.notify_all();
        }
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        let intersects = |asked: &Asked| *asked.range.begin < *end && *begin < *asked.range.end;
        // A range leaves this list after the store below has it.
        let is_waiting = self.inner.state.lock().asked.iter().any(intersects);
        is_waiting || self.inner.below.is_compacting(begin, end)
    }

    /// Includes rows that are in the log and not flushed yet.
    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        let below = self.inner.below.disk_bytes(begin, end)?;
        let runs = self.inner.state.lock().runs.clone();
        Some(below + runs.iter().map(|run| run.bytes_between(begin, end)).sum::<u64>())
    }

    fn figures(&self) -> Vec<Figure> {
        let unflushed = {
            let state = self.inner.state.lock();
            state.active_bytes + state.frozen_bytes
        };
        [self.inner.counts.figures(unflushed), self.inner.below.figures()].concat()
    }

    /// Counts the runs in memory, which will be flushed, and the next batch twice: it is logged, then flushed.
    fn check_room(&self, bytes: u64) -> Result<()> {
        let unflushed = {
            let state = self.inner.state.lock();
            (state.active_bytes + state.frozen_bytes) as u64
        };
        let outcome = room::check(&self.inner.folder, unflushed + 2 * bytes);
        if outcome.is_err() {
            // A flush frees the log's space, and removes deleted rows.
            self.start_flusher()?;
            self.inner.freeze();
        }
        outcome
    }

    fn close(&self) -> Result<()> {
        self.stop_flusher();
        loop {
            self.inner.freeze();
            if self.inner.state.lock().frozen == 0 {
                break;
            }
            self.inner.flush()?;
        }
        self.inner.below.close()?;
        // An existing log that was not replaced is applied again at the next opening, which changes nothing.
        self.inner.log.lock().log().map_or(Ok(()), Log::clear)
    }
}

#[cfg(test)]
mod tests;
