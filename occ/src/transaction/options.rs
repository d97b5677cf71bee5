//! The options of a transaction.
//!
//! Three are persistent in `fdb.options`: the timeout, the retry limit and the longest pause. `on_error` keeps
//! them and `reset` forgets them. All others are forgotten by both.

use std::time::Duration;

use kv_api::{Error, Result, TransactionOption, error};

/// Default of the longest pause of `on_error` (`DEFAULT_MAX_BACKOFF`).
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Options that outlive `on_error`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Persistent {
    /// Counted from the creation or the last reset; zero for none.
    pub(crate) timeout: Duration,
    pub(crate) retry_limit: Option<u32>,
    pub(crate) max_retry_delay: Duration,
}

impl Default for Persistent {
    fn default() -> Self {
        Persistent { timeout: Duration::ZERO, retry_limit: None, max_retry_delay: MAX_RETRY_DELAY }
    }
}

/// Options of one attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) size_limit: usize,
    pub(crate) next_write_no_conflict: bool,
    /// Snapshot reads see the transaction's writes while this is above zero. Each enable and disable counts.
    pub(crate) snapshot_ryw: i32,
    pub(crate) ryw_disabled: bool,
    pub(crate) bypass_unreadable: bool,
    pub(crate) read_system_keys: bool,
    pub(crate) bypass_storage_quota: bool,
}

impl Options {
    pub(crate) fn new(size_limit: usize) -> Self {
        Options {
            size_limit,
            next_write_no_conflict: false,
            snapshot_ryw: 1,
            ryw_disabled: false,
            bypass_unreadable: false,
            read_system_keys: false,
            bypass_storage_quota: false,
        }
    }

    /// Sets an option. `touched`: the transaction has read or written. `largest`: the greatest allowed size
    /// limit.
    pub(crate) fn set(
        &mut self,
        persistent: &mut Persistent,
        option: TransactionOption,
        touched: bool,
        largest: usize,
    ) -> Result<()> {
        match option {
            TransactionOption::Timeout(timeout) => persistent.timeout = timeout,
            TransactionOption::RetryLimit(limit) => persistent.retry_limit = limit,
            TransactionOption::MaxRetryDelay(delay) => persistent.max_retry_delay = delay,
            TransactionOption::SizeLimit(bytes) => {
                if !(32..=largest).contains(&bytes) {
                    return Err(Error::new(error::INVALID_OPTION_VALUE));
                }
                self.size_limit = bytes;
            }
            TransactionOption::NextWriteNoWriteConflictRange => self.next_write_no_conflict = true,
            TransactionOption::SnapshotRywEnable => self.snapshot_ryw = self.snapshot_ryw.saturating_add(1),
            TransactionOption::SnapshotRywDisable => self.snapshot_ryw = self.snapshot_ryw.saturating_sub(1),
            TransactionOption::ReadYourWritesDisable => {
                if touched {
                    return Err(Error::new(error::CLIENT_INVALID_OPERATION)
                        .with_context("read-your-writes is disabled before the first read or write"));
                }
                self.ryw_disabled = true;
            }
            TransactionOption::BypassUnreadable => self.bypass_unreadable = true,
            TransactionOption::BypassStorageQuota => self.bypass_storage_quota = true,
            TransactionOption::ReadSystemKeys => self.read_system_keys = true,
            // An embedded engine has no stale read version to risk and no queues with priorities.
            TransactionOption::CausalReadRisky | TransactionOption::PriorityBatch | TransactionOption::Tag(_) => {}
            _ => return Err(Error::new(error::INVALID_OPTION)),
        }
        Ok(())
    }
}
