//! The move of a folder of a former engine, with power losses, kills and errors at its calls.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "../../former/tests/support/mod.rs"]
mod support;

use std::path::Path;

use disk::folder::Mark;
use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, RangeRequest, Read, Result, TransactionExt};
use powercut::Engine as _;
use powercut::dice::Dice;
use powercut::disk::{Image, Keep};
use powercut::harness::{History, cut, record_recovery};
use powercut::recorder::Recording;
use powercut::trace::{Event, Failure, Trace, Verdict};
use powercut::workload::FOLDER;
use support::packed::unpack;
use support::{Model, commits};

/// A folder that is moved before it is opened.
struct Moved;

impl powercut::Engine for Moved {
    type Database = LsmDatabase;
    const NAME: &'static str = "a move";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        if Mark::read(folder)?.is_some_and(|mark| former::is_former(&mark)) {
            former::move_folder(folder, |_| ())?;
        }
        LsmDatabase::open(folder, LsmOptions::new().cache_bytes(200 << 10))
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

/// Unpacks a folder below `root`. Returns the trace that makes it, and its rows.
fn unpacked(name: &str, root: &Path) -> (Trace, Model) {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../former/tests/folders");
    unpack(&folders.join(format!("{name}.gz")), &root.join(FOLDER));
    let mut model = Model::new();
    commits(7, 150, false).iter().for_each(|commit| commit.apply(&mut model));
    (Image::read(root).history(), model)
}

/// The calls of a move, from a disk on which the folder is synced.
fn record(name: &str) -> History {
    let root = tempfile::tempdir().unwrap();
    let (mut trace, model) = unpacked(name, root.path());
    trace.push(Event::Known(0));
    let from = trace.events().len();
    let recording = Recording::begin(root.path(), trace);
    former::move_folder(&root.path().join(FOLDER), |_| ()).unwrap();
    History { trace: recording.finish(), states: vec![model], from }
}

#[test]
fn a_move_is_made_again_or_goes_on_after_a_call_that_failed() {
    for (name, error) in [("redb-4-killed", libc::EIO), ("fjall-1-closed", libc::ENOSPC)] {
        let history = record(name);
        let calls = history.trace.events()[history.from..].iter().filter(|event| event.kind().is_some()).count();
        // The last calls, which include the renames, and some of those before.
        let last = calls.saturating_sub(40);
        let mut dice = Dice::new(1);
        let before: Vec<usize> = (0..20).map(|_| dice.below(last as u64) as usize).collect();
        let mut failures = 0;
        for after in before.into_iter().chain(last..calls) {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join(FOLDER);
            let (trace, model) = unpacked(name, root.path());
            let recording = Recording::begin(root.path(), trace);
            recording.fail(Some(Failure::once(after, Verdict::Fail(error), |_, _| true)));
            let outcome = former::move_folder(&folder, |_| ());
            let failed = recording.failed();
            recording.finish();
            failures += failed;
            if failed == 0 {
                outcome.unwrap_or_else(|error| panic!("{name}, {after} calls, none of which failed: {error}"));
            }
            let database = Moved::open(&folder).unwrap_or_else(|error| panic!("{name}, call {after}: {error}"));
            let all = RangeRequest::keys("", "\u{7f}");
            let rows = block_on(database.begin().unwrap().get_all(all, Read::Snapshot)).unwrap();
            let rows: Model = rows.into_iter().map(|row| (row.key, row.value)).collect();
            assert!(rows == model, "{name}, call {after} of {calls}");
        }
        assert!(failures > 40, "{name}: {failures} calls failed");
    }
}

#[test]
fn a_move_that_was_cut_off_is_made_again_or_goes_on_and_no_row_is_lost() {
    for name in ["redb-4-killed", "fjall-1-killed"] {
        let history = record(name);
        for seed in 1..=3 {
            let dice = &mut Dice::new(seed);
            cut::<Moved>(&history, 60, dice).unwrap_or_else(|found| found.report(seed));
            // The recovery from a kill is cut too.
            for keep in [Keep::Everything, Keep::Any(5)] {
                let events = (history.trace.events().len() - history.from) as u64;
                // Half of the cuts are within the renames at the end.
                let last = if dice.below(2) == 0 { events.min(40) } else { events };
                let at = history.trace.events().len() - 1 - dice.below(last) as usize;
                let recovery = record_recovery::<Moved>(&history, at, keep, dice);
                cut::<Moved>(&recovery, 25, dice).unwrap_or_else(|found| found.report(seed));
            }
        }
    }
}
