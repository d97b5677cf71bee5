//! Threads for scans, beside those that serve requests.

use std::fmt;
use std::future::Future;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// A runtime for work that reads much.
pub(crate) struct Scans(Option<Runtime>);

impl Scans {
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads.max(1)).thread_name("couch-scan").enable_all();
        builder.build().map(|runtime| Scans(Some(runtime)))
    }

    /// Runs a task to its end. The task is aborted when the caller stops waiting. `None` when it panicked or the
    /// server is shutting down.
    pub(crate) async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        /// Aborts the task when it is dropped.
        struct Aborting<T>(JoinHandle<T>);
        impl<T> Drop for Aborting<T> {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let mut task = Aborting(self.spawn(task)?);
        (&mut task.0).await.ok()
    }

    /// Starts a task that goes on whether or not anybody waits for it. `None` when the server is shutting down.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.0.as_ref().map(|runtime| runtime.spawn(task))
    }
}

impl Drop for Scans {
    fn drop(&mut self) {
        // A runtime that is dropped waits for its threads, which must not happen on another runtime's.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Scans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scans")
    }
}
