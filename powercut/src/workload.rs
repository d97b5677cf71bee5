//! Random commits from a seed, and the state of the database after each.
//!
//! During the recording the log is flushed and its files switched, a prefix is cleared, and the database is closed
//! and opened again. Notes in the trace say what clients were told: a commit that has begun may be there or not,
//! an acknowledged one must be there.

use std::path::Path;
use std::time::Duration;

use kv_api::Bytes;

use crate::dice::Dice;
use crate::engine::{Change, Engine, Rows, commit, rows};
use crate::recorder::Recording;
use crate::trace::Event;

/// The database's folder below the recorded one. It is nested, so that parents are created too.
pub const FOLDER: &str = "deep/data";

/// The folder of a second database, for workloads that have two.
pub const SECOND_FOLDER: &str = "other/data";

/// A key in one of a few databases.
fn key(dice: &mut Dice) -> Bytes {
    format!("{}/{:03}", ["a", "b", "c"][dice.below(3) as usize], dice.below(60)).into()
}

fn changes(dice: &mut Dice) -> Vec<Change> {
    if dice.below(14) == 0 {
        // Drops a database.
        let prefix = ["a", "b", "c"][dice.below(3) as usize];
        return vec![Change::ClearRange(format!("{prefix}/").into(), format!("{prefix}0").into())];
    }
    let change = |dice: &mut Dice| match dice.below(12) {
        0 => {
            let (one, other) = (key(dice), key(dice));
            let end = [&*one.clone().max(other.clone()), b"\0"].concat();
            Change::ClearRange(one.min(other), end.into())
        }
        1 | 2 => Change::Clear(key(dice)),
        _ => {
            let most = if dice.below(8) == 0 { 5_000 } else { 700 };
            let length = dice.below(most);
            Change::Set(key(dice), (0..length).map(|_| dice.next_number() as u8).collect::<Vec<u8>>().into())
        }
    };
    (0..1 + dice.below(9)).map(|_| change(dice)).collect()
}

/// Opens the database below `root`, which must show one of the `allowed` states, and commits `commits` times. The
/// notes refer to `states` by index.
///
/// # Panics
///
/// When the database shows another state, or fails although no call was made to fail.
pub(crate) fn run<E: Engine>(
    recording: &Recording,
    root: &Path,
    states: &mut Vec<Rows>,
    allowed: &[usize],
    dice: &mut Dice,
    commits: usize,
) {
    let folder = root.join(FOLDER);
    let mut database = open::<E>(recording, &folder);
    let mut known = shown::<E>(recording, &database, states, allowed);
    for _ in 0..commits {
        if dice.below(25) == 0 {
            let _ = E::close(&database);
            drop(database);
            database = open::<E>(recording, &folder);
            known = shown::<E>(recording, &database, states, &[known]);
        }
        let changes = changes(dice);
        let mut state = states[known].clone();
        changes.iter().for_each(|change| change.apply(&mut state));
        states.push(state);
        let begun = states.len() - 1;
        recording.note(Event::Begun(begun));
        match commit(&database, &changes) {
            Ok(()) => {
                known = begun;
                recording.note(Event::Known(known));
            }
            Err(error) => {
                assert!(recording.failed() > 0, "{}: a commit failed: {error}", E::NAME);
                drop(database);
                database = open::<E>(recording, &folder);
                known = shown::<E>(recording, &database, states, &[known, begun]);
            }
        }
    }
    let _ = E::close(&database);
}

/// Opens a new database and commits `commits` times while calls fail, without opening it again. Reads must always
/// succeed, and commits must succeed once calls no longer fail. A permanent fault ends after three failed commits.
/// Each error must contain `cause`. Returns the number of failed calls.
///
/// # Panics
///
/// When one of these does not hold.
pub(crate) fn run_through_failures<E: Engine>(
    recording: &Recording,
    root: &Path,
    states: &mut Vec<Rows>,
    dice: &mut Dice,
    cause: &str,
    commits: usize,
) -> usize {
    let folder = root.join(FOLDER);
    let mut failed = 0;
    // A call of the opening may fail. While the disk is full, all calls that need room fail.
    let database = loop {
        match E::open(&folder) {
            Ok(database) => break database,
            Err(error) => {
                assert!(recording.failed() > failed, "{}: cannot be opened: {error}", E::NAME);
                assert!(error.to_string().contains(cause), "{}: an error without its cause: {error}", E::NAME);
                failed = recording.failed();
                if failed >= 3 {
                    recording.fail(None);
                }
            }
        }
    };
    let mut known = shown::<E>(recording, &database, states, &[0]);
    for _ in 0..commits {
        let changes = changes(dice);
        let mut state = states[known].clone();
        changes.iter().for_each(|change| change.apply(&mut state));
        states.push(state);
        let begun = states.len() - 1;
        let mut tries = 0;
        while known != begun {
            recording.note(Event::Begun(begun));
            let outcome = commit(&database, &changes);
            let allowed = if outcome.is_ok() { vec![begun] } else { vec![known, begun] };
            known = shown::<E>(recording, &database, states, &allowed);
            if let Err(error) = outcome {
                tries += 1;
                assert!(error.to_string().contains(cause), "{}: an error without its cause: {error}", E::NAME);
                assert!(tries < 200, "{}: takes no commits after a failure that is over: {error}", E::NAME);
                if tries == 3 {
                    failed = failed.max(recording.failed());
                    recording.fail(None);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    let _ = E::close(&database);
    drop(database);
    failed = failed.max(recording.failed());
    recording.fail(None);
    shown::<E>(recording, &open::<E>(recording, &folder), states, &[known]);
    failed
}

fn open<E: Engine>(recording: &Recording, folder: &Path) -> E::Database {
    let mut failed = recording.failed();
    loop {
        match E::open(folder) {
            Ok(database) => return database,
            // The failing call belonged to the opening.
            Err(_) if recording.failed() > failed => failed = recording.failed(),
            Err(error) => panic!("{}: cannot be opened: {error}", E::NAME),
        }
    }
}

/// Reads the database, and notes which state it shows.
fn shown<E: Engine>(recording: &Recording, database: &E::Database, states: &[Rows], allowed: &[usize]) -> usize {
    let before = recording.failed();
    let found = rows(database).or_else(|error| match recording.failed() > before {
        // The failing call belonged to this read. The next read succeeds.
        true => rows(database),
        false => Err(error),
    });
    let found = found.unwrap_or_else(|error| panic!("{}: cannot be read: {error}", E::NAME));
    let known = allowed.iter().rev().find(|state| states[**state] == found);
    let Some(known) = known else { panic!("{}: {}", E::NAME, differences(&found, states, allowed)) };
    recording.note(Event::Known(*known));
    *known
}

/// Describes how rows differ from all allowed states.
pub fn differences(found: &Rows, states: &[Rows], allowed: &[usize]) -> String {
    if let Some(older) = states.iter().rposition(|state| state == found) {
        return format!("shows state {older}, and {allowed:?} are allowed");
    }
    let expected = &states[*allowed.last().unwrap_or(&0)];
    let keys = expected.keys().chain(found.keys()).filter(|key| expected.get(*key) != found.get(*key));
    format!(
        "shows no state that was committed ({allowed:?} are allowed); differs at {:?}",
        keys.take(5).collect::<Vec<_>>()
    )
}
