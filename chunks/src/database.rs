//! The handle of a database's chunks, and the database's settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use model::SystemEnvironment;

use crate::environment::{TimedEnvironment, pause};
use crate::error::{Error, Result, StoreError, StoreErrorKind};
use crate::livesync::Key;
use crate::objects::{Connect, Handles, Places, default_connect};
use crate::placement::{
    DATA_PREFIX, INDEX_PREFIX, SETTINGS_ID, check_prefix_length, data_parts, index_prefix, prefix_length_for,
};
use crate::seen::Seen;
use crate::settings::{LEAST_DATA_LIMIT, LEAST_GRACE_MS, Settings};
use crate::store::{DocumentStore, Edit, IdRange, Leaf, Refusal, Steady, Written};

/// Number of attempts while other writers are faster.
const ATTEMPTS: u32 = 24;

/// The chunks of one database. A cheap handle. Any number of handles may work at the same time, in any number of
/// processes and replicas.
#[derive(Clone, Debug)]
pub struct ChunkStore {
    pub(crate) store: Arc<dyn DocumentStore>,
    pub(crate) environment: Arc<dyn TimedEnvironment>,
    pub(crate) attempts: u32,
    /// Last known prefix length. It only grows, so an old value only costs one more lookup.
    length: Arc<AtomicU8>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) seen: Arc<Seen>,
    /// The key of an encrypted vault, once it is unlocked.
    pub(crate) key: Option<Arc<Key>>,
}

impl ChunkStore {
    /// The chunks in `store`. Reads nothing.
    ///
    /// Transient failures (no answer, an overloaded server, a transaction that was too old) are retried for about
    /// half a minute, and only a few times if the store has never answered. A write is retried only if a read
    /// shows that it was not done. The final error has the number of attempts and their duration.
    pub fn new(store: Arc<dyn DocumentStore>) -> Self {
        ChunkStore::with_environment(store, Arc::new(SystemEnvironment))
    }

    /// The same, with a source of time, randomness and pauses.
    pub fn with_environment(store: Arc<dyn DocumentStore>, environment: Arc<dyn TimedEnvironment>) -> Self {
        let store = Arc::new(Steady::new(store, environment.clone()));
        let handles = Arc::new(Handles::new(default_connect()));
        ChunkStore {
            store,
            environment,
            attempts: ATTEMPTS,
            length: Arc::default(),
            handles,
            seen: Arc::default(),
            key: None,
        }
    }

    /// The same, with another way to reach object stores than the variables of this process.
    #[must_use]
    pub fn with_connect(mut self, connect: Arc<dyn Connect>) -> Self {
        self.handles = Arc::new(Handles::new(connect));
        self
    }

    /// The same, with this number of attempts.
    #[must_use]
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// The document store, with retries.
    pub fn store(&self) -> &Arc<dyn DocumentStore> {
        &self.store
    }

    /// The database's settings; `None` for a database without chunks.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Malformed`]; the store's failures.
    pub async fn settings(&self) -> Result<Option<Settings>> {
        let leaves = self.settings_leaves().await?;
        let settings = Settings::legible(&leaves)?;
        if let Some(settings) = settings {
            self.saw(settings);
        }
        Ok(settings)
    }

    /// Prepares the database for this total number of chunks: prefixes become long enough in advance. A larger
    /// number of chunks does no harm.
    ///
    /// # Errors
    /// As [`settings`](Self::settings); [`Error::Contended`].
    pub async fn prepare(&self, chunks: u64) -> Result<Settings> {
        self.grow(prefix_length_for(chunks)).await?;
        Ok(self.settings().await?.unwrap_or_default())
    }

    /// Changes the settings of a database with this number of chunks, present or future. The number matters if the
    /// prefix length changes.
    ///
    /// # Errors
    /// [`Error::Setting`], with the figures: for a new prefix length with more documents than chunks, with indexes
    /// over 32 KB, or shorter than the present one; for a size limit above the server's or too small; for a grace
    /// period under [`LEAST_GRACE_MS`]. [`Error::Contended`].
    pub async fn configure(&self, settings: Settings, chunks: u64) -> Result<()> {
        if self.settings().await?.is_none_or(|now| now.chunk_prefix_length != settings.chunk_prefix_length) {
            check_prefix_length(chunks, settings.chunk_prefix_length)?;
        }
        if settings.data_doc_size_limit < LEAST_DATA_LIMIT {
            return Err(Error::Setting(format!(
                "data_doc_size_limit {} is under the minimum of {LEAST_DATA_LIMIT}",
                settings.data_doc_size_limit
            )));
        }
        if settings.grace_ms < LEAST_GRACE_MS {
            return Err(Error::Setting(format!(
                "grace_ms {} is under {LEAST_GRACE_MS} (an hour): a collection could take chunks from under a writer \
                 that is slow, or whose clock differs",
                settings.grace_ms
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

    /// The last known prefix length.
    pub(crate) fn length(&self) -> u8 {
        self.length.load(Ordering::Relaxed)
    }

    /// Remembers the settings' prefix length. Returns the longest one seen.
    pub(crate) fn saw(&self, settings: Settings) -> u8 {
        self.length.fetch_max(settings.chunk_prefix_length, Ordering::Relaxed).max(settings.chunk_prefix_length)
    }

    pub(crate) async fn settings_leaves(&self) -> Result<Vec<Leaf>> {
        Ok(self.store.leaves(&[SETTINGS_ID.to_owned()], false).await?.pop().unwrap_or_default())
    }

    /// Writes settings over the winner, and ends the other leaves; `false` if another writer was faster.
    pub(crate) async fn write_settings(&self, leaves: &[Leaf], settings: Settings) -> Result<bool> {
        self.write_settings_with(leaves, settings, &Places::read(leaves)?).await
    }

    /// The same, with these places of objects.
    pub(crate) async fn write_settings_with(
        &self,
        leaves: &[Leaf],
        settings: Settings,
        places: &Places,
    ) -> Result<bool> {
        let mut live = leaves.iter().filter(|leaf| !leaf.deleted);
        let winner = live.next();
        let edit = Edit {
            id: SETTINGS_ID.to_owned(),
            rev: winner.map(|leaf| leaf.rev.clone()),
            deleted: false,
            body: settings.write(&winner.map(|leaf| leaf.body.clone()).unwrap_or_default(), places),
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

    /// Whether there are aggregated chunks, or indexes of them.
    pub(crate) async fn has_aggregated(&self) -> Result<bool> {
        for prefix in [INDEX_PREFIX, DATA_PREFIX] {
            let mut range = Some(IdRange::prefix(prefix));
            while let Some(next) = range {
                let page = self.store.list(&next).await?;
                let is_ours = |id: &str| index_prefix(id).is_some() || data_parts(id).is_some();
                if page.rows.iter().any(|row| is_ours(&row.id)) {
                    return Ok(true);
                }
                range = page.rest;
            }
        }
        Ok(false)
    }

    /// The longest prefix of an index: the least prefix length, should the settings be lost.
    pub(crate) async fn longest_index(&self) -> Result<u8> {
        let mut longest = 0;
        let mut range = Some(IdRange::prefix(INDEX_PREFIX));
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            let prefixes = page.rows.iter().filter_map(|row| index_prefix(&row.id));
            // Four digits at most.
            longest = prefixes.map(|prefix| prefix.len() as u8).max().unwrap_or(0).max(longest);
            range = page.rest;
        }
        Ok(longest)
    }
}

/// Whether an edit must be retried.
pub(crate) fn refused(id: &str, written: &Written, last_failure: &mut Option<StoreError>) -> Result<bool> {
    match written {
        Ok(_) => Ok(false),
        Err(Refusal::Conflict) => Ok(true),
        Err(Refusal::Unknown(reason)) => {
            *last_failure = Some(StoreError::new(StoreErrorKind::Unavailable, format!("\"{id}\": {reason}")));
            Ok(true)
        }
        Err(Refusal::TooLarge) => Err(Error::TooLarge { id: id.to_owned() }),
        Err(Refusal::Other(reason)) => {
            Err(StoreError::new(StoreErrorKind::Refused, format!("\"{id}\": {reason}")).into())
        }
    }
}
