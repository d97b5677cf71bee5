//! The third part of a collection: objects that no data document names.
//!
//! ```text
//!  PLACE/3f-001-9c0de1b2.00c0ffee9c0de1b2           an object
//!  PLACE/unused/3f-001-9c0de1b2.00c0ffee9c0de1b2    its mark: the time since when no document names it
//! ```
//!
//! One revision of one document names an object, and is written soon after it. No other revision ever names it, since
//! object names are never reused. So there are two waiting times, each as long as the grace period.
//!
//! * The stub of a younger object may still be on its way from an offline replica, so the object is not marked. An
//!   unnamed object of that age stays unnamed.
//! * Under a younger mark, an offline replica may still have the stub, and read the object.
//!
//! Marks are objects too. So every replica that shares the place sees them, and the same clock gives their age and
//! the age of the objects.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::Collection;
use crate::error::Result;
use crate::load::object_grace_ms;
use crate::objects::Object;
use crate::store::Leaf;
use crate::stub::{Stub, parts};

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

    /// Marks objects that no document names, and removes those whose marks have expired.
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
            // Marks of objects that are gone: a collection was interrupted between the two removals.
            for name in marks.into_keys().filter(|name| parts(&format!("{place}/{name}")).is_some()) {
                if !self.options.dry_run {
                    objects.delete(&mark_of(&name)).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether a time was a grace period ago when this collection began.
    fn is_old(&self, modified_ms: u64) -> bool {
        self.began_ms.saturating_sub(modified_ms) >= object_grace_ms(self.settings)
    }
}
