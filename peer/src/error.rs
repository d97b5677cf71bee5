//! What can go wrong with a peer, as a caller can act on it.

use std::fmt;

use model::NotFound;

/// The result of asking a peer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a request failed, or an edit of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no such database.
    NoDatabase,
    /// An edit lost the race, or names no live leaf.
    Conflict,
    /// A document or an attachment is larger than the peer takes.
    TooLarge,
    /// No answer, or one that says to try again. A write may have happened or not.
    Unavailable,
    /// The request was refused, and will be refused again.
    Refused,
    /// The answer makes no sense.
    Nonsense,
}

/// A peer's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    status: Option<u16>,
    sentence: String,
}

impl Error {
    /// A failure of that kind, with a sentence for a person.
    pub fn new(kind: ErrorKind, sentence: impl Into<String>) -> Self {
        Error { kind, status: None, sentence: sentence.into() }
    }

    /// The same failure, answered with this status.
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

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The status that it was answered with, where there was an answer.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Whether trying again may help.
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
            Model::Store(_) | Model::Moving | Model::UploadGone if error.status() == 503 => ErrorKind::Unavailable,
            _ => ErrorKind::Refused,
        };
        Error::new(kind, error.to_string()).with_status(error.status())
    }
}
