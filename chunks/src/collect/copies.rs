//! Classifies each chunk in a data document for a collection.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Collection;
use crate::contents::Contents;
use crate::error::Result;
use crate::id::Bucket;
use crate::lookup::{DATA_AT_ONCE, Shelf};
use crate::placement::{candidates, index_id};
use crate::store::Leaf;
use crate::stub::Stub;

/// State of a chunk's copy in a data document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// The index names it. `expired`: its removal is due.
    Named { expired: bool },
    /// Files refer to it, and no index names a document that has it: it gets an entry. `wrong`: the named documents
    /// that do not have it.
    Stray { wrong: BTreeSet<String> },
    /// Indexes of two prefix lengths name a copy each. The shorter index forgets this copy, and the longer one
    /// marks it as spare.
    Superseded { shorter: String, longer: String },
    /// The copy must go: `index` names another copy, or no file refers to the chunk and no index names a document that
    /// has it. `known`: it is marked as spare. `expired`: its removal is due. `wrong`: the named documents that do not
    /// have it.
    Spare { index: String, known: bool, expired: bool, wrong: BTreeSet<String> },
}

/// A data document in a collection.
pub(crate) struct Held {
    pub(super) id: String,
    pub(super) contents: Contents,
    /// Its live leaves.
    pub(super) leaves: Vec<Leaf>,
    /// Whether its object is missing. Then it holds no copy of anything.
    pub(super) is_lost: bool,
    pub(super) copies: BTreeMap<String, Copy>,
}

impl Held {
    /// The chunks that stay, with their sizes.
    pub(super) fn kept(&self) -> impl Iterator<Item = (&String, usize)> {
        self.contents.sizes().iter().filter(|(chunk, _)| !self.is_expired(chunk)).map(|(chunk, size)| (chunk, *size))
    }

    /// The revisions of its live leaves.
    pub(super) fn revs(&self) -> Vec<String> {
        self.leaves.iter().map(|leaf| leaf.rev.clone()).collect()
    }

    /// The stubs among its leaves.
    pub(super) fn stubs(&self) -> impl Iterator<Item = Stub> {
        self.leaves.iter().filter_map(|leaf| Stub::read(&self.id, &leaf.body).ok().flatten())
    }

    pub(super) fn is_expired(&self, chunk: &str) -> bool {
        matches!(self.copies.get(chunk), Some(Copy::Named { expired: true } | Copy::Spare { expired: true, .. }))
    }

    /// Number of bytes whose removal is due.
    pub(super) fn expired_bytes(&self) -> usize {
        let expired = self.contents.sizes().iter().filter(|(chunk, _)| self.is_expired(chunk));
        expired.map(|(_, size)| size).sum()
    }

    /// Whether it holds copies that must stay until their marks expire. Only one of several strays became the named
    /// copy; the others are marked.
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

    /// The index in which a stray chunk gets its entry.
    pub(super) fn home_of(&self, chunk: &str) -> String {
        index_id(&Bucket::of(chunk).prefix(self.chunks.length()))
    }

    /// Classifies every chunk.
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
                            // Entries in two indexes must both be due.
                            let (_, so_far) = named.unwrap_or((String::new(), true));
                            named = Some((id, so_far && expired));
                        }
                        Some(place) if elsewhere.get(place).is_some_and(|chunks| chunks.contains(chunk)) => {
                            is_dying &= since.is_some_and(|since| self.is_expired(*since));
                            // The longest prefix counts. Only an entry that stays can replace another one.
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
                    // The named copy goes too, or does not exist. Then it does not matter which index has the mark of
                    // this copy. It gets no entry: another collection may have taken the entry away and be about to
                    // remove the document, and a writer would rely on the entry.
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

    /// For chunks that indexes name in another document: whether they are really there. A copy is spare only if another
    /// one exists.
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
