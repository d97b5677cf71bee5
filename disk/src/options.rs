//! How a database in a folder is opened.

use kv_api::{Durability, Limits};
use occ::{Clock, OccBuilder};

/// Default size of a store's cache: 96 MiB. The process takes more under full load, for writes in
/// progress and for the allocator. A server stays below 512 MB after loading a million
/// small documents.
pub const DEFAULT_CACHE_BYTES: u64 = 96 << 20;

/// Options of a database in a folder.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    pub(crate) cache_bytes: u64,
    pub(crate) durability: Durability,
    pub(crate) is_copy: bool,
    pub(crate) occ: OccBuilder,
}

impl Default for DiskOptions {
    fn default() -> Self {
        let (cache_bytes, durability) = (DEFAULT_CACHE_BYTES, Durability::Disk);
        DiskOptions { cache_bytes, durability, is_copy: false, occ: OccBuilder::new() }
    }
}

impl DiskOptions {
    /// The default cache, and commits synced to the disk before they are acknowledged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the store's cache.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets what an acknowledged commit survives: `Disk`, the default, or another of the engine's
    /// ([`DiskStore::DURABILITIES`](crate::DiskStore::DURABILITIES)), for tests and benches.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Opens a [snapshot](kv_api::Database::snapshot) that nobody has taken into use, too, which is refused otherwise. Whoever
    /// does so sees to it that no version has two meanings, then calls [`take_into_use`](crate::folder::take_into_use).
    #[must_use]
    pub fn copy(mut self) -> Self {
        self.is_copy = true;
        self
    }

    /// Opens a snapshot that nobody has taken into use, for who lets it follow the store that it was copied from
    /// ([`StandbyStore`](crate::StandbyStore)). Other writes are refused: 2023.
    #[must_use]
    pub fn standby(mut self) -> Self {
        self.is_copy = true;
        self.occ = self.occ.standby();
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.occ = self.occ.clock(clock);
        self
    }

    /// Sets the seed for the jitter of pauses.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.occ = self.occ.seed(seed);
        self
    }

    /// Sets the limits of transactions.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.occ = self.occ.limits(limits);
        self
    }

    /// Calls `act` at each point of every batch: see [`OccBuilder::at_points`].
    #[cfg(feature = "faults")]
    #[must_use]
    pub fn at_points(mut self, act: impl Fn(occ::Point) + Send + Sync + 'static) -> Self {
        self.occ = self.occ.at_points(act);
        self
    }
}
