//! Options of a transaction.

use std::time::Duration;

/// An option of a transaction, by FoundationDB's names (`fdb.options`, scope `TransactionOption`).
///
/// *Persistent* options survive [`on_error`](crate::Transaction::on_error). No option survives
/// [`reset`](crate::Transaction::reset), unless it is a default of the engine's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOption {
    /// Fails the transaction with 1031 once this much time has passed since it began, in milliseconds. Zero means
    /// never. Persistent.
    Timeout(Duration),
    /// Number of retries before `on_error` returns the error; `None` for no limit. Persistent.
    RetryLimit(Option<u32>),
    /// Longest pause of `on_error`. Persistent. FoundationDB's default is one second.
    MaxRetryDelay(Duration),
    /// Maximum number of bytes that the transaction may affect: 2101 above it. From 32 to the engine's own limit.
    SizeLimit(usize),
    /// The next write adds no write conflict range: it makes no other transaction fail.
    NextWriteNoWriteConflictRange,
    /// Snapshot reads see the transaction's own writes (the default).
    SnapshotRywEnable,
    /// Snapshot reads do not see the transaction's own writes.
    SnapshotRywDisable,
    /// No read sees the transaction's own writes. Allowed only before the first read or write: 2000 afterwards.
    ReadYourWritesDisable,
    /// A key with a pending versionstamp reads as its operand, instead of failing with 1036.
    BypassUnreadable,
    /// The read version may miss commits that other clients made just before. Embedded engines ignore the option: their
    /// read versions miss no commits.
    CausalReadRisky,
    /// Lower priority than the default, for background work.
    PriorityBatch,
    /// The transaction commits even when storage is short and others fail with 1225. For transactions that shrink the
    /// data.
    BypassStorageQuota,
    /// Reads of keys at and above `\xff` are allowed.
    ReadSystemKeys,
}
