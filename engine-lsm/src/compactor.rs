//! The state shared by flushes and compactions, and the thread that compacts.
//!
//! ```text
//!   flush        ── writes a table ──┤publish├── writes a table ──┤publish├─►
//!   compaction   ───── merges rows ──┤replace├───── merges rows ──────┤replace├─►
//! ```
//!
//! Invariants:
//!
//! * The newest snapshot has the rows of the newest flush and the tables of the newest manifest. The writer of a
//!   manifest keeps the [turn](crate::turn) until the snapshot is updated, so a view never gets rows of a later
//!   flush.
//! * A failed flush or compaction changes no row, and is retried. Its tables are deleted once no other flush or
//!   compaction is in progress and the disk is known to have no manifest that lists them.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use disk::folder::io_error;
use disk::panics::caught;
use kv_api::{Error, Result, error};
use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree, SeqNo, Table};
use occ::store::ApplyError;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::aside::Aside;
use crate::error::kv_error;
use crate::prefixes::Prefixes;
use crate::tables::{ByNumber, Tables};
use crate::turn::{RETRY, Turns, Writer};
use crate::view::Snapshot;

/// Number of flushed tables that are compacted into the first level.
const FLUSHES: u8 = 4;

/// Number of flushed tables at which a flush waits for the compaction.
const STALL: usize = 12;

/// Size of a table. The first level has up to [`FLUSHES`] times as much.
const TABLE_BYTES: u64 = 16 << 20;

/// See the [module](self).
pub(crate) struct CompactedTree {
    tree: AnyTree,
    data: PathBuf,
    turns: Arc<Turns>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The snapshot of the newest flush.
    newest: Arc<Snapshot>,
    /// Prefixes of the flushed tables that are not compacted yet.
    prefixes: ByNumber,
    aside: Aside,
    work: Work,
    stopped: bool,
    /// Error of the last compaction, if it failed.
    failed: Option<Error>,
    /// Why nothing more is written until the folder is opened again: the error of a panic.
    broken: Option<Error>,
    /// Number of flushes and compactions in progress.
    writing: usize,
    /// Numbers of tables that failed flushes and compactions may have left.
    litter: Vec<u64>,
    /// Tables given to snapshots while a writer was in progress. Views may use them, so they are not deleted.
    shown: HashSet<u64>,
}

/// Work of the compaction thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    /// There may be something to compact.
    Due,
    /// It is compacting, and nothing was flushed since it started.
    Compacting,
}

impl std::fmt::Debug for CompactedTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactedTree").field("data", &self.data).finish_non_exhaustive()
    }
}

impl CompactedTree {
    pub(crate) fn new(tree: AnyTree, data: PathBuf, turns: Arc<Turns>) -> Self {
        let (prefixes, mut aside) = (ByNumber::new(), Aside::new());
        let newest = Arc::new(Snapshot::new(Tables::of(&tree, &prefixes, &mut aside)));
        let state = State {
            newest,
            prefixes,
            aside,
            work: Work::Due,
            stopped: false,
            failed: None,
            broken: None,
            writing: 0,
            litter: Vec::new(),
            shown: HashSet::new(),
        };
        CompactedTree { tree, data, turns, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn tree(&self) -> &AnyTree {
        &self.tree
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The snapshot of the newest flush.
    pub(crate) fn newest(&self) -> Arc<Snapshot> {
        self.state().newest.clone()
    }

    #[cfg(test)]
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.turns
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
            self.changed.wait(&mut state);
        }
    }

    /// Called by a flush: publishes its table through `finish` and adds a snapshot with it. `prefixes` are those
    /// of its keys, if they are known.
    pub(crate) fn publish(&self, prefixes: Option<Prefixes>, finish: impl FnOnce() -> Result<()>) -> Result<()> {
        self.turns.take(Writer::Flush)?;
        // A compaction may have panicked while the table was written.
        if let Some(error) = self.state().broken.as_ref() {
            return Err(error.clone());
        }
        // Only the owner of the turn adds tables.
        let before: HashSet<u64> = self.tree.current_version().iter_tables().map(Table::id).collect();
        finish()?;
        let mut state = self.state();
        if let Some(prefixes) = prefixes.map(Arc::new) {
            let version = self.tree.current_version();
            let new = version.iter_tables().map(Table::id).filter(|number| !before.contains(number));
            state.prefixes.extend(new.map(|number| (number, prefixes.clone())));
        }
        state.newest = Arc::new(Snapshot::new(self.tables_to_show(&mut state)));
        state.work = Work::Due;
        self.changed.notify_all();
        Ok(())
    }

    /// The current tables, for a snapshot.
    fn tables_to_show(&self, state: &mut State) -> Tables {
        let tables = Tables::of(&self.tree, &state.prefixes, &mut state.aside);
        if state.writing > 0 {
            state.shown.extend(tables.numbers());
        }
        let there: HashSet<u64> = tables.numbers().collect();
        state.prefixes.retain(|number, _| there.contains(number));
        state.aside.retain(|number| there.contains(&number));
        tables
    }

    /// Runs a flush or a compaction. After an error everything is as before.
    ///
    /// A panic may leave `lsm-tree`'s locks poisoned and tables marked as being compacted, so the folder must be
    /// opened again.
    pub(crate) fn guarded<T>(&self, writer: Writer, write: impl FnOnce() -> Result<T>) -> Result<T, ApplyError> {
        {
            let mut state = self.state();
            if let Some(error) = &state.broken {
                return Err(ApplyError::NothingApplied(error.clone()));
            }
            state.writing += 1;
        }
        let from = self.tree.next_table_id();
        let mut has_panicked = true;
        let outcome = caught(&writer.to_string(), || {
            let outcome = write();
            match &outcome {
                Ok(_) => self.turns.give(writer),
                Err(error) => self.turns.give_after(writer, error, self.tree.current_version().id()),
            }
            has_panicked = false;
            outcome
        });
        let until = self.tree.next_table_id();
        let mut state = self.state();
        state.writing -= 1;
        if has_panicked {
            let panicked = || Error::new(error::FILE_CORRUPT).with_context(format!("{writer} panicked; open it again"));
            let error = state.broken.get_or_insert_with(panicked).clone();
            self.changed.notify_all();
            drop(state);
            // Waiting threads will find the error.
            self.turns.give(writer);
            return Err(ApplyError::Unknown(error));
        }
        if outcome.is_err() {
            state.litter.extend(from..until);
        }
        if state.writing == 0 {
            let shown = std::mem::take(&mut state.shown);
            state.litter.retain(|number| !shown.contains(number));
            if !state.litter.is_empty() && state.broken.is_none() && !self.turns.is_behind() {
                let litter = std::mem::take(&mut state.litter);
                state.litter = self.delete(litter);
            }
        }
        outcome.map_err(ApplyError::NothingApplied)
    }

    /// Deletes the files of tables that no manifest lists. Returns those that could not be deleted.
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

    /// Whether nothing is left to compact.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.state().work == Work::Nothing
    }

    /// Compacts once, if there is something to compact. Returns whether there was.
    fn compact(&self) -> Result<bool> {
        self.turns.take(Writer::Compaction)?;
        let before = self.tree.current_version().id();
        let strategy = Leveled::default().with_l0_threshold(FLUSHES).with_table_target_size(TABLE_BYTES);
        // Only the newest row of each key is needed: older snapshots have older tables.
        let compacted = self.tree.compact(Arc::new(strategy), SeqNo::MAX);
        compacted.map_err(|failure| kv_error(&failure, "cannot compact tables"))?;
        let has_compacted = self.tree.current_version().id() != before;
        if has_compacted {
            let mut state = self.state();
            let tables = self.tables_to_show(&mut state);
            state.newest.replace(tables);
        }
        Ok(has_compacted)
    }

    /// The compaction thread.
    fn run(&self) {
        let mut state = self.state();
        while !state.stopped {
            if state.work != Work::Due || state.broken.is_some() {
                self.changed.wait(&mut state);
                continue;
            }
            state.work = Work::Compacting;
            drop(state);
            let compacted = self.guarded(Writer::Compaction, || self.compact());
            state = self.state();
            match compacted {
                Ok(true) => {
                    state.work = Work::Due;
                    state.failed = None;
                }
                Ok(false) => {
                    if state.work == Work::Compacting {
                        state.work = Work::Nothing;
                    }
                    state.failed = None;
                }
                Err(ApplyError::NothingApplied(error) | ApplyError::Unknown(error)) => {
                    state.work = Work::Due;
                    state.failed = Some(error);
                    self.changed.notify_all();
                    if !state.stopped {
                        self.changed.wait_for(&mut state, RETRY);
                    }
                    continue;
                }
            }
            self.changed.notify_all();
        }
    }
}

/// Handle of the compaction thread.
#[derive(Debug)]
pub(crate) struct Compactor {
    shared: Arc<CompactedTree>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Compactor {
    pub(crate) fn start(shared: Arc<CompactedTree>) -> Result<Self> {
        let compacting = shared.clone();
        let thread = std::thread::Builder::new().name("lsm-compactor".into()).spawn(move || compacting.run());
        let thread = thread.map_err(|cause| io_error("cannot start the thread that compacts tables", &cause))?;
        Ok(Compactor { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread after the compaction in progress.
    pub(crate) fn stop(&self) {
        self.shared.state().stopped = true;
        self.shared.changed.notify_all();
        self.shared.turns.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The next opening compacts the rest.
            let _ = thread.join();
        }
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.stop();
    }
}
