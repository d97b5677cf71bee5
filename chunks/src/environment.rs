//! Time, randomness and waiting, injected for tests.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::SystemEnvironment;

/// Source of time, randomness and pauses.
///
/// [`now_ms`](model::Environment::now_ms) stamps condemned chunks. The clocks of collecting clients may differ by
/// a small part of the grace period.
pub trait Environment: model::Environment {
    /// Resolves after `pause`.
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

/// Pauses before the next attempt: up to a second, doubled each time. A part is random, so that clients that
/// collided do not collide again.
pub(crate) async fn pause(environment: &dyn Environment, attempt: u32) {
    let longest = 10_u64.saturating_mul(1 << attempt.min(7)).min(1_000);
    let pause = 1 + random(environment) % longest;
    environment.sleep(Duration::from_millis(pause)).await;
}
