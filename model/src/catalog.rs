//! The databases in a store: creates, finds, lists and drops them.
//!
//! ```text
//!  (1, Name)   = (Number, InstanceId)      the database's number
//!              = (Number, InstanceId, To)  the store it moved to, and the number of its remains
//!  (2)         = next number
//!  (4, Number) …                           the database's own keys
//! ```
//!
//! Invariants:
//! * A number is used only once. A database that is created after another of its name was dropped has other keys and
//!   another instance id.
//! * Dropping clears the catalog's row and all keys of the database in one transaction. A writer that read the instance
//!   before fails with a conflict, and its retry finds no database. So no keys are left, and there is no list of drops
//!   in progress. (Clearing a large range is cheap on every engine.)
//! * Transaction ids guard both. After an unknown commit result, a retry of its own creation does not fail with
//!   "exists", nor a retry of its own drop with "does not exist".

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use jobs::Jobs;
use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction};
use parking_lot::Mutex;

use crate::body::BodyFormat;
use crate::documents::Documents;
use crate::environment::{Environment, SystemEnvironment};
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::events;
use crate::feed::Feed;
use crate::indexes::Definitions;
use crate::instance::{self, Access, Indexes, Instance, State, Validation};
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::limits::{DEFAULT_MAX_DOCUMENT_SIZE, DEFAULT_REVS_LIMIT, HIGHEST_MAX_DOCUMENT_SIZE, check_database_name};
use crate::policy::ConflictPolicy;
use crate::reading;
use crate::row::Reader;
use crate::seq::Seq;
use crate::tuple;
use crate::txids::{Guard, Outcome};

/// The version of the layer's keys that this program reads and writes.
pub const FORMAT_VERSION: u64 = 1;

/// Options of a layer.
#[derive(Clone, Debug)]
pub struct LayerOptions {
    /// Prefix of all keys of the layer. No other keys in the store may have it. Empty by default.
    pub prefix: Bytes,
    /// Source of time and randomness.
    pub environment: Arc<dyn Environment>,
    /// Layout of bodies in new databases, unless [`CreateOptions`] says otherwise.
    pub default_format: BodyFormat,
    /// Maximum size of a document's body, in bytes of compact JSON. Capped at [`HIGHEST_MAX_DOCUMENT_SIZE`].
    pub max_document_size: usize,
    /// Maximum size of an attachment, in bytes as received. Unlimited by default, as in CouchDB.
    pub max_attachment_size: u64,
    /// Maximum number of threads that work on one bulk write, including the caller's. 1 by default: the layer starts no
    /// threads unless told to.
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

/// Options of a new database.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Layout of bodies; `None` for the layer's default.
    pub format: Option<BodyFormat>,
    /// The conflict policy of the database, which cannot be changed later.
    pub conflicts: ConflictPolicy,
}

/// The database names to list.
#[derive(Clone, Debug, Default)]
pub struct NameRange {
    /// The first name, inclusive; with `descending` the highest.
    pub start: Option<String>,
    /// The last name, inclusive; with `descending` the lowest.
    pub end: Option<String>,
    /// In descending order.
    pub descending: bool,
    /// Maximum number of names.
    pub limit: Option<usize>,
    /// Number of names to skip first.
    pub skip: usize,
}

/// A handle of all databases in one key-value store. Cheap to clone.
#[derive(Clone)]
pub struct Layer<D> {
    shared: Arc<LayerState<D>>,
}

impl<D> fmt::Debug for Layer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("prefix", &self.shared.guard.root).finish_non_exhaustive()
    }
}

pub(crate) struct LayerState<D> {
    pub(crate) guard: Guard<D>,
    pub(crate) default_format: BodyFormat,
    pub(crate) max_document_size: usize,
    pub(crate) max_attachment_size: u64,
    pub(crate) threads: usize,
    /// The feeds that clients wait for, by database.
    pub(crate) feeds: Mutex<HashMap<Bytes, Weak<Feed>>>,
    pub(crate) indexes: Definitions,
}

impl<D: Database> Layer<D> {
    /// Opens the layer in `engine`. If the store has nothing under the prefix, this writes the layer's format version.
    ///
    /// # Errors
    /// [`ErrorKind::Format`] for another version; [`ErrorKind::NotOurs`] if the prefix has other keys. Nothing is
    /// changed then.
    pub async fn open(engine: D, options: LayerOptions) -> Result<Self> {
        let root = options.prefix.clone();
        let key = Key::Format.under(&root);
        let anything = if root.is_empty() {
            RangeRequest::keys(Bytes::new(), Bytes::from_static(kv_api::keys::SYSTEM_BEGIN))
        } else {
            RangeRequest::prefix(&root)
        };
        let anything = anything.limit(1);
        // Opening twice has the same effect as opening once, so this needs no transaction id.
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
            shared: Arc::new(LayerState {
                guard: Guard::new(engine, root, options.environment),
                default_format: options.default_format,
                max_document_size: options.max_document_size.min(HIGHEST_MAX_DOCUMENT_SIZE),
                max_attachment_size: options.max_attachment_size,
                threads: options.threads,
                feeds: Mutex::default(),
                indexes: Definitions::default(),
            }),
        })
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

    /// The registry of jobs: the long work in the background of this store.
    pub fn jobs(&self) -> Jobs<D> {
        let guard = &self.shared.guard;
        Jobs::new(guard.engine.clone(), self.shared.registry())
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
            rewrites: false,
            revs_limit: DEFAULT_REVS_LIMIT,
            created_ms: guard.environment.now_ms(),
            policy: options.conflicts,
            indexes: Indexes::default(),
            validation: Validation::default(),
            state: State::Open,
        };
        let number = guard
            .run(|transaction| {
                let existing = transaction.get(&catalog, Read::Serializable);
                let next = transaction.get(&allocator, Read::Serializable);
                let (catalog, allocator, root, instance) = (&catalog, &allocator, &guard.root, &instance);
                async move {
                    if existing.await?.is_some() {
                        return Err(Error::new(ErrorKind::FileExists));
                    }
                    let number = allocate(&transaction, allocator, next.await?.as_deref())?;
                    transaction.set(catalog, CatalogRow::new(number, id).write());
                    set_new(&transaction, &DatabaseKeys::new(root, number), instance);
                    events::created(&transaction, root, name);
                    Ok(Outcome::Write(number))
                }
            })
            .await?;
        Ok(self.documents(name, &CatalogRow::new(number, id), Access::Living))
    }

    /// Drops a database with all its rows. Of a database that moved to another store, drops the remains and the marker
    /// that names that store.
    ///
    /// # Errors
    /// 404; [`ErrorKind::Moving`] in the last step of a relocation.
    pub async fn delete_database(&self, name: &str) -> Result<()> {
        let guard = &self.shared.guard;
        let catalog = Key::Catalog(name).under(&guard.root);
        guard
            .run(|transaction| {
                let place = transaction.get(&catalog, Read::Serializable);
                let (catalog, root, shared) = (&catalog, &guard.root, &self.shared);
                async move {
                    let place = place.await?.ok_or_else(|| Error::not_found(NotFound::Database))?;
                    let keys = DatabaseKeys::new(root, CatalogRow::read(&place)?.number);
                    let instance = transaction.get(&keys.key(DatabaseKey::Instance), Read::Serializable).await?;
                    if let Some(row) = instance {
                        let instance = Instance::read(&row)?;
                        if let State::Closing { .. } = instance.state {
                            return Err(ErrorKind::Moving.into());
                        }
                        shared.plan_build(&transaction, name, &instance.indexes, &Indexes::default()).await?;
                        shared.plan_rewrite(&transaction, name, instance.rewrites, None).await?;
                    }
                    let (begin, end) = keys.everything();
                    transaction.clear(catalog);
                    transaction.clear_range(&begin, &end);
                    events::dropped(&transaction, root, name);
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }

    /// The database with this name.
    ///
    /// # Errors
    /// 404; [`ErrorKind::Moved`] if it moved to another store.
    pub async fn database(&self, name: &str) -> Result<Documents<D>> {
        let place = self.place(name).await?;
        match &place.moved_to {
            None => Ok(self.documents(name, &place, Access::Living)),
            Some(to) => Err(ErrorKind::Moved(to.clone()).into()),
        }
    }

    /// The remains of a database that moved to another store, as they were at the move, for reading and checking.
    /// `None` for a database that is in this store.
    ///
    /// # Errors
    /// 404.
    pub async fn remains(&self, name: &str) -> Result<Option<Documents<D>>> {
        let place = self.place(name).await?;
        Ok(place.moved_to.is_some().then(|| self.documents(name, &place, Access::Remains)))
    }

    /// The catalog row of the database with this name.
    pub(crate) async fn place(&self, name: &str) -> Result<CatalogRow> {
        let key = Key::Catalog(name).under(&self.shared.guard.root);
        let place = reading::run(self.engine(), |transaction| {
            let place = transaction.get(&key, Read::Snapshot);
            async move { place.await?.ok_or_else(|| Error::not_found(NotFound::Database)) }
        })
        .await?;
        CatalogRow::read(&place)
    }

    /// The names of the databases, in byte order.
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
        // Each batch is read in its own transaction: the list may be too long for one.
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

    pub(crate) fn documents(&self, name: &str, place: &CatalogRow, access: Access) -> Documents<D> {
        let keys = DatabaseKeys::new(&self.shared.guard.root, place.number);
        Documents::new(self.shared.clone(), name, keys, place.instance_id, access)
    }
}

/// Takes the number in `next`, the allocator's row, and increments the row.
pub(crate) fn allocate<T: Transaction>(transaction: &T, allocator: &[u8], next: Option<&[u8]>) -> Result<u64> {
    let number = next.map_or(Ok(0), |next| Reader::new(next).int())?;
    let mut row = Vec::new();
    tuple::append_u64(&mut row, number + 1);
    transaction.set(allocator, &row);
    Ok(number)
}

/// Writes the rows of a new database.
pub(crate) fn set_new<T: Transaction>(transaction: &T, keys: &DatabaseKeys, instance: &Instance) {
    transaction.set(keys.key(DatabaseKey::Instance), instance.write());
    // This row exists from the start, so dropping the database wakes those who watch it.
    transaction.set(keys.key(DatabaseKey::Last), Seq::ZERO.as_bytes());
}

/// A row of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatalogRow {
    pub(crate) number: u64,
    pub(crate) instance_id: [u8; 16],
    /// The store that the database moved to, if it did.
    pub(crate) moved_to: Option<String>,
}

impl CatalogRow {
    pub(crate) fn new(number: u64, instance_id: [u8; 16]) -> CatalogRow {
        CatalogRow { number, instance_id, moved_to: None }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        tuple::append_u64(&mut out, self.number);
        tuple::append_bytes(&mut out, &self.instance_id);
        if let Some(to) = &self.moved_to {
            tuple::append_str(&mut out, to);
        }
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<CatalogRow> {
        let mut reader = Reader::new(value);
        let number = reader.int()?;
        let instance_id = instance::read_id(&mut reader)?;
        let moved_to = if reader.rest().is_empty() { None } else { Some(reader.str()?.into_owned()) };
        reader.end()?;
        Ok(CatalogRow { number, instance_id, moved_to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let place = CatalogRow::new(300, [0; 16]);
        assert_eq!(CatalogRow::read(&place.write()).unwrap(), place);
        // A name with a NUL that is cut within the escape is a valid shorter name.
        let odd = CatalogRow { moved_to: Some("lsm:/x\0y".to_owned()), ..place.clone() };
        assert_eq!(CatalogRow::read(&odd.write()).unwrap(), odd);
        let moved = CatalogRow { moved_to: Some("lsm:/x y".to_owned()), ..place.clone() };
        let row = moved.write();
        assert_eq!(CatalogRow::read(&row).unwrap(), moved);
        for cut in (0..row.len()).filter(|&cut| cut != place.write().len()) {
            assert!(CatalogRow::read(&row[..cut]).is_err(), "cut at {cut}");
        }
    }
}
