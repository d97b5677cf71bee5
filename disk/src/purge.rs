//! The thread that removes the rows of pending clears ([`clears`](crate::clears)), some at a time, between
//! commits. For engines that clear many rows that way.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pause between two steps, at least: commits have the processor and the disk to themselves for it.
const BREATH: Duration = Duration::from_millis(2);

/// And so many times what the step took.
const REST: u32 = 2;

/// How often to look whether the snapshots from before a clear are gone.
const PATIENCE: Duration = Duration::from_millis(200);

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Rows were removed; there may be more.
    Removed,
    /// Snapshots from before a clear still need the rows.
    TooEarly,
    /// Nothing is pending.
    Idle,
    /// The store failed; the next commit finds out for itself.
    Failed,
}

/// A thread that takes steps until it is stopped.
#[derive(Debug)]
pub struct Purger {
    name: &'static str,
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Signal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Purger {
    /// A purger that sleeps. `name` is its thread's.
    pub fn new(name: &'static str) -> Self {
        Purger { name, signal: Arc::default(), thread: Mutex::default() }
    }

    /// Sees to it that steps are taken from now on.
    pub fn wake(&self, step: impl Fn() -> Step + Send + 'static) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let signal = self.signal.clone();
            let run = move || signal.run(step);
            // Without a thread the rows stay where they are, unseen; the next large clear tries again.
            *thread = std::thread::Builder::new().name(self.name.into()).spawn(run).ok();
        }
        self.signal.changed.notify_all();
    }

    /// Ends the thread, once the step under way is taken. For good.
    pub fn stop(&self) {
        *self.signal.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It does nothing that could be of interest after this.
            let _ = thread.join();
        }
    }
}

impl Drop for Purger {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Signal {
    #[expect(clippy::disallowed_methods, reason = "rests as long as steps take; no outcome depends on it")]
    fn run(&self, step: impl Fn() -> Step) {
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        while !*stopped {
            drop(stopped);
            let begun = Instant::now();
            let pause = match step() {
                Step::Removed => BREATH.max(REST * begun.elapsed()),
                Step::TooEarly => PATIENCE,
                // A wake-up that comes between the step and the wait is made good by this bound.
                Step::Idle => 10 * PATIENCE,
                Step::Failed => return,
            };
            stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
            if !*stopped {
                stopped = self.changed.wait_timeout(stopped, pause).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
