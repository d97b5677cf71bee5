//! Threads for scans. They are not those that serve requests, which must not wait for a disk.

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

    /// Runs a task to its end. The task is aborted when the caller stops waiting. `None` if it panicked or the server is
    /// shutting down.
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

    /// Starts a task that continues whether or not anybody waits for it. `None` if the server is shutting down.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.0.as_ref().map(|runtime| runtime.spawn(task))
    }
}

impl Drop for Scans {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which is not allowed on a thread of another runtime.
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
