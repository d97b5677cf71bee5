//! What can go wrong with a job.

use kv_api::RetryError;

/// What can go wrong with a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store's error.
    #[error(transparent)]
    Store(#[from] kv_api::Error),
    /// The run no longer has its job: it ended, the job was removed, or another server took it over. The run must
    /// stop.
    #[error("the job is no longer this run's")]
    Lost,
    /// A row that cannot be read.
    #[error("a row of a job cannot be read: {0}")]
    Corrupt(String),
    /// A row that a later version wrote.
    #[error("a row of a job is in format {0}, which this version does not know")]
    UnknownFormat(u64),
}

/// What an operation on a job comes to.
pub type Result<T> = std::result::Result<T, Error>;

impl RetryError for Error {
    fn kv_error(&self) -> Option<&kv_api::Error> {
        match self {
            Error::Store(error) => Some(error),
            _ => None,
        }
    }
}
