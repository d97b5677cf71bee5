//! Writes without conflict ranges.

use kv_api::{IntoBytes, Transaction, TransactionOption};

/// Writes without a conflict range, for rows that another row guards: writes do not depend on reading them.
pub(crate) trait Unguarded: Transaction {
    /// Sets a key without a write conflict range.
    fn set_unguarded(&self, key: impl IntoBytes, value: impl IntoBytes) {
        self.set_option(TransactionOption::NextWriteNoWriteConflictRange);
        self.set(key, value);
    }

    /// Clears a key without a write conflict range.
    fn clear_unguarded(&self, key: &[u8]) {
        self.set_option(TransactionOption::NextWriteNoWriteConflictRange);
        self.clear(key);
    }

    /// Clears a range without a write conflict range.
    fn clear_range_unguarded(&self, begin: &[u8], end: &[u8]) {
        self.set_option(TransactionOption::NextWriteNoWriteConflictRange);
        self.clear_range(begin, end);
    }
}

impl<T: Transaction> Unguarded for T {}
