//! What a database does about conflicts.
//!
//! ```text
//!  keep all           each leaf is a branch; the winner is the greatest, live before deleted
//!  last write wins    one branch, whose leaf is the greatest revision ever seen, live or deleted
//! ```
//!
//! The second is what `RevFormat` leaves room for in RFC 001. Only a replicated edit is treated in another way: it
//! replaces what is there if its revision is greater, by position and then by hash, and is known otherwise. Interactive
//! edits extend the one leaf, so what they make is always greater.
//!
//! A tombstone that is greater than a live revision stays. With "live before deleted" the order of arrival would matter: a
//! tombstone would give way to the live revision that it deleted, if that comes later and is older than the tombstone's
//! history.

/// What a database does about conflicts. It is chosen when the database is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConflictPolicy {
    /// All leaves are kept, as CouchDB does.
    #[default]
    KeepAll,
    /// One leaf is kept: the greatest revision ever seen, by position and then by hash, live or deleted.
    LastWriteWins,
}
