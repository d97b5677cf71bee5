//! The state of the native transaction that several handles share.
//!
//! The crate's `commit`, `cancel` and `on_error` consume the transaction and return another type, so that misuse
//! does not compile. Shared handles detect misuse at run time, with FoundationDB's codes: 2017 during and after a
//! commit, 1025 after a cancel.
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
    /// Taken by a commit or by `on_error`; or lost, because their future was dropped.
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

    /// Takes the state, and leaves [`Slot::Away`].
    pub(crate) fn take(&mut self) -> Slot {
        std::mem::replace(self, Slot::Away)
    }
}
