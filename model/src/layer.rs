//! The layer: the handle of all databases in a store, and what they share.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use jobs::Jobs;
use kv_api::{Database, RangeRequest, Read, STORED_FORMAT, Transaction};
use parking_lot::Mutex;

use crate::admin::edit_counts::EditCounts;
use crate::admin::environment::{Environment, SystemEnvironment};
use crate::admin::versions;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::epoch::Feed;
use crate::indexes::Definitions;
use crate::keys::Key;
use crate::limits::{DEFAULT_MAX_DOCUMENT_SIZE, HIGHEST_MAX_DOCUMENT_SIZE};
use crate::read::reading;
use crate::rows::body::BodyFormat;
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::txids::Guard;

/// Options of a layer.
#[derive(Clone, Debug)]
pub struct LayerOptions {
    /// Prefix of all keys of the layer. No other keys in the store may have it. Empty by default.
    pub prefix: Bytes,
    /// Source of time and randomness.
    pub environment: Arc<dyn Environment>,
    /// Layout of bodies in new databases, unless [`CreateOptions`](crate::CreateOptions) says otherwise.
    pub default_format: BodyFormat,
    /// Maximum size of a document's body, in bytes of compact JSON. Capped at [`HIGHEST_MAX_DOCUMENT_SIZE`].
    /// [`Layer::limit_documents`] changes it.
    pub max_document_size: usize,
    /// Maximum size of an attachment, in bytes as received. Unlimited by default. [`Layer::limit_attachments`] changes
    /// it.
    pub max_attachment_size: u64,
    /// Maximum number of threads that work on one bulk write, of a pool with one for each core, which all layers of the
    /// process share. 1 by default: then the caller works alone, and no thread is started. Backups read, and restores
    /// write, on so many threads of the runtime too, at most two.
    pub threads: usize,
}

impl Default for LayerOptions {
    fn default() -> Self {
        LayerOptions {
            prefix: Bytes::new(),
            environment: Arc::new(SystemEnvironment),
            default_format: BodyFormat::default(),
            max_document_size: DEFAULT_MAX_DOCUMENT_SIZE,
            max_attachment_size: u64::MAX,
            threads: 1,
        }
    }
}

/// A handle of all databases in one key-value store. Cheap to clone.
#[derive(Clone)]
pub struct Layer<D> {
    pub(crate) shared: Arc<LayerState<D>>,
}

impl<D> fmt::Debug for Layer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("prefix", &self.shared.guard.root).finish_non_exhaustive()
    }
}

pub(crate) struct LayerState<D> {
    pub(crate) guard: Guard<D>,
    pub(crate) default_format: BodyFormat,
    pub(crate) limits: Arc<Limits>,
    pub(crate) threads: usize,
    /// The feeds with waiting clients, by database.
    pub(crate) feeds: Mutex<HashMap<Bytes, Weak<Feed>>>,
    pub(crate) indexes: Arc<Definitions>,
    pub(crate) edit_counts: Arc<EditCounts>,
    /// The databases whose branches are being stemmed here.
    pub(crate) stemming: Arc<Mutex<HashSet<Bytes>>>,
}

/// Size limits. Layers may share them.
pub(crate) struct Limits {
    pub(crate) document: Limit,
    pub(crate) attachment: Limit,
}

impl Limits {
    fn of(options: &LayerOptions) -> Arc<Self> {
        let document = Limit::new(options.max_document_size as u64, HIGHEST_MAX_DOCUMENT_SIZE as u64);
        let attachment = Limit::new(options.max_attachment_size, u64::MAX);
        Arc::new(Limits { document, attachment })
    }
}

/// A limit in bytes that changes while requests read it.
pub(crate) struct Limit {
    /// The limit from the options.
    usual: u64,
    /// A higher limit counts as this one.
    highest: u64,
    now: AtomicU64,
}

impl Limit {
    fn new(bytes: u64, highest: u64) -> Self {
        let usual = bytes.min(highest);
        Limit { usual, highest, now: AtomicU64::new(usual) }
    }

    pub(crate) fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn set(&self, bytes: Option<u64>) {
        self.now.store(bytes.map_or(self.usual, |bytes| bytes.min(self.highest)), Ordering::Relaxed);
    }
}

impl<D: Database> Layer<D> {
    /// Opens the layer in `engine`. If the store has nothing under the prefix, this writes the number of the format.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for another format; [`ErrorKind::NotOurs`] if the prefix has other keys;
    /// [`ErrorKind::WentBack`] for a store that must be [adopted](Self::adopt). Nothing is changed then.
    pub async fn open(engine: D, options: LayerOptions) -> Result<Self> {
        let limits = Limits::of(&options);
        Self::open_limited(engine, options, limits).await
    }

    /// Opens the layer in another store. It has the same limits and follows changes to them, whatever the options
    /// say.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_sibling(&self, engine: D, options: LayerOptions) -> Result<Self> {
        Self::open_limited(engine, options, self.shared.limits.clone()).await
    }

    async fn open_limited(engine: D, options: LayerOptions, limits: Arc<Limits>) -> Result<Self> {
        let layer = Self::with_limits(engine, options, limits);
        layer.admit(true).await?;
        Ok(layer)
    }

    /// A handle of a store that was not checked yet.
    pub(crate) fn assemble(engine: D, options: LayerOptions) -> Self {
        let limits = Limits::of(&options);
        Self::with_limits(engine, options, limits)
    }

    fn with_limits(engine: D, options: LayerOptions, limits: Arc<Limits>) -> Self {
        Layer {
            shared: Arc::new(LayerState {
                guard: Guard::new(engine, options.prefix, options.environment),
                default_format: options.default_format,
                limits,
                threads: options.threads,
                feeds: Mutex::default(),
                indexes: Arc::default(),
                edit_counts: Arc::default(),
                stemming: Arc::default(),
            }),
        }
    }

    /// The same layer for work in the background: its transactions have a lower priority than others
    /// ([`Database::in_background`]), and so have those of databases that it opens. For work that nobody waits for:
    /// while the cluster is at its limit, it may stand still.
    #[must_use]
    pub fn in_background(&self) -> Self {
        let shared = &self.shared;
        Layer {
            shared: Arc::new(LayerState {
                guard: shared.guard.in_background(),
                default_format: shared.default_format,
                limits: shared.limits.clone(),
                threads: shared.threads,
                // Feeds share reads, and a client's feed must not wait for one in the background.
                feeds: Mutex::default(),
                indexes: shared.indexes.clone(),
                edit_counts: shared.edit_counts.clone(),
                stemming: shared.stemming.clone(),
            }),
        }
    }

    /// Removes the parts of uploads that were dropped before an edit named them, for example because a client left.
    /// Costs nothing if there are none. The next upload does this too. Uploads of a process that has ended are swept
    /// after a day.
    pub async fn give_back_uploads(&self)
    where
        D: Database,
    {
        self.guard().give_back().await;
    }

    /// Checks that the store is the layer's. With `is_opened`, an empty store is marked, and a store whose versions
    /// went back is refused.
    pub(crate) async fn admit(&self, is_opened: bool) -> Result<()> {
        let root = &self.guard().root;
        let key = Key::Format.under(root);
        let anything = if root.is_empty() {
            RangeRequest::keys(Bytes::new(), Bytes::from_static(kv_api::keys::SYSTEM_BEGIN))
        } else {
            RangeRequest::prefix(root)
        };
        let anything = anything.limit(1);
        // Opening twice has the same effect as opening once, so this needs no transaction id.
        kv_api::Runner::new(self.engine())
            .run(|transaction, _| {
                let (version, first) =
                    (transaction.get(&key, Read::Serializable), transaction.get_range(&anything, Read::Serializable));
                let versions = is_opened.then(|| versions::check_versions(&transaction, root));
                let at = transaction.get_read_version();
                let (key, format) = (&key, &self.guard().format);
                async move {
                    let found = match (version.await?, first.await?.rows.first()) {
                        (Some(version), _) => Reader::new(&version).int()?,
                        (None, None) if is_opened => {
                            let mut version = Vec::new();
                            tuple::append_u64(&mut version, u64::from(STORED_FORMAT));
                            transaction.set(key, &version);
                            return format.note(u64::from(STORED_FORMAT), at.await?);
                        }
                        (None, None) => return Err(Error::bad_request("There is no store to adopt: it is empty.")),
                        (None, Some(_)) => return Err(Error::new(ErrorKind::NotOurs)),
                    };
                    format.note(found, at.await?)?;
                    match versions {
                        Some(versions) => versions.await,
                        None => Ok(()),
                    }
                }
            })
            .await
    }

    /// Reads whether the store still has this build's format. Another build may have changed it, on a cluster; then this
    /// and every later use of a database fails. Writes find it out by themselves, within about a minute.
    ///
    /// # Errors
    /// [`ErrorKind::Format`]; the store's errors.
    pub async fn check_format(&self) -> Result<()> {
        let guard = self.guard();
        reading::run(&guard.engine, |transaction| async move {
            let version = transaction.get_read_version().await?;
            guard.format.read(&transaction, &guard.root, version, Read::Snapshot).await
        })
        .await
    }

    /// Fails if the store is known to have another format. Costs no read.
    ///
    /// # Errors
    /// [`ErrorKind::Format`].
    pub fn check_known_format(&self) -> Result<()> {
        self.guard().format.check_known()
    }

    /// Limits documents written from now on, including through open handles. `None` restores the limit of the options.
    /// Capped at [`HIGHEST_MAX_DOCUMENT_SIZE`]. Stored documents are not affected. A server sets it whenever it reads
    /// its configuration.
    pub fn limit_documents(&self, bytes: Option<usize>) {
        self.shared.limits.document.set(bytes.map(|bytes| bytes as u64));
    }

    /// Maximum size of a document, in bytes of compact JSON.
    pub fn max_document_size(&self) -> usize {
        usize::try_from(self.shared.limits.document.get()).unwrap_or(usize::MAX)
    }

    /// Maximum size of an attachment, in bytes as received.
    pub fn max_attachment_size(&self) -> u64 {
        self.shared.limits.attachment.get()
    }

    /// Limits attachments whose upload starts from now on, including through open handles. `None` restores the limit of
    /// the options. A server sets it whenever it reads its configuration.
    pub fn limit_attachments(&self, bytes: Option<u64>) {
        self.shared.limits.attachment.set(bytes);
    }

    pub(crate) fn of(shared: Arc<LayerState<D>>) -> Self {
        Layer { shared }
    }

    pub(crate) fn guard(&self) -> &Guard<D> {
        &self.shared.guard
    }

    /// The store.
    pub fn engine(&self) -> &D {
        &self.shared.guard.engine
    }

    /// The registry of jobs: the long background work of this store.
    pub fn jobs(&self) -> Jobs<D> {
        let guard = &self.shared.guard;
        Jobs::new(guard.engine.clone(), self.shared.registry())
    }
}
