//! Adapts the number of documents in one transaction or request: fewer while they take long, more while they do
//! not.
//!
//! A transaction that outlasts its read version fails as a whole. A retry has fewer documents, but the time is lost. So
//! the number follows the duration of the last transactions, and stays far below that limit.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The pace of one kind of operation of a store.
#[derive(Debug)]
pub(crate) struct Pace {
    at_once: AtomicUsize,
    most: usize,
    slow: Duration,
}

impl Pace {
    /// Starts with `first` documents and never exceeds `most`. A transaction that takes longer than `slow` was too
    /// large.
    pub(crate) const fn new(first: usize, most: usize, slow: Duration) -> Self {
        Pace { at_once: AtomicUsize::new(first), most, slow }
    }

    /// Number of documents to take now; at least one.
    pub(crate) fn at_once(&self) -> usize {
        self.at_once.load(Ordering::Relaxed).max(1)
    }

    /// Waits for the answer to a request for this number of documents, and adapts.
    pub(crate) async fn keep<T, E>(
        &self,
        documents: usize,
        request: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let began = Instant::now();
        let answer = request.await;
        match answer {
            Ok(_) => self.took(documents, began.elapsed()),
            Err(_) => self.failed(documents),
        }
        answer
    }

    /// Records the duration of a request.
    pub(crate) fn took(&self, documents: usize, time: Duration) {
        if time > self.slow {
            self.failed(documents);
        } else if time < self.slow / 4 && documents >= self.at_once() {
            self.at_once.fetch_max((documents * 2).min(self.most), Ordering::Relaxed);
        }
    }

    /// Records that a request had too many documents.
    pub(crate) fn failed(&self, documents: usize) {
        self.at_once.fetch_min((documents / 2).max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_time_taken() {
        let pace = Pace::new(64, 200, Duration::from_millis(400));
        pace.took(64, Duration::from_millis(50));
        assert_eq!(pace.at_once(), 128);
        pace.took(20, Duration::from_millis(1));
        assert_eq!(pace.at_once(), 128, "a few say nothing of many");
        pace.took(128, Duration::from_millis(50));
        assert_eq!(pace.at_once(), 200);
        pace.took(200, Duration::from_millis(300));
        assert_eq!(pace.at_once(), 200);
        pace.took(200, Duration::from_millis(500));
        assert_eq!(pace.at_once(), 100);
        for _ in 0..20 {
            pace.failed(pace.at_once());
        }
        assert_eq!(pace.at_once(), 1);
    }
}
