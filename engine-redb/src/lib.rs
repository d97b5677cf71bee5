//! The engine on [redb](https://docs.rs/redb): one file, a copy-on-write B-tree, under `occ`.
//!
//! ```text
//!   folder/
//!     …            what every engine on disk has (occ::disk)
//!     data.redb    redb's file: one table, `rows`
//! ```

mod error;
mod store;

pub use store::{RedbRange, RedbStore, RedbView};

/// A durable database in a folder: a cheap handle.
pub type RedbDatabase = occ::OccDatabase<occ::disk::OnDisk<RedbStore>>;

/// How a [`RedbDatabase`] is opened.
pub type RedbOptions = occ::disk::DiskOptions;
