//! A commit that waits until something else has happened.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Holds one commit.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Number of commits before it.
    before: usize,
    commits: AtomicUsize,
    pub(crate) reached: Notify,
    pub(crate) released: Notify,
}

impl Hold {
    /// Holds the commit that has this many before it.
    pub(crate) fn new(before: usize) -> Self {
        Hold { before, commits: AtomicUsize::new(0), reached: Notify::new(), released: Notify::new() }
    }

    /// Called before each commit of a transaction that writes.
    pub(crate) async fn before_commit(&self) {
        if self.commits.fetch_add(1, Ordering::Relaxed) == self.before {
            self.reached.notify_one();
            self.released.notified().await;
        }
    }
}
