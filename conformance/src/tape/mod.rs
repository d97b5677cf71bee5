//! The tape: random instructions over interleaved transactions, compared step by step with the oracle.
//!
//! An instruction says everything it needs, so that a tape with any of its instructions left out is a
//! tape too: that is how a failing one is shrunk. The machine has a few transactions; a transaction
//! that ended begins anew, as it does after `on_error`.
//!
//! Modelled on FoundationDB's binding tester (`bindingApiTester.md`), whose stack machine this leaves
//! out: nobody else has to read these tapes.

mod generate;
mod play;

use std::path::Path;

use kv_api::{KeySelector, MutationType, Prefixed, RangeRequest, Read};

use crate::scenario::block_on;
use crate::{Harness, Keyspace, shrink};

pub use generate::generate;
pub use play::{Divergence, play};

/// How many transactions a tape interleaves.
pub const TRANSACTIONS: usize = 4;

/// A step: a transaction and what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Which transaction.
    pub transaction: usize,
    /// What it does.
    pub action: Action,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is the method of the same name in kv_api::Transaction")]
pub enum Action {
    Get {
        key: Vec<u8>,
        read: Read,
    },
    GetKey {
        selector: KeySelector,
        read: Read,
    },
    GetRange {
        request: RangeRequest,
        read: Read,
    },
    Set {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Clear {
        key: Vec<u8>,
    },
    ClearRange {
        begin: Vec<u8>,
        end: Vec<u8>,
    },
    Atomic {
        mutation: MutationType,
        key: Vec<u8>,
        operand: Vec<u8>,
    },
    StampedValue {
        key: Vec<u8>,
        operand: Vec<u8>,
    },
    StampedKey {
        template: Vec<u8>,
        value: Vec<u8>,
    },
    ReadConflict {
        begin: Vec<u8>,
        end: Vec<u8>,
    },
    WriteConflict {
        begin: Vec<u8>,
        end: Vec<u8>,
    },
    NextWriteNoWriteConflictRange,
    SnapshotRywDisable,
    SnapshotRywEnable,
    ReadVersion,
    /// Sets the read version to that of the commit this many commits ago.
    SetReadVersion {
        back: usize,
    },
    /// A write that is wrong: a key that is too long.
    KeyTooLong,
    /// A write that is wrong: at the end of the keyspace.
    KeyOutside,
    /// Commits, checks the outcome, and begins anew.
    Commit,
    OnError {
        code: i32,
    },
    Reset,
    Cancel,
}

/// How many tapes a run plays, and how long each is.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed of the first tape; each has the seed after that of the one before.
    pub seed: u64,
    /// How many.
    pub tapes: u64,
    /// Instructions in each.
    pub instructions: usize,
}

impl Run {
    /// This many tapes, a few seconds' worth. `CONFORMANCE_SEED` and `CONFORMANCE_TAPES` in the
    /// environment choose others.
    pub fn short(tapes: u64) -> Self {
        let number =
            |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
        Run { seed: number("CONFORMANCE_SEED", 1), tapes: number("CONFORMANCE_TAPES", tapes), instructions: 150 }
    }
}

/// Plays a tape in an empty keyspace: the database's own, or under a prefix of a shared one.
fn play_fresh<H: Harness>(harness: &H, tape: &[Instruction]) -> Result<(), Divergence> {
    let fixture = harness.open("tape");
    match fixture.keyspace {
        Keyspace::Own => block_on(play(&fixture.database, tape)),
        Keyspace::Shared => {
            let prefix = fixture.subspace.clone();
            let fixture = fixture.map(|database| Prefixed::new(database, prefix));
            block_on(play(&fixture.database, tape))
        }
    }
}

/// Plays random tapes on databases of `harness`, each in a keyspace of its own.
///
/// # Panics
///
/// At the first difference between engine and oracle, with the seed and the shortest tape found that
/// still shows it.
pub fn run<H: Harness>(harness: &H, run: Run) {
    for seed in run.seed..run.seed.saturating_add(run.tapes) {
        compare(harness, seed, run.instructions);
    }
}

/// Plays the pinned tapes: the seeds that once failed, each with its length, kept for ever.
///
/// # Panics
///
/// As [`run`] does.
pub fn run_pinned<H: Harness>(harness: &H) {
    for (seed, instructions) in pinned() {
        compare(harness, seed, instructions);
    }
}

/// The pinned seeds, from `conformance/seeds/tape.txt`: a seed and a length on each line.
pub fn pinned() -> Vec<(u64, usize)> {
    let lines = include_str!("../../seeds/tape.txt").lines();
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut numbers = line.split_whitespace();
            let mut next = || numbers.next().unwrap_or_default();
            match (next().parse(), next().parse()) {
                (Ok(seed), Ok(length)) => (seed, length),
                _ => panic!("not a seed and a length: {line}"),
            }
        })
        .collect()
}

fn compare<H: Harness>(harness: &H, seed: u64, instructions: usize) {
    if let Some(missing) = harness.missing() {
        return missing.skip(&harness.engine());
    }
    let tape = generate(seed, instructions);
    if let Err(found) = play_fresh(harness, &tape) {
        let tape = shrink(tape, |tape| play_fresh(harness, tape).is_err());
        let shortest = play_fresh(harness, &tape).err().unwrap_or(found);
        let steps: Vec<String> = tape.iter().map(|step| format!("  {step:?}")).collect();
        panic!(
            "{}: tape of seed {seed}, {instructions} instructions (pin it in {}):\n{shortest}\nafter:\n{}",
            harness.engine(),
            Path::new("conformance/seeds/tape.txt").display(),
            steps.join("\n"),
        );
    }
}

/// Two tests for an engine: the pinned tapes, and a short random run, of as many tapes as the second
/// argument says: each opens a database.
#[macro_export]
macro_rules! tape {
    ($harness:expr, $tapes:expr) => {
        #[test]
        fn pinned_tapes_agree_with_the_oracle() {
            $crate::tape::run_pinned(&$harness);
        }

        #[test]
        fn random_tapes_agree_with_the_oracle() {
            $crate::tape::run(&$harness, $crate::tape::Run::short($tapes));
        }
    };
}
