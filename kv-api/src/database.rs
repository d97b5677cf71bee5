//! The database.

use crate::{Durability, Figure, Limits, Result, Transaction};

/// An ordered, transactional key-value database: a cheap handle.
pub trait Database: Clone + Send + Sync + 'static {
    /// Its transactions.
    type Transaction: Transaction;

    /// Begins a transaction. Does no I/O: the read version is fetched at the first read.
    fn begin(&self) -> Result<Self::Transaction>;

    /// Limits on the sizes and times of its transactions.
    fn limits(&self) -> Limits;

    /// The failures that an acknowledged commit survives.
    fn durability(&self) -> Durability;

    /// Asks for the space on the disk that removed rows between two keys still take. Returns at once. Does nothing if
    /// the engine frees space without a request.
    fn compact(&self, begin: &[u8], end: &[u8]) {
        let _ = (begin, end);
    }

    /// Whether space between two keys that was [asked for](Self::compact) is not free yet.
    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        let _ = (begin, end);
        false
    }

    /// Bytes on the disk of everything between two keys, as of now: also of removed rows whose space is not free yet. The
    /// ranges of a partition of all keys add up to what the engine's files take, about. `None` where an engine does not
    /// know it, or keeps nothing on a disk.
    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        let _ = (begin, end);
        None
    }

    /// What the engine has done since it was opened, and what it holds. Cheap, but not free: it may lock what commits lock.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}
