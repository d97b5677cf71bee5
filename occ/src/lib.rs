//! Optimistic transactions with FoundationDB's semantics over any sorted store.
//!
//! Give it a [`Store`](store::Store), a sorted map with snapshots, atomic batches and a sync, and it
//! gives back a `kv_api::Database`: strictly serializable, with read-your-writes, key selectors,
//! conflict ranges, versionstamps, atomic operations, watches and the window of read versions. Each
//! file is one stage of FoundationDB's own pipeline:
//!
//! ```text
//!   transaction ─ state ─┬─ overlay, range_read     reads: the view under the write map
//!                        └─ write_map, mutation     writes, kept until the commit
//!   commit ─ resolver ─ batch ─ store.apply ─ store.sync ─ window ─ watches
//!      └ sequencer: the version    └ sample         └ the first moment anyone can read it
//! ```
//!
//! [`disk`] is what databases in a folder have in common, [`logged`] a log before a store to which commits are dear.
//!
//! Time and randomness are injected ([`Clock`], a seed); no executor is needed.

mod batch;
mod clock;
mod commit;
mod core;
mod database;
mod estimate;
mod faults;
mod key_block;
mod key_map;
mod key_range;
mod manual_clock;
mod mutation;
mod options;
mod overlay;
mod random;
mod range_read;
mod read_conflicts;
mod resolver;
mod sample;
#[cfg(test)]
mod schedules;
mod sequencer;
mod shifted_clock;
mod size;
mod stamps;
mod state;
mod sync;
mod system_clock;
mod transaction;
mod watches;
mod window;
mod write_conflicts;
mod write_map;

pub mod atomic;
pub mod clears;
pub mod disk;
pub mod folder;
pub mod logged;
pub mod panics;
pub mod purge;
pub mod settle;
pub mod store;
pub mod synced;

pub use clock::Clock;
pub use core::last_version;
pub use database::{OccBuilder, OccDatabase};
#[cfg(any(test, feature = "faults"))]
pub use faults::{Fault, Point};
pub use key_range::{KeyRange, RangeSet};
pub use manual_clock::ManualClock;
pub use shifted_clock::ShiftedClock;
pub use system_clock::SystemClock;
pub use transaction::OccTransaction;
