//! The contract between a layer and the store below it: an ordered, transactional key-value
//! database with FoundationDB's semantics.
//!
//! FoundationDB's documented behaviour is the specification. Every engine implements all of it, and no capability flag
//! switches a semantic off: a layer that passes its tests over an engine in memory must also hold on a cluster. Only
//! [`Limits`] and [`Durability`] vary. Each engine states its own.
//!
//! ```text
//!   a layer (documents, chunks, yours)
//!        │  Database::begin, Runner::run
//!   ┌────▼──────────────────────────────────────────────┐
//!   │ kv-api   Prefixed, Counted: wrappers, same traits │
//!   └────┬───────────────────────────────┬──────────────┘
//!        │                               │
//!   occ over a sorted store         engine-fdb
//! ```
//!
//! # The shape of a transaction
//!
//! * A [`Transaction`] is a cheap handle; its clones are the same transaction.
//! * Reads are **issued when called**, not when first polled, and their futures borrow nothing. Two reads called
//!   before the first `await` cost one round trip.
//! * Writes are infallible calls. Their errors (a key too long, an inverted range) surface at the next read or at
//!   the commit, as in FoundationDB.
//! * Errors carry FoundationDB's code and its three predicates. [`Transaction::on_error`] alone decides about
//!   retries; [`Runner`] is the loop around it.
//!
//! # Example
//!
//! ```
//! use kv_api::{Database, DatabaseExt, Error, Read, Transaction};
//!
//! async fn add_visitor<D: Database>(db: &D, who: &str) -> Result<bool, Error> {
//!     let key = [b"visitor/", who.as_bytes()].concat();
//!     db.run(move |tx, _attempt| {
//!         let key = key.clone();
//!         async move {
//!             let known = tx.get(&key, Read::Serializable).await?.is_some();
//!             tx.set(&key, b"");
//!             Ok(!known)
//!         }
//!     })
//!     .await
//! }
//! ```

mod counted;
mod database;
mod dynamic;
pub mod error;
mod extension;
pub mod figures;
mod format;
pub mod keys;
mod limits;
mod mutation;
mod options;
mod pinned;
mod prefixed;
mod range;
mod runner;
mod selector;
mod tasks;
mod transaction;
mod versionstamp;

pub use bytes::Bytes;
pub use counted::{Counted, CountedTransaction, Counts};
pub use database::{Database, no_snapshot};
pub use dynamic::{AnyDatabase, AnyTransaction, BoxFuture, DynDatabase, DynTransaction, SPANS};
pub use error::{Error, Result};
pub use extension::{DatabaseExt, TransactionExt};
pub use figures::Figure;
pub use format::{STORED_FORMAT, other_format};
pub use limits::{Durability, Limits};
pub use mutation::MutationType;
pub use options::{Tag, TransactionOption};
pub use pinned::{Pinned, PinnedTransaction};
pub use prefixed::{Prefixed, PrefixedTransaction};
pub use range::{Direction, KeyValue, RangeBatch, RangeRequest};
pub use runner::{Attempt, Observer, RetryError, Runner};
pub use selector::KeySelector;
pub use tasks::yield_now;
pub use transaction::{ConflictRange, IntoBytes, Read, Transaction};
pub use versionstamp::Versionstamp;
