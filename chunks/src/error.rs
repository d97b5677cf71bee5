//! Errors, with advice for people.

pub use peer::{Error as StoreError, ErrorKind as StoreErrorKind};

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation on chunks. No error loses stored data, and every operation may be repeated.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The document store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Other writers were faster at every attempt.
    #[error("gave up on {what} after {attempts} attempts: others wrote there each time; try again when fewer do")]
    Contended {
        /// The thing that should have been written.
        what: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// A document does not have the form that belongs to its id.
    #[error("the document \"{id}\" is damaged: {what}")]
    Malformed {
        /// Its id.
        id: String,
        /// What is wrong.
        what: String,
    },
    /// A later version of this program wrote the database's settings.
    #[error("the chunks of this database have format {found}, and this program knows {known}; use a newer one")]
    Format {
        /// The format in the settings.
        found: u64,
        /// The latest format of this program.
        known: u64,
    },
    /// The files of the database are cut in an unknown way.
    #[error("the files of this database are cut as {found}, and this program cuts them as {known}; use a newer one")]
    Cutting {
        /// The way of cutting in the settings.
        found: String,
        /// This program's way of cutting.
        known: &'static str,
    },
    /// A local folder could not be used.
    #[error("{}: {what}", .path.display())]
    Folder {
        /// The folder.
        path: std::path::PathBuf,
        /// The system's message.
        what: String,
    },
    /// The references of some files cannot be read.
    #[error("cannot read which chunks {files} files refer to; nothing was touched; {first}")]
    Unread {
        /// Number of files.
        files: u64,
        /// The first of them, with the reason.
        first: String,
    },
    /// There are no aggregated chunks to collect.
    #[error(
        "there are no aggregated chunks in this database: it was never migrated, and chunks that have documents of \
         their own are not collected; `chunks migrate` aggregates them"
    )]
    NotMigrated,
    /// A passphrase that is wrong, or that cannot be used here. Nothing was written.
    #[error("{0}")]
    Passphrase(String),
    /// An impossible setting, with the figures.
    #[error("{0}")]
    Setting(String),
    /// A document would exceed the server's limit.
    #[error("the server refuses \"{id}\" as too large; lower data_doc_size_limit, or raise the server's own limit")]
    TooLarge {
        /// Its id.
        id: String,
    },
    /// Chunks that are nowhere in the database.
    #[error("{} of the chunks are missing, \"{}\" among them", .0.len(), .0.first().map_or("", String::as_str))]
    Missing(Vec<String>),
    /// Data reads back differently from what was written.
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
