//! Keeps a transaction's persistent options over retries, where the crate loses them.
//!
//! The client's `on_error` keeps the timeout, the retry limit, the longest pause and the count of retries
//! (`fdb.options`, `persistent`). But the crate has no `on_error` for a committed transaction, nor for one whose
//! commit failed with another error than the given one. It has only a reset, which forgets the options. After such
//! a reset they are set again, reduced by what was used up.

use std::time::{Duration, Instant};

use foundationdb::Transaction;
use foundationdb::options::TransactionOption as Native;
use kv_api::TransactionOption;

use crate::convert::milliseconds;

/// Persistent options since the start or the last reset.
#[derive(Debug)]
pub(crate) struct Kept {
    begun: Instant,
    retries: u32,
    timeout: Duration,
    retry_limit: Option<u32>,
    max_retry_delay: Option<Duration>,
}

impl Kept {
    pub(crate) fn new() -> Self {
        Kept { begun: Instant::now(), retries: 0, timeout: Duration::ZERO, retry_limit: None, max_retry_delay: None }
    }

    /// Records an option, if it is persistent.
    pub(crate) fn note(&mut self, option: TransactionOption) {
        match option {
            TransactionOption::Timeout(after) => self.timeout = after,
            TransactionOption::RetryLimit(times) => self.retry_limit = times,
            TransactionOption::MaxRetryDelay(delay) => self.max_retry_delay = Some(delay),
            _ => {}
        }
    }

    /// Counts a retry.
    pub(crate) fn retried(&mut self) {
        self.retries = self.retries.saturating_add(1);
    }

    /// Notes that the cluster answered and had no room. That counts neither as a retry nor against the timeout.
    pub(crate) fn starved(&mut self) {
        self.begun = Instant::now();
    }

    /// Sets the recorded options on a transaction that was reset.
    pub(crate) fn restore(&self, native: &Transaction) {
        let mut options = Vec::new();
        if !self.timeout.is_zero() {
            let left = self.timeout.saturating_sub(self.begun.elapsed());
            options.push(Native::Timeout(milliseconds(left).max(1)));
        }
        if let Some(limit) = self.retry_limit {
            let left = limit.saturating_sub(self.retries);
            options.push(Native::RetryLimit(i32::try_from(left).unwrap_or(i32::MAX)));
        }
        if let Some(delay) = self.max_retry_delay {
            options.push(Native::MaxRetryDelay(milliseconds(delay)));
        }
        for option in options {
            // The client has accepted the same option before.
            let _ = native.set_option(option);
        }
    }
}
