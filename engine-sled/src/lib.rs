//! The engine on sled: a durable sled tree under `occ`.
//!
//! ```text
//!   folder/
//!     …          what every engine on disk has (disk)
//!     data/                          sled's own: db (its log), conf, blobs/, snap.*
//! ```
//!
//! A commit is acknowledged after its bytes are on the disk: sled's `flush` writes them, and this
//! engine then calls `fdatasync` on sled's file, since sled 0.34 on Linux only asks for
//! `sync_file_range`, which does not flush the disk's own cache; and `fsync` on new blob files.
//!
//! A clear of very many rows is one record, at once; the rows go in the background (`clears`).

mod blobs;
mod clears;
mod error;
mod images;
mod range;
mod store;

pub use range::SledRange;
pub use store::{SledStore, SledView};

/// A durable database in a folder: a cheap handle.
pub type SledDatabase = occ::OccDatabase<disk::OnDisk<SledStore>>;

/// How a [`SledDatabase`] is opened.
pub type SledOptions = disk::DiskOptions;
