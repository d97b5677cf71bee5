//! A store that answers for commits by a log, and brings them to the store below later, many at a time.
//!
//! ```text
//!                      ┌ append, sync ─► log        what was committed and is not below yet
//!   apply(batch) ─► run
//!                      └ runs in memory ─ many at a time, sorted, on a thread of their own ─► store below
//!
//!   runs    │ frozen: on their way below │ active: merged as they come │
//!   log     │ one file                   │ the other file              │
//! ```
//!
//! A tree on the disk copies pages for each commit; a log appends. So a synced commit costs one short write
//! and one sync, and the tree takes what many commits changed in one go, in the order of keys: each page
//! is written once for all of them. Reads look at the runs first, then below. It is how FoundationDB's own
//! storage servers work: the log answers for the last seconds, which are in memory, and the store lags behind.
//!
//! Invariants:
//!
//! * A batch is in the log before it can be read, and synced before anyone hears of it (the durability of a
//!   process alone has no log).
//! * The store below is as of one version, and what came after it is in the log, without a gap. What is
//!   below is synced before its log is written over.
//! * A view holds its runs and its snapshot of the store below together: a flush changes what both hold, and
//!   no view.
//! * The log is empty when a store has been opened, and when it has been closed. What a crash left in it is applied
//!   below, all of it, and synced, whatever the store says that it has.
//!
//! A flush that fails is tried again, from the first row to the sync; commits fail with its error meanwhile, and
//! lose nothing. A sync of the log that fails is not tried again: Linux takes what it should have written for clean.
//! All that is in memory is flushed below instead, and a new log begun. If that fails too, the commit's outcome is
//! unknown.

mod log;
mod run;
mod view;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kv_api::{Durability, Result};

use self::log::Log;
use self::run::{Draft, Run};
pub use self::view::{WalRange, WalView};
use crate::folder::io_error;
use crate::on_disk::{DiskStore, older};
use crate::panics::caught;
use crate::synced::Synced;
use occ::last_version;
use occ::store::{ApplyError, Batch, Store};

/// From so many bytes on, what is active is taken below: this part of the cache, within these bounds.
const FLUSH_PART: u64 = 14;
const LEAST_FLUSH_BYTES: u64 = 16 << 10;
const MOST_FLUSH_BYTES: u64 = 8 << 20;

/// With so many times that active, and others still on their way below, a commit waits.
const STALL: usize = 3;

/// When no batch has come for so long, what is active is taken below, however little it is.
const LINGER: Duration = Duration::from_secs(1);

/// How long after a flush that failed it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// So many runs of about one size become one.
const TOGETHER: usize = 4;

/// See the [module](self).
pub struct WalStore<S: DiskStore> {
    inner: Arc<Inner<S>>,
    /// Takes runs below, from the first batch on.
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
    /// Of a store whose commits outlive the process.
    log: Mutex<Option<Log>>,
    state: Mutex<State<S::View>>,
    /// Counted under the state's lock, and looked at without it.
    flushes: AtomicU64,
    changed: Condvar,
}

struct State<V> {
    /// Oldest first.
    runs: Arc<[Arc<Run>]>,
    /// So many of them are on their way below.
    frozen: usize,
    /// The bytes of the others, which are active.
    active_bytes: usize,
    /// The version of the newest run.
    version: i64,
    /// The version of the newest frozen run.
    frozen_version: i64,
    below: V,
    /// Why the last flush failed.
    failed: Option<kv_api::Error>,
    stopped: bool,
}

impl<V> State<V> {
    fn active(&self) -> &[Arc<Run>] {
        &self.runs[self.frozen..]
    }

    /// Adds a run, and makes one of those at the end that are of about one size: so there are few, and
    /// each row is copied a few times.
    fn push(&mut self, run: Run) -> Result<()> {
        let class = |run: &Arc<Run>| run.size().max(1).ilog2() / TOGETHER.ilog2();
        let mut runs = self.runs.to_vec();
        self.active_bytes += run.size();
        runs.push(Arc::new(run));
        while let Some(from) = runs.len().checked_sub(TOGETHER).filter(|from| *from >= self.frozen) {
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
    fn state(&self) -> MutexGuard<'_, State<S::View>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self, state: &State<S::View>) -> WalView<S::View> {
        let (runs, below) = (state.runs.clone(), state.below.clone());
        WalView { runs, below, version: state.version, flushes: self.flushes.load(Ordering::Relaxed) }
    }

    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<S::View>>) -> MutexGuard<'a, State<S::View>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, State<S::View>>,
        time: Duration,
    ) -> (MutexGuard<'a, State<S::View>>, bool) {
        let (state, outcome) = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner);
        (state, outcome.timed_out())
    }

    /// Makes what is active frozen, unless something is, or nothing is active.
    fn freeze(&self) {
        let mut log = self.log();
        let mut state = self.state();
        if state.frozen == 0 && !state.runs.is_empty() {
            if let Some(log) = log.as_mut() {
                log.take_turns();
            }
            state.frozen = state.runs.len();
            state.frozen_version = state.version;
            state.active_bytes = 0;
            self.changed.notify_all();
        }
    }

    /// Takes what is frozen below.
    fn flush(&self) -> Result<()> {
        let (runs, version) = {
            let state = self.state();
            (state.runs[..state.frozen].to_vec(), state.frozen_version)
        };
        let below = caught("a flush", || {
            let ops = match runs.as_slice() {
                [run] => run.ops(),
                runs => Run::merged(runs)?.ops(),
            };
            let applied = self.below.apply(Batch { version, ops });
            applied.map_err(|(ApplyError::NothingApplied(error) | ApplyError::Unknown(error))| error)?;
            self.below.sync()?;
            self.below.view()
        });
        let mut state = self.state();
        let outcome = match below {
            Ok(view) => {
                state.runs = state.active().into();
                state.frozen = 0;
                state.below = view;
                self.flushes.fetch_add(1, Ordering::Release);
                state.failed = None;
                Ok(())
            }
            Err(error) => {
                // The first one has the cause; a store may only say of later ones that it has failed before.
                state.failed.get_or_insert_with(|| error.clone());
                Err(error)
            }
        };
        self.changed.notify_all();
        outcome
    }

    /// What the flusher's thread does.
    fn run(&self) {
        let mut state = self.state();
        while !state.stopped {
            if state.frozen > 0 {
                drop(state);
                let outcome = self.flush();
                state = self.state();
                if outcome.is_err() && !state.stopped {
                    state = self.wait_for(state, RETRY).0;
                }
            } else if state.runs.is_empty() {
                state = self.wait(state);
            } else {
                let version = state.version;
                let (waited, lingered) = self.wait_for(state, LINGER);
                state = waited;
                if lingered && !state.stopped && state.version == version {
                    drop(state);
                    self.freeze();
                    state = self.state();
                }
            }
        }
    }

    /// A sync of the log has failed. It is not tried again: Linux takes what it should have written for clean, and says
    /// that a second sync went well. All that is in memory is flushed to the store below instead, and a new
    /// log begun. Called between `apply` and the next one, so no run is added meanwhile.
    fn begin_log_again(&self) -> Result<()> {
        loop {
            self.freeze();
            let state = self.state();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.runs.is_empty() {
                break;
            }
            if state.frozen > 0 {
                drop(self.wait(state));
            }
        }
        let version = self.state().version;
        let mut log = self.log();
        *log = Some(Log::begin(&self.folder, version, true)?);
        Ok(())
    }

    /// Waits until another batch may be applied.
    fn make_room(&self) -> Result<()> {
        let mut state = self.state();
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let most = if state.frozen > 0 { STALL * self.flush_bytes } else { self.flush_bytes };
            if state.active_bytes < most {
                return Ok(());
            }
            if state.frozen > 0 {
                state = self.wait(state);
            } else {
                drop(state);
                self.freeze();
                state = self.state();
            }
        }
    }
}

impl<S: DiskStore> WalStore<S> {
    /// The store below.
    pub fn below(&self) -> &S {
        &self.inner.below
    }

    /// Without a thread, what is to go below goes on the caller's.
    fn start_flusher(&self) -> Result<()> {
        let mut flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner);
        if flusher.is_none() {
            let inner = self.inner.clone();
            let thread = std::thread::Builder::new().name("occ-flusher".into()).spawn(move || inner.run());
            *flusher =
                Some(thread.map_err(|cause| io_error("cannot start the thread that writes to the disk", &cause))?);
        }
        Ok(())
    }

    fn stop_flusher(&self) {
        self.inner.state().stopped = true;
        self.inner.changed.notify_all();
        let thread = self.flusher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // What it could not take below is in the log.
            let _ = thread.join();
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
    const FORMAT: u32 = S::FORMAT;
    const FORMER: &'static [u32] = S::FORMER;
    const DURABILITIES: &'static [Durability] = S::DURABILITIES;

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        let below = S::open(folder, cache_bytes, durability)?;
        let (runs, version) = log::recover(folder, last_version(&below.view()?)?)?;
        // Before anything is changed: what is left of a damaged log may be all there is.
        let cannot_read =
            |cause| io_error(format!("cannot read the side file `synced` in {}", folder.display()), &cause);
        let once = Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).map_err(cannot_read)?;
        if version < once {
            return Err(older(folder, version, once));
        }
        if !runs.is_empty() {
            let runs: Vec<Arc<Run>> = runs.into_iter().map(Arc::new).collect();
            let applied = below.apply(Batch { version, ops: Run::merged(&runs)?.ops() });
            applied.map_err(|(ApplyError::NothingApplied(error) | ApplyError::Unknown(error))| error)?;
            below.sync()?;
        }
        let log = match durability {
            Durability::Process => None,
            _ => Some(Log::begin(folder, version, durability == Durability::Disk)?),
        };
        let state = State {
            runs: Arc::default(),
            frozen: 0,
            active_bytes: 0,
            version,
            frozen_version: version,
            below: below.view()?,
            failed: None,
            stopped: false,
        };
        let flush_bytes = (cache_bytes / FLUSH_PART).clamp(LEAST_FLUSH_BYTES, MOST_FLUSH_BYTES) as usize;
        let (log, state) = (Mutex::new(log), Mutex::new(state));
        let (folder, flushes, changed) = (folder.to_owned(), AtomicU64::new(0), Condvar::new());
        let inner = Inner { below, folder, flush_bytes, log, state, flushes, changed };
        Ok(WalStore { inner: Arc::new(inner), flusher: Mutex::default() })
    }
}

impl<S: DiskStore> Store for WalStore<S> {
    type View = WalView<S::View>;

    fn view(&self) -> Result<Self::View> {
        Ok(self.inner.view(&self.inner.state()))
    }

    /// Once a flush has taken runs of the view below: they are neither searched nor kept any more. Nobody waits
    /// for it.
    fn renewed(&self, view: &Self::View) -> Option<Self::View> {
        if view.runs.is_empty() || view.flushes == self.inner.flushes.load(Ordering::Acquire) {
            return None;
        }
        let state = self.inner.state.try_lock().ok()?;
        (state.version == view.version).then(|| self.inner.view(&state))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let Batch { version, ops } = batch;
        let ready = self.start_flusher().and_then(|()| self.inner.make_room());
        let draft = ready.and_then(|()| Draft::of(ops, log::HEAD));
        let mut draft = draft.map_err(ApplyError::NothingApplied)?;
        // Held until the run is active: what is frozen and its log change together.
        let mut log = self.inner.log();
        if let Some(log) = log.as_mut() {
            log.append(version, &mut draft.bytes).map_err(ApplyError::NothingApplied)?;
        }
        let mut state = self.inner.state();
        let first = state.runs.is_empty();
        state.push(draft.run()).map_err(ApplyError::Unknown)?;
        state.version = version;
        if first {
            self.inner.changed.notify_all();
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let outcome = self.inner.log().as_mut().map_or(Ok(()), Log::sync);
        outcome.or_else(|error| self.inner.begin_log_again().map_err(|_| error))
    }

    fn durability(&self) -> Durability {
        self.inner.below.durability()
    }

    fn outlives_process(&self) -> bool {
        self.inner.below.outlives_process()
    }

    fn close(&self) -> Result<()> {
        self.stop_flusher();
        loop {
            self.inner.freeze();
            if self.inner.state().frozen == 0 {
                break;
            }
            self.inner.flush()?;
        }
        self.inner.below.close()?;
        self.inner.log().as_mut().map_or(Ok(()), Log::clear)
    }
}

#[cfg(test)]
mod tests;
