//! The engine on [redb](https://docs.rs/redb): one file, a copy-on-write B-tree, under `occ`.
//!
//! ```text
//!   folder/
//!     couch-layer.json, LOCK    what the folder is, and who owns it (occ::folder)
//!     synced                    the last version that was synced: a store that comes back older is refused
//!     data.redb                 redb's file: one table, `rows`
//! ```

mod database;
mod error;
mod store;

pub use database::{RedbDatabase, RedbOptions};
pub use store::{RedbRange, RedbStore, RedbView};
