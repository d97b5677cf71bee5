//! Sandboxes on separate threads.
//!
//! A sandbox cannot leave its thread, so work is sent to it. [`Pool::run`] sends a closure to the next free thread,
//! which has the sandbox of the design document or opens it. The future returns what the closure returned. It needs no
//! particular executor.
//!
//! Each database has its own sandboxes, even if its design documents equal those of another one: functions may keep
//! data in global variables. Databases take turns ([`turns`](crate::turns)).
//!
//! Threads start when they are needed. Each keeps the sandboxes that it used last, within [`KEPT`] and [`KEPT_PART`],
//! however many databases there are.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use futures_channel::oneshot;
use parking_lot::{Condvar, Mutex};

use crate::turns::{Id, Turns};
use crate::{Error, ErrorKind, Limits, Sandbox};

/// Maximum number of sandboxes that a thread keeps.
const KEPT: usize = 32;

/// A sandbox that uses more than this fraction of a call's heap is not kept. All sandboxes that a thread keeps use at
/// most one such heap together.
const KEPT_PART: usize = 4;

/// Maximum number of runs that wait.
const MAX_WAITING: usize = 10_000;

/// Bytes of stack that a thread needs beyond those of its sandboxes.
const OTHER_STACK: usize = 1 << 20;

/// The design document of a database. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Design {
    /// Identifies the database among all that exist or existed.
    pub database: [u8; 16],
    /// The design document as JSON text.
    pub text: Arc<str>,
}

/// Threads with sandboxes. Clones share them. They end after the last clone is gone.
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

/// Held only by the clones. The threads hold the inner state, so this is dropped with the last clone, and closes the
/// queue.
struct Owner(Arc<PoolState>);

struct PoolState {
    /// Number of threads that the runs of one database may take. One more is for other databases.
    threads: usize,
    limits: Limits,
    queue: Mutex<Queue>,
    filled: Condvar,
}

struct Queue {
    turns: Turns<Job>,
    started: usize,
    /// Threads that wait and were not woken yet.
    idle: usize,
    closed: bool,
}

type Work = Box<dyn FnOnce(Result<&mut Sandbox, Error>) + Send>;

struct Job {
    design: Design,
    work: Work,
}

impl Job {
    fn refuse(self, reason: impl Into<String>) {
        (self.work)(Err(Error::new(ErrorKind::Engine, "QuickJS", reason)));
    }
}

impl Pool {
    /// A pool that runs at most this many functions of one database at the same time. It has one thread more, so that
    /// other databases need not wait for them. No thread is started yet.
    pub fn new(threads: usize, limits: Limits) -> Pool {
        let threads = threads.max(1);
        let queue = Queue { turns: Turns::new(threads, MAX_WAITING), started: 0, idle: 0, closed: false };
        let (queue, filled) = (Mutex::new(queue), Condvar::new());
        Pool(Arc::new(Owner(Arc::new(PoolState { threads, limits, queue, filled }))))
    }

    /// Number of threads that the runs of one database may take.
    pub fn threads(&self) -> usize {
        self.0.0.threads
    }

    /// Number of runs that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.0.0.queue.lock().turns.waiting()
    }

    /// Runs work in the sandbox of a design document. Only equal texts of one database share a sandbox. The work does
    /// not run if its future is dropped before its turn. If the future is dropped later, its functions are stopped.
    ///
    /// # Errors
    /// The sandbox's, if it could not be opened; [`ErrorKind::Engine`] if too many wait.
    pub fn run<T, W>(&self, design: &Design, work: W) -> impl Future<Output = Result<T, Error>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&mut Sandbox) -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        // Held by the future, to show that somebody waits. A thread cannot ask the sender while the sender is in use.
        let held = Arc::new(());
        let wanted = Arc::downgrade(&held);
        let work = move |sandbox: Result<&mut Sandbox, Error>| {
            if !sender.is_canceled() {
                // Fails if the future is dropped meanwhile.
                let _ = sender.send(sandbox.map(|sandbox| sandbox.work_while(wanted, work)));
            }
        };
        self.0.0.clone().push(Job { design: design.clone(), work: Box::new(work) });
        // After a panic the sender is gone.
        let ended = || Err(Error::new(ErrorKind::Engine, "QuickJS", "a call ended without a result"));
        async move {
            let _held = held;
            receiver.await.unwrap_or_else(|_| ended())
        }
    }

    /// Compiles functions at paths of a design document, in turns. Together they may take as long as one call.
    ///
    /// # Errors
    /// Those of [`Sandbox::compile`] and [`run`](Self::run), and [`ErrorKind::Time`].
    pub async fn compile(&self, design: &Design, paths: Vec<Vec<String>>) -> Result<(), Error> {
        let left = Mutex::new(self.0.0.limits.time);
        let compile = move |sandbox: &mut Sandbox, path: &Vec<String>| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            sandbox.compile_within(&path, &mut left.lock()).map(Some)
        };
        self.run_in_turns(design, paths, |_| Ok(()), compile).await.map(drop)
    }

    /// Calls functions with each input in the sandbox of a design document. `begin` prepares the sandbox. When the
    /// [turn](Limits::turn) is over, or the sandbox is full, the rest becomes another run, so that other runs come in
    /// between. `call` returns `None` for an input that it has not finished: it gets it again in the next turn.
    ///
    /// # Errors
    /// The first error of `begin` and `call`, and those of [`run`](Self::run).
    pub async fn run_in_turns<I, O>(
        &self,
        design: &Design,
        inputs: Vec<I>,
        begin: impl Fn(&mut Sandbox) -> Result<(), Error> + Send + Sync + 'static,
        call: impl Fn(&mut Sandbox, &I) -> Result<Option<O>, Error> + Send + Sync + 'static,
    ) -> Result<Vec<O>, Error>
    where
        I: Send + Sync + 'static,
        O: Send + 'static,
    {
        let count = inputs.len();
        let shared = Arc::new((inputs, begin, call));
        let mut outputs = Vec::with_capacity(count);
        while outputs.len() < count {
            let (shared, from) = (shared.clone(), outputs.len());
            let some = self.run(design, move |sandbox| {
                let (inputs, begin, call) = &*shared;
                begin(sandbox)?;
                sandbox.begin_turn();
                let mut some = Vec::new();
                for input in &inputs[from..] {
                    let Some(output) = call(sandbox, input)? else { break };
                    some.push(output);
                    if sandbox.should_rest() {
                        break;
                    }
                }
                Ok(some)
            });
            outputs.extend(some.await.flatten()?);
        }
        Ok(outputs)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.filled.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.0.0.threads).finish_non_exhaustive()
    }
}

impl PoolState {
    fn push(self: Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        let database = job.design.database;
        // Otherwise the thread that ends another run of the database takes the job.
        if queue.turns.may_run(&database) {
            if queue.idle > 0 {
                queue.idle -= 1;
                self.filled.notify_one();
            } else if queue.started <= self.threads {
                let shared = self.clone();
                let builder = thread::Builder::new().name("couch-javascript".to_owned());
                match builder.stack_size(self.limits.stack + OTHER_STACK).spawn(move || shared.work()) {
                    Ok(_) => queue.started += 1,
                    // The existing threads take it.
                    Err(_) if queue.started > 0 => {}
                    Err(error) => {
                        drop(queue);
                        return job.refuse(error.to_string());
                    }
                }
            }
        }
        let refused = queue.turns.push(database, job);
        drop(queue);
        if let Some(refused) = refused {
            refused.refuse("too many calls are waiting");
        }
    }

    /// The next job, after one of a database has ended; `None` when the pool is gone.
    fn next(&self, ended: Option<Id>) -> Option<Job> {
        let mut queue = self.queue.lock();
        if let Some(database) = ended {
            queue.turns.ended(&database);
        }
        loop {
            if let Some((_, job)) = queue.turns.next() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            // The caller that wakes the thread decrements this.
            queue.idle += 1;
            self.filled.wait(&mut queue);
        }
    }

    /// The loop of a thread.
    fn work(&self) {
        let (mut kept, mut ended) = (Kept::default(), None);
        while let Some(Job { design, work }) = self.next(ended) {
            ended = Some(design.database);
            match kept.take(design, self.limits) {
                Err(error) => work(Err(error)),
                Ok(mut entry) => {
                    // After a panic the sandbox is dropped, and the waiting future gets an error.
                    let outcome: Result<(), Box<dyn Any + Send>> =
                        catch_unwind(AssertUnwindSafe(|| work(Ok(&mut entry.sandbox))));
                    if outcome.is_ok() {
                        kept.put(entry, self.limits);
                    }
                }
            }
        }
    }
}

/// The sandboxes of a thread, the last used at the end.
#[derive(Default)]
struct Kept(VecDeque<Entry>);

struct Entry {
    design: Design,
    sandbox: Sandbox,
    /// Bytes of its heap when it was last used.
    bytes: usize,
}

impl Kept {
    fn take(&mut self, design: Design, limits: Limits) -> Result<Entry, Error> {
        let is_it = |entry: &Entry| {
            let (one, other) = (&entry.design, &design);
            one.database == other.database && (Arc::ptr_eq(&one.text, &other.text) || one.text == other.text)
        };
        match self.0.iter().rposition(is_it).and_then(|place| self.0.remove(place)) {
            Some(entry) => Ok(entry),
            None => Ok(Entry { sandbox: Sandbox::open(&design.text, limits)?, design, bytes: 0 }),
        }
    }

    fn put(&mut self, mut entry: Entry, limits: Limits) {
        let sandbox = &entry.sandbox;
        if sandbox.is_full() {
            return;
        }
        entry.bytes = sandbox.memory_held();
        let most = limits.memory / KEPT_PART;
        if entry.bytes > most {
            // This walks over the whole heap.
            entry.bytes = sandbox.memory_used();
            if entry.bytes > most {
                return;
            }
        }
        self.0.push_back(entry);
        while self.0.len() > KEPT || self.bytes() > limits.memory {
            self.0.pop_front();
        }
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|entry| entry.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn design(text: &str) -> Design {
        Design { database: [0; 16], text: text.into() }
    }

    #[test]
    fn the_threads_end_with_the_last_clone_whoever_drops_it() {
        let design = design("{}");
        for _ in 0..200 {
            let pool = Pool::new(1, Limits::default());
            futures_executor::block_on(pool.run(&design, |_| ())).unwrap();
            let shared = Arc::downgrade(&pool.0.0);
            let (one, other, both) = (pool.clone(), pool, Barrier::new(2));
            thread::scope(|scope| {
                for clone in [one, other] {
                    let both = &both;
                    scope.spawn(move || {
                        both.wait();
                        drop(clone);
                    });
                }
            });
            // The thread may be gone already.
            assert!(shared.upgrade().is_none_or(|shared| shared.queue.lock().closed));
        }
    }

    #[test]
    fn many_databases_with_one_design_document_keep_few_heaps() {
        let mut kept = Kept::default();
        let text: Arc<str> =
            r#"{"views":{"v":{"map":"doc => { globalThis.held = new Uint8Array(doc.bytes) }"}}}"#.into();
        let mut run = |number: u16, document: &str| {
            let mut database = [0; 16];
            database[..2].copy_from_slice(&number.to_be_bytes());
            let mut entry = kept.take(Design { database, text: text.clone() }, Limits::default()).unwrap();
            entry.sandbox.map(&["v"], document).remove(0).unwrap();
            kept.put(entry, Limits::default());
            (kept.0.len(), kept.bytes())
        };
        for number in 0..200 {
            let (heaps, bytes) = run(number, r#"{"bytes":1}"#);
            assert!(heaps == KEPT.min(usize::from(number) + 1) && bytes < KEPT << 20, "{heaps} {bytes}");
        }
        for number in 0..20 {
            let (heaps, bytes) = run(number, r#"{"bytes":10000000}"#);
            assert!(heaps <= KEPT && bytes <= Limits::default().memory, "{heaps} {bytes}");
        }
        assert_eq!(run(0, r#"{"bytes":10000000}"#).0, 6, "the bytes count too");
    }

    #[test]
    fn a_pool_stays_open_as_long_as_there_is_a_clone() {
        let design = design("{}");
        let pool = Pool::new(1, Limits::default());
        drop(pool.clone());
        assert_eq!(futures_executor::block_on(pool.run(&design, |_| 7)).unwrap(), 7);
    }
}
