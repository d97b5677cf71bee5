//! Time, injected: nothing in this crate asks the machine for it.

mod manual;
mod shifted;
pub(crate) mod system;

pub use manual::ManualClock;
pub use shifted::ShiftedClock;
pub use system::SystemClock;

use std::time::Duration;

use futures_util::future::BoxFuture;

/// The clock of a database: the window of read versions, timeouts and pauses follow it, and versions
/// advance with it, a million in a second.
pub trait Clock: Send + Sync + 'static {
    /// The time since an origin of the clock's choice. Never goes back while the process lives; an
    /// origin that is the same over restarts (the Unix epoch) keeps versions in step with time.
    fn now(&self) -> Duration;

    /// Completes once `pause` has passed.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
}
