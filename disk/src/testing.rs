//! Harnesses to run the tests of `conformance` and `model-suite` on an engine on disk.

use std::marker::PhantomData;
use std::path::Path;

use conformance::durability::{DiskHarness, Point, Reached};
use conformance::{Fixture, Harness};
use kv_api::Result;
use occ::{OccDatabase, ShiftedClock};

use crate::synced::Synced;
use crate::{DiskOptions, DiskStore, OnDisk};

/// Opens each database in a new folder. The suite can move its clock.
#[derive(Debug)]
pub struct SuiteHarness<D>(PhantomData<fn() -> D>);

impl<D> SuiteHarness<D> {
    /// The harness of the engine with this database.
    #[allow(clippy::new_without_default, reason = "a constant of a test file")]
    pub const fn new() -> Self {
        SuiteHarness(PhantomData)
    }
}

impl<S: DiskStore> Harness for SuiteHarness<OccDatabase<OnDisk<S>>> {
    type Database = OccDatabase<OnDisk<S>>;

    fn engine(&self) -> String {
        engine::<S>()
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder for {scenario}: {error}"));
        let clock = ShiftedClock::new();
        match OccDatabase::open(folder.path(), DiskOptions::new().clock(clock.clone())) {
            Ok(database) => Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder),
            Err(error) => panic!("{scenario}: {error}"),
        }
    }
}

/// Opens databases in the folders of the durability tests.
#[derive(Debug)]
pub struct DurabilityHarness<D> {
    cache_bytes: u64,
    database: PhantomData<fn() -> D>,
}

impl<D> DurabilityHarness<D> {
    /// The harness of the engine with this database. With a small cache, reads reach the files.
    pub const fn with_cache(bytes: u64) -> Self {
        DurabilityHarness { cache_bytes: bytes, database: PhantomData }
    }

    fn options(&self) -> DiskOptions {
        DiskOptions::new().cache_bytes(self.cache_bytes)
    }
}

impl<S: DiskStore> DiskHarness for DurabilityHarness<OccDatabase<OnDisk<S>>> {
    type Database = OccDatabase<OnDisk<S>>;

    fn engine(&self) -> String {
        engine::<S>()
    }

    fn open(&self, folder: &Path) -> Result<Self::Database> {
        OccDatabase::open(folder, self.options())
    }

    fn open_as_shipped(&self, folder: &Path) -> Result<Self::Database> {
        OccDatabase::open(folder, DiskOptions::new())
    }

    fn open_with(&self, folder: &Path, reached: Reached) -> Option<Result<Self::Database>> {
        let options = self.options().at_points(move |point| reached(Point::ALL[point as usize]));
        Some(OccDatabase::open(folder, options))
    }

    fn data(&self) -> &'static str {
        "data"
    }

    fn remembered(&self, folder: &Path) -> Option<i64> {
        Synced::open(&folder.join("synced")).and_then(|mut synced| synced.read()).ok()
    }
}

fn engine<S: DiskStore>() -> String {
    format!("engine-{}", S::ENGINE)
}
