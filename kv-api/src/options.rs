//! Options of a transaction.

use std::time::Duration;

/// An option of a transaction, by FoundationDB's names (`fdb.options`, scope `TransactionOption`).
///
/// The ones marked *persistent* outlive [`on_error`](crate::Transaction::on_error); none outlives
/// [`reset`](crate::Transaction::reset) but where the engine's database carries it as a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOption {
    /// Fails the transaction with 1031 once this much time has passed since it began; zero means
    /// never. Milliseconds resolution. Persistent.
    Timeout(Duration),
    /// How many times `on_error` retries before it gives the error back; `None` for no bound.
    /// Persistent.
    RetryLimit(Option<u32>),
    /// The longest pause `on_error` makes. Persistent. FoundationDB's default is one second.
    MaxRetryDelay(Duration),
    /// The most bytes the transaction may affect: 2101 over it. From 32 to the engine's own limit.
    SizeLimit(usize),
    /// The next write adds no write conflict range: no one conflicts with it.
    NextWriteNoWriteConflictRange,
    /// Snapshot reads see the transaction's own writes (the default).
    SnapshotRywEnable,
    /// Snapshot reads do not see the transaction's own writes.
    SnapshotRywDisable,
    /// No read sees the transaction's own writes. Only before the first read or write: 2000 after.
    ReadYourWritesDisable,
    /// A key with a pending versionstamp reads as if its operand had been set as it stands, instead of
    /// failing with 1036.
    BypassUnreadable,
    /// The read version may miss commits of other clients that were acknowledged just before. Embedded
    /// engines have no such risk to take.
    CausalReadRisky,
    /// Lower priority than the default: for work in the background.
    PriorityBatch,
    /// Reads of keys at and above `\xff` are allowed.
    ReadSystemKeys,
}
