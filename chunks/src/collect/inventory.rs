//! The objects of a database at the start of a collection.

use std::collections::{HashMap, HashSet};

use crate::ChunkStore;
use crate::error::Result;
use crate::objects::Places;

/// A database's objects at the start of a collection, and the names that it has met in stubs.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) places: Places,
    /// Lengths by object; `None` if they have not been listed.
    pub(super) lengths: Option<HashMap<String, u64>>,
    /// Objects named by any stub so far.
    pub(super) named: HashSet<String>,
    /// Whether some data document could not be read. It may name any object.
    pub(super) is_unsure: bool,
}

impl Inventory {
    pub(super) async fn take(chunks: &ChunkStore, places: Places) -> Result<Inventory> {
        let mut lengths = HashMap::new();
        for place in places.0.keys() {
            if let Some((_, objects)) = chunks.objects(place).await? {
                lengths.extend(objects.list(place).await?.into_iter().map(|object| (object.name, object.bytes)));
            }
        }
        Ok(Inventory { places, lengths: Some(lengths), ..Inventory::default() })
    }
}
