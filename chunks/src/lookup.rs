//! Index documents as they are found: all their leaves, united, and doubts settled by the data documents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::ChunkStore;
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::index::{Index, United};
use crate::store::{Edit, Leaf};

/// Data documents held at a time, each up to its limit of bytes.
pub(crate) const DATA_AT_ONCE: usize = 16;

/// An index document, ready to be written again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    /// The union of its leaves.
    pub(crate) index: Index,
    /// The leaf to write on; `None` where there is no live one.
    pub(crate) rev: Option<String>,
    /// The live leaves that lost, to be ended once the union is written.
    pub(crate) losers: Vec<String>,
    /// What is wrong with a live leaf that cannot be read. It is in no union, and nobody but a rebuild ends it.
    pub(crate) damage: Option<Error>,
}

/// What the leaves of a data document say of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It is not there, or the document is deleted.
    Refuted,
    /// There is no such document yet, or it cannot be read: nobody knows.
    Open,
    /// It is there.
    Confirmed,
}

impl ChunkStore {
    /// Unites the leaves of index documents, for who removes something: a leaf that cannot be read may name what
    /// seems to be of no use.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a leaf that is no index; the store's failures.
    pub(crate) async fn whole_shelves(&self, found: Vec<(String, Vec<Leaf>)>) -> Result<BTreeMap<String, Shelf>> {
        let shelves = self.shelves(found).await?;
        match shelves.values().find_map(|shelf| shelf.damage.clone()) {
            Some(damage) => Err(damage),
            None => Ok(shelves),
        }
    }

    /// The same for who adds something: it goes beside a leaf that cannot be read.
    ///
    /// # Errors
    /// [`Error::Malformed`] where none of an index's leaves can be read; the store's failures.
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

    /// A doubtful entry stays where a data document has the chunk. Where that document has not arrived
    /// here yet it stays too: those who rely on an entry look whether its document is there. Where it has
    /// arrived and lacks the chunk, or is deleted, the entry is one that a collection has removed.
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
                    // Of equal claims the first place stands: all who unite take the same.
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

    /// Ends leaves whose content is in a union that has been written. One that is no leaf any more has
    /// been ended by somebody else.
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
