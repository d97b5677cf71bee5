//! Options of a replication.

use std::time::Duration;

use model::JsonText;
use peer::Filter;

/// Options of a replication.
#[derive(Clone, Debug)]
pub struct Options {
    /// Continue with later changes until stopped.
    pub continuous: bool,
    /// The documents to replicate. Ids may be encoded as in a query, as in CouchDB: `%2B` is a plus.
    pub filter: Filter,
    /// Start after this sequence of the source, ignoring the checkpoint. A number and its text are two replications, as
    /// in CouchDB.
    pub since_seq: Option<JsonText>,
    /// Replicate only winners, no conflicts.
    pub winning_revs_only: bool,
    /// Whether to write checkpoints on both sides.
    pub use_checkpoints: bool,
    /// Time between checkpoints.
    pub checkpoint_interval: Duration,
    /// Number of rows of the feed that are processed at a time.
    pub batch_size: usize,
    /// Number of groups of documents that are processed at the same time.
    pub workers: usize,
    /// Number of times that a failed request is repeated. `None`: for half a minute, or less if a peer has never
    /// responded.
    pub retries: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            continuous: false,
            filter: Filter::None,
            since_seq: None,
            winning_revs_only: false,
            use_checkpoints: true,
            checkpoint_interval: Duration::from_secs(30),
            batch_size: 500,
            workers: 4,
            retries: None,
        }
    }
}
