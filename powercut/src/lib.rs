//! Simulated power loss and disk errors below any engine as it ships.
//!
//! A killed process leaves everything it wrote, since the page cache survives. A loss of power does not, so only
//! this crate finds a missing sync. The module `interpose` stands between this process and the C library, and
//! records every call that changes a file. From such a trace the module `disk` computes what a loss of power at
//! any call may leave. The engine is opened on each result, which must agree with what its clients were told.
//!
//! ```text
//!   workload ─► engine ─► the C library's calls ─► recorder ─► the real files
//!                                                     │ trace
//!                            for many cuts of it:     ▼
//!   what clients were told ══ compare ══ engine ◄── what a loss of power may leave
//! ```
//!
//! An [`Engine`] is a few lines in a test file, and [`power_loss!`] makes tests of it. Runs on 64-bit Linux;
//! elsewhere the tests are skipped, with a message.

mod engine;
pub mod suite;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod dice;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod disk;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod faults;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod harness;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod interpose;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod recorder;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod trace;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod workload;

pub use engine::{Engine, Rows};

/// Tests of an [`Engine`]: see [`suite`].
#[macro_export]
macro_rules! power_loss {
    ($engine:ty) => {
        #[test]
        fn what_was_acknowledged_outlives_a_loss_of_power() {
            $crate::suite::power_loss::<$engine>();
        }
    };
}

/// More tests, for an [`Engine`] with a write-ahead log from `disk`: see [`suite`].
#[macro_export]
macro_rules! log_before_store {
    ($engine:ty) => {
        #[test]
        fn a_sync_that_failed_is_not_trusted() {
            $crate::suite::failed_syncs::<$engine>();
        }

        #[test]
        fn reads_and_commits_go_on_through_failures() {
            $crate::suite::failures::<$engine>();
        }

        #[test]
        fn each_missing_sync_is_found() {
            $crate::suite::missing_syncs::<$engine>();
        }
    };
}
