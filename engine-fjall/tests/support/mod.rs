//! The suites' way to fjall: a fresh folder for each scenario.

use conformance::{Fixture, Harness};
use engine_fjall::{FjallDatabase, FjallOptions};
use occ::ShiftedClock;

/// Databases whose time is moved by hand.
#[derive(Clone, Copy)]
pub(crate) struct FjallHarness;

impl Harness for FjallHarness {
    type Database = FjallDatabase;

    fn engine(&self) -> String {
        "engine-fjall".into()
    }

    fn open(&self, scenario: &str) -> Fixture<FjallDatabase> {
        let folder = match tempfile::tempdir() {
            Ok(folder) => folder,
            Err(error) => panic!("no folder for {scenario}: {error}"),
        };
        let clock = ShiftedClock::new();
        match FjallDatabase::open(folder.path(), FjallOptions::new().clock(clock.clone())) {
            Ok(database) => Fixture::new(database).clock(move |by| clock.advance(by)).keep(folder),
            Err(error) => panic!("{scenario}: {error}"),
        }
    }
}
