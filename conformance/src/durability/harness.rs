//! The interface that the tests need from an engine on disk.

use std::path::Path;

use kv_api::{Database, Result};

/// Opens databases of an engine on disk.
pub trait DiskHarness: Send + Sync + 'static {
    /// Type of the databases.
    type Database: Database;

    /// Name of the engine, for reports.
    fn engine(&self) -> String;

    /// Opens the database in `folder`, and creates the folder if it does not exist. The cache is small, so that reads
    /// reach the files.
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
    /// The commit is synced, and not acknowledged yet.
    AfterSync,
}

impl Point {
    /// All points, in order. `occ` has the same order.
    pub const ALL: [Point; 3] = [Point::BeforeApply, Point::AfterApply, Point::AfterSync];
}
