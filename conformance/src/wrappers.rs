//! Harnesses around a harness: the wrappers of `kv-api` and of this crate also pass the whole suite.
//!
//! ```ignore
//! mod prefixed {
//!     conformance::suite!(conformance::wrappers::prefixed(super::MemHarness));
//! }
//! ```

use kv_api::{AnyDatabase, Counted, Database, Prefixed};

use crate::chaos::{Chaos, Rates};
use crate::mirror::Mirror;
use crate::{Fixture, Harness, Keyspace, Missing, scenarios};

/// A harness that puts a wrapper around each database of another harness.
#[derive(Clone, Copy, Debug)]
pub struct Wrapped<H: Harness, D> {
    inner: H,
    how: &'static str,
    wrap: fn(Fixture<H::Database>) -> Fixture<D>,
}

impl<H: Harness, D: Database> Harness for Wrapped<H, D> {
    type Database = D;

    fn engine(&self) -> String {
        format!("{}, {}", self.inner.engine(), self.how)
    }

    fn missing(&self) -> Option<Missing> {
        self.inner.missing()
    }

    fn open(&self, scenario: &str) -> Fixture<D> {
        (self.wrap)(self.inner.open(scenario))
    }
}

/// The engine under a prefix: [`Prefixed`].
pub fn prefixed<H: Harness>(inner: H) -> Wrapped<H, Prefixed<H::Database>> {
    let wrap = |fixture: Fixture<H::Database>| {
        // Inside a keyspace that may be shared, and with the largest byte that a prefix can end with.
        let prefix = [&fixture.subspace, b"under\xfe".as_slice()].concat();
        let mut fixture = fixture.map(|database| Prefixed::new(database, prefix));
        fixture.keyspace = Keyspace::Own;
        fixture
    };
    Wrapped { inner, how: "under a prefix", wrap }
}

/// The engine, counted: [`Counted`].
pub fn counted<H: Harness>(inner: H) -> Wrapped<H, Counted<H::Database>> {
    Wrapped { inner, how: "counted", wrap: |fixture| fixture.map(Counted::new) }
}

/// The engine behind a second [`AnyDatabase`].
pub fn boxed<H: Harness>(inner: H) -> Wrapped<H, AnyDatabase> {
    Wrapped { inner, how: "boxed", wrap: |fixture| fixture.map(AnyDatabase::new) }
}

/// The engine in [`Chaos`] at rate zero.
pub fn calm<H: Harness>(inner: H) -> Wrapped<H, Chaos<H::Database>> {
    let wrap = |fixture: Fixture<H::Database>| fixture.map(|database| Chaos::new(database, 0, Rates::default()));
    Wrapped { inner, how: "in chaos at rate zero", wrap }
}

/// Two engines as one: [`Mirror`]. It runs the scenarios of [`run_on_one_thread`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Mirrored<H, I>(pub H, pub I);

impl<H: Harness, I: Harness> Harness for Mirrored<H, I> {
    type Database = Mirror<H::Database, I::Database>;

    fn engine(&self) -> String {
        format!("{} mirrored by {}", self.0.engine(), self.1.engine())
    }

    fn missing(&self) -> Option<Missing> {
        self.0.missing().or_else(|| self.1.missing())
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        let mut other = self.1.open(scenario);
        let keep = std::mem::take(&mut other.keep);
        let mut fixture = self.0.open(scenario);
        assert_eq!(fixture.subspace, other.subspace, "both engines keep the same keys");
        fixture.keep.extend(keep);
        let clocks = (fixture.clock.take(), other.clock.take());
        fixture.map(|database| Mirror::new(database, other.database)).clock(move |by| match &clocks {
            (Some(a), Some(b)) => {
                a(by);
                b(by);
            }
            _ => std::thread::sleep(by),
        })
    }
}

/// Runs every scenario that uses one thread: a [`Mirror`] supports no more.
///
/// # Panics
///
/// As [`run`](crate::run) does.
pub fn run_on_one_thread<H: Harness>(harness: &H) {
    for scenario in scenarios().iter().filter(|scenario| !MANY_THREADS.contains(&scenario.name)) {
        crate::run(harness, scenario.name);
    }
}

/// The scenarios in which threads race.
const MANY_THREADS: &[&str] = &[
    "a_large_transaction_is_all_there_or_not_at_all",
    "counting_on_many_threads_loses_nothing",
    "the_sum_is_kept_by_transfers_on_many_threads",
    "histories_of_real_threads_have_a_serial_order",
    "concurrent_adds_all_count",
    "no_two_transactions_share_a_stamp",
    "one_transaction_is_read_by_several_threads_at_once",
    "a_counter_under_chaos_ends_exact",
];
