//! What a transaction keeps over its retries, for the one case in which the crate loses it.
//!
//! The client's `on_error` keeps the timeout, the retry limit, the longest pause and the count of
//! retries (`fdb.options`, `persistent`). The crate has no `on_error` for a transaction that has been
//! committed, nor for one whose commit failed with another error than the one that is now given: there
//! is only a reset, which forgets them. After such a reset they are set again, less what was used up.

use std::time::{Duration, Instant};

use foundationdb::Transaction;
use foundationdb::options::TransactionOption as Native;
use kv_api::TransactionOption;

use crate::convert::milliseconds;

/// What persists, since the transaction began or was reset.
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

    /// Remembers an option that was set, if it is one that persists.
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

    /// Sets on a transaction that was reset what it had before.
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
            // The client took the same before.
            let _ = native.set_option(option);
        }
    }
}
