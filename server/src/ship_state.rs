//! The ship of the served store, which a thread of its own makes.

use backup::Shipped;
use parking_lot::Mutex;

/// The state of a server's ship.
#[derive(Debug)]
pub struct ShipState {
    /// The place.
    pub(crate) to: String,
    pub(crate) outcome: Mutex<Outcome>,
}

/// What the last steps came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) shipped: Shipped,
    /// Why the last segment could not be written, and why the last tables could not.
    pub(crate) failed: [Option<String>; 2],
    /// Whether another server ships to the place now.
    pub(crate) is_fenced: bool,
}

impl ShipState {
    pub(crate) fn new(to: &str) -> Self {
        ShipState { to: to.to_owned(), outcome: Mutex::default() }
    }
}
