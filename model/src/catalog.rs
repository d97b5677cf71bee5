//! The databases in a store: created, found, listed, dropped.
//!
//! ```text
//!  (1, Name)   = (Number, InstanceId)      where a database is
//!  (2)         = next number
//!  (4, Number) …                           the database's own keys
//! ```
//!
//! Invariants:
//! * A number is given once. A database that is created after another of its name was dropped has
//!   fresh keys and another instance id.
//! * Dropping clears the catalog's row and all of the database's keys in one transaction. A writer that
//!   read the instance before fails with a conflict and then finds nothing; so nothing is left behind
//!   and no list of drops under way is needed. (Engines make clearing a large range cheap.)
//! * Both are guarded by transaction ids: after an unknown commit result neither answers "exists" nor
//!   "does not exist" about its own doing.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};

use crate::body::BodyFormat;
use crate::documents::Documents;
use crate::environment::{Environment, SystemEnvironment};
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::Feed;
use crate::instance::Instance;
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::limits::{DEFAULT_MAX_DOCUMENT_SIZE, DEFAULT_REVS_LIMIT, HIGHEST_MAX_DOCUMENT_SIZE, check_database_name};
use crate::reading;
use crate::row::Reader;
use crate::seq::Seq;
use crate::tuple;
use crate::txids::{Guard, Outcome};

/// The version of the layer's keys that this program reads and writes.
pub const FORMAT_VERSION: u64 = 1;

/// How a layer is set up.
#[derive(Clone, Debug)]
pub struct LayerOptions {
    /// All keys of the layer begin with this; nothing else in the store may. Empty by default.
    pub prefix: Bytes,
    /// Time and randomness.
    pub environment: Arc<dyn Environment>,
    /// How bodies are laid out in databases created without saying so.
    pub default_format: BodyFormat,
    /// The largest document body, in bytes of compact JSON; at most
    /// [`HIGHEST_MAX_DOCUMENT_SIZE`], which is what a higher one counts as.
    pub max_document_size: usize,
}

impl Default for LayerOptions {
    fn default() -> Self {
        LayerOptions {
            prefix: Bytes::new(),
            environment: Arc::new(SystemEnvironment),
            default_format: BodyFormat::default(),
            max_document_size: DEFAULT_MAX_DOCUMENT_SIZE,
        }
    }
}

/// How a database is created.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// How bodies are laid out; the layer's default where it is `None`.
    pub format: Option<BodyFormat>,
}

/// Which names to list.
#[derive(Clone, Debug, Default)]
pub struct NameRange {
    /// Where to begin, itself included; with `descending` the highest name.
    pub start: Option<String>,
    /// Where to end, itself included; with `descending` the lowest name.
    pub end: Option<String>,
    /// From the last to the first.
    pub descending: bool,
    /// At most this many.
    pub limit: Option<usize>,
    /// Leave out this many first.
    pub skip: usize,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepReport {
    /// Transaction ids from before this time, in milliseconds since 1970, are gone.
    pub transactions_before_ms: u64,
}

/// All databases in one key-value store. A cheap handle.
#[derive(Clone)]
pub struct Layer<D> {
    shared: Arc<Shared<D>>,
}

impl<D> fmt::Debug for Layer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("prefix", &self.shared.guard.root).finish_non_exhaustive()
    }
}

pub(crate) struct Shared<D> {
    pub(crate) guard: Guard<D>,
    pub(crate) default_format: BodyFormat,
    pub(crate) max_document_size: usize,
    /// One for each database that somebody waits for.
    pub(crate) feeds: Mutex<HashMap<[u8; 16], Weak<Feed>>>,
}

impl<D: Database> Layer<D> {
    /// Opens the layer in `engine`. A store without anything under the prefix is marked with the
    /// layer's format version.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for another version, [`ErrorKind::NotOurs`] where the prefix holds something
    /// else; nothing is changed then.
    pub async fn open(engine: D, options: LayerOptions) -> Result<Self> {
        let root = options.prefix.clone();
        let key = Key::Format.under(&root);
        let anything = if root.is_empty() {
            RangeRequest::keys(Bytes::new(), Bytes::from_static(kv_api::keys::SYSTEM_BEGIN))
        } else {
            RangeRequest::prefix(&root)
        };
        let anything = anything.limit(1);
        // Opening twice is opening once: this run needs no id.
        kv_api::Runner::new(&engine)
            .run(|transaction, _| {
                let (version, first) =
                    (transaction.get(&key, Read::Serializable), transaction.get_range(&anything, Read::Serializable));
                let key = &key;
                async move {
                    let found = match (version.await?, first.await?.rows.first()) {
                        (Some(version), _) => Reader::new(&version).int()?,
                        (None, None) => {
                            let mut version = Vec::new();
                            tuple::append_u64(&mut version, FORMAT_VERSION);
                            transaction.set(key, &version);
                            return Ok(());
                        }
                        (None, Some(_)) => return Err(Error::new(ErrorKind::NotOurs)),
                    };
                    if found == FORMAT_VERSION {
                        Ok(())
                    } else {
                        Err(Error::new(ErrorKind::Format { found, expected: FORMAT_VERSION }))
                    }
                }
            })
            .await?;
        Ok(Layer {
            shared: Arc::new(Shared {
                guard: Guard { engine, root, environment: options.environment },
                default_format: options.default_format,
                max_document_size: options.max_document_size.min(HIGHEST_MAX_DOCUMENT_SIZE),
                feeds: Mutex::default(),
            }),
        })
    }

    pub(crate) fn guard(&self) -> &Guard<D> {
        &self.shared.guard
    }

    /// The store.
    pub fn engine(&self) -> &D {
        &self.shared.guard.engine
    }

    /// Creates a database.
    ///
    /// # Errors
    /// `illegal_database_name`, `database_name_too_long`; `file_exists` (412).
    pub async fn create_database(&self, name: &str, options: CreateOptions) -> Result<Documents<D>> {
        check_database_name(name)?;
        let guard = &self.shared.guard;
        let (catalog, allocator) = (Key::Catalog(name).under(&guard.root), Key::Allocator.under(&guard.root));
        let mut id = [0; 16];
        guard.environment.random(&mut id);
        let instance = Instance {
            id,
            incarnation: 0,
            format: options.format.unwrap_or(self.shared.default_format),
            revs_limit: DEFAULT_REVS_LIMIT,
            created_ms: guard.environment.now_ms(),
        };
        let number = guard
            .run(|transaction| {
                let existing = transaction.get(&catalog, Read::Serializable);
                let next = transaction.get(&allocator, Read::Serializable);
                let (catalog, allocator, root) = (&catalog, &allocator, &guard.root);
                async move {
                    if existing.await?.is_some() {
                        return Err(Error::new(ErrorKind::FileExists));
                    }
                    let number = match next.await? {
                        Some(next) => Reader::new(&next).int()?,
                        None => 0,
                    };
                    let mut row = Vec::new();
                    tuple::append_u64(&mut row, number + 1);
                    transaction.set(allocator, &row);
                    transaction.set(catalog, &Place { number, instance_id: id }.write());
                    let keys = DatabaseKeys::new(root, number);
                    transaction.set(&keys.key(DatabaseKey::Instance), &instance.write());
                    // There from the beginning, so that dropping the database wakes whoever watches it.
                    transaction.set(&keys.key(DatabaseKey::Last), Seq::ZERO.as_bytes());
                    Ok(Outcome::Write(number))
                }
            })
            .await?;
        Ok(self.documents(name, Place { number, instance_id: id }))
    }

    /// Drops a database and all it holds.
    ///
    /// # Errors
    /// 404.
    pub async fn delete_database(&self, name: &str) -> Result<()> {
        let guard = &self.shared.guard;
        let catalog = Key::Catalog(name).under(&guard.root);
        guard
            .run(|transaction| {
                let place = transaction.get(&catalog, Read::Serializable);
                let (catalog, root) = (&catalog, &guard.root);
                async move {
                    let place = place.await?.ok_or_else(|| Error::not_found(NotFound::Database))?;
                    let (begin, end) = DatabaseKeys::new(root, Place::read(&place)?.number).everything();
                    transaction.clear(catalog);
                    transaction.clear_range(&begin, &end);
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }

    /// The database of this name.
    ///
    /// # Errors
    /// 404.
    pub async fn database(&self, name: &str) -> Result<Documents<D>> {
        let key = Key::Catalog(name).under(&self.shared.guard.root);
        let place = reading::run(self.engine(), |transaction| {
            let place = transaction.get(&key, Read::Snapshot);
            async move { place.await?.ok_or_else(|| Error::not_found(NotFound::Database)) }
        })
        .await?;
        Ok(self.documents(name, Place::read(&place)?))
    }

    /// The names of the databases, in the order of their bytes.
    pub async fn database_names(&self, range: &NameRange) -> Result<Vec<String>> {
        let root = &self.shared.guard.root;
        let (begin, end) = Key::catalog_range(root);
        let key_of = |name: &String| Key::Catalog(name).under(root);
        let (low, high) = if range.descending { (&range.end, &range.start) } else { (&range.start, &range.end) };
        let low = low.as_ref().map_or(begin, key_of);
        let high = match high.as_ref() {
            Some(name) => KeySelector::first_greater_than(key_of(name)),
            None => KeySelector::first_greater_or_equal(end),
        };
        let mut request = RangeRequest::selectors(KeySelector::first_greater_or_equal(low.clone()), high);
        if request.end.key < low {
            return Ok(Vec::new());
        }
        if range.descending {
            request = request.reverse();
        }
        let wanted = range.limit.unwrap_or(usize::MAX);
        let (mut names, mut skip) = (Vec::new(), range.skip);
        // Each batch in a transaction of its own: the list may be longer than one can read.
        let mut next = Some(request);
        while let Some(request) = next.take().filter(|_| names.len() < wanted) {
            let batch = reading::run(self.engine(), |transaction| {
                let batch = transaction.get_range(&request, Read::Snapshot);
                async move { Ok(batch.await?) }
            })
            .await?;
            for row in &batch.rows {
                if skip > 0 {
                    skip -= 1;
                } else if names.len() < wanted {
                    names.push(Key::catalog_name(root, &row.key)?);
                }
            }
            next = request.after(&batch);
        }
        Ok(names)
    }

    /// Removes what is needed no longer: the ids of transactions that are long over. To be called
    /// every few minutes, by any number of processes.
    pub async fn sweep(&self) -> Result<SweepReport> {
        Ok(SweepReport { transactions_before_ms: self.shared.guard.sweep().await? })
    }

    fn documents(&self, name: &str, place: Place) -> Documents<D> {
        let keys = DatabaseKeys::new(&self.shared.guard.root, place.number);
        Documents::new(self.shared.clone(), name, keys, place.instance_id)
    }
}

/// A row of the catalog.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u64,
    instance_id: [u8; 16],
}

impl Place {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        tuple::append_u64(&mut out, self.number);
        tuple::append_bytes(&mut out, &self.instance_id);
        out
    }

    fn read(value: &[u8]) -> Result<Place> {
        let mut reader = Reader::new(value);
        let number = reader.int()?;
        let id = reader.bytes()?;
        let instance_id = id.as_ref().try_into().map_err(|_| Error::corrupt("an instance id of wrong length"))?;
        reader.end()?;
        Ok(Place { number, instance_id })
    }
}
