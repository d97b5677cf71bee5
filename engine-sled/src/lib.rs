//! The engine on sled: a durable sled tree under `occ`.
//!
//! ```text
//!   folder/
//!     couch-layer.json, LOCK    what the folder is, and who owns it (occ::folder)
//!     synced                    the last version that was synced: a store that comes back older is refused
//!     data/                     sled's own: db (its log), conf, blobs/, snap.*
//! ```
//!
//! A commit is acknowledged after its bytes are on the disk: sled's `flush` writes them, and this
//! engine then calls `fdatasync` on sled's file, since sled 0.34 on Linux only asks for
//! `sync_file_range`, which does not flush the disk's own cache; and `fsync` on new blob files.
//!
//! A clear of very many rows is one record, at once; the rows go in the background (`clears`).

mod blobs;
mod clears;
mod database;
mod images;
mod panics;
mod purge;
mod range;
mod store;

pub use database::{SledDatabase, SledOptions};
pub use range::SledRange;
pub use store::{SledStore, SledView};
