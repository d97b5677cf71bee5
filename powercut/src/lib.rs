//! Power loss and disk errors below any engine, as it ships.
//!
//! A killed process leaves what it wrote: the page cache outlives it. A loss of power does not, so a sync that
//! is missing shows nowhere but here. The module `interpose` stands between this process and the C library, and
//! records every call that changes a file. From such a trace the module `disk` makes the disks that a loss of
//! power may leave, at any call. The engine is opened on each, and held against what its clients had been told.
//!
//! ```text
//!   workload ─► engine ─► the C library's calls ─► recorder ─► the real files
//!                                                     │ trace
//!                            for many cuts of it:     ▼
//!   what clients were told ══ compare ══ engine ◄── what a loss of power may leave
//! ```
//!
//! An [`Engine`] is a few lines in a test file, and [`power_loss!`] makes tests of it. For Linux on 64 bits;
//! elsewhere the tests say that they are skipped.

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

/// The tests of an [`Engine`]: see [`suite`].
#[macro_export]
macro_rules! power_loss {
    ($engine:ty) => {
        #[test]
        fn what_was_acknowledged_outlives_a_loss_of_power() {
            $crate::suite::power_loss::<$engine>();
        }
    };
}

/// More tests, of an [`Engine`] that has `occ`'s log before its store: see [`suite`].
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
