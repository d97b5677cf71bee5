//! Records workloads, cuts the power at many points, and opens what is left.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tempfile::TempDir;

use crate::dice::Dice;
use crate::disk::{Disk, Image, Keep};
use crate::engine::{Change, Engine, Rows, commit, rows};
use crate::recorder::Recording;
use crate::trace::{Event, Failure, Kind, Trace};
use crate::workload::{self, FOLDER, SECOND_FOLDER, differences};

/// Number of commits of a workload.
const COMMITS: usize = 70;

/// Number of commits of a workload that continues through failing calls.
const COMMITS_THROUGH_FAILURES: usize = 45;

/// Number of commits after a kill, a loss of power or a failure.
const MORE_COMMITS: usize = 12;

/// The purpose of a file, by its path.
pub fn class(path: &str) -> &'static str {
    let Some(rest) = [FOLDER, SECOND_FOLDER].iter().find_map(|folder| path.strip_prefix(folder)) else {
        return "a folder above";
    };
    match rest {
        "" => "the folder",
        "/log.0" | "/log.1" => "the log",
        "/synced" => "the side file",
        "/couch-layer.json" | "/couch-layer.json.new" => "the mark",
        "/LOCK" => "the lock",
        _ => "the store",
    }
}

/// A recorded workload.
#[derive(Clone, Debug)]
pub struct History {
    /// The recorded events.
    pub trace: Trace,
    /// States of the database. The notes in the trace refer to them by index.
    pub states: Vec<Rows>,
    /// Index of the first event at which the power may be cut.
    pub from: usize,
}

/// A cut that showed an error of the engine.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Number of cuts so far, including this one.
    pub cuts: usize,
    /// The error, and where it happened.
    pub wrong: String,
    image: Image,
}

impl Finding {
    /// Fails the test, and keeps the disk's files for inspection.
    ///
    /// # Panics
    ///
    /// Always.
    pub fn report(&self, seed: u64) -> ! {
        let folder = temporary().keep();
        self.image.write_to(&folder);
        panic!("seed {seed}, cut {}: {}\nthe disk is in {}", self.cuts, self.wrong, folder.display());
    }
}

/// Numbers of cuts, by kind of call and class of file.
#[derive(Clone, Debug, Default)]
pub struct Counts(BTreeMap<(Kind, &'static str), usize>);

impl Counts {
    /// Number of all cuts.
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Counts) {
        other.0.iter().for_each(|(kind, count)| *self.0.entry(*kind).or_default() += count);
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((kind, class), count) in &self.0 {
            writeln!(f, "{count:>8}  {kind:?} of {class}")?;
        }
        Ok(())
    }
}

/// A folder for files that need not outlive the process: in memory where possible.
fn temporary() -> TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a folder for temporary files")
}

/// Records a workload on a new database.
pub fn record<E: Engine>(seed: u64) -> History {
    let root = temporary();
    let mut states = vec![Rows::new()];
    let recording = Recording::begin(root.path(), Trace::default());
    recording.note(Event::Known(0));
    workload::run::<E>(&recording, root.path(), &mut states, &[0], &mut Dice::new(seed), COMMITS);
    History { trace: recording.finish(), states, from: 0 }
}

/// Records the recovery after a kill or a loss of power at event number `at` of a history.
pub fn record_recovery<E: Engine>(history: &History, at: usize, keep: Keep, dice: &mut Dice) -> History {
    let root = temporary();
    let mut disk = Disk::default();
    history.trace.events()[..at].iter().for_each(|event| disk.apply(event));
    let image = disk.cut(dice, keep);
    image.write_to(root.path());
    let allowed = allowed(&history.trace.events()[..at]);
    let trace = match keep {
        // The page cache of a killed process survives, but is no more durable than before.
        Keep::Everything => history.trace.prefix(at),
        _ => {
            let mut trace = image.history();
            allowed.iter().take(1).for_each(|known| trace.push(Event::Known(*known)));
            allowed.iter().skip(1).for_each(|begun| trace.push(Event::Begun(*begun)));
            trace
        }
    };
    let from = trace.events().len();
    let mut states = history.states.clone();
    let recording = Recording::begin(root.path(), trace);
    workload::run::<E>(&recording, root.path(), &mut states, &allowed, dice, MORE_COMMITS);
    History { trace: recording.finish(), states, from }
}

/// Records a workload in which one call fails.
pub fn record_failure<E: Engine>(seed: u64, failure: Failure) -> History {
    let root = temporary();
    let mut states = vec![Rows::new()];
    let recording = Recording::begin(root.path(), Trace::default());
    recording.note(Event::Known(0));
    recording.fail(Some(failure));
    workload::run::<E>(&recording, root.path(), &mut states, &[0], &mut Dice::new(seed), COMMITS);
    let trace = recording.finish();
    let from = trace.events().iter().position(|event| matches!(event, Event::SyncFailed { .. })).unwrap_or(0);
    History { trace, states, from }
}

/// Records a workload that continues through failing calls. Also returns the number of failed calls. Every error
/// that a client gets must contain `cause`.
pub fn record_failures<E: Engine>(seed: u64, failure: Failure, cause: &str) -> (History, usize) {
    let root = temporary();
    let mut states = vec![Rows::new()];
    let recording = Recording::begin(root.path(), Trace::default());
    recording.note(Event::Known(0));
    let dice = &mut Dice::new(seed);
    recording.fail(Some(failure));
    let commits = COMMITS_THROUGH_FAILURES;
    let failed = workload::run_through_failures::<E>(&recording, root.path(), &mut states, dice, cause, commits);
    (History { trace: recording.finish(), states, from: 0 }, failed)
}

/// The states that a database may show after these events.
fn allowed(events: &[Event]) -> Vec<usize> {
    let mut allowed = vec![0];
    for event in events {
        match event {
            Event::Known(state) => allowed = vec![*state],
            Event::Begun(state) => allowed.push(*state),
            _ => {}
        }
    }
    allowed
}

/// Cuts a history this many times, evenly among the kinds of calls, and opens what is left. Returns the counts.
///
/// # Errors
///
/// The first cut that shows an error.
pub fn cut<E: Engine>(history: &History, cuts: usize, dice: &mut Dice) -> Result<Counts, Finding> {
    cut_after::<E>(history, cuts, &Counts::default(), dice)
}

/// Like [`cut`], with half of the cuts at the kinds of calls that are rarest in `before`.
fn cut_after<E: Engine>(history: &History, cuts: usize, before: &Counts, dice: &mut Dice) -> Result<Counts, Finding> {
    let check = |root: &Path, allowed: &[usize], dice: &mut Dice| reopen::<E>(root, &history.states, allowed, dice);
    cut_by(E::NAME, history, cuts, before, dice, check)
}

/// Like [`cut`], for several databases, or for ones that are opened in another way. `check` gets the folder with the
/// files that are left, and the states that it may show. It opens them, and tells what is wrong. Half of the cuts are
/// at the kinds of calls that are rarest in `before`.
///
/// # Errors
///
/// The first cut that shows an error.
pub fn cut_by(
    name: &str,
    history: &History,
    cuts: usize,
    before: &Counts,
    dice: &mut Dice,
    mut check: impl FnMut(&Path, &[usize], &mut Dice) -> Result<(), String>,
) -> Result<Counts, Finding> {
    let trace = &history.trace;
    let mut kinds: BTreeMap<(Kind, &'static str), Vec<usize>> = BTreeMap::new();
    for (at, event) in trace.events().iter().enumerate().skip(history.from) {
        if let Some(kind) = event.kind() {
            kinds.entry((kind, class(&trace.path_of(event)))).or_default().push(at);
        }
    }
    let kinds: Vec<_> = kinds.into_iter().collect();
    let mut tally: Vec<usize> = kinds.iter().map(|(kind, _)| before.0.get(kind).copied().unwrap_or(0)).collect();
    let mut places: Vec<(usize, (Kind, &'static str))> = (0..cuts)
        .map(|_| {
            let rarest = (0..kinds.len()).min_by_key(|at| tally[*at]).filter(|_| dice.below(2) == 0);
            let chosen = rarest.unwrap_or_else(|| dice.below(kinds.len() as u64) as usize);
            tally[chosen] += 1;
            let (kind, events) = &kinds[chosen];
            (events[dice.below(events.len() as u64) as usize], *kind)
        })
        .collect();
    places.sort_unstable();
    let mut counts = Counts::default();
    let mut disk = Disk::default();
    let mut done = 0;
    for (at, kind) in places {
        trace.events()[done..at].iter().for_each(|event| disk.apply(event));
        done = at;
        let mut cut = disk.clone();
        // During the call, or after it.
        if kind.0 != Kind::Sync || dice.below(2) == 0 {
            cut.apply(&trace.events()[at]);
        }
        let tenths = [1, 5, 9][dice.below(3) as usize];
        let keep = match dice.below(10) {
            0 | 1 => Keep::Nothing,
            2 => Keep::Everything,
            3..6 => Keep::Some(tenths),
            _ => Keep::Any(tenths),
        };
        *counts.0.entry(kind).or_default() += 1;
        let image = cut.cut(dice, keep);
        let allowed = allowed(&trace.events()[..at]);
        let root = temporary();
        image.write_to(root.path());
        let checked = catch_unwind(AssertUnwindSafe(|| check(root.path(), &allowed, dice)));
        if let Err(wrong) = checked.unwrap_or_else(|_| Err("a panic".into())) {
            let call = format!("{:?} of {}", kind.0, trace.path_of(&trace.events()[at]));
            let listing = listing(trace, at);
            let wrong = format!(
                "{name}, at event {at} ({call}), with {keep:?} of what was not synced kept: {wrong}\n{listing}"
            );
            return Err(Finding { cuts: counts.total(), wrong, image });
        }
    }
    Ok(counts)
}

/// The last events before index `at`, as text.
fn listing(trace: &Trace, at: usize) -> String {
    let mut lines = String::new();
    for (place, event) in trace.events().iter().enumerate().take(at + 1).skip(at.saturating_sub(30)) {
        let what = match event {
            Event::Write { at, bytes, .. } => format!("{} bytes at {at}", bytes.len()),
            Event::Length { length, .. } => format!("{length} bytes"),
            Event::Rename { from, .. } => format!("from {}", trace.join(from.0, &from.1)),
            Event::Begun(state) | Event::Known(state) => format!("{event:?} {state}"),
            Event::SyncFailed { .. } => "fails".to_owned(),
            _ => String::new(),
        };
        let kind = event.kind().map_or(String::new(), |kind| format!("{kind:?}"));
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "  {place:>5} {kind} {} {what}", trace.path_of(event));
    }
    lines
}

/// Opens what is left, checks it, and commits.
fn reopen<E: Engine>(root: &Path, states: &[Rows], allowed: &[usize], dice: &mut Dice) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let value: Vec<u8> = (0..200).map(|_| dice.next_number() as u8).collect();
    let more = Change::Set("b/030".into(), value.into());
    let database = E::open(&folder).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut found = rows(&database).map_err(|error| format!("cannot be read: {error}"))?;
    if !allowed.iter().any(|state| states[*state] == found) {
        return Err(differences(&found, states, allowed));
    }
    commit(&database, std::slice::from_ref(&more)).map_err(|error| format!("takes no commit: {error}"))?;
    more.apply(&mut found);
    drop(database);
    let database = E::open(&folder).map_err(|error| format!("cannot be opened again: {error}"))?;
    let again = rows(&database).map_err(|error| format!("cannot be read again: {error}"))?;
    if again == found { Ok(()) } else { Err("does not hold what was written since".into()) }
}

/// Where a process ends: anywhere, or just before it renames a file. In the second case the next process finds a
/// file that was not renamed yet, and must empty it.
fn ending(trace: &Trace, dice: &mut Dice) -> usize {
    let is_rename = |at: &usize| matches!(trace.events()[*at], Event::Rename { .. });
    let renames: Vec<usize> = (0..trace.events().len()).filter(is_rename).collect();
    match renames.is_empty() || dice.below(2) == 0 {
        true => dice.below(trace.events().len() as u64) as usize,
        false => renames[dice.below(renames.len() as u64) as usize],
    }
}

/// Records workloads, recoveries from kills and recoveries from losses of power, and cuts them all. Ends after
/// `cuts` cuts, with at least a hundredth of them at each kind of call; after twice as many at the latest.
///
/// # Panics
///
/// When a cut shows an error.
pub fn explore<E: Engine>(first: u64, cuts: usize) -> Counts {
    /// Number of cuts of one recording.
    const EACH: usize = 150;
    let mut counts = Counts::default();
    for seed in first.. {
        let fewest = counts.0.values().min().copied().unwrap_or(0);
        if counts.total() >= cuts && (fewest >= cuts / 100 || counts.total() >= 2 * cuts) {
            break;
        }
        let dice = &mut Dice::new(seed);
        let history = record::<E>(seed);
        let found = cut_after::<E>(&history, EACH.min(cuts), &counts, dice);
        counts.add(&found.unwrap_or_else(|found| found.report(seed)));
        for keep in [Keep::Everything, Keep::Any(5)] {
            let at = ending(&history.trace, dice);
            let recovery = record_recovery::<E>(&history, at, keep, dice);
            let found = cut_after::<E>(&recovery, EACH.min(cuts) / 3, &counts, dice);
            counts.add(&found.unwrap_or_else(|found| found.report(seed)));
        }
    }
    counts
}
