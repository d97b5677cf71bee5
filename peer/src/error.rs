//! The errors of a peer, by what a caller can do about them.

use std::borrow::Cow;
use std::fmt;

use model::NotFound;

use crate::text::{MOST_TEXT, cut};

/// The result of a request to a peer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of failure of a request, or of one of its edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The database does not exist.
    NoDatabase,
    /// Another edit was faster, or the edit does not name a live leaf.
    Conflict,
    /// A document or an attachment is larger than the peer allows, or the response is longer than any valid answer to
    /// the request.
    TooLarge,
    /// There was no response, or one that asks for a retry. A write may have happened.
    Unavailable,
    /// The request was refused, and a retry would be too.
    Refused,
    /// The response is malformed.
    Nonsense,
}

/// A failure of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    status: Option<u16>,
    sentence: String,
}

impl Error {
    /// A failure of this kind, with a sentence for users. It may have texts of the peer, so a long one is cut.
    pub fn new(kind: ErrorKind, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        let sentence = match cut(&sentence, MOST_TEXT) {
            Cow::Borrowed(_) => sentence,
            Cow::Owned(cut) => cut,
        };
        Error { kind, status: None, sentence }
    }

    /// The same failure, with the status of the response.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    pub(crate) fn nonsense(sentence: impl Into<String>) -> Self {
        Error::new(ErrorKind::Nonsense, sentence)
    }

    pub(crate) fn refused(sentence: impl Into<String>) -> Self {
        Error::new(ErrorKind::Refused, sentence)
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The status of the response, if there was one.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        self.kind == ErrorKind::Unavailable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        use model::ErrorKind as Model;
        let kind = match error.kind() {
            Model::NotFound(NotFound::Database) => ErrorKind::NoDatabase,
            Model::Conflict => ErrorKind::Conflict,
            Model::DocumentTooLarge(_) | Model::AttachmentTooLarge(_) => ErrorKind::TooLarge,
            Model::Corrupt(_) => ErrorKind::Nonsense,
            Model::QuotaExceeded { .. } => ErrorKind::Unavailable,
            // 507 too: a replication into a full store waits for room.
            Model::Store(_) | Model::Moving | Model::UploadGone if matches!(error.status(), 503 | 507) => {
                ErrorKind::Unavailable
            }
            _ => ErrorKind::Refused,
        };
        Error::new(kind, error.to_string()).with_status(error.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a replication would lose documents.
    #[test]
    fn a_full_store_is_one_to_wait_for() {
        let full = kv_api::Error::new(kv_api::error::STORAGE_QUOTA_EXCEEDED);
        let error = Error::from(model::Error::from(full));
        assert_eq!((error.kind(), error.status()), (ErrorKind::Unavailable, Some(507)));
        let broken = kv_api::Error::new(kv_api::error::IO_ERROR);
        assert_eq!(Error::from(model::Error::from(broken)).kind(), ErrorKind::Refused);
    }
}
