//! Tests which data an engine on disk keeps after its process is killed, its files are damaged, or its disk fills up.
//!
//! ```ignore
//! conformance::durability!(MyDisk); // in a separate file: tests/durability.rs
//! ```
//!
//! ```text
//!   test ── starts ──► child: this same test binary, in which one test writes
//!     │                  │  prints every commit once it is acknowledged
//!     │                  ✗  killed at a random moment, or ended at a point of a commit
//!     └─ opens the folder again, and compares it with what was printed
//! ```
//!
//! # Invariants
//!
//! * Acknowledged commits are there. Other commits are there as a whole or not at all.
//! * Damage causes an error with a sentence, or no harm. It never causes a panic, or a part of the data or an older
//!   state instead of the data.
//! * No result depends on time: kills are counted in commits, and random choices come from a seed, which is
//!   printed.

mod child;
mod damage;
mod folder;
mod full_disk;
mod harness;
mod kills;
mod process;
mod reopen;

pub use child::child;
pub use damage::{a_copy_that_is_older, damaged_files};
pub use full_disk::full_disk;
pub use harness::{DiskHarness, Point, Reached};
pub use kills::{kills_amid_clears, kills_at_points, kills_at_random};
pub use reopen::{a_large_clear, a_log_of_many_records, histories_over_a_reopen, versions_over_a_reopen};

/// The tests of an engine on disk: `conformance::durability!(MyDisk)`, where `MyDisk` is a
/// [`DiskHarness`](trait@crate::durability::DiskHarness). They start child processes from their own test binary,
/// through the test named `child`, which otherwise does nothing. In the environment, `CONFORMANCE_SEED` chooses
/// other random moments and places, and `CONFORMANCE_DAMAGE` the number of damages.
#[macro_export]
macro_rules! durability {
    ($harness:expr) => {
        #[test]
        fn child() {
            $crate::durability::child(&$harness);
        }

        #[test]
        fn what_was_acknowledged_survives_kills_at_random_moments() {
            $crate::durability::kills_at_random(&$harness, module_path!());
        }

        #[test]
        fn a_process_that_ends_at_a_point_of_a_commit_leaves_all_of_it_or_nothing() {
            $crate::durability::kills_at_points(&$harness, module_path!());
        }

        #[test]
        fn a_clear_of_many_rows_survives_kills_as_a_whole() {
            $crate::durability::kills_amid_clears(&$harness, module_path!());
        }

        #[test]
        fn damage_is_an_error_and_never_a_panic_a_part_or_a_rollback() {
            $crate::durability::damaged_files(&$harness, module_path!());
        }

        #[test]
        fn a_copy_of_the_data_that_is_older_is_refused() {
            $crate::durability::a_copy_that_is_older(&$harness);
        }

        #[test]
        fn a_large_clear_is_seen_at_once_and_over_a_restart() {
            $crate::durability::a_large_clear(&$harness);
        }

        #[test]
        fn a_read_version_from_before_a_reopen_is_too_old() {
            $crate::durability::versions_over_a_reopen(&$harness);
        }

        #[test]
        fn histories_over_a_reopen_have_a_serial_order() {
            $crate::durability::histories_over_a_reopen(&$harness);
        }

        #[test]
        fn a_log_of_many_records_is_read_back_whole() {
            $crate::durability::a_log_of_many_records(&$harness);
        }

        #[test]
        fn a_full_disk_is_an_error_and_takes_nothing_back() {
            $crate::durability::full_disk(&$harness);
        }
    };
}
