//! The runs in memory, the log beside them, and the thread that flushes both to the store below.
//!
//! ```text
//!   apply ─► active ── freeze ─► frozen ── flush ─► store below
//!              │          └ the log goes on in the other file
//!              └ waits in `make_room` while too much is not flushed
//! ```

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kv_api::Result;
use occ::KeyRange;
use occ::store::{ApplyError, Batch};
use parking_lot::{Condvar, Mutex};

use super::figures::{self, LogCounts};
use super::follow::Followed;
use super::log::Log;
use super::run::Run;
use super::snapshot::WalSnapshot;
use crate::on_disk::DiskStore;
use crate::panics::caught;

/// While a flush is running, commits wait when all runs, including those being flushed, have this many times that size.
/// So a store that is slower than its writers does not fill the memory.
pub(super) const STALL_FACTOR: usize = 3;

/// [Bulky](Run::is_bulky) runs are flushed at 1/`BULKY_PART` of the size.
pub(super) const BULKY_PART: usize = 4;

/// Commits wait when bulky runs have this many times that part. Writers of large rows wait for the disk in any case,
/// and one flush ahead of it is enough.
const BULKY_STALL_FACTOR: usize = 2;

/// When no batch has come for [`IDLE_FLUSH`], active runs are flushed if they have 1/`IDLE_PART` of the size. Smaller
/// ones stay in the log: a flush makes the store below rewrite much more than itself, so frequent small flushes would
/// rewrite all of it again and again. Without a log, runs of any size are flushed.
pub(super) const IDLE_PART: usize = 4;
pub(super) const IDLE_FLUSH: Duration = Duration::from_secs(1);

/// They are also flushed if they hide this much below, for instance a dropped database.
pub(super) const IDLE_HIDDEN_BYTES: u64 = 16 << 20;

/// Time after that until no transaction needs old snapshots: a transaction may read for five seconds.
const QUIET: Duration = Duration::from_secs(6);

/// Pause before a failed flush is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Number of runs of similar size that are merged.
const MERGED_RUNS: usize = 4;

/// Whether the rows that the runs remove take much space below.
fn hides_much<S: DiskStore>(runs: &[Arc<Run>], below: &S::Snapshot) -> bool {
    let hidden = |batch: Batch| S::hidden_bytes(below, &batch) >= IDLE_HIDDEN_BYTES;
    !runs.is_empty() && Run::batch_of(runs, 0).is_ok_and(hidden)
}

pub(super) struct Inner<S: DiskStore> {
    pub(super) below: S,
    pub(super) folder: PathBuf,
    pub(super) flush_bytes: usize,
    /// Size of active runs that are flushed when no batch comes.
    pub(super) idle_bytes: usize,
    pub(super) log: Mutex<Logging>,
    pub(super) state: Mutex<State<S::Snapshot>>,
    /// Number of flushes. Written under the state's lock and read without it.
    pub(super) flushes: AtomicU64,
    pub(super) counts: LogCounts,
    pub(super) followed: Followed,
    pub(super) changed: Condvar,
    /// Drops old snapshots, which keep files of the store below.
    pub(super) let_go: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A range to compact below once everything written before the request is flushed.
pub(super) struct Asked {
    pub(super) range: KeyRange,
    /// Version of the newest run at the request.
    pub(super) version: i64,
}

pub(super) enum Logging {
    /// Commits need not outlive the process.
    Off,
    /// The disk was full at the opening, so the existing log is not flushed yet. It is the only durable copy of the
    /// frozen runs, and is replaced when they are flushed.
    Found,
    On(Log),
}

impl Logging {
    /// The log that commits are appended to.
    pub(super) fn log(&mut self) -> Option<&mut Log> {
        match self {
            Logging::On(log) => Some(log),
            Logging::Off | Logging::Found => None,
        }
    }
}

pub(super) struct State<V> {
    /// All runs, oldest first.
    pub(super) runs: Arc<[Arc<Run>]>,
    /// Number of frozen runs. The others are active.
    pub(super) frozen: usize,
    /// Bytes of the active runs.
    pub(super) active_bytes: usize,
    /// Bytes of the frozen runs.
    pub(super) frozen_bytes: usize,
    /// Version of the newest run.
    pub(super) version: i64,
    /// Version of the newest frozen run.
    pub(super) frozen_version: i64,
    pub(super) below: V,
    /// Whether the flusher has done its idle work, and no batch has come since.
    pub(super) is_resting: bool,
    /// Ranges to compact below.
    pub(super) asked: Vec<Asked>,
    /// Error of the last flush, if it failed.
    pub(super) failed: Option<kv_api::Error>,
    pub(super) stopped: bool,
}

impl<V> State<V> {
    fn active(&self) -> &[Arc<Run>] {
        &self.runs[self.frozen..]
    }

    /// Adds a run, and merges the last runs if they have similar sizes. So there are few runs, and each row is copied a
    /// few times. Bulky runs are few without merging.
    pub(super) fn push(&mut self, run: Run) -> Result<()> {
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
    pub(super) fn snapshot(&self, state: &State<S::Snapshot>) -> WalSnapshot<S::Snapshot> {
        let (runs, below) = (state.runs.clone(), state.below.clone());
        WalSnapshot { runs, below, version: state.version, flushes: self.flushes.load(Ordering::Relaxed) }
    }

    /// Freezes the active runs, unless others are frozen already.
    pub(super) fn freeze(&self) {
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
    pub(super) fn flush(&self) -> Result<()> {
        let (runs, version) = {
            let state = self.state.lock();
            (state.runs[..state.frozen].to_vec(), state.frozen_version)
        };
        let started = figures::now();
        let below = caught("a flush", || {
            self.below.apply(Run::batch_of(&runs, version)?).map_err(ApplyError::into_error)?;
            self.below.sync()?;
            self.below.snapshot()
        });
        let mut state = self.state.lock();
        let outcome = match below {
            Ok(snapshot) => {
                self.counts.flushes.observe_time(started.elapsed());
                self.counts.flushed_bytes.add(std::mem::take(&mut state.frozen_bytes) as u64);
                state.runs = state.active().into();
                state.frozen = 0;
                // The log may shrink.
                state.is_resting = false;
                state.below = snapshot;
                self.flushes.fetch_add(1, Ordering::Release);
                state.failed = None;
                Ok(())
            }
            Err(error) => {
                self.counts.failed_flushes.add(1);
                // The first error has the cause. For later ones a store may only say that it failed before.
                state.failed.get_or_insert_with(|| error.clone());
                Err(error)
            }
        };
        self.changed.notify_all();
        outcome
    }

    /// The flusher thread.
    pub(super) fn run(&self) {
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
                // Writers may never pause, so a request waits only for what was written before it.
                let flushed = if state.runs.is_empty() { state.version } else { state.frozen_version };
                let is_ready = |asked: &&Asked| asked.version <= flushed;
                let ready: Vec<KeyRange> =
                    state.asked.iter().filter(is_ready).map(|asked| asked.range.clone()).collect();
                let is_behind = ready.is_empty();
                drop(state);
                if is_behind {
                    self.freeze();
                }
                // The store below may be busy for a moment, and commits must not wait for it.
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

    /// Flushes everything in memory, and begins a new log: in place of one that was [found](Logging::Found), or after a
    /// failed sync, which is not retried, since Linux marks the unwritten pages as clean and reports success. Called
    /// between one batch and the next, so no run is added meanwhile.
    pub(super) fn restart_log(&self) -> Result<()> {
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
    pub(super) fn replace_found_log(&self) -> Result<()> {
        let is_found = matches!(*self.log.lock(), Logging::Found);
        if is_found { self.restart_log() } else { Ok(()) }
    }

    /// Whether another batch may be applied before the next flush.
    pub(super) fn has_room(&self, state: &State<S::Snapshot>) -> bool {
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
    pub(super) fn make_room(&self) -> Result<()> {
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
