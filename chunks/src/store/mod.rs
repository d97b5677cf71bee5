//! The small document store that chunks need, and its two implementations: [`ModelStore`] in process,
//! [`HttpStore`] for any server that speaks CouchDB's protocol.
//!
//! Requests are as large as their callers make them; an implementation cuts them up, and a batch is
//! never atomic. What a batch wrote stays when a later part of it fails.
//!
//! An implementation need not try again what failed: a [`ChunkStore`](crate::ChunkStore) does that over every
//! store, for reads and for those writes where it is safe.

mod http;
mod model;
mod pace;
mod steady;

use std::cmp::Ordering;
use std::fmt;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::error::StoreError;

pub use http::HttpStore;
pub use model::ModelStore;
pub(crate) use steady::{LONGEST_MS, Steady};

/// A document's members without those that begin with an underscore.
pub type Body = Map<String, Value>;

/// The result of asking a document store.
pub type StoreResult<T> = std::result::Result<T, StoreError>;

/// A leaf of a document's revision tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Its revision.
    pub rev: String,
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// Its members.
    pub body: Body,
    /// The revisions before it, newest first, as far as they are known; empty unless asked for.
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
    /// The document.
    pub id: String,
    /// The leaf that it replaces; `None` creates the document, over tombstones too.
    pub rev: Option<String>,
    /// Whether the leaf ends here.
    pub deleted: bool,
    /// The members.
    pub body: Body,
}

impl Edit {
    /// Ends a leaf.
    pub fn delete(id: impl Into<String>, rev: impl Into<String>) -> Self {
        Edit { id: id.into(), rev: Some(rev.into()), deleted: true, body: Body::new() }
    }
}

/// Why an edit was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The revision it names is no leaf any more, or the document exists already.
    Conflict,
    /// The document is larger than the store takes.
    TooLarge,
    /// The store could not say whether it was written: it may have been.
    Unknown(String),
    /// Anything else, in the store's words.
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

/// What became of an edit: the new revision, or why there is none.
pub type Written = std::result::Result<String, Refusal>;

/// A range of ids, in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// Where it begins, itself included.
    pub start: String,
    /// Where it ends, itself excluded.
    pub end: String,
    /// At most this many rows a page.
    pub limit: usize,
    /// Whether the winners' bodies are wanted.
    pub bodies: bool,
}

impl IdRange {
    /// Every id that begins with `prefix`, which must end in an ASCII character.
    pub fn prefix(prefix: &str) -> Self {
        let mut end = prefix.to_owned();
        if let Some(last) = end.pop() {
            end.push(char::from_u32(u32::from(last) + 1).unwrap_or(last));
        }
        IdRange { start: prefix.to_owned(), end, limit: 1_000, bodies: false }
    }

    /// At most `limit` rows a page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// With the winners' bodies.
    #[must_use]
    pub fn with_bodies(mut self) -> Self {
        self.bodies = true;
        self
    }
}

/// A live document in a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// Its winner.
    pub rev: String,
    /// The winner's members, if asked for.
    pub body: Option<Body>,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// The rest of the range; `None` after the last page.
    pub rest: Option<IdRange>,
}

/// A document in the feed of changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its id.
    pub id: String,
    /// Whether the winner is a tombstone.
    pub deleted: bool,
}

/// A page of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// The rows, each document at its last change.
    pub rows: Vec<Change>,
    /// Where to go on.
    pub last_seq: String,
    /// Whether there is more now.
    pub more: bool,
}

/// How large a database is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Live documents.
    pub documents: u64,
    /// Tombstones.
    pub deleted: u64,
    /// Bytes of the documents, as compact JSON (CouchDB's `sizes.external`).
    pub document_bytes: u64,
    /// Bytes on disk, where the store knows (CouchDB's `sizes.file`).
    pub file_bytes: Option<u64>,
}

/// One database of a document store. An implementation is a cheap handle to it.
#[async_trait]
pub trait DocumentStore: fmt::Debug + Send + Sync + 'static {
    /// All leaves of each document, in the order asked for, the winner first; none where there is no
    /// such document. `with_ancestors` is for copying leaves elsewhere.
    ///
    /// # Errors
    /// The store's failures.
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>>;

    /// A local document (`_local/…`), which is in no listing and no feed.
    ///
    /// # Errors
    /// The store's failures.
    async fn local(&self, id: &str) -> StoreResult<Option<Body>>;

    /// The winner of each document, `None` where that is a tombstone or there is no such document; cheaper than
    /// reading them.
    ///
    /// # Errors
    /// The store's failures.
    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>>;

    /// Which of these documents are live.
    ///
    /// # Errors
    /// The store's failures.
    async fn live(&self, ids: &[String]) -> StoreResult<Vec<bool>> {
        Ok(self.revs(ids).await?.iter().map(Option::is_some).collect())
    }

    /// Writes edits, each with an outcome of its own (`new_edits=true`). No two of a batch may be of one
    /// document.
    ///
    /// # Errors
    /// The store's failures; any part of the batch may have been written then.
    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>>;

    /// Merges leaves that were written elsewhere, with their revisions and ancestors
    /// (`new_edits=false`).
    ///
    /// # Errors
    /// The store's failures; any part of the batch may have been merged then.
    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()>;

    /// A page of the live documents of a range.
    ///
    /// # Errors
    /// The store's failures.
    async fn list(&self, range: &IdRange) -> StoreResult<Page>;

    /// A page of the feed after `since`, from the beginning where that is `None`. No document that is in
    /// the database throughout is missed.
    ///
    /// # Errors
    /// The store's failures.
    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes>;

    /// How large the database is.
    ///
    /// # Errors
    /// The store's failures.
    async fn figures(&self) -> StoreResult<Figures>;

    /// Whether the store takes a document of so many bytes. Nothing is written to find out.
    ///
    /// # Errors
    /// The store's failures.
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
