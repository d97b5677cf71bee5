//! Time, randomness and waiting, injected: a test decides all three.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::SystemEnvironment;

/// Where time, randomness and pauses come from.
///
/// [`now_ms`](model::Environment::now_ms) stamps chunks that are condemned. Clocks of those who collect
/// may differ by a small part of the grace.
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
pub(crate) fn random(environment: &dyn Environment) -> u64 {
    let mut bytes = [0; 8];
    environment.random(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Pauses between attempts: twice as long each time, up to a second, a random part of it each, so that
/// those who collided do not meet again.
pub(crate) async fn pause(environment: &dyn Environment, attempt: u32) {
    let longest = 10_u64.saturating_mul(1 << attempt.min(7)).min(1_000);
    let pause = 1 + random(environment) % longest;
    environment.sleep(Duration::from_millis(pause)).await;
}
