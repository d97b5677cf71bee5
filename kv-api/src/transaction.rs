//! The transaction.

use std::future::Future;

use bytes::Bytes;

use crate::{Error, KeySelector, MutationType, RangeBatch, RangeRequest, Result, TransactionOption, Versionstamp};

/// How a read takes part in conflict detection. Chosen for each read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// The read adds a read conflict: a commit in between makes this transaction fail.
    Serializable,
    /// The read adds no conflict. It sees the transaction's own writes, unless
    /// [`TransactionOption::SnapshotRywDisable`] says otherwise.
    Snapshot,
}

/// Kind of a conflict range that is added by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConflictRange {
    /// The same conflict as a read of the range.
    Read,
    /// The same conflict as a write to the range.
    Write,
}

/// A key or a value to write. A [`Bytes`] or a `Vec` is kept as it is; borrowed bytes are copied.
pub trait IntoBytes: AsRef<[u8]> {
    /// The bytes, owned: an engine keeps them until the commit.
    fn into_bytes(self) -> Bytes;
}

impl<T: AsRef<[u8]> + ?Sized> IntoBytes for &T {
    fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.as_ref())
    }
}

impl IntoBytes for Bytes {
    fn into_bytes(self) -> Bytes {
        self
    }
}

impl IntoBytes for Vec<u8> {
    fn into_bytes(self) -> Bytes {
        self.into()
    }
}

/// A transaction: a cheap handle, whose clones are the same transaction.
///
/// Reads are issued when called, and their futures borrow neither the transaction nor the key. Writes are infallible
/// calls whose errors surface at the next read or at the commit. Dropping the last handle, or a future, cancels the
/// operation in progress.
///
/// Unless said otherwise, every operation may fail with 1025 (cancelled), 1031 (timed out) and 2017 (committing or
/// committed), and every read with 1007 (too old), 1009 (future version), 1036 (a pending versionstamp) and 2004
/// (a key above `\xff`).
///
/// Sources: FoundationDB's `api-c.rst`, `developer-guide.rst`, `ReadYourWrites.actor.cpp`.
pub trait Transaction: Clone + Send + Sync + 'static {
    /// The version at which this transaction reads: fetched at the first call or the first read.
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<Self>;

    /// Sets the read version. Errors surface later: 2010 when a version was set or fetched before, 2011 when
    /// `version` is not positive, and 1007 or 1009 from a read of a version that is too old or in the future.
    fn set_read_version(&self, version: i64);

    /// The value of `key`.
    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<Self>;

    /// The key that `selector` resolves to; empty before the first key, `\xff` after the last.
    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<Self>;

    /// The first batch of `request`. A serializable read conflicts only over the rows it returned and the gaps
    /// that it proved empty. A range that is inverted after resolution is empty; it is not an error.
    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<Self>;

    /// Sets `key` to `value`.
    fn set(&self, key: impl IntoBytes, value: impl IntoBytes);

    /// Removes `key`.
    fn clear(&self, key: &[u8]);

    /// Removes every key from `begin` up to, not including, `end`.
    fn clear_range(&self, begin: &[u8], end: &[u8]);

    /// Applies an atomic operation at the commit version. Adds no read conflict.
    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes);

    /// Adds a conflict range by hand, from `begin` up to, not including, `end`.
    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange);

    /// Sets an option. Errors surface later: 2000 for an option that comes too late, 2006 for a value out of
    /// range.
    fn set_option(&self, option: TransactionOption);

    /// Bytes that this transaction affects so far, counted as the engine counts them for its limit.
    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<Self>;

    /// Approximate number of bytes stored between `begin` and `end`. Embedded engines count or sample.
    fn get_estimated_range_size(
        &self,
        begin: &[u8],
        end: &[u8],
    ) -> impl Future<Output = Result<u64>> + Send + use<Self>;

    /// Keys that split the range from `begin` to `end` into parts of about `chunk_bytes`, both ends included.
    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<Self>;

    /// This transaction's versionstamp. Call it before the commit; it resolves after the commit. It fails with
    /// 2021 when the transaction wrote nothing, and with the commit's error when the commit failed.
    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<Self>;

    /// Completes when the value of `key` differs from the one that this transaction sees. The commit arms the
    /// watch, which outlives the transaction; a failed commit fails the watch. A change that is undone again may
    /// be missed. 1032 when the database has too many watches.
    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<Self>;

    /// Commits. 1020 on a conflict, 1021 when the outcome is unknown, 2101 when the transaction is too large, 1031
    /// when it timed out; then the outcome is unknown too.
    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<Self>;

    /// The version at which this transaction committed; -1 for one that wrote nothing. 2000 before a successful
    /// commit.
    fn get_committed_version(&self) -> Result<i64>;

    /// Handles an error. For a retryable one it pauses, with growing backoff, and makes the transaction ready to
    /// run again. Any other error, and one beyond the retry limit, is returned.
    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<Self>;

    /// Makes the transaction new: forgets its reads, writes and options.
    fn reset(&self);

    /// Cancels: operations in progress and all later ones fail with 1025.
    fn cancel(&self);
}
