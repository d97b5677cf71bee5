//! A scenario as data, and how to run it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use conformance::{Harness, block_on};

use crate::scenarios;
use crate::stage::Stage;

/// A statement about documents on any engine. Its name is the statement.
pub struct Scenario {
    /// Its name, unique in the suite.
    pub name: &'static str,
    /// Its subject, with the section of the RFC that decides it, if any.
    pub subject: &'static str,
    pub(crate) play: fn(Stage) -> Pin<Box<dyn Future<Output = ()>>>,
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.subject)
    }
}

/// Runs one scenario on a database of `harness`. If the harness shares a keyspace, the layer only sees its subspace.
///
/// # Panics
///
/// If the scenario's statement is false on this engine, or if no scenario has this name. Tests call this function.
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
