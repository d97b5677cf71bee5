//! The engines of this workspace, with a simulated clock.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::{Fixture, Harness};
use disk::{DiskOptions, DiskStore, OnDisk};
use engine_mem::MemDatabase;
use kv_api::BoxFuture;
use occ::{Clock, OccBuilder, OccDatabase};

/// A clock that moves on when somebody waits for it, and when a suite moves it.
#[derive(Clone, Default)]
pub(crate) struct SimulatedClock(Arc<AtomicU64>);

impl SimulatedClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<()> {
        self.advance(pause);
        Box::pin(std::future::ready(()))
    }
}

/// The engine in memory.
#[derive(Clone, Copy)]
pub(crate) struct InMemory;

impl Harness for InMemory {
    type Database = MemDatabase;

    fn engine(&self) -> String {
        "engine-mem".into()
    }

    fn open(&self, _scenario: &str) -> Fixture<MemDatabase> {
        let clock = SimulatedClock::default();
        let database = OccBuilder::new().clock(clock.clone()).build();
        Fixture::new(database).clock(move |by| clock.advance(by))
    }
}

/// An engine on disk, in a fresh folder for each database. `D` is the engine's public database type, so its
/// write-ahead log is tested too.
pub(crate) struct InFolder<D>(PhantomData<fn() -> D>);

impl<D> InFolder<D> {
    pub(crate) fn new() -> Self {
        InFolder(PhantomData)
    }
}

impl<S: DiskStore> Harness for InFolder<OccDatabase<OnDisk<S>>> {
    type Database = OccDatabase<OnDisk<S>>;

    fn engine(&self) -> String {
        format!("engine-{}", S::ENGINE)
    }

    fn open(&self, _scenario: &str) -> Fixture<Self::Database> {
        let clock = SimulatedClock::default();
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
        let database = OccDatabase::open(folder.path(), DiskOptions::new().clock(clock.clone()))
            .unwrap_or_else(|error| panic!("{} does not open: {error}", S::ENGINE));
        Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder)
    }
}
