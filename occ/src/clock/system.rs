//! The machine's clock. Only this file asks the machine for time.
#![allow(clippy::disallowed_methods, reason = "this is where the machine's clock and randomness are injected")]

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, FutureExt};

use crate::Clock;

/// The machine's clock: the Unix time when it was created, and monotonic from there.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
    unix: Duration,
}

impl SystemClock {
    /// A clock that starts at the machine's time.
    pub fn new() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        SystemClock { started: Instant::now(), unix }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.unix + self.started.elapsed()
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        futures_timer::Delay::new(pause).boxed()
    }
}

/// A seed from the machine, for databases without a given one.
pub(crate) fn seed() -> u64 {
    RandomState::new().hash_one(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |unix| unix.as_nanos()))
}
