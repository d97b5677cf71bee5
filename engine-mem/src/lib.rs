//! The engine in memory: a persistent sorted map under `occ`. For tests, for caches, and as the
//! simplest example of a store.

mod store;

pub use store::{MemRange, MemSnapshot, MemStore};

/// A database in memory: a cheap handle. Its data is gone with the last handle.
///
/// ```
/// use engine_mem::MemDatabase;
/// use occ::{ManualClock, OccBuilder};
///
/// let plain = MemDatabase::new();
/// // With a clock of the caller's, and a seed.
/// let timed: MemDatabase = OccBuilder::new().clock(ManualClock::new()).seed(7).build();
/// ```
pub type MemDatabase = occ::OccDatabase<MemStore>;
