//! The machine's clock, moved forward by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kv_api::BoxFuture;

use crate::{Clock, SystemClock};

/// The machine's clock, which a test can move forward. Pauses still take real time, and the five seconds of a
/// read version pass at once. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct ShiftedClock {
    system: SystemClock,
    ahead_millis: Arc<AtomicU64>,
}

impl ShiftedClock {
    /// The machine's clock, not moved.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward, in whole milliseconds.
    pub fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.ahead_millis.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Duration {
        self.system.now() + Duration::from_millis(self.ahead_millis.load(Ordering::SeqCst))
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<()> {
        self.system.sleep(pause)
    }
}
