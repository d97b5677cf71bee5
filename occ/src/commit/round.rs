//! One round of the pipeline: from a list of requests to their answers.
//!
//! If the store does not know a batch's outcome, its commits get 1021 and the database closes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use kv_api::{Error, Result, Versionstamp, error};

use super::batch;
use super::request::{Request, Ticket};
use super::resolver::Resolver;
use crate::KeyRange;
use crate::database::core::Core;
use crate::faults::{self, Fault, Point};
use crate::store::{ApplyError, Batch, Snapshot, Store};
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::watches::{Touched, Watch, Watches};

impl<S: Store> Core<S> {
    /// Commits requests and answers all of them. A panic is answered 1021 and closes the database.
    pub(super) fn round(&self, requests: Vec<Request>) {
        let tickets: Vec<Arc<Ticket>> = requests.iter().map(|request| request.ticket.clone()).collect();
        if catch_unwind(AssertUnwindSafe(|| self.try_round(requests))).is_err() {
            let broken = Error::new(error::INTERNAL_ERROR).with_context("a panic during a commit closed the database");
            self.break_down(broken);
            for ticket in tickets {
                ticket.fail(Error::new(error::COMMIT_UNKNOWN_RESULT).with_context("a panic during the commit"));
            }
        }
    }

    fn try_round(&self, requests: Vec<Request>) {
        if let Err(error) = self.check_open() {
            return requests.iter().for_each(|request| request.ticket.fail(error.clone()));
        }
        let mut resolver = lock(&self.pipeline.resolver);
        let now = self.clock.now();
        let (version, oldest, newest, head) = self.with_window(|window| {
            let newest = window.newest(now);
            (window.begin_batch(now), window.oldest(now), newest, window.head().clone())
        });
        let mut batch = Batch::new(version);
        let mut accepted: Vec<(Arc<Ticket>, Versionstamp)> = Vec::with_capacity(requests.len());
        let mut refused: Vec<(Arc<Ticket>, Error)> = Vec::new();
        let room = self.store.check_room(requests.iter().map(|request| request.bytes as u64).sum());
        for (order, request) in requests.into_iter().enumerate() {
            if let (false, Err(full)) = (request.frees_space, &room) {
                refused.push((request.ticket, full.clone()));
                continue;
            }
            let read = faults::checked(self.fault, &request.read_conflicts);
            if let Err(error) = resolve(&resolver, &read, request.read_version, oldest, newest) {
                refused.push((request.ticket, error));
                continue;
            }
            let stamp = faults::versionstamp(self.fault, version, order);
            let on_conflict = |key: &Bytes| resolver.write_key(key, version);
            let value_limit = self.limits.value_bytes;
            // An atomic operation could not read its key: a damaged row must not fail its neighbours.
            if let Err(error) = batch::add(&mut batch, request.mutations, &stamp, &*head, value_limit, on_conflict) {
                refused.push((request.ticket, error));
                continue;
            }
            for range in &request.write_conflicts {
                resolver.write(range, version);
            }
            accepted.push((request.ticket, stamp));
        }
        resolver.forget_before(oldest);
        drop(resolver);
        if accepted.is_empty() {
            self.abandon(version);
        } else if let Err(error) = self.write(batch, version) {
            accepted.iter().for_each(|(ticket, _)| ticket.fail(error.clone()));
        } else {
            self.batches.sizes.observe(accepted.len() as u64);
            accepted.iter().for_each(|(ticket, stamp)| self.answer(ticket, *stamp));
        }
        refused.into_iter().for_each(|(ticket, error)| ticket.fail(error));
    }

    /// Applies and syncs a batch of the database that this one follows. Its version and its rows are the other
    /// database's; reads go by the window, whose versions go on with the clock here.
    pub(crate) fn replay(&self, batch: Batch) -> Result<()> {
        if !self.is_standby {
            let sentence = "only a database that follows another one takes its batches";
            return Err(Error::new(error::CLIENT_INVALID_OPERATION).with_context(sentence));
        }
        // One at a time.
        let _replaying = lock(&self.pipeline.resolver);
        self.check_open()?;
        self.store.check_room(batch.bytes() as u64)?;
        let now = self.clock.now();
        let version = self.with_window(|window| window.begin_replay(batch.version(), now));
        catch_unwind(AssertUnwindSafe(|| self.write(batch, version))).unwrap_or_else(|_| {
            let broken = Error::new(error::INTERNAL_ERROR).with_context("a panic during a replay closed the database");
            Err(self.lose(broken))
        })
    }

    /// Applies and syncs a batch, and makes it readable at a version. The error is the committers' answer.
    fn write(&self, mut batch: Batch, version: i64) -> Result<()> {
        let bytes = batch.bytes();
        let touched = self.watches.touched(&batch);
        let sampled = lock(&self.sample).observe(&mut batch);
        self.record_version(&mut batch);
        self.hook.reached(Point::BeforeApply);
        match self.store.apply(batch) {
            Ok(()) => {}
            Err(ApplyError::NothingApplied(error)) => {
                self.abandon(version);
                return Err(error);
            }
            Err(ApplyError::Unknown(error)) => return Err(self.lose(error)),
        }
        lock(&self.sample).apply(sampled);
        self.hook.reached(Point::AfterApply);
        let snapshot = Arc::new(self.store.snapshot().map_err(|error| self.lose(error))?);
        if faults::planted(self.fault, Fault::PublishedBeforeSync) {
            self.publish(version, &snapshot, bytes, touched.clone());
        }
        if !faults::planted(self.fault, Fault::MissingSync) {
            self.store.sync().map_err(|error| self.lose(error))?;
        }
        self.hook.reached(Point::AfterSync);
        self.batches.bytes.add(bytes as u64);
        self.publish(version, &snapshot, bytes, touched);
        Ok(())
    }

    /// Makes a batch readable and wakes the watches on its keys.
    fn publish(&self, version: i64, snapshot: &Arc<S::Snapshot>, bytes: usize, mut touched: Touched) {
        let now = self.clock.now();
        let deferred = self.with_window(|window| {
            window.publish(version, snapshot.clone(), bytes, now);
            self.watches.take_deferred()
        });
        if !faults::planted(self.fault, Fault::WatchArmedTooLate) {
            for watch in deferred.iter().filter_map(Weak::upgrade) {
                touched.entry(watch.key.clone()).or_default().push(watch);
            }
        }
        Watches::compare(touched, &**snapshot);
    }

    /// Skips a version at which nothing was committed.
    fn abandon(&self, version: i64) {
        self.with_window(|window| {
            window.abandon(version);
            self.watches.take_deferred();
        });
    }

    /// Closes the database because the state of its store is unknown. Returns the committers' answer.
    fn lose(&self, cause: Error) -> Error {
        let unknown = Error::new(error::COMMIT_UNKNOWN_RESULT).with_context(cause.to_string());
        self.break_down(cause);
        unknown
    }

    fn answer(&self, ticket: &Ticket, stamp: Versionstamp) {
        ticket.stamp.resolve(Ok(stamp));
        self.arm(&ticket.watches);
        ticket.outcome.resolve(Ok(stamp));
    }

    /// Commits a transaction that wrote nothing. It gets no version and no versionstamp.
    pub(crate) fn commit_nothing(&self, ticket: &Ticket) {
        ticket.stamp.resolve(Err(Error::new(error::NO_COMMIT_VERSION)));
        self.arm(&ticket.watches);
    }

    /// Arms the watches of a committed transaction, and completes those whose value has changed since the
    /// transaction saw it.
    fn arm(&self, watches: &Mutex<Vec<Arc<Watch>>>) {
        let watches: Vec<Arc<Watch>> = std::mem::take(&mut *lock(watches));
        if watches.is_empty() {
            return;
        }
        self.watches.arm(&watches);
        if let Err(error) = self.check_open() {
            return watches.iter().for_each(|watch| watch.finish(Err(error.clone())));
        }
        // Armed first, compared second. The snapshot has the batches that are published; a batch that begins
        // from now on finds the watches; a batch in between gets them as deferred.
        let snapshot = self.with_window(|window| {
            if window.is_committing() {
                self.watches.defer(&watches);
            }
            window.head().clone()
        });
        for watch in watches {
            match snapshot.get(&watch.key) {
                Ok(value) => watch.compare(value.as_ref()),
                Err(_) => watch.finish(Ok(())),
            }
        }
    }
}

/// Whether a request may commit: 1007 if it read before the window, 1020 if something in `read` has changed. A blind
/// write always may.
fn resolve(resolver: &Resolver, read: &[KeyRange], read_version: i64, oldest: i64, newest: i64) -> Result<()> {
    if read.is_empty() {
        return Ok(());
    }
    if read_version < oldest {
        return Err(Error::new(error::TRANSACTION_TOO_OLD));
    }
    if read_version > newest {
        return Err(Error::new(error::FUTURE_VERSION));
    }
    if resolver.any_changed_since(read, read_version) { Err(Error::new(error::NOT_COMMITTED)) } else { Ok(()) }
}
