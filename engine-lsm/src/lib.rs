//! The engine on a log-structured merge tree behind the write-ahead log of `disk`. Its tables are those of
//! [`lsm-tree`](https://docs.rs/lsm-tree), and so is the folder's format.
//!
//! ```text
//!   folder/
//!     …             what every engine on disk has (disk)
//!     log.0, log.1  commits that are in no table yet (disk::wal)
//!     data/         lsm-tree's
//!       current     names the manifest, with its checksum
//!       vN          the manifest: the list of tables, by level
//!       tables/N    tables: sorted rows in blocks, compressed by LZ4, each with a checksum
//!     data.new/     while the folder is created
//! ```
//!
//! The log and its runs in memory (`disk::wal`) are the memtable. A flush writes one table sequentially, then a new
//! manifest. A thread compacts tables level by level: each level is ten times as large as the one above it, and its
//! tables do not overlap. `pick` chooses what it compacts, `merge` does it, and `compactor` has the one place that
//! writes manifests.
//!
//! * A snapshot is a set of tables (`tables`). It keeps their files while it lives, and costs nothing else.
//! * A range clear drops the tables inside the range. For tables that are partly inside, it writes a tombstone for each
//!   row in the range, one after the other, which takes no memory.
//! * Rows hidden by tombstones leave the disk: tombstones are counted, and merged down where that frees about as much
//!   as it writes.
//! * Every block and the manifest (`manifest`) have a checksum that is checked at each read. An error names the keys
//!   between which the rows of a damaged block are (`damage`).
//! * Tables of large rows, such as parts of attachments, have a small cache of their own (`large_rows`).
//! * A failed flush or compaction changes nothing, leaves no file behind, and is retried.

mod compactor;
mod damage;
mod error;
mod give_up;
pub mod keys;
mod large_rows;
mod maker;
mod manifest;
mod merge;
mod pick;
mod prefixes;
mod rows;
mod snapshot;
mod store;
mod tables;

use disk::wal::WalStore;

pub use give_up::give_up;
pub use snapshot::{LsmRange, LsmSnapshot};
pub use store::LsmStore;

/// A durable database in a folder: a cheap handle.
pub type LsmDatabase = occ::OccDatabase<disk::OnDisk<WalStore<LsmStore>>>;

/// Options of an [`LsmDatabase`].
pub type LsmOptions = disk::DiskOptions;
