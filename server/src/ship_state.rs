//! The ship of the served store, which a thread of its own makes.

use backup::Shipped;
use model::{Environment, SystemEnvironment};
use parking_lot::Mutex;

/// The state of a server's ship.
#[derive(Debug)]
pub struct ShipState {
    /// The place.
    pub(crate) to: String,
    /// When the server began to ship, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    pub(crate) outcome: Mutex<Outcome>,
}

/// What the last steps came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) shipped: Shipped,
    /// Why the last segment could not be written, and why the last tables could not.
    pub(crate) failed: [Option<String>; 2],
    /// Number of attempts that failed.
    pub(crate) failures: u64,
    /// Whether another server ships to the place now.
    pub(crate) is_fenced: bool,
}

impl ShipState {
    pub(crate) fn new(to: &str) -> Self {
        ShipState { to: to.to_owned(), began_ms: SystemEnvironment.now_ms(), outcome: Mutex::default() }
    }
}

impl Outcome {
    /// All states.
    pub(crate) const STATES: [&str; 4] = ["starting", "running", "failing", "fenced"];

    /// One of [`STATES`](Self::STATES).
    pub(crate) fn state(&self) -> &'static str {
        match (self.is_fenced, self.shipped.until_ms) {
            (true, _) => "fenced",
            _ if self.failed.iter().any(Option::is_some) => "failing",
            (_, 0) => "starting",
            _ => "running",
        }
    }
}
