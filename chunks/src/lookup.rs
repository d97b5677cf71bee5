//! Index documents as they are read: all leaves united, doubtful entries resolved by the data documents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ChunkStore;
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::index::{Index, United};
use crate::store::{Edit, Leaf};

/// Number of data documents held at a time, each up to its size limit.
pub(crate) const DATA_AT_ONCE: usize = 16;

/// An index document, ready to be written again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    /// Union of its leaves.
    pub(crate) index: Index,
    /// The leaf to write over; `None` if no leaf is live.
    pub(crate) rev: Option<String>,
    /// Losing live leaves, to be ended once the union is written.
    pub(crate) losers: Vec<String>,
    /// Error of an unreadable live leaf. The union lacks it, and only a rebuild ends it.
    pub(crate) damage: Option<Error>,
}

/// The verdict of a data document's leaves about a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It is absent, or the document is deleted.
    Refuted,
    /// Unknown: the document has not arrived, or cannot be read.
    Open,
    /// It is there.
    Confirmed,
}

impl ChunkStore {
    /// Unites the leaves of index documents, for an operation that removes something: an unreadable leaf may name
    /// chunks that seem to be garbage.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a leaf that is not an index; the store's errors.
    pub(crate) async fn whole_shelves(&self, found: Vec<(String, Vec<Leaf>)>) -> Result<BTreeMap<String, Shelf>> {
        let shelves = self.shelves(found).await?;
        match shelves.values().find_map(|shelf| shelf.damage.clone()) {
            Some(damage) => Err(damage),
            None => Ok(shelves),
        }
    }

    /// The same for an operation that adds something. It ignores an unreadable leaf if another leaf can be read.
    ///
    /// # Errors
    /// [`Error::Malformed`] if no leaf of an index can be read; the store's errors.
    pub(crate) async fn shelves(&self, found: Vec<(String, Vec<Leaf>)>) -> Result<BTreeMap<String, Shelf>> {
        let mut shelves = BTreeMap::new();
        for (id, leaves) in found {
            let (mut indexes, mut revs, mut damage) = (Vec::new(), Vec::new(), None);
            for leaf in leaves.into_iter().filter(|leaf| !leaf.deleted) {
                match Index::read(&id, &leaf.body) {
                    Ok(index) => {
                        indexes.push(index);
                        revs.push(leaf.rev);
                    }
                    Err(error) => damage = damage.or(Some(error)),
                }
            }
            if let (Some(error), true) = (&damage, indexes.is_empty()) {
                return Err(error.clone());
            }
            let United { mut index, doubtful } = United::of(indexes);
            if !doubtful.is_empty() {
                self.settle_doubts(&mut index, doubtful).await?;
            }
            let mut revs = revs.into_iter();
            let rev = revs.next();
            shelves.insert(id, Shelf { index, rev, losers: revs.collect(), damage });
        }
        Ok(shelves)
    }

    /// Resolves doubtful entries. An entry stays if a data document has the chunk, or has not arrived yet: readers of
    /// an entry check that its document is there. If the document has arrived and lacks the chunk, or is deleted, a
    /// collection has removed the entry.
    async fn settle_doubts(&self, index: &mut Index, doubtful: BTreeMap<String, BTreeSet<String>>) -> Result<()> {
        let mut by_place: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
        for (chunk, places) in &doubtful {
            for place in places {
                by_place.entry(place).or_default().push(chunk);
            }
        }
        let mut best: HashMap<&String, (Claim, &String)> = HashMap::new();
        let places: Vec<String> = by_place.keys().map(|place| (*place).clone()).collect();
        for some in places.chunks(DATA_AT_ONCE) {
            let found = self.store.leaves(some, false).await?;
            for (place, leaves) in some.iter().zip(found) {
                let Some((place, chunks)) = by_place.get_key_value(place) else { continue };
                let data = Contents::unite(place, &leaves);
                for chunk in chunks {
                    let claim = match &data {
                        Ok(Some(data)) if data.has(chunk) => Claim::Confirmed,
                        Ok(Some(_)) => Claim::Refuted,
                        Ok(None) if leaves.is_empty() => Claim::Open,
                        Ok(None) => Claim::Refuted,
                        Err(_) => Claim::Open,
                    };
                    // If claims are equal, the first place wins, so that all clients choose the same one.
                    let known = best.entry(chunk).or_insert((claim, place));
                    if claim > known.0 {
                        *known = (claim, place);
                    }
                }
            }
        }
        for (chunk, (claim, place)) in best {
            if claim == Claim::Refuted {
                index.remove(chunk);
            } else {
                index.entries.insert(chunk.clone(), place.clone());
            }
        }
        Ok(())
    }

    /// Ends leaves whose content is in a union that was written. A leaf that is gone was ended by another client.
    ///
    /// # Errors
    /// The store's failures.
    pub(crate) async fn end_losers(&self, losers: Vec<(String, Vec<String>)>) -> Result<()> {
        let rounds = losers.iter().map(|(_, revs)| revs.len()).max().unwrap_or(0);
        for round in 0..rounds {
            let edits = losers.iter().filter_map(|(id, revs)| Some(Edit::delete(id, revs.get(round)?)));
            self.store.write(edits.collect()).await?;
        }
        Ok(())
    }
}
