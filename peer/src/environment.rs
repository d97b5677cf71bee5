//! Time, randomness and waiting, injected: a test decides all three.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::SystemEnvironment;

/// Where time, randomness and pauses come from.
pub trait Environment: model::Environment {
    /// Is ready after `pause`.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
}

impl Environment for SystemEnvironment {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        futures_timer::Delay::new(pause).boxed()
    }
}

/// A random number.
pub fn random(environment: &dyn Environment) -> u64 {
    let mut bytes = [0; 8];
    environment.random(&mut bytes);
    u64::from_le_bytes(bytes)
}
