//! The commit pipeline: group commit with a leader and followers.
//!
//! ```text
//!   committer A   ├ lead ─ resolve ─ apply ─ sync ─ answer A ┤
//!   committers B, C         queue ……………………………………………┐
//!   the committer thread                                └ lead ─ B, C in one batch ─ answer ┤ … until empty
//! ```
//!
//! A committer that finds nobody at work leads on its own thread, inside its poll. Where a commit waits for
//! the disk it lets go of the thread once before: the tasks of its executor that are about to commit put
//! their requests in the queue, and share its sync. Others queue while it leads; when the leader is done with
//! its own round and sees a queue, it hands the lead to one parked thread, which drains the queue. So nobody
//! carries others for ever, and no future that is dropped can strand the queue: whoever holds the lead is a
//! thread inside a round, a committer that is dropped before it leads hands on what is in the queue, and one
//! that is not polled again is carried by whoever commits next.
//!
//! Invariants: one thread holds the lead; commit versions are given in the order in which batches
//! reach the store; a request is answered once, after the batch it was in is synced and can be read.
//! A batch whose outcome in the store is not known is answered 1021 and closes the database.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use kv_api::{Durability, Error, Result, Versionstamp, error};

use crate::KeyRange;
use crate::batch::BatchBuilder;
use crate::core::Core;
use crate::faults::{self, Fault, Point};
use crate::mutation::Mutation;
use crate::resolver::Resolver;
use crate::store::{ApplyError, Op, Store};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Promise, Weak, lock, thread, thread_local, wait};
use crate::watches::{Touched, Watch, Watches};
use crate::write_conflicts::WriteConflicts;

/// The most requests of one batch: their order must fit the two bytes that a versionstamp has for it.
const MOST_REQUESTS: usize = 10_000;

/// The most bytes of one batch, but for a single request.
const MOST_BYTES: usize = 32_000_000;

/// The most bytes that wait in the queue. A commit that finds it full is refused, and may be tried again, as by a
/// commit proxy of FoundationDB: committers that are faster than the disk would fill the memory.
const MOST_QUEUED_BYTES: usize = 64_000_000;

/// What a request takes beside its bytes, about.
const REQUEST_BYTES: usize = 512;

/// A transaction on its way into the store.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) read_version: i64,
    pub(crate) read_conflicts: Vec<KeyRange>,
    pub(crate) write_conflicts: WriteConflicts,
    pub(crate) mutations: Vec<Mutation>,
    pub(crate) bytes: usize,
    pub(crate) ticket: Arc<Ticket>,
}

/// What a committer waits with; outlives it if it does not wait.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) outcome: Promise<Result<Versionstamp>>,
    /// To be armed when the transaction commits.
    watches: Mutex<Vec<Arc<Watch>>>,
    /// The transaction's own versionstamp, for those who asked.
    stamp: Arc<Promise<Result<Versionstamp>>>,
}

impl Request {
    /// What it takes of the queue's room.
    fn room(&self) -> usize {
        REQUEST_BYTES + self.bytes
    }
}

impl Ticket {
    pub(crate) fn new(watches: Vec<Arc<Watch>>, stamp: Arc<Promise<Result<Versionstamp>>>) -> Self {
        Ticket { outcome: Promise::default(), watches: Mutex::new(watches), stamp }
    }

    /// Fails the request and everyone who waits for something of it.
    pub(crate) fn fail(&self, error: Error) {
        self.stamp.resolve(Err(error.clone()));
        for watch in lock(&self.watches).drain(..) {
            watch.finish(Err(error.clone()));
        }
        self.outcome.resolve(Err(error));
    }
}

thread_local! {
    /// Whether this thread is inside a round.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

fn in_round() -> bool {
    IN_ROUND.with(Cell::get)
}

/// The queue, and who leads.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    queue: Mutex<Queue>,
    /// The committer thread waits here for the lead, or for the end.
    handed: Condvar,
    /// What only the leader touches.
    lead: Mutex<Option<Resolver>>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: Vec<Request>,
    /// The room that they take.
    bytes: usize,
    /// Somebody leads.
    led: bool,
    /// The lead was handed to the committer thread, which has not taken it yet.
    handed: bool,
    thread: Option<thread::JoinHandle<()>>,
    stopped: bool,
}

impl Queue {
    /// The requests of the next batch, from the front.
    fn take_batch(&mut self) -> Vec<Request> {
        let mut bytes = 0;
        let fits = self.requests.iter().take(MOST_REQUESTS).take_while(|request| {
            let fits = bytes == 0 || bytes + request.bytes <= MOST_BYTES;
            bytes += request.bytes;
            fits
        });
        let count = fits.count();
        let taken = match count == self.requests.len() {
            true => std::mem::take(&mut self.requests),
            false => self.requests.drain(..count).collect(),
        };
        self.bytes -= taken.iter().map(Request::room).sum::<usize>();
        taken
    }
}

/// Of a committer that has let others go first: when it goes away meanwhile, its request is somebody else's to
/// commit.
struct HandingOn<'a, S: Store>(&'a Arc<Core<S>>);

impl<S: Store> Drop for HandingOn<'_, S> {
    fn drop(&mut self) {
        let queue = lock(&self.0.pipeline.queue);
        if !queue.led {
            self.0.hand_lead(queue);
        }
    }
}

/// Comes back when the executor has polled what else is ready.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<S: Store> Core<S> {
    /// Takes a request in, and sees to it that it is committed: by whoever leads, or here when nobody does.
    ///
    /// Where a commit waits for the disk, tasks of this executor that are about to commit too get their turn
    /// first: while this thread syncs, none of them could join.
    pub(crate) async fn submit(self: &Arc<Self>, request: Request) {
        let ticket = request.ticket.clone();
        if self.enqueue(request) {
            return;
        }
        if self.store.durability() == Durability::Disk {
            let handing_on = HandingOn(self);
            yield_now().await;
            std::mem::forget(handing_on);
        }
        // Those who were answered meanwhile leave what has come since to its own committers.
        if ticket.outcome.peek().is_none() {
            self.lead();
        }
    }

    /// Puts a request in the queue, or refuses it; whether there is nothing more to be done here, because somebody
    /// leads, who is going to take it, or because it was refused.
    fn enqueue(&self, request: Request) -> bool {
        let mut queue = lock(&self.pipeline.queue);
        if queue.stopped {
            drop(queue);
            request.ticket.fail(self.closed_error());
            return true;
        }
        if queue.bytes > 0 && queue.bytes + request.room() > MOST_QUEUED_BYTES {
            drop(queue);
            let full = Error::new(error::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED);
            request.ticket.fail(full.with_context("too much waits to be committed: try again later"));
            return true;
        }
        queue.bytes += request.room();
        queue.requests.push(request);
        queue.led
    }

    /// Commits what is in the queue, unless somebody leads or it is empty.
    fn lead(self: &Arc<Self>) {
        let requests = {
            let mut queue = lock(&self.pipeline.queue);
            if queue.led || queue.requests.is_empty() {
                return;
            }
            queue.led = true;
            queue.take_batch()
        };
        self.round(requests);
        self.hand_lead(lock(&self.pipeline.queue));
    }

    /// Of who leads, or finds nobody leading: gives the lead up, or to the committer thread when others wait.
    fn hand_lead<'a>(self: &'a Arc<Self>, mut queue: MutexGuard<'a, Queue>) {
        loop {
            queue.led = !queue.requests.is_empty();
            if !queue.led {
                // `stop` may be waiting for the last round to end.
                self.pipeline.handed.notify_all();
                return;
            }
            if queue.thread.is_none() && !queue.stopped {
                let core = Arc::clone(self);
                let spawned = thread::Builder::new().name("occ-committer".into()).spawn(move || core.run_committer());
                queue.thread = spawned.ok();
            }
            if queue.thread.is_some() && !queue.stopped {
                queue.handed = true;
                if !faults::planted(self.fault, Fault::HandOffUnheard) {
                    self.pipeline.handed.notify_all();
                }
                return;
            }
            // No thread to be had: carry the others here.
            let requests = queue.take_batch();
            drop(queue);
            self.round(requests);
            queue = lock(&self.pipeline.queue);
        }
    }

    fn run_committer(self: Arc<Self>) {
        loop {
            let mut queue = lock(&self.pipeline.queue);
            while !queue.handed {
                if queue.stopped {
                    return;
                }
                queue = wait(&self.pipeline.handed, queue);
            }
            queue.handed = false;
            loop {
                let requests = queue.take_batch();
                if requests.is_empty() {
                    queue.led = false;
                    self.pipeline.handed.notify_all();
                    break;
                }
                drop(queue);
                self.round(requests);
                queue = lock(&self.pipeline.queue);
            }
        }
    }

    /// Lets no more requests in, waits until those that are in are answered, and ends the committer thread.
    pub(crate) fn stop(self: &Arc<Self>) {
        let thread = {
            let mut queue = lock(&self.pipeline.queue);
            queue.stopped = true;
            self.pipeline.handed.notify_all();
            // A round may wake a task whose end drops the last handle: the round's own thread.
            while !in_round() {
                if queue.led {
                    queue = wait(&self.pipeline.handed, queue);
                } else if queue.requests.is_empty() {
                    break;
                } else {
                    drop(queue);
                    self.lead();
                    queue = lock(&self.pipeline.queue);
                }
            }
            queue.thread.take()
        };
        if let Some(thread) = thread
            && !in_round()
        {
            // A panic of the thread was caught in its round; there is no other.
            let _ = thread.join();
        }
    }

    /// One round: everything from the requests to their answers.
    fn round(&self, requests: Vec<Request>) {
        let tickets: Vec<Arc<Ticket>> = requests.iter().map(|request| request.ticket.clone()).collect();
        IN_ROUND.with(|inside| inside.set(true));
        let outcome = catch_unwind(AssertUnwindSafe(|| self.try_round(requests)));
        IN_ROUND.with(|inside| inside.set(false));
        if outcome.is_err() {
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
        let mut lead = lock(&self.pipeline.lead);
        let resolver = lead.get_or_insert_with(Resolver::new);
        let now = self.clock.now();
        let (version, oldest, newest, head) = self.with_window(|window| {
            let newest = window.newest(now);
            (window.begin_batch(now), window.oldest(now), newest, window.head().clone())
        });
        let mutations = requests.iter().flat_map(|request| &request.mutations);
        let mut batch = BatchBuilder::new(version, mutations, &*head, self.limits.value_bytes);
        let mut accepted: Vec<(Arc<Ticket>, Versionstamp)> = Vec::with_capacity(requests.len());
        let mut refused: Vec<(Arc<Ticket>, Error)> = Vec::new();
        for (order, request) in requests.into_iter().enumerate() {
            if let Err(error) = resolve(resolver, &request, oldest, newest, self.fault) {
                refused.push((request.ticket, error));
                continue;
            }
            let stamp = match faults::planted(self.fault, Fault::VersionstampReused) {
                false => Versionstamp::new(version as u64, order as u16),
                true => Versionstamp::new(version as u64 / 1_000_000, 0),
            };
            for range in &request.write_conflicts.ranges {
                resolver.write(range, version);
            }
            for mutation in request.write_conflicts.keys.iter().filter_map(|&at| request.mutations.get(at)) {
                resolver.write_key(mutation.key(), version);
            }
            match batch.add(request.mutations, &stamp, |key| resolver.write_key(key, version)) {
                Ok(()) => accepted.push((request.ticket, stamp)),
                // What the store holds could not be read: nothing was written yet.
                Err(error) => {
                    self.abandon(version);
                    self.break_down(error.clone());
                    accepted.iter().for_each(|(ticket, _)| ticket.fail(error.clone()));
                    refused.into_iter().for_each(|(ticket, error)| ticket.fail(error));
                    return request.ticket.fail(error);
                }
            }
        }
        resolver.forget_before(oldest);
        drop(lead);
        if accepted.is_empty() {
            self.abandon(version);
        } else if let Err(error) = self.write(batch) {
            for (ticket, _) in accepted {
                ticket.fail(error.clone());
            }
        } else {
            for (ticket, stamp) in accepted {
                self.answer(&ticket, stamp);
            }
        }
        for (ticket, error) in refused {
            ticket.fail(error);
        }
    }

    /// Applies and syncs a batch and lets it be read. The error is the one its committers get.
    fn write(&self, batch: BatchBuilder<'_, S::View>) -> Result<()> {
        let mut batch = batch.finish();
        let version = batch.version;
        let bytes = batch.ops.iter().map(Op::size).sum();
        let touched = self.watches.touched(&batch.ops);
        let sampled = lock(&self.sample).observe(&mut batch.ops);
        if let Some((key, value)) = self.version_mark(version) {
            batch.ops.push(Op::Set { key, value });
        }
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
        let view = Arc::new(self.store.view().map_err(|error| self.lose(error))?);
        if faults::planted(self.fault, Fault::PublishedBeforeSync) {
            self.publish(version, &view, bytes, touched.clone());
        }
        if !faults::planted(self.fault, Fault::MissingSync) {
            self.store.sync().map_err(|error| self.lose(error))?;
        }
        self.hook.reached(Point::AfterSync);
        self.publish(version, &view, bytes, touched);
        Ok(())
    }

    /// Lets a batch be read, and wakes those who watch its keys.
    fn publish(&self, version: i64, view: &Arc<S::View>, bytes: usize, mut touched: Touched) {
        let now = self.clock.now();
        let deferred = self.with_window(|window| {
            window.publish(version, view.clone(), bytes, now);
            self.watches.take_deferred()
        });
        if !faults::planted(self.fault, Fault::WatchArmedTooLate) {
            for watch in deferred.iter().filter_map(Weak::upgrade) {
                touched.entry(watch.key.clone()).or_default().push(watch);
            }
        }
        Watches::compare(touched, &**view);
    }

    /// Gives a version up that nothing was committed at.
    fn abandon(&self, version: i64) {
        self.with_window(|window| {
            window.abandon(version);
            self.watches.take_deferred();
        });
    }

    /// The store's state is not known any more: the database closes, the committers get 1021.
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

    /// Commits a transaction that wrote nothing: it has no version and no stamp, and needs no room in
    /// the order of commits.
    pub(crate) fn commit_nothing(&self, ticket: &Ticket) {
        ticket.stamp.resolve(Err(Error::new(error::NO_COMMIT_VERSION)));
        self.arm(&ticket.watches);
    }

    /// Arms the watches of a transaction that has committed: against what is read now, so that a change
    /// since what it saw is not missed.
    fn arm(&self, watches: &Mutex<Vec<Arc<Watch>>>) {
        let watches: Vec<Arc<Watch>> = std::mem::take(&mut *lock(watches));
        if watches.is_empty() {
            return;
        }
        self.watches.arm(&watches);
        if let Err(error) = self.check_open() {
            return watches.iter().for_each(|watch| watch.finish(Err(error.clone())));
        }
        // Armed first, looked at after: batches that were published by now are in the view, those that
        // begin from now on find the watches, and one that is on its way is told.
        let view = self.with_window(|window| {
            if window.is_committing() {
                self.watches.defer(&watches);
            }
            window.head().clone()
        });
        for watch in watches {
            match crate::store::View::get(&*view, &watch.key) {
                Ok(value) => watch.compare(value.as_ref()),
                Err(_) => watch.finish(Ok(())),
            }
        }
    }
}

/// Whether a request may commit: 1007 for one that read before the window, 1020 for one whose reads
/// have changed since. A blind write is neither.
fn resolve(resolver: &Resolver, request: &Request, oldest: i64, newest: i64, fault: Option<Fault>) -> Result<()> {
    if request.read_conflicts.is_empty() || faults::planted(fault, Fault::ConflictRangesDropped) {
        return Ok(());
    }
    if request.read_version < oldest {
        return Err(Error::new(error::TRANSACTION_TOO_OLD));
    }
    if request.read_version > newest {
        return Err(Error::new(error::FUTURE_VERSION));
    }
    let changed = match faults::planted(fault, Fault::RangeConflictOffByOne) {
        false => resolver.any_changed_since(&request.read_conflicts, request.read_version),
        true => any_changed_after_first_key(resolver, &request.read_conflicts, request.read_version),
    };
    match changed {
        true => Err(Error::new(error::NOT_COMMITTED)),
        false => Ok(()),
    }
}

/// The planted fault of [`Fault::RangeConflictOffByOne`].
fn any_changed_after_first_key(resolver: &Resolver, ranges: &[KeyRange], version: i64) -> bool {
    let rest = |range: &KeyRange| match range.is_point() {
        true => range.clone(),
        false => KeyRange { begin: kv_api::keys::key_after(&range.begin), end: range.end.clone() },
    };
    resolver.any_changed_since(&ranges.iter().map(rest).collect::<Vec<_>>(), version)
}
