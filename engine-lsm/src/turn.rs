//! Flushes and compactions take turns at writing the manifest.
//!
//! ```text
//!   flush        ── writes a table ──┤turn├─────────── writes a table ──────────┤turn├─►
//!   compaction   ┤turn├── merges rows ────┤turn├──┤turn├── merges rows ───┤turn├───────►
//!                chooses                  manifest
//! ```
//!
//! `lsm-tree` numbers the next manifest one above the newest, writes it to a file with that number, and renames a
//! new `current` that names the file. After a failure, the disk may have a `current` that names a manifest which
//! is not in memory. The next manifest has the same number, and must not overwrite that file. So a writer that
//! failed keeps the turn until the disk's state is known and `current` names the manifest in memory again.
//!
//! A compaction takes its turn before it chooses tables, since it may write a manifest at once, for tables that
//! only move to another level. It gives the turn back before it merges rows, and takes it again afterwards:
//! `lsm-tree` signals both moments to a compaction filter, which keeps every row.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kv_api::{Error, Result};
use lsm_tree::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::manifest;

/// Pause before a failed write is retried.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// A writer of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Flush,
    Compaction,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Writer::Flush => "a flush",
            Writer::Compaction => "a compaction",
        })
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Turns {
    data: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    turn: Turn,
    stopped: bool,
}

#[derive(Debug)]
enum Turn {
    Free,
    Taken(Writer),
    /// The disk may have a manifest newer than `version`, the one in memory, because of `cause`.
    Behind {
        version: u64,
        cause: Error,
    },
}

impl Turns {
    pub(crate) fn new(data: PathBuf) -> Self {
        Turns { data, state: Mutex::new(State { turn: Turn::Free, stopped: false }), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits for the turn of `writer`. First repairs the disk where it may be ahead.
    ///
    /// # Errors
    ///
    /// Why the disk is ahead, as long as it cannot be repaired.
    pub(crate) fn take(&self, writer: Writer) -> Result<()> {
        let mut state = self.state();
        while matches!(state.turn, Turn::Taken(_)) {
            self.changed.wait(&mut state);
        }
        if let Turn::Behind { version, cause } = &state.turn
            && manifest::bring_back(&self.data, *version).is_err()
        {
            return Err(cause.clone());
        }
        state.turn = Turn::Taken(writer);
        Ok(())
    }

    /// Ends the turn of `writer`, if it has it: its manifest is on the disk, or it wrote none.
    pub(crate) fn give(&self, writer: Writer) {
        self.end(writer, Turn::Free);
    }

    /// Ends the turn of `writer`, if it has it, after a failure. `version` is that of the manifest in memory.
    pub(crate) fn give_after(&self, writer: Writer, cause: &Error, version: u64) {
        // The next manifest is written to a new file, since a sync after a failed one reports nothing about the
        // same file.
        let is_as_before = || {
            manifest::current(&self.data).is_ok_and(|(on_disk, _)| on_disk == version)
                && manifest::remove(&self.data, version + 1).is_ok()
        };
        let has_it = matches!(self.state().turn, Turn::Taken(by) if by == writer);
        let turn = match has_it && !is_as_before() {
            true => Turn::Behind { version, cause: cause.clone() },
            false => Turn::Free,
        };
        self.end(writer, turn);
    }

    fn end(&self, writer: Writer, turn: Turn) {
        let mut state = self.state();
        if matches!(state.turn, Turn::Taken(by) if by == writer) {
            state.turn = turn;
            self.changed.notify_all();
        }
    }

    /// Whether the disk may have a manifest newer than the one in memory, with tables that no other manifest
    /// lists.
    pub(crate) fn is_behind(&self) -> bool {
        matches!(self.state().turn, Turn::Behind { .. })
    }

    /// Called when the store closes: a compaction that waits for the repair of the disk gives up.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    /// Takes the turn of a compaction that can no longer return an error.
    fn take_or_unwind(&self) {
        while self.take(Writer::Compaction).is_err() {
            let mut state = self.state();
            if state.stopped {
                drop(state);
                // Only this leaves `lsm-tree` without writing a manifest. The tree is not used again.
                std::panic::resume_unwind(Box::new("the store closes"));
            }
            self.changed.wait_for(&mut state, RETRY);
        }
    }
}

// `lsm-tree` asks for it. The state is replaced in one step, so a panic leaves none half changed.
impl std::panic::RefUnwindSafe for Turns {}

/// Signals the turns of compactions. See the [module](self).
#[derive(Debug)]
pub(crate) struct CompactionTurns(pub(crate) Arc<Turns>);

impl CompactionTurns {
    pub(crate) fn pass_all(&self) -> Box<dyn CompactionFilter> {
        self.0.give(Writer::Compaction);
        Box::new(AllPass(self.0.clone()))
    }
}

impl Factory for CompactionTurns {
    fn name(&self) -> &str {
        "turns"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        self.pass_all()
    }
}

struct AllPass(Arc<Turns>);

impl CompactionFilter for AllPass {
    fn filter_item(&mut self, _: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        self.0.take_or_unwind();
    }
}
