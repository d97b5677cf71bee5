//! The third part of a collection: objects that no data document names any more, or ever did.
//!
//! ```text
//!  PLACE/3f-001-9c0de1b2.00c0ffee9c0de1b2           an object
//!  PLACE/unused/3f-001-9c0de1b2.00c0ffee9c0de1b2    its mark: since when nobody names it
//! ```
//!
//! An object is named by one revision of one document, written soon after it, and never by another one: its
//! name is new each time. So there are two times to wait for, each as long as the grace.
//!
//! * Until the object is so old, its stub may still be on its way, from a replica that is offline. It is
//!   not marked before. From then on what nobody names stays unnamed.
//! * Until the mark is so old, a replica that is offline may still have the stub, and read the object.
//!
//! Marks are objects themselves, so that every replica that shares the place sees them, and their age is by
//! the same clock as that of the objects.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;

use super::Collection;
use crate::ChunkStore;
use crate::error::Result;
use crate::load::object_grace_ms;
use crate::objects::{Object, Places};
use crate::store::Leaf;
use crate::stub::{Stub, parts};

/// The objects of a database, as they were when a collection began, and those that it has seen named.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    places: Places,
    /// Object to length; `None` where nobody has looked.
    lengths: Option<HashMap<String, u64>>,
    /// What stubs name that were there at any time since.
    pub(super) named: HashSet<String>,
    /// A data document could not be read, and may name any.
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

impl Collection<'_> {
    /// Whether the object of a live leaf is missing, or is another one.
    pub(super) async fn is_lost(&mut self, id: &str, leaves: &[Leaf]) -> Result<bool> {
        let Some(lengths) = &self.objects.lengths else { return Ok(false) };
        let live = leaves.iter().filter(|leaf| !leaf.deleted);
        let mut doubtful = Vec::new();
        for leaf in live {
            if let Ok(Some(stub)) = Stub::read(id, &leaf.body)
                && lengths.get(&stub.object) != Some(&stub.bytes)
            {
                doubtful.push((id, leaf));
            }
        }
        // It may have been written since the objects were listed.
        for data in self.chunks.data_of(&doubtful).await? {
            if let Err(error) = data {
                let sentence = error.to_string();
                if !self.report.damaged.contains(&sentence) {
                    self.report.damaged.push(sentence);
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Marks objects that nobody names, and removes those that have been marked for the grace.
    pub(super) async fn remove_objects(&mut self) -> Result<()> {
        if self.objects.is_unsure {
            return Ok(());
        }
        for place in self.objects.places.0.keys() {
            let Some((_, objects)) = self.chunks.objects(place).await? else { continue };
            let folder = format!("{place}/unused");
            let mark_of = |name: &str| format!("{folder}/{name}");
            let (mut all, mut marks): (Vec<Object>, BTreeMap<String, u64>) = Default::default();
            for object in objects.list(place).await? {
                if let Some(name) = object.name.strip_prefix(&folder).and_then(|name| name.strip_prefix('/')) {
                    marks.insert(name.to_owned(), object.modified_ms);
                } else if parts(&object.name).is_some() {
                    all.push(object);
                }
            }
            for object in all {
                let Some((_, name)) = parts(&object.name) else { continue };
                let marked_ms = marks.remove(name);
                let is_named = self.objects.named.contains(&object.name);
                match marked_ms {
                    Some(_) if is_named => {
                        if !self.options.dry_run {
                            objects.delete(&mark_of(name)).await?;
                        }
                    }
                    Some(since) if self.is_old(since) && self.is_old(object.modified_ms) => {
                        self.report.objects_removed += 1;
                        self.report.object_bytes_removed += object.bytes;
                        if !self.options.dry_run {
                            objects.delete(&object.name).await?;
                            objects.delete(&mark_of(name)).await?;
                        }
                    }
                    None if !is_named && self.is_old(object.modified_ms) => {
                        self.report.objects_marked += 1;
                        if !self.options.dry_run {
                            objects.put(&mark_of(name), Bytes::new()).await?;
                        }
                    }
                    Some(_) | None => {}
                }
            }
            // Marks of objects that are gone: a collection was cut off between the two.
            for name in marks.into_keys().filter(|name| parts(&format!("{place}/{name}")).is_some()) {
                if !self.options.dry_run {
                    objects.delete(&mark_of(&name)).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether something was as old as the grace when this collection began.
    fn is_old(&self, modified_ms: u64) -> bool {
        self.began_ms.saturating_sub(modified_ms) >= object_grace_ms(self.settings)
    }
}
