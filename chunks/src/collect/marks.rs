//! The first half of a collection: marks in the indexes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{CollectStep, Collection};
use crate::error::{Error, Result};
use crate::id::Bucket;
use crate::index::{Index, Marks};
use crate::lookup::Shelf;
use crate::placement::{INDEX_PREFIX, MAX_PREFIX_LENGTH, index_id, index_prefix};
use crate::store::IdRange;
use crate::write::INDEX_LIMIT;

/// Number of indexes written at a time.
const INDEXES_AT_ONCE: usize = 64;

/// Result of marking an index.
#[derive(Clone, Copy, Debug, Default)]
struct Marked {
    condemned: u64,
    reprieved: u64,
    removed: u64,
    dangling: u64,
}

impl Collection<'_> {
    /// Condemns chunks that no file refers to, and reprieves those that a file refers to again.
    pub(super) async fn mark(&mut self, progress: &mut (impl FnMut(CollectStep) + Send)) -> Result<()> {
        let mut range = Some(IdRange::prefix(INDEX_PREFIX).limit(INDEXES_AT_ONCE));
        let mut done = 0;
        while let Some(next) = range {
            let page = self.chunks.store.list(&next).await?;
            let ids: Vec<String> =
                page.rows.into_iter().map(|row| row.id).filter(|id| index_prefix(id).is_some()).collect();
            done += ids.len() as u64;
            match self.mark_some(ids.clone()).await {
                // One by one, so that only the damaged index is skipped.
                Err(Error::Malformed { .. }) => {
                    for id in ids {
                        match self.mark_some(vec![id]).await {
                            Err(error @ Error::Malformed { .. }) => self.report.damaged.push(error.to_string()),
                            marked => marked?,
                        }
                    }
                }
                marked => marked?,
            }
            progress(CollectStep::Indexes(done));
            range = page.rest;
        }
        Ok(())
    }

    async fn mark_some(&mut self, ids: Vec<String>) -> Result<()> {
        let leaves = self.chunks.store.leaves(&ids, false).await?;
        let shelves = self.chunks.whole_shelves(ids.iter().cloned().zip(leaves).collect()).await?;
        let indexes = || shelves.values().map(|shelf| &shelf.index);
        let named = indexes().flat_map(|index| index.entries.values());
        let places: BTreeSet<&String> = named.chain(indexes().flat_map(|index| index.spare.keys())).collect();
        let places: Vec<String> = places.into_iter().cloned().collect();
        let live = if places.is_empty() { Vec::new() } else { self.chunks.store.live(&places).await? };
        let gone: HashSet<&String> = places.iter().zip(live).filter_map(|(id, live)| (!live).then_some(id)).collect();

        let now = self.chunks.environment.now_ms();
        let mut all: BTreeMap<String, Marked> = BTreeMap::new();
        if self.options.dry_run {
            for (id, shelf) in shelves {
                let mut index = shelf.index;
                all.insert(id, self.mark_index(&mut index, &gone, now));
            }
        } else {
            let written = self
                .chunks
                .edit_indexes(ids, |id, index| {
                    // Only the last attempt counts: it was written.
                    all.insert(id.to_owned(), self.mark_index(index, &gone, now));
                })
                .await?;
            self.split_large(written).await?;
        }
        for marked in all.into_values() {
            self.report.condemned += marked.condemned;
            self.report.reprieved += marked.reprieved;
            self.report.removed += marked.removed;
            self.report.dangling += marked.dangling;
        }
        Ok(())
    }

    fn mark_index(&self, index: &mut Index, gone: &HashSet<&String>, now: u64) -> Marked {
        let mut marked = Marked::default();
        let Index { entries, condemned, spare, .. } = index;
        condemned.retain(|chunk, _| entries.contains_key(chunk));
        // A deleted document has no copies left. One that has not arrived yet has the grace period for it.
        let is_over = |marks: &Marks| marks.values().all(|since| self.is_expired(*since));
        spare.retain(|place, marks| !(gone.contains(place) && is_over(marks)));
        spare.values_mut().flat_map(BTreeMap::values_mut).for_each(|since| *since = (*since).min(now));
        entries.retain(|chunk, place| {
            let is_gone = gone.contains(place);
            if self.references.contains(chunk) {
                marked.reprieved += u64::from(condemned.remove(chunk).is_some());
                marked.dangling += u64::from(is_gone);
                return true;
            }
            match condemned.get_mut(chunk) {
                Some(since) if is_gone && self.is_expired(*since) => {
                    // Only this mark is left to remove.
                    condemned.remove(chunk);
                    marked.removed += 1;
                    return false;
                }
                // A clock that was ahead must not keep it forever.
                Some(since) => *since = (*since).min(now),
                None => {
                    condemned.insert(chunk.clone(), now);
                    marked.condemned += 1;
                }
            }
            true
        });
        marked
    }

    /// Splits those of these indexes that are too large.
    pub(super) async fn split_large(&self, written: BTreeMap<String, Shelf>) -> Result<()> {
        for (id, shelf) in written {
            if shelf.index.bytes() > INDEX_LIMIT {
                self.split(&id).await?;
            }
        }
        Ok(())
    }

    /// Moves the entries of a too large index, such as the union of two forks, to indexes of a longer prefix. Writes
    /// them there first, then removes the unchanged ones here.
    async fn split(&self, id: &str) -> Result<()> {
        let Some(length) = index_prefix(id).map(|prefix| prefix.len() as u8).filter(|&len| len < MAX_PREFIX_LENGTH)
        else {
            return Ok(());
        };
        self.chunks.grow(length + 1).await?;
        let leaves = self.chunks.store.leaves(&[id.to_owned()], false).await?;
        let shelves = self.chunks.whole_shelves(std::iter::once(id.to_owned()).zip(leaves).collect()).await?;
        let Some(parent) = shelves.get(id).map(|shelf| &shelf.index) else { return Ok(()) };
        let mut children: BTreeMap<String, Vec<(&String, &String)>> = BTreeMap::new();
        for (chunk, place) in &parent.entries {
            children.entry(index_id(&Bucket::of(chunk).prefix(length + 1))).or_default().push((chunk, place));
        }
        let written = self
            .chunks
            .edit_indexes(children.keys().cloned().collect(), |child, index| {
                for (chunk, place) in children.get(child).into_iter().flatten() {
                    if index.entries.contains_key(*chunk) {
                        continue;
                    }
                    index.entries.insert((*chunk).clone(), (*place).clone());
                    if let Some(since) = parent.condemned.get(*chunk) {
                        index.condemned.insert((*chunk).clone(), *since);
                    }
                }
            })
            .await?;
        self.chunks
            .edit_indexes(vec![id.to_owned()], |_, index| {
                for (chunk, place) in &parent.entries {
                    let child = index_id(&Bucket::of(chunk).prefix(length + 1));
                    let arrived =
                        written.get(&child).is_some_and(|shelf| shelf.index.entries.get(chunk) == Some(place));
                    let is_same = index.entries.get(chunk) == Some(place)
                        && index.condemned.get(chunk) == parent.condemned.get(chunk);
                    if arrived && is_same {
                        index.remove(chunk);
                    }
                }
                // Marks of copies are made again in the indexes of their entries. Marks of chunks without an entry
                // stay.
                let Index { entries, spare, .. } = index;
                for chunks in spare.values_mut() {
                    chunks.retain(|chunk, _| entries.contains_key(chunk) || !parent.entries.contains_key(chunk));
                }
                spare.retain(|_, chunks| !chunks.is_empty());
            })
            .await?;
        Ok(())
    }
}
