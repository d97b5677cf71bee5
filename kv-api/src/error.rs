//! FoundationDB's errors: a code that survives every layer, and three predicates.
//!
//! The codes are from FoundationDB's `flow/error_definitions.h`, the predicates from `fdb_error_predicate` in
//! `bindings/c/fdb_c.cpp`. Every engine uses the same code for the same condition, so a layer's handling of an error is
//! tested on every engine.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The result of an operation on a database or a transaction.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the key-value store: FoundationDB's code and, where the engine has more to say, a sentence of
/// context such as the file or the system's message.
///
/// ```
/// use kv_api::{Error, error};
///
/// let lost = Error::new(error::COMMIT_UNKNOWN_RESULT);
/// assert!(lost.is_retryable() && lost.is_maybe_committed());
/// assert!(!lost.is_retryable_not_committed());
/// assert_eq!(lost.to_string(), "commit_unknown_result (1021)");
/// ```
#[derive(Clone)]
pub struct Error {
    code: i32,
    context: Option<Arc<str>>,
    damage: Option<Arc<(Bytes, Bytes)>>,
}

impl Error {
    /// The error with this FoundationDB code.
    pub const fn new(code: i32) -> Self {
        Error { code, context: None, damage: None }
    }

    /// The same error with a sentence about where or why it happened.
    #[must_use]
    pub fn with_context(mut self, context: impl AsRef<str>) -> Self {
        self.context = Some(Arc::from(context.as_ref()));
        self
    }

    /// The same error, which says where the data is damaged: see [`damage`](Self::damage).
    #[must_use]
    pub fn with_damage(mut self, begin: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        self.damage = Some(Arc::new((begin.into(), end.into())));
        self
    }

    /// The damaged range that a read met: rows from the first key up to, not including, the second cannot be read. Rows
    /// around the range can. It is not known which rows the range has.
    pub fn damage(&self) -> Option<(&Bytes, &Bytes)> {
        self.damage.as_deref().map(|(begin, end)| (begin, end))
    }

    /// FoundationDB's number for this error, from `flow/error_definitions.h`.
    pub const fn code(&self) -> i32 {
        self.code
    }

    /// The sentence that the engine added, if any. It is for people, never to be parsed.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// FoundationDB's name of the code, or `unknown_error` for a code that this crate does not know.
    pub fn name(&self) -> &'static str {
        name_of(self.code)
    }

    /// Whether running the transaction again may help (`FDB_ERROR_PREDICATE_RETRYABLE`).
    pub const fn is_retryable(&self) -> bool {
        self.is_maybe_committed() || self.is_retryable_not_committed()
    }

    /// Whether the transaction may have committed in spite of the error (`FDB_ERROR_PREDICATE_MAYBE_COMMITTED`). A
    /// retry must first find out, or be idempotent.
    pub const fn is_maybe_committed(&self) -> bool {
        matches!(self.code, COMMIT_UNKNOWN_RESULT | CLUSTER_VERSION_CHANGED)
    }

    /// Whether a retry may help and the transaction has certainly not committed
    /// (`FDB_ERROR_PREDICATE_RETRYABLE_NOT_COMMITTED`).
    pub const fn is_retryable_not_committed(&self) -> bool {
        matches!(
            self.code,
            NOT_COMMITTED
                | TRANSACTION_TOO_OLD
                | FUTURE_VERSION
                | DATABASE_LOCKED
                | GRV_PROXY_MEMORY_LIMIT_EXCEEDED
                | COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED
                | BATCH_TRANSACTION_THROTTLED
                | PROCESS_BEHIND
                | TAG_THROTTLED
                | PROXY_TAG_THROTTLED
        )
    }
}

impl From<i32> for Error {
    fn from(code: i32) -> Self {
        Error::new(code)
    }
}

/// Two errors are equal if their codes are.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.code)?;
        match self.context() {
            Some(context) => write!(f, ": {context}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

macro_rules! codes {
    ($($(#[$doc:meta])* $constant:ident = $code:literal, $name:literal;)*) => {
        $($(#[$doc])* pub const $constant: i32 = $code;)*

        pub(crate) const fn name_of(code: i32) -> &'static str {
            match code {
                $($code => $name,)*
                _ => "unknown_error",
            }
        }
    };
}

codes! {
    /// An operation of the engine failed for a reason of its own.
    OPERATION_FAILED = 1000, "operation_failed";
    /// The read version is older than the window of versions that are kept.
    TRANSACTION_TOO_OLD = 1007, "transaction_too_old";
    /// The read version is ahead of the database.
    FUTURE_VERSION = 1009, "future_version";
    /// A commit after the read version wrote something that this transaction read.
    NOT_COMMITTED = 1020, "not_committed";
    /// The commit may or may not have happened, and is no longer in flight.
    COMMIT_UNKNOWN_RESULT = 1021, "commit_unknown_result";
    /// The transaction was cancelled.
    TRANSACTION_CANCELLED = 1025, "transaction_cancelled";
    /// A watch was dropped by the store.
    WATCH_CANCELLED = 1029, "watch_cancelled";
    /// The transaction's timeout passed. After a commit the outcome is unknown, and the commit may still be in
    /// flight.
    TRANSACTION_TIMED_OUT = 1031, "transaction_timed_out";
    /// The database has as many watches as it allows.
    TOO_MANY_WATCHES = 1032, "too_many_watches";
    /// A watch needs read-your-writes, which this transaction switched off.
    WATCHES_DISABLED = 1034, "watches_disabled";
    /// A read met a key whose versionstamp is unknown until the commit.
    ACCESSED_UNREADABLE = 1036, "accessed_unreadable";
    /// A storage process is behind.
    PROCESS_BEHIND = 1037, "process_behind";
    /// The database is locked.
    DATABASE_LOCKED = 1038, "database_locked";
    /// The cluster's protocol version changed under the transaction; it may have committed.
    CLUSTER_VERSION_CHANGED = 1039, "cluster_version_changed";
    /// A commit proxy is out of memory.
    COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED = 1042, "commit_proxy_memory_limit_exceeded";
    /// The database is closed or closing.
    SHUTDOWN_IN_PROGRESS = 1043, "shutdown_in_progress";
    /// Transactions of batch priority are throttled.
    BATCH_TRANSACTION_THROTTLED = 1051, "batch_transaction_throttled";
    /// A proxy that hands out read versions is out of memory.
    GRV_PROXY_MEMORY_LIMIT_EXCEEDED = 1078, "grv_proxy_memory_limit_exceeded";
    /// The transaction's tag is throttled.
    TAG_THROTTLED = 1213, "tag_throttled";
    /// The transaction's tag is throttled by a proxy.
    PROXY_TAG_THROTTLED = 1223, "proxy_tag_throttled";
    /// There is no room for more data: the disk is full, or a quota is used up.
    STORAGE_QUOTA_EXCEEDED = 1225, "storage_quota_exceeded";
    /// The platform failed.
    PLATFORM_ERROR = 1500, "platform_error";
    /// A disk operation failed.
    IO_ERROR = 1510, "io_error";
    /// A file or folder is missing.
    FILE_NOT_FOUND = 1511, "file_not_found";
    /// A file cannot be read.
    FILE_NOT_READABLE = 1513, "file_not_readable";
    /// A file cannot be written.
    FILE_NOT_WRITABLE = 1514, "file_not_writable";
    /// There is no cluster file where one was looked for.
    NO_CLUSTER_FILE_FOUND = 1515, "no_cluster_file_found";
    /// A checksum does not match its data.
    CHECKSUM_FAILED = 1520, "checksum_failed";
    /// A file of the store is damaged.
    FILE_CORRUPT = 1522, "file_corrupt";
    /// Another process holds the lock of a file.
    LOCK_FILE_FAILURE = 1529, "lock_file_failure";
    /// A call that is not valid here, such as an option that comes too late.
    CLIENT_INVALID_OPERATION = 2000, "client_invalid_operation";
    /// A key at or above `\xff`, where the system's own keys begin.
    KEY_OUTSIDE_LEGAL_RANGE = 2004, "key_outside_legal_range";
    /// A range that begins after its end.
    INVERTED_RANGE = 2005, "inverted_range";
    /// An option with a value it does not take.
    INVALID_OPTION_VALUE = 2006, "invalid_option_value";
    /// An option that is not valid in this place.
    INVALID_OPTION = 2007, "invalid_option";
    /// The transaction's read version was set or fetched before.
    READ_VERSION_ALREADY_SET = 2010, "read_version_already_set";
    /// A version that no database can have.
    VERSION_INVALID = 2011, "version_invalid";
    /// Range limits that contradict each other.
    RANGE_LIMITS_INVALID = 2012, "range_limits_invalid";
    /// The transaction is being committed, or has been.
    USED_DURING_COMMIT = 2017, "used_during_commit";
    /// A mutation type that does not exist.
    INVALID_MUTATION_TYPE = 2018, "invalid_mutation_type";
    /// A transaction that wrote nothing has no commit version, hence no versionstamp.
    NO_COMMIT_VERSION = 2021, "no_commit_version";
    /// A transaction that wrote something, in a database that only follows another one.
    TRANSACTION_READ_ONLY = 2023, "transaction_read_only";
    /// A cluster file that does not name a cluster.
    CONNECTION_STRING_INVALID = 2104, "connection_string_invalid";
    /// An operation that the engine does not support.
    UNSUPPORTED_OPERATION = 2108, "unsupported_operation";
    /// The transaction affects more bytes than its limit.
    TRANSACTION_TOO_LARGE = 2101, "transaction_too_large";
    /// A key over the limit on keys.
    KEY_TOO_LARGE = 2102, "key_too_large";
    /// A value over the limit on values.
    VALUE_TOO_LARGE = 2103, "value_too_large";
    /// An internal error of the engine, which should never happen.
    INTERNAL_ERROR = 4100, "internal_error";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code is exactly one of: maybe committed, retryable and not committed, not retryable.
    #[test]
    fn predicates_partition_the_codes() {
        for code in 0..5000 {
            let e = Error::new(code);
            assert!(!(e.is_maybe_committed() && e.is_retryable_not_committed()), "{e}");
            assert_eq!(e.is_retryable(), e.is_maybe_committed() || e.is_retryable_not_committed());
        }
        assert!(!Error::new(TRANSACTION_TIMED_OUT).is_retryable());
        assert!(!Error::new(COMMIT_UNKNOWN_RESULT).is_retryable_not_committed());
        assert!(Error::new(NOT_COMMITTED).is_retryable_not_committed());
    }

    #[test]
    fn context_is_shown_and_does_not_change_identity() {
        let e = Error::new(IO_ERROR).with_context("disk full");
        assert_eq!(e.to_string(), "io_error (1510): disk full");
        assert_eq!(e, Error::new(IO_ERROR));
    }
}
