//! Time, injected: only [`SystemClock`] asks the machine for it.

mod manual;
mod shifted;
pub(crate) mod system;

pub use manual::ManualClock;
pub use shifted::ShiftedClock;
pub use system::SystemClock;

use std::time::Duration;

use futures_util::future::BoxFuture;

/// The clock of a database. The window of read versions, timeouts and pauses follow it. Versions advance with
/// it, by a million for each second.
pub trait Clock: Send + Sync + 'static {
    /// The time since an origin of the clock's choice. It never goes back within a process. An origin that
    /// survives restarts, such as the Unix epoch, keeps versions in step with time.
    fn now(&self) -> Duration;

    /// Resolves after `pause`.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
}
