//! The thread that removes the rows of pending clears ([`clears`](crate::clears)) step by step, between
//! commits.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Shortest pause between two steps, which leaves the processor and the disk to commits.
const MIN_PAUSE: Duration = Duration::from_millis(2);

/// Pause after a step, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 2;

/// Pause while snapshots from before a clear exist.
const EARLY_PAUSE: Duration = Duration::from_millis(200);

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Rows were removed; there may be more.
    Removed,
    /// Snapshots from before a clear still need the rows.
    TooEarly,
    /// Nothing is pending.
    Idle,
    /// The store failed. The next commit will fail too, and report it.
    Failed,
}

/// A thread that takes steps until it is stopped.
#[derive(Debug)]
pub(crate) struct Purger {
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
    /// A purger without a thread yet, which will be called `name`.
    pub(crate) fn new(name: &'static str) -> Self {
        Purger { name, signal: Arc::default(), thread: Mutex::default() }
    }

    /// Starts the thread, or wakes it.
    pub(crate) fn wake(&self, step: impl Fn() -> Step + Send + 'static) {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let signal = self.signal.clone();
            let run = move || signal.run(step);
            // Without a thread the rows stay, unseen. The next large clear tries again.
            *thread = std::thread::Builder::new().name(self.name.into()).spawn(run).ok();
        }
        self.signal.changed.notify_all();
    }

    /// Ends the thread for good, after the step in progress.
    pub(crate) fn stop(&self) {
        *self.signal.stopped.lock() = true;
        self.signal.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // Its result is not needed.
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
    fn run(&self, step: impl Fn() -> Step) {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            drop(stopped);
            let begun = Instant::now();
            let pause = match step() {
                Step::Removed => MIN_PAUSE.max(PAUSE_FACTOR * begun.elapsed()),
                Step::TooEarly => EARLY_PAUSE,
                // A wake-up between the step and the wait is missed. This bound makes up for it.
                Step::Idle => 10 * EARLY_PAUSE,
                Step::Failed => return,
            };
            stopped = self.stopped.lock();
            if !*stopped {
                self.changed.wait_for(&mut stopped, pause);
            }
        }
    }
}
