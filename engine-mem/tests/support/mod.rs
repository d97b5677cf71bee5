//! The harness that runs the suites on the engine in memory.

use conformance::{Fixture, Harness};
use engine_mem::MemDatabase;
use occ::{OccBuilder, ShiftedClock};

/// Databases whose time is moved by hand.
#[derive(Clone, Copy)]
pub(crate) struct MemHarness;

impl Harness for MemHarness {
    type Database = MemDatabase;

    fn engine(&self) -> String {
        "engine-mem".into()
    }

    fn open(&self, _scenario: &str) -> Fixture<MemDatabase> {
        let clock = ShiftedClock::new();
        Fixture::new(OccBuilder::new().clock(clock.clone()).build()).clock(move |by| clock.advance(by))
    }
}
