//! The small document store that chunks need, and its implementation over any [`Peer`](::peer::Peer): [`PeerStore`].
//!
//! Callers make requests of any size, and an implementation splits them. A batch is never atomic: earlier parts stay
//! written if a later part fails.
//!
//! An implementation need not retry. [`ChunkStore`](crate::ChunkStore) does, over every store, for reads and for
//! safe writes.

mod peer;
mod steady;

use std::cmp::Ordering;
use std::fmt;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::error::StoreError;

pub use peer::PeerStore;
pub(crate) use steady::Steady;

/// A document's members without those that begin with an underscore.
pub type Body = Map<String, Value>;

/// Result of a document store.
pub type StoreResult<T> = std::result::Result<T, StoreError>;

/// A leaf of a document's revision tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Its revision.
    pub rev: String,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// Members of its body.
    pub body: Body,
    /// The known revisions before it, newest first; empty unless requested.
    pub ancestors: Vec<String>,
}

impl Leaf {
    /// CouchDB's order of leaves: live before deleted, then the higher position, then the larger hash.
    fn rank(&self) -> (bool, u64, &str) {
        let (position, hash) = self.rev.split_once('-').unwrap_or(("0", ""));
        (!self.deleted, position.parse().unwrap_or(0), hash)
    }

    fn best_first(&self, other: &Leaf) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

/// An edit on top of a leaf.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// Id of the document.
    pub id: String,
    /// The leaf that it replaces; `None` creates the document, over tombstones too.
    pub rev: Option<String>,
    /// Whether it deletes the leaf.
    pub deleted: bool,
    /// Members of the new body.
    pub body: Body,
}

impl Edit {
    /// An edit that deletes a leaf.
    pub fn delete(id: impl Into<String>, rev: impl Into<String>) -> Self {
        Edit { id: id.into(), rev: Some(rev.into()), deleted: true, body: Body::new() }
    }
}

/// The reason why an edit was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The named revision is no longer a leaf, or the document exists already.
    Conflict,
    /// The document exceeds the store's limit.
    TooLarge,
    /// It is unknown whether the edit was written.
    Unknown(String),
    /// Any other reason, in the store's words.
    Other(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Conflict => f.write_str("conflict"),
            Refusal::TooLarge => f.write_str("too large"),
            Refusal::Unknown(reason) | Refusal::Other(reason) => f.write_str(reason),
        }
    }
}

/// Result of an edit: the new revision, or the reason why it has none.
pub type Written = std::result::Result<String, Refusal>;

/// A range of ids, in byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id.
    pub start: String,
    /// First id beyond the range.
    pub end: String,
    /// Maximum number of rows in a page.
    pub limit: usize,
    /// Whether to include the winners' bodies.
    pub bodies: bool,
}

impl IdRange {
    /// All ids that begin with `prefix`, which must end in an ASCII character.
    pub fn prefix(prefix: &str) -> Self {
        let mut end = prefix.to_owned();
        if let Some(last) = end.pop() {
            end.push(char::from_u32(u32::from(last) + 1).unwrap_or(last));
        }
        IdRange { start: prefix.to_owned(), end, limit: 1_000, bodies: false }
    }

    /// Sets the maximum number of rows in a page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Includes the winners' bodies.
    #[must_use]
    pub fn with_bodies(mut self) -> Self {
        self.bodies = true;
        self
    }
}

/// A live document in a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedDocument {
    /// Id of the document.
    pub id: String,
    /// Revision of the winner.
    pub rev: String,
    /// Members of the winner, if requested.
    pub body: Option<Body>,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct ListingPage {
    /// The rows.
    pub rows: Vec<ListedDocument>,
    /// The rest of the range; `None` after the last page.
    pub rest: Option<IdRange>,
}

/// A document in the feed of changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Id of the document.
    pub id: String,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
}

/// A page of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// The rows; each document appears at its last change.
    pub rows: Vec<Change>,
    /// Sequence at which to continue.
    pub last_seq: String,
    /// Whether there is more at present.
    pub more: bool,
}

/// Size of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of live documents.
    pub documents: u64,
    /// Number of tombstones.
    pub deleted: u64,
    /// Bytes of the documents, as compact JSON (CouchDB's `sizes.external`).
    pub document_bytes: u64,
    /// Bytes on disk, if the store knows them (CouchDB's `sizes.file`).
    pub file_bytes: Option<u64>,
}

/// One database of a document store. An implementation is a cheap handle.
#[async_trait]
pub trait DocumentStore: fmt::Debug + Send + Sync + 'static {
    /// All leaves of each document, in the requested order, the winner first; an empty list for a document that does
    /// not exist. `with_ancestors` is for copying leaves to another store.
    ///
    /// # Errors
    /// The store's errors.
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>>;

    /// The same with ancestors, for the first of these documents: at least one, and as many as have about `most_bytes`
    /// together. For whoever reads everything, since a document may have megabytes.
    ///
    /// # Errors
    /// The store's errors.
    async fn leaves_within(&self, ids: &[String], most_bytes: usize) -> StoreResult<Vec<Vec<Leaf>>> {
        let _ = most_bytes;
        self.leaves(ids, true).await
    }

    /// The members of revisions, each named by a document and a revision, that may have been replaced; `None` for one
    /// that the database has not kept.
    ///
    /// # Errors
    /// The store's errors.
    async fn revisions(&self, wanted: &[(String, String)]) -> StoreResult<Vec<Option<Body>>> {
        Ok(vec![None; wanted.len()])
    }

    /// A local document (`_local/…`), which appears in no listing and no feed.
    ///
    /// # Errors
    /// The store's errors.
    async fn local(&self, id: &str) -> StoreResult<Option<Body>>;

    /// The winner of each document, `None` for a tombstone or a document that does not exist. Cheaper than reading
    /// it.
    ///
    /// # Errors
    /// The store's errors.
    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>>;

    /// Whether each of these documents is live.
    ///
    /// # Errors
    /// The store's errors.
    async fn live(&self, ids: &[String]) -> StoreResult<Vec<bool>> {
        Ok(self.revs(ids).await?.iter().map(Option::is_some).collect())
    }

    /// Writes edits, each with its own result (`new_edits=true`). Two edits of one document must not be in one
    /// batch.
    ///
    /// # Errors
    /// The store's errors. Any part of the batch may have been written.
    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>>;

    /// Merges leaves from another store with their revisions and ancestors (`new_edits=false`).
    ///
    /// # Errors
    /// The store's errors. Any part of the batch may have been merged.
    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()>;

    /// A page of the live documents of a range.
    ///
    /// # Errors
    /// The store's errors.
    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage>;

    /// A page of the feed after `since`, or from the beginning. Never misses a document that is in the database
    /// all the time.
    ///
    /// # Errors
    /// The store's errors.
    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes>;

    /// Whether this database can have had this sequence as its last one, as far as the sequence tells. Not so if it is
    /// no sequence, lies ahead of the database or before the first change that it still has, or is of another
    /// incarnation.
    ///
    /// # Errors
    /// The store's errors.
    async fn had(&self, sequence: &str) -> StoreResult<bool> {
        let _ = sequence;
        Ok(false)
    }

    /// Figures of the database.
    ///
    /// # Errors
    /// The store's errors.
    async fn figures(&self) -> StoreResult<Figures>;

    /// Whether the store accepts a document of this size. Writes nothing.
    ///
    /// # Errors
    /// The store's errors.
    async fn takes(&self, bytes: usize) -> StoreResult<bool>;
}

/// Sorts leaves, the winner first.
fn sort(leaves: &mut [Leaf]) {
    leaves.sort_by(Leaf::best_first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_winner_comes_first() {
        let leaf = |rev: &str, deleted| Leaf { rev: rev.into(), deleted, body: Body::new(), ancestors: Vec::new() };
        let mut leaves = [leaf("9-a", true), leaf("2-b", false), leaf("10-a", true), leaf("2-c", false)];
        sort(&mut leaves);
        assert_eq!(leaves.map(|leaf| leaf.rev), ["2-c", "2-b", "10-a", "9-a"]);
    }

    #[test]
    fn a_range_of_a_prefix_ends_behind_it() {
        let range = IdRange::prefix("dat:a9-");
        assert_eq!((range.start.as_str(), range.end.as_str()), ("dat:a9-", "dat:a9."));
    }
}
