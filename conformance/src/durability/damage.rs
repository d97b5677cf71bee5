//! Damaged files, and data that is older than it should be.

use std::fmt;
use std::fs;
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kv_api::{Bytes, Error, Transaction, error};

use super::folder::{self, Rows, commit, copy, copy_in_use, done, files, remove, rows, temporary};
use super::harness::DiskHarness;
use super::process::{ChildTask, Process, Said};
use crate::random::{Random, number};

/// Number of times each of two folders is damaged, unless `CONFORMANCE_DAMAGE` says otherwise.
const TRIALS: u64 = 30;

/// Number of commits before the damage.
const COMMITS: usize = 60;

/// Flips bits and bytes and cuts off tails, one at a time, in every file of a database that was closed and of one that
/// was killed. Each time the result is an error or no harm: never a panic, a message from the panic hook, a part of the
/// data or an older state.
///
/// Runs in a process of its own, since the panic hook belongs to the whole process.
///
/// # Panics
///
/// When damage goes unnoticed, or an error says too little.
pub fn damaged_files<H: DiskHarness>(harness: &H, module: &str) {
    let folder = temporary();
    let mut process = Process::start(module, ChildTask::Damage, folder.path());
    for said in process.by_ref() {
        if let Said::Note(text) = said {
            println!("{}: {text}", harness.engine());
        }
    }
    let status = process.ended();
    assert!(status.success(), "{}: damage did harm: {status}", harness.engine());
}

/// Replaces the data by an older copy while the engine is closed. The engine refuses to open, and opens again once
/// the newer data is back.
///
/// # Panics
///
/// When the engine accepts the older state.
pub fn a_copy_that_is_older<H: DiskHarness>(harness: &H) {
    let folder = temporary();
    let path = folder.path().join("db");
    let (older, newer) = (folder.path().join("older"), folder.path().join("newer"));
    let put = |key: &[u8], kept: &Path| {
        let database = opened(harness, &path);
        if let Err(error) = commit(&database, |tx| tx.set(key, b"value")) {
            panic!("cannot write: {error}");
        }
        drop(database);
        // Opening again waits until the engine has finished closing.
        drop(opened(harness, &path));
        copy(&path.join(harness.data()), kept);
    };
    put(b"a", &older);
    put(b"b", &newer);
    let put_back = |kept: &Path| {
        remove(&path.join(harness.data()));
        copy(kept, &path.join(harness.data()));
    };
    put_back(&older);
    for _ in 0..2 {
        match folder::open(harness, &path) {
            Ok(_) => panic!("{} takes an older state for the data", harness.engine()),
            Err(error) => {
                assert_eq!(error.code(), error::FILE_CORRUPT, "{error}");
                assert!(is_older(&error), "{error}");
            }
        }
    }
    put_back(&newer);
    let found = rows(&opened(harness, &path)).unwrap_or_else(|error| panic!("cannot read: {error}"));
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a", "b"]);
}

fn opened<H: DiskHarness>(harness: &H, path: &Path) -> H::Database {
    folder::open(harness, path).unwrap_or_else(|error| panic!("{} does not open: {error}", harness.engine()))
}

/// Whether the engine says that the data is older than what was acknowledged.
fn is_older(error: &Error) -> bool {
    error.context().is_some_and(|context| context.contains("older than what was acknowledged"))
}

/// One piece of damage.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// Flips these bits of one byte.
    Flip { at: usize, bits: u8 },
    /// Truncates the file.
    Cut { at: usize },
}

impl Damage {
    /// A random damage for a file of these bytes: usually before its trailing zeros, sometimes in them.
    fn choose(bytes: &[u8], random: &mut Random) -> Self {
        let length = if random.below(8) == 0 { bytes.len() } else { used(bytes) };
        let at = random.below(length as u64) as usize;
        match random.below(4) {
            0 => Damage::Cut { at },
            1 => Damage::Flip { at, bits: 1 + random.below(255) as u8 },
            _ => Damage::Flip { at, bits: 1 << random.below(8) },
        }
    }

    fn to(self, bytes: &mut Vec<u8>) {
        match self {
            Damage::Flip { at, bits } => bytes[at] ^= bits,
            Damage::Cut { at } => bytes.truncate(at),
        }
    }
}

/// Length without the zeros at the end; 1 for a file of zeros only.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1
}

/// Counts of the results.
#[derive(Debug, Default)]
struct Tally {
    flips: usize,
    cuts: usize,
    refused: usize,
    refused_as_older: usize,
    refused_to_read: usize,
    harmless: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { flips, cuts, refused, refused_as_older, refused_to_read, harmless } = self;
        write!(
            f,
            "{flips} flips and {cuts} cuts: {refused} refused as damaged, {refused_as_older} as older, \
             {refused_to_read} when read, {harmless} harmless"
        )
    }
}

/// The child's side of [`damaged_files`].
pub(super) fn child<H: DiskHarness>(harness: &H, folder: &Path, note: impl Fn(String)) {
    let panics = Arc::new(AtomicUsize::new(0));
    let counter = panics.clone();
    panic::set_hook(Box::new(move |info| {
        counter.fetch_add(1, Ordering::SeqCst);
        eprintln!("{info}");
    }));
    let seed = number("CONFORMANCE_SEED", 4);
    note(format!("seed {seed}"));
    let mut random = Random::new(seed);
    let (closed, killed) = (folder.join("closed"), folder.join("killed"));
    let states = write(harness, &closed, &killed, &mut random);
    for (from, name) in [(&closed, "closed"), (&killed, "killed")] {
        let damaged = folder.join("damaged");
        let mut tally = Tally::default();
        copy(from, &damaged);
        judge(harness, &damaged, &states, &mut tally, name);
        remove(&damaged);
        assert_eq!(tally.harmless, 1, "a whole copy of what was {name} opens: {tally:?}");
        tally = Tally::default();
        for trial in 0..number("CONFORMANCE_DAMAGE", TRIALS) {
            copy(from, &damaged);
            let what = damage(&damaged, &mut random, &mut tally);
            judge(harness, &damaged, &states, &mut tally, &format!("{name}, trial {trial}, {what}"));
            remove(&damaged);
        }
        note(format!("{name}: {tally}"));
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0, "the panic hook was called");
}

/// Writes a database that is then closed, and a copy from before, as a kill would leave it. Returns the states
/// after each commit, in order.
fn write<H: DiskHarness>(harness: &H, closed: &Path, killed: &Path, random: &mut Random) -> Vec<Rows> {
    let mut states = vec![Rows::new()];
    let mut state = Rows::new();
    let database = opened(harness, closed);
    for at in 0..COMMITS {
        let key = Bytes::from(format!("{:03}", random.below(COMMITS as u64 / 2)));
        let length = if at % 10 == 9 { 20_000 } else { 500 };
        let value: Bytes = (0..length).map(|_| random.bits() as u8).collect::<Vec<_>>().into();
        let cleared = Bytes::from(format!("{:03}", random.below(COMMITS as u64 / 2)));
        let outcome = commit(&database, |tx| {
            tx.clear(&cleared);
            tx.set(&key, &value);
        });
        if let Err(error) = outcome {
            panic!("cannot write: {error}");
        }
        state.remove(&cleared);
        state.insert(key, value);
        states.push(state.clone());
    }
    // The engine's own threads may still be writing.
    copy_in_use(closed, killed);
    drop(database);
    // Opening again waits until the engine has finished closing.
    drop(opened(harness, closed));
    states
}

/// Damages one file below a folder.
fn damage(folder: &Path, random: &mut Random, tally: &mut Tally) -> String {
    let candidates: Vec<_> = files(folder)
        .into_iter()
        .map(|path| (done("read a file", fs::read(&path)), path))
        .filter(|(bytes, _)| !bytes.is_empty())
        .collect();
    // Picks a file at random, or a byte at random in all files.
    let of = match random.below(4) {
        0 => random.below(candidates.len() as u64) as usize,
        _ => {
            let total: usize = candidates.iter().map(|(bytes, _)| used(bytes)).sum();
            let mut left = random.below(total as u64) as usize;
            let found = candidates.iter().position(|(bytes, _)| {
                let here = left < used(bytes);
                left = left.saturating_sub(used(bytes));
                here
            });
            found.unwrap_or(0)
        }
    };
    let (bytes, path) = &candidates[of];
    let chosen = Damage::choose(bytes, random);
    let mut bytes = bytes.clone();
    chosen.to(&mut bytes);
    done("write a file", fs::write(path, bytes));
    match chosen {
        Damage::Flip { .. } => tally.flips += 1,
        Damage::Cut { .. } => tally.cuts += 1,
    }
    format!("{chosen:?} in {}", path.strip_prefix(folder).unwrap_or(path).display())
}

/// Opens the damaged folder, and compares it with the expected states.
fn judge<H: DiskHarness>(harness: &H, damaged: &Path, states: &[Rows], tally: &mut Tally, context: &str) {
    let Some(whole) = states.last() else { return };
    let mut whole = whole.clone();
    // The second round commits first: damage that does not harm reading must not harm writing either.
    for written in [false, true] {
        let counted = match folder::open(harness, damaged).map(|database| (rows(&database), database)) {
            Err(error) => {
                assert!(error.context().is_some_and(|context| context.len() > 20), "{context}: {error}");
                if is_older(&error) { &mut tally.refused_as_older } else { &mut tally.refused }
            }
            Ok((Err(error), _)) => {
                assert!(error.context().is_some_and(|context| context.len() > 10), "{context}: {error}");
                &mut tally.refused_to_read
            }
            Ok((Ok(found), database)) => {
                if found != whole {
                    let older = states.iter().position(|state| *state == found);
                    panic!(
                        "{context}, written {written}: {} rows of {}, the state {older:?}",
                        found.len(),
                        whole.len()
                    );
                }
                if !written {
                    match commit(&database, |tx| tx.set(b"new", b"row")) {
                        Ok(_) => {
                            whole.insert(Bytes::from_static(b"new"), Bytes::from_static(b"row"));
                            continue;
                        }
                        Err(_) => &mut tally.refused_to_read,
                    }
                } else {
                    &mut tally.harmless
                }
            }
        };
        *counted += 1;
        return;
    }
}
