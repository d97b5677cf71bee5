//! Counts files, chunks, and what files need and the database has not.
//!
//! ```text
//!  pass 1   all files ─► hashes 0000… to 3fff…  ─► documents of these chunks
//!  pass 2   all files ─► hashes 4000… to 9c21…  ─► documents of these chunks       … until ffff…
//! ```
//!
//! A pass has the ids that files name in memory, eight bytes of hash each. When they are too many, it gives up the
//! upper half of its range, and the next pass begins there. So memory is bounded by [`CensusOptions::most_ids`], and a
//! vault of ordinary size takes one pass. Two ids with one hash make an unreferenced chunk look referenced, never the
//! reverse.
//!
//! Files are read one after the other, each with its replaced revisions one by one, before chunks. A chunk whose file
//! arrives in between looks unreferenced: whoever removes must look again. Chunks that seem to be missing are looked up
//! once more at the end.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use super::ids::{Ids, hash};
use super::{cut, past};
use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::contents::Contents;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::id::CHUNK_PREFIX;
use crate::livesync::{ENCRYPTED_CHUNK, Entry, Key, OF_LIVESYNC, in_clear, sealed_path};
use crate::placement::{DATA_PREFIX, data_parts, is_no_file};
use crate::store::{Body, IdRange, Leaf};
use crate::vault::Problem;

/// Number of rows of the feed, and of ids, read at a time.
const ROWS: usize = 1_000;
/// Bytes of documents read at a time. As trees they take several times as much.
const BYTES: usize = 2 << 20;
/// Number of files and chunks that are named one by one. All are counted.
const NAMED: usize = 100;
/// Number of chunks named for each file.
const NAMED_FOR_EACH: usize = 5;
/// Memory of an id besides its bytes, in a list that grows.
const ID_BYTES: usize = 64;
/// Number of ids in the lists of one document, at all its live leaves. A list of a megabyte has some 55,000.
const MOST_IN_DOCUMENT: usize = 500_000;

/// Options of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CensusOptions {
    /// Number of chunks' ids in memory, at some 36 bytes each. A vault with more takes several passes.
    pub most_ids: usize,
    /// Number of unreferenced chunks that are named. All are counted.
    pub most_named: usize,
    /// Bytes of their ids in memory.
    pub most_named_bytes: usize,
}

impl Default for CensusOptions {
    /// A million ids: 36 MB. At most a hundred unreferenced chunks by name, and at most 4 MB of their ids.
    fn default() -> Self {
        CensusOptions { most_ids: 1_000_000, most_named: NAMED, most_named_bytes: 4 << 20 }
    }
}

/// A number of documents, and their bytes as compact JSON without ids and revisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// Things that were counted, the first of them by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub first: Vec<T>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named { count: 0, first: Vec::new() }
    }
}

impl<T> Named<T> {
    fn add(&mut self, one: T) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(one);
        }
    }
}

/// A file with missing chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenFile {
    /// Its path, or the id of its document if the path cannot be read.
    pub path: String,
    /// Number of its chunks that are missing.
    pub missing: u64,
    /// Some of them.
    pub chunks: Vec<String>,
}

/// The files of a vault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Number of files, without those below.
    pub count: u64,
    /// Number of hidden files and customizations.
    pub of_livesync: u64,
    /// Number of files that are marked as deleted and kept.
    pub marked_deleted: u64,
    /// Bytes of all their documents, at each live leaf.
    pub bytes: u64,
    /// Number of revisions in their histories. Each takes some twenty bytes.
    pub revisions: u64,
    /// The file with the longest history, and the number of its revisions.
    pub longest: Option<(String, u64)>,
    /// Files with several live leaves.
    pub conflicts: Named<String>,
    /// Those of them with replaced revisions that a merge may need and whose lists of chunks the database has not kept.
    pub unknown_past: Named<String>,
    /// Files whose lists of chunks cannot be read, or not to the end, with the reason.
    pub unread: Named<Problem>,
    /// Number of files whose path is encrypted, and their lists with it, whether they could be read or not.
    pub sealed: u64,
    /// Documents that are neither files nor chunks.
    pub others: Amount,
    /// Number of tombstones of chunks.
    pub chunk_tombstones: u64,
    /// Number of all other tombstones.
    pub other_tombstones: u64,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// The files.
    pub files: Files,
    /// Number of different chunks that files name, and that conflicts need.
    pub named_chunks: u64,
    /// Chunks with documents of their own that files name.
    pub referenced: Amount,
    /// Chunks with documents of their own that no readable list names. If lists could not be read, some of these are
    /// needed: see [`is_known`](Self::is_known).
    pub unreferenced: Amount,
    /// Some of these by name, in order; none if it is unknown whether they are needed.
    pub unreferenced_named: Named<String>,
    /// Chunks in aggregated form, which LiveSync cannot read.
    pub aggregated: Amount,
    /// Number of encrypted chunks among those with documents of their own.
    pub encrypted: u64,
    /// Number of chunks with several live leaves: devices encrypted the same piece.
    pub chunk_conflicts: u64,
    /// Documents of chunks whose winner has no data, and data documents that cannot be read.
    pub damaged: Named<String>,
    /// Number of those of chunks that files name.
    pub damaged_needed: u64,
    /// Number of missing chunks.
    pub missing_chunks: u64,
    /// Files that need them.
    pub broken: Named<BrokenFile>,
    /// Whether more chunks are missing than were looked up by name.
    pub more_missing: bool,
    /// The hashes of the ids of all chunks that files need, replaced revisions in conflicts included, and that were not
    /// there.
    pub missing_hashes: HashSet<u64>,
    /// Number of passes that it took.
    pub passes: u32,
}

impl Census {
    /// Whether all lists were read that name needed chunks. If not, any chunk may be needed.
    pub fn is_known(&self) -> bool {
        self.files.unread.count == 0 && self.files.unknown_past.count == 0
    }

    /// Whether a chunk was not there that a file needs, or a conflict. Others with the same hash count as well.
    pub(super) fn lacks(&self, chunk: &str) -> bool {
        self.more_missing || self.missing_hashes.contains(&hash(chunk))
    }

    /// Whether there is no vault: no files and no chunks.
    pub(super) fn is_empty(&self) -> bool {
        let Files { count, of_livesync, marked_deleted, .. } = self.files;
        count + of_livesync + marked_deleted + self.referenced.count + self.unreferenced.count + self.aggregated.count
            == 0
    }
}

/// Bytes of a document as compact JSON.
fn bytes(body: &Body) -> u64 {
    serde_json::to_vec(body).map_or(0, |text| text.len() as u64)
}

/// The path of a file, or the id of its document. It is cut if it is very long.
fn path(id: &str, body: &Body, key: Option<&Key>) -> String {
    let clear = in_clear(body, key).ok();
    let path = clear.as_ref().and_then(|body| body.get("path")?.as_str());
    cut(path.unwrap_or(id))
}

impl ChunkStore {
    /// Counts files and chunks. Changes nothing. `progress` gets the number of documents done.
    ///
    /// # Errors
    /// The store's failures. A list that cannot be read is not an error.
    pub async fn census(&self, options: CensusOptions, mut progress: impl FnMut(u64) + Send) -> Result<Census> {
        let (mut census, mut missing, mut done) = (Census::default(), HashSet::new(), 0);
        let mut most = (options.most_named, options.most_named_bytes);
        let mut from = Some(0);
        while let Some(first) = from {
            let mut ids = Ids::new(first, options.most_ids);
            let mut count = |some| {
                done += some;
                progress(done);
            };
            let files = self.count_files(&mut ids, &mut count).await?;
            if census.passes == 0 {
                census.files = files;
            } else {
                // A list that became unreadable between two passes.
                let known = &mut census.files;
                known.unread = if files.unread.count > 0 { files.unread } else { std::mem::take(&mut known.unread) };
                if files.unknown_past.count > 0 {
                    known.unknown_past = files.unknown_past;
                }
                known.sealed = known.sealed.max(files.sealed);
            }
            self.count_chunks(&mut ids, &mut census, &mut most, &mut count).await?;
            self.count_aggregated(&mut ids, &mut census).await?;
            census.named_chunks += ids.len() as u64;
            for hash in ids.missing() {
                if missing.len() < options.most_ids {
                    missing.insert(hash);
                } else {
                    census.more_missing = true;
                }
            }
            census.passes += 1;
            from = ids.next();
        }
        if !census.is_known() {
            census.unreferenced_named = Named::default();
        }
        // In the order of ids, however many passes it took.
        census.unreferenced_named.first.sort_unstable();
        census.damaged.first.sort_unstable();
        if !missing.is_empty() {
            self.name_missing(&missing, &mut census).await?;
        }
        census.missing_hashes = missing;
        Ok(census)
    }

    /// Reads the first of these documents with all their leaves, some megabytes of them, and takes their ids off.
    async fn read_some(&self, rest: &mut Vec<String>) -> Result<Vec<(String, Vec<Leaf>)>> {
        let some = self.store.leaves_within(rest, BYTES).await?;
        if some.is_empty() || some.len() > rest.len() {
            let sentence = format!("the database says nothing of \"{}\"", rest.first().map_or("", String::as_str));
            return Err(StoreError::new(StoreErrorKind::Nonsense, sentence).into());
        }
        Ok(rest.drain(..some.len()).zip(some).collect())
    }

    /// Counts the documents that are not chunks, and notes which chunks they name.
    async fn count_files(&self, ids: &mut Ids, mut progress: impl FnMut(u64) + Send) -> Result<Files> {
        let (mut files, key) = (Files::default(), self.key.as_deref());
        let mut since: Option<String> = None;
        loop {
            let changes = self.store.changes(since.as_deref(), ROWS).await?;
            progress(changes.rows.len() as u64);
            let mut wanted = Vec::new();
            for row in changes.rows {
                match (row.deleted, row.id.starts_with(CHUNK_PREFIX)) {
                    (true, true) => files.chunk_tombstones += 1,
                    (true, false) => files.other_tombstones += 1,
                    (false, _) if is_no_file(&row.id) => {}
                    (false, _) => wanted.push(row.id),
                }
            }
            while !wanted.is_empty() {
                for (id, leaves) in self.read_some(&mut wanted).await? {
                    let past = files.count(&id, &leaves, key, ids);
                    drop(leaves);
                    if let Some(past) = past {
                        self.count_past(&mut files, ids, &id, past).await?;
                    }
                }
            }
            if !changes.more {
                return Ok(files);
            }
            since = Some(changes.last_seq);
        }
    }

    /// Notes which chunks the replaced revisions of a file in conflict name.
    async fn count_past(&self, files: &mut Files, ids: &mut Ids, id: &str, past: Past) -> Result<()> {
        let mut is_known = past.revs.is_some();
        for rev in past.revs.into_iter().flatten() {
            // One at a time: each may have megabytes.
            for body in self.store.revisions(&[(id.to_owned(), rev)]).await? {
                match body.as_ref().map(|body| Entry::read(id, body, self.key.as_deref())) {
                    Some(Ok(Some(entry))) => {
                        is_known &= !entry.eden_is_sealed;
                        let inside: HashSet<&String> = entry.inline.iter().collect();
                        entry.children.iter().for_each(|chunk| ids.name(chunk, inside.contains(chunk)));
                    }
                    // A tombstone, or a document that was not a file yet.
                    Some(Ok(None)) => {}
                    Some(Err(_)) | None => is_known = false,
                }
                files.sealed += u64::from(body.as_ref().is_some_and(|body| sealed_path(body).is_some()));
            }
        }
        if !is_known {
            files.unknown_past.add(past.path);
        }
        Ok(())
    }

    async fn count_chunks(
        &self,
        ids: &mut Ids,
        census: &mut Census,
        most: &mut (usize, usize),
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<()> {
        let mut range = Some(IdRange::prefix(CHUNK_PREFIX).limit(ROWS));
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            let mut chunks: Vec<String> =
                page.rows.into_iter().map(|row| row.id).filter(|id| ids.covers(hash(id))).collect();
            progress(chunks.len() as u64);
            while !chunks.is_empty() {
                for (id, leaves) in self.read_some(&mut chunks).await? {
                    census.count_chunk(id, &leaves, ids, most);
                }
            }
            range = page.rest;
        }
        Ok(())
    }

    async fn count_aggregated(&self, ids: &mut Ids, census: &mut Census) -> Result<()> {
        let mut range = Some(IdRange::prefix(DATA_PREFIX).limit(ROWS));
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            let mut documents: Vec<String> =
                page.rows.into_iter().map(|row| row.id).filter(|id| data_parts(id).is_some()).collect();
            while !documents.is_empty() {
                for (id, leaves) in self.read_some(&mut documents).await? {
                    match Contents::unite(&id, &leaves) {
                        Ok(contents) => {
                            for (chunk, size) in contents.iter().flat_map(Contents::sizes) {
                                let hash = hash(chunk);
                                if ids.covers(hash) {
                                    ids.meet(hash);
                                    census.aggregated.add(*size as u64);
                                }
                            }
                        }
                        // Every pass reads them all.
                        Err(error) if census.passes == 0 => census.damaged.add(cut(&error.to_string())),
                        Err(_) => {}
                    }
                }
            }
            range = page.rest;
        }
        Ok(())
    }

    /// Finds the files that name missing chunks, and looks for the chunks once more.
    async fn name_missing(&self, missing: &HashSet<u64>, census: &mut Census) -> Result<()> {
        let (mut confirmed, key) = (HashSet::new(), self.key.as_deref());
        let mut since: Option<String> = None;
        loop {
            let changes = self.store.changes(since.as_deref(), ROWS).await?;
            let mut files: Vec<String> =
                changes.rows.into_iter().filter(|row| !row.deleted && !is_no_file(&row.id)).map(|row| row.id).collect();
            while !files.is_empty() {
                for (id, leaves) in self.read_some(&mut files).await? {
                    let needed = needed_of(&id, &leaves, key, missing);
                    let path = leaves.first().map_or_else(|| cut(&id), |leaf| path(&id, &leaf.body, key));
                    drop(leaves);
                    if needed.is_empty() {
                        continue;
                    }
                    let live = self.store.live(&needed).await?;
                    let gone: Vec<String> =
                        needed.into_iter().zip(live).filter_map(|(chunk, live)| (!live).then_some(chunk)).collect();
                    if !gone.is_empty() {
                        confirmed.extend(gone.iter().map(|chunk| hash(chunk)));
                        let chunks = gone.iter().take(NAMED_FOR_EACH).map(|chunk| cut(chunk)).collect();
                        census.broken.add(BrokenFile { path, missing: gone.len() as u64, chunks });
                    }
                }
            }
            if !changes.more {
                census.missing_chunks = confirmed.len() as u64;
                return Ok(());
            }
            since = Some(changes.last_seq);
        }
    }
}

/// Those of some missing chunks that a file needs. A file with encrypted chunks inside its document may have them
/// there.
fn needed_of(id: &str, leaves: &[Leaf], key: Option<&Key>, missing: &HashSet<u64>) -> Vec<String> {
    let mut needed = BTreeSet::new();
    let live = leaves.iter().filter(|leaf| !leaf.deleted);
    let read = live.filter_map(|leaf| Entry::read(id, &leaf.body, key).ok().flatten());
    for entry in read.filter(|entry| !entry.eden_is_sealed) {
        let inside: HashSet<String> = entry.inline.into_iter().collect();
        let is_needed = |chunk: &String| missing.contains(&hash(chunk)) && !inside.contains(chunk);
        needed.extend(entry.children.into_iter().filter(is_needed));
    }
    needed.into_iter().collect()
}

impl Census {
    /// `most` is the number of unreferenced chunks that are still named, and the memory for their ids.
    fn count_chunk(&mut self, id: String, leaves: &[Leaf], ids: &mut Ids, most: &mut (usize, usize)) {
        let mut live = leaves.iter().filter(|leaf| !leaf.deleted);
        let Some(winner) = live.next() else { return };
        let is_named = ids.meet(hash(&id));
        let amount = if is_named { &mut self.referenced } else { &mut self.unreferenced };
        let (mut size, mut others) = (bytes(&winner.body), 0);
        live.for_each(|leaf| {
            size += bytes(&leaf.body);
            others += 1;
        });
        amount.add(size);
        self.encrypted += u64::from(id.starts_with(ENCRYPTED_CHUNK));
        self.chunk_conflicts += u64::from(others > 0);
        // Devices read the winner, whatever stands beside it.
        if Chunk::from_document(&winner.body).is_none() {
            self.damaged.add(cut(&id));
            self.damaged_needed += u64::from(is_named);
        }
        if !is_named {
            self.unreferenced_named.count += 1;
            let left = most.1.checked_sub(id.len() + ID_BYTES).filter(|_| most.0 > 0);
            if let Some(left) = left {
                *most = (most.0 - 1, left);
                self.unreferenced_named.first.push(id);
            }
        }
    }
}

/// A file in conflict, and the replaced revisions that its merge may need; `None` if they are unknown.
struct Past {
    path: String,
    revs: Option<Vec<String>>,
}

impl Files {
    /// Counts a document that is not a chunk, and notes which chunks it names. Returns what else its conflict needs.
    fn count(&mut self, id: &str, leaves: &[Leaf], key: Option<&Key>, ids: &mut Ids) -> Option<Past> {
        let live: Vec<&Leaf> = leaves.iter().filter(|leaf| !leaf.deleted).collect();
        let winner = live.first()?;
        let size: u64 = live.iter().map(|leaf| bytes(&leaf.body)).sum();
        let (mut is_file, mut failure, mut named) = (false, None, 0);
        for leaf in &live {
            match Entry::read(id, &leaf.body, key) {
                // LiveSync's oldest form has no chunks.
                Ok(None) => is_file |= leaf.body.get("type").and_then(Value::as_str) == Some("notes"),
                Ok(Some(entry)) => {
                    is_file = true;
                    named += entry.children.len();
                    if named > MOST_IN_DOCUMENT {
                        failure = Some(format!("names more than {MOST_IN_DOCUMENT} chunks, which are not all read"));
                        break;
                    }
                    if entry.eden_is_sealed {
                        failure = Some(
                            "cannot be read to the end: chunks inside its document (\"eden\") are encrypted".into(),
                        );
                    }
                    let inside: HashSet<&String> = entry.inline.iter().collect();
                    entry.children.iter().for_each(|chunk| ids.name(chunk, inside.contains(chunk)));
                }
                Err(what) => failure = Some(what),
            }
        }
        if !is_file && failure.is_none() {
            self.others.add(size);
            return None;
        }
        if let Some(what) = failure {
            self.unread.add(Problem::new(cut(id), what));
        }
        self.sealed += u64::from(live.iter().any(|leaf| sealed_path(&leaf.body).is_some()));
        self.bytes += size;
        if winner.body.get("deleted") == Some(&Value::Bool(true)) {
            self.marked_deleted += 1;
        } else if OF_LIVESYNC.iter().any(|prefix| id.starts_with(prefix)) {
            self.of_livesync += 1;
        } else {
            self.count += 1;
        }
        let revisions = leaves.iter().map(|leaf| 1 + leaf.ancestors.len() as u64).sum();
        self.revisions += revisions;
        if self.longest.as_ref().is_none_or(|(_, longest)| revisions > *longest) {
            self.longest = Some((path(id, &winner.body, key), revisions));
        }
        if live.len() < 2 {
            return None;
        }
        let path = path(id, &winner.body, key);
        self.conflicts.add(path.clone());
        Some(Past { path, revs: past::of_conflict(&live) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_with_too_many_ids_cannot_be_read() {
        let leaf = |rev: &str, ids: usize| {
            let children: Vec<Value> = (0..ids).map(|number| format!("h:{number}").into()).collect();
            let body = [("path".to_owned(), "a.md".into()), ("children".to_owned(), children.into())];
            Leaf { rev: rev.into(), deleted: false, body: body.into_iter().collect(), ancestors: Vec::new() }
        };
        // All leaves together.
        for (more, unread) in [(0, 0), (1, 1)] {
            let (mut files, mut ids) = (Files::default(), Ids::new(0, 10));
            let leaves = [leaf("1-b", MOST_IN_DOCUMENT / 2), leaf("1-a", MOST_IN_DOCUMENT / 2 + more)];
            files.count("a.md", &leaves, None, &mut ids);
            assert_eq!((files.count, files.unread.count), (1, unread));
        }
    }
}
