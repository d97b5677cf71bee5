//! The errors of this crate.

use std::io;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a backup, restore, verification or pruning failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the repository cannot be read or written.
    #[error("{file}: {cause}")]
    Io {
        /// Its path in the repository.
        file: String,
        /// The reason.
        cause: io::Error,
    },
    /// A file of the repository is not as it was written.
    #[error("{file} is damaged: {reason}")]
    Damaged {
        /// Its path in the repository.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The passphrase does not open the repository.
    #[error("the passphrase does not open this repository")]
    Passphrase,
    /// Refused, for the reason in the sentence.
    #[error("{0}")]
    Refused(String),
    /// The database's error.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The same, through a peer.
    #[error(transparent)]
    Peer(#[from] peer::Error),
    /// The store's error.
    #[error(transparent)]
    Store(#[from] kv_api::Error),
}

impl Error {
    pub(crate) fn damaged(file: &str, reason: impl Into<String>) -> Self {
        Error::Damaged { file: file.to_owned(), reason: reason.into() }
    }

    /// Whether a file does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn refused(sentence: impl Into<String>) -> Self {
        Error::Refused(sentence.into())
    }
}
