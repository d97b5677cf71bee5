//! Work on repositories that requests began: the backup of this server, and the verification of one.

use std::sync::atomic::AtomicU64;

use backup::{Pruned, Report, Verified};
use kv_api::figures::Counter;
use parking_lot::Mutex;

/// The running work of each kind, or the last one, since the server began.
#[derive(Debug, Default)]
pub(crate) struct BackupState {
    pub(crate) backup: Mutex<Work<Copying, (Report, Option<Pruned>)>>,
    pub(crate) verification: Mutex<Work<Reading, Verified>>,
    pub(crate) counts: BackupCounts,
}

/// Counts of backups since the server began.
#[derive(Debug, Default)]
pub(crate) struct BackupCounts {
    /// Those that have all databases.
    pub(crate) ended: Counter,
    /// Those that have not.
    pub(crate) failed: Counter,
    /// Bytes that they wrote.
    pub(crate) bytes: Counter,
    /// When the last one ended that has all databases, in milliseconds since 1970; 0 if there is none.
    pub(crate) last_ms: AtomicU64,
}

/// Work on a repository.
#[derive(Debug)]
pub(crate) struct Work<R, D> {
    /// The folder of the repository; empty without work.
    pub(crate) to: String,
    pub(crate) progress: Progress<R, D>,
}

impl<R, D> Default for Work<R, D> {
    fn default() -> Self {
        Work { to: String::new(), progress: Progress::None }
    }
}

/// The progress of work.
#[derive(Debug)]
pub(crate) enum Progress<R, D> {
    None,
    Running(R),
    /// What it came to, and when it ended, in milliseconds since 1970.
    Ended(D, u64),
    /// The reason, and when.
    Failed(String, u64),
}

/// The progress of a backup.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    pub(crate) database: String,
    pub(crate) documents: u64,
}

/// The progress of a verification.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) files: u64,
}
