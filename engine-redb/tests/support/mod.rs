//! The suites' way to redb: a fresh folder for each scenario.

use conformance::{Fixture, Harness};
use engine_redb::{RedbDatabase, RedbOptions};
use occ::ShiftedClock;

/// Databases whose time is moved by hand.
#[derive(Clone, Copy)]
pub(crate) struct RedbHarness;

impl Harness for RedbHarness {
    type Database = RedbDatabase;

    fn engine(&self) -> String {
        "engine-redb".into()
    }

    fn open(&self, scenario: &str) -> Fixture<RedbDatabase> {
        let folder = match tempfile::tempdir() {
            Ok(folder) => folder,
            Err(error) => panic!("no folder for {scenario}: {error}"),
        };
        let clock = ShiftedClock::new();
        match RedbDatabase::open(folder.path(), RedbOptions::new().clock(clock.clone())) {
            Ok(database) => Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder),
            Err(error) => panic!("{scenario}: {error}"),
        }
    }
}
