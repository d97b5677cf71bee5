//! The suite, on the engine in memory and on every wrapper around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::wrappers::{Boxed, Calm, Counting, Under};
use conformance::{Fixture, Harness};
use engine_mem::MemDatabase;
use occ::{Clock, SystemClock};

/// The machine's clock, which the suite moves forward: pauses end by themselves, and five seconds
/// pass at once.
#[derive(Clone, Default)]
struct ShiftedClock {
    system: SystemClock,
    millis: Arc<AtomicU64>,
}

impl ShiftedClock {
    fn advance(&self, by: Duration) {
        self.millis.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Duration {
        self.system.now() + Duration::from_millis(self.millis.load(Ordering::SeqCst))
    }

    fn sleep(&self, pause: Duration) -> futures_util::future::BoxFuture<'static, ()> {
        self.system.sleep(pause)
    }
}

#[derive(Clone, Copy)]
struct MemHarness;

impl Harness for MemHarness {
    type Database = MemDatabase;

    fn engine(&self) -> String {
        "engine-mem".into()
    }

    fn open(&self, _scenario: &str) -> Fixture<MemDatabase> {
        let clock = ShiftedClock::default();
        Fixture::new(MemDatabase::builder().clock(clock.clone()).build()).clock(move |by| clock.advance(by))
    }
}

conformance::suite!(MemHarness);

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
