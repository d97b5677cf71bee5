//! Storing chunks.
//!
//! ```text
//!  attempt:  settings and indexes ─► new chunks ─► data documents ─► indexes ─► done, or again
//!            one read, all leaves                   one bulk write    one bulk write
//! ```
//!
//! Invariants, on which collections rely:
//! * An index names a data document only after the chunk is in it.
//! * A writer that finds a chunk in a data document but in no index does not enter it, since it may be about to be
//!   removed. The writer stores it again, in another document.
//! * A writer relies on an entry only if the data document has the chunk.
//! * A condemned entry is revived by writing its index, which conflicts with the removal. In the second half of
//!   the grace period it is not revived; the chunk is stored again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::contents::Legible;
use crate::data::{Data, OPEN_BELOW};
use crate::database::refused;
use crate::environment::random;
use crate::error::{Result, StoreError};
use crate::id::Bucket;
use crate::lookup::{DATA_AT_ONCE, Shelf};
use crate::placement::{MAX_PREFIX_LENGTH, SETTINGS_ID, candidates, data_id, data_parts, index_id};
use crate::settings::Settings;
use crate::store::{Edit, Leaf};

/// Size in bytes above which an index makes prefixes longer.
pub(crate) const INDEX_LIMIT: usize = 30_000;

/// Result of storing chunks, and proof that they are stored: a file may refer to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Number of chunks stored.
    pub new: u64,
    /// Number of chunks that were there already.
    pub known: u64,
    /// Number of these that were condemned and are revived.
    pub revived: u64,
    /// Bytes of the new chunks' data.
    pub chunk_bytes: u64,
    /// Bytes of all documents written, as compact JSON.
    pub document_bytes: u64,
    /// Number of documents written.
    pub documents: u64,
    /// Maximum number of attempts at anything.
    pub attempts: u32,
    /// Time when the first of the chunks was looked up, in milliseconds since 1970.
    pub(crate) checked_ms: u64,
    pub(crate) ids: BTreeSet<String>,
}

impl Receipt {
    /// Adds another receipt's chunks and figures.
    pub fn merge(&mut self, other: Receipt) {
        self.checked_ms = if self.ids.is_empty() { other.checked_ms } else { self.checked_ms.min(other.checked_ms) };
        self.new += other.new;
        self.known += other.known;
        self.revived += other.revived;
        self.chunk_bytes += other.chunk_bytes;
        self.document_bytes += other.document_bytes;
        self.documents += other.documents;
        self.attempts += other.attempts;
        self.ids.extend(other.ids);
    }
}

/// Result of an attempt.
pub(crate) enum Attempt {
    Done,
    /// A precondition of all attempts has changed.
    Again,
    /// Another writer was faster somewhere.
    Contended,
}

/// A put in progress.
pub(crate) struct Put<'s> {
    chunks: &'s ChunkStore,
    /// Encoded chunks; `None` for a chunk that should exist, and whose content is not available.
    pub(crate) pending: BTreeMap<String, Option<String>>,
    /// The data documents into which this put has written chunks.
    placed: BTreeMap<String, String>,
    /// Chunks that were found in a data document and in no index. Their writers had time to enter them.
    waited: HashSet<String>,
    /// Chunks without content that are in no index.
    pub(crate) missing: BTreeSet<String>,
    /// Data documents that are ignored, whatever indexes say.
    damaged: HashSet<String>,
    pub(crate) last_failure: Option<StoreError>,
    pub(crate) receipt: Receipt,
}

/// A data document to be written.
struct Target {
    id: String,
    data: Data,
    rev: Option<String>,
    losers: Vec<String>,
    new: Vec<String>,
}

/// An entry that was found.
struct Hit {
    shelf: String,
    place: String,
    condemned: Option<u64>,
}

impl<'s> Put<'s> {
    pub(crate) fn new(
        chunks: &'s ChunkStore,
        pending: BTreeMap<String, Option<String>>,
        damaged: HashSet<String>,
    ) -> Self {
        Put {
            chunks,
            pending,
            placed: BTreeMap::new(),
            waited: HashSet::new(),
            missing: BTreeSet::new(),
            damaged,
            last_failure: None,
            receipt: Receipt { checked_ms: chunks.environment.now_ms(), ..Receipt::default() },
        }
    }

    pub(crate) async fn attempt(&mut self) -> Result<Attempt> {
        let length = self.chunks.length();
        let mut ids: BTreeSet<String> = self.pending.keys().flat_map(|id| candidates(id, length)).collect();
        ids.insert(SETTINGS_ID.to_owned());
        let ids: Vec<String> = ids.into_iter().collect();
        let leaves = self.chunks.store.leaves(&ids, false).await?;
        let (settings, indexes): (Vec<_>, Vec<_>) = ids.into_iter().zip(leaves).partition(|(id, _)| id == SETTINGS_ID);
        let settings = Settings::legible(settings.first().map_or(&[][..], |(_, leaves)| leaves))?;
        let Some(settings) = settings else {
            self.chunks.grow(crate::placement::prefix_length_for(self.pending.len() as u64)).await?;
            return Ok(Attempt::Again);
        };
        if self.chunks.saw(settings) > length {
            return Ok(Attempt::Again);
        }
        let mut shelves = self.chunks.shelves(indexes).await?;

        let (fresh, revived) = self.classify(&shelves, settings, length).await?;
        let (mut contended, hints) = self.write_data(&shelves, settings, length, fresh).await?;

        let mut touched: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (shelf, id) in revived {
            // A newer entry stays. The chunk that was stored here is a copy, which will be collected.
            self.placed.remove(&id);
            if let Some(shelf) = shelves.get_mut(&shelf) {
                shelf.index.condemned.remove(&id);
            }
            touched.entry(shelf).or_default().push(id);
        }
        for (shelf, hint) in hints {
            shelves.entry(shelf).or_default().index.open = hint;
        }
        let mut grown = BTreeSet::new();
        for (id, place) in &self.placed {
            if self.pending.contains_key(id) {
                let shelf = index_id(&Bucket::of(id).prefix(length));
                shelves.entry(shelf.clone()).or_default().index.place(id, place);
                grown.insert(shelf.clone());
                touched.entry(shelf).or_default().push(id.clone());
            }
        }
        let too_large = |shelf: &String| shelves.get(shelf).is_some_and(|shelf| shelf.index.bytes() > INDEX_LIMIT);
        if length < MAX_PREFIX_LENGTH && grown.iter().any(too_large) {
            self.chunks.grow(length + 1).await?;
            return Ok(Attempt::Again);
        }
        contended |= self.write_indexes(&shelves, touched).await?;
        Ok(match (self.pending.is_empty(), contended) {
            (true, _) => Attempt::Done,
            (false, true) => Attempt::Contended,
            (false, false) => Attempt::Again,
        })
    }

    /// Resolves chunks that exist already. Returns, by index, the chunks to store and those to revive.
    async fn classify(
        &mut self,
        shelves: &BTreeMap<String, Shelf>,
        settings: Settings,
        length: u8,
    ) -> Result<(BTreeMap<String, Vec<String>>, Vec<(String, String)>)> {
        let hits: BTreeMap<String, Hit> =
            self.pending.keys().filter_map(|id| Some((id.clone(), find(shelves, id, length)?))).collect();
        let present = self.present(&hits).await?;
        let places: Vec<String> = self.placed.values().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let live = if places.is_empty() { Vec::new() } else { self.chunks.store.live(&places).await? };
        let live: HashSet<String> =
            places.into_iter().zip(live).filter_map(|(place, live)| live.then_some(place)).collect();
        let now = self.chunks.environment.now_ms();
        let is_late = |since: u64| now.saturating_sub(since) >= settings.grace_ms / 2;
        // Chunks that this put stored long ago without entering them may be about to be removed.
        if is_late(self.receipt.checked_ms) {
            self.placed.clear();
        }

        let (mut fresh, mut revived) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
        let ids: Vec<String> = self.pending.keys().cloned().collect();
        for id in ids {
            let hit = hits.get(&id).filter(|_| present.contains(&id));
            match hit {
                Some(Hit { condemned: None, .. }) => {
                    self.found(&id);
                    continue;
                }
                Some(Hit { condemned: Some(since), shelf, .. }) if !is_late(*since) => {
                    revived.push((shelf.clone(), id));
                    continue;
                }
                _ => {}
            }
            // A collection may have moved the chunks that an earlier attempt stored.
            if self.placed.get(&id).is_some_and(|place| live.contains(place)) {
                continue;
            }
            self.placed.remove(&id);
            if matches!(self.pending.get(&id), Some(None)) {
                let value = match hit {
                    Some(hit) => self.chunks.value_in(&hit.place, &id).await?,
                    None => None,
                };
                let Some(value) = value else {
                    self.pending.remove(&id);
                    self.missing.insert(id);
                    continue;
                };
                self.pending.insert(id.clone(), Some(value));
            }
            fresh.entry(index_id(&Bucket::of(&id).prefix(length))).or_default().push(id);
        }
        Ok((fresh, revived))
    }

    /// The chunks that are really in the data documents that indexes name. A document may exist without the chunk: an
    /// older or damaged leaf may have arrived.
    async fn present(&self, hits: &BTreeMap<String, Hit>) -> Result<HashSet<String>> {
        let mut by_place: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
        for (id, hit) in hits.iter().filter(|(_, hit)| !self.damaged.contains(&hit.place)) {
            by_place.entry(&hit.place).or_default().push(id);
        }
        let places: Vec<String> = by_place.keys().map(|place| (*place).clone()).collect();
        let revs = if places.is_empty() { Vec::new() } else { self.chunks.store.revs(&places).await? };
        let (mut present, mut unseen) = (HashSet::new(), Vec::new());
        for (place, rev) in places.into_iter().zip(revs) {
            let ids = by_place.get(&place).map_or(&[][..], Vec::as_slice);
            match rev {
                Some(rev) if self.chunks.seen.has_all(&place, &rev, ids) => {
                    present.extend(ids.iter().map(|id| (*id).clone()));
                }
                Some(_) => unseen.push(place),
                // If the winner is not live, no leaf is.
                None => {}
            }
        }
        for some in unseen.chunks(DATA_AT_ONCE) {
            for (place, leaves) in some.iter().zip(self.chunks.store.leaves(some, false).await?) {
                for (number, leaf) in leaves.iter().filter(|leaf| !leaf.deleted).enumerate() {
                    // An unreadable leaf counts as empty.
                    let Ok(legible) = Legible::read(place, &leaf.body) else { continue };
                    let chunks: HashSet<&String> = legible.chunks().into_iter().collect();
                    let ids = by_place.get(place).into_iter().flatten();
                    present.extend(ids.filter(|id| chunks.contains(*id)).map(|id| (*id).clone()));
                    if number == 0 {
                        self.chunks.seen.remember(place, &leaf.rev, chunks.into_iter().cloned());
                    }
                }
            }
        }
        Ok(present)
    }

    /// Counts a chunk that another writer has stored.
    fn found(&mut self, id: &str) {
        self.pending.remove(id);
        self.receipt.ids.insert(id.to_owned());
        self.receipt.known += 1;
    }

    /// Writes chunks into data documents. Returns whether another writer was faster at any, and for each index the data
    /// document that is now open.
    async fn write_data(
        &mut self,
        shelves: &BTreeMap<String, Shelf>,
        settings: Settings,
        length: u8,
        fresh: BTreeMap<String, Vec<String>>,
    ) -> Result<(bool, Vec<(String, Option<String>)>)> {
        let mut open: BTreeMap<String, String> = BTreeMap::new();
        for shelf in fresh.keys() {
            let prefix = shelf.trim_start_matches(crate::placement::INDEX_PREFIX);
            let hint = shelves.get(shelf).and_then(|shelf| shelf.index.open.clone());
            if let Some(hint) = hint.filter(|hint| data_parts(hint).is_some_and(|(own, _)| own == prefix)) {
                open.insert(shelf.clone(), hint);
            }
        }
        let hints: Vec<String> = open.values().cloned().collect();
        let found = if hints.is_empty() { Vec::new() } else { self.chunks.store.leaves(&hints, false).await? };
        let mut found: HashMap<String, Vec<Leaf>> = hints.into_iter().zip(found).collect();

        let (mut targets, mut opened, mut contended) = (Vec::new(), Vec::new(), false);
        for (shelf, ids) in fresh {
            let target = open.get(&shelf).and_then(|hint| open_target(hint, found.remove(hint)?));
            let known = shelves.get(&shelf).map(|shelf| &shelf.index.entries);
            let sequences = known.into_iter().flat_map(BTreeMap::values).filter_map(|place| Some(data_parts(place)?.1));
            let next = sequences.max().unwrap_or(0).saturating_add(1);
            let some = self.fill(&shelf, ids, target, next, length, settings, &mut contended);
            if let Some(last) = some.last() {
                opened.push((shelf, Some(last.id.clone()).filter(|_| last.data.bytes() < OPEN_BELOW)));
            }
            targets.extend(some);
        }
        let edits: Vec<Edit> = targets
            .iter()
            .map(|target| Edit {
                id: target.id.clone(),
                rev: target.rev.clone(),
                deleted: false,
                body: target.data.write(),
            })
            .collect();
        let written = if edits.is_empty() { Vec::new() } else { self.chunks.store.write(edits).await? };
        let mut losers = Vec::new();
        for (target, written) in targets.into_iter().zip(written) {
            if refused(&target.id, &written, &mut self.last_failure)? {
                contended = true;
                continue;
            }
            self.receipt.documents += 1;
            self.receipt.document_bytes += target.data.bytes() as u64;
            if let Ok(rev) = &written {
                let chunks = target.data.chunks().keys().filter(|chunk| target.data.get(chunk).is_some());
                self.chunks.seen.remember(&target.id, rev, chunks.cloned());
            }
            for id in target.new {
                self.placed.insert(id, target.id.clone());
            }
            losers.push((target.id, target.losers));
        }
        self.chunks.end_losers(losers).await?;
        Ok((contended, opened))
    }

    /// Distributes chunks over the open data document and as many new ones as needed.
    #[expect(clippy::too_many_arguments, reason = "one step of write_data, apart for its length alone")]
    fn fill(
        &mut self,
        shelf: &str,
        ids: Vec<String>,
        mut target: Option<Target>,
        mut sequence: u64,
        length: u8,
        settings: Settings,
        contended: &mut bool,
    ) -> Vec<Target> {
        let mut full = Vec::new();
        let (mut fit, mut apart) = (Vec::new(), Vec::new());
        for id in ids {
            if !target.as_ref().is_some_and(|target| target.data.has(&id)) {
                fit.push(id);
            } else if self.waited.insert(id.clone()) {
                // The chunk's writer may be about to enter it in the index.
                *contended = true;
            } else {
                apart.push(id);
            }
        }
        let prefix = shelf.trim_start_matches(crate::placement::INDEX_PREFIX);
        debug_assert_eq!(prefix.len(), usize::from(length));
        for (ids, is_apart) in [(fit, false), (apart, true)] {
            if is_apart && !ids.is_empty() {
                full.extend(target.take().filter(|target| !target.new.is_empty()));
            }
            for id in ids {
                let Some(Some(value)) = self.pending.get(&id) else { continue };
                let cost = Data::cost(&id, value);
                let has_room = |target: &Target| target.data.bytes() + cost <= settings.data_doc_size_limit;
                if !target.as_ref().is_some_and(has_room) {
                    full.extend(target.take().filter(|target| !target.new.is_empty()));
                }
                let target = target.get_or_insert_with(|| {
                    let id = data_id(prefix, sequence, random(&*self.chunks.environment));
                    sequence = sequence.saturating_add(1);
                    Target { id, data: Data::default(), rev: None, losers: Vec::new(), new: Vec::new() }
                });
                target.data.add(id.clone(), value.clone());
                target.new.push(id);
            }
        }
        full.extend(target.filter(|target| !target.new.is_empty()));
        full
    }

    /// Writes indexes, and resolves their chunks. Returns whether another writer was faster at any.
    async fn write_indexes(
        &mut self,
        shelves: &BTreeMap<String, Shelf>,
        touched: BTreeMap<String, Vec<String>>,
    ) -> Result<bool> {
        let written: Vec<(&String, &Shelf, Vec<String>)> = touched
            .into_iter()
            .filter_map(|(id, ids)| Some((shelves.get_key_value(&id)?, ids)))
            .map(|((id, shelf), ids)| (id, shelf, ids))
            .collect();
        let edits: Vec<Edit> = written
            .iter()
            .map(|(id, shelf, _)| Edit {
                id: (*id).clone(),
                rev: shelf.rev.clone(),
                deleted: false,
                body: shelf.index.write(),
            })
            .collect();
        if edits.is_empty() {
            return Ok(false);
        }
        let results = self.chunks.store.write(edits).await?;
        let (mut contended, mut losers) = (false, Vec::new());
        for ((id, shelf, ids), result) in written.into_iter().zip(results) {
            if refused(id, &result, &mut self.last_failure)? {
                contended = true;
                continue;
            }
            self.receipt.documents += 1;
            self.receipt.document_bytes += shelf.index.bytes() as u64;
            losers.push((id.clone(), shelf.losers.clone()));
            for id in ids {
                let value = self.pending.remove(&id).flatten();
                if self.placed.contains_key(&id) {
                    self.receipt.new += 1;
                    let data = value.as_deref().and_then(Chunk::decode).map_or(0, |chunk| chunk.data.len());
                    self.receipt.chunk_bytes += data as u64;
                } else {
                    self.receipt.known += 1;
                    self.receipt.revived += 1;
                }
                self.receipt.ids.insert(id);
            }
        }
        self.chunks.end_losers(losers).await?;
        Ok(contended)
    }
}

/// The entry of a chunk: preferably one that is not condemned, then the longest prefix.
fn find(shelves: &BTreeMap<String, Shelf>, chunk: &str, length: u8) -> Option<Hit> {
    let mut best: Option<Hit> = None;
    for id in candidates(chunk, length) {
        let Some(shelf) = shelves.get(&id) else { continue };
        let Some(place) = shelf.index.entries.get(chunk) else { continue };
        let condemned = shelf.index.condemned.get(chunk).copied();
        // A later mark lives longer.
        let is_better = match &best {
            None => true,
            Some(best) => best.condemned.is_some_and(|known| condemned.is_none_or(|since| since > known)),
        };
        if is_better {
            best = Some(Hit { shelf: id, place: place.clone(), condemned });
        }
    }
    best
}

/// The open data document, if it exists and is still small.
fn open_target(id: &str, leaves: Vec<Leaf>) -> Option<Target> {
    // An unreadable one is left alone.
    let data = Data::unite(id, &leaves).ok().flatten().filter(|data| data.bytes() < OPEN_BELOW)?;
    let mut revs = leaves.into_iter().filter(|leaf| !leaf.deleted).map(|leaf| leaf.rev);
    let rev = revs.next();
    Some(Target { id: id.to_owned(), data, rev, losers: revs.collect(), new: Vec::new() })
}
