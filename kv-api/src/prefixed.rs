//! A database inside another one: all its keys begin with a prefix.

use std::path::Path;

use bytes::Bytes;

use crate::error::KEY_OUTSIDE_LEGAL_RANGE;
use crate::{
    ConflictRange, Database, Durability, Error, Figure, IntoBytes, KeySelector, KeyValue, Limits, MutationType,
    RangeBatch, RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp, keys,
};

/// A database whose keys all lie under a prefix of another database. FoundationDB's tenants serve the same
/// purpose.
///
/// Callers see keys without the prefix and cannot reach a key outside it: selectors stop at the two ends, and
/// `\xff` and above are refused as in any database. The longest key is shorter by the length of the prefix.
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

    /// The database that contains it.
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
        Ok(PrefixedTransaction { inner: self.inner.begin()?, prefix: self.prefix.clone() })
    }

    fn in_background(&self) -> Self {
        Prefixed { inner: self.inner.in_background(), prefix: self.prefix.clone() }
    }

    fn limits(&self) -> Limits {
        let limits = self.inner.limits();
        Limits { key_bytes: limits.key_bytes.saturating_sub(self.prefix.len()), ..limits }
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.inner.compact(&prefixed(&self.prefix, begin), &prefixed(&self.prefix, end));
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.inner.is_compacting(&prefixed(&self.prefix, begin), &prefixed(&self.prefix, end))
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        self.inner.disk_bytes(&prefixed(&self.prefix, begin), &prefixed(&self.prefix, end))
    }

    fn figures(&self) -> Vec<Figure> {
        self.inner.figures()
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        self.inner.snapshot(folder)
    }
}

/// A transaction of a [`Prefixed`] database.
///
/// The prefix would make an illegal key legal, and the inner transaction could not refuse it. So an invalid write is
/// passed on as an inner write that is invalid in the same way. The inner transaction then keeps the first error and
/// forgets it when it should.
#[derive(Clone, Debug)]
pub struct PrefixedTransaction<T> {
    inner: T,
    prefix: Bytes,
}

fn prefixed(prefix: &[u8], key: &[u8]) -> Vec<u8> {
    let mut prefixed = Vec::with_capacity(prefix.len() + key.len());
    prefixed.extend_from_slice(prefix);
    prefixed.extend_from_slice(key);
    prefixed
}

impl<T: Transaction> PrefixedTransaction<T> {
    /// The transaction of the database that contains it.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        prefixed(&self.prefix, key)
    }

    fn selector(&self, selector: &KeySelector) -> KeySelector {
        KeySelector { key: self.key(&selector.key).into(), or_equal: selector.or_equal, offset: selector.offset }
    }

    /// The key without the prefix. A key outside becomes the nearer end.
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

    /// The error of a read with keys without the prefix.
    fn strip_error(prefix: &Bytes, error: Error) -> Error {
        let damage = error.damage().map(|(begin, end)| (Self::strip(prefix, begin), Self::strip(prefix, end)));
        damage.map_or(error.clone(), |(begin, end)| error.with_damage(begin, end))
    }

    /// Makes an illegal write: 2004 at the next read or at the commit.
    fn write_outside(&self) {
        self.inner.set(keys::SYSTEM_BEGIN, b"");
    }

    /// Sets a versionstamped key without room for a stamp: 2000 at the next read or at the commit.
    fn stamp_nothing(&self) {
        self.inner.atomic_op(MutationType::SetVersionstampedKey, b"", b"");
    }

    fn is_legal(key: &[u8]) -> bool {
        key < keys::SYSTEM_BEGIN
    }

    fn check_key(key: &[u8]) -> Result<()> {
        if Self::is_legal(key) { Ok(()) } else { Err(Error::new(KEY_OUTSIDE_LEGAL_RANGE)) }
    }

    /// Checks that a key may be the end of a range or part of a selector.
    fn check_bound(key: &[u8]) -> Result<()> {
        if key > keys::SYSTEM_BEGIN { Err(Error::new(KEY_OUTSIDE_LEGAL_RANGE)) } else { Ok(()) }
    }

    fn check_bounds(begin: &[u8], end: &[u8]) -> Result<()> {
        Self::check_bound(begin).and_then(|()| Self::check_bound(end))
    }
}

/// A range read in progress: the read itself, or the ends that must be resolved first.
enum Issued<B, K> {
    Batch(B),
    Ends(Option<K>, Option<K>),
}

/// Whether a selector can bound a range without being resolved, because it cannot leave the prefix.
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
        let value = Self::check_key(key).map(|()| self.inner.get(&self.key(key), read));
        let prefix = self.prefix.clone();
        async move { value?.await.map_err(|error| Self::strip_error(&prefix, error)) }
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        let key = Self::check_bound(&selector.key).map(|()| self.inner.get_key(&self.selector(selector), read));
        let prefix = self.prefix.clone();
        async move { Ok(Self::strip(&prefix, &key?.await?)) }
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        let legal = Self::check_bounds(&request.begin.key, &request.end.key);
        let inner_request =
            RangeRequest { begin: self.selector(&request.begin), end: self.selector(&request.end), ..request.clone() };
        // Selectors that count over keys could leave the prefix, so they are resolved first and clamped.
        let resolve = |selector: &KeySelector| (!stays_inside(selector)).then(|| self.get_key(selector, read));
        let issued = legal.map(|()| match (resolve(&request.begin), resolve(&request.end)) {
            (None, None) => Issued::Batch(self.inner.get_range(&inner_request, read)),
            (begin, end) => Issued::Ends(begin, end),
        });
        let this = self.clone();
        async move {
            let batch = match issued? {
                Issued::Batch(batch) => batch.await,
                Issued::Ends(begin, end) => {
                    let mut request = inner_request;
                    if let Some(begin) = begin {
                        request.begin = KeySelector::first_greater_or_equal(this.key(&begin.await?));
                    }
                    if let Some(end) = end {
                        request.end = KeySelector::first_greater_or_equal(this.key(&end.await?));
                    }
                    this.inner.get_range(&request, read).await
                }
            };
            let batch = batch.map_err(|error| Self::strip_error(&this.prefix, error))?;
            let strip = |row: KeyValue| KeyValue { key: row.key.slice(this.prefix.len()..), value: row.value };
            Ok(RangeBatch { rows: batch.rows.into_iter().map(strip).collect(), more: batch.more })
        }
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        if Self::is_legal(key.as_ref()) {
            self.inner.set(self.key(key.as_ref()), value);
        } else {
            self.write_outside();
        }
    }

    fn clear(&self, key: &[u8]) {
        if Self::is_legal(key) {
            self.inner.clear(&self.key(key));
        } else {
            self.write_outside();
        }
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        if Self::check_bounds(begin, end).is_ok() {
            self.inner.clear_range(&self.key(begin), &self.key(end));
        } else {
            self.write_outside();
        }
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        let key = key.as_ref();
        if !Self::is_legal(key) {
            return self.write_outside();
        }
        let mut prefixed = self.key(key);
        if mutation == MutationType::SetVersionstampedKey {
            // The offset counts from the start of the key, which the prefix has made longer.
            let Some((_, offset)) = key.split_last_chunk::<4>() else { return self.stamp_nothing() };
            let moved = u32::from_le_bytes(*offset).checked_add(self.prefix.len() as u32);
            let Some(moved) = moved else { return self.stamp_nothing() };
            let at = prefixed.len() - 4;
            prefixed[at..].copy_from_slice(&moved.to_le_bytes());
        }
        self.inner.atomic_op(mutation, prefixed, operand);
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        if Self::check_bounds(begin, end).is_ok() {
            self.inner.add_conflict_range(&self.key(begin), &self.key(end), side);
        } else {
            self.write_outside();
        }
    }

    fn set_option(&self, option: TransactionOption) {
        self.inner.set_option(option);
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<T> {
        self.inner.get_approximate_size()
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> impl Future<Output = Result<u64>> + Send + use<T> {
        let legal = Self::check_bounds(begin, end);
        let size = legal.map(|()| self.inner.get_estimated_range_size(&self.key(begin), &self.key(end)));
        async move { size?.await }
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<T> {
        let legal = Self::check_bounds(begin, end);
        let points = legal.map(|()| self.inner.get_range_split_points(&self.key(begin), &self.key(end), chunk_bytes));
        let prefix = self.prefix.clone();
        async move { Ok(points?.await?.iter().map(|key| Self::strip(&prefix, key)).collect()) }
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<T> {
        self.inner.get_versionstamp()
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<T> {
        let change = Self::check_key(key).map(|()| self.inner.watch(&self.key(key)));
        async move { change?.await }
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<T> {
        self.inner.commit()
    }

    fn get_committed_version(&self) -> Result<i64> {
        self.inner.get_committed_version()
    }

    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<T> {
        self.inner.on_error(error)
    }

    fn reset(&self) {
        self.inner.reset();
    }

    fn cancel(&self) {
        self.inner.cancel();
    }
}
