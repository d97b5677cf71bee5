//! Definitions that this process has read.

use std::collections::HashMap;
use std::sync::Arc;

use mango::Index;
use parking_lot::Mutex;

/// The definitions that this process has read, by the numbers of database and index.
#[derive(Default)]
pub(crate) struct Definitions(Mutex<HashMap<(u64, u64), Arc<Index>>>);

impl Definitions {
    /// Maximum number of remembered definitions.
    const MOST: usize = 1_000;

    pub(super) fn get(&self, database: u64, index: u64) -> Option<Arc<Index>> {
        self.0.lock().get(&(database, index)).cloned()
    }

    pub(super) fn put(&self, database: u64, index: u64, definition: Arc<Index>) {
        let mut known = self.0.lock();
        if known.len() >= Self::MOST {
            known.clear();
        }
        known.insert((database, index), definition);
    }
}
