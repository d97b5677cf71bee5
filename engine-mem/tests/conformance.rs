//! The suite, on the engine in memory and on every wrapper around it.

use conformance::wrappers::{Boxed, Calm, Counting, Mirrored, Under, run_on_one_thread};
use conformance::{Fixture, Harness};
use engine_mem::MemDatabase;
use occ::{OccBuilder, ShiftedClock};

#[derive(Clone, Copy)]
struct MemHarness;

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

conformance::suite!(MemHarness);
conformance::tape!(MemHarness, 600);

mod prefixed {
    conformance::suite!(super::Under(super::MemHarness));
}

mod counted {
    conformance::suite!(super::Counting(super::MemHarness));
}

mod boxed {
    conformance::suite!(super::Boxed(super::MemHarness));
}

mod chaos_at_rate_zero {
    conformance::suite!(super::Calm(super::MemHarness));
}

#[test]
fn a_mirror_of_two_passes_what_one_thread_can_ask() {
    run_on_one_thread(&Mirrored(MemHarness, MemHarness));
}

mod mirrored {
    use super::{MemHarness, Mirrored};

    conformance::tape!(Mirrored(MemHarness, MemHarness), 30);
}
