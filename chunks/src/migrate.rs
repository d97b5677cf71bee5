//! Migrates from one document for each chunk, as in LiveSync, to the aggregated form, and back.
//!
//! ```text
//!  there:  chunk documents, in the order of their buckets ─► data documents and indexes
//!          ─► read back and compared, byte for byte ─► the chunk documents end
//!  back:   data documents ─► chunk documents ─► read back and compared
//!          ─► at the end: data documents, indexes and settings are deleted
//! ```
//!
//! LiveSync's own clients cannot read the aggregated form. They are stopped before the first chunk moves, and
//! admitted again when all are back ([`livesync::stop`](crate::livesync)).
//!
//! Files are not touched: they refer to chunks by ids, which stay. Each batch is complete before the next begins,
//! so an interrupted migration is completed by repeating it. Readers find every chunk at all times, in one form or
//! the other.
//!
//! A chunk's document leaves a tombstone in the database. The live size falls at once, the stored size when the
//! database is compacted or copied.

use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::data::Data;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::id::{Bucket, CHUNK_PREFIX};
use crate::livesync::Key;
use crate::lookup::DATA_AT_ONCE;
use crate::placement::{DATA_PREFIX, INDEX_PREFIX, SETTINGS_ID, data_parts, index_prefix};
use crate::settings::Settings;
use crate::store::{Edit, Figures, IdRange, Leaf, Refusal};

/// Number of chunk documents read at a time.
const READ_AT_ONCE: usize = 250;
/// Maximum number of chunks in a batch, and of their bytes.
const BATCH_CHUNKS: usize = 4_000;
const BATCH_BYTES: usize = 4 << 20;

/// Result of a migration; of a dry run, what it would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Number of migrated chunks.
    pub chunks: u64,
    /// Bytes of their data.
    pub chunk_bytes: u64,
    /// Documents that were left unchanged, with the reason: not in a chunk's form, too large to share a document, or
    /// changed meanwhile.
    pub left: Vec<String>,
    /// Figures of the database before.
    pub before: Figures,
    /// Figures of the database after.
    pub after: Figures,
}

/// Chunk documents in progress.
#[derive(Default)]
struct Batch {
    chunks: Vec<(String, Chunk)>,
    /// For each, the leaves to end.
    revs: Vec<Vec<String>>,
    bytes: usize,
}

impl ChunkStore {
    /// Aggregates the chunks that have documents of their own. `progress` gets the numbers of chunks done and in
    /// all.
    ///
    /// # Errors
    /// [`Error::Differs`] if a chunk in clear is aggregated already with another content: nothing of its batch has
    /// been removed then. The errors of [`put`](Self::put).
    pub async fn migrate(&self, dry_run: bool, mut progress: impl FnMut(u64, u64) + Send) -> Result<Migrated> {
        let mut migrated = Migrated { before: self.store.figures().await?, ..Migrated::default() };
        let mut ids = self.ids(CHUNK_PREFIX).await?;
        // Chunks of a bucket together, so each document is written only once or twice.
        ids.sort_by_cached_key(|id| Bucket::of(id));
        if !dry_run && (!ids.is_empty() || self.has_aggregated().await?) {
            self.stop_clients().await?;
        }
        let settings = match (self.settings().await?, dry_run) {
            (settings, true) => settings.unwrap_or_default(),
            (_, false) if ids.is_empty() => Settings::default(),
            (_, false) => self.prepare(ids.len() as u64).await?,
        };
        let (total, mut done, mut batch) = (ids.len() as u64, 0, Batch::default());
        for some in ids.chunks(READ_AT_ONCE) {
            for (id, leaves) in some.iter().zip(self.store.leaves(some, false).await?) {
                match own_chunk(id, &leaves, settings, self.key.as_deref()) {
                    Ok(Some(chunk)) => {
                        batch.bytes += chunk.data.len();
                        let live = leaves.into_iter().filter(|leaf| !leaf.deleted);
                        batch.revs.push(live.map(|leaf| leaf.rev).collect());
                        batch.chunks.push((id.clone(), chunk));
                    }
                    Ok(None) => {}
                    Err(reason) => migrated.left.push(format!("\"{id}\" {reason}")),
                }
            }
            done += some.len() as u64;
            if batch.bytes >= BATCH_BYTES || batch.chunks.len() >= BATCH_CHUNKS {
                self.migrate_batch(std::mem::take(&mut batch), dry_run, &mut migrated).await?;
            }
            progress(done, total);
        }
        self.migrate_batch(batch, dry_run, &mut migrated).await?;
        migrated.after = self.store.figures().await?;
        Ok(migrated)
    }

    async fn migrate_batch(&self, batch: Batch, dry_run: bool, migrated: &mut Migrated) -> Result<()> {
        if dry_run {
            migrated.chunks += batch.chunks.len() as u64;
            migrated.chunk_bytes += batch.bytes as u64;
            return Ok(());
        }
        if batch.chunks.is_empty() {
            return Ok(());
        }
        self.put(batch.chunks.clone()).await?;
        let ids: Vec<String> = batch.chunks.iter().map(|(id, _)| id.clone()).collect();
        let mut stored = self.read_found(&ids).await?;
        let mut whole = vec![true; ids.len()];
        for (place, (id, chunk)) in batch.chunks.iter().enumerate() {
            let found = stored.remove(id).flatten().filter(|found| !found.in_own_document);
            match found.map_or(Likeness::Different, |found| likeness(&found.chunk, chunk, self.key.as_deref())) {
                Likeness::Same => {}
                Likeness::Doubtful(why) => {
                    whole[place] = false;
                    migrated.left.push(format!("\"{id}\" is aggregated already, and {why}"));
                }
                Likeness::Different => return Err(Error::Differs { id: id.clone() }),
            }
        }
        // One leaf at a time: a document may have several.
        let rounds = batch.revs.iter().map(Vec::len).max().unwrap_or(0);
        // Only the leaves to end.
        let ending = whole.clone();
        for round in 0..rounds {
            let (mut places, mut edits) = (Vec::new(), Vec::new());
            for (place, (id, revs)) in ids.iter().zip(&batch.revs).enumerate() {
                if let Some(rev) = revs.get(round).filter(|_| ending[place]) {
                    places.push(place);
                    edits.push(Edit::delete(id, rev));
                }
            }
            for (place, written) in places.into_iter().zip(self.store.write(edits).await?) {
                if let Err(refusal) = written {
                    whole[place] = false;
                    migrated.left.push(format!("\"{}\" could not be removed: {refusal}", ids[place]));
                }
            }
        }
        for ((_, chunk), _) in batch.chunks.iter().zip(whole).filter(|(_, whole)| *whole) {
            migrated.chunks += 1;
            migrated.chunk_bytes += chunk.data.len() as u64;
        }
        Ok(())
    }

    /// Gives every chunk its own document again and removes the aggregated form. Run it while nobody writes aggregated
    /// chunks: chunks written meanwhile stay aggregated, and are reported.
    ///
    /// # Errors
    /// [`Error::Differs`] if a chunk in clear already has a document of its own with another content, or does not
    /// read back; [`Error::Malformed`]. Nothing has been removed then.
    pub async fn migrate_back(&self, dry_run: bool, mut progress: impl FnMut(u64, u64) + Send) -> Result<Migrated> {
        let mut migrated = Migrated { before: self.store.figures().await?, ..Migrated::default() };
        let places: Vec<String> =
            self.ids(DATA_PREFIX).await?.into_iter().filter(|id| data_parts(id).is_some()).collect();
        let total = places.len() as u64;
        let (mut ends, mut done) = (Vec::new(), 0);
        for some in places.chunks(DATA_AT_ONCE) {
            for (place, leaves) in some.iter().zip(self.store.leaves(some, false).await?) {
                if let Some(data) = self.united_data(place, &leaves).await??
                    && !self.take_apart(place, &data, dry_run, &mut migrated).await?
                {
                    continue;
                }
                let live = leaves.into_iter().filter(|leaf| !leaf.deleted).map(|leaf| leaf.rev);
                ends.push((place.clone(), live.collect::<Vec<_>>()));
            }
            done += some.len() as u64;
            progress(done, total);
        }
        if !dry_run {
            for some in ends.chunks(READ_AT_ONCE) {
                self.end_losers(some.to_vec()).await?;
            }
            if self.remove_indexes(&mut migrated).await? {
                self.let_clients_in().await?;
            }
        }
        migrated.after = self.store.figures().await?;
        Ok(migrated)
    }

    /// Writes the chunks of a data document as separate documents, and reads them back. Returns whether the data
    /// document may end. It may not if a chunk has its own document that cannot be compared.
    async fn take_apart(&self, place: &str, data: &Data, dry_run: bool, migrated: &mut Migrated) -> Result<bool> {
        let (mut chunks, mut whole) = (Vec::new(), true);
        for id in data.chunks().keys() {
            let chunk = data.get(id).ok_or_else(|| Error::malformed(place, format!("{id} has no data")))?;
            chunks.push((id.clone(), chunk));
        }
        for some in chunks.chunks(READ_AT_ONCE) {
            let ids: Vec<String> = some.iter().map(|(id, _)| id.clone()).collect();
            let live = self.store.live(&ids).await?;
            let mut absent: Vec<&(String, Chunk)> =
                some.iter().zip(live).filter(|(_, live)| !live).map(|(chunk, _)| chunk).collect();
            migrated.chunks += absent.len() as u64;
            migrated.chunk_bytes += absent.iter().map(|(_, chunk)| chunk.data.len() as u64).sum::<u64>();
            if dry_run {
                continue;
            }
            // Its tombstone exists since the migration, so after a failed write it does not show whether the write
            // happened. Writing the same content again is harmless here.
            for attempt in 0..self.attempts {
                if absent.is_empty() {
                    break;
                }
                let edits = absent.iter().map(|(id, chunk)| Edit {
                    id: id.clone(),
                    rev: None,
                    deleted: false,
                    body: chunk.to_document(),
                });
                let written = self.store.write(edits.collect()).await?;
                // A refused one does not read back.
                absent = absent
                    .into_iter()
                    .zip(written)
                    .filter_map(|(chunk, written)| matches!(written, Err(Refusal::Unknown(_))).then_some(chunk))
                    .collect();
                if !absent.is_empty() {
                    pause(&*self.environment, attempt).await;
                }
            }
            for ((id, chunk), leaves) in some.iter().zip(self.store.leaves(&ids, false).await?) {
                let mut own = leaves.iter().filter(|leaf| !leaf.deleted).map(|leaf| Chunk::from_document(&leaf.body));
                let own = own.next().flatten();
                match own.map_or(Likeness::Different, |own| likeness(&own, chunk, self.key.as_deref())) {
                    Likeness::Same => {}
                    Likeness::Doubtful(why) => {
                        whole = false;
                        migrated.left.push(format!("\"{id}\" has a document of its own already, and {why}"));
                    }
                    Likeness::Different => return Err(Error::Differs { id: id.clone() }),
                }
            }
        }
        Ok(whole)
    }

    /// Removes indexes and settings, if there are no data documents. Returns whether there are no data documents.
    async fn remove_indexes(&self, migrated: &mut Migrated) -> Result<bool> {
        let data = self.ids(DATA_PREFIX).await?;
        let data = data.into_iter().filter(|id| data_parts(id).is_some());
        let before = migrated.left.len();
        migrated.left.extend(data.map(|id| format!("\"{id}\" has chunks that are left, or was written meanwhile")));
        if migrated.left.len() > before {
            return Ok(false);
        }
        // Without the settings, objects that still exist would be forgotten.
        let mut kept = false;
        for (place, location) in &self.places().await?.0 {
            let objects = self.object_figures_of(place).await?.objects;
            kept |= objects > 0;
            if objects > 0 {
                migrated.left.push(format!(
                    "{objects} objects in {location} and the settings that name them are kept for the grace period: collect, then try again"
                ));
            }
        }
        let indexes = self.ids(INDEX_PREFIX).await?.into_iter().filter(|id| index_prefix(id).is_some());
        let settings = Some(SETTINGS_ID.to_owned()).filter(|_| !kept);
        let ids: Vec<String> = indexes.chain(settings).collect();
        for some in ids.chunks(READ_AT_ONCE) {
            let leaves = self.store.leaves(some, false).await?;
            let live =
                |leaves: Vec<Leaf>| leaves.into_iter().filter(|leaf| !leaf.deleted).map(|leaf| leaf.rev).collect();
            self.end_losers(some.iter().cloned().zip(leaves.into_iter().map(live)).collect()).await?;
        }
        Ok(true)
    }

    /// The ids of the live documents with a prefix.
    pub(crate) async fn ids(&self, prefix: &str) -> Result<Vec<String>> {
        let (mut range, mut ids) = (Some(IdRange::prefix(prefix)), Vec::new());
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            ids.extend(page.rows.into_iter().map(|row| row.id));
            range = page.rest;
        }
        Ok(ids)
    }
}

/// The chunk in a document, equal at each of its live leaves, since all of them will be ended. `None` if it is
/// gone; an error says why it is left as it is.
fn own_chunk(
    id: &str,
    leaves: &[Leaf],
    settings: Settings,
    key: Option<&Key>,
) -> std::result::Result<Option<Chunk>, &'static str> {
    let mut live = leaves.iter().filter(|leaf| !leaf.deleted).map(|leaf| Chunk::from_document(&leaf.body));
    let Some(winner) = live.next() else { return Ok(None) };
    let chunk = winner.ok_or("does not have the form of a chunk")?;
    for other in live {
        let other = other.ok_or("has conflicting revisions, and one does not have the form of a chunk")?;
        match likeness(&chunk, &other, key) {
            Likeness::Same => {}
            Likeness::Doubtful(_) if key.is_none() => {
                return Err("has conflicting revisions, and only its passphrase can compare them");
            }
            _ => return Err("has conflicting revisions with different contents"),
        }
    }
    if Data::cost(id, &chunk.encode()) > settings.data_doc_size_limit {
        return Err("is larger than a data document may be");
    }
    Ok(Some(chunk))
}

/// Whether two contents are interchangeable.
enum Likeness {
    Same,
    /// Both are ciphertexts, not known to be of the same text, for this reason.
    Doubtful(&'static str),
    Different,
}

fn likeness(one: &Chunk, other: &Chunk, key: Option<&Key>) -> Likeness {
    if one == other {
        return Likeness::Same;
    }
    match (key, one.encrypted && other.encrypted) {
        (_, false) => Likeness::Different,
        (None, true) => Likeness::Doubtful("only its passphrase can compare the two ciphertexts"),
        (Some(key), true) => match (key.open(&one.data), key.open(&other.data)) {
            (Ok(one), Ok(other)) if one == other => Likeness::Same,
            _ => Likeness::Doubtful("the two ciphertexts do not have the same text"),
        },
    }
}
