//! Removing what no file refers to, beside writers.
//!
//! ```text
//!  scan of files ─► indexes: unmark what is referred to, condemn what is not
//!                ─► data documents, prefix by prefix:
//!                     in no index            gets an entry, if files refer to it
//!                     a copy nobody names    is marked as spare; what is in no index is one
//!                     expired                goes
//!                     the others of its data document move to a new one
//! ```
//!
//! A mark is expired when it is as old as the grace at the *beginning* of the scan that found no
//! reference. The order within a data document's replacement: the new document, then the indexes (one
//! conditional write each, which drops what is expired and moves the rest), then the end of the old one,
//! at the revisions that were read. Whoever writes meanwhile makes one of these fail, and what then
//! remains twice is collected another time.
//!
//! Objects come last: one that no stub names is marked, once it is so old that its stub would have come, and
//! removed when the mark is as old as the grace ([`objects`]).
//!
//! There is no other state than the marks: a collection that was interrupted is not resumed but begun
//! again, and goes on from them.

mod copies;
mod documents;
mod marks;
mod objects;
mod references;

use std::collections::BTreeMap;

use crate::ChunkStore;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::id::CHUNK_PREFIX;
use crate::index::Index;
use crate::lookup::Shelf;
use crate::objects::Places;
use crate::placement::SETTINGS_ID;
use crate::settings::Settings;
use crate::store::{Edit, Figures, IdRange};
use crate::write::refused;

use objects::Inventory;
use references::References;

/// How to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// Count, and change nothing.
    pub dry_run: bool,
    /// How much of a data document may be expired before it is replaced, in per cent. What is left is
    /// removed when more has expired.
    pub unused_percent: u8,
}

impl Default for CollectOptions {
    fn default() -> Self {
        CollectOptions { dry_run: false, unused_percent: 20 }
    }
}

/// What a collection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectStep {
    /// Reading files.
    References,
    /// Going through indexes; so many are done.
    Indexes(u64),
    /// Going through data documents; so many are done.
    Documents(u64),
}

/// What a collection did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Files that refer to chunks.
    pub files: u64,
    /// Chunks that they refer to.
    pub referenced: u64,
    /// Chunks that nobody refers to, condemned now.
    pub condemned: u64,
    /// Condemned chunks that somebody refers to again.
    pub reprieved: u64,
    /// Chunks that were removed.
    pub removed: u64,
    /// Bytes of data documents that went with them, and with copies.
    pub removed_bytes: u64,
    /// Chunks that files refer to and that were in no index, and have an entry now.
    pub adopted: u64,
    /// Copies of chunks beside the one that the index names, and chunks in no index that nobody refers to, marked
    /// now.
    pub copies_marked: u64,
    /// Those removed.
    pub copies_removed: u64,
    /// Data documents that were replaced or deleted.
    pub data_documents_removed: u64,
    /// Data documents that were written in their place.
    pub data_documents_written: u64,
    /// Chunks that files refer to and whose data document is not there: [`ChunkStore::verify`] names them.
    pub dangling: u64,
    /// Objects that no data document names, marked now.
    pub objects_marked: u64,
    /// Objects that were marked for the grace, and removed.
    pub objects_removed: u64,
    /// Bytes of these.
    pub object_bytes_removed: u64,
    /// Documents that are damaged, and were left alone with all they concern.
    pub damaged: Vec<String>,
    /// The database before.
    pub before: Figures,
    /// The database after.
    pub after: Figures,
}

/// A collection under way.
pub(crate) struct Collection<'s> {
    chunks: &'s ChunkStore,
    options: CollectOptions,
    settings: Settings,
    references: References,
    /// When the scan of the files began, in milliseconds since 1970.
    began_ms: u64,
    objects: Inventory,
    report: Collected,
}

impl ChunkStore {
    /// Collects once. What nobody refers to is condemned by one collection and removed by the first one
    /// that begins after the grace.
    ///
    /// # Errors
    /// [`Error::NotMigrated`]; [`Error::Setting`] where there are aggregated chunks and no settings, [`Error::Malformed`] where the
    /// settings are damaged: nothing is touched, since nobody knows for how long it must be kept.
    /// [`Error::Unread`] where it cannot be read which chunks a file refers to: nothing is touched either.
    /// [`Error::Contended`]; the store's failures. What was done until then stays, and is right.
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
        // On the way back there may be objects left to collect.
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

    /// Whether there are chunks that have documents of their own.
    async fn has_own_chunks(&self) -> Result<bool> {
        Ok(!self.store.list(&IdRange::prefix(CHUNK_PREFIX).limit(1)).await?.rows.is_empty())
    }

    /// Changes indexes, each by a conditional write that is tried again with what is there by then. The
    /// shelves as they are in the end. An index that becomes empty is deleted.
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
    /// One that goes through data documents alone, and removes nothing.
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

    /// What was done so far.
    pub(crate) fn report(&self) -> &Collected {
        &self.report
    }

    /// Whether a mark is as old as the grace.
    fn is_expired(&self, since: u64) -> bool {
        self.began_ms.saturating_sub(since) >= self.settings.grace_ms
    }
}
