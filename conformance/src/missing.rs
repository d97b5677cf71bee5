//! What a suite needs and a machine may not have: it is skipped where nobody overlooks it.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Names in the environment, separated by commas, of what must not be missing: `fdb`.
pub const REQUIRE: &str = "CONFORMANCE_REQUIRE";

/// Something that this machine does not have, and why that is believed.
///
/// ```
/// use conformance::Missing;
///
/// let missing = Missing::new("oven", "there is no kitchen");
/// missing.skip("a_cake_rises"); // one line on the standard error, past the test runner's capture
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    name: &'static str,
    reason: String,
}

impl Missing {
    /// `name` is what [`REQUIRE`] calls it; `reason` is for a person, and says what would help.
    pub fn new(name: &'static str, reason: impl Into<String>) -> Self {
        Missing { name, reason: reason.into() }
    }

    /// Says, once in a process for each reason, that tests are skipped: those of `what`.
    ///
    /// # Panics
    ///
    /// When the environment says that it must not be missing.
    pub fn skip(&self, what: &str) {
        static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let Missing { name, reason } = self;
        if let Ok(required) = std::env::var(REQUIRE) {
            assert!(!required.split(',').any(|one| one.trim() == *name), "{what} needs {name} ({REQUIRE}): {reason}");
        }
        if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(reason.clone()) {
            // Not `eprintln!`, which the test runner keeps to itself for tests that pass.
            let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {what}, and every test like it: {reason}\n");
        }
    }
}
