//! CouchDB's Mango over flat JSON text. The crate does not use a database.
//!
//! ```text
//!   Query ─┬─ Selector     the documents that match
//!          ├─ Projection   the fields to return
//!          └─ Bookmark     where the last answer ended
//!
//!   Index ─┬─ row          the row of a document
//!          └─ QueryPlan    the index for a query, and the range of its rows
//!
//!   compare, append_key    the order of all JSON values, and keys that compare like the values
//! ```
//!
//! Requests are checked here, with CouchDB's names of errors ([`Error`]). Documents are matched and projected as text:
//! they are never parsed into a tree.

mod bookmark;
mod collate;
mod error;
mod index;
mod partition;
mod path;
mod projection;
mod query;
mod regex;
mod selector;

pub use bookmark::Bookmark;
pub use collate::{COLLATION_VERSION, append_key, append_term_key, compare, compare_terms};
pub use error::Error;
pub use index::{
    Candidate, Choice, IdBounds, Index, IndexRow, KeyRange, MAX_COLUMNS, MAX_DEFINITION, MAX_KEY, MAX_VALUES, NewIndex,
    Purpose, QueryPlan, Scan, has_partitions, parse_bulk_delete,
};
pub use partition::{append_partition, check_partition, ids_of_partition, partition_of};
pub use projection::Projection;
pub use query::{Direction, Query};
pub use regex::{Regex, TooManySteps};
pub use selector::{IdRange, MAX_CONDITIONS, MAX_DEPTH, MAX_REGEXES, Selector};
