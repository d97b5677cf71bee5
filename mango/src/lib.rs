//! CouchDB's Mango over flat JSON text. It knows JSON and no database.
//!
//! ```text
//!   Query ─┬─ Selector     which documents match
//!          ├─ Projection   which of their fields are given back
//!          └─ Bookmark     where the last answer ended
//!
//!   Index ─┬─ row          what an index has of a document
//!          └─ Plan         which index answers a query, and which of its rows
//!
//!   compare, append_key    the order of all JSON values, and keys that compare as bytes do
//! ```
//!
//! What a client asks for is checked here, with CouchDB's own names for what is wrong ([`Error`]).
//! Documents are matched and projected as they stand in their text; none is turned into a tree.

mod bookmark;
mod collate;
mod error;
mod index;
mod path;
mod projection;
mod query;
mod selector;

pub use bookmark::Bookmark;
pub use collate::{COLLATION_VERSION, append_key, compare};
pub use error::Error;
pub use index::{
    Candidate, Choice, INDEX_VERSION, Index, KeyRange, MAX_COLUMNS, MAX_DEFINITION, MAX_KEY, MAX_VALUES, NewIndex,
    Plan, Purpose, Row, Scan, parse_bulk_delete,
};
pub use projection::Projection;
pub use query::{Direction, Query};
pub use selector::{IdRange, MAX_CONDITIONS, MAX_DEPTH, MAX_REGEXES, Selector};
