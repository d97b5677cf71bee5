//! A scenario as data, and how one is run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use conformance::{Harness, block_on};

use crate::scenarios;
use crate::stage::Stage;

/// One statement about documents over any engine: its name says what holds.
pub struct Scenario {
    /// Its name, unique in the suite.
    pub name: &'static str,
    /// What it is about, with the RFC's section where one decides it.
    pub subject: &'static str,
    pub(crate) play: fn(Stage) -> Pin<Box<dyn Future<Output = ()>>>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.subject)
    }
}

/// Runs one scenario on a database of `harness`, to its end. Where the harness shares a keyspace, the
/// layer sees its subspace alone.
///
/// # Panics
///
/// When the layer does not do on this engine what the scenario says, or there is no scenario of that
/// name: this is what a test calls.
pub fn run<H: Harness>(harness: &H, name: &str) {
    let Some(scenario) = scenarios().iter().find(|scenario| scenario.name == name) else {
        panic!("no scenario is called {name}");
    };
    if let Some(missing) = harness.missing() {
        return missing.skip(&harness.engine());
    }
    println!("{name} on {}", harness.engine());
    block_on((scenario.play)(Stage::new(harness.open(name))));
}
