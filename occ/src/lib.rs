//! Optimistic transactions with FoundationDB's semantics over any sorted store.
//!
//! A [`Store`](store::Store) is a sorted map with snapshots, atomic batches and a sync. This crate makes a
//! `kv_api::Database` of it: strictly serializable, with read-your-writes, key selectors, conflict ranges,
//! versionstamps, atomic operations, watches and a window of read versions.
//!
//! ```text
//!   transaction   reads a snapshot under its own writes; keeps its writes until the commit
//!        │ request
//!   commit        checks conflicts, joins requests to one batch, applies and syncs it
//!        │ snapshot
//!   window        the versions that can be read, and their snapshots
//!        │
//!   store         the sorted map
//! ```
//!
//! Where to start reading: [`store`] (the contract of a store), `transaction` (what a user calls), `commit`
//! (the pipeline). The rest serves them: `mutation` (what is written), `watches`, `estimate` (sizes of
//! ranges), `database` (handles and shared state).
//!
//! Time and randomness are injected ([`Clock`], a seed). No executor is needed. The crate `disk` has what stores in a
//! folder share.

mod clock;
mod commit;
mod database;
mod estimate;
mod faults;
mod key_map;
mod key_range;
mod mutation;
mod random;
#[cfg(test)]
mod schedules;
mod sync;
mod transaction;
mod watches;
mod window;

pub mod store;

pub use clock::{Clock, ManualClock, ShiftedClock, SystemClock};
pub use database::{OccBuilder, OccDatabase, OpenAt, last_version};
#[cfg(any(test, feature = "faults"))]
pub use faults::{Fault, Point};
pub use key_range::{KeyRange, RangeSet};
pub use mutation::atomic;
pub use random::Random;
pub use transaction::OccTransaction;
