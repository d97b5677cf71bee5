//! The program `couch-layer`.

use std::process::ExitCode;

use server::cli::Cli;

/// Documents are allocated and freed in many small pieces on many threads. The system's allocator takes locks for that,
/// which cost a committing thread a sixth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = Cli::from_program().and_then(Cli::run);
    server::engine::shut_down();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The message, then its causes, and no backtrace.
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
