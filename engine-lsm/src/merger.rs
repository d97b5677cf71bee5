//! What flushes and merges share, and the thread that merges.
//!
//! ```text
//!   flush    ── writes a table ──┤publish├── writes a table ──┤publish├─►
//!   merger   ───── merges ───┤replace├───────── merges ──────────┤replace├─►
//! ```
//!
//! Invariants:
//!
//! * The newest snapshot has the rows of the newest flush, and the tables of the newest manifest. `publish` and
//!   `replace` exclude each other, so that a view never gets rows of a later flush.
//! * A flush or a merge that failed changed no row. It is tried again; what it wrote is deleted, once neither is
//!   under way. Where the disk may have its manifest all the same, nothing is done any more until
//!   the folder is opened again: a second manifest must not be written over it.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use disk::folder::io_error;
use disk::panics::caught;
use kv_api::{Error, Result, error};
use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree, SeqNo};
use occ::store::ApplyError;

use crate::error::kv_error;
use crate::manifest;
use crate::tables::Tables;
use crate::view::Snapshot;

/// So many flushed tables are merged into the first level.
const FLUSHES: u8 = 4;

/// With so many, a flush waits for the merger.
const STALL: usize = 12;

/// The size of a table. The first level has up to [`FLUSHES`] times that.
const TABLE_BYTES: u64 = 16 << 20;

/// How long after a merge that failed it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(crate) struct Shared {
    tree: AnyTree,
    data: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// As of the newest flush.
    newest: Arc<Snapshot>,
    work: Work,
    stopped: bool,
    /// Why the last merge failed.
    failed: Option<Error>,
    /// Why nothing is written any more.
    broken: Option<Error>,
    /// Flushes and merges under way.
    writing: usize,
    /// Numbers of tables that a flush or a merge that failed may have left.
    litter: Vec<u64>,
    /// Tables that snapshots were given while anything was under way: views may have them, so they are no litter.
    shown: HashSet<u64>,
}

/// What the merger has to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    /// There may be something to merge.
    Due,
    /// It is at it, and nothing was flushed since it began.
    Merging,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("data", &self.data).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(tree: AnyTree, data: PathBuf) -> Self {
        let newest = Arc::new(Snapshot::new(Tables::of(&tree)));
        let state = State {
            newest,
            work: Work::Due,
            stopped: false,
            failed: None,
            broken: None,
            writing: 0,
            litter: Vec::new(),
            shown: HashSet::new(),
        };
        Shared { tree, data, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn tree(&self) -> &AnyTree {
        &self.tree
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The snapshot of the newest flush.
    pub(crate) fn newest(&self) -> Arc<Snapshot> {
        self.state().newest.clone()
    }

    /// Waits until another table may be flushed.
    pub(crate) fn make_room(&self) -> Result<()> {
        let mut state = self.state();
        loop {
            if let Some(error) = state.broken.as_ref() {
                return Err(error.clone());
            }
            if self.tree.l0_run_count() < STALL {
                return Ok(());
            }
            if let Some(error) = state.failed.as_ref().filter(|_| !state.stopped) {
                return Err(error.clone());
            }
            if state.stopped {
                return Ok(());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes a table public by `finish`: a new snapshot has it.
    pub(crate) fn publish(&self, finish: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state();
        // A merge may have failed while the table was written.
        if let Some(error) = state.broken.as_ref() {
            return Err(error.clone());
        }
        if !self.is_manifest_as_in_memory() {
            return Err(Error::new(error::IO_ERROR).with_context("a merge could not write the list of tables"));
        }
        finish()?;
        state.newest = Arc::new(Snapshot::new(self.tables_to_show(&mut state)));
        state.work = Work::Due;
        self.changed.notify_all();
        Ok(())
    }

    /// The newest tables, for a snapshot.
    fn tables_to_show(&self, state: &mut State) -> Tables {
        let tables = Tables::of(&self.tree);
        if state.writing > 0 {
            state.shown.extend(tables.numbers());
        }
        tables
    }

    /// Flushes or merges: after an error everything is as it was before.
    ///
    /// After a panic `lsm-tree` may keep its locks poisoned, and tables from being merged. So the folder is to be
    /// opened again.
    pub(crate) fn guarded<T>(&self, doing: &str, write: impl FnOnce() -> Result<T>) -> Result<T, ApplyError> {
        self.state().writing += 1;
        let from = self.tree.next_table_id();
        let mut has_panicked = true;
        let outcome = caught(doing, || {
            let outcome = write();
            has_panicked = false;
            outcome
        });
        let until = self.tree.next_table_id();
        let mut state = self.state();
        state.writing -= 1;
        if has_panicked {
            let panicked = || Error::new(error::FILE_CORRUPT).with_context(format!("{doing} panicked; open it again"));
            return Err(ApplyError::Unknown(state.broken.get_or_insert_with(panicked).clone()));
        }
        let outcome = outcome.map_err(|error| {
            state.litter.extend(from..until);
            match self.can_write_manifest_again() {
                true => ApplyError::NothingApplied(error),
                false => {
                    let broken = state.broken.get_or_insert_with(|| {
                        let detail = error.context().unwrap_or(error.name());
                        Error::new(error::IO_ERROR).with_context(format!(
                            "the list of tables may be newer on the disk; open it again: {detail}"
                        ))
                    });
                    ApplyError::Unknown(broken.clone())
                }
            }
        });
        if state.writing == 0 {
            let shown = std::mem::take(&mut state.shown);
            state.litter.retain(|number| !shown.contains(number));
            if !state.litter.is_empty() && state.broken.is_none() {
                let litter = std::mem::take(&mut state.litter);
                state.litter = self.delete(litter);
            }
        }
        outcome
    }

    /// Whether the next opening would find the tables that there are now.
    fn is_manifest_as_in_memory(&self) -> bool {
        self.with_no_manifest_written(|version| self.is_on_disk(version))
    }

    /// Whether it would, and the next manifest makes a new file: where a sync of one failed, a later sync of the same
    /// file, or of its name, says nothing.
    fn can_write_manifest_again(&self) -> bool {
        self.with_no_manifest_written(|version| {
            self.is_on_disk(version) && manifest::remove(&self.data, version + 1).is_ok()
        })
    }

    fn is_on_disk(&self, version: u64) -> bool {
        manifest::current(&self.data).is_ok_and(|(on_disk, _)| on_disk == version)
    }

    /// Calls `look` with the version in memory, while none is written.
    fn with_no_manifest_written(&self, look: impl Fn(u64) -> bool) -> bool {
        loop {
            let before = self.tree.current_version().id();
            let outcome = {
                // Held by who writes a manifest.
                let _history = self.tree.get_version_history_lock();
                look(before)
            };
            if self.tree.current_version().id() == before {
                return outcome;
            }
        }
    }

    /// Deletes the files of tables that are in no manifest; those that are left.
    fn delete(&self, mut tables: Vec<u64>) -> Vec<u64> {
        let version = self.tree.current_version();
        tables.retain(|number| {
            if version.iter_tables().any(|table| table.id() == *number) {
                return false;
            }
            let file = self.data.join("tables").join(number.to_string());
            fs::remove_file(file).is_err_and(|cause| cause.kind() != ErrorKind::NotFound)
        });
        tables
    }

    /// Whether nothing is left to merge.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.state().work == Work::Nothing
    }

    /// Merges once, where there is something to merge.
    fn merge(&self) -> Result<bool> {
        let before = self.tree.current_version().id();
        let strategy = Leveled::default().with_l0_threshold(FLUSHES).with_table_target_size(TABLE_BYTES);
        // Of each key the newest row alone is needed: older snapshots have older tables.
        let merged = self.tree.compact(Arc::new(strategy), SeqNo::MAX);
        merged.map_err(|failure| kv_error(&failure, "cannot merge tables"))?;
        Ok(self.tree.current_version().id() != before)
    }

    /// What the merger's thread does.
    fn run(&self) {
        let mut state = self.state();
        while !state.stopped {
            if state.work != Work::Due || state.broken.is_some() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.work = Work::Merging;
            drop(state);
            let merged = self.guarded("a merge", || self.merge());
            state = self.state();
            match merged {
                Ok(true) => {
                    let tables = self.tables_to_show(&mut state);
                    state.newest.replace(tables);
                    state.work = Work::Due;
                    state.failed = None;
                }
                Ok(false) => {
                    if state.work == Work::Merging {
                        state.work = Work::Nothing;
                    }
                    state.failed = None;
                }
                Err(ApplyError::NothingApplied(error) | ApplyError::Unknown(error)) => {
                    state.work = Work::Due;
                    state.failed = Some(error);
                    self.changed.notify_all();
                    if !state.stopped {
                        state = self.changed.wait_timeout(state, RETRY).unwrap_or_else(PoisonError::into_inner).0;
                    }
                    continue;
                }
            }
            self.changed.notify_all();
        }
    }
}

/// The thread that merges.
#[derive(Debug)]
pub(crate) struct Merger {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Merger {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self> {
        let merging = shared.clone();
        let thread = std::thread::Builder::new().name("lsm-merger".into()).spawn(move || merging.run());
        let thread = thread.map_err(|cause| io_error("cannot start the thread that merges tables", &cause))?;
        Ok(Merger { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread, once the merge under way is over.
    pub(crate) fn stop(&self) {
        self.shared.state().stopped = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // What it did not merge is merged later.
            let _ = thread.join();
        }
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.stop();
    }
}
