//! A database whose transactions all read at one version.

use std::path::Path;

use bytes::Bytes;

use crate::error::TRANSACTION_TOO_OLD;
use crate::{
    ConflictRange, Database, Durability, Error, Figure, IntoBytes, KeySelector, Limits, MutationType, RangeBatch,
    RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};

/// A database as it was at one version: all reads through it are consistent, across any number of transactions. It can
/// be read while the engine keeps the version, about five seconds. Then reads fail with 1007, and retries do not help.
#[derive(Clone, Debug)]
pub struct Pinned<D> {
    inner: D,
    version: i64,
}

impl<D: Database> Pinned<D> {
    /// `inner` at its current version.
    ///
    /// # Errors
    /// Those of reading the version.
    pub async fn new(inner: D) -> Result<Self> {
        let version = inner.begin()?.get_read_version().await?;
        Ok(Pinned { inner, version })
    }

    /// The version.
    pub fn version(&self) -> i64 {
        self.version
    }
}

#[deny(clippy::missing_trait_methods)]
impl<D: Database> Database for Pinned<D> {
    type Transaction = PinnedTransaction<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        let inner = self.inner.begin()?;
        inner.set_read_version(self.version);
        Ok(PinnedTransaction { inner, version: self.version })
    }

    fn in_background(&self) -> Self {
        Pinned { inner: self.inner.in_background(), version: self.version }
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.inner.compact(begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.inner.is_compacting(begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        self.inner.disk_bytes(begin, end)
    }

    fn figures(&self) -> Vec<Figure> {
        self.inner.figures()
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        self.inner.snapshot(folder)
    }
}

/// A transaction of a [`Pinned`] database. It reads at the same version after a retry, so one that conflicts never
/// commits.
#[derive(Clone, Debug)]
pub struct PinnedTransaction<T> {
    inner: T,
    version: i64,
}

#[deny(clippy::missing_trait_methods)]
impl<T: Transaction> Transaction for PinnedTransaction<T> {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<T> {
        self.inner.get_read_version()
    }

    fn set_read_version(&self, version: i64) {
        self.inner.set_read_version(version);
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        self.inner.get(key, read)
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        self.inner.get_key(selector, read)
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        self.inner.get_range(request, read)
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.inner.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.inner.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.inner.clear_range(begin, end);
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.inner.atomic_op(mutation, key, operand);
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.inner.add_conflict_range(begin, end, side);
    }

    fn set_option(&self, option: TransactionOption) {
        self.inner.set_option(option);
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_approximate_size()
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_estimated_range_size(begin, end)
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<T> {
        self.inner.get_range_split_points(begin, end, chunk_bytes)
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<T> {
        self.inner.get_versionstamp()
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<T> {
        self.inner.watch(key)
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<T> {
        self.inner.commit()
    }

    fn get_committed_version(&self) -> Result<i64> {
        self.inner.get_committed_version()
    }

    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<T> {
        let too_old = (error.code() == TRANSACTION_TOO_OLD).then(|| error.clone());
        let handled = self.inner.on_error(error);
        let (inner, version) = (self.inner.clone(), self.version);
        async move {
            // The version does not get younger.
            if let Some(error) = too_old {
                return Err(error);
            }
            handled.await?;
            inner.set_read_version(version);
            Ok(())
        }
    }

    fn reset(&self) {
        self.inner.reset();
        self.inner.set_read_version(self.version);
    }

    fn cancel(&self) {
        self.inner.cancel();
    }
}
