//! The engine on [redb](https://docs.rs/redb): one file, a copy-on-write B-tree, under `occ`.
//!
//! ```text
//!   folder/
//!     …            what every engine on disk has (disk)
//!     log.0, log.1 what was committed and is not in redb's file yet (disk::wal)
//!     data.redb    redb's file: one table, `rows`
//! ```
//!
//! Damage: a row whose bytes have changed is an error when it is read (`row`). A file of up to a
//! gigabyte, and any file after a kill, is walked whole when it is opened, and redb's own checksums
//! compared: damage to what lies around the rows is met there. In a larger file that was closed, and
//! while a database is open, such damage can hide rows.

mod batch;
mod error;
mod row;
mod store;

use disk::wal::WalStore;

pub use store::{RedbRange, RedbStore, RedbView};

/// A durable database in a folder: a cheap handle.
pub type RedbDatabase = occ::OccDatabase<disk::OnDisk<WalStore<RedbStore>>>;

/// How a [`RedbDatabase`] is opened.
pub type RedbOptions = disk::DiskOptions;
