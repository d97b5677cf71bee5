//! A database within a database: all keys under a prefix.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::error::{CLIENT_INVALID_OPERATION, KEY_OUTSIDE_LEGAL_RANGE};
use crate::{
    ConflictRange, Database, Durability, Error, KeySelector, KeyValue, Limits, MutationType, RangeBatch, RangeRequest,
    Read, Result, Transaction, TransactionOption, Versionstamp, keys,
};

/// A database whose keys all lie under a prefix of another: what FoundationDB's tenants were for.
///
/// Users of it see keys without the prefix and cannot reach a key outside it: selectors stop at its
/// ends, `\xff` and above are refused as everywhere. The longest key is shorter by the prefix.
#[derive(Clone, Debug)]
pub struct Prefixed<D> {
    inner: D,
    prefix: Bytes,
}

impl<D: Database> Prefixed<D> {
    /// The part of `inner` under `prefix`.
    pub fn new(inner: D, prefix: impl Into<Bytes>) -> Self {
        Prefixed { inner, prefix: prefix.into() }
    }

    /// The database around it.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The prefix of all its keys.
    pub fn prefix(&self) -> &Bytes {
        &self.prefix
    }
}

#[deny(clippy::missing_trait_methods)]
impl<D: Database> Database for Prefixed<D> {
    type Transaction = PrefixedTransaction<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(PrefixedTransaction {
            inner: self.inner.begin()?,
            prefix: self.prefix.clone(),
            deferred: Arc::new(Mutex::new(None)),
        })
    }

    fn limits(&self) -> Limits {
        let limits = self.inner.limits();
        Limits { key_bytes: limits.key_bytes.saturating_sub(self.prefix.len()), ..limits }
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }
}

/// A transaction of a [`Prefixed`] database.
#[derive(Clone, Debug)]
pub struct PrefixedTransaction<T> {
    inner: T,
    prefix: Bytes,
    /// The first thing wrong with a write, which the inner transaction cannot see: the prefix makes
    /// a legal key of an illegal one.
    deferred: Arc<Mutex<Option<Error>>>,
}

impl<T: Transaction> PrefixedTransaction<T> {
    /// The transaction of the database around it.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        let mut prefixed = Vec::with_capacity(self.prefix.len() + key.len());
        prefixed.extend_from_slice(&self.prefix);
        prefixed.extend_from_slice(key);
        prefixed
    }

    fn selector(&self, selector: &KeySelector) -> KeySelector {
        KeySelector { key: self.key(&selector.key).into(), or_equal: selector.or_equal, offset: selector.offset }
    }

    /// The key as users see it, clamped to the two ends.
    fn strip(prefix: &Bytes, key: &Bytes) -> Bytes {
        if key.starts_with(prefix) {
            let stripped = key.slice(prefix.len()..);
            if stripped.as_ref() > keys::SYSTEM_BEGIN { Bytes::from_static(keys::SYSTEM_BEGIN) } else { stripped }
        } else if key.as_ref() < prefix.as_ref() {
            Bytes::new()
        } else {
            Bytes::from_static(keys::SYSTEM_BEGIN)
        }
    }

    fn defer(&self, code: i32) {
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.get_or_insert(Error::new(code));
    }

    fn check(&self) -> Result<()> {
        match &*self.deferred.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn forget_deferred(deferred: &Mutex<Option<Error>>) {
        *deferred.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_legal(key: &[u8]) -> bool {
        key < keys::SYSTEM_BEGIN
    }

    /// Whether a key may stand at the end of a range or in a selector.
    fn check_bound(key: &[u8]) -> Result<()> {
        if key > keys::SYSTEM_BEGIN { Err(Error::new(KEY_OUTSIDE_LEGAL_RANGE)) } else { Ok(()) }
    }
}

/// Whether a selector as a range's end needs no resolving: it then cannot reach outside the prefix.
fn stays_inside(selector: &KeySelector) -> bool {
    selector.offset == 1
}

#[deny(clippy::missing_trait_methods)]
impl<T: Transaction> Transaction for PrefixedTransaction<T> {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<T> {
        self.inner.get_read_version()
    }

    fn set_read_version(&self, version: i64) {
        self.inner.set_read_version(version);
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        let legal = if Self::is_legal(key) { self.check() } else { Err(Error::new(KEY_OUTSIDE_LEGAL_RANGE)) };
        let value = legal.map(|()| self.inner.get(&self.key(key), read));
        async move { value?.await }
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        let legal = self.check().and_then(|()| Self::check_bound(&selector.key));
        let key = legal.map(|()| self.inner.get_key(&self.selector(selector), read));
        let prefix = self.prefix.clone();
        async move { Ok(Self::strip(&prefix, &key?.await?)) }
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        let legal = self
            .check()
            .and_then(|()| Self::check_bound(&request.begin.key))
            .and_then(|()| Self::check_bound(&request.end.key));
        let inner_request =
            RangeRequest { begin: self.selector(&request.begin), end: self.selector(&request.end), ..request.clone() };
        // Selectors that count over keys could leave the prefix: they are resolved first, and clamped.
        let resolved = legal.map(|()| {
            if stays_inside(&request.begin) && stays_inside(&request.end) {
                Err(self.inner.get_range(&inner_request, read))
            } else {
                Ok((self.get_key(&request.begin, read), self.get_key(&request.end, read)))
            }
        });
        let this = self.clone();
        async move {
            let batch = match resolved? {
                Err(batch) => batch.await?,
                Ok((begin, end)) => {
                    let (begin, end) = (begin.await?, end.await?);
                    if begin >= end {
                        return Ok(RangeBatch::default());
                    }
                    let begin = KeySelector::first_greater_or_equal(this.key(&begin));
                    let end = KeySelector::first_greater_or_equal(this.key(&end));
                    this.inner.get_range(&RangeRequest { begin, end, ..inner_request }, read).await?
                }
            };
            let strip = |row: KeyValue| KeyValue { key: row.key.slice(this.prefix.len()..), value: row.value };
            Ok(RangeBatch { rows: batch.rows.into_iter().map(strip).collect(), more: batch.more })
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        if Self::is_legal(key) {
            self.inner.set(&self.key(key), value);
        } else {
            self.defer(KEY_OUTSIDE_LEGAL_RANGE);
        }
    }

    fn clear(&self, key: &[u8]) {
        if Self::is_legal(key) {
            self.inner.clear(&self.key(key));
        } else {
            self.defer(KEY_OUTSIDE_LEGAL_RANGE);
        }
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        if Self::check_bound(begin).and_then(|()| Self::check_bound(end)).is_ok() {
            self.inner.clear_range(&self.key(begin), &self.key(end));
        } else {
            self.defer(KEY_OUTSIDE_LEGAL_RANGE);
        }
    }

    fn atomic_op(&self, mutation: MutationType, key: &[u8], operand: &[u8]) {
        if !Self::is_legal(key) {
            return self.defer(KEY_OUTSIDE_LEGAL_RANGE);
        }
        let mut prefixed = self.key(key);
        if mutation == MutationType::SetVersionstampedKey {
            // The offset counts from the start of the key, which has moved.
            let Some((_, offset)) = key.split_last_chunk::<4>() else { return self.defer(CLIENT_INVALID_OPERATION) };
            let moved = u32::from_le_bytes(*offset).checked_add(self.prefix.len() as u32);
            let Some(moved) = moved else { return self.defer(CLIENT_INVALID_OPERATION) };
            let at = prefixed.len() - 4;
            prefixed[at..].copy_from_slice(&moved.to_le_bytes());
        }
        self.inner.atomic_op(mutation, &prefixed, operand);
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        if Self::check_bound(begin).and_then(|()| Self::check_bound(end)).is_ok() {
            self.inner.add_conflict_range(&self.key(begin), &self.key(end), side);
        } else {
            self.defer(KEY_OUTSIDE_LEGAL_RANGE);
        }
    }

    fn set_option(&self, option: TransactionOption) {
        self.inner.set_option(option);
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_approximate_size()
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_estimated_range_size(&self.key(begin), &self.key(end))
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<T> {
        let points = self.inner.get_range_split_points(&self.key(begin), &self.key(end), chunk_bytes);
        let prefix = self.prefix.clone();
        async move { Ok(points.await?.iter().map(|key| Self::strip(&prefix, key)).collect()) }
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<T> {
        self.inner.get_versionstamp()
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<T> {
        let legal = if Self::is_legal(key) { self.check() } else { Err(Error::new(KEY_OUTSIDE_LEGAL_RANGE)) };
        let change = legal.map(|()| self.inner.watch(&self.key(key)));
        async move { change?.await }
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<T> {
        let committed = self.check().map(|()| self.inner.commit());
        async move { committed?.await }
    }

    fn get_committed_version(&self) -> Result<i64> {
        self.inner.get_committed_version()
    }

    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<T> {
        let decided = self.inner.on_error(error);
        let deferred = self.deferred.clone();
        async move {
            decided.await?;
            Self::forget_deferred(&deferred);
            Ok(())
        }
    }

    fn reset(&self) {
        Self::forget_deferred(&self.deferred);
        self.inner.reset();
    }

    fn cancel(&self) {
        self.inner.cancel();
    }
}
