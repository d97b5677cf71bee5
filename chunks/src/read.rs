//! Reading chunks.
//!
//! An index tells where a chunk is. It may lack a chunk because it is behind the data documents (replication transfers
//! documents in any order) or was lost. Then the search continues:
//!
//! 1. the indexes of all lengths up to the current one, and their data documents;
//! 2. the same for all lengths, since a collection may have moved it meanwhile;
//! 3. a document of its own, as LiveSync has it;
//! 4. every data document of its prefixes.
//!
//! Damaged indexes are skipped here: reading must work as long as anything can be read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::contents::mentions;
use crate::data::Data;
use crate::error::Result;
use crate::id::Bucket;
use crate::index::Index;
use crate::lookup::DATA_AT_ONCE;
use crate::placement::{DATA_PREFIX, MAX_PREFIX_LENGTH, candidates};
use crate::store::{IdRange, Leaf};

/// A chunk, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundChunk {
    pub(crate) chunk: Chunk,
    /// Whether it is only in its own document.
    pub(crate) in_own_document: bool,
}

impl ChunkStore {
    /// Reads chunks. The result has each requested id, with `None` for a chunk that is nowhere in the database.
    ///
    /// # Errors
    /// The store's failures.
    pub async fn get(&self, ids: &[String]) -> Result<BTreeMap<String, Option<Chunk>>> {
        let found = self.read_found(ids).await?;
        Ok(found.into_iter().map(|(id, found)| (id, found.map(|found| found.chunk))).collect())
    }

    pub(crate) async fn read_found(&self, ids: &[String]) -> Result<BTreeMap<String, Option<FoundChunk>>> {
        let mut found: BTreeMap<String, Option<FoundChunk>> = ids.iter().map(|id| (id.clone(), None)).collect();
        let length = self.length();
        for longest in [length, MAX_PREFIX_LENGTH] {
            self.read_indexed(&mut found, longest).await?;
        }
        self.read_own_documents(&mut found).await?;
        self.read_unindexed(&mut found).await?;
        Ok(found)
    }

    async fn read_indexed(&self, found: &mut BTreeMap<String, Option<FoundChunk>>, longest: u8) -> Result<()> {
        let wanted = missing(found);
        let indexes: BTreeSet<String> = wanted.iter().flat_map(|id| candidates(id, longest)).collect();
        if indexes.is_empty() {
            return Ok(());
        }
        let indexes: Vec<String> = indexes.into_iter().collect();
        let leaves = self.store.leaves(&indexes, false).await?;
        let mut read: HashMap<String, Vec<Index>> = HashMap::new();
        for (id, leaves) in indexes.into_iter().zip(leaves) {
            let live = leaves.iter().filter(|leaf| !leaf.deleted);
            let some = live.filter_map(|leaf| Index::read(&id, &leaf.body).ok()).collect();
            read.insert(id, some);
        }
        let mut by_place: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for id in wanted {
            for index in candidates(&id, longest).filter_map(|index| read.get(&index)).flatten() {
                if let Some(place) = index.entries.get(&id) {
                    by_place.entry(place.clone()).or_default().insert(id.clone());
                }
            }
        }
        let places: Vec<String> = by_place.keys().cloned().collect();
        for some in places.chunks(DATA_AT_ONCE) {
            let leaves = self.store.leaves(some, false).await?;
            let wanted = |place: &String| by_place.get(place).into_iter().flatten();
            self.take_from(some.iter().zip(&leaves).map(|(place, leaves)| (place, &leaves[..], wanted(place))), found)
                .await?;
        }
        Ok(())
    }

    async fn read_own_documents(&self, found: &mut BTreeMap<String, Option<FoundChunk>>) -> Result<()> {
        let wanted = missing(found);
        if wanted.is_empty() {
            return Ok(());
        }
        let leaves = self.store.leaves(&wanted, false).await?;
        for (id, leaves) in wanted.into_iter().zip(leaves) {
            let chunk = leaves.iter().filter(|leaf| !leaf.deleted).find_map(|leaf| Chunk::from_document(&leaf.body));
            if let Some(chunk) = chunk {
                found.insert(id, Some(FoundChunk { chunk, in_own_document: true }));
            }
        }
        Ok(())
    }

    async fn read_unindexed(&self, found: &mut BTreeMap<String, Option<FoundChunk>>) -> Result<()> {
        let mut prefixes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for id in missing(found) {
            for length in 0..=MAX_PREFIX_LENGTH {
                prefixes.entry(Bucket::of(&id).prefix(length)).or_default().push(id.clone());
            }
        }
        for (prefix, ids) in prefixes {
            let mut range = Some(IdRange::prefix(&format!("{DATA_PREFIX}{prefix}-")));
            while let Some(next) = range {
                let page = self.store.list(&next).await?;
                let places: Vec<String> = page.rows.into_iter().map(|row| row.id).collect();
                for some in places.chunks(DATA_AT_ONCE) {
                    let leaves = self.store.leaves(some, false).await?;
                    self.take_from(
                        some.iter().zip(&leaves).map(|(place, leaves)| (place, &leaves[..], ids.iter())),
                        found,
                    )
                    .await?;
                }
                range = page.rest.filter(|_| ids.iter().any(|id| matches!(found.get(id), Some(None))));
            }
        }
        Ok(())
    }

    /// Takes the wanted chunks that are not found yet out of data documents. Reads an object only if it has one of
    /// them. A damaged document affects only itself.
    async fn take_from<'a, I>(
        &self,
        places: impl Iterator<Item = (&'a String, &'a [Leaf], I)>,
        found: &mut BTreeMap<String, Option<FoundChunk>>,
    ) -> Result<()>
    where
        I: Iterator<Item = &'a String>,
    {
        let (mut leaves, mut wanted) = (Vec::new(), Vec::new());
        for (place, live, ids) in places {
            let ids: Vec<&String> = ids.filter(|id| matches!(found.get(*id), Some(None))).collect();
            for leaf in live.iter().filter(|leaf| !leaf.deleted) {
                let there: Vec<&String> = ids.iter().copied().filter(|id| mentions(&leaf.body, id)).collect();
                if !there.is_empty() {
                    leaves.push((place.as_str(), leaf));
                    wanted.push(there);
                }
            }
        }
        for (data, ids) in self.data_of(&leaves).await?.into_iter().zip(wanted) {
            let Ok(data) = data else { continue };
            ids.into_iter().for_each(|id| take(found, id, &data));
        }
        Ok(())
    }

    /// A chunk from any leaf of a data document.
    pub(crate) async fn value_in(&self, place: &str, chunk: &str) -> Result<Option<String>> {
        let leaves = self.store.leaves(&[place.to_owned()], false).await?.pop().unwrap_or_default();
        let live: Vec<(&str, &Leaf)> = leaves.iter().filter(|leaf| !leaf.deleted).map(|leaf| (place, leaf)).collect();
        let data = self.data_of(&live).await?;
        Ok(data.into_iter().flatten().find_map(|data| data.chunks().get(chunk).cloned()))
    }

    /// The data documents that indexes name for chunks, with their leaves.
    pub(crate) async fn named_places(&self, chunks: &[String]) -> Result<Vec<(String, Vec<Leaf>)>> {
        let indexes: BTreeSet<String> = chunks.iter().flat_map(|id| candidates(id, MAX_PREFIX_LENGTH)).collect();
        let indexes: Vec<String> = indexes.into_iter().collect();
        let mut places: BTreeSet<String> = BTreeSet::new();
        for (id, leaves) in indexes.iter().zip(self.store.leaves(&indexes, false).await?) {
            for leaf in leaves.iter().filter(|leaf| !leaf.deleted) {
                let Ok(index) = Index::read(id, &leaf.body) else { continue };
                places.extend(chunks.iter().filter_map(|chunk| index.entries.get(chunk).cloned()));
            }
        }
        let (places, mut all): (Vec<String>, _) = (places.into_iter().collect(), Vec::new());
        for some in places.chunks(DATA_AT_ONCE) {
            all.extend(some.iter().cloned().zip(self.store.leaves(some, false).await?));
        }
        Ok(all)
    }
}

fn missing(found: &BTreeMap<String, Option<FoundChunk>>) -> Vec<String> {
    found.iter().filter(|(_, found)| found.is_none()).map(|(id, _)| id.clone()).collect()
}

fn take(found: &mut BTreeMap<String, Option<FoundChunk>>, id: &str, data: &Data) {
    if let (Some(place @ None), Some(chunk)) = (found.get_mut(id), data.get(id)) {
        *place = Some(FoundChunk { chunk, in_own_document: false });
    }
}
