//! The transaction handle: the trait of `kv-api` over a state behind a lock.
//!
//! Reads run when they are called, under the transaction's lock, and return futures that are ready: nothing is boxed or
//! spawned. Anything that waits (a commit in the queue, a watch, a versionstamp) is a promise that the committing
//! thread resolves.

mod options;
pub(crate) mod overlay;
mod range_read;
mod read_conflicts;
pub(crate) mod size;
mod state;
mod write_map;

use std::future::{Future, poll_fn, ready};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::FutureExt;
use kv_api::{
    ConflictRange, Error, IntoBytes, KeySelector, MutationType, RangeBatch, RangeRequest, Read, Result, Transaction,
    TransactionOption, Versionstamp, error,
};

use self::overlay::Overlay;
use self::range_read::selector_conflict;
use self::state::TransactionState;
use crate::commit::{Request, Ticket};
use crate::database::core::Handle;
use crate::estimate;
use crate::estimate::sample::Sample;
use crate::store::Store;
use crate::sync::{Arc, Mutex, lock};

/// A transaction of an [`OccDatabase`](crate::OccDatabase).
pub struct OccTransaction<S: Store>(Arc<Inner<S>>);

struct Inner<S: Store> {
    state: Mutex<TransactionState<S>>,
    /// Keeps the database open.
    handle: Arc<Handle<S>>,
}

impl<S: Store> Clone for OccTransaction<S> {
    fn clone(&self) -> Self {
        OccTransaction(self.0.clone())
    }
}

impl<S: Store> std::fmt::Debug for OccTransaction<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OccTransaction").finish_non_exhaustive()
    }
}

/// The ticket of a commit whose future was not polled yet. If it is dropped, the commit does not happen, and
/// the watches and the versionstamp are cancelled.
struct Unpolled(Option<Arc<Ticket>>);

impl Drop for Unpolled {
    fn drop(&mut self) {
        if let Some(ticket) = self.0.take() {
            ticket.fail(Error::new(error::TRANSACTION_CANCELLED));
        }
    }
}

impl<S: Store> OccTransaction<S> {
    pub(crate) fn new(handle: Arc<Handle<S>>) -> Self {
        let state = Mutex::new(TransactionState::new(&handle.core));
        OccTransaction(Arc::new(Inner { state, handle }))
    }

    fn with<T>(&self, act: impl FnOnce(&mut TransactionState<S>, &crate::database::core::Core<S>) -> T) -> T {
        act(&mut lock(&self.0.state), &self.0.handle.core)
    }

    fn read_key(&self, selector: &KeySelector, read: Read) -> Result<Bytes> {
        self.with(|state, core| {
            let max_key = state.check_read(core)?;
            if selector.key.as_ref() > max_key {
                return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
            }
            let resolved = state.overlay(core, read).and_then(|overlay| overlay.resolve(selector, max_key));
            let key = state.note_failure(resolved)?.key;
            if read == Read::Serializable {
                state.add_read_conflict(selector_conflict(selector, &key));
            }
            Ok(key)
        })
    }

    fn read_range(&self, request: &RangeRequest, read: Read) -> Result<RangeBatch> {
        self.with(|state, core| {
            let max_key = state.check_read(core)?;
            if request.begin.key.as_ref() > max_key || request.end.key.as_ref() > max_key {
                return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
            }
            let outcome =
                state.overlay(core, read).and_then(|overlay| range_read::read(&overlay, request, read, max_key));
            let outcome = state.note_failure(outcome)?;
            if let Some(conflict) = outcome.conflict {
                state.add_read_conflict(conflict);
            }
            Ok(outcome.batch)
        })
    }

    /// Estimates read the store alone: they ignore the transaction's writes and add no conflict.
    fn estimate<T>(
        &self,
        begin: &[u8],
        end: &[u8],
        measure: impl FnOnce(&Overlay<'_, S::Snapshot>, &Mutex<Sample>) -> Result<T>,
    ) -> Result<T> {
        self.with(|state, core| {
            let max_key = state.check_read(core)?;
            if begin > end {
                return Err(Error::new(error::INVERTED_RANGE));
            }
            if begin > max_key || end > max_key {
                return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
            }
            let (_, snapshot, _) = core.newest();
            measure(&Overlay { snapshot, writes: None, bypass_unreadable: true }, &core.sample)
        })
    }

    fn begin_commit(&self) -> Result<(Unpolled, Option<Request>)> {
        self.with(|state, core| {
            let request = state.begin_commit(core)?;
            match &state.ticket {
                Some(ticket) => Ok((Unpolled(Some(ticket.clone())), request)),
                None => Err(Error::new(error::INTERNAL_ERROR)),
            }
        })
    }

    /// Waits for the outcome, or until the transaction is cancelled or times out.
    async fn finish_commit(self, ticket: Arc<Ticket>) -> Result<()> {
        let deadline = lock(&self.0.state).deadline();
        let core = &self.0.handle.core;
        let mut timer = None;
        let outcome = poll_fn(|context| {
            if let Poll::Ready(outcome) = ticket.outcome.poll(context) {
                return Poll::Ready(outcome);
            }
            {
                let mut state = lock(&self.0.state);
                let is_ours = state.ticket.as_ref().is_some_and(|current| Arc::ptr_eq(current, &ticket));
                if !is_ours {
                    return Poll::Ready(Err(Error::new(error::TRANSACTION_CANCELLED)));
                }
                if let Some(error) = state.ended(core) {
                    return Poll::Ready(Err(error));
                }
                state.commit_waker = Some(context.waker().clone());
            }
            if let Some(deadline) = deadline {
                let timer = timer.get_or_insert_with(|| core.clock.sleep(deadline.saturating_sub(core.clock.now())));
                if timer.poll_unpin(context).is_ready() {
                    let timed_out = Error::new(error::TRANSACTION_TIMED_OUT);
                    lock(&self.0.state).end(timed_out.clone());
                    return Poll::Ready(Err(timed_out));
                }
            }
            Poll::Pending
        })
        .await;
        let mut state = lock(&self.0.state);
        if let (Ok(stamp), Some(current)) = (&outcome, &state.ticket)
            && Arc::ptr_eq(current, &ticket)
        {
            state.committed = Some(stamp.version() as i64);
        }
        outcome.map(|_| ())
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store> Transaction for OccTransaction<S> {
    fn get_read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<S> {
        ready(self.with(|state, core| state.read_version(core)))
    }

    fn set_read_version(&self, version: i64) {
        self.with(|state, core| state.set_read_version(core, version));
    }

    fn get(&self, key: &[u8], read: Read) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<S> {
        ready(self.with(|state, core| state.get(core, key, read)))
    }

    fn get_key(&self, selector: &KeySelector, read: Read) -> impl Future<Output = Result<Bytes>> + Send + use<S> {
        ready(self.read_key(selector, read))
    }

    fn get_range(
        &self,
        request: &RangeRequest,
        read: Read,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<S> {
        ready(self.read_range(request, read))
    }

    fn set(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.with(|state, core| state.set(core, key.into_bytes(), value.into_bytes()));
    }

    fn clear(&self, key: &[u8]) {
        self.with(|state, core| state.clear(core, key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.with(|state, core| state.clear_range(core, begin, end));
    }

    fn atomic_op(&self, mutation: MutationType, key: impl IntoBytes, operand: impl IntoBytes) {
        self.with(|state, core| state.atomic_op(core, mutation, key.into_bytes(), operand.into_bytes()));
    }

    fn add_conflict_range(&self, begin: &[u8], end: &[u8], side: ConflictRange) {
        self.with(|state, core| state.add_conflict_range(core, begin, end, side));
    }

    fn set_option(&self, option: TransactionOption) {
        self.with(|state, core| state.set_option(core, option));
    }

    fn get_approximate_size(&self) -> impl Future<Output = Result<u64>> + Send + use<S> {
        ready(self.with(|state, core| state.approximate_size(core)))
    }

    fn get_estimated_range_size(&self, begin: &[u8], end: &[u8]) -> impl Future<Output = Result<u64>> + Send + use<S> {
        ready(self.estimate(begin, end, |overlay, sample| estimate::range_size(overlay, sample, begin, end)))
    }

    fn get_range_split_points(
        &self,
        begin: &[u8],
        end: &[u8],
        chunk_bytes: u64,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<S> {
        ready(self.estimate(begin, end, |overlay, _| estimate::split_points(overlay, begin, end, chunk_bytes)))
    }

    fn get_versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<S> {
        let stamp = self.with(|state, core| state.stamp(core));
        async move {
            let stamp = stamp?;
            poll_fn(|context| stamp.poll(context)).await
        }
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<S> {
        let watch = self.with(|state, core| state.watch(core, key));
        async move {
            let watch = watch?;
            poll_fn(|context| watch.outcome().poll(context)).await
        }
    }

    fn commit(&self) -> impl Future<Output = Result<()>> + Send + use<S> {
        let begun = self.begin_commit();
        let transaction = self.clone();
        async move {
            let (mut unpolled, request) = begun?;
            let Some(ticket) = unpolled.0.take() else { return Err(Error::new(error::INTERNAL_ERROR)) };
            let Some(request) = request else {
                lock(&transaction.0.state).committed = Some(-1);
                transaction.0.handle.core.commit_nothing(&ticket);
                return Ok(());
            };
            transaction.0.handle.core.submit(request).await;
            transaction.finish_commit(ticket).await
        }
    }

    fn get_committed_version(&self) -> Result<i64> {
        self.with(|state, _| state.committed).ok_or_else(|| {
            Error::new(error::CLIENT_INVALID_OPERATION).with_context("the transaction has not committed")
        })
    }

    fn on_error(&self, error: Error) -> impl Future<Output = Result<()>> + Send + use<S> {
        let decision: Result<(Duration, Option<Duration>)> = self.with(|state, core| {
            let pause = state.consider(core, error)?;
            let now = core.clock.now();
            let left = state.deadline().map(|deadline| deadline.saturating_sub(now));
            Ok((pause, left.filter(|left| *left < pause)))
        });
        let transaction = self.clone();
        async move {
            let (pause, left) = decision?;
            let core = &transaction.0.handle.core;
            let pause = left.unwrap_or(pause);
            if !pause.is_zero() {
                core.clock.sleep(pause).await;
            }
            let mut state = lock(&transaction.0.state);
            if left.is_some() {
                state.end(Error::new(error::TRANSACTION_TIMED_OUT));
            }
            if let Some(error) = state.ended(core) {
                return Err(error);
            }
            state.reset_attempt(core);
            Ok(())
        }
    }

    fn reset(&self) {
        self.with(|state, core| state.reset(core));
    }

    fn cancel(&self) {
        self.with(|state, _| state.end(Error::new(error::TRANSACTION_CANCELLED)));
    }
}
