//! Definitions that this process has read.

use std::sync::Arc;

use mango::Index;
use quick_cache::sync::Cache;

/// Maximum number of remembered definitions.
const MOST: usize = 1_000;

/// The definitions that this process has read, by the numbers of database and index.
pub(crate) struct Definitions(Cache<(u64, u64), Arc<Index>>);

impl Default for Definitions {
    fn default() -> Self {
        Definitions(Cache::new(MOST))
    }
}

impl Definitions {
    pub(super) fn get(&self, database: u64, index: u64) -> Option<Arc<Index>> {
        self.0.get(&(database, index))
    }

    pub(super) fn put(&self, database: u64, index: u64, definition: Arc<Index>) {
        self.0.insert((database, index), definition);
    }
}
