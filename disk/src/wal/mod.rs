//! A write-ahead log and sorted runs in memory, in front of a store to which commits are expensive.
//!
//! ```text
//!                      ┌ append, sync ─► log        what was committed and not flushed yet
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
//! * A view has its runs and its snapshot of the store below, taken together. A flush changes no view.
//! * The log is empty after a store was opened, and after it was closed. What a crash left in the log is
//!   applied to the store below, all of it, and synced, whatever the store has already. If the disk is full, it is only
//!   read: the log stays as it is, and commits fail until there is room.
//!
//! A failed flush is retried, from the first row to the sync. Meanwhile commits fail with its error and lose
//! nothing. A failed sync of the log is not retried, because Linux marks the unwritten pages as clean. Instead
//! everything in memory is flushed and a new log begun. If that fails too, the commit's outcome is unknown.

mod figures;
mod log;
mod pack;
mod row;
mod run;
mod view;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use kv_api::error::STORAGE_QUOTA_EXCEEDED;
use kv_api::{Durability, Error, Figure, Result, error};
use parking_lot::{Condvar, Mutex};

use self::figures::LogCounts;
use self::log::Log;
use self::run::{Run, RunBuilder};
pub use self::view::{WalRange, WalView};
use crate::folder::io_error;
use crate::on_disk::{DiskStore, older};
use crate::panics::caught;
use crate::room;
use crate::synced::Synced;
use occ::store::{ApplyError, Batch, Store};
use occ::{KeyRange, last_version};

/// Size at which active runs are flushed: this part of the cache, within these bounds, and less on a small disk.
const CACHE_PART: u64 = 6;
const MIN_FLUSH_BYTES: u64 = 16 << 10;
const MAX_FLUSH_BYTES: u64 = 16 << 20;

/// While a flush is running, a commit waits when all runs, those that are being flushed too, have this many times that
/// size. So a store that is slower than its writers does not fill the memory.
const STALL_FACTOR: usize = 3;

/// [Bulky](Run::is_bulky) runs are flushed at this part of the size,
const BULKY_PART: usize = 4;

/// and commits wait at this many times that part. Whoever uploads large rows waits for the disk in any case, and one flush ahead
/// of it is enough.
const BULKY_STALL_FACTOR: usize = 2;

/// Active runs of this part of the size are flushed when no batch has come for [`IDLE_FLUSH`]. Smaller ones stay in the log: each
/// flush makes the store below rewrite much more than the flush, so a few small writes a second would rewrite all of it again and
/// again. Without a log, runs of any size are flushed.
const IDLE_PART: usize = 4;
const IDLE_FLUSH: Duration = Duration::from_secs(1);

/// They are flushed too if they hide this much below, such as a database that was dropped.
const IDLE_HIDDEN_BYTES: u64 = 16 << 20;

/// Time after that after which nobody needs old snapshots: transactions may read for five seconds.
const QUIET: Duration = Duration::from_secs(6);

/// Pause before a failed flush is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Number of runs of about one size that are merged.
const MERGED_RUNS: usize = 4;

/// Whether the rows that runs remove take much space below.
fn hides_much<S: DiskStore>(runs: &[Arc<Run>], below: &S::View) -> bool {
    let hidden = |batch: Batch| S::hidden_bytes(below, &batch) >= IDLE_HIDDEN_BYTES;
    !runs.is_empty() && Run::batch_of(runs, 0).is_ok_and(hidden)
}

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

struct Inner<S: DiskStore> {
    below: S,
    folder: PathBuf,
    flush_bytes: usize,
    /// Size of active runs that are flushed when no batch comes.
    idle_bytes: usize,
    log: Mutex<Logging>,
    state: Mutex<State<S::View>>,
    /// Number of flushes. Written under the state's lock and read without it.
    flushes: AtomicU64,
    counts: LogCounts,
    changed: Condvar,
    /// Lets go of old snapshots, which keep files of the store below.
    let_go: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A range to compact below, once everything is flushed that was written before the request.
struct Asked {
    range: KeyRange,
    /// Version of the newest run at the request.
    version: i64,
}

enum Logging {
    /// Commits need not outlive the process.
    Off,
    /// The log that was found is not flushed yet, since the disk was full. It is the only durable copy of the frozen runs, and is
    /// replaced when they are flushed.
    Found,
    On(Log),
}

impl Logging {
    /// The log that commits are appended to.
    fn log(&mut self) -> Option<&mut Log> {
        match self {
            Logging::On(log) => Some(log),
            Logging::Off | Logging::Found => None,
        }
    }
}

struct State<V> {
    /// All runs, oldest first.
    runs: Arc<[Arc<Run>]>,
    /// Number of frozen runs. The others are active.
    frozen: usize,
    /// Bytes of the active runs.
    active_bytes: usize,
    /// Bytes of the frozen runs.
    frozen_bytes: usize,
    /// Version of the newest run.
    version: i64,
    /// Version of the newest frozen run.
    frozen_version: i64,
    below: V,
    /// Whether no batch has come since the flusher did what it does when none comes.
    is_resting: bool,
    /// What to compact below.
    asked: Vec<Asked>,
    /// Error of the last flush, if it failed.
    failed: Option<kv_api::Error>,
    stopped: bool,
}

impl<V> State<V> {
    fn active(&self) -> &[Arc<Run>] {
        &self.runs[self.frozen..]
    }

    /// Adds a run, and merges the last runs if they are of about one size. So there are few runs, and each row
    /// is copied a few times. Bulky runs are few without that.
    fn push(&mut self, run: Run) -> Result<()> {
        let class = |run: &Arc<Run>| run.size().max(1).ilog2() / MERGED_RUNS.ilog2();
        let mut runs = self.runs.to_vec();
        self.active_bytes += run.size();
        runs.push(Arc::new(run));
        while let Some(from) = runs.len().checked_sub(MERGED_RUNS).filter(|from| *from >= self.frozen) {
            if runs[from..].iter().any(|run| run.is_bulky()) {
                break;
            }
            if class(&runs[from]) > runs[from + 1..].iter().map(class).max().unwrap_or(0) {
                break;
            }
            let merged = Run::merged(&runs[from..])?;
            runs.truncate(from);
            runs.push(Arc::new(merged));
        }
        self.runs = runs.into();
        Ok(())
    }
}

impl<S: DiskStore> Inner<S> {
    fn view(&self, state: &State<S::View>) -> WalView<S::View> {
        let (runs, below) = (state.runs.clone(), state.below.clone());
        WalView { runs, below, version: state.version, flushes: self.flushes.load(Ordering::Relaxed) }
    }

    /// Freezes the active runs, if there are any and no others are frozen.
    fn freeze(&self) {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        if state.frozen == 0 && !state.runs.is_empty() {
            if let Some(log) = log.log() {
                log.switch_files();
            }
            state.frozen = state.runs.len();
            state.frozen_version = state.version;
            state.frozen_bytes = std::mem::take(&mut state.active_bytes);
            self.changed.notify_all();
        }
    }

    /// Flushes the frozen runs to the store below.
    fn flush(&self) -> Result<()> {
        let (runs, version) = {
            let state = self.state.lock();
            (state.runs[..state.frozen].to_vec(), state.frozen_version)
        };
        let started = figures::now();
        let below = caught("a flush", || {
            self.below.apply(Run::batch_of(&runs, version)?).map_err(ApplyError::into_error)?;
            self.below.sync()?;
            self.below.view()
        });
        let mut state = self.state.lock();
        let outcome = match below {
            Ok(view) => {
                self.counts.flushes.observe_time(started.elapsed());
                self.counts.flushed_bytes.add(std::mem::take(&mut state.frozen_bytes) as u64);
                state.runs = state.active().into();
                state.frozen = 0;
                // The log may shrink.
                state.is_resting = false;
                state.below = view;
                self.flushes.fetch_add(1, Ordering::Release);
                state.failed = None;
                Ok(())
            }
            Err(error) => {
                self.counts.failed_flushes.add(1);
                // The first error has the cause. A store may say of later ones only that it failed before.
                state.failed.get_or_insert_with(|| error.clone());
                Err(error)
            }
        };
        self.changed.notify_all();
        outcome
    }

    /// The flusher thread.
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stopped {
            if state.frozen > 0 {
                drop(state);
                let outcome = self.flush();
                state = self.state.lock();
                if outcome.is_err() && !state.stopped {
                    self.changed.wait_for(&mut state, RETRY_PAUSE);
                }
            } else if !state.asked.is_empty() {
                // Writers may never pause, so only what was written before a request is flushed for it.
                let flushed = if state.runs.is_empty() { state.version } else { state.frozen_version };
                let is_ready = |asked: &&Asked| asked.version <= flushed;
                let ready: Vec<KeyRange> =
                    state.asked.iter().filter(is_ready).map(|asked| asked.range.clone()).collect();
                let is_behind = ready.is_empty();
                drop(state);
                if is_behind {
                    self.freeze();
                }
                // The store below may be busy for a moment, which commits must not wait for.
                ready.iter().for_each(|range| self.below.compact(&range.begin, &range.end));
                state = self.state.lock();
                state.asked.retain(|asked| !is_ready(&asked));
            } else if state.is_resting {
                if !self.changed.wait_for(&mut state, QUIET).timed_out() {
                    continue;
                }
                drop(state);
                if let Some(let_go) = self.let_go.get() {
                    let_go();
                }
                state = self.state.lock();
                if state.is_resting && state.frozen == 0 && state.asked.is_empty() && !state.stopped {
                    self.changed.wait(&mut state);
                }
            } else {
                let version = state.version;
                let is_idle = self.changed.wait_for(&mut state, IDLE_FLUSH).timed_out();
                if is_idle && !state.stopped && state.version == version {
                    state.is_resting = true;
                    let (active, below) = (state.active().to_vec(), state.below.clone());
                    let is_large = state.active_bytes >= self.idle_bytes;
                    drop(state);
                    if is_large || hides_much::<S>(&active, &below) {
                        self.freeze();
                    } else {
                        self.shrink_log();
                    }
                    state = self.state.lock();
                }
            }
        }
    }

    /// Shrinks the log's files, unless a file is being flushed.
    fn shrink_log(&self) {
        let mut log = self.log.lock();
        if self.state.lock().frozen == 0
            && let Some(log) = log.log()
        {
            log.shrink();
        }
    }

    /// Flushes everything in memory, and begins a new log: in place of one that was [found](Logging::Found), or after a failed
    /// sync, which is not retried, since Linux marks the unwritten pages as clean and reports success. Called between one batch and
    /// the next, so no run is added meanwhile.
    fn restart_log(&self) -> Result<()> {
        loop {
            self.freeze();
            let mut state = self.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.runs.is_empty() {
                break;
            }
            if state.frozen > 0 {
                self.changed.wait(&mut state);
            }
        }
        let version = self.state.lock().version;
        let mut log = self.log.lock();
        *log = Logging::On(Log::begin(&self.folder, version, true)?);
        Ok(())
    }

    /// Flushes a log that was found when the disk was full, and begins a new one.
    fn replace_found_log(&self) -> Result<()> {
        let is_found = matches!(*self.log.lock(), Logging::Found);
        if is_found { self.restart_log() } else { Ok(()) }
    }

    /// Whether another batch may be applied before the next flush ends, or begins.
    fn has_room(&self, state: &State<S::View>) -> bool {
        let are_bulky = state.runs.iter().any(|run| run.is_bulky());
        let (flush_bytes, factor) = if are_bulky {
            (self.flush_bytes / BULKY_PART, BULKY_STALL_FACTOR)
        } else {
            (self.flush_bytes, STALL_FACTOR)
        };
        if state.frozen > 0 {
            state.frozen_bytes + state.active_bytes < factor * flush_bytes
        } else {
            state.active_bytes < flush_bytes
        }
    }

    /// Waits until another batch may be applied.
    fn make_room(&self) -> Result<()> {
        let mut state = self.state.lock();
        let mut has_waited = false;
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if self.has_room(&state) {
                return Ok(());
            }
            if state.frozen > 0 {
                if !std::mem::replace(&mut has_waited, true) {
                    self.counts.stalls.add(1);
                }
                self.changed.wait(&mut state);
            } else {
                drop(state);
                self.freeze();
                state = self.state.lock();
            }
        }
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

    fn stop_flusher(&self) {
        self.inner.state.lock().stopped = true;
        self.inner.changed.notify_all();
        let thread = self.flusher.lock().take();
        // The thread itself drops the store if it has let go of the last snapshot of a closed database.
        match thread {
            // The folder's lock ends with the store, and the store below must not write after that.
            Some(thread) if thread.thread().id() == std::thread::current().id() => drop(self.inner.below.close()),
            // What it did not flush is in the log.
            Some(thread) => drop(thread.join()),
            None => {}
        }
    }
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
        let (runs, version) = log::recover(folder, last_version(&below.view()?)?)?;
        // Checked before anything is changed: a damaged log may be all that is left.
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
            // What is there can be read. Commits fail until there is room.
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
            below: below.view()?,
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
        let inner = Inner { below, folder, flush_bytes, idle_bytes, log, state, flushes, counts, changed, let_go };
        Ok(WalStore { inner: Arc::new(inner), flusher: Mutex::default() })
    }

    /// The store below as of a flush, and the log of what came after it.
    ///
    /// ```text
    ///   below   ──────── flush │                       the view
    ///   log            a file  │ frozen │ the other    both files while runs are frozen, else one
    /// ```
    /// While the log is locked nothing is appended, and no file is overwritten. A flush that runs meanwhile changes neither
    /// the view nor the records.
    fn copy(&self, folder: &Path) -> Result<i64> {
        let (view, version, files) = {
            let mut log = self.inner.log.lock();
            let Some(log) = log.log() else {
                let sentence =
                    "there is no snapshot of a store that has no log, or whose log waits for room on the disk";
                return Err(Error::new(error::UNSUPPORTED_OPERATION).with_context(sentence));
            };
            // A batch may be appended and not synced, and so not acknowledged. It is durable before it is copied. If that
            // fails, the log says so to its committer too.
            log.sync()?;
            let (view, version, are_frozen) = {
                let state = self.inner.state.lock();
                (state.below.clone(), state.version, state.frozen > 0)
            };
            (view, version, log.records(are_frozen)?)
        };
        self.inner.below.copy_view(&view, folder)?;
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
    type View = WalView<S::View>;

    fn view(&self) -> Result<Self::View> {
        Ok(self.inner.view(&self.inner.state.lock()))
    }

    /// After a flush: the new view no longer searches and keeps the flushed runs. Does not wait for the lock.
    fn refreshed(&self, view: &Self::View) -> Option<Self::View> {
        if view.runs.is_empty() || view.flushes == self.inner.flushes.load(Ordering::Acquire) {
            return None;
        }
        let state = self.inner.state.try_lock()?;
        (state.version == view.version).then(|| self.inner.view(&state))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let version = batch.version();
        let ready = self.start_flusher().and_then(|()| self.inner.replace_found_log());
        let ready = ready.and_then(|()| self.inner.make_room());
        let record = ready.and_then(|()| RunBuilder::of(&batch, log::HEAD));
        let mut record = record.map_err(ApplyError::NothingApplied)?;
        // The lock is held until the run is active: runs and their log file are frozen together.
        let mut log = self.inner.log.lock();
        if let Some(log) = log.log() {
            let (run_length, mut packed) = (record.bytes.len() - log::HEAD, record.packed());
            let record = packed.as_mut().unwrap_or(&mut record.bytes);
            log.append(version, record, run_length).map_err(ApplyError::NothingApplied)?;
            self.inner.counts.bytes.add(record.len() as u64);
        }
        let mut state = self.inner.state.lock();
        state.push(record.run()).map_err(ApplyError::Unknown)?;
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
        outcome.or_else(|error| self.inner.restart_log().map_err(|_| error))
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

    /// After a flush, so that what was removed until now counts.
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

    /// With what is in the log and not flushed yet.
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

    /// What is in memory will be flushed, and so will the next batch, after it was appended to the log.
    fn check_room(&self, bytes: u64) -> Result<()> {
        let unflushed = {
            let state = self.inner.state.lock();
            (state.active_bytes + state.frozen_bytes) as u64
        };
        let outcome = room::check(&self.inner.folder, unflushed + 2 * bytes);
        if outcome.is_err() {
            // A flush gives the log's space back, and removes what was deleted.
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
        // A log that was found and not replaced is applied again when the store is opened, which changes nothing.
        self.inner.log.lock().log().map_or(Ok(()), Log::clear)
    }
}

#[cfg(test)]
mod tests;
