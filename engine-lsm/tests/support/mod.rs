//! The suites' way to lsm: a fresh folder for each scenario.

use conformance::{Fixture, Harness};
use engine_lsm::{LsmDatabase, LsmOptions};
use occ::ShiftedClock;

/// Databases whose time is moved by hand.
#[derive(Clone, Copy)]
pub(crate) struct LsmHarness;

impl Harness for LsmHarness {
    type Database = LsmDatabase;

    fn engine(&self) -> String {
        "engine-lsm".into()
    }

    fn open(&self, scenario: &str) -> Fixture<LsmDatabase> {
        let folder = match tempfile::tempdir() {
            Ok(folder) => folder,
            Err(error) => panic!("no folder for {scenario}: {error}"),
        };
        let clock = ShiftedClock::new();
        match LsmDatabase::open(folder.path(), LsmOptions::new().clock(clock.clone())) {
            Ok(database) => Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder),
            Err(error) => panic!("{scenario}: {error}"),
        }
    }
}
