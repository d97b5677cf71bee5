//! The program `couch-layer`.

use std::ffi::{c_int, c_long};
use std::process::ExitCode;

use server::causes::causes;
use server::cli::Cli;
use server::cmd::serve::StoreFailed;

/// Documents are allocated and freed in many small pieces on many threads. The system's allocator takes locks for that,
/// which cost a committing thread a sixth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`. Its value is in milliseconds.
const PURGE_DELAY: c_int = 15;

/// After this time the allocator returns freed memory to the system: 10 ms. The default is a second, which keeps as
/// much as a large attachment brings in a second.
const PURGE_DELAY_MS: c_long = 10;

#[expect(unsafe_code, reason = "mimalloc is a library of C")]
unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// Sets the delay, unless the environment does (`MIMALLOC_PURGE_DELAY`).
#[expect(unsafe_code, reason = "the allocator's options are set in C only")]
fn set_purge_delay() {
    // SAFETY: stores a number in a table. No other thread runs yet.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}

/// Turns transparent huge pages off for the process, unless the environment decides it (`MIMALLOC_ALLOW_THP`). A huge
/// page is kept as a whole while one small piece of it is in use, so freed memory would not return to the system.
///
/// mimalloc has an option for that, but reads it before `main`. This is the system call that the option leads to. It
/// applies to pages touched from now on.
#[cfg(target_os = "linux")]
fn disable_huge_pages() {
    if std::env::var_os("MIMALLOC_ALLOW_THP").is_none() {
        // A kernel without huge pages refuses it, and needs nothing.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
}

fn main() -> ExitCode {
    set_purge_delay();
    #[cfg(target_os = "linux")]
    disable_huge_pages();
    let outcome = Cli::from_program().and_then(Cli::run);
    server::engine::shut_down();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The message, then its causes, and no backtrace.
            eprintln!("couch-layer: {error}{}", causes(error.as_ref()));
            if error.is::<StoreFailed>() { ExitCode::from(StoreFailed::EXIT_CODE) } else { ExitCode::FAILURE }
        }
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "the allocator's options are read in C only")]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    /// Another version of mimalloc may number its options differently.
    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: reads a number in a table.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
            assert_eq!(delay(), 1_000, "mimalloc's default");
            set_purge_delay();
            assert_eq!(delay(), PURGE_DELAY_MS);
        }
    }
}
