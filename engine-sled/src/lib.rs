//! The engine on sled: a durable sled tree under `occ`.
//!
//! ```text
//!   folder/
//!     …          what every engine on disk has (disk)
//!     data/                          sled's own: db (its log), conf, blobs/, snap.*
//!     data.new/                      the same, while it is created
//! ```
//!
//! A commit is acknowledged after its bytes are on the disk. sled's `flush` writes them; this engine then calls
//! `fdatasync` on sled's file, since sled 0.34 on Linux only calls `sync_file_range`, which does not flush the disk's
//! cache. New blob files get an `fsync`. `powercut` simulates losses of power, but no disk errors for sled: which data
//! survive a failed sync is not promised.
//!
//! A clear of very many rows writes one record. A thread removes the rows in the background (`clears`).

mod blobs;
mod clears;
mod error;
mod images;
mod purge;
mod range;
mod store;

pub use range::{SledRange, SledSnapshot};
pub use store::SledStore;

/// A durable database in a folder: a cheap handle.
pub type SledDatabase = occ::OccDatabase<disk::OnDisk<SledStore>>;

/// Options of a [`SledDatabase`].
pub type SledOptions = disk::DiskOptions;
