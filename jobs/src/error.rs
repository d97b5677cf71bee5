//! The errors of jobs.

use kv_api::RetryError;

/// An error of an operation on a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] kv_api::Error),
    /// The run does not hold its job any more: it ended, the job was removed, or another server took it over. The run
    /// must stop.
    #[error("this run does not hold the job any more")]
    Lost,
    /// A row that cannot be read.
    #[error("a row of a job cannot be read: {0}")]
    Corrupt(String),
    /// A row in the format of a later version.
    #[error("a row of a job is in format {0}, which this version does not know")]
    UnknownFormat(u64),
}

/// The result of an operation on a job.
pub type Result<T> = std::result::Result<T, Error>;

impl RetryError for Error {
    fn kv_error(&self) -> Option<&kv_api::Error> {
        match self {
            Error::Store(error) => Some(error),
            _ => None,
        }
    }
}
