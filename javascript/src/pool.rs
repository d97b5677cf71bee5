//! Sandboxes on threads of their own.
//!
//! A sandbox cannot leave its thread, so work is sent to it. [`Pool::run`] sends a closure to the next free thread, which
//! has the sandbox of the design document or opens it. The future returns what the closure returned. It needs no
//! particular executor.
//!
//! Threads start when they are needed. Each keeps the sandboxes that it used last.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use futures_channel::oneshot;
use parking_lot::{Condvar, Mutex};

use crate::{Error, ErrorKind, Limits, Sandbox};

/// Number of sandboxes that a thread keeps.
const KEPT: usize = 8;

/// Bytes of heap above which a sandbox is not kept.
const KEPT_BYTES: usize = 16 << 20;

/// Maximum number of runs that wait. Further ones are refused.
const MAX_WAITING: usize = 10_000;

/// Bytes of stack that a thread needs beyond those of its sandboxes.
const OTHER_STACK: usize = 1 << 20;

/// Threads with sandboxes. Clones share them. They end after the last clone is gone.
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

/// Held by the clones only. The threads hold the state within, so this is dropped with the last clone, and closes the queue.
struct Owner(Arc<PoolState>);

struct PoolState {
    threads: usize,
    limits: Limits,
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    started: usize,
    idle: usize,
    closed: bool,
}

type Work = Box<dyn FnOnce(Result<&mut Sandbox, Error>) + Send>;

struct Job {
    design: Arc<str>,
    work: Work,
}

impl Pool {
    /// A pool of at most this many threads. None is started yet.
    pub fn new(threads: usize, limits: Limits) -> Pool {
        let (queue, filled) = (Mutex::default(), Condvar::new());
        Pool(Arc::new(Owner(Arc::new(PoolState { threads: threads.max(1), limits, queue, filled }))))
    }

    /// How many threads there are at most.
    pub fn threads(&self) -> usize {
        self.0.0.threads
    }

    /// Runs work in the sandbox of a design document, which is given as JSON text. Equal texts share a sandbox. The work
    /// is not run if its future is dropped before its turn, and its functions are stopped when it is dropped later.
    ///
    /// # Errors
    /// The sandbox's, if it could not be opened; [`ErrorKind::Engine`] if too many wait.
    pub fn run<T, W>(&self, design: &Arc<str>, work: W) -> impl Future<Output = Result<T, Error>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&mut Sandbox) -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        // Held by the future. A thread cannot ask for the sender while it is to be sent through.
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
    pub async fn compile(&self, design: &Arc<str>, paths: Vec<Vec<String>>) -> Result<(), Error> {
        let left = Mutex::new(self.0.0.limits.time);
        let compile = move |sandbox: &mut Sandbox, path: &Vec<String>| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            sandbox.compile_within(&path, &mut left.lock()).map(Some)
        };
        self.run_in_turns(design, paths, |_| Ok(()), compile).await.map(drop)
    }

    /// Calls functions with each input in the sandbox of a design document, which `begin` prepares. When the
    /// [turn](Limits::turn) is over, or the sandbox is full, the rest is another run, so that others come between. `call`
    /// returns `None` for an input that it has not done with: it gets it again in the next turn.
    ///
    /// # Errors
    /// The first error of `begin` and `call`, and those of [`run`](Self::run).
    pub async fn run_in_turns<I, O>(
        &self,
        design: &Arc<str>,
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
        if queue.waiting.len() >= MAX_WAITING {
            drop(queue);
            return (job.work)(Err(Error::new(ErrorKind::Engine, "QuickJS", "too many calls are waiting")));
        }
        queue.waiting.push_back(job);
        if queue.idle == 0 && queue.started < self.threads {
            let shared = self.clone();
            let builder = thread::Builder::new().name("couch-javascript".to_owned());
            match builder.stack_size(self.limits.stack + OTHER_STACK).spawn(move || shared.work()) {
                Ok(_) => queue.started += 1,
                // The threads that there are take it.
                Err(_) if queue.started > 0 => {}
                Err(error) => {
                    let job = queue.waiting.pop_back();
                    drop(queue);
                    if let Some(job) = job {
                        (job.work)(Err(Error::new(ErrorKind::Engine, "QuickJS", error.to_string())));
                    }
                    return;
                }
            }
        }
        drop(queue);
        self.filled.notify_one();
    }

    /// The next job; `None` when the pool is gone.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.waiting.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            self.filled.wait(&mut queue);
            queue.idle -= 1;
        }
    }

    /// What a thread does.
    fn work(&self) {
        let mut kept = Kept::default();
        while let Some(Job { design, work }) = self.next() {
            match kept.take(&design, self.limits) {
                Err(error) => work(Err(error)),
                Ok(mut entry) => {
                    // After a panic the sandbox is dropped, and the waiting future learns of it.
                    let outcome: Result<(), Box<dyn Any + Send>> =
                        catch_unwind(AssertUnwindSafe(|| work(Ok(&mut entry.sandbox))));
                    if outcome.is_ok() {
                        kept.put(entry);
                    }
                }
            }
        }
    }
}

/// The sandboxes of a thread, the last used at the end.
#[derive(Default)]
struct Kept(Vec<Entry>);

struct Entry {
    design: Arc<str>,
    sandbox: Sandbox,
}

impl Kept {
    fn take(&mut self, design: &Arc<str>, limits: Limits) -> Result<Entry, Error> {
        match self.0.iter().position(|entry| Arc::ptr_eq(&entry.design, design) || entry.design == *design) {
            Some(place) => Ok(self.0.remove(place)),
            None => Ok(Entry { design: design.clone(), sandbox: Sandbox::open(design, limits)? }),
        }
    }

    fn put(&mut self, entry: Entry) {
        // The second measure takes a walk over the heap.
        let (sandbox, most) = (&entry.sandbox, KEPT_BYTES);
        if sandbox.is_full() || sandbox.memory_held() > most && sandbox.memory_used() > most {
            return;
        }
        if self.0.len() >= KEPT {
            self.0.remove(0);
        }
        self.0.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn the_threads_end_with_the_last_clone_whoever_drops_it() {
        let design: Arc<str> = "{}".into();
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
    fn a_pool_stays_open_as_long_as_there_is_a_clone() {
        let design: Arc<str> = "{}".into();
        let pool = Pool::new(1, Limits::default());
        drop(pool.clone());
        assert_eq!(futures_executor::block_on(pool.run(&design, |_| 7)).unwrap(), 7);
    }
}
