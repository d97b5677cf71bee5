//! The engine of a log-structured merge tree: sorted tables that are merged into larger ones, by
//! [`lsm-tree`](https://docs.rs/lsm-tree), behind `occ`'s log.
//!
//! ```text
//!   folder/
//!     …             what every engine on disk has (disk)
//!     log.0, log.1  what was committed and is in no table yet (disk::wal)
//!     data/         lsm-tree's
//!       current     names the manifest, with its checksum
//!       vN          the manifest: which tables there are, by level
//!       tables/N    tables: sorted rows in blocks, compressed by LZ4, each with a checksum
//!     data.new/     while the folder is made
//! ```
//!
//! The log and its runs in memory (`disk::wal`) are the upper half of the tree. A flush writes one table,
//! sequentially, and a new manifest. A thread merges tables, level by level: each level is ten times as large as the
//! one above it, and its tables do not overlap. There is no second log: `lsm-tree`'s own memtables stay empty.
//!
//! * Snapshots are sets of tables (`tables`): nothing is kept for one but the files of its tables, and those no
//!   longer than it lives.
//! * A clear of a range becomes a tombstone for each row that is there: the rows are read and the tombstones
//!   written one after the other. So it takes no memory, and as long as there are rows.
//! * Damage: every block has a checksum that is compared when it is read, and so has the manifest (`manifest`).
//! * A flush or a merge that fails changes nothing, leaves no file behind, and is tried again.

mod error;
mod keys;
mod manifest;
mod merger;
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

/// How an [`LsmDatabase`] is opened.
pub type LsmOptions = disk::DiskOptions;
