//! Counts files, chunks, and what files need and the database has not.
//!
//! ```text
//!  pass 1   all files ─► hashes 0000… to 3fff…  ─► documents of these chunks
//!  pass 2   all files ─► hashes 4000… to 9c21…  ─► documents of these chunks       … until ffff…
//! ```
//!
//! A pass has the ids that files name in memory, eight bytes of hash each. When they are too many, it gives up the upper
//! half of its range, and the next pass begins there. So memory is bounded by [`CensusOptions::most_ids`], and a vault of
//! ordinary size takes one pass. Two ids with one hash make an unreferenced chunk look referenced, never the reverse.
//!
//! Files are read before chunks. A chunk whose file arrives in between looks unreferenced: whoever removes must look
//! again. Chunks that seem to be missing are looked up once more at the end.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::Value;
use twox_hash::XxHash64;

use super::past;
use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::contents::Contents;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::id::CHUNK_PREFIX;
use crate::livesync::{ENCRYPTED_CHUNK, Entry, Key, OF_LIVESYNC, in_clear};
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

/// Options of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CensusOptions {
    /// Number of chunks' ids in memory, at some 36 bytes each. A vault with more takes several passes.
    pub most_ids: usize,
}

impl Default for CensusOptions {
    /// A million ids: 36 MB.
    fn default() -> Self {
        CensusOptions { most_ids: 1_000_000 }
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
    fn add(&mut self, bytes: u64) {
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
    /// Files whose lists of chunks cannot be read, with the reason.
    pub unread: Named<Problem>,
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
    /// needed.
    pub unreferenced: Amount,
    /// The first of these by name.
    pub unreferenced_named: Named<String>,
    /// Chunks in aggregated form, which LiveSync cannot read.
    pub aggregated: Amount,
    /// Number of encrypted chunks among those with documents of their own.
    pub encrypted: u64,
    /// Number of chunks with several live leaves: devices encrypted the same piece.
    pub chunk_conflicts: u64,
    /// Documents of chunks that have no data, and data documents that cannot be read.
    pub damaged: Named<String>,
    /// Number of missing chunks.
    pub missing_chunks: u64,
    /// Files that need them.
    pub broken: Named<BrokenFile>,
    /// Whether more chunks are missing than were looked up by name.
    pub more_missing: bool,
    /// Number of passes that it took.
    pub passes: u32,
}

impl Census {
    /// Whether there is no vault: no files and no chunks.
    pub(super) fn is_empty(&self) -> bool {
        let Files { count, of_livesync, marked_deleted, .. } = self.files;
        count + of_livesync + marked_deleted + self.referenced.count + self.unreferenced.count + self.aggregated.count
            == 0
    }
}

/// The ids that files name, of a range of hashes.
struct Ids {
    from: u64,
    /// The last hash of the range.
    upto: u64,
    most: usize,
    /// Whether a chunk is there, by its hash.
    found: HashMap<u64, bool>,
}

impl Ids {
    fn new(from: u64, most: usize) -> Self {
        Ids { from, upto: u64::MAX, most: most.max(1), found: HashMap::new() }
    }

    fn covers(&self, hash: u64) -> bool {
        (self.from..=self.upto).contains(&hash)
    }

    fn name(&mut self, chunk: &str) {
        let hash = hash(chunk);
        if !self.covers(hash) {
            return;
        }
        self.found.insert(hash, false);
        while self.found.len() > self.most && self.from < self.upto {
            self.upto = self.from + (self.upto - self.from) / 2;
            let upto = self.upto;
            self.found.retain(|hash, _| *hash <= upto);
        }
    }

    /// Notes that a chunk is there. Returns whether a file names it.
    fn meet(&mut self, hash: u64) -> bool {
        let found = self.found.get_mut(&hash);
        found.map(|found| *found = true).is_some()
    }
}

fn hash(chunk: &str) -> u64 {
    XxHash64::oneshot(1, chunk.as_bytes())
}

/// Bytes of a document as compact JSON.
fn bytes(body: &Body) -> u64 {
    serde_json::to_vec(body).map_or(0, |text| text.len() as u64)
}

/// The path of a file, or the id of its document.
fn path(id: &str, body: &Body, key: Option<&Key>) -> String {
    let clear = in_clear(body, key).ok();
    let path = clear.as_ref().and_then(|body| body.get("path")?.as_str());
    path.unwrap_or(id).to_owned()
}

impl ChunkStore {
    /// Counts files and chunks. Changes nothing. `progress` gets the number of documents done.
    ///
    /// # Errors
    /// The store's failures. A list that cannot be read is not an error.
    pub async fn census(&self, options: CensusOptions, mut progress: impl FnMut(u64) + Send) -> Result<Census> {
        let (mut census, mut missing, mut done) = (Census::default(), HashSet::new(), 0);
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
            }
            self.count_chunks(&mut ids, &mut census, &mut count).await?;
            self.count_aggregated(&mut ids, &mut census).await?;
            census.named_chunks += ids.found.len() as u64;
            for hash in ids.found.iter().filter_map(|(hash, found)| (!found).then_some(*hash)) {
                if missing.len() < options.most_ids {
                    missing.insert(hash);
                } else {
                    census.more_missing = true;
                }
            }
            census.passes += 1;
            from = ids.upto.checked_add(1);
        }
        // In the order of ids, however many passes it took.
        census.unreferenced_named.first.sort_unstable();
        census.damaged.first.sort_unstable();
        if !missing.is_empty() {
            self.name_missing(&missing, &mut census).await?;
        }
        Ok(census)
    }

    /// Reads documents with all their leaves, some megabytes at a time.
    async fn each_document(&self, ids: &[String], mut visit: impl FnMut(&str, Vec<Leaf>) + Send) -> Result<()> {
        let mut rest = ids;
        while !rest.is_empty() {
            let some = self.store.leaves_within(rest, BYTES).await?;
            let (read, left) = rest.split_at_checked(some.len()).unwrap_or_default();
            if read.is_empty() {
                let sentence = format!("the database says nothing of \"{}\"", rest.first().map_or("", String::as_str));
                return Err(StoreError::new(StoreErrorKind::Nonsense, sentence).into());
            }
            for (id, leaves) in read.iter().zip(some) {
                visit(id, leaves);
            }
            rest = left;
        }
        Ok(())
    }

    /// Counts the documents that are no chunks, and notes which chunks they name.
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
            let mut pasts = Vec::new();
            self.each_document(&wanted, |id, leaves| files.count(id, &leaves, key, ids, &mut pasts)).await?;
            self.count_pasts(&mut files, ids, pasts).await?;
            if !changes.more {
                return Ok(files);
            }
            since = Some(changes.last_seq);
        }
    }

    /// Notes which chunks the replaced revisions of files in conflict name.
    async fn count_pasts(&self, files: &mut Files, ids: &mut Ids, pasts: Vec<Past>) -> Result<()> {
        for Past { id, path, revs } in pasts {
            let wanted: Option<Vec<(String, String)>> =
                revs.map(|revs| revs.into_iter().map(|rev| (id.clone(), rev)).collect());
            let mut is_known = wanted.is_some();
            for some in wanted.unwrap_or_default().chunks(NAMED) {
                for body in self.store.revisions(some).await? {
                    match body.map(|body| Entry::read(&id, &body, self.key.as_deref())) {
                        Some(Ok(Some(entry))) => entry.children.iter().for_each(|chunk| ids.name(chunk)),
                        // A tombstone, or a document that was no file yet.
                        Some(Ok(None)) => {}
                        Some(Err(_)) | None => is_known = false,
                    }
                }
            }
            if !is_known {
                files.unknown_past.add(path);
            }
        }
        Ok(())
    }

    async fn count_chunks(
        &self,
        ids: &mut Ids,
        census: &mut Census,
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<()> {
        let mut range = Some(IdRange::prefix(CHUNK_PREFIX).limit(ROWS));
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            let chunks: Vec<String> =
                page.rows.into_iter().map(|row| row.id).filter(|id| ids.covers(hash(id))).collect();
            progress(chunks.len() as u64);
            self.each_document(&chunks, |id, leaves| {
                let live: Vec<&Leaf> = leaves.iter().filter(|leaf| !leaf.deleted).collect();
                if live.is_empty() {
                    return;
                }
                let amount = if ids.meet(hash(id)) {
                    &mut census.referenced
                } else {
                    census.unreferenced_named.add(id.to_owned());
                    &mut census.unreferenced
                };
                amount.add(live.iter().map(|leaf| bytes(&leaf.body)).sum());
                census.encrypted += u64::from(id.starts_with(ENCRYPTED_CHUNK));
                census.chunk_conflicts += u64::from(live.len() > 1);
                if live.iter().all(|leaf| Chunk::from_document(&leaf.body).is_none()) {
                    census.damaged.add(id.to_owned());
                }
            })
            .await?;
            range = page.rest;
        }
        Ok(())
    }

    async fn count_aggregated(&self, ids: &mut Ids, census: &mut Census) -> Result<()> {
        let mut range = Some(IdRange::prefix(DATA_PREFIX).limit(ROWS));
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            let documents: Vec<String> =
                page.rows.into_iter().map(|row| row.id).filter(|id| data_parts(id).is_some()).collect();
            self.each_document(&documents, |id, leaves| match Contents::unite(id, &leaves) {
                Ok(contents) => {
                    for (chunk, size) in contents.iter().flat_map(Contents::sizes) {
                        let hash = hash(chunk);
                        if ids.covers(hash) {
                            ids.meet(hash);
                            census.aggregated.add(*size as u64);
                        }
                    }
                }
                Err(error) => census.damaged.add(error.to_string()),
            })
            .await?;
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
            let files: Vec<String> =
                changes.rows.into_iter().filter(|row| !row.deleted && !is_no_file(&row.id)).map(|row| row.id).collect();
            let mut broken: Vec<(String, BTreeSet<String>)> = Vec::new();
            self.each_document(&files, |id, leaves| {
                let live = leaves.iter().filter(|leaf| !leaf.deleted);
                let mut needed = BTreeSet::new();
                for entry in live.clone().filter_map(|leaf| Entry::read(id, &leaf.body, key).ok().flatten()) {
                    let is_missing = |chunk: &String| missing.contains(&hash(chunk)) && !entry.inline.contains(chunk);
                    needed.extend(entry.children.iter().filter(|chunk| is_missing(chunk)).cloned());
                }
                if let (Some(leaf), false) = (leaves.first(), needed.is_empty()) {
                    broken.push((path(id, &leaf.body, key), needed));
                }
            })
            .await?;
            for (path, needed) in broken {
                let needed: Vec<String> = needed.into_iter().collect();
                let live = self.store.live(&needed).await?;
                let gone: Vec<String> =
                    needed.into_iter().zip(live).filter_map(|(chunk, live)| (!live).then_some(chunk)).collect();
                if !gone.is_empty() {
                    confirmed.extend(gone.iter().map(|chunk| hash(chunk)));
                    let chunks = gone.iter().take(NAMED_FOR_EACH).cloned().collect();
                    census.broken.add(BrokenFile { path, missing: gone.len() as u64, chunks });
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

/// A file in conflict, and the replaced revisions that its merge may need; `None` if they are unknown.
struct Past {
    id: String,
    path: String,
    revs: Option<Vec<String>>,
}

impl Files {
    fn count(&mut self, id: &str, leaves: &[Leaf], key: Option<&Key>, ids: &mut Ids, pasts: &mut Vec<Past>) {
        let live: Vec<&Leaf> = leaves.iter().filter(|leaf| !leaf.deleted).collect();
        let Some(winner) = live.first() else { return };
        let size: u64 = live.iter().map(|leaf| bytes(&leaf.body)).sum();
        let (mut is_file, mut failure) = (false, None);
        for leaf in &live {
            match Entry::read(id, &leaf.body, key) {
                // LiveSync's oldest form has no chunks.
                Ok(None) => is_file |= leaf.body.get("type").and_then(Value::as_str) == Some("notes"),
                Ok(Some(entry)) => {
                    is_file = true;
                    let stored = entry.children.iter().filter(|chunk| !entry.inline.contains(chunk));
                    stored.for_each(|chunk| ids.name(chunk));
                }
                Err(what) => failure = Some(what),
            }
        }
        if !is_file && failure.is_none() {
            return self.others.add(size);
        }
        if let Some(what) = failure {
            self.unread.add(Problem::new(id, what));
        }
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
        if live.len() > 1 {
            let path = path(id, &winner.body, key);
            self.conflicts.add(path.clone());
            pasts.push(Past { id: id.to_owned(), path, revs: past::of_conflict(&live) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_cover_every_hash_once_in_bounded_memory() {
        let chunks: Vec<String> = (0..1_000).map(|number| format!("h:{number}")).collect();
        let (mut from, mut met, mut passes) = (Some(0), Vec::new(), 0);
        while let Some(first) = from {
            let mut ids = Ids::new(first, 70);
            chunks.iter().for_each(|chunk| {
                ids.name(chunk);
                assert!(ids.found.len() <= 70);
            });
            met.extend(chunks.iter().filter(|chunk| ids.covers(hash(chunk)) && ids.meet(hash(chunk))));
            from = ids.upto.checked_add(1);
            passes += 1;
        }
        met.sort();
        met.dedup();
        assert_eq!(met.len(), chunks.len());
        assert!((15..200).contains(&passes), "{passes} passes");
    }

    #[test]
    fn a_limit_of_one_id_ends() {
        let mut ids = Ids::new(0, 0);
        ids.name("h:a");
        ids.name("h:b");
        ids.name("h:a");
        assert!(ids.found.len() <= 1);
    }
}
