//! How a database in a folder is opened.

use kv_api::{Durability, Limits};
use occ::{Clock, OccBuilder};

/// What the cache of a store may take unless it is told: 96 MiB. The process takes more, up to some four
/// times that with redb at full work, for what is being written and what an allocator rounds up: so a
/// server stays below 512 MB once it has loaded a million small documents.
pub const DEFAULT_CACHE_BYTES: u64 = 96 << 20;

/// How a database in a folder is opened.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    pub(crate) cache_bytes: u64,
    pub(crate) durability: Durability,
    pub(crate) occ: OccBuilder,
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions { cache_bytes: DEFAULT_CACHE_BYTES, durability: Durability::Disk, occ: OccBuilder::new() }
    }
}

impl DiskOptions {
    /// A cache of [`DEFAULT_CACHE_BYTES`], synced to the disk before a commit is acknowledged.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes the store's cache may take.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// What an acknowledged commit survives: `Disk`, the default, or what else the engine has
    /// ([`DiskStore::DURABILITIES`](crate::DiskStore::DURABILITIES)), for tests and benches.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Follows this clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.occ = self.occ.clock(clock);
        self
    }

    /// Takes the jitter of pauses from this seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.occ = self.occ.seed(seed);
        self
    }

    /// Holds transactions to these limits.
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
