//! Threads for scans. Threads that serve requests must not wait for a disk.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// A runtime for work that reads much.
pub(crate) struct Scans {
    runtime: Option<Runtime>,
    threads: usize,
    /// Number of tasks that somebody waits for.
    running: AtomicUsize,
}

impl Scans {
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let (threads, running) = (threads.max(1), AtomicUsize::new(0));
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads).thread_name("couch-scan").enable_all();
        builder.build().map(|runtime| Scans { runtime: Some(runtime), threads, running })
    }

    /// Runs a task to its end. The task is aborted when the caller stops waiting. `None` if it panicked or the server
    /// is shutting down.
    pub(crate) async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        /// Aborts the task when it is dropped.
        struct Aborting<T>(JoinHandle<T>);
        impl<T> Drop for Aborting<T> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        /// Counts a task until it is dropped.
        struct Running<'s>(&'s AtomicUsize);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.running.fetch_add(1, Ordering::Relaxed);
        let _running = Running(&self.running);
        let mut task = Aborting(self.spawn(task)?);
        (&mut task.0).await.ok()
    }

    /// Starts a task that continues even if nobody waits for it. `None` if the server is shutting down.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.runtime.as_ref().map(|runtime| runtime.spawn(task))
    }

    /// Starts a short task in parallel with its caller. `None` if as many tasks run as there are threads. The task gets
    /// its own thread: the runtime would run it on the caller's thread, after the caller.
    pub(crate) fn in_parallel<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let handle = self.runtime.as_ref()?.handle();
        let inside = handle.clone();
        let has_room = self.running.load(Ordering::Relaxed) < self.threads;
        has_room.then(|| handle.spawn_blocking(move || inside.block_on(task)))
    }
}

impl Drop for Scans {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which is not allowed on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Scans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scans")
    }
}
