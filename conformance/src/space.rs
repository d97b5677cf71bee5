//! A scenario's view of its database: keys without the subspace, and shorthand for common operations.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kv_api::error::NOT_COMMITTED;
use kv_api::{
    AnyDatabase, AnyTransaction, BoxFuture, ConflictRange, Database, Error, KeySelector, KeyValue, Limits,
    MutationType, RangeBatch, RangeRequest, Read, Result, Transaction, TransactionOption, Versionstamp,
};

use crate::expect::show;
use crate::harness::{Clock, Fixture, Keyspace, pass};
use crate::runtime::block_on;

/// The subspace of one scenario in the database of its harness.
#[derive(Clone)]
pub struct Space {
    database: AnyDatabase,
    subspace: Bytes,
    keyspace: Keyspace,
    clock: Option<Clock>,
    _keep: Arc<Vec<Box<dyn Any + Send + Sync>>>,
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("subspace", &self.subspace).finish_non_exhaustive()
    }
}

impl Space {
    pub(crate) fn new(fixture: Fixture<AnyDatabase>) -> Self {
        Space {
            database: fixture.database,
            subspace: fixture.subspace,
            keyspace: fixture.keyspace,
            clock: fixture.clock,
            _keep: Arc::new(fixture.keep),
        }
    }

    /// The database itself, where keys include the subspace.
    pub(crate) fn database(&self) -> &AnyDatabase {
        &self.database
    }

    /// The same subspace of another database, such as a wrapper around this one.
    pub(crate) fn on(&self, database: impl Database) -> Space {
        Space { database: AnyDatabase::new(database), ..self.clone() }
    }

    pub(crate) fn keyspace(&self) -> Keyspace {
        self.keyspace
    }

    /// The limits, with the longest key shortened by the subspace.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = self.database.limits();
        limits.key_bytes -= self.subspace.len();
        limits
    }

    /// The whole key, for calls to the database itself.
    pub(crate) fn key(&self, key: impl AsRef<[u8]>) -> Bytes {
        [&self.subspace, key.as_ref()].concat().into()
    }

    /// Begins a transaction.
    #[track_caller]
    pub(crate) fn tx(&self) -> Tx {
        match self.database.begin() {
            Ok(raw) => Tx { raw, subspace: self.subspace.clone() },
            Err(error) => panic!("cannot begin: {error}"),
        }
    }

    /// Commits these rows. Returns the commit version.
    pub(crate) async fn put(&self, rows: &[(&str, &str)]) -> Result<i64> {
        self.write(|tx| {
            for (key, value) in rows {
                tx.set(key, value);
            }
        })
        .await
    }

    /// Commits these writes, and retries until they are in: preparations must not fail a scenario that tests
    /// something else. Returns the commit version.
    pub(crate) async fn write(&self, writes: impl Fn(&Tx)) -> Result<i64> {
        let tx = self.tx();
        loop {
            writes(&tx);
            match tx.commit().await {
                Ok(()) => return tx.committed_version(),
                Err(error) => tx.on_error(error).await?,
            }
        }
    }

    /// The value of a key, in a transaction of its own.
    pub(crate) async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.tx().get(key).await
    }

    /// All rows of the subspace, as text.
    pub(crate) async fn contents(&self) -> Result<String> {
        let tx = self.tx();
        let mut rows = Vec::new();
        let mut next = Some(RangeRequest::keys("", "\u{7f}"));
        while let Some(request) = next {
            let batch = tx.batch(&request, Read::Snapshot).await?;
            next = request.after(&batch);
            rows.extend(batch.rows);
        }
        Ok(show(&rows))
    }

    /// Lets this much of the engine's time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        pass(self.clock.as_ref(), time).await;
    }

    /// Makes every version so far too old to be read. Commits afterwards, since a cluster moves its window only
    /// with a commit.
    pub(crate) async fn outlive_the_window(&self) -> Result<()> {
        let window = self.limits().read_window;
        for _ in 0..2 {
            self.pass(window / 2 + Duration::from_millis(500)).await;
            self.put(&[("(clock)", "")]).await?;
        }
        self.write(|tx| tx.clear("(clock)")).await?;
        Ok(())
    }

    /// Those keys in `candidates` (one letter each) whose writes by another transaction make a transaction with
    /// these `reads` fail with 1020. The rows of `seed` are written before each try.
    pub(crate) async fn conflicts(
        &self,
        seed: &[(&str, &str)],
        candidates: &str,
        reads: impl AsyncFn(&Tx) -> Result<()>,
    ) -> Result<String> {
        let reader = async |candidate: &str| {
            let tx = self.tx();
            tx.raw.get_read_version().await?;
            reads(&tx).await?;
            self.put(&[(candidate, "written by another")]).await?;
            Ok(tx)
        };
        self.refused(seed, candidates, reader).await
    }

    /// Those keys in `candidates` whose readers fail with 1020 when another transaction commits `writes`. The rows
    /// of `seed` are written before each try.
    pub(crate) async fn conflicts_of_writes(
        &self,
        seed: &[(&str, &str)],
        candidates: &str,
        writes: impl AsyncFn(&Tx) -> Result<()>,
    ) -> Result<String> {
        let reader = async |candidate: &str| {
            let reader = self.tx();
            reader.get(candidate).await?;
            let writer = self.tx();
            writes(&writer).await?;
            writer.commit().await?;
            Ok(reader)
        };
        self.refused(seed, candidates, reader).await
    }

    /// Those keys in `candidates` for which the commit of the transaction from `reader` fails with 1020. The rows of
    /// `seed` are written before each try.
    async fn refused(
        &self,
        seed: &[(&str, &str)],
        candidates: &str,
        reader: impl AsyncFn(&str) -> Result<Tx>,
    ) -> Result<String> {
        let mut refused = String::new();
        for candidate in candidates.chars() {
            self.write(|tx| {
                tx.clear_range("", "\x7f");
                seed.iter().for_each(|(key, value)| tx.set(key, value));
            })
            .await?;
            let tx = reader(&candidate.to_string()).await?;
            tx.set("~own", "");
            match tx.commit().await {
                Ok(()) => {}
                Err(error) if error.code() == NOT_COMMITTED => refused.push(candidate),
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    /// Runs `work` on this many real threads. Returns their results in the order of their numbers.
    pub(crate) fn threads<T, F>(&self, count: usize, work: impl Fn(Space, usize) -> F + Send + Sync) -> Result<Vec<T>>
    where
        T: Send,
        F: Future<Output = Result<T>>,
    {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
                .map(|number| {
                    let space = self.clone();
                    scope.spawn(move || block_on(work(space, number)))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}

/// The future's output, if it completes in time.
pub(crate) async fn within<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(time, future).await.ok()
}

/// A transaction whose keys lie in the scenario's subspace.
#[derive(Clone, Debug)]
pub struct Tx {
    pub(crate) raw: AnyTransaction,
    subspace: Bytes,
}

impl Tx {
    fn key(&self, key: impl AsRef<[u8]>) -> Vec<u8> {
        [&self.subspace, key.as_ref()].concat()
    }

    fn strip(subspace: &Bytes, key: Bytes) -> Bytes {
        if key.starts_with(subspace) { key.slice(subspace.len()..) } else { key }
    }

    fn selector(&self, selector: &KeySelector) -> KeySelector {
        KeySelector { key: self.key(&selector.key).into(), or_equal: selector.or_equal, offset: selector.offset }
    }

    /// A serializable read.
    pub(crate) fn get(&self, key: impl AsRef<[u8]>) -> BoxFuture<Result<Option<Bytes>>> {
        self.raw.get(&self.key(key), Read::Serializable)
    }

    /// A snapshot read.
    pub(crate) fn peek(&self, key: impl AsRef<[u8]>) -> BoxFuture<Result<Option<Bytes>>> {
        self.raw.get(&self.key(key), Read::Snapshot)
    }

    /// The key that a selector resolves to, without the subspace if it is inside.
    pub(crate) fn get_key(&self, selector: &KeySelector, read: Read) -> BoxFuture<Result<Bytes>> {
        let key = self.raw.get_key(&self.selector(selector), read);
        let subspace = self.subspace.clone();
        Box::pin(async move { Ok(Self::strip(&subspace, key.await?)) })
    }

    /// The first batch of a range.
    pub(crate) fn batch(&self, request: &RangeRequest, read: Read) -> BoxFuture<Result<RangeBatch>> {
        let request =
            RangeRequest { begin: self.selector(&request.begin), end: self.selector(&request.end), ..request.clone() };
        let batch = self.raw.get_range(&request, read);
        let subspace = self.subspace.clone();
        Box::pin(async move {
            let RangeBatch { rows, more } = batch.await?;
            let strip = |row: KeyValue| KeyValue { key: Self::strip(&subspace, row.key), value: row.value };
            Ok(RangeBatch { rows: rows.into_iter().map(strip).collect(), more })
        })
    }

    /// A range as text, serializable.
    pub(crate) async fn rows(&self, request: RangeRequest) -> Result<String> {
        self.rows_by(request, Read::Serializable).await
    }

    /// A range as text. Reads the first batch if the request limits it, else all batches, since an engine may end a
    /// batch anywhere. (FoundationDB's client ends one where it knows less about the next rows than about the previous
    /// ones, for example between own writes.)
    pub(crate) async fn rows_by(&self, request: RangeRequest, read: Read) -> Result<String> {
        let bounded = request.limit > 0 || request.target_bytes > 0;
        let mut rows = Vec::new();
        let mut next = Some(request);
        while let Some(request) = next {
            let batch = self.batch(&request, read).await?;
            next = if bounded { None } else { request.after(&batch) };
            rows.extend(batch.rows);
        }
        Ok(show(&rows))
    }

    pub(crate) fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.raw.set(self.key(key), value.as_ref());
    }

    pub(crate) fn clear(&self, key: impl AsRef<[u8]>) {
        self.raw.clear(&self.key(key));
    }

    pub(crate) fn clear_range(&self, begin: impl AsRef<[u8]>, end: impl AsRef<[u8]>) {
        self.raw.clear_range(&self.key(begin), &self.key(end));
    }

    /// An atomic operation, except a versionstamped key.
    pub(crate) fn atomic(&self, mutation: MutationType, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        self.raw.atomic_op(mutation, self.key(key), operand.as_ref());
    }

    /// Sets the key made of `before`, the stamp and `after` to `value`.
    pub(crate) fn set_stamped_key(&self, before: impl AsRef<[u8]>, after: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let mut key = self.key(before);
        let offset = key.len() as u32;
        key.extend_from_slice(Versionstamp::PENDING.as_bytes());
        key.extend_from_slice(after.as_ref());
        key.extend_from_slice(&offset.to_le_bytes());
        self.raw.atomic_op(MutationType::SetVersionstampedKey, &key, value.as_ref());
    }

    /// Sets a versionstamped key as given, with subspace and offset.
    pub(crate) fn raw_stamped_key(&self, key: &[u8], value: impl AsRef<[u8]>) {
        self.raw.atomic_op(MutationType::SetVersionstampedKey, key, value.as_ref());
    }

    /// Sets `key` to `before`, the stamp and `after`.
    pub(crate) fn set_stamped_value(&self, key: impl AsRef<[u8]>, before: impl AsRef<[u8]>, after: impl AsRef<[u8]>) {
        let operand = stamped_operand(before, after);
        self.raw.atomic_op(MutationType::SetVersionstampedValue, self.key(key), &operand);
    }

    pub(crate) fn read_conflict(&self, begin: impl AsRef<[u8]>, end: impl AsRef<[u8]>) {
        self.raw.add_conflict_range(&self.key(begin), &self.key(end), ConflictRange::Read);
    }

    pub(crate) fn write_conflict(&self, begin: impl AsRef<[u8]>, end: impl AsRef<[u8]>) {
        self.raw.add_conflict_range(&self.key(begin), &self.key(end), ConflictRange::Write);
    }

    pub(crate) fn watch(&self, key: impl AsRef<[u8]>) -> BoxFuture<Result<()>> {
        self.raw.watch(&self.key(key))
    }

    pub(crate) fn option(&self, option: TransactionOption) {
        self.raw.set_option(option);
    }

    pub(crate) fn read_version(&self) -> BoxFuture<Result<i64>> {
        self.raw.get_read_version()
    }

    pub(crate) fn set_read_version(&self, version: i64) {
        self.raw.set_read_version(version);
    }

    pub(crate) async fn size(&self) -> Result<u64> {
        self.raw.get_approximate_size().await
    }

    pub(crate) fn versionstamp(&self) -> BoxFuture<Result<Versionstamp>> {
        self.raw.get_versionstamp()
    }

    pub(crate) async fn commit(&self) -> Result<()> {
        self.raw.commit().await
    }

    pub(crate) fn committed_version(&self) -> Result<i64> {
        self.raw.get_committed_version()
    }

    pub(crate) async fn on_error(&self, error: impl Into<Error>) -> Result<()> {
        self.raw.on_error(error.into()).await
    }

    pub(crate) fn reset(&self) {
        self.raw.reset();
    }

    pub(crate) fn cancel(&self) {
        self.raw.cancel();
    }
}

/// Operand of a versionstamped value: `before`, room for the stamp, `after`, and the offset.
pub(crate) fn stamped_operand(before: impl AsRef<[u8]>, after: impl AsRef<[u8]>) -> Vec<u8> {
    let (before, after) = (before.as_ref(), after.as_ref());
    [before, Versionstamp::PENDING.as_bytes(), after, &(before.len() as u32).to_le_bytes()].concat()
}
