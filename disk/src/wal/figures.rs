//! Figures of the log and its flushes.

use std::time::Instant;

use kv_api::Figure;
use kv_api::figures::{Counter, Histogram};

/// The time, to measure how long something takes.
#[expect(clippy::disallowed_methods, reason = "figures for people; no outcome depends on it")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Counts of a log.
#[derive(Debug)]
pub(super) struct LogCounts {
    /// Bytes that were appended.
    pub(super) bytes: Counter,
    /// Times of syncs.
    pub(super) syncs: Histogram,
    /// Times of flushes that succeeded.
    pub(super) flushes: Histogram,
    pub(super) flushed_bytes: Counter,
    pub(super) failed_flushes: Counter,
    /// Number of batches that waited for a flush.
    pub(super) stalls: Counter,
}

impl Default for LogCounts {
    fn default() -> Self {
        LogCounts {
            bytes: Counter::default(),
            syncs: Histogram::of_times(),
            flushes: Histogram::of_times(),
            flushed_bytes: Counter::default(),
            failed_flushes: Counter::default(),
            stalls: Counter::default(),
        }
    }
}

impl LogCounts {
    /// `unflushed`: the bytes in memory.
    pub(super) fn figures(&self, unflushed: usize) -> Vec<Figure> {
        let counter = |name, help, counter: &Counter| Figure::counter(name, help, counter.value());
        vec![
            counter("couch_layer_log_bytes_total", "bytes appended to the write-ahead log", &self.bytes),
            Figure::histogram("couch_layer_log_sync_seconds", "time of syncs of the log", self.syncs.seconds()),
            Figure::histogram("couch_layer_flush_seconds", "time of flushes to the store", self.flushes.seconds()),
            counter("couch_layer_flush_bytes_total", "bytes that were flushed", &self.flushed_bytes),
            counter("couch_layer_flush_failures_total", "flushes that failed and are retried", &self.failed_flushes),
            counter("couch_layer_flush_stalls_total", "batches that waited for a flush", &self.stalls),
            Figure::gauge("couch_layer_unflushed_bytes", "bytes in memory that are not flushed yet", unflushed as f64),
        ]
    }
}
