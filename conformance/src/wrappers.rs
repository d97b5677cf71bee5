//! Harnesses around a harness: the wrappers of `kv-api` and of this crate pass the whole suite too.
//!
//! ```ignore
//! mod prefixed {
//!     conformance::suite!(conformance::wrappers::Under(super::MemHarness));
//! }
//! ```

use kv_api::{AnyDatabase, Counted, Prefixed};

use crate::chaos::{Chaos, Rates};
use crate::{Fixture, Harness};

/// The engine under a prefix: [`Prefixed`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Under<H>(pub H);

impl<H: Harness> Harness for Under<H> {
    type Database = Prefixed<H::Database>;

    fn engine(&self) -> String {
        format!("{} under a prefix", self.0.engine())
    }

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        let fixture = self.0.open(scenario);
        // Within what may be a shared keyspace, and next to the largest byte a prefix can end with.
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

    fn open(&self, scenario: &str) -> Fixture<Self::Database> {
        self.0.open(scenario).map(|database| Chaos::new(database, 0, Rates::default()))
    }
}
