//! Random commits by a seed, and what the database holds after each.
//!
//! The log is flushed and turned, a prefix is dropped, and the database is closed and opened again, all while it is
//! recorded. The trace has notes of what clients were told: a commit that has begun may be there or not, one that was
//! acknowledged must be there.

use std::path::Path;
use std::time::Duration;

use kv_api::Bytes;

use crate::dice::Dice;
use crate::engine::{Change, Engine, Rows, commit, rows};
use crate::recorder::Recording;
use crate::trace::Event;

/// The database's folder, below the recorded one: some folders deep, so that its parents are made too.
pub const FOLDER: &str = "deep/data";

/// Two or three databases' worth of keys.
fn key(dice: &mut Dice) -> Bytes {
    format!("{}/{:03}", ["a", "b", "c"][dice.below(3) as usize], dice.below(60)).into()
}

fn changes(dice: &mut Dice) -> Vec<Change> {
    if dice.below(14) == 0 {
        // A database is deleted.
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

/// Opens the database below `root`, which shows one of the `allowed` states, and commits `commits` times. `states`
/// are what the notes name.
///
/// # Panics
///
/// When the database does not hold what it should, or fails although no call was made to.
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

/// Opens a new database and commits `commits` times, while calls fail, without opening it again: reads go on all
/// the time, and so do commits once calls no longer fail. What is meant to fail for ever does so until a commit has failed
/// three times. Each error that is shown has the text `cause`. Gives the number of calls that failed.
///
/// # Panics
///
/// When it is not so.
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
    // A call of the opening may fail, and each that needs room does for a while.
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
            // The call that was to fail was one of the opening's.
            Err(_) if recording.failed() > failed => failed = recording.failed(),
            Err(error) => panic!("{}: cannot be opened: {error}", E::NAME),
        }
    }
}

/// Reads the database, and notes which state it shows.
fn shown<E: Engine>(recording: &Recording, database: &E::Database, states: &[Rows], allowed: &[usize]) -> usize {
    let before = recording.failed();
    let found = rows(database).or_else(|error| match recording.failed() > before {
        // The call that was to fail was one of this read's. The next one reads.
        true => rows(database),
        false => Err(error),
    });
    let found = found.unwrap_or_else(|error| panic!("{}: cannot be read: {error}", E::NAME));
    let known = allowed.iter().rev().find(|state| states[**state] == found);
    let Some(known) = known else { panic!("{}: {}", E::NAME, differences(&found, states, allowed)) };
    recording.note(Event::Known(*known));
    *known
}

/// What is wrong with rows that are none of the allowed states.
pub(crate) fn differences(found: &Rows, states: &[Rows], allowed: &[usize]) -> String {
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
