//! What a transaction has done so far.
//!
//! The life of a transaction, and the error of every operation in each state:
//!
//! ```text
//!   active ── commit() ──► committing, committed    2017, and a commit in progress fails with it
//!     │  ▲                     │
//!     │  └── reset, on_error ──┘
//!     ├── cancel() ──► cancelled                    1025, until reset
//!     └── time passes ──► timed out                 1031, until reset
//! ```
//!
//! A wrong write is remembered, and surfaces at the next read or at the commit. Writes after it are ignored, as
//! with FoundationDB's deferred errors.
//!
//! Source: FoundationDB's `ReadYourWrites.actor.cpp` (`checkUsedDuringCommit`, `resetPromise`, `resetRyow`) and
//! `ThreadSafeTransaction.cpp` (deferred errors).

mod writes;

use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use kv_api::keys::SYSTEM_BEGIN;
use kv_api::{Error, Read, Result, TransactionOption, Versionstamp, error};

use super::options::{Options, Persistent};
use super::overlay::Overlay;
use super::read_conflicts::ReadConflicts;
use super::size;
use super::write_map::{Known, WriteMap};
use crate::KeyRange;
use crate::commit::{Request, Ticket};
use crate::database::core::Core;
use crate::store::Store;
use crate::sync::{Arc, Promise};
use crate::watches::Watch;
use crate::window::Hold;

/// Longest first pause of `on_error`. A hundredth of FoundationDB's, since a commit takes a hundredth of the time.
const FIRST_BACKOFF: Duration = Duration::from_micros(500);

/// The end of the system's keys.
const SYSTEM_END: &[u8] = b"\xff\xff";

/// Bytes by which a key may exceed the limit, in reads and clears (FoundationDB leaves room for a tenant's
/// prefix). Longer keys do not exist: reads of them find nothing, and the ends of ranges are cut.
const KEY_SLACK: usize = 8;

/// See the [module](self).
pub(crate) struct TransactionState<S: Store> {
    pub(crate) writes: WriteMap,
    read_conflicts: ReadConflicts,
    /// The read version.
    version: Option<i64>,
    hold: Option<Hold<S::Snapshot>>,
    pub(crate) options: Options,
    persistent: Persistent,
    born: Duration,
    retries: u32,
    backoff: Duration,
    approximate_size: usize,
    /// The error of the first wrong write.
    deferred: Option<Error>,
    /// The first read that failed in the store or met a pending versionstamp. The commit fails with it too,
    /// since a commit waits for the reads.
    failed_read: Option<Error>,
    /// Why every operation fails, until reset.
    ended: Option<Error>,
    commit_started: bool,
    read_started: bool,
    /// The commit in progress, or done.
    pub(crate) ticket: Option<Arc<Ticket>>,
    pub(crate) committed: Option<i64>,
    /// Wakes the committer after a cancellation.
    pub(crate) commit_waker: Option<Waker>,
    stamp: Arc<Promise<Result<Versionstamp>>>,
    watches: Vec<Arc<Watch>>,
}

impl<S: Store> TransactionState<S> {
    pub(crate) fn new(core: &Core<S>) -> Self {
        TransactionState {
            writes: WriteMap::new(core.limits.value_bytes),
            read_conflicts: ReadConflicts::default(),
            version: None,
            hold: None,
            options: Options::new(core.limits.transaction_bytes),
            persistent: Persistent::default(),
            born: core.clock.now(),
            retries: 0,
            backoff: FIRST_BACKOFF,
            approximate_size: 0,
            deferred: None,
            failed_read: None,
            ended: None,
            commit_started: false,
            read_started: false,
            ticket: None,
            committed: None,
            commit_waker: None,
            stamp: Arc::default(),
            watches: Vec::new(),
        }
    }

    // ---- life ----

    /// Ends the transaction with `error` until it is reset. Does nothing if it has ended already.
    pub(crate) fn end(&mut self, error: Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        self.hold = None;
        if let Some(waker) = self.commit_waker.take() {
            waker.wake();
        }
        if self.ticket.is_none() {
            self.stamp.resolve(Err(error.clone()));
            for watch in self.watches.drain(..) {
                watch.finish(Err(error.clone()));
            }
        }
    }

    /// The clock time at which the transaction times out.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (!self.persistent.timeout.is_zero()).then(|| self.born.saturating_add(self.persistent.timeout))
    }

    fn check_time(&mut self, core: &Core<S>) {
        if let Some(deadline) = self.deadline()
            && core.clock.now() >= deadline
        {
            self.end(Error::new(error::TRANSACTION_TIMED_OUT));
        }
    }

    /// Fails if the transaction has ended or is committing.
    fn check_usable(&mut self, core: &Core<S>) -> Result<()> {
        self.check_time(core);
        if self.commit_started {
            // A use during the commit is a mistake of the caller. The commit fails too.
            self.end(Error::new(error::USED_DURING_COMMIT));
            return Err(Error::new(error::USED_DURING_COMMIT));
        }
        match &self.ended {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Fails if no read or commit may follow. A wrong write surfaces here.
    fn check(&mut self, core: &Core<S>) -> Result<()> {
        if let Some(error) = &self.deferred {
            return Err(error.clone());
        }
        self.check_usable(core)?;
        core.check_open()
    }

    /// The error with which the transaction has ended.
    pub(crate) fn ended(&mut self, core: &Core<S>) -> Option<Error> {
        self.check_time(core);
        self.ended.clone()
    }

    /// Forgets everything but the persistent options and the count of retries.
    pub(crate) fn reset_attempt(&mut self, core: &Core<S>) {
        let stamp = std::mem::take(&mut self.stamp);
        let cancelled = Error::new(error::TRANSACTION_CANCELLED);
        if self.ticket.take().is_none() {
            stamp.resolve(Err(cancelled.clone()));
        }
        for watch in self.watches.drain(..) {
            watch.finish(Err(cancelled.clone()));
        }
        self.writes = WriteMap::new(core.limits.value_bytes);
        self.read_conflicts.clear();
        self.version = None;
        self.hold = None;
        self.options = Options::new(core.limits.transaction_bytes);
        self.approximate_size = 0;
        self.deferred = None;
        self.failed_read = None;
        self.ended = None;
        self.commit_started = false;
        self.read_started = false;
        if let Some(waker) = self.commit_waker.take() {
            waker.wake();
        }
    }

    /// Resets everything.
    pub(crate) fn reset(&mut self, core: &Core<S>) {
        self.reset_attempt(core);
        self.persistent = Persistent::default();
        self.born = core.clock.now();
        self.retries = 0;
        self.backoff = FIRST_BACKOFF;
        self.committed = None;
    }

    /// The decision of `on_error`: the pause before the next attempt, or the error to return.
    pub(crate) fn consider(&mut self, core: &Core<S>, error: Error) -> Result<Duration> {
        self.check_time(core);
        if let Some(ended) = &self.ended {
            return Err(ended.clone());
        }
        let exhausted = self.persistent.retry_limit.is_some_and(|limit| self.retries >= limit);
        self.retries = self.retries.saturating_add(1);
        if exhausted || !error.is_retryable() {
            // A transaction that failed for good must be reset before it is used again.
            self.end(Error::new(error::TRANSACTION_CANCELLED));
            return Err(error);
        }
        let longest = self.persistent.max_retry_delay;
        if matches!(error.code(), error::TRANSACTION_TOO_OLD | error::FUTURE_VERSION) {
            return Ok(Duration::from_millis(10).min(longest));
        }
        let pause = core.jittered(self.backoff.min(longest));
        self.backoff = (self.backoff * 2).min(longest);
        Ok(pause)
    }

    // ---- options and bookkeeping ----

    fn defer(&mut self, core: &Core<S>, write: impl FnOnce(&mut Self) -> Result<()>) {
        if self.deferred.is_some() {
            return;
        }
        let outcome = match self.check_usable(core) {
            Ok(()) => write(self),
            // The transaction has ended, and every operation will say so.
            Err(_) => return,
        };
        if let Err(error) = outcome {
            self.deferred = Some(error);
        }
    }

    pub(crate) fn set_option(&mut self, core: &Core<S>, option: TransactionOption) {
        if self.deferred.is_some() {
            return;
        }
        let touched = self.read_started || !self.writes.is_empty();
        let (options, persistent) = (&mut self.options, &mut self.persistent);
        if let Err(error) = options.set(persistent, option, touched, core.limits.transaction_bytes) {
            self.deferred = Some(error);
        }
        self.backoff = self.backoff.min(self.persistent.max_retry_delay);
    }

    fn max_read_key(&self) -> &'static [u8] {
        if self.options.read_system_keys { SYSTEM_END } else { SYSTEM_BEGIN }
    }

    pub(crate) fn approximate_size(&mut self, core: &Core<S>) -> Result<u64> {
        self.check(core)?;
        Ok(self.approximate_size as u64)
    }

    pub(crate) fn stamp(&mut self, core: &Core<S>) -> Result<Arc<Promise<Result<Versionstamp>>>> {
        self.check_usable(core)?;
        Ok(self.stamp.clone())
    }

    // ---- reading ----

    pub(crate) fn read_version(&mut self, core: &Core<S>) -> Result<i64> {
        self.check(core)?;
        Ok(self.version_to_read(core))
    }

    /// The read version, fetched at the first call.
    fn version_to_read(&mut self, core: &Core<S>) -> i64 {
        if let Some(version) = self.version {
            return version;
        }
        let (version, _, hold) = core.newest();
        (self.version, self.hold) = (Some(version), Some(hold));
        version
    }

    pub(crate) fn set_read_version(&mut self, core: &Core<S>, version: i64) {
        self.defer(core, |state| {
            if state.version.is_some() {
                return Err(Error::new(error::READ_VERSION_ALREADY_SET));
            }
            if version <= 0 {
                return Err(Error::new(error::VERSION_INVALID));
            }
            state.version = Some(version);
            Ok(())
        });
    }

    /// Begins a read: checks that the transaction is usable and returns the end of the readable keys.
    pub(crate) fn check_read(&mut self, core: &Core<S>) -> Result<&'static [u8]> {
        self.check(core)?;
        self.read_started = true;
        Ok(self.max_read_key())
    }

    /// Remembers the failure of a read for the commit.
    pub(crate) fn note_failure<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome {
            self.failed_read.get_or_insert_with(|| error.clone());
        }
        outcome
    }

    /// Whether a read sees the transaction's writes.
    fn sees_writes(&self, read: Read) -> bool {
        !self.options.ryw_disabled && (read == Read::Serializable || self.options.snapshot_ryw > 0)
    }

    /// The value of a key that this transaction set or cleared by itself. Such a read needs neither the store
    /// nor a read version, and adds no conflict (`RYWImpl::read`, for `GetValueReq`).
    fn own_value(&self, key: &[u8], read: Read) -> Result<Option<Option<Bytes>>> {
        if !self.sees_writes(read) {
            return Ok(None);
        }
        match self.writes.known(key, self.options.bypass_unreadable)? {
            Known::Independent(stack) => {
                Ok(Some(stack.and_then(|stack| stack.value_over(None, self.writes.value_limit()))))
            }
            Known::Dependent(_) | Known::Unmodified => Ok(None),
        }
    }

    /// The store at the read version; 1007 if that is too old.
    fn snapshot(&mut self, core: &Core<S>) -> Result<Arc<S::Snapshot>> {
        let Some(version) = self.version else {
            let (version, snapshot, hold) = core.newest();
            (self.version, self.hold) = (Some(version), Some(hold));
            return Ok(snapshot);
        };
        if let Some(snapshot) = self.hold.as_ref().filter(|_| core.is_young(version)).and_then(Hold::snapshot) {
            return Ok(snapshot);
        }
        let found = core.snapshot_at(version);
        let (snapshot, hold) = found.inspect_err(|_| self.hold = None)?;
        self.hold = Some(hold);
        Ok(snapshot)
    }

    /// The store at the read version, under the transaction's writes if `read` sees them.
    pub(crate) fn overlay(&mut self, core: &Core<S>, read: Read) -> Result<Overlay<'_, S::Snapshot>> {
        Ok(Overlay {
            snapshot: self.snapshot(core)?,
            writes: self.sees_writes(read).then_some(&self.writes),
            bypass_unreadable: self.options.bypass_unreadable,
        })
    }

    /// Adds the read conflict of a range, without the parts that this transaction wrote by itself.
    pub(crate) fn add_read_conflict(&mut self, range: KeyRange) {
        if self.options.ryw_disabled {
            if !range.is_empty() {
                self.approximate_size += size::of_range(&range);
                self.read_conflicts.insert(range);
            }
            return;
        }
        let (conflicts, approximate_size) = (&mut self.read_conflicts, &mut self.approximate_size);
        self.writes.each_dependent_part(&range, |part| {
            *approximate_size += size::of_range(&range);
            conflicts.insert(part);
        });
    }

    pub(crate) fn get(&mut self, core: &Core<S>, key: &[u8], read: Read) -> Result<Option<Bytes>> {
        let max_key = self.check_read(core)?;
        if key >= max_key {
            return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
        }
        if key.len() > core.limits.key_bytes + KEY_SLACK {
            return Ok(None);
        }
        let value = self.value(core, key, read);
        self.note_failure(value)
    }

    /// The value of a key. Adds the read's conflict.
    fn value(&mut self, core: &Core<S>, key: &[u8], read: Read) -> Result<Option<Bytes>> {
        if let Some(value) = self.own_value(key, read)? {
            return Ok(value);
        }
        let value = self.overlay(core, read).and_then(|overlay| overlay.get(key))?;
        if read == Read::Serializable {
            let point = KeyRange::point(key);
            self.approximate_size += size::of_range(&point);
            self.read_conflicts.insert(point);
        }
        Ok(value)
    }

    // ---- watches ----

    pub(crate) fn watch(&mut self, core: &Core<S>, key: &[u8]) -> Result<Arc<Watch>> {
        self.check(core)?;
        if self.options.ryw_disabled {
            return Err(Error::new(error::WATCHES_DISABLED));
        }
        if key >= self.max_read_key() {
            return Err(Error::new(error::KEY_OUTSIDE_LEGAL_RANGE));
        }
        if key.len() > core.limits.key_bytes {
            return Err(Error::new(error::KEY_TOO_LARGE));
        }
        self.check_read(core)?;
        // A failure here fails the watch alone and not the commit (FoundationDB's `watch` adds only `done` to
        // what the commit waits for).
        let seen = self.value(core, key, Read::Serializable)?;
        let watch = core.watches.create(Bytes::copy_from_slice(key), seen)?;
        self.watches.push(watch.clone());
        Ok(watch)
    }

    /// Completes this transaction's watches on keys that it now writes. `value` is the new value, if it is
    /// known.
    fn trigger_watches(&mut self, writes: impl Fn(&Bytes) -> bool, value: Option<Option<&Bytes>>) {
        if self.watches.is_empty() {
            return;
        }
        self.watches.retain(|watch| {
            if !writes(&watch.key) {
                return true;
            }
            match value {
                Some(value) => watch.compare(value),
                None => watch.finish(Ok(())),
            }
            watch.outcome().peek().is_none()
        });
    }

    // ---- committing ----

    /// Begins the commit and returns the request for the pipeline. `None` for a transaction that wrote nothing:
    /// it is committed by that.
    pub(crate) fn begin_commit(&mut self, core: &Core<S>) -> Result<Option<Request>> {
        if let Err(error) = self.check(core) {
            // A commit in progress gets its own answer; this one is over.
            if self.ticket.is_none() {
                Ticket::new(std::mem::take(&mut self.watches), self.stamp.clone()).fail(error.clone());
            }
            return Err(error);
        }
        self.commit_started = true;
        // Nothing is read from now on.
        self.hold = None;
        let ticket = Arc::new(Ticket::new(std::mem::take(&mut self.watches), self.stamp.clone()));
        self.ticket = Some(ticket.clone());
        if let Some(error) = &self.failed_read {
            ticket.fail(error.clone());
            return Err(error.clone());
        }
        if self.writes.is_empty() {
            return Ok(None);
        }
        let read_conflicts = self.read_conflicts.take();
        let bytes = self.writes.commit_size() + read_conflicts.iter().map(size::of_range).sum::<usize>();
        if bytes > self.options.size_limit {
            let error = Error::new(error::TRANSACTION_TOO_LARGE);
            ticket.fail(error.clone());
            return Err(error);
        }
        let read_version = self.version_to_read(core);
        self.hold = None;
        let (mutations, write_conflicts) = self.writes.take();
        let frees_space = self.options.bypass_storage_quota;
        Ok(Some(Request { read_version, read_conflicts, write_conflicts, mutations, bytes, frees_space, ticket }))
    }
}

impl<S: Store> Drop for TransactionState<S> {
    fn drop(&mut self) {
        self.end(Error::new(error::TRANSACTION_CANCELLED));
    }
}
