//! The second half of a collection: data documents.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::copies::{Copy, Held};
use super::{CollectStep, Collection};
use crate::contents::Contents;
use crate::data::{Data, OPEN_BELOW};
use crate::database::refused;
use crate::environment::random;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::lookup::DATA_AT_ONCE;
use crate::placement::{DATA_PREFIX, candidates, data_id, data_parts};
use crate::store::{Edit, IdRange, Leaf};
use crate::stub::Stub;

/// Number of small data documents of a prefix that are packed together. Fewer are left alone, since each collection
/// would write them again.
const SMALL_TOGETHER: usize = 4;

/// A change in an index, for a chunk in a data document.
enum Entry<'h> {
    /// Name this copy, unless the entry names a document outside `wrong`.
    Adopt { wrong: &'h BTreeSet<String> },
    /// Remove an entry that names one of `wrong`.
    Refute { wrong: &'h BTreeSet<String> },
    /// Mark the copy as spare.
    Spare,
    /// Remove the entry.
    Forget,
}

impl Collection<'_> {
    /// Goes through all data documents.
    pub(super) async fn sweep(&mut self, progress: &mut (impl FnMut(CollectStep) + Send)) -> Result<()> {
        // Ids sort by prefix. Documents created meanwhile may be missed.
        let mut range = Some(IdRange::prefix(DATA_PREFIX));
        let (mut group, mut done): (Vec<String>, u64) = (Vec::new(), 0);
        while let Some(next) = range {
            let page = self.chunks.store.list(&next).await?;
            for row in page.rows {
                let Some((prefix, _)) = data_parts(&row.id) else { continue };
                let is_other = group.first().and_then(|id| data_parts(id)).is_some_and(|(own, _)| own != prefix);
                if is_other || group.len() == DATA_AT_ONCE {
                    done += group.len() as u64;
                    self.sweep_group(std::mem::take(&mut group)).await?;
                    progress(CollectStep::Documents(done));
                }
                group.push(row.id);
            }
            range = page.rest;
        }
        done += group.len() as u64;
        self.sweep_group(group).await?;
        progress(CollectStep::Documents(done));
        Ok(())
    }

    /// Collects the data documents of one prefix.
    async fn sweep_group(&mut self, ids: Vec<String>) -> Result<()> {
        let held = self.look_at(&ids).await?;
        let limit = self.settings.data_doc_size_limit;
        let is_small = |held: &Held| held.contents.bytes() < limit / 2 && !held.has_young_copies();
        let small = held.iter().filter(|held| is_small(held)).count();
        let due: Vec<Held> = held
            .into_iter()
            .filter(|held| {
                let expired = held.expired_bytes();
                let is_empty = held.kept().next().is_none();
                let unused = expired * 100 >= usize::from(self.options.unused_percent) * held.contents.bytes();
                // Two forks together can exceed the size of a document.
                let is_split = held.leaves.len() > 1;
                if held.is_lost && !is_empty {
                    return false;
                }
                let is_due = is_empty || (expired > 0 && unused || is_split) && !held.has_young_copies();
                is_due || small >= SMALL_TOGETHER && is_small(held)
            })
            .collect();
        if due.is_empty() { Ok(()) } else { self.replace(due).await }
    }

    /// Reads data documents, unites their leaves, and makes sure that an index names each of their chunks. Returns
    /// nothing if an index is damaged, since it may name any chunk.
    pub(crate) async fn look_at(&mut self, ids: &[String]) -> Result<Vec<Held>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.chunks.settings().await?;
        let mut held = Vec::new();
        for (id, leaves) in ids.iter().zip(self.chunks.store.leaves(ids, false).await?) {
            match Contents::unite(id, &leaves) {
                Ok(Some(contents)) => {
                    let is_lost = self.is_lost(id, &leaves).await?;
                    let leaves = leaves.into_iter().filter(|leaf| !leaf.deleted).collect();
                    held.push(Held { id: id.clone(), contents, leaves, is_lost, copies: BTreeMap::new() });
                }
                Ok(None) => {}
                Err(error) => {
                    // It may be a stub, and name any object.
                    self.objects.is_unsure = true;
                    self.report.damaged.push(error.to_string());
                }
            }
        }
        self.objects.named.extend(held.iter().flat_map(Held::stubs).map(|stub| stub.object));
        self.unite_leaves(&mut held).await?;
        let indexes = self.indexes_of(&held);
        let leaves = self.chunks.store.leaves(&indexes, false).await?;
        let shelves = match self.chunks.whole_shelves(indexes.into_iter().zip(leaves).collect()).await {
            // It is already reported as damaged.
            Err(Error::Malformed { .. }) => return Ok(Vec::new()),
            shelves => shelves?,
        };
        self.classify(&mut held, &shelves).await?;
        self.enter(&held).await?;
        Ok(held)
    }

    /// Writes the union of data documents with several leaves, if it is small enough for one document, and ends
    /// the losing leaves.
    async fn unite_leaves(&mut self, held: &mut [Held]) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        let limit = self.settings.data_doc_size_limit;
        let (mut split, mut edits) = (Vec::new(), Vec::new());
        for held in held.iter_mut() {
            if held.leaves.len() < 2 || held.contents.bytes() > limit || held.is_lost {
                continue;
            }
            match self.chunks.united_data(&held.id, &held.leaves).await? {
                Ok(data) => {
                    let rev = held.leaves.first().map(|leaf| leaf.rev.clone());
                    let body = data.unwrap_or_default().write();
                    edits.push(Edit { id: held.id.clone(), rev, deleted: false, body });
                    split.push(held);
                }
                Err(error) => self.report.damaged.push(error.to_string()),
            }
        }
        if split.is_empty() {
            return Ok(());
        }
        let bodies: Vec<_> = edits.iter().map(|edit| edit.body.clone()).collect();
        let written = self.chunks.store.write(edits).await?;
        let mut losers = Vec::new();
        for ((held, body), written) in split.into_iter().zip(bodies).zip(written) {
            // A faster writer has written another union, which a later collection will see.
            if let Ok(rev) = written {
                losers.push((held.id.clone(), held.revs().split_off(1)));
                held.leaves = vec![Leaf { rev, deleted: false, body, ancestors: Vec::new() }];
            }
        }
        self.chunks.end_losers(losers).await
    }

    /// Gives entries to strays that files refer to, and marks copies that must go.
    async fn enter(&mut self, held: &[Held]) -> Result<()> {
        let mut changes: BTreeMap<String, Vec<(&str, &str, Entry<'_>)>> = BTreeMap::new();
        let length = self.chunks.length();
        for held in held {
            for (chunk, copy) in &held.copies {
                let mut change =
                    |index: String, entry| changes.entry(index).or_default().push((chunk, &held.id, entry));
                match copy {
                    Copy::Stray { .. } if held.is_lost => {}
                    Copy::Stray { wrong } => {
                        self.report.adopted += 1;
                        change(self.home_of(chunk), Entry::Adopt { wrong });
                    }
                    Copy::Spare { index, known, wrong, .. } => {
                        if !wrong.is_empty() {
                            for index in candidates(chunk, length) {
                                change(index, Entry::Refute { wrong });
                            }
                        }
                        if !known {
                            self.report.copies_marked += 1;
                            change(index.clone(), Entry::Spare);
                        }
                    }
                    Copy::Superseded { shorter, longer } => {
                        self.report.copies_marked += 1;
                        change(longer.clone(), Entry::Spare);
                        change(shorter.clone(), Entry::Forget);
                    }
                    Copy::Named { .. } => {}
                }
            }
        }
        if changes.is_empty() || self.options.dry_run {
            return Ok(());
        }
        let now = self.chunks.environment.now_ms();
        let written = self
            .chunks
            .edit_indexes(changes.keys().cloned().collect(), |id, index| {
                for (chunk, place, change) in changes.get(id).into_iter().flatten() {
                    let entry = index.entries.get(*chunk).map(String::as_str);
                    match change {
                        // A newer entry stays.
                        Entry::Adopt { wrong } if entry.is_none_or(|entry| wrong.contains(entry)) => {
                            index.place(chunk, place);
                        }
                        Entry::Refute { wrong } if entry.is_some_and(|entry| wrong.contains(entry)) => {
                            index.remove(chunk);
                        }
                        // There were two copies without an entry, and the other one was entered first. This one is
                        // spare now.
                        Entry::Adopt { .. } | Entry::Spare if entry.is_none_or(|entry| entry != *place) => {
                            let marks = index.spare.entry((*place).to_owned()).or_default();
                            marks.entry((*chunk).to_owned()).or_insert(now);
                        }
                        Entry::Forget if entry == Some(place) => index.remove(chunk),
                        Entry::Adopt { .. } | Entry::Refute { .. } | Entry::Spare | Entry::Forget => {}
                    }
                }
            })
            .await?;
        self.split_large(written).await
    }

    /// Replaces data documents by new ones without their expired chunks.
    async fn replace(&mut self, mut due: Vec<Held>) -> Result<()> {
        let values = if self.options.dry_run { HashMap::new() } else { self.values(&mut due).await? };
        let fresh = self.pack(&due);
        let mut removed_bytes = due.iter().map(|held| held.contents.bytes()).sum::<usize>();
        removed_bytes -= fresh.iter().map(|(_, contents)| contents.bytes()).sum::<usize>().min(removed_bytes);
        if self.options.dry_run {
            let copies = due.iter().flat_map(|held| held.copies.values());
            for copy in copies {
                self.report.removed += u64::from(matches!(copy, Copy::Named { expired: true }));
                self.report.copies_removed += u64::from(matches!(copy, Copy::Spare { expired: true, .. }));
            }
            self.report.removed_bytes += removed_bytes as u64;
            self.report.data_documents_removed += due.len() as u64;
            self.report.data_documents_written += fresh.len() as u64;
            return Ok(());
        }
        // 1. New documents. Objects come before their stubs.
        let mut filled = Vec::new();
        for (id, contents) in &fresh {
            let mut data = Data::default();
            for chunk in contents.sizes().keys() {
                match values.get(chunk) {
                    Some(value) => data.add(chunk.clone(), value.clone()),
                    None => return Err(Error::malformed(id, format!("there is no {chunk} to write"))),
                }
            }
            filled.push((id.clone(), data));
        }
        let Some(edits) = self.bodies(&due, &filled).await? else { return Ok(()) };
        let mut moved: HashMap<&str, &str> = HashMap::new();
        if !edits.is_empty() {
            let written = self.chunks.store.write(edits).await?;
            for ((id, data), written) in filled.iter().zip(written) {
                if refused(id, &written, &mut None)? {
                    // It is unknown whether the object is there, so everything stays.
                    return Ok(());
                }
                moved.extend(data.chunks().keys().map(|chunk| (chunk.as_str(), id.as_str())));
            }
        }
        // 2. The indexes.
        let old: HashMap<&str, &Held> = due.iter().map(|held| (held.id.as_str(), held)).collect();
        let mut removed: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let open = fresh.last().filter(|(_, contents)| contents.bytes() < OPEN_BELOW).map(|(id, _)| id.clone());
        let indexes = self.indexes_of(&due);
        let written = self
            .chunks
            .edit_indexes(indexes, |id, index| {
                removed.insert(id.to_owned(), self.move_entries(index, &old, &moved, open.as_ref()));
            })
            .await?;
        for (chunks, copies) in removed.into_values() {
            self.report.removed += chunks;
            self.report.copies_removed += copies;
        }
        self.report.data_documents_written += fresh.len() as u64;
        self.report.removed_bytes += removed_bytes as u64;
        // 3. Old documents, except those that an index still names because a chunk was revived.
        let named: BTreeSet<&String> = written.values().flat_map(|shelf| shelf.index.entries.values()).collect();
        let gone: Vec<&Held> = due.iter().filter(|held| !named.contains(&held.id)).collect();
        self.report.data_documents_removed += gone.len() as u64;
        // A document that was written meanwhile stays: its revision has changed.
        self.chunks.end_losers(gone.iter().map(|held| (held.id.clone(), held.revs())).collect()).await
    }

    /// The chunks that stay, of the readable documents in `due`. Unreadable ones are reported and removed from
    /// `due`. Documents without remaining chunks are not read.
    async fn values(&mut self, due: &mut Vec<Held>) -> Result<HashMap<String, String>> {
        let mut values = HashMap::new();
        let mut readable = Vec::new();
        for held in due.drain(..) {
            if held.kept().next().is_some() {
                match self.chunks.united_data(&held.id, &held.leaves).await? {
                    Ok(data) => {
                        let data = data.unwrap_or_default();
                        for (chunk, _) in held.kept() {
                            let Some(value) = data.chunks().get(chunk) else { continue };
                            values.entry(chunk.clone()).or_insert_with(|| value.clone());
                        }
                    }
                    Err(error) => {
                        self.report.damaged.push(error.to_string());
                        continue;
                    }
                }
            }
            readable.push(held);
        }
        *due = readable;
        Ok(values)
    }

    /// The edits that write new data documents; as objects and stubs if the old ones were stubs and the new ones are
    /// sealed. `None` if that took too long to be safe.
    async fn bodies(&self, due: &[Held], filled: &[(String, Data)]) -> Result<Option<Vec<Edit>>> {
        let place = due.iter().flat_map(Held::stubs).map(|stub| stub.place().to_owned()).next();
        let is_sealed = |data: &Data| data.bytes() >= OPEN_BELOW;
        let began_ms = self.chunks.environment.now_ms();
        let mut stubs = HashMap::new();
        if let Some(place) = place {
            let sealed: Vec<(&str, &Data)> =
                filled.iter().filter(|(_, data)| is_sealed(data)).map(|(id, data)| (id.as_str(), data)).collect();
            let stowed = self.chunks.stow(&place, &sealed).await?;
            stubs.extend(sealed.iter().map(|(id, _)| *id).zip(stowed));
        }
        if !stubs.is_empty() && !self.chunks.is_fresh(began_ms, self.settings) {
            return Ok(None);
        }
        let edits = filled.iter().map(|(id, data)| {
            let body = stubs.get(id.as_str()).map_or_else(|| data.write(), Stub::write);
            Edit { id: id.clone(), rev: None, deleted: false, body }
        });
        Ok(Some(edits.collect()))
    }

    /// Distributes the remaining chunks over new documents.
    fn pack(&self, due: &[Held]) -> Vec<(String, Contents)> {
        let Some((prefix, _)) = due.first().and_then(|held| data_parts(&held.id)) else { return Vec::new() };
        let sequences = due.iter().filter_map(|held| Some(data_parts(&held.id)?.1));
        let mut sequence = sequences.max().unwrap_or(0).saturating_add(1);
        let mut fresh: Vec<(String, Contents)> = Vec::new();
        for (chunk, size) in due.iter().flat_map(Held::kept) {
            if fresh.iter().any(|(_, contents)| contents.has(chunk)) {
                continue;
            }
            let has_room = |contents: &Contents| contents.bytes() + size <= self.settings.data_doc_size_limit;
            if !fresh.last().is_some_and(|(_, contents)| has_room(contents)) {
                fresh.push((data_id(prefix, sequence, random(&*self.chunks.environment)), Contents::default()));
                sequence = sequence.saturating_add(1);
            }
            if let Some((_, contents)) = fresh.last_mut() {
                contents.add(chunk.clone(), size);
            }
        }
        fresh
    }

    /// Removes expired entries from an index, and moves the others. Returns the numbers of removed chunks and
    /// copies.
    fn move_entries(
        &self,
        index: &mut Index,
        old: &HashMap<&str, &Held>,
        moved: &HashMap<&str, &str>,
        open: Option<&String>,
    ) -> (u64, u64) {
        let (mut chunks, mut copies) = (0, 0);
        let Index { entries, condemned, spare, .. } = index;
        entries.retain(|chunk, place| {
            let Some(held) = old.get(place.as_str()) else { return true };
            // The current mark: a writer may have revived the chunk.
            let since = condemned.get(chunk);
            if held.is_expired(chunk) && since.is_some_and(|since| self.is_expired(*since)) {
                condemned.remove(chunk);
                chunks += 1;
                return false;
            }
            if let Some(new) = moved.get(chunk.as_str()) {
                *place = (*new).to_owned();
            }
            true
        });
        spare.retain(|place, marked| {
            let Some(held) = old.get(place.as_str()) else { return true };
            copies += marked.keys().filter(|chunk| held.is_expired(chunk)).count() as u64;
            false
        });
        if index.open.as_deref().is_some_and(|open| old.contains_key(open)) {
            index.open = open.cloned();
        }
        (chunks, copies)
    }
}
