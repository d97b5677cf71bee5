//! A scenario as data, and how one is run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use kv_api::AnyDatabase;

use crate::{Harness, Outcome, Space, scenarios};

/// One statement about every engine: its name is the semantics it pins.
pub struct Scenario {
    /// Its name, unique in the suite.
    pub name: &'static str,
    /// The row of `docs/fdb-semantics.md` it belongs to: one of [`CLAUSES`](crate::CLAUSES).
    pub clause: &'static str,
    pub(crate) play: fn(Space) -> Pin<Box<dyn Future<Output = Outcome>>>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.clause)
    }
}

/// Runs one scenario on a database of `harness`, to its end.
///
/// # Panics
///
/// When the engine does not do what the scenario says, or there is no scenario of that name: this is
/// what a test calls.
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

/// Runs a future on this thread, in a tokio runtime with timers: what a scenario runs in.
///
/// # Panics
///
/// When the system has no runtime to give, and when called within one.
pub fn block_on<F: Future>(future: F) -> F::Output {
    match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime.block_on(future),
        Err(error) => panic!("no runtime: {error}"),
    }
}
