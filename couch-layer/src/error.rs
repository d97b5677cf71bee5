//! The error of this crate, by what a program can do about it.

use kv_api::{RetryError, error as codes};
use model::{ErrorKind, JsonError};

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a store cannot be opened, or an error in it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has the folder open.
    #[error("{0}")]
    Locked(String),
    /// The folder has other files and no store.
    #[error("{0}")]
    Foreign(String),
    /// The store was written by another engine, or in the format of an older or a newer version.
    #[error("{0}")]
    OtherFormat(String),
    /// Files of the store are missing or damaged.
    #[error("{0}")]
    Damaged(String),
    /// Another error of the engine, with its code.
    #[error(transparent)]
    Store(kv_api::Error),
    /// An error of the documents, with CouchDB's status and name.
    #[error(transparent)]
    Documents(model::Error),
    /// A text that is not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The URL does not name a database.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Address(#[from] peer::AddressError),
    /// The other side of a replication cannot be reached, or asks to try again later.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Unreachable(peer::Error),
    /// The other side rejects the name and the password of the URL, or requires them.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Unauthorized(peer::Error),
    /// The other side does not have the database.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    NoDatabase(peer::Error),
    /// Another error of the other side.
    #[cfg(feature = "sync")]
    #[error(transparent)]
    Peer(peer::Error),
}

#[cfg(feature = "sync")]
impl From<peer::Error> for Error {
    fn from(error: peer::Error) -> Self {
        match error.kind() {
            _ if error.status() == Some(401) => Error::Unauthorized(error),
            peer::ErrorKind::Unavailable => Error::Unreachable(error),
            peer::ErrorKind::NoDatabase => Error::NoDatabase(error),
            _ => Error::Peer(error),
        }
    }
}

impl Error {
    /// The error of an engine that opens a folder. Only then do these codes concern the folder.
    #[cfg(feature = "lsm")]
    pub(crate) fn of_opening(error: kv_api::Error) -> Self {
        let sentence = || error.context().map_or_else(|| error.to_string(), ToString::to_string);
        match error.code() {
            codes::LOCK_FILE_FAILURE => Error::Locked(sentence()),
            codes::CLIENT_INVALID_OPERATION => Error::Foreign(sentence()),
            codes::UNSUPPORTED_OPERATION => Error::OtherFormat(sentence()),
            codes::FILE_CORRUPT => Error::Damaged(sentence()),
            _ => Error::Store(error),
        }
    }
}

impl From<kv_api::Error> for Error {
    fn from(error: kv_api::Error) -> Self {
        Error::Store(error)
    }
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        match error.kind() {
            ErrorKind::Format { .. } | ErrorKind::UnknownFormat(_) => Error::OtherFormat(error.to_string()),
            ErrorKind::NotOurs => Error::Foreign(error.to_string()),
            ErrorKind::Corrupt(_) => Error::Damaged(error.to_string()),
            ErrorKind::Store(store) if store.code() == codes::FILE_CORRUPT => Error::Damaged(error.to_string()),
            _ => Error::Documents(error),
        }
    }
}

// A transaction whose body returns this error is tried again like any other.
impl RetryError for Error {
    fn kv_error(&self) -> Option<&kv_api::Error> {
        match self {
            Error::Store(error) => Some(error),
            Error::Documents(error) => error.kv_error(),
            _ => None,
        }
    }
}
