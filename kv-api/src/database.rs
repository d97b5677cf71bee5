//! The database.

use std::path::Path;

use crate::error::UNSUPPORTED_OPERATION;
use crate::{Durability, Error, Figure, Limits, Result, Transaction};

/// An ordered, transactional key-value database: a cheap handle.
pub trait Database: Clone + Send + Sync + 'static {
    /// Its transactions.
    type Transaction: Transaction;

    /// Begins a transaction. Does no I/O: the read version is fetched at the first read.
    fn begin(&self) -> Result<Self::Transaction>;

    /// The same database, for work in the background: all attempts of the transactions that this handle begins have a
    /// lower priority than others ([`TransactionOption::PriorityBatch`](crate::TransactionOption::PriorityBatch)). They
    /// may wait long, so nobody should wait for them: that a cluster has no room for them (1051) counts neither as a
    /// retry nor against their timeout. Engines without priorities return the handle as it is.
    #[must_use]
    fn in_background(&self) -> Self {
        self.clone()
    }

    /// Limits on the sizes and times of its transactions.
    fn limits(&self) -> Limits;

    /// The failures that an acknowledged commit survives.
    fn durability(&self) -> Durability;

    /// Asks the engine to free the disk space of removed rows between two keys. Returns at once. Does nothing if the
    /// engine frees space without a request.
    fn compact(&self, begin: &[u8], end: &[u8]) {
        let _ = (begin, end);
    }

    /// Whether space between two keys that was [asked for](Self::compact) is not free yet.
    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        let _ = (begin, end);
        false
    }

    /// Bytes on the disk of everything between two keys, as of now, including removed rows whose space is not free yet.
    /// Adjacent ranges that cover all keys add up roughly to the size of the engine's files. `None` if the engine does
    /// not know it, or does not use a disk.
    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        let _ = (begin, end);
        None
    }

    /// Figures of the engine's work since it was opened, and of its present state. Cheap, but not free: it may take
    /// locks that commits take.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Copies everything into a new folder, as of one moment: every acknowledged commit until the call, and none of
    /// which only a part is there. It may hold up commits for the time of a short read, and blocks the calling thread
    /// longer. The copy is opened only by who knows that it is one: the store goes on beside it, and both would give
    /// out the same versions.
    ///
    /// # Errors
    /// 2108 if the engine cannot do it; 2000 if the folder exists; the disk's errors. Nothing is left in the folder then.
    fn snapshot(&self, folder: &Path) -> Result<()> {
        Err(no_snapshot(folder))
    }
}

/// The error of an engine without snapshots: 2108.
pub fn no_snapshot(folder: &Path) -> Error {
    Error::new(UNSUPPORTED_OPERATION).with_context(format!(
        "there is no snapshot in {}: this engine has none; make a backup, or copy the folder while nobody has it open",
        folder.display()
    ))
}
