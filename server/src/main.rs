//! The program `couch-layer`.

use std::process::ExitCode;

use clap::Parser;
use server::cli::Cli;

/// Documents come and go in many small pieces on many threads, which the system's allocator takes
/// locks for: a sixth of the time of a committing thread, by its profile.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = Cli::parse().run();
    server::engine::shut_down();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One sentence for a person, the causes behind it, and no backtrace.
            eprint!("couch-layer: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprint!(": {cause}");
                source = cause.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
