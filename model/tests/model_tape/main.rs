//! The model tape: random histories of interactive and replicated edits by several clients, alone, in
//! bulk and at the same time, with deletions, recreations and stemming, compared with an oracle of
//! revision trees that shares no code with the layer; on calm engines and through faults.
//!
//! A failure prints its seed and the shortest tape found that still shows it. Seeds that once failed
//! stand in `pinned.txt`. A long run:
//!
//! ```text
//! MODEL_TAPE_SEED=1 MODEL_TAPE_TAPES=10000 MODEL_TAPE_STEPS=100 cargo test --release -p model --test model_tape
//! ```

mod compare;
mod oracle;
mod play;
mod tape;

use std::any::Any;

use conformance::chaos::{Chaos, Rates};
use conformance::shrink;
use kv_api::{Database, Durability};
use model::BodyFormat;

use compare::Failure;
use tape::{Step, generate};

/// Of commits, how many fail with 1020 and with each kind of 1021.
const COMMIT_FAULTS: f64 = 0.04;

/// Of reads, how many fail with 1007 and with 1009. There are many more of them, and every failure is
/// followed by a pause.
const READ_FAULTS: f64 = 0.002;

fn faults() -> Rates {
    let reads = Rates { too_old: READ_FAULTS, future_version: READ_FAULTS, ..Rates::default() };
    Rates {
        not_committed: COMMIT_FAULTS,
        unknown_committed: COMMIT_FAULTS,
        unknown_not_committed: COMMIT_FAULTS,
        ..reads
    }
}

/// A way to play tapes.
struct Stage<F> {
    name: &'static str,
    /// Opens an empty store; what it returns beside it is kept as long as the store is used.
    fresh: F,
    format: BodyFormat,
    faults: Rates,
}

impl<D: Database, F: Fn() -> (D, Box<dyn Any>)> Stage<F> {
    fn play(&self, seed: u64, tape: &[Step]) -> Result<(), Failure> {
        let (engine, _kept) = (self.fresh)();
        let wrap = |engine: D, client: u64| Chaos::new(engine, seed.wrapping_mul(31).wrapping_add(client), self.faults);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(play::play(engine, wrap, self.format, tape))
    }

    fn compare(&self, seed: u64, steps: usize) {
        let tape = generate(seed, steps);
        let Err(found) = self.play(seed, &tape) else { return };
        let tape = shrink(tape, |tape| self.play(seed, tape).is_err());
        let shortest = self.play(seed, &tape).err().unwrap_or(found);
        let steps_left: Vec<String> = tape.iter().map(|step| format!("  {step:?}")).collect();
        panic!(
            "{}: tape of seed {seed}, {steps} steps (pin it in model/tests/model_tape/pinned.txt):\n{shortest}\nafter:\n{}",
            self.name,
            steps_left.join("\n"),
        );
    }

    /// The pinned tapes, then random ones: `tapes` of them, unless the environment says otherwise.
    fn run(&self, tapes: u64) {
        for (seed, steps) in pinned() {
            self.compare(seed, steps);
        }
        let first = setting("SEED").unwrap_or(20_251_121);
        let (tapes, steps) = (setting("TAPES").unwrap_or(tapes), setting("STEPS").unwrap_or(40));
        for seed in first..first.saturating_add(tapes) {
            self.compare(seed, steps as usize);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(format!("MODEL_TAPE_{name}")).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("MODEL_TAPE_{name}={value} is no number")))
}

/// A seed and a number of steps on each line.
fn pinned() -> Vec<(u64, usize)> {
    let lines = include_str!("pinned.txt").lines();
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|line| !line.is_empty());
    let parse = |line: &str| {
        let (seed, steps) = line.split_once(' ')?;
        Some((seed.parse().ok()?, steps.trim().parse().ok()?))
    };
    lines.map(|line| parse(line).unwrap_or_else(|| panic!("not a seed and a number of steps: {line}"))).collect()
}

fn mem() -> (engine_mem::MemDatabase, Box<dyn Any>) {
    (engine_mem::MemDatabase::new(), Box::new(()))
}

fn sled() -> (engine_sled::SledDatabase, Box<dyn Any>) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = engine_sled::SledOptions::new().durability(Durability::OperatingSystem);
    (engine_sled::SledDatabase::open(folder.path().join("db"), options).expect("a store"), Box::new(folder))
}

fn redb() -> (engine_redb::RedbDatabase, Box<dyn Any>) {
    let folder = tempfile::tempdir().expect("a folder");
    let options = engine_redb::RedbOptions::new().durability(Durability::Process);
    (engine_redb::RedbDatabase::open(folder.path().join("db"), options).expect("a store"), Box::new(folder))
}

#[test]
fn exploded_bodies_in_memory() {
    let (format, faults) = (BodyFormat::Exploded, Rates::default());
    Stage { name: "engine-mem, exploded", fresh: mem, format, faults }.run(25);
}

#[test]
fn packed_bodies_in_memory() {
    let (format, faults) = (BodyFormat::Packed, Rates::default());
    Stage { name: "engine-mem, packed", fresh: mem, format, faults }.run(25);
}

#[test]
fn exploded_bodies_through_faults() {
    let (format, faults) = (BodyFormat::Exploded, faults());
    Stage { name: "engine-mem, exploded, with faults", fresh: mem, format, faults }.run(6);
}

#[test]
fn packed_bodies_through_faults() {
    let (format, faults) = (BodyFormat::Packed, faults());
    Stage { name: "engine-mem, packed, with faults", fresh: mem, format, faults }.run(6);
}

#[test]
fn redb_through_faults() {
    let (format, faults) = (BodyFormat::Exploded, faults());
    Stage { name: "engine-redb, with faults", fresh: redb, format, faults }.run(1);
}

#[test]
fn sled_through_faults() {
    let (format, faults) = (BodyFormat::Exploded, faults());
    Stage { name: "engine-sled, with faults", fresh: sled, format, faults }.run(1);
}
