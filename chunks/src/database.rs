//! The handle that all operations on a database's chunks hang on, and its settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use model::SystemEnvironment;

use crate::environment::{Environment, pause};
use crate::error::{Error, Result};
use crate::placement::{INDEX_PREFIX, SETTINGS_ID, check_prefix_length, index_prefix, prefix_length_for};
use crate::settings::{LEAST_DATA_LIMIT, Settings};
use crate::store::{DocumentStore, Edit, IdRange, Leaf};
use crate::write::refused;

/// How often something is tried while others are faster.
const ATTEMPTS: u32 = 24;

/// The chunks of one database. A cheap handle; any number of them, in any number of processes and
/// replicas, may be at work at the same time.
#[derive(Clone, Debug)]
pub struct ChunkStore {
    pub(crate) store: Arc<dyn DocumentStore>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) attempts: u32,
    /// The prefix length as last seen. It only grows, so an old one costs a look more and no error.
    length: Arc<AtomicU8>,
}

impl ChunkStore {
    /// The chunks in `store`. Nothing is read yet.
    pub fn new(store: Arc<dyn DocumentStore>) -> Self {
        ChunkStore::with_environment(store, Arc::new(SystemEnvironment))
    }

    /// The same, with time, randomness and pauses from elsewhere.
    pub fn with_environment(store: Arc<dyn DocumentStore>, environment: Arc<dyn Environment>) -> Self {
        ChunkStore { store, environment, attempts: ATTEMPTS, length: Arc::default() }
    }

    /// The same, giving up after so many attempts at anything.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The documents.
    pub fn store(&self) -> &Arc<dyn DocumentStore> {
        &self.store
    }

    /// The database's settings; `None` where it has none, being without chunks.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Malformed`]; the store's failures.
    pub async fn settings(&self) -> Result<Option<Settings>> {
        let leaves = self.settings_leaves().await?;
        let settings = Settings::read(&leaves)?;
        if let Some(settings) = settings {
            self.saw(settings);
        }
        Ok(settings)
    }

    /// Prepares the database for so many chunks in all: prefixes become long enough, so that they need
    /// not grow on the way. More chunks than said do no harm.
    ///
    /// # Errors
    /// As [`settings`](Self::settings); [`Error::Contended`].
    pub async fn prepare(&self, chunks: u64) -> Result<Settings> {
        self.grow(prefix_length_for(chunks)).await?;
        Ok(self.settings().await?.unwrap_or_default())
    }

    /// Changes the settings of a database that has, or will have, so many chunks.
    ///
    /// # Errors
    /// [`Error::Setting`], with the figures, for a prefix length that would make more documents than
    /// there are chunks, or indexes over 32 KB, or that is shorter than the present one; for a limit that the
    /// server does not take or that is too small to be of use. [`Error::Contended`].
    pub async fn configure(&self, settings: Settings, chunks: u64) -> Result<()> {
        check_prefix_length(chunks, settings.chunk_prefix_length)?;
        if settings.data_doc_size_limit < LEAST_DATA_LIMIT {
            return Err(Error::Setting(format!(
                "data_doc_size_limit {} is under {LEAST_DATA_LIMIT}, which is twice what a data document still takes chunks at",
                settings.data_doc_size_limit
            )));
        }
        if !self.store.takes(settings.data_doc_size_limit).await? {
            return Err(Error::Setting(format!(
                "data_doc_size_limit {} is more than the server takes for a document",
                settings.data_doc_size_limit
            )));
        }
        for attempt in 0..self.attempts {
            let leaves = self.settings_leaves().await?;
            let longest = match Settings::read(&leaves)? {
                Some(now) => now.chunk_prefix_length,
                None => self.longest_index().await?,
            };
            if settings.chunk_prefix_length < longest {
                return Err(Error::Setting(format!(
                    "chunk_prefix_length {} is shorter than {longest}, which the database has; it only grows",
                    settings.chunk_prefix_length
                )));
            }
            if self.write_settings(&leaves, settings).await? {
                return Ok(());
            }
            pause(&*self.environment, attempt).await;
        }
        Err(Error::Contended { what: format!("\"{SETTINGS_ID}\""), attempts: self.attempts })
    }

    /// The prefix length as last seen.
    pub(crate) fn length(&self) -> u8 {
        self.length.load(Ordering::Relaxed)
    }

    /// Remembers the settings' prefix length; the longest seen.
    pub(crate) fn saw(&self, settings: Settings) -> u8 {
        self.length.fetch_max(settings.chunk_prefix_length, Ordering::Relaxed).max(settings.chunk_prefix_length)
    }

    async fn settings_leaves(&self) -> Result<Vec<Leaf>> {
        Ok(self.store.leaves(&[SETTINGS_ID.to_owned()], false).await?.pop().unwrap_or_default())
    }

    /// Writes settings on the winner and ends the other leaves; `false` where somebody else was faster.
    pub(crate) async fn write_settings(&self, leaves: &[Leaf], settings: Settings) -> Result<bool> {
        let mut live = leaves.iter().filter(|leaf| !leaf.deleted);
        let winner = live.next();
        let edit = Edit {
            id: SETTINGS_ID.to_owned(),
            rev: winner.map(|leaf| leaf.rev.clone()),
            deleted: false,
            body: settings.write(&winner.map(|leaf| leaf.body.clone()).unwrap_or_default()),
        };
        let Some(written) = self.store.write(vec![edit]).await?.pop() else { return Ok(false) };
        if refused(SETTINGS_ID, &written, &mut None)? {
            return Ok(false);
        }
        let losers = live.map(|leaf| leaf.rev.clone()).collect();
        self.end_losers(vec![(SETTINGS_ID.to_owned(), losers)]).await?;
        self.saw(settings);
        Ok(true)
    }

    /// The longest prefix that an index has: what the settings must say at least, should they be lost.
    pub(crate) async fn longest_index(&self) -> Result<u8> {
        let mut longest = 0;
        let mut range = Some(IdRange::prefix(INDEX_PREFIX));
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            let prefixes = page.rows.iter().filter_map(|row| index_prefix(&row.id));
            // At most four digits.
            longest = prefixes.map(|prefix| prefix.len() as u8).max().unwrap_or(0).max(longest);
            range = page.rest;
        }
        Ok(longest)
    }
}
