//! Plays random tapes on an engine for any length of time, and compares the engine with the oracle:
//!
//! ```text
//! cargo run -p couch-layer-conformance --release --example tape -- --engine lsm --instructions 10000000
//! ```
//!
//! Prints the seed, the number of instructions and the rate. Exits with 1 at the first difference, and prints the
//! shortest tape found that still shows it. Time is simulated: pauses end at once.

#[path = "../tests/engines/mod.rs"]
mod engines;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use conformance::Harness;
use conformance::tape::{Run, run_long};
use engine_lsm::LsmDatabase;
use engine_sled::SledDatabase;
use indicatif::{ProgressBar, ProgressStyle};

use engines::{InFolder, InMemory};

#[derive(Parser)]
#[command(about = "Plays random tapes on an engine and compares it with the oracle.")]
struct Arguments {
    /// The engine.
    #[arg(long, value_enum)]
    engine: Engine,
    /// Number of instructions in all, rounded up to whole tapes.
    #[arg(long, default_value_t = 1_000_000)]
    instructions: u64,
    /// Seed of the first tape. Each next tape has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instructions in a tape.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    length: u64,
    /// Number of tapes played on one database, which is emptied in between.
    #[arg(long, default_value_t = 200)]
    tapes_of_a_database: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Mem,
    Lsm,
    Sled,
}

fn play<H: Harness>(harness: &H, arguments: &Arguments) -> ExitCode {
    let tapes = arguments.instructions.div_ceil(arguments.length);
    let run = Run { seed: arguments.seed, tapes, instructions: arguments.length as usize };
    println!("{}: {tapes} tapes of {} instructions from seed {}", harness.engine(), run.instructions, run.seed);
    let bar = progress_bar(tapes * arguments.length);
    let (began, mut played, mut reported) = (Instant::now(), 0_u64, Instant::now());
    let outcome = run_long(harness, run, arguments.tapes_of_a_database, |instructions| {
        played += instructions;
        bar.inc(instructions);
        // A log file does not show the bar.
        if bar.is_hidden() && reported.elapsed() > Duration::from_secs(60) {
            reported = Instant::now();
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
        Engine::Lsm => play(&InFolder::<LsmDatabase>::new(), &arguments),
        Engine::Sled => play(&InFolder::<SledDatabase>::new(), &arguments),
    }
}
