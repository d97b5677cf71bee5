//! A scenario as data, and how one is run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use kv_api::AnyDatabase;

use crate::runtime::block_on;
use crate::{Harness, Outcome, Space, scenarios};

/// One statement about every engine. Its name says which semantics it pins.
pub struct Scenario {
    /// Its name, unique in the suite.
    pub name: &'static str,
    /// Row of `docs/fdb-semantics.md` that it belongs to: one of [`CLAUSES`](crate::CLAUSES).
    pub clause: &'static str,
    pub(crate) play: fn(Space) -> Pin<Box<dyn Future<Output = Outcome>>>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.clause)
    }
}

/// Runs one scenario on a database of `harness`.
///
/// # Panics
///
/// When the engine fails the scenario, or no scenario has that name.
pub fn run<H: Harness>(harness: &H, name: &str) {
    let Some(scenario) = scenarios().iter().find(|scenario| scenario.name == name) else {
        panic!("no scenario is called {name}");
    };
    if let Some(missing) = harness.missing() {
        return missing.skip(&harness.engine());
    }
    let fixture = harness.open(name).map(AnyDatabase::new);
    let outcome = block_on((scenario.play)(Space::new(fixture)));
    if let Err(failure) = outcome {
        panic!("{name} on {}: {failure:?}", harness.engine());
    }
}
