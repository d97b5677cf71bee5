//! Collection: removes chunks that no file refers to, while writers continue.
//!
//! ```text
//!  scan of files ─► indexes: reprieve referenced chunks, condemn the others
//!                ─► data documents, prefix by prefix:
//!                     in no index      gets an entry, if files refer to it
//!                     an unnamed copy  is marked as spare; so is a chunk in no index
//!                     expired          is removed
//!                     the other chunks of its document move to a new one
//! ```
//!
//! A mark is expired when it was as old as the grace period at the *beginning* of the scan that found no
//! reference. A data document is replaced in this order: first the new document, then the indexes (each by one
//! conditional write, which removes expired entries and moves the others), then the end of the old document at the
//! revisions that were read. A concurrent writer makes one of these writes fail. Copies that remain are collected
//! later.
//!
//! Objects come last. An object that no stub names is marked once its stub would have arrived, and removed when the
//! mark is as old as the grace period ([`objects`]).
//!
//! The marks are the only state. An interrupted collection is not resumed; the next one continues from the marks.

mod copies;
mod documents;
mod inventory;
mod marks;
mod objects;
mod references;

use std::collections::BTreeMap;

use crate::ChunkStore;
use crate::database::refused;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::id::CHUNK_PREFIX;
use crate::index::Index;
use crate::lookup::Shelf;
use crate::objects::Places;
use crate::placement::SETTINGS_ID;
use crate::settings::Settings;
use crate::store::{Edit, Figures, IdRange};

use inventory::Inventory;
use references::References;

/// Options of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// Only count; change nothing.
    pub dry_run: bool,
    /// Percentage of a data document's bytes that may be expired before the document is replaced. Until then, expired
    /// chunks stay.
    pub unused_percent: u8,
}

impl Default for CollectOptions {
    fn default() -> Self {
        CollectOptions { dry_run: false, unused_percent: 20 }
    }
}

/// Step of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectStep {
    /// Reading files.
    References,
    /// Going through indexes, with the number done.
    Indexes(u64),
    /// Going through data documents, with the number done.
    Documents(u64),
}

/// Result of a collection; of a dry run, what it would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of files that refer to chunks.
    pub files: u64,
    /// Number of chunks that they refer to.
    pub referenced: u64,
    /// Number of chunks condemned now: no file refers to them.
    pub condemned: u64,
    /// Number of condemned chunks that a file refers to again.
    pub reprieved: u64,
    /// Number of removed chunks.
    pub removed: u64,
    /// Bytes removed from data documents, with chunks and copies.
    pub removed_bytes: u64,
    /// Number of referenced chunks that got a missing entry.
    pub adopted: u64,
    /// Number of copies marked now: copies that the index does not name, and unreferenced chunks in no index.
    pub copies_marked: u64,
    /// Number of copies removed.
    pub copies_removed: u64,
    /// Number of data documents replaced or deleted.
    pub data_documents_removed: u64,
    /// Number of data documents written in their place.
    pub data_documents_written: u64,
    /// Number of chunks that files refer to and whose data document is missing: [`ChunkStore::verify`] names them.
    pub dangling: u64,
    /// Number of objects marked now: no data document names them.
    pub objects_marked: u64,
    /// Number of objects removed, after a grace period with their mark.
    pub objects_removed: u64,
    /// Bytes of the removed objects.
    pub object_bytes_removed: u64,
    /// Damaged documents. They were left alone, with everything that depends on them.
    pub damaged: Vec<String>,
    /// Figures of the database before.
    pub before: Figures,
    /// Figures of the database after.
    pub after: Figures,
}

/// A collection in progress.
pub(crate) struct Collection<'s> {
    chunks: &'s ChunkStore,
    options: CollectOptions,
    settings: Settings,
    references: References,
    /// Start of the scan of the files, in milliseconds since 1970.
    began_ms: u64,
    objects: Inventory,
    report: Collected,
}

impl ChunkStore {
    /// Collects once. Chunks that no file refers to are condemned by one collection, and removed by the first one that
    /// begins after the grace period.
    ///
    /// # Errors
    /// [`Error::NotMigrated`]. [`Error::Setting`] if there are aggregated chunks and no settings, and
    /// [`Error::Malformed`] if the settings are damaged. Then the grace period is unknown, and nothing changes.
    /// [`Error::Unread`] if a file's references cannot be read: nothing changes either. [`Error::Contended`], and the
    /// store's errors: earlier changes stay, and are valid.
    pub async fn collect(
        &self,
        options: CollectOptions,
        mut progress: impl FnMut(CollectStep) + Send,
    ) -> Result<Collected> {
        let before = self.store.figures().await?;
        let leaves = self.settings_leaves().await?;
        let places = Places::read(&leaves)?;
        let Some(settings) = Settings::read(&leaves)? else {
            if self.has_aggregated().await? {
                return Err(Error::Setting(format!(
                    "there are aggregated chunks and no \"{SETTINGS_ID}\", which says how long they must be kept; if this is \
                     a replica, let it come, otherwise `chunks reindex` makes one with a grace of a week"
                )));
            }
            if self.has_own_chunks().await? {
                return Err(Error::NotMigrated);
            }
            return Ok(Collected { before, after: before, ..Collected::default() });
        };
        // After a migration back, objects may be left to collect.
        if places.0.is_empty() && !self.has_aggregated().await? && self.has_own_chunks().await? {
            return Err(Error::NotMigrated);
        }
        self.saw(settings);
        let began_ms = self.environment.now_ms();
        progress(CollectStep::References);
        let references = self.references().await?;
        let report =
            Collected { files: references.files, referenced: references.len(), before, ..Collected::default() };
        let objects = Inventory::take(self, places).await?;
        let mut collection = Collection { chunks: self, options, settings, references, began_ms, objects, report };
        collection.mark(&mut progress).await?;
        collection.sweep(&mut progress).await?;
        collection.remove_objects().await?;
        collection.report.after = self.store.figures().await?;
        Ok(collection.report)
    }

    /// Whether any chunk has a document of its own.
    async fn has_own_chunks(&self) -> Result<bool> {
        Ok(!self.store.list(&IdRange::prefix(CHUNK_PREFIX).limit(1)).await?.rows.is_empty())
    }

    /// Changes indexes, each by a conditional write that is repeated on the newer state. Returns the final
    /// shelves. An index that becomes empty is deleted.
    pub(crate) async fn edit_indexes(
        &self,
        ids: Vec<String>,
        mut change: impl FnMut(&str, &mut Index) + Send,
    ) -> Result<BTreeMap<String, Shelf>> {
        let (mut done, mut open, mut failure) = (BTreeMap::new(), ids, None);
        for attempt in 0..self.attempts {
            if open.is_empty() {
                return Ok(done);
            }
            if attempt > 0 {
                pause(&*self.environment, attempt).await;
            }
            let leaves = self.store.leaves(&open, false).await?;
            let shelves = self.whole_shelves(open.drain(..).zip(leaves).collect()).await?;
            let (mut edits, mut edited) = (Vec::new(), Vec::new());
            for (id, mut shelf) in shelves {
                let before = shelf.index.clone();
                change(&id, &mut shelf.index);
                if shelf.index == before && shelf.losers.is_empty() {
                    done.insert(id, shelf);
                    continue;
                }
                match (shelf.index.is_empty(), &shelf.rev) {
                    (true, Some(rev)) => edits.push(Edit::delete(&id, rev)),
                    (true, None) => {
                        done.insert(id, shelf);
                        continue;
                    }
                    (false, rev) => {
                        edits.push(Edit { id: id.clone(), rev: rev.clone(), deleted: false, body: shelf.index.write() })
                    }
                }
                edited.push((id, shelf));
            }
            if edits.is_empty() {
                return Ok(done);
            }
            let written = self.store.write(edits).await?;
            let mut losers = Vec::new();
            for ((id, shelf), written) in edited.into_iter().zip(written) {
                if refused(&id, &written, &mut failure)? {
                    open.push(id);
                } else {
                    losers.push((id.clone(), shelf.losers.clone()));
                    done.insert(id, shelf);
                }
            }
            self.end_losers(losers).await?;
        }
        match (open.first(), failure) {
            (None, _) => Ok(done),
            (_, Some(failure)) => Err(failure.into()),
            (Some(id), None) => Err(Error::Contended { what: format!("\"{id}\""), attempts: self.attempts }),
        }
    }
}

impl<'s> Collection<'s> {
    /// A collection that only goes through data documents and removes nothing.
    pub(crate) fn for_reindex(chunks: &'s ChunkStore, settings: Settings, references: References) -> Self {
        Collection {
            chunks,
            options: CollectOptions::default(),
            settings,
            references,
            began_ms: 0,
            objects: Inventory::default(),
            report: Collected::default(),
        }
    }

    /// Results so far.
    pub(crate) fn report(&self) -> &Collected {
        &self.report
    }

    /// Whether a mark is as old as the grace period.
    fn is_expired(&self, since: u64) -> bool {
        self.began_ms.saturating_sub(since) >= self.settings.grace_ms
    }
}
