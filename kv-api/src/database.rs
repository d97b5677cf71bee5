//! The database.

use crate::{Durability, Limits, Result, Transaction};

/// An ordered, transactional key-value database: a cheap handle.
pub trait Database: Clone + Send + Sync + 'static {
    /// Its transactions.
    type Transaction: Transaction;

    /// Begins a transaction. Does no I/O: the read version is fetched at the first read.
    fn begin(&self) -> Result<Self::Transaction>;

    /// Limits on the sizes and times of its transactions.
    fn limits(&self) -> Limits;

    /// What an acknowledged commit survives.
    fn durability(&self) -> Durability;
}
