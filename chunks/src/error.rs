//! What can go wrong, as a person can act on it.

use std::fmt;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on chunks failed. Nothing that was stored is lost by any of these; every operation
/// may be run again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The document store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Others were faster at every attempt.
    #[error("gave up on {what} after {attempts} attempts: others wrote there each time; try again when fewer do")]
    Contended {
        /// What was to be written.
        what: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// A document is not what its id promises.
    #[error("the document \"{id}\" is damaged: {what}")]
    Malformed {
        /// Its id.
        id: String,
        /// What is wrong with it.
        what: String,
    },
    /// The database's settings were written by a later version of this program.
    #[error("the chunks of this database have format {found}, and this program knows {known}; use a newer one")]
    Format {
        /// The format that the settings name.
        found: u64,
        /// The format that this program writes.
        known: u64,
    },
    /// Files of the database are cut in a way that this program does not know.
    #[error("the files of this database are cut as {found}, and this program cuts them as {known}; use a newer one")]
    Cutting {
        /// How the settings say that they are cut.
        found: String,
        /// How this program cuts.
        known: &'static str,
    },
    /// A folder of this machine could not be used.
    #[error("{}: {what}", .path.display())]
    Folder {
        /// The folder.
        path: std::path::PathBuf,
        /// What the system says.
        what: String,
    },
    /// It cannot be read which chunks some files refer to.
    #[error("nothing was touched: of {files} files it cannot be read which chunks they refer to; {first}")]
    Unread {
        /// How many files.
        files: u64,
        /// The first of them, and why.
        first: String,
    },
    /// There is nothing to collect from.
    #[error(
        "there are no aggregated chunks in this database: it was never migrated, and chunks that have documents of \
         their own are not collected; `chunks migrate` aggregates them"
    )]
    NotMigrated,
    /// A passphrase that does not belong to the vault, or that cannot be used there. Nothing was written.
    #[error("{0}")]
    Passphrase(String),
    /// A setting that cannot work, with the figures.
    #[error("{0}")]
    Setting(String),
    /// A document would be larger than the server takes.
    #[error("the server refuses \"{id}\" as too large; lower data_doc_size_limit, or raise the server's own limit")]
    TooLarge {
        /// Its id.
        id: String,
    },
    /// Chunks that are nowhere in the database.
    #[error("{} of the chunks are missing, \"{}\" among them", .0.len(), .0.first().map_or("", String::as_str))]
    Missing(Vec<String>),
    /// What was read back is not what was written.
    #[error("\"{id}\" reads back differently from what was stored; nothing was removed")]
    Differs {
        /// The chunk.
        id: String,
    },
}

impl Error {
    pub(crate) fn malformed(id: &str, what: impl Into<String>) -> Self {
        Error::Malformed { id: id.to_owned(), what: what.into() }
    }
}

/// How a document store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// There is no such database.
    NoDatabase,
    /// No answer, or one that says to try again. A write may have happened or not.
    Unavailable,
    /// The request was refused, and will be refused again.
    Refused,
    /// The answer makes no sense.
    Nonsense,
}

/// A document store's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    kind: StoreErrorKind,
    sentence: String,
}

impl StoreError {
    /// A failure of that kind, with a sentence for a person.
    pub fn new(kind: StoreErrorKind, sentence: impl Into<String>) -> Self {
        StoreError { kind, sentence: sentence.into() }
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        self.kind == StoreErrorKind::Unavailable
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for StoreError {}
