//! Plays random tapes on an engine for as long as one likes, and compares it with the oracle:
//!
//! ```text
//! cargo run -p conformance --release --example tape -- --engine redb --instructions 10000000
//! ```
//!
//! Prints the seed, what was played and how fast; ends with 1 at the first difference, with the shortest
//! tape found that still shows it. Time is simulated: pauses end at once.

use std::io::IsTerminal;
use std::marker::PhantomData;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use conformance::tape::{Run, run_long};
use conformance::{Fixture, Harness};
use engine_mem::MemDatabase;
use engine_redb::RedbStore;
use engine_sled::SledStore;
use indicatif::{ProgressBar, ProgressStyle};
use kv_api::BoxFuture;
use occ::disk::{DiskOptions, DiskStore, OnDisk};
use occ::{Clock, OccBuilder, OccDatabase};

#[derive(Parser)]
#[command(about = "Plays random tapes on an engine and compares it with the oracle.")]
struct Arguments {
    /// The engine.
    #[arg(long, value_enum)]
    engine: Engine,
    /// How many instructions in all, rounded up to whole tapes.
    #[arg(long, default_value_t = 1_000_000)]
    instructions: u64,
    /// The seed of the first tape; each has the seed after that of the one before.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instructions in a tape.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    length: u64,
    /// How many tapes are played on one database, which is emptied in between.
    #[arg(long, default_value_t = 200)]
    tapes_of_a_database: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Mem,
    Redb,
    Sled,
}

/// Time that passes where somebody waits for it, and where the tape moves it on.
#[derive(Clone, Default)]
struct SimulatedClock(Arc<AtomicU64>);

impl SimulatedClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<()> {
        self.advance(pause);
        Box::pin(std::future::ready(()))
    }
}

struct InMemory;

impl Harness for InMemory {
    type Database = MemDatabase;

    fn engine(&self) -> String {
        "engine-mem".into()
    }

    fn open(&self, _scenario: &str) -> Fixture<MemDatabase> {
        let clock = SimulatedClock::default();
        let database = OccBuilder::new().clock(clock.clone()).build();
        Fixture::new(database).clock(move |by| clock.advance(by))
    }
}

struct InFolder<S>(PhantomData<fn() -> S>);

impl<S: DiskStore> Harness for InFolder<S> {
    type Database = OccDatabase<OnDisk<S>>;

    fn engine(&self) -> String {
        format!("engine-{}", S::ENGINE)
    }

    fn open(&self, _scenario: &str) -> Fixture<Self::Database> {
        let clock = SimulatedClock::default();
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
        let database = OccDatabase::open(folder.path(), DiskOptions::new().clock(clock.clone()))
            .unwrap_or_else(|error| panic!("{} does not open: {error}", S::ENGINE));
        Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder)
    }
}

fn play<H: Harness>(harness: &H, arguments: &Arguments) -> ExitCode {
    let tapes = arguments.instructions.div_ceil(arguments.length);
    let run = Run { seed: arguments.seed, tapes, instructions: arguments.length as usize };
    println!("{}: {tapes} tapes of {} instructions from seed {}", harness.engine(), run.instructions, run.seed);
    let bar = progress_bar(tapes * arguments.length);
    let (began, mut played, mut told) = (Instant::now(), 0_u64, Instant::now());
    let outcome = run_long(harness, run, arguments.tapes_of_a_database, |instructions| {
        played += instructions;
        bar.inc(instructions);
        // Nobody watches a bar in a log.
        if bar.is_hidden() && told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!("{played} instructions, {:.0}/s", rate(played, began));
        }
    });
    bar.finish_and_clear();
    println!("{played} instructions in {:.0} s, {:.0}/s", began.elapsed().as_secs_f64(), rate(played, began));
    match outcome {
        Ok(()) => {
            println!("no difference between {} and the oracle", harness.engine());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn rate(played: u64, began: Instant) -> f64 {
    played as f64 / began.elapsed().as_secs_f64()
}

fn progress_bar(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("[{bar:40}] {human_pos}/{human_len}, {per_sec}, {eta} left") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.engine {
        Engine::Mem => play(&InMemory, &arguments),
        Engine::Redb => play(&InFolder::<RedbStore>(PhantomData), &arguments),
        Engine::Sled => play(&InFolder::<SledStore>(PhantomData), &arguments),
    }
}
