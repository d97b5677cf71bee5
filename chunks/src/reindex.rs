//! Building indexes again from the data documents alone.
//!
//! Every chunk in a data document that a file refers to gets an entry, unless there is one that is right; one that no
//! file refers to is marked for collection. A damaged index is replaced by an empty one first, damaged settings by
//! what can be made out in them, lost ones by defaults. Nothing is removed, and nobody need stop: chunks are found
//! throughout, and what a writer stores twice meanwhile is collected as a copy.

use crate::ChunkStore;
use crate::collect::Collection;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::objects::Places;
use crate::placement::{DATA_PREFIX, INDEX_PREFIX, SETTINGS_ID, data_parts, index_prefix};
use crate::settings::Settings;
use crate::store::Edit;
use crate::write::refused;

/// Indexes read at a time.
const AT_ONCE: usize = 100;

/// What a rebuild did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Data documents that were read.
    pub data_documents: u64,
    /// Chunks that files refer to and that had no entry, or a wrong one, and have one now.
    pub entered: u64,
    /// Copies of chunks beside the one that the index names, and chunks that no file refers to and no index names,
    /// marked for collection.
    pub copies: u64,
    /// Damaged indexes, and settings, that were replaced.
    pub replaced: u64,
    /// Data documents that are damaged, with the reason; their chunks are not in the index.
    pub damaged: Vec<String>,
}

impl ChunkStore {
    /// Builds the indexes again. `progress` is told how many of how many data documents are done.
    ///
    /// # Errors
    /// [`Error::Unread`]; [`Error::Contended`]; the store's failures. Begun again, it goes on.
    pub async fn reindex(&self, mut progress: impl FnMut(u64, u64) + Send) -> Result<Reindexed> {
        // Before anything is written: what no file seems to refer to would be marked for collection.
        let references = self.references().await?;
        let mut report = Reindexed { replaced: self.replace_settings().await?, ..Reindexed::default() };
        report.replaced += self.replace_damaged().await?;
        let places = self.ids(DATA_PREFIX).await?;
        let places: Vec<String> = places.into_iter().filter(|id| data_parts(id).is_some()).collect();
        if places.is_empty() {
            return Ok(report);
        }
        // Data documents lie under the prefixes that were current when they were made.
        let longest = places.iter().filter_map(|id| data_parts(id)).map(|(prefix, _)| prefix.len() as u8).max();
        self.grow(longest.unwrap_or(0)).await?;
        let mut collection = Collection::for_reindex(self, self.settings().await?.unwrap_or_default(), references);
        let total = places.len() as u64;
        for group in places.chunk_by(|one, other| {
            data_parts(one).map(|(prefix, _)| prefix) == data_parts(other).map(|(prefix, _)| prefix)
        }) {
            for some in group.chunks(crate::lookup::DATA_AT_ONCE) {
                collection.look_at(some).await?;
                report.data_documents += some.len() as u64;
                progress(report.data_documents, total);
            }
        }
        let found = collection.report();
        report.entered = found.adopted;
        report.copies = found.copies_marked;
        report.damaged = found.damaged.clone();
        Ok(report)
    }

    /// Writes damaged settings anew.
    async fn replace_settings(&self) -> Result<u64> {
        for attempt in 0..self.attempts {
            let leaves = self.settings_leaves().await?;
            let settings = match (Settings::salvage(&leaves)?, Places::read(&leaves)) {
                (Some(settings), _) => settings,
                (None, Ok(_)) => return Ok(0),
                (None, Err(_)) => Settings::read(&leaves)?.unwrap_or_default(),
            };
            let places = Places::salvage(&leaves);
            let longest = self.longest_index().await?.max(settings.chunk_prefix_length);
            let settings = Settings { chunk_prefix_length: longest, ..settings };
            if self.write_settings_with(&leaves, settings, &places).await? {
                return Ok(1);
            }
            pause(&*self.environment, attempt).await;
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }

    /// Ends the damaged leaves of indexes, and begins those anew that have no other.
    async fn replace_damaged(&self) -> Result<u64> {
        let ids = self.ids(INDEX_PREFIX).await?;
        let ids: Vec<String> = ids.into_iter().filter(|id| index_prefix(id).is_some()).collect();
        let mut replaced = 0;
        for some in ids.chunks(AT_ONCE) {
            for (id, leaves) in some.iter().zip(self.store.leaves(some, false).await?) {
                let (good, bad): (Vec<_>, Vec<_>) = leaves
                    .into_iter()
                    .filter(|leaf| !leaf.deleted)
                    .partition(|leaf| Index::read(id, &leaf.body).is_ok());
                for (place, leaf) in bad.into_iter().enumerate() {
                    let edit = if good.is_empty() && place == 0 {
                        let body = Index::default().write();
                        Edit { id: id.clone(), rev: Some(leaf.rev), deleted: false, body }
                    } else {
                        Edit::delete(id, leaf.rev)
                    };
                    let mut failure = None;
                    for written in self.store.write(vec![edit]).await? {
                        // One that somebody has changed since may be whole by now.
                        replaced += u64::from(!refused(id, &written, &mut failure)?);
                    }
                    if let Some(failure) = failure {
                        return Err(Error::Store(failure));
                    }
                }
            }
        }
        Ok(replaced)
    }
}
