//! Where the native transaction is while several handles share it.
//!
//! The crate's `commit`, `cancel` and `on_error` take the transaction and give back another type, so
//! that misuse does not compile. Behind shared handles the same is told at run time, in FoundationDB's
//! own codes: 2017 while a commit is under way and after it, 1025 after a cancel.
//!
//! ```text
//!              commit            done
//!   Live ────────────► Away ────────────► Committed | Failed
//!    ▲ │ cancel         │ on_error: given back  │ on_error, reset
//!    │ └──► Cancelled ◄─┘                       │
//!    └──────────────────────────────────────────┘
//! ```

use foundationdb::{Transaction, TransactionCancelled, TransactionCommitError, TransactionCommitted};
use kv_api::{Error, error};

pub(crate) enum Slot {
    /// In use.
    Live(Transaction),
    /// In the hands of a commit or of `on_error`; or lost with the future of one that was dropped.
    Away,
    /// Committed.
    Committed(TransactionCommitted),
    /// Its commit failed.
    Failed(TransactionCommitError),
    /// Cancelled.
    Cancelled(TransactionCancelled),
}

impl Slot {
    /// The transaction, for a read, a write or a commit.
    pub(crate) fn live(&self) -> Result<&Transaction, Error> {
        match self {
            Slot::Live(transaction) => Ok(transaction),
            Slot::Away | Slot::Committed(_) | Slot::Failed(_) => Err(Error::new(error::USED_DURING_COMMIT)),
            Slot::Cancelled(_) => Err(Error::new(error::TRANSACTION_CANCELLED)),
        }
    }

    /// Takes what is there, leaving [`Slot::Away`].
    pub(crate) fn take(&mut self) -> Slot {
        std::mem::replace(self, Slot::Away)
    }
}
