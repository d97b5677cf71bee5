//! Object-safe versions of the two traits, for code that chooses an engine at run time or uses several at once.
//!
//! Pipelining works as in the traits: the call issues the read, and its future is boxed. [`AnyDatabase`] is itself
//! a [`Database`]: a layer over it is compiled once for all engines, at the price of one box for each read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tracing::field::Empty;
use tracing::{Instrument, Level, Span};

use crate::error::name_of;
use crate::figures::Histogram;
use crate::{
    ConflictRange, Database, Durability, Error, Figure, IntoBytes, KeySelector, Limits, MutationType, RangeBatch,
    RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};

/// The target of spans. Nothing is logged with it.
pub const SPANS: &str = "couch_layer::spans";

/// The span of a commit. Only a part of a request has one: background work has no span above it.
fn commit_span() -> Span {
    if !tracing::span_enabled!(target: SPANS, Level::TRACE) || Span::current().is_none() {
        return Span::none();
    }
    tracing::trace_span!(target: SPANS, "commit", couch.code = Empty, otel.status_code = Empty)
}

/// A boxed future that borrows nothing.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// [`Database`], object-safe. Every database implements it.
pub trait DynDatabase: Send + Sync + 'static {
    /// See [`Database::begin`].
    fn begin(&self) -> Result<Arc<dyn DynTransaction>>;
    /// See [`Database::in_background`].
    fn in_background(&self) -> Arc<dyn DynDatabase>;
    /// See [`Database::limits`].
    fn limits(&self) -> Limits;
    /// See [`Database::durability`].
    fn durability(&self) -> Durability;
    /// See [`Database::compact`].
    fn compact(&self, begin: &[u8], end: &[u8]);
    /// See [`Database::is_compacting`].
    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool;
    /// See [`Database::disk_bytes`].
    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64>;
    /// See [`Database::figures`].
    fn figures(&self) -> Vec<Figure>;
    /// See [`Database::snapshot`].
    fn snapshot(&self, folder: &Path) -> Result<()>;
}

impl<D: Database> DynDatabase for D {
    fn begin(&self) -> Result<Arc<dyn DynTransaction>> {
        Ok(Arc::new(Database::begin(self)?))
    }

    fn in_background(&self) -> Arc<dyn DynDatabase> {
        Arc::new(Database::in_background(self))
    }

    fn limits(&self) -> Limits {
        Database::limits(self)
    }

    fn durability(&self) -> Durability {
        Database::durability(self)
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        Database::compact(self, begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        Database::is_compacting(self, begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        Database::disk_bytes(self, begin, end)
    }

    fn figures(&self) -> Vec<Figure> {
        Database::figures(self)
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        Database::snapshot(self, folder)
    }
}

/// [`Transaction`], object-safe. Every transaction implements it. Reads are issued when called; `commit` and
/// `on_error` start at the first poll.
#[async_trait]
#[allow(missing_docs, reason = "each method is the one of the same name in Transaction")]
pub trait DynTransaction: Send + Sync + 'static {
    fn get_read_version(&self) -> BoxFuture<Result<i64>>;
    fn set_read_version(&self, version: i64);
    fn get(&self, key: &[u8], read: Read) -> BoxFuture<Result<Option<Bytes>>>;
    fn get_key(&self, selector: &KeySelector, read: Read) -> BoxFuture<Result<Bytes>>;
    fn get_range(&self, request: &RangeRequest, read: Read) -> BoxFuture<Result<RangeBatch>>;
    fn set(&self, key: Bytes, value: Bytes);
    fn clear(&self, key: &[u8]);
    fn clear_range(&self, begin: &[u8], end: &[u8]);
    fn atomic_op(&self, mutation: MutationType, key: Bytes, operand: Bytes);
    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange);
    fn set_option(&self, option: TransactionOption);
    fn get_approximate_size(&self) -> BoxFuture<Result<u64>>;
    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> BoxFuture<Result<u64>>;
    fn get_range_split_points(&self, begin: &[u8], end: &[u8], chunk_bytes: u64) -> BoxFuture<Result<Vec<Bytes>>>;
    fn get_versionstamp(&self) -> BoxFuture<Result<Versionstamp>>;
    fn watch(&self, key: &[u8]) -> BoxFuture<Result<()>>;
    async fn commit(&self) -> Result<()>;
    fn get_committed_version(&self) -> Result<i64>;
    async fn on_error(&self, error: Error) -> Result<()>;
    fn reset(&self);
    fn cancel(&self);
}

#[async_trait]
impl<T: Transaction> DynTransaction for T {
    fn get_read_version(&self) -> BoxFuture<Result<i64>> {
        Box::pin(Transaction::get_read_version(self))
    }

    fn set_read_version(&self, version: i64) {
        Transaction::set_read_version(self, version);
    }

    fn get(&self, key: &[u8], read: Read) -> BoxFuture<Result<Option<Bytes>>> {
        Box::pin(Transaction::get(self, key, read))
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> BoxFuture<Result<Bytes>> {
        Box::pin(Transaction::get_key(self, selector, read))
    }

    fn get_range(&self, request: &RangeRequest, read: Read) -> BoxFuture<Result<RangeBatch>> {
        Box::pin(Transaction::get_range(self, request, read))
    }

    fn set(&self, key: Bytes, value: Bytes) {
        Transaction::set(self, key, value);
    }

    fn clear(&self, key: &[u8]) {
        Transaction::clear(self, key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        Transaction::clear_range(self, begin, end);
    }

    fn atomic_op(&self, mutation: MutationType, key: Bytes, operand: Bytes) {
        Transaction::atomic_op(self, mutation, key, operand);
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        Transaction::add_conflict_range(self, begin, end, side);
    }

    fn set_option(&self, option: TransactionOption) {
        Transaction::set_option(self, option);
    }

    fn get_approximate_size(&self) -> BoxFuture<Result<u64>> {
        Box::pin(Transaction::get_approximate_size(self))
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> BoxFuture<Result<u64>> {
        Box::pin(Transaction::get_estimated_range_size(self, begin, end))
    }

    fn get_range_split_points(&self, begin: &[u8], end: &[u8], chunk_bytes: u64) -> BoxFuture<Result<Vec<Bytes>>> {
        Box::pin(Transaction::get_range_split_points(self, begin, end, chunk_bytes))
    }

    fn get_versionstamp(&self) -> BoxFuture<Result<Versionstamp>> {
        Box::pin(Transaction::get_versionstamp(self))
    }

    fn watch(&self, key: &[u8]) -> BoxFuture<Result<()>> {
        Box::pin(Transaction::watch(self, key))
    }

    async fn commit(&self) -> Result<()> {
        Transaction::commit(self).await
    }

    fn get_committed_version(&self) -> Result<i64> {
        Transaction::get_committed_version(self)
    }

    async fn on_error(&self, error: Error) -> Result<()> {
        Transaction::on_error(self, error).await
    }

    fn reset(&self) {
        Transaction::reset(self);
    }

    fn cancel(&self) {
        Transaction::cancel(self);
    }
}

/// A [`Database`] whose engine is chosen at run time. It counts commits and errors: the same figures for every engine.
#[derive(Clone)]
pub struct AnyDatabase {
    engine: Arc<dyn DynDatabase>,
    outcomes: Arc<Outcomes>,
}

impl AnyDatabase {
    /// Hides the type of `database`.
    pub fn new(database: impl Database) -> Self {
        AnyDatabase { engine: Arc::new(database), outcomes: Arc::default() }
    }
}

/// Numbers of errors by their codes.
type Codes = Mutex<BTreeMap<i32, u64>>;

/// Outcomes of transactions.
struct Outcomes {
    /// Times of commits that changed something.
    commits: Histogram,
    failures: Codes,
    retries: Codes,
}

impl Default for Outcomes {
    fn default() -> Self {
        Outcomes { commits: Histogram::of_times(), failures: Codes::default(), retries: Codes::default() }
    }
}

impl Outcomes {
    fn count(codes: &Codes, code: i32) {
        *codes.lock().entry(code).or_default() += 1;
    }

    fn figures(&self) -> Vec<Figure> {
        let what = "time of commits that changed something";
        let mut figures = vec![Figure::histogram("couch_layer_commit_seconds", what, self.commits.seconds())];
        let mut list = |codes: &Codes, name, help| {
            figures.extend(codes.lock().iter().map(|(code, count)| {
                Figure::counter(name, help, *count).with("code", code.to_string()).with("error", name_of(*code))
            }));
        };
        list(&self.failures, "couch_layer_commit_failures_total", "commits that failed, by FoundationDB's code");
        list(&self.retries, "couch_layer_transaction_retries_total", "transactions that ran again after an error");
        figures
    }
}

impl fmt::Debug for AnyDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyDatabase").finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Database for AnyDatabase {
    type Transaction = AnyTransaction;

    fn begin(&self) -> Result<AnyTransaction> {
        Ok(AnyTransaction { inner: self.engine.begin()?, outcomes: self.outcomes.clone() })
    }

    fn in_background(&self) -> Self {
        AnyDatabase { engine: self.engine.in_background(), outcomes: self.outcomes.clone() }
    }

    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn durability(&self) -> Durability {
        self.engine.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.engine.compact(begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.engine.is_compacting(begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        self.engine.disk_bytes(begin, end)
    }

    fn figures(&self) -> Vec<Figure> {
        [self.outcomes.figures(), self.engine.figures()].concat()
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        self.engine.snapshot(folder)
    }
}

/// A transaction of [`AnyDatabase`].
#[derive(Clone)]
pub struct AnyTransaction {
    inner: Arc<dyn DynTransaction>,
    outcomes: Arc<Outcomes>,
}

impl fmt::Debug for AnyTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyTransaction").finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[allow(refining_impl_trait, reason = "this type exists to box the futures")]
impl Transaction for AnyTransaction {
    fn get_read_version(&self) -> BoxFuture<Result<i64>> {
        self.inner.get_read_version()
    }

    fn set_read_version(&self, version: i64) {
        self.inner.set_read_version(version);
    }

    fn get(&self, key: &[u8], read: Read) -> BoxFuture<Result<Option<Bytes>>> {
        self.inner.get(key, read)
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> BoxFuture<Result<Bytes>> {
        self.inner.get_key(selector, read)
    }

    fn get_range(&self, request: &RangeRequest, read: Read) -> BoxFuture<Result<RangeBatch>> {
        self.inner.get_range(request, read)
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.inner.set(key.into_bytes(), value.into_bytes());
    }

    fn clear(&self, key: &[u8]) {
        self.inner.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.inner.clear_range(begin, end);
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.inner.atomic_op(mutation, key.into_bytes(), operand.into_bytes());
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.inner.add_conflict_range(begin, end, side);
    }

    fn set_option(&self, option: TransactionOption) {
        self.inner.set_option(option);
    }

    fn get_approximate_size(&self) -> BoxFuture<Result<u64>> {
        self.inner.get_approximate_size()
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> BoxFuture<Result<u64>> {
        self.inner.get_estimated_range_size(begin, end)
    }

    fn get_range_split_points(&self, begin: &[u8], end: &[u8], chunk_bytes: u64) -> BoxFuture<Result<Vec<Bytes>>> {
        self.inner.get_range_split_points(begin, end, chunk_bytes)
    }

    fn get_versionstamp(&self) -> BoxFuture<Result<Versionstamp>> {
        self.inner.get_versionstamp()
    }

    fn watch(&self, key: &[u8]) -> BoxFuture<Result<()>> {
        self.inner.watch(key)
    }

    fn commit(&self) -> BoxFuture<Result<()>> {
        let transaction = self.clone();
        Box::pin(async move {
            let AnyTransaction { inner, outcomes } = transaction;
            let started = Instant::now();
            let span = commit_span();
            let outcome = inner.commit().instrument(span.clone()).await;
            if let Err(error) = &outcome {
                span.record("couch.code", error.code());
                span.record("otel.status_code", "ERROR");
            }
            match &outcome {
                // A transaction that wrote nothing has the version -1.
                Ok(()) if inner.get_committed_version().is_ok_and(|version| version < 0) => {}
                Ok(()) => outcomes.commits.observe_time(started.elapsed()),
                Err(error) => Outcomes::count(&outcomes.failures, error.code()),
            }
            outcome
        })
    }

    fn get_committed_version(&self) -> Result<i64> {
        self.inner.get_committed_version()
    }

    fn on_error(&self, error: Error) -> BoxFuture<Result<()>> {
        let transaction = self.clone();
        Box::pin(async move {
            let AnyTransaction { inner, outcomes } = transaction;
            let code = error.code();
            inner.on_error(error).await?;
            Outcomes::count(&outcomes.retries, code);
            Ok(())
        })
    }

    fn reset(&self) {
        self.inner.reset();
    }

    fn cancel(&self) {
        self.inner.cancel();
    }
}
