//! The backup that a server makes.

use backup::{Pruned, Report};
use parking_lot::Mutex;

/// The backup of this server that runs, or the last one.
#[derive(Debug, Default)]
pub(crate) struct BackupState(pub(crate) Mutex<State>);

/// How far it is.
#[derive(Debug, Default)]
pub(crate) enum State {
    #[default]
    None,
    Running {
        database: String,
        documents: u64,
    },
    Ended(Box<(Report, Option<Pruned>)>),
    Failed(String),
}
