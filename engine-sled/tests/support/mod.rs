//! The suites' way to sled: a fresh folder for each scenario.

use conformance::{Fixture, Harness};
use engine_sled::{SledDatabase, SledOptions};
use occ::ShiftedClock;

/// Databases whose time is moved by hand.
#[derive(Clone, Copy)]
pub(crate) struct SledHarness;

impl Harness for SledHarness {
    type Database = SledDatabase;

    fn engine(&self) -> String {
        "engine-sled".into()
    }

    fn open(&self, scenario: &str) -> Fixture<SledDatabase> {
        let folder = match tempfile::tempdir() {
            Ok(folder) => folder,
            Err(error) => panic!("no folder for {scenario}: {error}"),
        };
        let clock = ShiftedClock::new();
        match SledDatabase::open(folder.path(), SledOptions::new().clock(clock.clone())) {
            Ok(database) => Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder),
            Err(error) => panic!("{scenario}: {error}"),
        }
    }
}
