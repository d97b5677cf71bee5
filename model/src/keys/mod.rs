//! All keys that the layer writes, in one place.
//!
//! Keys are tuples (`design/tuple.md` of FoundationDB) under an optional root. Subspaces are small integers, not names,
//! so each costs only two bytes in a key.
//!
//! ```text
//!  root ┬ (0)                                    format version of the layer
//!       ├ (1, Name)                              catalog: the number of each database
//!       ├ (2)                                    the next database's number
//!       ├ (3, Version, Nonce)                    transaction ids (RFC 003, option 3)
//!       ├ (5)                                    the store's identity
//!       ├ (6, Name)                              progress of databases being copied here
//!       ├ (7, Deadline, Number, Store)           staged uploads, which no edit names yet
//!       ├ (8, …)                                 jobs: keys of the crate `jobs`
//!       ├ (9)[, Section, Name]                   configuration of the servers
//!       ├ (10)[, Kind, Name]                     when databases were created and dropped
//!       └ (4, Number) ┬ (0)                      instance: read by every transaction on the database
//!         a database's│
//!         prefix      ├ (1)                      security object
//!                     ├ (2)                      last sequence, which feeds watch
//!                     ├ (3)                      counters, added to atomically
//!                     ├ (4, DocID, NotDeleted, RevPosition, RevHash)        revisions   RFC 001
//!                     ├ (5, Incarnation, Versionstamp)                      changes     RFC 003
//!                     ├ (6, DocID, NotDeleted, RevPosition, RevHash, …)     docs        RFC 004
//!                     ├ (7, DocID)                                          all_docs
//!                     ├ (8, DocID[, Part])                                  local documents
//!                     ├ (9, Sha256, Length)                                 contents of attachments
//!                     ├ (10, Store, Part)                                   their bytes
//!                     ├ (11, Sha256, Length, DocID, NotDeleted, RevPosition, RevHash)   references to contents
//!                     ├ (12, Index)                                         definitions of indexes
//!                     ├ (13, Index[, Key, DocID])                           their rows, and the progress of a build
//!                     ├ (14, DocID)                                         id rows: the index rows of a document
//!                     ├ (15, …)                                             purges
//!                     ├ (16, …)                                             view groups: see `views`
//!                     ├ (17, Incarnation, Versionstamp)                     counts of edits
//!                     ├ (18, …)                                             replaced revisions: see `replaced`
//!                     ├ (19, DocID, NotDeleted, RevPosition, RevHash, …)    their bodies
//!                     ├ (20, DocID)                                         condemned, or in the trash
//!                     ├ (21, DocID[, Part])                                 bodies in the trash
//!                     ├ (22)                                                what every client has passed
//!                     ├ (23, DocID)                                         its text has left the trash
//!                     └ (24 to 27, …)                                       rows of 4 to 7 that a repair moved
//! ```
//!
//! Invariants: the rows of a document in `revisions` sort so that the last one is the winner. Its rows in `docs` sort
//! in the same order. `changes` sort by sequence. `docs/keyspace.md` draws the bytes of keys and values.

mod database;
mod elements;
mod layer;
mod read;
#[cfg(test)]
mod tests;

use crate::rows::revid::RevId;

pub use database::is_instance_key;
pub(crate) use database::{DatabaseKey, DatabaseKeys, Subspace};
pub(crate) use elements::{ATTACHMENTS, BEYOND, end_of, pending_stamp, read_incarnation, read_rev, read_seq};
pub(crate) use layer::Key;

/// A leaf of a document's revision tree. Sorts like its keys: the greatest of a document's leaves is the winner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leaf {
    /// Whether it is a live revision, not a tombstone. Live revisions win over tombstones.
    pub not_deleted: bool,
    /// The revision. The higher position wins, then the greater hash.
    pub rev: RevId,
}
