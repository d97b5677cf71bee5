//! The current tables, which flushes and compactions replace, and the thread that compacts.
//!
//! ```text
//!   flush        ── writes a table ──┤publish├── writes a table ──┤publish├─►
//!   compaction   ───── merges rows ──┤publish├───── merges rows ──────┤publish├─►
//! ```
//!
//! Invariants:
//!
//! * Only [`Current::publish`] writes a manifest and changes the current tables, both under one lock. It gets tables
//!   that are written and synced. So nobody sees tables that the disk does not list, and manifests are written one at a
//!   time.
//! * The newest snapshot has the rows of the newest flush. A compaction changes no row: the newest snapshot takes over
//!   its tables.
//! * A flush that clears ranges drops tables and writes tombstones for rows of others. It relies on the tables that it
//!   began with, so no compaction publishes meanwhile. A compaction whose tables were dropped is given up.
//! * A failed flush or compaction changes no row, and is retried. Its files are deleted: at once, or, if a manifest
//!   that lists them may be on the disk, after the next manifest.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use disk::folder::io_error;
use disk::panics::caught;
use disk::room;
use kv_api::figures::{Counter, Histogram};
use kv_api::{Error, Figure, Result, error};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::failed_to_read;
use crate::maker::{Finished, Maker};
use crate::manifest::{Manifest, Unwritten};
use crate::merge::merge;
use crate::pick::{Effort, Picked, Sizes, Step, pick};
use crate::prefixes::{Collector, Prefixes};
use crate::snapshot::Flushed;
use crate::tables::{Member, Run, Tables, YOUNG};

/// At this number of flushed runs a flush waits for the compaction.
const STALL: usize = 12;

/// After this time without a flush, compactions go on until little is hidden.
const QUIET: Duration = Duration::from_secs(10);

/// Pause before a failed compaction is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Longest pause, after damage.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Longest pause while the disk is full. Flushes may wait for it.
const LONGEST_WHEN_FULL: Duration = Duration::from_secs(8);

/// See the [module](self).
pub(crate) struct CompactedTables {
    pub(crate) maker: Maker,
    state: Mutex<State>,
    /// Ranges whose hidden rows must go. Locked after the state, and only briefly: the state is locked while a manifest
    /// is synced, and questions about what is being compacted must not wait for that.
    asked: Mutex<Vec<Effort>>,
    changed: Condvar,
    stopped: AtomicBool,
    counts: Counts,
}

/// Counts of compactions.
struct Counts {
    /// Times of those that merged tables.
    times: Histogram,
    /// Bytes of the tables that they read.
    bytes: Counter,
    failures: Counter,
}

struct State {
    current: Current,
    /// Whether a flush relies on the current tables.
    is_clearing: bool,
    /// Number of flushes.
    flushes: u64,
    effort: Effort,
    /// Whether the thread has nothing to do until something changes.
    is_idle: bool,
    /// Error of the last compaction, if it failed.
    failed: Option<Error>,
    /// Numbers of the tables of compactions that met damage.
    damaged: HashSet<u64>,
}

/// The current tables.
struct Current {
    tables: Arc<Tables>,
    /// The snapshot of the newest flush.
    newest: Arc<Flushed>,
    manifest: Manifest,
    /// Tables of failed manifests.
    leftovers: Run,
}

impl Current {
    /// Makes `tables` the current ones. `added` are the new ones among them.
    fn publish(&mut self, tables: Tables, added: Run) -> Result<()> {
        if let Err(Unwritten { cause, may_be_there }) = self.manifest.write(&tables) {
            match may_be_there {
                true => self.leftovers.extend(added),
                false => added.iter().for_each(|member| member.delete()),
            }
            return Err(cause);
        }
        let listed: HashSet<u64> = tables.iter().map(|member| member.number()).collect();
        let gone = self.tables.iter().chain(&self.leftovers).filter(|member| !listed.contains(&member.number()));
        gone.for_each(|member| member.delete());
        self.leftovers.clear();
        self.tables = Arc::new(tables);
        Ok(())
    }

    /// Writes the manifest of the current tables if the disk may have another one. So the tables of at most one failed
    /// publication wait for their deletion.
    fn repair(&mut self) -> Result<()> {
        if self.manifest.is_unsure() { self.publish((*self.tables).clone(), Vec::new()) } else { Ok(()) }
    }
}

impl std::fmt::Debug for CompactedTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactedTables").finish_non_exhaustive()
    }
}

impl CompactedTables {
    pub(crate) fn new(maker: Maker, tables: Tables, manifest: Manifest) -> Self {
        let tables = Arc::new(tables);
        let newest = Arc::new(Flushed::new(tables.clone()));
        let current = Current { tables, newest, manifest, leftovers: Vec::new() };
        let state = State {
            current,
            is_clearing: false,
            flushes: 0,
            effort: Effort::Usual,
            is_idle: false,
            failed: None,
            damaged: HashSet::new(),
        };
        CompactedTables {
            maker,
            state: Mutex::new(state),
            asked: Mutex::default(),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            counts: Counts { times: Histogram::of_times(), bytes: Counter::default(), failures: Counter::default() },
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The snapshot of the newest flush.
    pub(crate) fn newest(&self) -> Arc<Flushed> {
        self.state().current.newest.clone()
    }

    /// The current tables.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        self.state().current.tables.clone()
    }

    /// Waits until another table may be flushed.
    pub(crate) fn make_room(&self) -> Result<()> {
        let mut state = self.state();
        state.current.repair()?;
        while state.current.tables.flushes() >= STALL && !self.is_stopped() {
            match &state.failed {
                // A compaction without room gets some when deletions are flushed.
                Some(error) if error.code() == error::STORAGE_QUOTA_EXCEEDED => break,
                Some(error) => return Err(error.clone()),
                None => {}
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    /// Runs a flush that clears ranges: until it ends, only flushes change the current tables.
    pub(crate) fn while_clearing<T>(&self, flush: impl FnOnce() -> T) -> T {
        struct Clearing<'a>(&'a CompactedTables);

        // Also after a panic.
        impl Drop for Clearing<'_> {
            fn drop(&mut self) {
                self.0.state().is_clearing = false;
                self.0.changed.notify_all();
            }
        }

        self.state().is_clearing = true;
        let _clearing = Clearing(self);
        flush()
    }

    /// Publishes the tables of a flush, without the current ones that it dropped.
    pub(crate) fn publish_flush(&self, new: Finished, is_dropped: impl Fn(&Member) -> bool) -> Result<()> {
        let mut state = self.state();
        let new = new.take();
        let mut tables = state.current.tables.filtered(|member| !is_dropped(member));
        tables.add(0, new.clone());
        state.current.publish(tables, new)?;
        state.current.newest = Arc::new(Flushed::new(state.current.tables.clone()));
        state.flushes += 1;
        state.effort = Effort::Usual;
        state.is_idle = false;
        self.changed.notify_all();
        Ok(())
    }

    /// Puts tables in the place of one, when nothing else runs.
    pub(crate) fn replace(&self, old: &Member, new: Finished) -> Result<()> {
        let mut state = self.state();
        let new = new.take();
        let tables = state.current.tables.replaced(old, &new);
        state.current.publish(tables, new)
    }

    /// Asks to free the space of all hidden rows between two keys.
    pub(crate) fn ask(&self, first: &[u8], last: &[u8]) {
        let mut state = self.state();
        let asked = Effort::Full { first: first.into(), last: last.into(), before: self.maker.next_flush() };
        let mut all = self.asked.lock();
        if !all.contains(&asked) {
            all.push(asked);
            state.is_idle = false;
            self.changed.notify_all();
        }
    }

    /// Whether space between two keys that was asked for is not free yet.
    pub(crate) fn is_asked(&self, first: &[u8], last: &[u8]) -> bool {
        let meets = |asked: &Effort| matches!(asked, Effort::Full { first: from, last: to, .. } if **from < *last && *first < **to);
        self.asked.lock().iter().any(meets)
    }

    /// Waits until nothing is left to compact with an effort.
    #[cfg(test)]
    pub(crate) fn settle(&self, effort: Effort) {
        let mut state = self.state();
        state.effort = effort;
        state.is_idle = false;
        self.changed.notify_all();
        while !state.is_idle {
            self.changed.wait(&mut state);
        }
    }

    /// Runs a test under the lock that writing a manifest holds.
    #[cfg(test)]
    pub(crate) fn while_publishing(&self, test: impl FnOnce()) {
        let _state = self.state();
        test();
    }

    /// Makes the sync of the next manifest's name fail.
    #[cfg(test)]
    pub(crate) fn fail_next_sync(&self) {
        self.state().current.manifest.fails_once = true;
    }

    /// Compacts current tables. Returns whether they were merged, rather than moved or given up.
    pub(crate) fn compact(&self, tables: &Tables, step: &Step) -> Result<bool> {
        self.state().current.repair()?;
        let new = match step.is_move {
            true => None,
            false => match merge(&self.maker, tables, step, &self.stopped) {
                Ok(Some(new)) => Some(new),
                Ok(None) => return Ok(false),
                Err(error) => {
                    if error.code() == error::FILE_CORRUPT {
                        self.state().damaged.extend(step.inputs().map(|member| member.number()));
                    }
                    return Err(error);
                }
            },
        };
        let mut state = self.state();
        while state.is_clearing {
            self.changed.wait(&mut state);
        }
        let inputs: HashSet<u64> = step.inputs().map(|member| member.number()).collect();
        let left = state.current.tables.iter().filter(|member| inputs.contains(&member.number())).count();
        if left < inputs.len() {
            // A flush dropped the rest.
            return Ok(false);
        }
        let mut tables = state.current.tables.filtered(|member| !inputs.contains(&member.number()));
        let added = match new {
            Some(new) => {
                let new = new.take();
                tables.add(step.to.level, new.clone());
                new
            }
            None => {
                let moved = |member: &Arc<Member>| match step.to.has_prefixes() {
                    true => member.clone(),
                    false => Arc::new(member.with_prefixes(None)),
                };
                for run in step.upper.iter().rev() {
                    tables.add(step.to.level, run.iter().map(moved).collect());
                }
                Vec::new()
            }
        };
        state.current.publish(tables, added)?;
        state.current.newest.replace(state.current.tables.clone());
        Ok(!step.is_move)
    }

    /// Makes the next compaction, if there is one. The state is unlocked meanwhile.
    fn next(&self, state: &mut MutexGuard<'_, State>) -> Result<bool> {
        let tables = state.current.tables.clone();
        let asked = self.asked.lock().first().cloned();
        let mut effort = asked.as_ref().unwrap_or(&state.effort);
        if *effort == Effort::Usual && room::is_low(&self.maker.folder) {
            effort = &Effort::Quiet;
        }
        let sizes = Sizes { table: self.maker.table_bytes, room: room::of_compactions(&self.maker.folder) };
        let step = match caught("a compaction", || Ok(pick(&tables, sizes, effort, &state.damaged)))? {
            Picked::Step(step) => step,
            // Room may come back without a flush, so it is asked for again.
            Picked::NoRoom => {
                let what = "the disk is full: it has no room for the result of a compaction";
                return Err(Error::new(error::STORAGE_QUOTA_EXCEEDED).with_context(what));
            }
            Picked::Nothing => return Ok(false),
        };
        MutexGuard::unlocked(state, || {
            let started = Instant::now();
            let outcome = caught("a compaction", || self.compact(&tables, &step));
            match &outcome {
                Ok(false) => {}
                Ok(true) => {
                    self.counts.times.observe_time(started.elapsed());
                    self.counts.bytes.add(step.inputs().map(|member| member.bytes()).sum());
                }
                Err(_) => self.counts.failures.add(1),
            }
            // The files of its tables are deleted before anybody is told.
            drop((tables, step));
            outcome.map(|_| true)
        })
    }

    /// Builds the filter of a young table that was opened without one. Returns whether there was such a table. The state
    /// is unlocked meanwhile.
    fn add_filter(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let young = |tables: &Tables| {
            (0..=YOUNG).find_map(|level| tables.level(level).find(|one| one.prefixes.is_none()).cloned())
        };
        let Some(member) = young(&state.current.tables) else { return false };
        let prefixes = MutexGuard::unlocked(state, || {
            // Damage is left to those who read the rows.
            caught("a table", || prefixes_of(&member, &self.stopped)).unwrap_or_else(|_| Prefixes::of_anything())
        });
        let with = Arc::new(member.with_prefixes(Some(Arc::new(prefixes))));
        state.current.tables = Arc::new(state.current.tables.replaced(&member, &vec![with]));
        state.current.newest.replace(state.current.tables.clone());
        true
    }

    /// The compaction thread.
    fn run(&self) {
        let mut state = self.state();
        let mut pause = RETRY;
        while !self.is_stopped() {
            match self.next(&mut state) {
                Ok(true) => {
                    state.failed = None;
                    pause = RETRY;
                    self.changed.notify_all();
                }
                Ok(false) if !self.asked.lock().is_empty() => drop(self.asked.lock().remove(0)),
                Ok(false) if self.add_filter(&mut state) => {}
                Ok(false) => {
                    state.is_idle = true;
                    state.failed = None;
                    self.changed.notify_all();
                    self.wait(&mut state);
                }
                Err(error) => {
                    // Damage stays, a full disk seldom gets room within a second, and each try reads and writes much.
                    pause = match error.code() {
                        error::FILE_CORRUPT => (pause * 2).min(LONGEST_RETRY),
                        error::STORAGE_QUOTA_EXCEEDED => (pause * 2).min(LONGEST_WHEN_FULL),
                        _ => RETRY,
                    };
                    if state.failed.as_ref() != Some(&error) {
                        tracing::warn!("the store cannot compact its tables, and tries again: {error}");
                    }
                    state.failed = Some(error);
                    self.changed.notify_all();
                    let until = Instant::now() + pause;
                    while !self.is_stopped() && !self.changed.wait_until(&mut state, until).timed_out() {}
                }
            }
        }
    }

    pub(crate) fn figures(&self) -> Vec<Figure> {
        let Counts { times, bytes, failures } = &self.counts;
        let (used, capacity) = self.maker.cache_bytes();
        let mut figures = vec![
            Figure::histogram("couch_layer_compaction_seconds", "time of compactions", times.seconds()),
            Figure::counter("couch_layer_compaction_bytes_total", "bytes that compactions read", bytes.value()),
            Figure::counter("couch_layer_compaction_failures_total", "compactions that failed", failures.value()),
            Figure::gauge("couch_layer_cache_bytes", "bytes in the store's cache", used as f64),
            Figure::gauge("couch_layer_cache_capacity_bytes", "size of the store's cache", capacity as f64),
        ];
        let tables = self.tables();
        for level in 0..tables.levels().len() {
            let bytes: u64 = tables.level(level).map(|member| member.bytes()).sum();
            let gauge = Figure::gauge("couch_layer_table_bytes", "bytes of the tables of each level", bytes as f64);
            figures.push(gauge.with("level", level.to_string()));
        }
        figures
    }

    /// Waits for work. When nothing was flushed for a while, there may be more.
    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        let flushes = state.flushes;
        while state.is_idle && !self.is_stopped() {
            if state.effort != Effort::Usual {
                self.changed.wait(state);
            } else if self.changed.wait_for(state, QUIET).timed_out() && state.flushes == flushes {
                state.effort = Effort::Quiet;
                state.is_idle = false;
            }
        }
    }
}

/// The filter of a table.
fn prefixes_of(member: &Member, stopped: &AtomicBool) -> Result<Prefixes> {
    let mut prefixes = Collector::default();
    for row in member.table.scan().map_err(failed_to_read)? {
        if stopped.load(Ordering::Relaxed) {
            return Ok(Prefixes::of_anything());
        }
        prefixes.add(&row.map_err(failed_to_read)?.key.user_key);
    }
    Ok(prefixes.finish())
}

/// Handle of the compaction thread.
#[derive(Debug)]
pub(crate) struct Compactor {
    shared: Arc<CompactedTables>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Compactor {
    pub(crate) fn start(shared: Arc<CompactedTables>) -> Result<Self> {
        let compacting = shared.clone();
        let thread = std::thread::Builder::new().name("lsm-compactor".into()).spawn(move || compacting.run());
        let thread = thread.map_err(|cause| io_error("cannot start the thread that compacts tables", &cause))?;
        Ok(Compactor { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread. A compaction in progress is given up; the next opening makes it again.
    pub(crate) fn stop(&self) {
        {
            let _state = self.shared.state();
            self.shared.stopped.store(true, Ordering::Relaxed);
        }
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.stop();
    }
}
