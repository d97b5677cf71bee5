//! The transaction: every method of the trait is a call of the native one.

use std::fmt;
use std::future::{Future, ready};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foundationdb::options::TransactionOption as Native;
use foundationdb::{Database as NativeDatabase, FdbError, FdbResult, Transaction as NativeTransaction};
use futures_timer::Delay;
use futures_util::future::Either;
use kv_api::{
    ConflictRange, Error, IntoBytes, KeySelector, KeyValue, MutationType, RangeBatch, RangeRequest, Read, Result,
    Transaction, TransactionOption, Versionstamp, error,
};
use parking_lot::{Mutex, MutexGuard};

use crate::convert::{self, kv_error};
use crate::kept::Kept;
use crate::slot::Slot;

/// A transaction on a FoundationDB cluster.
/// Dropping the future of a commit abandons the commit, whose outcome is then unknown. The transaction fails with
/// 2017 until it is reset. [`cancel`](Transaction::cancel) does not stop a commit in progress: drop its future
/// instead.
#[derive(Clone)]
pub struct FdbTransaction {
    shared: Arc<SharedTransaction>,
}

struct SharedTransaction {
    database: Arc<NativeDatabase>,
    background: Option<Background>,
    tags: bool,
    state: Mutex<State>,
}

/// What the transactions of a handle for work in the background have from their start and from each reset on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Background {
    /// Their timeout; zero for none.
    pub(crate) timeout: Duration,
}

impl Background {
    /// Sets the options of a new transaction, or of one that was reset. The caller notes the timeout.
    fn begin(self, native: &NativeTransaction) {
        self.repeat(native);
        // The client accepts any timeout.
        let _ = native.set_option(Native::Timeout(convert::milliseconds(self.timeout)));
    }

    /// Sets the option that the client forgets when it repeats a transaction.
    fn repeat(self, native: &NativeTransaction) {
        // The client accepts it at any time.
        let _ = native.set_option(Native::PriorityBatch);
    }
}

struct State {
    slot: Slot,
    /// The first error that the native client returns at once and the trait reports later.
    deferred: Option<Error>,
    kept: Kept,
    /// Whether this attempt has its tag.
    is_tagged: bool,
}

impl FdbTransaction {
    pub(crate) fn begin(database: Arc<NativeDatabase>, background: Option<Background>, tags: bool) -> Result<Self> {
        let native = database.create_trx().map_err(kv_error)?;
        let kept = Self::begun(background, &native);
        let state = Mutex::new(State { slot: Slot::Live(native), deferred: None, kept, is_tagged: false });
        Ok(FdbTransaction { shared: Arc::new(SharedTransaction { database, background, tags, state }) })
    }

    /// Gives a new transaction, or one that was reset, the options of its handle. Returns those that persist.
    fn begun(background: Option<Background>, native: &NativeTransaction) -> Kept {
        let mut kept = Kept::new();
        if let Some(background) = background {
            background.begin(native);
            kept.note(TransactionOption::Timeout(background.timeout));
        }
        kept
    }

    /// Gives access to the crate's transaction, for operations outside the trait.
    ///
    /// # Errors
    ///
    /// 2017 during and after a commit, 1025 after a cancel.
    pub fn native<T>(&self, use_it: impl FnOnce(&NativeTransaction) -> T) -> Result<T> {
        self.state().slot.live().map(use_it)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Issues a read now. [`answer`] waits for it.
    fn issue<F>(&self, read: impl FnOnce(&NativeTransaction) -> F) -> Result<F> {
        let state = self.state();
        match &state.deferred {
            Some(error) => Err(error.clone()),
            None => state.slot.live().map(read),
        }
    }

    /// Makes a write now. Its error is kept for the next read or commit.
    fn write(&self, write: impl FnOnce(&NativeTransaction) -> FdbResult<()>) {
        let mut state = self.state();
        let outcome = state.slot.live().and_then(|native| write(native).map_err(kv_error));
        if let Err(error) = outcome {
            state.deferred.get_or_insert(error);
        }
    }

    /// Waits until the cluster may have room for work in the background, and begins the transaction again.
    fn starved(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<> {
        let mut state = self.state();
        let native = match state.slot.take() {
            Slot::Live(native) => Ok(native),
            // After a timeout it stays timed out.
            Slot::Failed(failed) if failed.code() == error::TRANSACTION_TIMED_OUT => {
                state.slot = Slot::Failed(failed);
                Err(Error::new(error::TRANSACTION_TIMED_OUT))
            }
            Slot::Failed(failed) => Ok(failed.reset()),
            Slot::Committed(committed) => Ok(committed.reset()),
            Slot::Cancelled(cancelled) => {
                state.slot = Slot::Cancelled(cancelled);
                Err(Error::new(error::TRANSACTION_CANCELLED))
            }
            Slot::Away => Err(error),
        };
        drop(state);
        let this = self.clone();
        async move {
            let mut native = native?;
            // Many transactions may wait, and should not come back together.
            let jitter = RandomState::new().build_hasher().finish() % 1_000;
            Delay::new(Duration::from_millis(500 + jitter)).await;
            // Only now: the client measures a timeout from the reset.
            native.reset();
            let mut state = this.state();
            state.kept.starved();
            state.kept.restore(&native);
            if let Some(background) = this.shared.background {
                background.repeat(&native);
            }
            state.slot = Slot::Live(native);
            state.deferred = None;
            state.is_tagged = false;
            Ok(())
        }
    }

    fn defer(&self, code: i32) {
        self.state().deferred.get_or_insert(Error::new(code));
    }
}

/// Waits for an issued read. An error of the call becomes the answer.
async fn answer<F, A, B>(issued: Result<F>, convert: impl FnOnce(A) -> Result<B>) -> Result<B>
where
    F: Future<Output = FdbResult<A>>,
{
    convert(issued?.await.map_err(kv_error)?)
}

/// The client counts lengths in 32 bits, and the crate panics above that. Every limit is far below.
const LONGEST: usize = i32::MAX as usize;

impl Transaction for FdbTransaction {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        answer(self.issue(|native| native.get_read_version()), Ok)
    }

    fn set_read_version(&self, version: i64) {
        self.write(|native| {
            native.set_read_version(version);
            Ok(())
        });
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        if key.len() > LONGEST {
            return Either::Left(ready(Err(Error::new(error::KEY_TOO_LARGE))));
        }
        Either::Right(answer(self.issue(|native| native.get(key, read == Read::Snapshot)), |value| {
            Ok(value.map(|value| Bytes::copy_from_slice(&value)))
        }))
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        answer(self.issue(|native| native.get_key(&convert::selector(selector), read == Read::Snapshot)), |key| {
            Ok(Bytes::copy_from_slice(&key))
        })
    }

    fn get_range(&self, request: &RangeRequest, read: Read) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        answer(self.issue(|native| native.get_range(&convert::range(request), 1, read == Read::Snapshot)), |values| {
            let rows = values.iter().map(|row| KeyValue {
                key: Bytes::copy_from_slice(row.key()),
                value: Bytes::copy_from_slice(row.value()),
            });
            Ok(RangeBatch { rows: rows.collect(), more: values.more() })
        })
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        let (key, value) = (key.as_ref(), value.as_ref());
        if key.len() > LONGEST {
            return self.defer(error::KEY_TOO_LARGE);
        }
        if value.len() > LONGEST {
            return self.defer(error::VALUE_TOO_LARGE);
        }
        self.write(|native| {
            native.set(key, value);
            Ok(())
        });
    }

    fn clear(&self, key: &[u8]) {
        if key.len() > LONGEST {
            return self.defer(error::KEY_TOO_LARGE);
        }
        self.write(|native| {
            native.clear(key);
            Ok(())
        });
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        if begin.len() > LONGEST || end.len() > LONGEST {
            return self.defer(error::KEY_TOO_LARGE);
        }
        self.write(|native| {
            native.clear_range(begin, end);
            Ok(())
        });
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        if key.len() > LONGEST {
            return self.defer(error::KEY_TOO_LARGE);
        }
        if operand.len() > LONGEST {
            return self.defer(error::VALUE_TOO_LARGE);
        }
        self.write(|native| {
            native.atomic_op(key, operand, convert::mutation(mutation));
            Ok(())
        });
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        if begin.len() > LONGEST || end.len() > LONGEST {
            return self.defer(error::KEY_TOO_LARGE);
        }
        self.write(|native| native.add_conflict_range(begin, end, convert::conflict_range(side)));
    }

    fn set_option(&self, option: TransactionOption) {
        // The client allows five tags and fails above that (2109). An edit of several databases has the first one's.
        if matches!(option, TransactionOption::Tag(_))
            && (!self.shared.tags || std::mem::replace(&mut self.state().is_tagged, true))
        {
            return;
        }
        match convert::option(option) {
            Some(native_option) => {
                self.write(|native| native.set_option(native_option));
                self.state().kept.note(option);
            }
            None => self.defer(error::INVALID_OPTION),
        }
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<> {
        answer(self.issue(|native| native.get_approximate_size()), |bytes| Ok(u64::try_from(bytes).unwrap_or(0)))
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> impl Future<Output = Result<u64>> + Send + use<> {
        answer(self.issue(|native| native.get_estimated_range_size_bytes(begin, end)), |bytes| {
            Ok(u64::try_from(bytes).unwrap_or(0))
        })
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<> {
        let chunk_bytes = i64::try_from(chunk_bytes).unwrap_or(i64::MAX);
        answer(self.issue(|native| native.get_range_split_points(begin, end, chunk_bytes)), |points| {
            Ok(points.iter().map(|point| Bytes::copy_from_slice(point.key())).collect())
        })
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        answer(self.issue(|native| native.get_versionstamp()), |stamp| {
            let bytes = stamp.as_ref().try_into().map_err(|_| Error::new(error::INTERNAL_ERROR))?;
            Ok(Versionstamp::from_bytes(bytes))
        })
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        answer(self.issue(|native| native.watch(key)), Ok)
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let mut state = self.state();
        let begun = match (state.deferred.clone(), state.slot.take()) {
            (None, Slot::Live(native)) => Ok(native.commit()),
            (deferred, slot) => {
                let error = deferred.or(slot.live().err());
                state.slot = slot;
                Err(error.unwrap_or(Error::new(error::USED_DURING_COMMIT)))
            }
        };
        drop(state);
        let this = self.clone();
        async move {
            let (slot, outcome) = match begun?.await {
                Ok(committed) => (Slot::Committed(committed), Ok(())),
                Err(failed) => {
                    let error = kv_error(*failed);
                    (Slot::Failed(failed), Err(error))
                }
            };
            this.state().slot = slot;
            outcome
        }
    }

    fn get_committed_version(&self) -> Result<i64> {
        match &self.state().slot {
            Slot::Committed(committed) => committed.committed_version().map_err(kv_error),
            Slot::Live(_) | Slot::Away | Slot::Failed(_) | Slot::Cancelled(_) => {
                Err(Error::new(error::CLIENT_INVALID_OPERATION).with_context("the transaction has not committed"))
            }
        }
    }

    /// In the background, 1051 says that the cluster has no room now. The transaction waits and begins again, as often as
    /// that is the answer: it counts neither as a retry nor against the timeout.
    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<> {
        if self.shared.background.is_some() && error.code() == error::BATCH_TRANSACTION_THROTTLED {
            return Either::Left(self.starved(error));
        }
        let code = FdbError::from_code(error.code());
        let mut state = self.state();
        let again = |native: NativeTransaction, kept: &Kept| {
            kept.restore(&native);
            Ok(Either::Left(native.on_error(code)))
        };
        let decided = match state.slot.take() {
            Slot::Live(native) => Ok(Either::Left(native.on_error(code))),
            // A failed commit has its own error, which the caller passes back, as a runner does. After a timeout
            // it stays timed out, whatever error is passed.
            Slot::Failed(failed) if [error.code(), error::TRANSACTION_TIMED_OUT].contains(&failed.code()) => {
                Ok(Either::Right(failed.on_error()))
            }
            Slot::Failed(failed) => again(failed.reset(), &state.kept),
            Slot::Committed(committed) => again(committed.reset(), &state.kept),
            Slot::Cancelled(cancelled) => {
                state.slot = Slot::Cancelled(cancelled);
                Err(Error::new(error::TRANSACTION_CANCELLED))
            }
            Slot::Away => Err(error.clone()),
        };
        drop(state);
        let this = self.clone();
        Either::Right(async move {
            match decided?.await {
                Ok(native) => {
                    if let Some(background) = this.shared.background {
                        background.repeat(&native);
                    }
                    let mut state = this.state();
                    state.slot = Slot::Live(native);
                    state.deferred = None;
                    state.is_tagged = false;
                    state.kept.retried();
                    Ok(())
                }
                Err(given_back) => {
                    // The crate has dropped the transaction. A new one stands for the cancelled one.
                    if let Ok(native) = this.shared.database.create_trx() {
                        this.state().slot = Slot::Cancelled(native.cancel());
                    }
                    // The same error with the engine's context, if the client returned the same code.
                    Err(if given_back.code() == error.code() { error } else { kv_error(given_back) })
                }
            }
        })
    }

    fn reset(&self) {
        let mut state = self.state();
        state.deferred = None;
        state.is_tagged = false;
        let native = match state.slot.take() {
            Slot::Live(mut native) => {
                native.reset();
                Ok(native)
            }
            Slot::Committed(committed) => Ok(committed.reset()),
            Slot::Failed(failed) => Ok(failed.reset()),
            Slot::Cancelled(cancelled) => Ok(cancelled.reset()),
            Slot::Away => self.shared.database.create_trx().map_err(kv_error),
        };
        match native {
            Ok(native) => {
                state.kept = Self::begun(self.shared.background, &native);
                state.slot = Slot::Live(native);
            }
            Err(error) => state.deferred = Some(error),
        }
    }

    fn cancel(&self) {
        let mut state = self.state();
        state.slot = match state.slot.take() {
            Slot::Live(native) => Slot::Cancelled(native.cancel()),
            Slot::Committed(committed) => Slot::Cancelled(committed.reset().cancel()),
            Slot::Failed(failed) => Slot::Cancelled(failed.reset().cancel()),
            other => other,
        };
    }
}

impl fmt::Debug for FdbTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FdbTransaction").finish_non_exhaustive()
    }
}
