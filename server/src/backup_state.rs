//! The backup that a server makes.

use backup::{Pruned, Report};
use parking_lot::Mutex;

/// The running backup of this server, or its last one.
#[derive(Debug, Default)]
pub(crate) struct BackupState(pub(crate) Mutex<BackupProgress>);

/// The progress of a backup.
#[derive(Debug, Default)]
pub(crate) enum BackupProgress {
    #[default]
    None,
    Running {
        database: String,
        documents: u64,
    },
    Ended(Box<(Report, Option<Pruned>)>),
    Failed(String),
}
