//! Runs of many tapes: an engine's short test, the pinned seeds, and the long run.

use std::fmt;

use kv_api::{AnyDatabase, AnyTransaction, Database, DatabaseExt, Error, Transaction};

use super::generate::generate;
use super::instruction::Instruction;
use super::play::{Divergence, play};
use crate::random::number;
use crate::runtime::block_on;
use crate::{Fixture, Harness, shrink};

/// Size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Seed of the first tape. Each next tape has the next seed.
    pub seed: u64,
    /// Number of tapes.
    pub tapes: u64,
    /// Number of instructions of each tape.
    pub instructions: usize,
}

impl Run {
    /// This many tapes, which take a few seconds. `CONFORMANCE_SEED` and `CONFORMANCE_TAPES` in the environment
    /// override the seed and the number.
    pub fn short(tapes: u64) -> Self {
        Run { seed: number("CONFORMANCE_SEED", 1), tapes: number("CONFORMANCE_TAPES", tapes), instructions: 150 }
    }
}

/// A tape on which engine and oracle differ.
#[derive(Debug)]
pub struct Failure {
    engine: String,
    seed: u64,
    instructions: usize,
    found: Difference,
}

#[derive(Debug)]
enum Difference {
    /// They differ on an empty database, after these steps.
    Alone(Divergence, Vec<Instruction>),
    /// They differ only on a database on which other tapes were played before.
    After { first: u64, divergence: Divergence },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { engine, seed, instructions, found } = self;
        write!(f, "{engine}: tape of seed {seed}, {instructions} instructions ")?;
        match found {
            Difference::Alone(divergence, steps) => {
                write!(f, "(pin it in conformance/seeds/tape.txt):\n{divergence}\nafter:")?;
                steps.iter().try_for_each(|step| write!(f, "\n  {step}"))
            }
            Difference::After { first, divergence } => {
                write!(f, "(only after the tapes from seed {first} on, on one database):\n{divergence}")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// Empties the keyspace, and moves the time where the harness can, so that the engine soon forgets versions and
/// conflicts of earlier tapes.
async fn clear(fixture: &Fixture<AnyDatabase>) -> kv_api::Result<()> {
    if let Some(clock) = &fixture.clock {
        clock(fixture.database.limits().read_window / 4);
    }
    let everything = |tx: AnyTransaction, _| {
        tx.clear_range(b"", b"\xff");
        std::future::ready(Ok::<_, Error>(()))
    };
    fixture.database.run(everything).await
}

fn play_fresh<H: Harness>(harness: &H, tape: &[Instruction]) -> Result<(), Divergence> {
    let fixture = harness.open("tape").alone();
    block_on(play(&fixture.database, tape))
}

/// Plays a tape on an empty database, and shrinks it when it fails.
fn examine<H: Harness>(harness: &H, seed: u64, instructions: usize) -> Result<(), Failure> {
    if let Some(missing) = harness.missing() {
        missing.skip(&harness.engine());
        return Ok(());
    }
    let tape = generate(seed, instructions);
    let Err(first) = play_fresh(harness, &tape) else { return Ok(()) };
    let tape = shrink(tape, |tape| play_fresh(harness, tape).is_err());
    let divergence = play_fresh(harness, &tape).err().unwrap_or(first);
    Err(Failure { engine: harness.engine(), seed, instructions, found: Difference::Alone(divergence, tape) })
}

/// Plays random tapes on databases of `harness`, each in a keyspace of its own.
///
/// # Panics
///
/// At the first difference, with the seed and the shortest tape found that still shows it.
pub fn run<H: Harness>(harness: &H, run: Run) {
    for seed in run.seed..run.seed.saturating_add(run.tapes) {
        if let Err(failure) = examine(harness, seed, run.instructions) {
            panic!("{failure}");
        }
    }
}

/// Plays the pinned tapes: seeds that failed once, each with its length.
///
/// # Panics
///
/// As [`run`] does.
pub fn run_pinned<H: Harness>(harness: &H) {
    for (seed, instructions) in pinned() {
        if let Err(failure) = examine(harness, seed, instructions) {
            panic!("{failure}");
        }
    }
}

/// Plays random tapes for a long time: `tapes_of_a_database` on each database, which is emptied in between.
/// Opening a database then costs little, and the engine's memory of the past takes part. Calls `progress` with the
/// number of instructions of each tape.
///
/// # Errors
///
/// The first difference, with the shortest tape that still shows it on a fresh database, if there is one.
///
/// # Panics
///
/// When a database cannot be opened or emptied.
pub fn run_long<H: Harness>(
    harness: &H,
    run: Run,
    tapes_of_a_database: u64,
    mut progress: impl FnMut(u64),
) -> Result<(), Failure> {
    let end = run.seed.saturating_add(run.tapes);
    let mut first = run.seed;
    while first < end {
        let last = first.saturating_add(tapes_of_a_database.max(1)).min(end);
        let fixture = harness.open("tape").alone();
        for seed in first..last {
            let played = block_on(async {
                let played = play(&fixture.database, &generate(seed, run.instructions)).await;
                if let Err(error) = clear(&fixture).await {
                    panic!("{}: cannot be emptied after the tape of seed {seed}: {error}", harness.engine());
                }
                played
            });
            if let Err(divergence) = played {
                examine(harness, seed, run.instructions)?;
                let found = Difference::After { first, divergence };
                return Err(Failure { engine: harness.engine(), seed, instructions: run.instructions, found });
            }
            progress(run.instructions as u64);
        }
        first = last;
    }
    Ok(())
}

/// The pinned seeds, from `conformance/seeds/tape.txt`.
pub fn pinned() -> Vec<(u64, usize)> {
    seeds(include_str!("../../seeds/tape.txt"))
}

/// Parses a file of pinned seeds: a seed and a length on each line, with comments after `#`.
///
/// # Panics
///
/// When a line is malformed.
pub fn seeds(text: &str) -> Vec<(u64, usize)> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let parse = |line: &str| {
        let (seed, length) = line.split_once(' ')?;
        Some((seed.parse().ok()?, length.trim().parse().ok()?))
    };
    let read = |line| parse(line).unwrap_or_else(|| panic!("not a seed and a length: {line}"));
    lines.filter(|line| !line.is_empty()).map(read).collect()
}
