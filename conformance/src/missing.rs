//! Things that a suite needs and a machine may lack. A skipped suite says so, loudly.

use std::collections::BTreeSet;
use std::io::Write;

use parking_lot::Mutex;

/// Environment variable: names, separated by commas, of things that must not be missing, such as `fdb`.
pub const REQUIRE: &str = "CONFORMANCE_REQUIRE";

/// Something that this machine lacks, with the reason for this conclusion.
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
    /// `name` is the name in [`REQUIRE`]. `reason` is for people, and says what would help.
    pub fn new(name: &'static str, reason: impl Into<String>) -> Self {
        Missing { name, reason: reason.into() }
    }

    /// Reports, once in a process for each reason, that tests such as `what` are skipped.
    ///
    /// # Panics
    ///
    /// When [`REQUIRE`] in the environment contains the name.
    pub fn skip(&self, what: &str) {
        static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let Missing { name, reason } = self;
        if let Ok(required) = std::env::var(REQUIRE) {
            assert!(!required.split(',').any(|one| one.trim() == *name), "{what} needs {name} ({REQUIRE}): {reason}");
        }
        if SAID.lock().insert(reason.clone()) {
            // Not `eprintln!`: the test runner captures it for tests that pass.
            let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {what}, and every test like it: {reason}\n");
        }
    }
}
