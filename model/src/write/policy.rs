//! Conflict policies of databases.
//!
//! ```text
//!  keep all           each leaf is a branch; the winner is the greatest, live before deleted
//!  last write wins    one branch, whose leaf is the greatest revision ever seen, live or deleted
//! ```
//!
//! `RevFormat` of RFC 001 leaves room for the second. Only replicated edits differ: a replicated edit replaces the leaf
//! if its revision is greater, by position and then by hash, and counts as known otherwise. Interactive edits extend
//! the one leaf, so their revisions are always greater.
//!
//! A tombstone that is greater than a live revision is kept. With "live before deleted" the order of arrival would
//! matter: a live revision that arrives after its tombstone would replace it, if the tombstone's history is stemmed
//! before it.

/// The conflict policy of a database. It is chosen when the database is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConflictPolicy {
    /// All leaves are kept, as CouchDB does.
    #[default]
    KeepAll,
    /// One leaf is kept: the greatest revision ever seen, by position and then by hash, live or deleted.
    LastWriteWins,
}
