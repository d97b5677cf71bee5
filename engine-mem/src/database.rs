//! The database in memory.

use kv_api::{Database, Durability, Limits, Result};
use occ::{Clock, OccBuilder, OccDatabase, OccTransaction};

use crate::MemStore;

/// A database in memory: a cheap handle. Its data goes with the last handle.
#[derive(Clone, Debug)]
pub struct MemDatabase(OccDatabase<MemStore>);

impl MemDatabase {
    /// An empty database with the machine's clock.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// An empty database with a clock, a seed or limits of the caller's.
    pub fn builder() -> MemBuilder {
        MemBuilder::default()
    }

    /// Closes the database: every later operation fails with 1043.
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }
}

impl Default for MemDatabase {
    fn default() -> Self {
        Self::new()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Database for MemDatabase {
    type Transaction = OccTransaction<MemStore>;

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

/// What a [`MemDatabase`] is made with.
#[derive(Clone, Debug, Default)]
pub struct MemBuilder(OccBuilder);

impl MemBuilder {
    /// Follows this clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        MemBuilder(self.0.clock(clock))
    }

    /// Takes the jitter of pauses from this seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        MemBuilder(self.0.seed(seed))
    }

    /// Holds transactions to these limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        MemBuilder(self.0.limits(limits))
    }

    /// The database.
    pub fn build(self) -> MemDatabase {
        match self.0.open(MemStore::default()) {
            Ok(database) => MemDatabase(database),
            Err(error) => unreachable!("an empty map has nothing that could fail to be read: {error}"),
        }
    }
}
