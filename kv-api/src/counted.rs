//! Counts what each transaction costs, so that a layer can prove its performance tables.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    ConflictRange, Database, Durability, Error, Figure, IntoBytes, KeySelector, Limits, MutationType, RangeBatch,
    RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};

/// Cost of one transaction, over all its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows returned by reads. A `get` of an absent key returns none.
    pub kvs_read: u64,
    /// Bytes of the keys and values of those rows.
    pub bytes_read: u64,
    /// Reads issued: `get`, `get_key`, `get_range`.
    pub reads: u64,
    /// Rows of `kvs_read` that match the rule of [`separately`](Counted::separately).
    pub kvs_read_separately: u64,
    /// Round trips. Reads that are issued together are one: a read counts only when no other is in progress.
    pub round_trips: u64,
    /// Keys set.
    pub sets: u64,
    /// Keys cleared one by one.
    pub clears: u64,
    /// Ranges cleared.
    pub range_clears: u64,
    /// Atomic operations, versionstamped ones included.
    pub atomic_ops: u64,
    /// Bytes of the keys and values written: sets, atomic operations and the ends of clears.
    pub bytes_written: u64,
    /// Conflict ranges added by hand.
    pub conflict_ranges: u64,
    /// Commits started.
    pub commits: u64,
    /// Whether the transaction was begun by a handle for [work in the background](Database::in_background).
    pub in_background: bool,
    /// Whether the transaction had a [tag](TransactionOption::Tag) before its first read.
    pub tagged: bool,
}

type Separate = fn(&[u8]) -> bool;

/// A database that counts what each of its transactions costs.
///
/// ```
/// # use kv_api::{Counted, Database};
/// fn cost_of_something<D: Database>(db: D) {
///     let counted = Counted::new(db);
///     // … run transactions on `counted` …
///     for counts in counted.take() {
///         println!("{} rows in {} round trips", counts.kvs_read, counts.round_trips);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Counted<D> {
    inner: D,
    separate: Option<Separate>,
    in_background: bool,
    ledgers: Arc<Mutex<Vec<Ledger>>>,
}

impl<D: Database> Counted<D> {
    /// Counts the transactions of `inner`.
    pub fn new(inner: D) -> Self {
        Counted { inner, separate: None, in_background: false, ledgers: Arc::default() }
    }

    /// Also counts, in [`Counts::kvs_read_separately`], the rows whose key matches `rule`: a fixed cost of a layer, for
    /// example a key that every transaction reads.
    #[must_use]
    pub fn separately(mut self, rule: fn(&[u8]) -> bool) -> Self {
        self.separate = Some(rule);
        self
    }

    /// The counts of every transaction begun since the last call, oldest first. A transaction in progress is still
    /// counted but not returned again.
    pub fn take(&self) -> Vec<Counts> {
        let ledgers = std::mem::take(&mut *self.ledgers.lock());
        ledgers.iter().map(|ledger| ledger.0.lock().counts).collect()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<D: Database> Database for Counted<D> {
    type Transaction = CountedTransaction<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        let inner = self.inner.begin()?;
        let ledger = Ledger::default();
        ledger.add(|counts| counts.in_background = self.in_background);
        self.ledgers.lock().push(ledger.clone());
        Ok(CountedTransaction { inner, separate: self.separate, ledger })
    }

    fn in_background(&self) -> Self {
        Counted { inner: self.inner.in_background(), in_background: true, ..self.clone() }
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

#[derive(Clone, Debug, Default)]
struct Ledger(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    counts: Counts,
    /// Whether a round trip has begun and none of its reads has been answered. Reads issued now join it.
    under_way: bool,
}

impl Ledger {
    fn add(&self, entry: impl FnOnce(&mut Counts)) {
        entry(&mut self.0.lock().counts);
    }

    fn issue(&self) {
        let mut entries = self.0.lock();
        entries.counts.reads += 1;
        if !entries.under_way {
            entries.under_way = true;
            entries.counts.round_trips += 1;
        }
    }

    fn answer<'a>(&self, separate: Option<Separate>, rows: impl IntoIterator<Item = (&'a [u8], usize)>) {
        let mut entries = self.0.lock();
        entries.under_way = false;
        for (key, value_bytes) in rows {
            entries.counts.kvs_read += 1;
            entries.counts.bytes_read += (key.len() + value_bytes) as u64;
            entries.counts.kvs_read_separately += u64::from(separate.is_some_and(|rule| rule(key)));
        }
    }
}

/// A transaction of a [`Counted`] database.
#[derive(Clone, Debug)]
pub struct CountedTransaction<T> {
    inner: T,
    separate: Option<Separate>,
    ledger: Ledger,
}

impl<T: Transaction> CountedTransaction<T> {
    /// The cost of this transaction so far.
    pub fn counts(&self) -> Counts {
        self.ledger.0.lock().counts
    }
}

#[deny(clippy::missing_trait_methods)]
impl<T: Transaction> Transaction for CountedTransaction<T> {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<T> {
        self.inner.get_read_version()
    }

    fn set_read_version(&self, version: i64) {
        self.inner.set_read_version(version);
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        self.ledger.issue();
        let value = self.inner.get(key, read);
        let (ledger, separate, key) = (self.ledger.clone(), self.separate, Bytes::copy_from_slice(key));
        async move {
            let value = value.await;
            let row = value.as_ref().ok().and_then(Option::as_ref).map(|value| (key.as_ref(), value.len()));
            ledger.answer(separate, row);
            value
        }
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        self.ledger.issue();
        let key = self.inner.get_key(selector, read);
        let (ledger, separate) = (self.ledger.clone(), self.separate);
        async move {
            let key = key.await;
            ledger.answer(separate, key.as_ref().ok().map(|key| (key.as_ref(), 0)));
            key
        }
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        self.ledger.issue();
        let batch = self.inner.get_range(request, read);
        let (ledger, separate) = (self.ledger.clone(), self.separate);
        async move {
            let batch = batch.await;
            let rows = batch.as_ref().map(|batch| batch.rows.as_slice()).unwrap_or_default();
            ledger.answer(separate, rows.iter().map(|row| (row.key.as_ref(), row.value.len())));
            batch
        }
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.ledger.add(|counts| {
            counts.sets += 1;
            counts.bytes_written += (key.as_ref().len() + value.as_ref().len()) as u64;
        });
        self.inner.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.ledger.add(|counts| {
            counts.clears += 1;
            counts.bytes_written += key.len() as u64;
        });
        self.inner.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.ledger.add(|counts| {
            counts.range_clears += 1;
            counts.bytes_written += (begin.len() + end.len()) as u64;
        });
        self.inner.clear_range(begin, end);
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.ledger.add(|counts| {
            counts.atomic_ops += 1;
            counts.bytes_written += (key.as_ref().len() + operand.as_ref().len()) as u64;
        });
        self.inner.atomic_op(mutation, key, operand);
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.ledger.add(|counts| counts.conflict_ranges += 1);
        self.inner.add_conflict_range(begin, end, side);
    }

    fn set_option(&self, option: TransactionOption) {
        if let TransactionOption::Tag(_) = option {
            self.ledger.add(|counts| counts.tagged |= counts.reads == 0);
        }
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
        self.ledger.add(|counts| counts.commits += 1);
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
