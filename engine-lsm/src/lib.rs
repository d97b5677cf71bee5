//! The engine on a log-structured merge tree, [`lsm-tree`](https://docs.rs/lsm-tree), behind the write-ahead log
//! of `disk`.
//!
//! ```text
//!   folder/
//!     …             what every engine on disk has (disk)
//!     log.0, log.1  commits that are in no table yet (disk::wal)
//!     data/         lsm-tree's
//!       current     names the manifest, with its checksum
//!       vN          the manifest: the list of tables, by level
//!       tables/N    tables: sorted rows in blocks, compressed by LZ4, each with a checksum
//!     data.new/     while the folder is made
//! ```
//!
//! The log and its runs in memory (`disk::wal`) are the memtable. A flush writes one table sequentially, then a
//! new manifest. A thread compacts tables level by level: each level is ten times as large as the one above it,
//! and its tables do not overlap. `lsm-tree`'s own memtables stay empty, so there is no second log.
//!
//! * A snapshot is a set of tables (`tables`). It keeps their files for as long as it lives, and costs nothing
//!   else.
//! * A range clear writes a tombstone for each stored row: rows are read and tombstones written one after the
//!   other. That takes time in proportion to the rows, and no memory.
//! * Every block has a checksum that is checked at each read, and so has the manifest (`manifest`).
//! * Tables of large rows, such as parts of attachments, have a small cache of their own (`aside`).
//! * A failed flush or compaction changes nothing, leaves no file behind, and is retried.

mod aside;
mod compactor;
mod error;
pub mod keys;
pub mod manifest;
mod prefixes;
mod store;
mod tables;
mod turn;
mod view;

use disk::wal::WalStore;

pub use store::LsmStore;
pub use view::{LsmRange, LsmView};

/// A durable database in a folder: a cheap handle.
pub type LsmDatabase = occ::OccDatabase<disk::OnDisk<WalStore<LsmStore>>>;

/// Options of an [`LsmDatabase`].
pub type LsmOptions = disk::DiskOptions;
