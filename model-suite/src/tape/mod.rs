//! The model tape: random histories of interactive and replicated edits by several clients. They come alone, in batches
//! and concurrently, with attachments, deletions, recreations, purges, patches and stemming, and in transactions with
//! the clients' own rows and a second database, while indexes and views are built. They are compared with an oracle of
//! revision trees that shares no code with the layer, without faults and with faults.
//!
//! After every step, everything that can be read is compared with the oracle, and at intervals `check` checks the rows.
//! A failure prints its seed and the shortest failing tape that was found. Seeds that failed once are pinned in
//! `model-suite/seeds/tape.txt`. A long run:
//!
//! ```text
//! MODEL_TAPE_SEED=1 MODEL_TAPE_TAPES=10000 MODEL_TAPE_STEPS=100 cargo test --release -p couch-layer-engine-mem --test
//! model bodies
//! ```

mod attached;
mod compare;
mod generate;
mod oracle;
mod play;
mod queries;
mod relocating;
mod step;

use conformance::chaos::{Chaos, Rates};
use conformance::tape::seeds;
use conformance::{Harness, block_on, shrink};
use kv_api::AnyDatabase;
use model::{BodyFormat, ConflictPolicy, CreateOptions};

use compare::Failure;
use generate::generate;
use step::Step;

pub use relocating::run_relocating;

/// Share of commits that fail with 1020, and with each kind of 1021.
const COMMIT_FAULTS: f64 = 0.04;

/// Share of reads that fail with 1007, and with 1009. It is smaller, since there are many more reads and a pause
/// follows every failure.
const READ_FAULTS: f64 = 0.002;

/// The number, the length and the options of tapes.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed of the first tape. Each further tape has the next seed.
    pub seed: u64,
    /// Number of tapes.
    pub tapes: u64,
    /// Number of steps in a tape: writes, batches, concurrent writes, changes of `_revs_limit`.
    pub steps: usize,
    /// The layout of bodies.
    pub format: BodyFormat,
    /// The conflict policy of the databases.
    pub conflicts: ConflictPolicy,
    /// Rates of faults for each client.
    pub faults: Rates,
}

impl Run {
    /// This number of tapes with 40 steps each, without faults. The environment variables `MODEL_TAPE_SEED`,
    /// `MODEL_TAPE_TAPES` and `MODEL_TAPE_STEPS` override these.
    ///
    /// # Panics
    ///
    /// If one of these is not a number.
    pub fn short(format: BodyFormat, tapes: u64) -> Self {
        let setting = |name: &str, default: u64| {
            let name = format!("MODEL_TAPE_{name}");
            let Ok(value) = std::env::var(&name) else { return default };
            value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number"))
        };
        Run {
            seed: setting("SEED", 20_251_121),
            tapes: setting("TAPES", tapes),
            steps: setting("STEPS", 40) as usize,
            format,
            conflicts: ConflictPolicy::KeepAll,
            faults: Rates::default(),
        }
    }

    /// The same with faults: about one commit in ten fails, half of those with an unknown result, and some reads fail.
    #[must_use]
    pub fn through_faults(self) -> Self {
        let faults = Rates {
            too_old: READ_FAULTS,
            future_version: READ_FAULTS,
            not_committed: COMMIT_FAULTS,
            unknown_committed: COMMIT_FAULTS,
            unknown_not_committed: COMMIT_FAULTS,
            ..Rates::default()
        };
        Run { faults, ..self }
    }

    /// The same in databases in which the last write wins.
    #[must_use]
    pub fn where_the_last_write_wins(self) -> Self {
        Run { conflicts: ConflictPolicy::LastWriteWins, ..self }
    }

    fn play<H: Harness>(&self, harness: &H, seed: u64, tape: &[Step]) -> Result<(), Failure> {
        let fixture = harness.open("model tape").alone();
        let wrap = |engine: AnyDatabase, client: u64| {
            Chaos::new(engine, seed.wrapping_mul(31).wrapping_add(client), self.faults)
        };
        let options =
            CreateOptions { format: Some(self.format), conflicts: self.conflicts, ..CreateOptions::default() };
        block_on(play::play(fixture.database().clone(), wrap, options, tape))
    }

    fn compare<H: Harness>(&self, harness: &H, seed: u64, steps: usize) {
        let tape = generate(seed, steps, self.conflicts);
        let Err(found) = self.play(harness, seed, &tape) else { return };
        let tape = shrink(tape, |tape| self.play(harness, seed, tape).is_err());
        let shortest = self.play(harness, seed, &tape).err().unwrap_or(found);
        let left: Vec<String> = tape.iter().map(|step| format!("  {step:?}")).collect();
        panic!(
            "{}, {:?}, {:?}, {:?}: tape of seed {seed}, {steps} steps (pin it in model-suite/seeds/tape.txt):\n{shortest}\nafter:\n{}",
            harness.engine(),
            self.format,
            self.conflicts,
            self.faults,
            left.join("\n"),
        );
    }
}

/// Plays tapes on databases of `harness`, each in its own keyspace: the pinned tapes, then random ones.
///
/// # Panics
///
/// At the first difference between the layer and the oracle, with the seed and the shortest failing tape that was
/// found.
pub fn run<H: Harness>(harness: &H, run: Run) {
    if let Some(missing) = harness.missing() {
        return missing.skip(&harness.engine());
    }
    for (seed, steps) in seeds(include_str!("../../seeds/tape.txt")) {
        run.compare(harness, seed, steps);
    }
    for seed in run.seed..run.seed.saturating_add(run.tapes) {
        run.compare(harness, seed, run.steps);
    }
}

/// Five tests for an engine: exploded and packed bodies, without and with faults, and databases in which the last write
/// wins. Each plays the pinned tapes, and as many random ones as the second argument says. With faults only a quarter
/// of them, rounded up, are played: a pause follows every fault.
#[macro_export]
macro_rules! tape {
    ($harness:expr, $tapes:expr) => {
        #[test]
        fn random_edits_of_exploded_bodies_agree_with_the_oracle() {
            $crate::tape::run(&$harness, $crate::tape::exploded($tapes));
        }

        #[test]
        fn random_edits_of_packed_bodies_agree_with_the_oracle() {
            $crate::tape::run(&$harness, $crate::tape::packed($tapes));
        }

        #[test]
        fn random_edits_of_exploded_bodies_through_faults_agree_with_the_oracle() {
            $crate::tape::run(&$harness, $crate::tape::exploded(u64::div_ceil($tapes, 4)).through_faults());
        }

        #[test]
        fn random_edits_of_packed_bodies_through_faults_agree_with_the_oracle() {
            $crate::tape::run(&$harness, $crate::tape::packed(u64::div_ceil($tapes, 4)).through_faults());
        }

        #[test]
        fn random_edits_of_which_the_last_wins_agree_with_the_oracle() {
            let run = $crate::tape::exploded(u64::div_ceil($tapes, 4)).through_faults();
            $crate::tape::run(&$harness, run.where_the_last_write_wins());
        }
    };
}

/// [`Run::short`] of exploded bodies.
pub fn exploded(tapes: u64) -> Run {
    Run::short(BodyFormat::Exploded, tapes)
}

/// [`Run::short`] of packed bodies.
pub fn packed(tapes: u64) -> Run {
    Run::short(BodyFormat::Packed, tapes)
}
