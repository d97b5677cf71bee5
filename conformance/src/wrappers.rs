//! Harnesses around a harness: the wrappers of `kv-api` and of this crate also pass the whole suite.
//!
//! ```ignore
//! mod prefixed {
//!     conformance::suite!(conformance::wrappers::Under(super::MemHarness));
//! }
//! ```

use kv_api::{AnyDatabase, Counted, Prefixed};

use crate::chaos::{Chaos, Rates};
use crate::mirror::Mirror;
use crate::{Fixture, Harness, Missing, scenarios};

/// The engine under a prefix: [`Prefixed`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Under<H>(pub H);

impl<H: Harness> Harness for Under<H> {
    type Database = Prefixed<H::Database>;

    fn engine(&self) -> String {
        format!("{} under a prefix", self.0.engine())
    }

    fn missing(&self) -> Option<Missing> {
        self.0.missing()
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        let fixture = self.0.open(scenario);
        // Inside a keyspace that may be shared, and with the largest byte that a prefix can end with.
        let prefix = [&fixture.subspace, b"under\xfe".as_slice()].concat();
        let mut fixture = fixture.map(|database| Prefixed::new(database, prefix));
        fixture.keyspace = crate::Keyspace::Own;
        fixture
    }
}

/// The engine, counted: [`Counted`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting<H>(pub H);

impl<H: Harness> Harness for Counting<H> {
    type Database = Counted<H::Database>;

    fn engine(&self) -> String {
        format!("{}, counted", self.0.engine())
    }

    fn missing(&self) -> Option<Missing> {
        self.0.missing()
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        self.0.open(scenario).map(Counted::new)
    }
}

/// The engine behind a second [`AnyDatabase`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Boxed<H>(pub H);

impl<H: Harness> Harness for Boxed<H> {
    type Database = AnyDatabase;

    fn engine(&self) -> String {
        format!("{}, boxed", self.0.engine())
    }

    fn missing(&self) -> Option<Missing> {
        self.0.missing()
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        self.0.open(scenario).map(AnyDatabase::new)
    }
}

/// The engine in [`Chaos`] at rate zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calm<H>(pub H);

impl<H: Harness> Harness for Calm<H> {
    type Database = Chaos<H::Database>;

    fn engine(&self) -> String {
        format!("{} in chaos at rate zero", self.0.engine())
    }

    fn missing(&self) -> Option<Missing> {
        self.0.missing()
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        self.0.open(scenario).map(|database| Chaos::new(database, 0, Rates::default()))
    }
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
