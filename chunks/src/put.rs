//! The calls that store chunks. Each makes [attempts](crate::write) until one succeeds.

use std::collections::{BTreeMap, HashSet};

use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::placement::SETTINGS_ID;
use crate::settings::Settings;
use crate::write::{Attempt, Put, Receipt};

impl ChunkStore {
    /// Stores the chunks that do not exist yet. If there are two contents under one id, the first one stays. Everything
    /// is written when this returns.
    ///
    /// Memory: the chunks, their indexes, and one small data document for each prefix among them. Batches of some
    /// thousands of chunks or some megabytes work well.
    ///
    /// # Errors
    /// [`Error::Contended`] if other writers were faster at every attempt; [`Error::TooLarge`]. Stored chunks
    /// stay, and repeating the call continues.
    pub async fn put(&self, chunks: impl IntoIterator<Item = (String, Chunk)>) -> Result<Receipt> {
        self.put_beside(chunks, HashSet::new()).await
    }

    /// The same, ignoring these data documents.
    pub(crate) async fn put_beside(
        &self,
        chunks: impl IntoIterator<Item = (String, Chunk)>,
        damaged: HashSet<String>,
    ) -> Result<Receipt> {
        let mut pending = BTreeMap::new();
        for (id, chunk) in chunks {
            pending.entry(id).or_insert_with(|| Some(chunk.encode()));
        }
        let (receipt, _) = self.run_put(pending, damaged).await?;
        Ok(receipt)
    }

    /// Ensures that chunks exist and stay: condemned chunks are revived or, late in their grace period, stored again
    /// from their remaining copy. Also returns the ids of missing chunks.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn ensure(&self, ids: impl IntoIterator<Item = String>) -> Result<(Receipt, Vec<String>)> {
        let (mut receipt, unindexed) =
            self.run_put(ids.into_iter().map(|id| (id, None)).collect(), HashSet::new()).await?;
        if unindexed.is_empty() {
            return Ok((receipt, Vec::new()));
        }
        // In no index. They may still be in a data document, or in their own documents.
        let (mut again, mut missing) = (Vec::new(), Vec::new());
        for (id, found) in self.read_found(&unindexed).await? {
            match found {
                Some(found) if found.in_own_document => drop(receipt.ids.insert(id)),
                Some(found) => again.push((id, found.chunk)),
                None => missing.push(id),
            }
        }
        if !again.is_empty() {
            receipt.merge(self.put(again).await?);
        }
        Ok((receipt, missing))
    }

    async fn run_put(
        &self,
        pending: BTreeMap<String, Option<String>>,
        damaged: HashSet<String>,
    ) -> Result<(Receipt, Vec<String>)> {
        let mut put = Put::new(self, pending, damaged);
        for attempt in 0..self.attempts {
            put.receipt.attempts += 1;
            match put.attempt().await {
                Ok(Attempt::Done) => return Ok((put.receipt, put.missing.into_iter().collect())),
                Ok(Attempt::Again) => {}
                Ok(Attempt::Contended) => pause(&*self.environment, attempt).await,
                Err(error) => return Err(error),
            }
        }
        Err(match put.last_failure {
            Some(failure) => failure.into(),
            None => Error::Contended { what: format!("{} chunks", put.pending.len()), attempts: self.attempts },
        })
    }

    /// Makes prefixes at least this long.
    ///
    /// # Errors
    /// [`Error::Contended`], and the errors of reading the settings.
    pub(crate) async fn grow(&self, length: u8) -> Result<()> {
        for attempt in 0..self.attempts {
            let leaves = self.store.leaves(&[SETTINGS_ID.to_owned()], false).await?.pop().unwrap_or_default();
            let settings = Settings::legible(&leaves)?;
            if let Some(settings) = settings.filter(|settings| settings.chunk_prefix_length >= length) {
                self.saw(settings);
                return Ok(());
            }
            let settings = match settings {
                Some(settings) => Settings { chunk_prefix_length: length, ..settings },
                None => {
                    Settings { chunk_prefix_length: length.max(self.longest_index().await?), ..Settings::default() }
                }
            };
            if self.write_settings(&leaves, settings).await? {
                return Ok(());
            }
            pause(&*self.environment, attempt).await;
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }
}
