//! Shared by all databases in a folder: one owner, a mark, a write-ahead log, errors that say what to do.
//!
//! An engine implements [`DiskStore`], and becomes a database with two lines:
//!
//! ```ignore
//! pub type MyDatabase = occ::OccDatabase<disk::OnDisk<MyStore>>;
//! pub type MyOptions = disk::DiskOptions;
//! ```
//!
//! ```text
//!   folder/
//!     couch-layer.json    what the folder is               (`folder`)
//!     LOCK                locked by the process that has it open
//!     synced              the last version that was synced (`synced`)
//!     log.0, log.1        the write-ahead log, if the engine has one (`wal`)
//!     …                   the store's own files
//! ```
//!
//! Invariants: a store is opened only in a folder that belongs to this process, this engine and this format; the store
//! records its last commit version, so that versions go on after a restart; a store that is older than its side file
//! `synced` is refused.

mod followed;
mod on_disk;
mod options;

pub mod clears;
pub mod folder;
pub mod panics;
pub mod room;
pub mod synced;
#[cfg(feature = "testing")]
pub mod testing;
pub mod wal;

pub use followed::{FollowedStore, LinkedTables, StandbyStore};
pub use on_disk::{CopiedTable, DiskStore, NewCopy, OnDisk, older};
pub use options::{DEFAULT_CACHE_BYTES, DiskOptions};
