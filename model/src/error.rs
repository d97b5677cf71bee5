//! The layer's error. Inside it is detailed; outside it has CouchDB's `error` and `reason`.
//!
//! Errors of the store keep their code and their predicates ([`ErrorKind::Store`]). So a caller can still distinguish
//! "certainly not committed" from "unknown". Statuses, names and reasons are those of CouchDB's `chttpd:error_info/1`.

use std::borrow::Cow;
use std::fmt;

use json::JsonText;
use kv_api::RetryError;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The thing that was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotFound {
    /// The document or the revision: it never existed, or is no longer stored.
    Missing,
    /// The document was deleted.
    Deleted,
    /// The database.
    Database,
    /// The attachment, of a document that exists.
    Attachment,
    /// The index. It does not exist, or is not built yet.
    Index,
}

/// An edit that was refused, which refused the whole transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its place among the edits, from 0.
    pub turn: usize,
    /// The name of the database.
    pub database: String,
    /// The document.
    pub id: String,
    /// The reason.
    pub error: Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}: {}", self.id, self.database, self.error.reason())
    }
}

/// The kind of an error, with its details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A document id that is not allowed, with the reason. 400.
    #[error("{0}")]
    IllegalDocId(Cow<'static, str>),
    /// A partition that is not allowed, with the reason. 400.
    #[error("{0}")]
    IllegalPartition(String),
    /// The document with this id is over the database's limit. 413.
    #[error("{0}")]
    DocumentTooLarge(String),
    /// The database has reached its quota ([`limited_to`](crate::Documents::limited_to)). 413.
    #[error("The database has {stored} bytes, and its quota is {quota}. Deletions and purges make room.")]
    QuotaExceeded {
        /// The quota in bytes.
        quota: u64,
        /// The stored bytes, as the store estimates them.
        stored: u64,
    },
    /// The edit names a revision that is not a live leaf, or another edit was faster. 409.
    #[error("Document update conflict.")]
    Conflict,
    /// A patch that does not fit the document, with the reason. 409.
    #[error("{0}")]
    PatchConflict(String),
    /// A patch whose operations would touch too many bytes. 413.
    #[error("The patch takes too much work.")]
    PatchTooMuch,
    /// 404.
    #[error("{}", match .0 {
        NotFound::Missing => "missing",
        NotFound::Deleted => "deleted",
        NotFound::Database => "Database does not exist.",
        NotFound::Attachment => "Document is missing attachment",
        NotFound::Index => "Index does not exist.",
    })]
    NotFound(NotFound),
    /// The database exists already. 412.
    #[error("The database could not be created, the file already exists.")]
    FileExists,
    /// A database name that is not allowed. 400.
    #[error(
        "Name: '{0}'. Only lowercase characters (a-z), digits (0-9), and any of the characters \
         _, $, (, ), +, -, and / are allowed. Must begin with a letter."
    )]
    IllegalDatabaseName(String),
    /// A database name that is too long. 400.
    #[error("At least one path segment of `{0}` is too long.")]
    DatabaseNameTooLong(String),
    /// An invalid request, with the reason. 400.
    #[error("{0}")]
    BadRequest(Cow<'static, str>),
    /// An invalid document, with the reason. 400.
    #[error("{0}")]
    DocValidation(Cow<'static, str>),
    /// An attachment that is too large, with its name. 413.
    #[error("{0}")]
    AttachmentTooLarge(String),
    /// An attachment whose bytes have another MD5 than the one stated for them. 400.
    #[error("Possible message corruption.")]
    Md5Mismatch,
    /// An edit has a stub for an attachment that the replaced leaf does not have, or has with another position. 412.
    #[error("Invalid attachment stub in {id} for {name}")]
    MissingStub {
        /// The document.
        id: String,
        /// The attachment.
        name: String,
    },
    /// The request changes an attachment of a revision that the document never had. 409.
    #[error("missing_rev")]
    MissingRev,
    /// An upload that was abandoned, or took too long, before an edit named it. 503.
    #[error("The upload does not exist any more. Send it again.")]
    UploadGone,
    /// The database is in the last step of a relocation. It can be read, and cannot be written until the step is done.
    /// 503.
    #[error("The database is moving to another store and accepts no writes for a moment. Try again.")]
    Moving,
    /// The database moved to another store, which is named as the relocation's request named it. 503.
    #[error("The database has moved to {0}.")]
    Moved(String),
    /// The edits of a transaction that were refused, in their order; nothing was written. The status of the first: 409
    /// as a rule.
    #[error("{}", refused_reason(.0))]
    Refused(Vec<Refused>),
    /// It is too late to ask whether an earlier attempt of a transaction committed. 503.
    #[error("The outcome of an earlier attempt is not known, and it is too late to ask.")]
    OutcomeUnknown,
    /// Edits that do not fit into one transaction. 413.
    #[error("The edits are too large for one transaction.")]
    TransactionTooLarge,
    /// A relocation that cannot be done, with the reason. 412.
    #[error("{0}")]
    Relocation(Cow<'static, str>),
    /// A relocation that its observer stopped. 503.
    #[error("The relocation was stopped. Start it again to continue.")]
    Stopped,
    /// A job's run that no longer holds the job. 503.
    #[error("This run does not hold the job any more.")]
    JobLost,
    /// A `validate_doc_update` function forbids the edit, with its reason. 403.
    #[error("{0}")]
    Forbidden(String),
    /// A `validate_doc_update` function wants another user, with its reason. 401.
    #[error("{0}")]
    Unauthorized(String),
    /// One of these two, with a reason that is not text. 401 or 403.
    #[error("{reason}")]
    RefusedWith {
        /// Whether the function wants another user.
        unauthorized: bool,
        /// The reason as JSON.
        reason: JsonText,
    },
    /// A `validate_doc_update` function gave no answer, or an error of its own, so the edit is refused.
    #[error("{reason}")]
    ValidationFailed {
        /// CouchDB's HTTP status.
        status: u16,
        /// CouchDB's `error`.
        error: Cow<'static, str>,
        /// What failed.
        reason: String,
    },
    /// A design document whose functions cannot run, or whose fields have wrong types. 400.
    #[error("{reason}")]
    BadDesign {
        /// CouchDB's `error`.
        error: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Edits of a database whose design documents have `validate_doc_update` functions, by a program that cannot run
    /// them. 501.
    #[error(
        "The database has validate_doc_update functions, which this program cannot run. Only its design documents can \
         be written."
    )]
    NotValidated,
    /// Functions of a view group that gave no result at all, with the reason. 500.
    #[error("{0}")]
    Functions(String),
    /// An error of the store. 503 if a retry may help, the outcome is unknown, or the store only follows another one,
    /// 507 if it is full, 500 otherwise.
    #[error("{}", store_reason(.0))]
    Store(kv_api::Error),
    /// Rows that this layer cannot have written. 500.
    #[error("Damaged data: {0}")]
    Corrupt(String),
    /// Rows in a format of a later version of this layer. 500.
    #[error("Written by a later version of this program, and left untouched: {0}")]
    UnknownFormat(String),
    /// The store has keys under the layer's prefix that are not the layer's. 500.
    #[error(
        "The store has data of another program, which stays unchanged. To share a store, the layer needs its own prefix."
    )]
    NotOurs,
    /// The store's rows are of a later version than its engine has reached: it was restored into another cluster. 503.
    #[error(
        "The store was written at version {newest}, and its engine is at version {version} only: it was restored from a \
         backup into another cluster, or copied there. New changes would come before old ones in the feeds. End all servers \
         of the store and run `couch-layer adopt` on it, once."
    )]
    WentBack {
        /// The newest version that rows record.
        newest: u64,
        /// The version at which they were read.
        version: i64,
    },
    /// The store is in another format than [`kv_api::STORED_FORMAT`]. 500.
    #[error("The store was {}.", kv_api::other_format(*.found))]
    Format {
        /// The number in the store.
        found: u64,
    },
}

/// Names the first few of them.
fn refused_reason(refused: &[Refused]) -> String {
    const NAMED: usize = 3;
    let mut reason: Vec<String> = refused.iter().take(NAMED).map(Refused::to_string).collect();
    if refused.len() > NAMED {
        reason.push(format!("and {} more", refused.len() - NAMED));
    }
    reason.join("; ")
}

fn store_reason(error: &kv_api::Error) -> String {
    use kv_api::error::{COMMIT_UNKNOWN_RESULT, TRANSACTION_TIMED_OUT};
    match error.code() {
        COMMIT_UNKNOWN_RESULT => format!("The outcome is not known, the write may have happened or not: {error}"),
        TRANSACTION_TIMED_OUT => {
            format!("The store did not respond in time, the write may have happened or not: {error}")
        }
        _ => format!("The store could not do it: {error}"),
    }
}

/// The layer's error. Small; the details are in its [`kind`](Error::kind).
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<ErrorKind>);

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }

    /// The kind.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// CouchDB's HTTP status.
    pub fn status(&self) -> u16 {
        match self.kind() {
            ErrorKind::IllegalDocId(_)
            | ErrorKind::IllegalPartition(_)
            | ErrorKind::IllegalDatabaseName(_)
            | ErrorKind::DatabaseNameTooLong(_)
            | ErrorKind::BadRequest(_)
            | ErrorKind::Md5Mismatch
            | ErrorKind::BadDesign { .. }
            | ErrorKind::DocValidation(_) => 400,
            ErrorKind::Unauthorized(_) | ErrorKind::RefusedWith { unauthorized: true, .. } => 401,
            ErrorKind::Forbidden(_) | ErrorKind::RefusedWith { .. } => 403,
            ErrorKind::NotFound(_) => 404,
            ErrorKind::Conflict | ErrorKind::PatchConflict(_) | ErrorKind::MissingRev => 409,
            ErrorKind::FileExists | ErrorKind::Relocation(_) | ErrorKind::MissingStub { .. } => 412,
            ErrorKind::Moving
            | ErrorKind::Moved(_)
            | ErrorKind::Stopped
            | ErrorKind::UploadGone
            | ErrorKind::OutcomeUnknown
            | ErrorKind::WentBack { .. }
            | ErrorKind::JobLost => 503,
            ErrorKind::Refused(refused) => refused.first().map_or(500, |first| first.error.status()),
            ErrorKind::DocumentTooLarge(_)
            | ErrorKind::AttachmentTooLarge(_)
            | ErrorKind::QuotaExceeded { .. }
            | ErrorKind::PatchTooMuch
            | ErrorKind::TransactionTooLarge => 413,
            ErrorKind::Store(error)
                if error.is_retryable()
                    || matches!(
                        error.code(),
                        kv_api::error::TRANSACTION_TIMED_OUT | kv_api::error::TRANSACTION_READ_ONLY
                    ) =>
            {
                503
            }
            ErrorKind::Store(error) if error.code() == kv_api::error::STORAGE_QUOTA_EXCEEDED => 507,
            ErrorKind::Store(_)
            | ErrorKind::Corrupt(_)
            | ErrorKind::UnknownFormat(_)
            | ErrorKind::Format { .. }
            | ErrorKind::NotOurs
            | ErrorKind::Functions(_) => 500,
            ErrorKind::ValidationFailed { status, .. } => *status,
            ErrorKind::NotValidated => 501,
        }
    }

    /// CouchDB's `error`.
    pub fn error(&self) -> &str {
        match self.kind() {
            ErrorKind::IllegalDocId(_) => "illegal_docid",
            ErrorKind::IllegalPartition(_) => "illegal_partition",
            ErrorKind::DocumentTooLarge(_) => "document_too_large",
            ErrorKind::BadRequest(_) => "bad_request",
            ErrorKind::Md5Mismatch => "content_md5_mismatch",
            ErrorKind::Conflict | ErrorKind::PatchConflict(_) => "conflict",
            ErrorKind::PatchTooMuch | ErrorKind::TransactionTooLarge => "too_large",
            ErrorKind::Refused(refused) => refused.first().map_or("internal_server_error", |first| first.error.error()),
            ErrorKind::NotFound(_) | ErrorKind::MissingRev => "not_found",
            ErrorKind::AttachmentTooLarge(_) => "attachment_too_large",
            ErrorKind::QuotaExceeded { .. } => "quota_exceeded",
            ErrorKind::MissingStub { .. } => "missing_stub",
            ErrorKind::FileExists => "file_exists",
            ErrorKind::IllegalDatabaseName(_) => "illegal_database_name",
            ErrorKind::DatabaseNameTooLong(_) => "database_name_too_long",
            ErrorKind::DocValidation(_) => "doc_validation",
            ErrorKind::Relocation(_) => "precondition_failed",
            ErrorKind::Moving
            | ErrorKind::Moved(_)
            | ErrorKind::Stopped
            | ErrorKind::UploadGone
            | ErrorKind::OutcomeUnknown
            | ErrorKind::WentBack { .. }
            | ErrorKind::JobLost => "service unavailable",
            ErrorKind::Functions(_) => "unknown_error",
            ErrorKind::Unauthorized(_) | ErrorKind::RefusedWith { unauthorized: true, .. } => "unauthorized",
            ErrorKind::Forbidden(_) | ErrorKind::RefusedWith { .. } => "forbidden",
            ErrorKind::ValidationFailed { error, .. } => error,
            ErrorKind::BadDesign { error, .. } => error,
            ErrorKind::NotValidated => "not_implemented",
            ErrorKind::Store(_) if self.status() == 503 => "service unavailable",
            ErrorKind::Store(_) if self.status() == 507 => "insufficient_storage",
            ErrorKind::Store(_)
            | ErrorKind::Corrupt(_)
            | ErrorKind::UnknownFormat(_)
            | ErrorKind::Format { .. }
            | ErrorKind::NotOurs => "internal_server_error",
        }
    }

    /// CouchDB's `reason`.
    pub fn reason(&self) -> Cow<'_, str> {
        match self.kind() {
            ErrorKind::IllegalDocId(reason) | ErrorKind::BadRequest(reason) | ErrorKind::DocValidation(reason) => {
                Cow::Borrowed(reason)
            }
            ErrorKind::DocumentTooLarge(id) => Cow::Borrowed(id),
            kind => Cow::Owned(kind.to_string()),
        }
    }

    pub(crate) fn conflict() -> Self {
        Error::new(ErrorKind::Conflict)
    }

    pub(crate) fn not_found(what: NotFound) -> Self {
        Error::new(ErrorKind::NotFound(what))
    }

    pub(crate) fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::BadRequest(reason.into()))
    }

    pub(crate) fn doc_validation(reason: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::DocValidation(reason.into()))
    }

    pub(crate) fn relocation(reason: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Relocation(reason.into()))
    }

    /// An edit of a batch has no result, which is a defect of this program.
    pub(crate) fn without_result() -> Self {
        Error::corrupt("an edit without a result")
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corrupt(what.into()))
    }

    pub(crate) fn unknown_format(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::UnknownFormat(what.into()))
    }

    /// The same error, with the document's id if it is about a document's rows.
    pub(crate) fn of_document(mut self, id: &str) -> Self {
        let name = format!("{id:?}: ");
        if let ErrorKind::Corrupt(what) | ErrorKind::UnknownFormat(what) = &mut *self.0
            && !what.starts_with(&name)
        {
            what.insert_str(0, &name);
        }
        self
    }

    /// Whether the error is about rows that cannot be read. Such an error concerns only the document that has the rows.
    pub fn is_damage(&self) -> bool {
        matches!(self.kind(), ErrorKind::Corrupt(_) | ErrorKind::UnknownFormat(_)) || self.unreadable().is_some()
    }

    /// Whether the store only follows another one, and takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.kv_error().is_some_and(|error| error.code() == kv_api::error::TRANSACTION_READ_ONLY)
    }

    /// The range of keys whose rows the store cannot read, since its files are damaged there.
    pub(crate) fn unreadable(&self) -> Option<(&kv_api::Bytes, &kv_api::Bytes)> {
        self.kv_error()?.damage()
    }

    /// Whether a validation refused an edit. Such an error concerns only that edit.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Forbidden(_)
                | ErrorKind::Unauthorized(_)
                | ErrorKind::RefusedWith { .. }
                | ErrorKind::ValidationFailed { .. }
                | ErrorKind::BadDesign { .. }
                | ErrorKind::NotValidated
        )
    }

    /// Whether it refuses a single edit because of its contents or its writer. The other edits continue.
    pub(crate) fn is_of_edit(&self) -> bool {
        self.status() < 500 && *self.kind() != ErrorKind::NotFound(NotFound::Database)
    }

    /// Whether the same read may succeed in a new transaction.
    pub(crate) fn is_retryable(&self) -> bool {
        self.kv_error().is_some_and(kv_api::Error::is_retryable)
    }
}

/// Separates errors of one document from errors of the store. The outer error ends the work on all documents; the inner
/// one is the result for this document.
pub(crate) fn alone<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error) if !error.is_damage() => Err(error),
        own => Ok(own),
    }
}

/// The same for rows that may be removed if they are damaged. Rows of a later version are not damage, and end the work.
pub(crate) fn damaged<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error) if !matches!(error.kind(), ErrorKind::Corrupt(_)) => Err(error),
        own => Ok(own),
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error::new(kind)
    }
}

impl From<kv_api::Error> for Error {
    fn from(error: kv_api::Error) -> Self {
        Error::new(ErrorKind::Store(error))
    }
}

impl From<jobs::Error> for Error {
    fn from(error: jobs::Error) -> Self {
        Error::new(match error {
            jobs::Error::Store(error) => ErrorKind::Store(error),
            jobs::Error::Lost => ErrorKind::JobLost,
            jobs::Error::Corrupt(what) => ErrorKind::Corrupt(what),
            jobs::Error::UnknownFormat(format) => ErrorKind::UnknownFormat(format!("a job's row in format {format}")),
        })
    }
}

impl RetryError for Error {
    fn kv_error(&self) -> Option<&kv_api::Error> {
        match self.kind() {
            ErrorKind::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error(), self.reason())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

// No source: the reason of an error of the store has that error's text, and the kind has the error.
impl std::error::Error for Error {}
