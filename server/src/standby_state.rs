//! The state of a server that follows another one, which a thread of its own does (`serve --follow`).

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// A request to promote the standby.
#[derive(Debug)]
pub(crate) struct Promotion {
    /// Whether it is promoted even if it does not have everything that was shipped.
    pub(crate) anyway: bool,
    /// Gets the outcome: a sentence if it is not promoted.
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

/// The state of a standby.
#[derive(Debug)]
pub struct StandbyState {
    /// The place that it follows.
    pub(crate) from: String,
    /// When the server began to follow, in milliseconds since 1970.
    pub(crate) began_ms: u64,
    /// Number of times that the store was restored since the process began.
    pub(crate) restores: u64,
    pub(crate) outcome: Mutex<FollowOutcome>,
    pub(crate) promotions: mpsc::UnboundedSender<Promotion>,
}

/// What the last steps came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct FollowOutcome {
    /// The time of the last segment that was applied, in milliseconds since 1970.
    pub(crate) until_ms: u64,
    /// When nothing newer was in the place; 0 if that was never so.
    pub(crate) looked_ms: u64,
    /// Number of segments that were applied since the server began to follow.
    pub(crate) segments: u64,
    /// Number of steps that failed.
    pub(crate) failures: u64,
    /// Why it does not follow at the moment.
    pub(crate) failed: Option<String>,
    /// Why it was not restored anew.
    pub(crate) not_restored: Option<String>,
}

impl FollowOutcome {
    /// All states.
    pub(crate) const STATES: [&str; 3] = ["starting", "following", "failing"];

    /// One of [`STATES`](Self::STATES).
    pub(crate) fn state(&self) -> &'static str {
        match (&self.failed, self.looked_ms) {
            (Some(_), _) => "failing",
            (None, 0) => "starting",
            (None, _) => "following",
        }
    }
}
