//! Group commit: one committer leads, the others follow.
//!
//! ```text
//!   committer A        ├ lead: a round for A ┤
//!   committers B, C      wait in the queue ……┐
//!   committer thread                         └ lead: one round for B and C ┤ … until the queue is empty
//! ```
//!
//! A committer that finds no leader leads on its own thread, inside its poll. While it leads, others queue. After its
//! own round it gives the lead to the committer thread if the queue is not empty. So no committer works for others
//! forever.
//!
//! Where a commit is synced to the disk, the committer yields once before it leads. The other tasks of its
//! executor can queue their requests and share the sync.
//!
//! A dropped future cannot strand the queue. A leader is a thread inside a round, which ends. A committer
//! that is dropped while it yields passes the lead on ([`YieldGuard`]). A committer that is not polled again
//! is served by the next leader.
//!
//! Invariants: there is at most one leader; versions are assigned in the order in which batches reach the
//! store; a request is answered once, after its batch is synced and readable.

use std::cell::Cell;

use kv_api::{Durability, Error, error, yield_now};

use super::request::Request;
use super::resolver::Resolver;
use crate::database::core::Core;
use crate::faults::{self, Fault};
use crate::store::Store;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, lock, thread, thread_local, wait};

/// Largest number of requests in one batch. A versionstamp has two bytes for their order.
const MAX_REQUESTS: usize = 10_000;

/// Largest size of a batch of several requests.
const MAX_BATCH_BYTES: usize = 32_000_000;

/// Largest size of the queue. A commit that finds it full is refused and may be retried, as FoundationDB's
/// commit proxy does: committers that outrun the disk would fill the memory.
const MAX_QUEUED_BYTES: usize = 64_000_000;

thread_local! {
    /// Whether this thread is inside a round.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// The queue of requests and the state of its leader.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    queue: Mutex<Queue>,
    /// Signalled when the lead is offered to the committer thread, and when it is given up.
    changed: Condvar,
    /// Recent writes. Only the leader takes this lock.
    pub(super) resolver: Mutex<Resolver>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: Vec<Request>,
    bytes: usize,
    has_leader: bool,
    /// The committer thread is the leader, and has not woken up yet.
    lead_is_offered: bool,
    committer: Option<thread::JoinHandle<()>>,
    is_stopped: bool,
}

impl Queue {
    /// Takes the requests of the next batch from the front.
    fn take_batch(&mut self) -> Vec<Request> {
        let mut bytes = 0;
        let fits = self.requests.iter().take(MAX_REQUESTS).take_while(|request| {
            let fits = bytes == 0 || bytes + request.bytes <= MAX_BATCH_BYTES;
            bytes += request.bytes;
            fits
        });
        let count = fits.count();
        let rest = self.requests.split_off(count);
        let taken = std::mem::replace(&mut self.requests, rest);
        self.bytes -= taken.iter().map(Request::queued_bytes).sum::<usize>();
        taken
    }
}

impl Pipeline {
    /// Bytes that wait to be committed.
    pub(crate) fn queued_bytes(&self) -> usize {
        lock(&self.queue).bytes
    }
}

/// Passes the lead on when a committer is dropped while it yields: its request is still in the queue.
struct YieldGuard<'a, S: Store>(&'a Arc<Core<S>>);

impl<S: Store> Drop for YieldGuard<'_, S> {
    fn drop(&mut self) {
        let queue = lock(&self.0.pipeline.queue);
        if !queue.has_leader {
            self.0.pass_lead(queue);
        }
    }
}

impl<S: Store> Core<S> {
    /// Queues a request and makes sure that someone commits it: the current leader, or this thread.
    pub(crate) async fn submit(self: &Arc<Self>, request: Request) {
        let ticket = request.ticket.clone();
        if !self.enqueue(request) {
            return;
        }
        if self.store.durability() == Durability::Disk {
            let guard = YieldGuard(self);
            yield_now().await;
            std::mem::forget(guard);
        }
        // A committer that was answered meanwhile leaves later requests to their own committers.
        if ticket.outcome.peek().is_none() {
            self.lead();
        }
    }

    /// Puts a request into the queue, or refuses it. Returns whether the queue needs a leader.
    fn enqueue(&self, request: Request) -> bool {
        let mut queue = lock(&self.pipeline.queue);
        if queue.is_stopped {
            drop(queue);
            request.ticket.fail(self.closed_error());
            return false;
        }
        if self.is_standby {
            drop(queue);
            let refused = Error::new(error::TRANSACTION_READ_ONLY);
            request.ticket.fail(refused.with_context("this database follows another one, and takes no writes"));
            return false;
        }
        if queue.bytes > 0 && queue.bytes + request.queued_bytes() > MAX_QUEUED_BYTES {
            drop(queue);
            let full = Error::new(error::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED);
            request.ticket.fail(full.with_context("too many commits are waiting: try again later"));
            return false;
        }
        queue.bytes += request.queued_bytes();
        queue.requests.push(request);
        !queue.has_leader
    }

    /// Leads for one round. Does nothing if there is a leader, or nothing to commit.
    fn lead(self: &Arc<Self>) {
        let requests = {
            let mut queue = lock(&self.pipeline.queue);
            if queue.has_leader || queue.requests.is_empty() {
                return;
            }
            queue.has_leader = true;
            queue.take_batch()
        };
        self.run_round(requests);
        self.pass_lead(lock(&self.pipeline.queue));
    }

    /// Gives up the lead if the queue is empty; else gives it to the committer thread. The caller is the
    /// leader, or there is none.
    fn pass_lead<'a>(self: &'a Arc<Self>, mut queue: MutexGuard<'a, Queue>) {
        loop {
            queue.has_leader = !queue.requests.is_empty();
            if !queue.has_leader {
                // `stop` may be waiting for the last round.
                self.pipeline.changed.notify_all();
                return;
            }
            if queue.committer.is_none() && !queue.is_stopped {
                let core = Arc::clone(self);
                let spawned = thread::Builder::new().name("occ-committer".into()).spawn(move || core.run_committer());
                queue.committer = spawned.ok();
            }
            if queue.committer.is_some() && !queue.is_stopped {
                queue.lead_is_offered = true;
                if !faults::planted(self.fault, Fault::HandOffUnheard) {
                    self.pipeline.changed.notify_all();
                }
                return;
            }
            // No thread could be started: commit for the others here.
            let requests = queue.take_batch();
            drop(queue);
            self.run_round(requests);
            queue = lock(&self.pipeline.queue);
        }
    }

    /// The committer thread: waits for the lead, then commits until the queue is empty.
    fn run_committer(self: Arc<Self>) {
        let mut queue = lock(&self.pipeline.queue);
        loop {
            if std::mem::take(&mut queue.lead_is_offered) {
                while !queue.requests.is_empty() {
                    let requests = queue.take_batch();
                    drop(queue);
                    self.run_round(requests);
                    queue = lock(&self.pipeline.queue);
                }
                queue.has_leader = false;
                self.pipeline.changed.notify_all();
            } else if queue.is_stopped {
                return;
            } else {
                queue = wait(&self.pipeline.changed, queue);
            }
        }
    }

    /// Refuses new requests, waits until the queued ones are answered, and ends the committer thread.
    pub(crate) fn stop(self: &Arc<Self>) {
        // A round may wake a task that drops the last handle, on the round's own thread. It cannot wait for
        // itself.
        let in_round = IN_ROUND.with(Cell::get);
        let mut queue = lock(&self.pipeline.queue);
        queue.is_stopped = true;
        self.pipeline.changed.notify_all();
        while !in_round && (queue.has_leader || !queue.requests.is_empty()) {
            if queue.has_leader {
                queue = wait(&self.pipeline.changed, queue);
            } else {
                drop(queue);
                self.lead();
                queue = lock(&self.pipeline.queue);
            }
        }
        let committer = queue.committer.take();
        drop(queue);
        if let Some(committer) = committer.filter(|_| !in_round) {
            // It cannot have panicked: rounds catch panics.
            let _ = committer.join();
        }
    }

    fn run_round(&self, requests: Vec<Request>) {
        IN_ROUND.with(|inside| inside.set(true));
        self.round(requests);
        IN_ROUND.with(|inside| inside.set(false));
    }
}
