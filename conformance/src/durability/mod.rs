//! What an engine on disk keeps, whatever happens to its process, its files and its disk.
//!
//! ```ignore
//! conformance::durability!(MyDisk); // in a separate file: tests/durability.rs
//! ```
//!
//! ```text
//!   test ── starts ──► child: this same test binary, in which one test writes
//!     │                  │  prints every commit once it is acknowledged
//!     │                  ✗  killed at a random moment, or ended at a point of a commit
//!     └─ opens the folder again, and holds it against what was printed
//! ```
//!
//! # Invariants
//!
//! * Acknowledged commits are there. Other commits are there as a whole or not at all.
//! * Damage causes an error with a sentence, or no harm. A panic, a part of the data or an older state never
//!   passes for the data.
//! * No result depends on time: kills are counted in commits, and random choices come from a seed, which is
//!   printed.

mod child;
mod damage;
mod folder;
mod full_disk;
mod kills;
mod reopen;

use std::path::Path;

use kv_api::{Database, Result};

pub use child::child;
pub use damage::{a_copy_that_is_older, damaged_files};
pub use full_disk::full_disk;
pub use kills::{kills_amid_clears, kills_at_points, kills_at_random};
pub use reopen::{a_large_clear, a_log_of_many_records, histories_over_a_reopen, versions_over_a_reopen};

/// Opens databases of an engine on disk.
pub trait DiskHarness: Send + Sync + 'static {
    /// Type of the databases.
    type Database: Database;

    /// Name of the engine, for reports.
    fn engine(&self) -> String;

    /// Opens the database in `folder`, and creates the folder where there is none. The cache is small, so that
    /// reads reach the files.
    fn open(&self, folder: &Path) -> Result<Self::Database>;

    /// Opens it with the engine's default cache, as users do.
    fn open_as_shipped(&self, folder: &Path) -> Result<Self::Database> {
        self.open(folder)
    }

    /// Opens it so that `reached` is called at each [`Point`] of every commit, on the committing thread. `None`
    /// for an engine that cannot: its processes are killed at random moments only.
    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<Self::Database>> {
        let _ = (folder, reached);
        None
    }

    /// Name of the file or folder that holds the rows.
    fn data(&self) -> &'static str;

    /// The version in the engine's side file, which is synced; 0 for none yet. `None` for an engine without a side
    /// file.
    fn remembered(&self, folder: &Path) -> Option<i64> {
        let _ = folder;
        None
    }
}

/// Called at a point of a commit.
pub type Reached = Box<dyn Fn(Point) + Send + Sync>;

/// A point on a commit's way to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The store has not been called.
    BeforeApply,
    /// The store has applied the commit, and has not been asked to sync it.
    AfterApply,
    /// The commit is synced, and nobody has been told.
    AfterSync,
}

impl Point {
    /// All points, in order. `occ` has the same order.
    pub const ALL: [Point; 3] = [Point::BeforeApply, Point::AfterApply, Point::AfterSync];
}

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
