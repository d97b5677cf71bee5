//! The engine in memory: a persistent sorted map under `occ`. For tests, for caches, and as the
//! simplest example of a store.

mod database;
mod store;

pub use database::{MemBuilder, MemDatabase};
pub use store::{MemStore, MemView};
