//! Rebuilds indexes from the data documents.
//!
//! Every referenced chunk in a data document gets an entry, unless a correct one exists. Other chunks are marked for
//! collection. First, a damaged index is replaced by an empty one, damaged settings by their readable parts, lost
//! settings by defaults. Nothing is removed, and clients may continue: chunks are found at all times, and a chunk that
//! is stored twice meanwhile is collected as a copy.

use crate::ChunkStore;
use crate::collect::Collection;
use crate::database::refused;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::objects::Places;
use crate::placement::{DATA_PREFIX, INDEX_PREFIX, SETTINGS_ID, data_parts, index_prefix};
use crate::settings::Settings;
use crate::store::Edit;

/// Number of indexes read at a time.
const AT_ONCE: usize = 100;

/// Result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Number of data documents read.
    pub data_documents: u64,
    /// Number of referenced chunks that got a missing or corrected entry.
    pub entered: u64,
    /// Number of copies marked for collection: copies that the index does not name, and unreferenced chunks that no
    /// index names.
    pub copies: u64,
    /// Number of damaged indexes and settings that were replaced.
    pub replaced: u64,
    /// Damaged data documents, with the reason. Their chunks are not in the index.
    pub damaged: Vec<String>,
}

impl ChunkStore {
    /// Rebuilds the indexes. `progress` gets the numbers of data documents done and in all.
    ///
    /// # Errors
    /// [`Error::Unread`]; [`Error::Contended`]; the store's errors. Repeating it continues.
    pub async fn reindex(&self, mut progress: impl FnMut(u64, u64) + Send) -> Result<Reindexed> {
        // Before any write, since unreferenced chunks are marked for collection.
        let references = self.references().await?;
        let mut report = Reindexed { replaced: self.replace_settings().await?, ..Reindexed::default() };
        report.replaced += self.replace_damaged().await?;
        let places = self.ids(DATA_PREFIX).await?;
        let places: Vec<String> = places.into_iter().filter(|id| data_parts(id).is_some()).collect();
        if places.is_empty() {
            return Ok(report);
        }
        // Ids of data documents have the prefix length of the time when they were created.
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

    /// Replaces damaged settings.
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

    /// Ends the damaged leaves of indexes. Creates indexes without another leaf again.
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
                        // Another client may have repaired it meanwhile.
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
