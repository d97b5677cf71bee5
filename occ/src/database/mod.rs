//! The database handle, and how to open a database.

pub(crate) mod core;

pub use self::core::last_version;

use std::path::Path;

use kv_api::{Database, Durability, Figure, Limits, Result};

use crate::Clock;
use crate::clock::{SystemClock, system};
use crate::database::core::{Core, Handle};
#[cfg(any(test, feature = "faults"))]
use crate::faults::Point;
use crate::faults::{Fault, Hook};
use crate::store::{Batch, Store};
use crate::sync::Arc;
use crate::transaction::OccTransaction;

/// A transactional database over a [`Store`]: a cheap handle. It closes when [`close`](Self::close) is called,
/// or when the last handle and the last transaction are dropped.
pub struct OccDatabase<S: Store>(Arc<Handle<S>>);

impl<S: Store> OccDatabase<S> {
    /// A database over `store` with the machine's clock and FoundationDB's limits. Fails like
    /// [`OccBuilder::open`].
    pub fn over(store: S) -> Result<Self> {
        OccBuilder::new().open(store)
    }

    /// A database over a new store in memory, with the machine's clock and FoundationDB's limits.
    ///
    /// # Panics
    ///
    /// As [`OccBuilder::build`] does.
    pub fn new() -> Self
    where
        S: Default,
    {
        OccBuilder::new().build()
    }

    /// Opens the database whose store is at `path`. Fails like the store's [`OpenAt::open_at`].
    pub fn open(path: impl AsRef<Path>, options: S::Options) -> Result<Self>
    where
        S: OpenAt,
    {
        S::open_at(path.as_ref(), options)
    }

    /// Closes the database. Commits in progress end, everything is synced, and the committer thread ends. Every
    /// later operation fails with 1043. Closing again does nothing.
    pub fn close(&self) -> Result<()> {
        self.0.core.close()
    }

    /// Applies a batch of the database that this one [follows](OccBuilder::standby), with its version and the rows that
    /// it had in that database's store. It is synced and readable afterwards, and watches on its keys complete. Blocks
    /// the calling thread while the disk syncs.
    ///
    /// # Errors
    /// 2000 if this database follows none; the store's errors. After 1021 the database is closed.
    pub fn replay(&self, batch: Batch) -> Result<()> {
        self.0.core.replay(batch)
    }

    /// Fails if the database is closed, or has failed. What its store says then may not be on the disk.
    ///
    /// # Errors
    /// Why it is closed.
    pub fn check_open(&self) -> Result<()> {
        self.0.core.check_open()
    }

    #[cfg(test)]
    pub(crate) fn assert_no_watches(&self) {
        self.0.core.watches.assert_none();
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.0.core.store
    }
}

/// A store that lives at a path, such as one on the disk.
pub trait OpenAt: Store + Sized {
    /// Options of the store and the database.
    type Options;

    /// Opens the store and the database over it.
    fn open_at(path: &Path, options: Self::Options) -> Result<OccDatabase<Self>>;
}

impl<S: Store + Default> Default for OccDatabase<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Store> Clone for OccDatabase<S> {
    fn clone(&self) -> Self {
        OccDatabase(self.0.clone())
    }
}

impl<S: Store> std::fmt::Debug for OccDatabase<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OccDatabase").finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store> Database for OccDatabase<S> {
    type Transaction = OccTransaction<S>;

    fn begin(&self) -> Result<Self::Transaction> {
        self.0.core.check_open()?;
        Ok(OccTransaction::new(self.0.clone()))
    }

    /// There are no priorities.
    fn in_background(&self) -> Self {
        self.clone()
    }

    fn limits(&self) -> Limits {
        self.0.core.limits
    }

    fn durability(&self) -> Durability {
        self.0.core.store.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.0.core.store.compact(begin, end);
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.0.core.store.is_compacting(begin, end)
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        self.0.core.store.disk_bytes(begin, end)
    }

    fn figures(&self) -> Vec<Figure> {
        [self.0.core.figures(), self.0.core.store.figures()].concat()
    }

    fn snapshot(&self, folder: &Path) -> Result<()> {
        self.0.core.check_open()?;
        self.0.core.store.copy_to(folder)
    }
}

/// Options of a database.
#[derive(Clone, Default)]
pub struct OccBuilder {
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    limits: Limits,
    is_standby: bool,
    fault: Option<Fault>,
    hook: Hook,
}

impl OccBuilder {
    /// The machine's clock, a seed from the machine, FoundationDB's limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the seed for the jitter of pauses.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the limits of transactions.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The database only follows another one: it refuses transactions that write with 2023, and takes the other one's
    /// batches ([`OccDatabase::replay`]).
    #[must_use]
    pub fn standby(mut self) -> Self {
        self.is_standby = true;
        self
    }

    /// Plants a fault, for tests of a suite.
    #[cfg(any(test, feature = "faults"))]
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Calls `act` at each point of every batch, on the committing thread. For tests of a suite.
    #[cfg(any(test, feature = "faults"))]
    #[must_use]
    pub fn at_points(mut self, act: impl Fn(Point) + Send + Sync + 'static) -> Self {
        self.hook = Hook::new(act);
        self
    }

    /// A database over a new store in memory.
    ///
    /// # Panics
    ///
    /// If a new store cannot be read.
    pub fn build<S: Store + Default>(self) -> OccDatabase<S> {
        match self.open(S::default()) {
            Ok(database) => database,
            Err(error) => panic!("an empty store cannot be read: {error}"),
        }
    }

    /// Opens a database over `store`. Fails if the store cannot be read; with 1522 if its version record is
    /// damaged; with 2108 if it has another format.
    pub fn open<S: Store>(self, store: S) -> Result<OccDatabase<S>> {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let seed = self.seed.unwrap_or_else(system::seed);
        let core = Arc::new(Core::open(store, clock, self.limits, seed, self.is_standby, self.fault, self.hook)?);
        let weak = Arc::downgrade(&core);
        core.store.when_quiet(Box::new(move || {
            if let Some(core) = weak.upgrade() {
                drop(core.newest());
            }
        }));
        Ok(OccDatabase(Arc::new(Handle { core })))
    }
}

impl std::fmt::Debug for OccBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OccBuilder").field("seed", &self.seed).field("limits", &self.limits).finish_non_exhaustive()
    }
}
