//! Time, randomness and waiting. They are injected, so that tests control them.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::SystemEnvironment;

/// A source of time, randomness and pauses.
pub trait TimedEnvironment: model::Environment {
    /// Completes after `pause`.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
}

impl TimedEnvironment for SystemEnvironment {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        futures_timer::Delay::new(pause).boxed()
    }
}

/// A random number.
pub fn random(environment: &dyn TimedEnvironment) -> u64 {
    let mut bytes = [0; 8];
    environment.random(&mut bytes);
    u64::from_le_bytes(bytes)
}
