//! The engine on [redb](https://docs.rs/redb): one file, a copy-on-write B-tree, under `occ`.

mod error;
mod store;

pub use store::{RedbRange, RedbStore, RedbView};
