//! Time and randomness, injected: tests control both, and one seed gives one run.

use std::fmt;

/// Source of time and randomness.
pub trait Environment: fmt::Debug + Send + Sync + 'static {
    /// Milliseconds since 1970-01-01 UTC. A write gives up a minute after its start, and uploads that no edit names
    /// are swept a day after theirs. The clocks of processes that share a store may differ by hours.
    fn now_ms(&self) -> u64;

    /// Fills `bytes` with randomness for names of transactions and databases. No other process may get the same
    /// bytes.
    fn random(&self, bytes: &mut [u8]);
}

/// The system's clock and randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    #[expect(clippy::disallowed_methods, reason = "the one place that asks the system")]
    fn now_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that asks the system")]
    #[expect(clippy::expect_used, reason = "no randomness, no safe ids: nothing sensible can go on")]
    fn random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system has randomness");
    }
}
