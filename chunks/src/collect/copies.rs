//! What a collection makes of each chunk in a data document.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Collection;
use crate::contents::Contents;
use crate::error::Result;
use crate::id::Bucket;
use crate::lookup::{DATA_AT_ONCE, Shelf};
use crate::placement::{candidates, index_id};
use crate::store::Leaf;
use crate::stub::Stub;

/// What a copy of a chunk in a data document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// The index names it. Whether its removal is due.
    Named { expired: bool },
    /// Files refer to it, and no index names a document that has it: it gets an entry. The documents that are
    /// named, and do not have it.
    Stray { wrong: BTreeSet<String> },
    /// Indexes of two lengths name a copy each. The shorter one (the first) forgets this one, and the
    /// longer one remembers it as spare.
    Superseded { shorter: String, longer: String },
    /// It goes: the index (this one) names another copy, or nobody refers to the chunk and no index names a
    /// document that has it. Whether there is a mark that says so, and whether its removal is due. The documents
    /// that are named, and do not have it.
    Spare { index: String, known: bool, expired: bool, wrong: BTreeSet<String> },
}

/// A data document that is looked at.
pub(crate) struct Held {
    pub(super) id: String,
    pub(super) contents: Contents,
    /// Its live leaves.
    pub(super) leaves: Vec<Leaf>,
    /// Its object is not there: what it has is no copy of anything.
    pub(super) is_lost: bool,
    pub(super) copies: BTreeMap<String, Copy>,
}

impl Held {
    /// The chunks that stay, and what each takes up.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&String, usize)> {
        self.contents.sizes().iter().filter(|(chunk, _)| !self.is_expired(chunk)).map(|(chunk, size)| (chunk, *size))
    }

    /// The revisions of its live leaves.
    pub(super) fn revs(&self) -> Vec<String> {
        self.leaves.iter().map(|leaf| leaf.rev.clone()).collect()
    }

    /// The objects that its leaves name.
    pub(super) fn stubs(&self) -> impl Iterator<Item = Stub> {
        self.leaves.iter().filter_map(|leaf| Stub::read(&self.id, &leaf.body).ok().flatten())
    }

    pub(super) fn is_expired(&self, chunk: &str) -> bool {
        matches!(self.copies.get(chunk), Some(Copy::Named { expired: true } | Copy::Spare { expired: true, .. }))
    }

    /// Bytes whose removal is due.
    pub(super) fn expired_bytes(&self) -> usize {
        let expired = self.contents.sizes().iter().filter(|(chunk, _)| self.is_expired(chunk));
        expired.map(|(_, size)| size).sum()
    }

    /// Whether it holds copies that must stay where they are until their marks expire. Of strays only one has become
    /// the one that is named; the others are marked.
    pub(super) fn has_young_copies(&self) -> bool {
        let is_young = |copy: &Copy| {
            matches!(copy, Copy::Spare { expired: false, .. } | Copy::Superseded { .. } | Copy::Stray { .. })
        };
        self.copies.values().any(is_young)
    }
}

impl Collection<'_> {
    /// The indexes that may name chunks of these data documents.
    pub(super) fn indexes_of(&self, held: &[Held]) -> Vec<String> {
        let length = self.chunks.length();
        let chunks = held.iter().flat_map(|held| held.contents.sizes().keys());
        chunks.flat_map(|chunk| candidates(chunk, length)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The index where a stray chunk gets its entry.
    pub(super) fn home_of(&self, chunk: &str) -> String {
        index_id(&Bucket::of(chunk).prefix(self.chunks.length()))
    }

    /// Says of each chunk what it is.
    pub(super) async fn classify(&mut self, held: &mut [Held], shelves: &BTreeMap<String, Shelf>) -> Result<()> {
        let elsewhere = self.copies_elsewhere(held, shelves).await?;
        let length = self.chunks.length();
        for held in held {
            for chunk in held.contents.sizes().keys() {
                let is_referenced = self.references.contains(chunk);
                let (mut named, mut other, mut wrong) = (None, None, BTreeSet::new());
                let (mut mark, mut is_dying) = (None::<(String, bool)>, !is_referenced);
                for id in candidates(chunk, length) {
                    let Some(index) = shelves.get(&id).map(|shelf| &shelf.index) else { continue };
                    let since = index.condemned.get(chunk);
                    let spare_since = index.spare.get(&held.id).and_then(|chunks| chunks.get(chunk));
                    if let Some(since) = spare_since
                        && mark.as_ref().is_none_or(|(_, expired)| !expired)
                    {
                        mark = Some((id.clone(), !is_referenced && self.is_expired(*since)));
                    }
                    match index.entries.get(chunk) {
                        Some(place) if *place == held.id => {
                            let expired = !is_referenced && since.is_some_and(|since| self.is_expired(*since));
                            // Of entries on two levels both must be due.
                            let (_, so_far) = named.unwrap_or((String::new(), true));
                            named = Some((id, so_far && expired));
                        }
                        Some(place) if elsewhere.get(place).is_some_and(|chunks| chunks.contains(chunk)) => {
                            is_dying &= since.is_some_and(|since| self.is_expired(*since));
                            // The longest prefix counts, and only one that is not about to go itself can
                            // take the place of another.
                            let stays = since.is_none();
                            let counts = named.is_none() || stays;
                            other = other.or_else(|| counts.then_some((id, named.is_none() && stays)));
                        }
                        Some(place) => drop(wrong.insert(place.clone())),
                        None => {}
                    }
                }
                let is_left = mark.as_ref().is_some_and(|(_, expired)| *expired);
                let copy = match (named, other) {
                    (Some((shorter, _)), Some((longer, true))) => Copy::Superseded { shorter, longer },
                    (Some((_, expired)), _) => Copy::Named { expired },
                    (None, Some((index, _))) if !(is_dying && is_left) => {
                        let marks = shelves.get(&index).and_then(|shelf| shelf.index.spare.get(&held.id));
                        let since = marks.and_then(|marks| marks.get(chunk));
                        let expired = since.is_some_and(|since| self.is_expired(*since));
                        Copy::Spare { index, known: since.is_some(), expired, wrong: BTreeSet::new() }
                    }
                    (None, None) if is_referenced => Copy::Stray { wrong },
                    // The copy that is named goes too, or there is none. Which index has the mark of this one does
                    // not matter then. It gets no entry: its document may be about to be removed by somebody who
                    // has taken the entry away, and a writer would rely upon it.
                    (None, _) => match mark {
                        Some((index, expired)) => Copy::Spare { index, known: true, expired, wrong },
                        None => Copy::Spare { index: self.home_of(chunk), known: false, expired: false, wrong },
                    },
                };
                held.copies.insert(chunk.clone(), copy);
            }
        }
        Ok(())
    }

    /// Where indexes name another document for a chunk than the one it is found in, whether it is there
    /// indeed: a copy is spare only beside another.
    async fn copies_elsewhere(
        &mut self,
        held: &[Held],
        shelves: &BTreeMap<String, Shelf>,
    ) -> Result<HashMap<String, HashSet<String>>> {
        let length = self.chunks.length();
        let mut wanted: BTreeMap<String, HashSet<String>> = BTreeMap::new();
        for held in held {
            for chunk in held.contents.sizes().keys() {
                for id in candidates(chunk, length) {
                    let place = shelves.get(&id).and_then(|shelf| shelf.index.entries.get(chunk));
                    if let Some(place) = place.filter(|place| **place != held.id) {
                        wanted.entry(place.clone()).or_default().insert(chunk.clone());
                    }
                }
            }
        }
        let mut found = HashMap::new();
        let places: Vec<String> = wanted.keys().cloned().collect();
        for some in places.chunks(DATA_AT_ONCE) {
            for (place, leaves) in some.iter().zip(self.chunks.store.leaves(some, false).await?) {
                let Some(contents) = Contents::unite(place, &leaves).ok().flatten() else { continue };
                if self.is_lost(place, &leaves).await? {
                    continue;
                }
                let there = wanted.get(place).into_iter().flatten().filter(|chunk| contents.has(chunk)).cloned();
                found.insert(place.clone(), there.collect());
            }
        }
        Ok(found)
    }
}
