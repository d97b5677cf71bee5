//! Pauses between attempts.

use std::time::Duration;

pub use peer::TimedEnvironment;
pub(crate) use peer::random;

/// Pauses before the next attempt, twice as long each time, up to a second. A part is random, so that clients that
/// collided do not collide again.
pub(crate) async fn pause(environment: &dyn TimedEnvironment, attempt: u32) {
    let longest = 10_u64.saturating_mul(1 << attempt.min(7)).min(1_000);
    let pause = 1 + random(environment) % longest;
    environment.sleep(Duration::from_millis(pause)).await;
}
