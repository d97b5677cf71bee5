//! The database on redb.

use std::path::Path;

use kv_api::{Database, Durability, Limits, Result};
use occ::{Clock, OccBuilder, OccDatabase, OccTransaction};

use crate::RedbStore;

/// A durable database in a folder: a cheap handle. The folder is released when the last handle and
/// the last transaction are dropped.
#[derive(Clone, Debug)]
pub struct RedbDatabase(OccDatabase<RedbStore>);

impl RedbDatabase {
    /// Opens the database in the folder at `path`, which is created where there is none.
    ///
    /// # Errors
    ///
    /// 1529 when another process has it open; 2108 when it is of another engine or format; 2000 when it
    /// is not ours; 1514 when it cannot be written; 1522 when its file is damaged; 1510 when the disk
    /// fails. Each with a sentence that says what to do; none changes what is there.
    pub fn open(path: impl AsRef<Path>, options: RedbOptions) -> Result<Self> {
        let store = RedbStore::open(path.as_ref(), options.cache_bytes, options.durability)?;
        options.occ.open(store).map(RedbDatabase)
    }

    /// Closes the database: commits under way end, and every later operation fails with 1043.
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Database for RedbDatabase {
    type Transaction = OccTransaction<RedbStore>;

    fn begin(&self) -> Result<Self::Transaction> {
        self.0.begin()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn durability(&self) -> Durability {
        self.0.durability()
    }
}

/// How a [`RedbDatabase`] is opened.
#[derive(Clone, Debug)]
pub struct RedbOptions {
    cache_bytes: usize,
    durability: Durability,
    occ: OccBuilder,
}

impl Default for RedbOptions {
    fn default() -> Self {
        RedbOptions { cache_bytes: 256 << 20, durability: Durability::Disk, occ: OccBuilder::new() }
    }
}

impl RedbOptions {
    /// A cache of 256 MiB, synced to the disk before a commit is acknowledged.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes redb's cache may take.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// What an acknowledged commit survives: `Disk`, the default, or `Process`, for tests and benches.
    /// redb keeps commits that are not synced in memory, until the database is closed.
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
}
