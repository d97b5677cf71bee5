//! The engine on [redb](https://docs.rs/redb): one file, a copy-on-write B-tree, under `occ`.

mod database;
mod error;
mod store;

pub use database::{RedbDatabase, RedbOptions};
pub use store::{RedbRange, RedbStore, RedbView};
