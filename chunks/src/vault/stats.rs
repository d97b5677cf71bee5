//! Figures of a vault: its size, and what sharing chunks saves.

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

/// Number of data documents read at a time.
const DATA_AT_ONCE: usize = 8;

/// The figures of a vault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Number of files, without deleted ones.
    pub files: u64,
    /// Bytes of the files, from their documents.
    pub bytes: u64,
    /// Number of deleted files whose documents are kept.
    pub deleted_files: u64,
    /// Number of files that cannot be read: encrypted, damaged, or of an unknown form.
    pub closed_files: u64,
    /// Number of files with leaves besides the winner.
    pub conflicted_files: u64,
    /// Number of references from files to chunks, at their winners, deleted files included.
    pub references: u64,
    /// Number of different chunks among them.
    pub referenced_chunks: u64,
    /// Number of chunks in data documents.
    pub stored_chunks: u64,
    /// Bytes of these chunks with their ids, as compact JSON: text, and binary data in base64.
    pub stored_bytes: u64,
    /// Number of chunks in documents of their own.
    pub own_documents: u64,
    /// Number of index documents.
    pub index_documents: u64,
    /// Number of data documents.
    pub data_documents: u64,
    /// Number of data documents whose chunks are in an object store.
    pub offloaded_documents: u64,
    /// Bytes of their objects.
    pub object_bytes: u64,
    /// Figures of the database.
    pub database: Figures,
}

impl Stats {
    /// Average number of references to a chunk; one if there are no chunks.
    pub fn references_to_a_chunk(&self) -> f64 {
        if self.referenced_chunks == 0 { 1.0 } else { self.references as f64 / self.referenced_chunks as f64 }
    }
}

impl Vault {
    /// Counts. Reads all data documents, since indexes do not have the lengths of chunks. Reads no objects. `progress`
    /// gets the number of documents done. Memory: eight bytes for each chunk.
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
                        let hash = |id: &String| twox_hash::XxHash64::oneshot(1, id.as_bytes());
                        // A file in LiveSync's oldest form has pieces, which are not chunks.
                        for chunk in file.children.iter().filter(|id| id.starts_with(CHUNK_PREFIX)) {
                            stats.references += 1;
                            seen.insert(hash(chunk));
                        }
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
                    // `chunks verify` reports damaged documents.
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
