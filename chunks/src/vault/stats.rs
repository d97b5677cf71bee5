//! How large a vault is, and what its chunks save.

use std::collections::HashSet;

use super::Vault;
use super::document::Meaning;
use super::listing::Listing;
use crate::contents::Contents;
use crate::error::Result;
use crate::id::CHUNK_PREFIX;
use crate::placement::{DATA_PREFIX, INDEX_PREFIX};
use crate::store::{Figures, IdRange};
use crate::stub::Stub;

/// Data documents read at a time.
const DATA_AT_ONCE: usize = 8;

/// The figures of a vault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Files, without those that are deleted.
    pub files: u64,
    /// Their bytes, as their documents say.
    pub bytes: u64,
    /// Files that are deleted, and whose documents are kept.
    pub deleted_files: u64,
    /// Files that cannot be read: encrypted, damaged, of another form.
    pub closed_files: u64,
    /// Files with leaves besides the winner.
    pub conflicted_files: u64,
    /// How often the files name a chunk, at their winners, deleted ones among them.
    pub references: u64,
    /// How many chunks those are.
    pub referenced_chunks: u64,
    /// Chunks in data documents.
    pub stored_chunks: u64,
    /// Bytes that they take up there, with their ids, as compact JSON: text and bytes in base64.
    pub stored_bytes: u64,
    /// Chunks in documents of their own.
    pub own_documents: u64,
    /// Index documents.
    pub index_documents: u64,
    /// Data documents.
    pub data_documents: u64,
    /// Those among them whose chunks are in an object store.
    pub offloaded_documents: u64,
    /// Bytes of their objects.
    pub object_bytes: u64,
    /// The database.
    pub database: Figures,
}

impl Stats {
    /// How often a chunk is named; one without any.
    pub fn references_to_a_chunk(&self) -> f64 {
        if self.referenced_chunks == 0 { 1.0 } else { self.references as f64 / self.referenced_chunks as f64 }
    }
}

impl Vault {
    /// Counts. All data documents are read, since no index says how long a chunk is, and no objects. `progress` is told how
    /// many documents have been looked at. Memory: eight bytes for each chunk.
    ///
    /// # Errors
    /// The store's failures.
    pub async fn stats(&self, mut progress: impl FnMut(u64) + Send) -> Result<Stats> {
        let mut stats = Stats { database: self.chunks.store.figures().await?, ..Stats::default() };
        let (mut seen, mut documents) = (HashSet::new(), 0);
        let mut listing = Listing::new();
        while let Some(page) = listing.next(&self.chunks).await? {
            for (id, leaves) in page {
                let Some(winner) = leaves.first() else { continue };
                match Meaning::of(&id, winner, self.chunks.key.as_deref()) {
                    Meaning::Other => continue,
                    Meaning::Closed(_) => stats.closed_files += 1,
                    Meaning::File(file) => {
                        if file.deleted {
                            stats.deleted_files += 1;
                        } else {
                            stats.files += 1;
                            stats.bytes += file.size;
                        }
                        stats.references += file.children.len() as u64;
                        let hash = |id: &String| twox_hash::XxHash64::oneshot(1, id.as_bytes());
                        seen.extend(file.children.iter().map(hash));
                    }
                }
                stats.conflicted_files += u64::from(leaves.len() > 1);
                documents += 1;
            }
            progress(documents);
        }
        stats.referenced_chunks = seen.len() as u64;
        drop(seen);
        for (prefix, count) in [(INDEX_PREFIX, &mut stats.index_documents), (CHUNK_PREFIX, &mut stats.own_documents)] {
            let mut range = Some(IdRange::prefix(prefix));
            while let Some(next) = range {
                let page = self.chunks.store.list(&next).await?;
                *count += page.rows.len() as u64;
                documents += page.rows.len() as u64;
                progress(documents);
                range = page.rest;
            }
        }
        self.count_data(&mut stats, |data| progress(documents + data)).await?;
        Ok(stats)
    }

    async fn count_data(&self, stats: &mut Stats, mut progress: impl FnMut(u64) + Send) -> Result<()> {
        let mut range = Some(IdRange::prefix(DATA_PREFIX));
        while let Some(next) = range {
            let page = self.chunks.store.list(&next).await?;
            let ids: Vec<String> = page.rows.into_iter().map(|row| row.id).collect();
            for some in ids.chunks(DATA_AT_ONCE) {
                for (id, leaves) in some.iter().zip(self.chunks.store.leaves(some, false).await?) {
                    stats.data_documents += 1;
                    // `chunks verify` names what is damaged.
                    let Ok(Some(contents)) = Contents::unite(id, &leaves) else { continue };
                    stats.stored_chunks += contents.sizes().len() as u64;
                    stats.stored_bytes += contents.bytes() as u64;
                    let winner = leaves.first().filter(|leaf| !leaf.deleted);
                    if let Some(Ok(Some(stub))) = winner.map(|leaf| Stub::read(id, &leaf.body)) {
                        stats.offloaded_documents += 1;
                        stats.object_bytes += stub.bytes;
                    }
                }
                progress(stats.data_documents);
            }
            range = page.rest;
        }
        Ok(())
    }
}
