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
//! * A number is used only once. A database created after another of its name was dropped has other keys and
//!   another instance id.
//! * Dropping clears the catalog's row and all keys of the database in one transaction. A writer that read the instance
//!   before fails with a conflict, and its retry finds no database. So no keys are left, and there is no list of drops
//!   in progress. (Clearing a large range is cheap on every engine.)
//! * Transaction ids guard both. After an unknown commit result, a retry of its own creation does not fail with
//!   "exists", nor a retry of its own drop with "does not exist".

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction, TransactionOption};

use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::events;
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::layer::Layer;
use crate::limits::{DEFAULT_REVS_LIMIT, check_database_name, is_system_database};
use crate::read::reading;
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::body::BodyFormat;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{Access, DatabaseState, Indexes, Instance, Validation};
use crate::rows::row::Reader;
use crate::rows::tuple;
use crate::write::policy::ConflictPolicy;
use crate::write::txids::Outcome;

/// Options of a new database.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// Layout of bodies; `None` for the layer's default.
    pub format: Option<BodyFormat>,
    /// The conflict policy of the database, which cannot be changed later.
    pub conflicts: ConflictPolicy,
    /// The replaced revisions whose bodies it keeps; `None` keeps none.
    /// [`set_keep_replaced`](Documents::set_keep_replaced) changes it.
    pub keep_replaced: Option<KeepReplaced>,
    /// Whether the database is partitioned: the id of each document is `PARTITION:REST`, and views and indexes keep the
    /// rows of each partition together. It cannot be changed later.
    pub partitioned: bool,
}

/// The database names to list.
#[derive(Clone, Debug, Default)]
pub struct NameRange {
    /// The first name, inclusive; with `descending` the highest.
    pub start: Option<String>,
    /// The last name, inclusive; with `descending` the lowest.
    pub end: Option<String>,
    /// Leaves out the name that is `end`.
    pub exclusive_end: bool,
    /// In descending order.
    pub descending: bool,
    /// Maximum number of names.
    pub limit: Option<usize>,
    /// Number of names to skip first.
    pub skip: usize,
}

impl<D: Database> Layer<D> {
    /// Creates a database.
    ///
    /// # Errors
    /// `illegal_database_name`, `database_name_too_long`; `bad_request` for a system database that is to be
    /// partitioned; `file_exists` (412).
    pub async fn create_database(&self, name: &str, options: CreateOptions) -> Result<Documents<D>> {
        self.create(name, options, 0, DatabaseState::Open).await
    }

    /// Creates a database in this state: open or arriving.
    pub(crate) async fn create(
        &self,
        name: &str,
        options: CreateOptions,
        incarnation: u8,
        state: DatabaseState,
    ) -> Result<Documents<D>> {
        check_database_name(name)?;
        options.keep_replaced.map_or(Ok(()), |keep| keep.check_for(name))?;
        if options.partitioned && is_system_database(name) {
            return Err(Error::bad_request("Cannot partition a system database"));
        }
        let guard = &self.shared.guard;
        let (catalog, allocator) = (Key::Catalog(name).under(&guard.root), Key::Allocator.under(&guard.root));
        let mut id = [0; 16];
        guard.environment.random(&mut id);
        let instance = Instance {
            id,
            incarnation,
            format: options.format.unwrap_or(self.shared.default_format),
            rewrites: false,
            revs_limit: DEFAULT_REVS_LIMIT,
            created_ms: guard.environment.now_ms(),
            policy: options.conflicts,
            partitioned: options.partitioned,
            indexes: Indexes::default(),
            validation: Validation::default(),
            keep: options.keep_replaced,
            collections: 0,
            state,
        };
        let number = guard
            .run(|transaction| {
                let existing = transaction.get(&catalog, Read::Serializable);
                let next = transaction.get(&allocator, Read::Serializable);
                let (catalog, allocator, root, instance) = (&catalog, &allocator, &guard.root, &instance);
                let shared = &self.shared;
                async move {
                    if existing.await?.is_some() {
                        return Err(Error::new(ErrorKind::FileExists));
                    }
                    let number = allocate(&transaction, allocator, next.await?.as_deref())?;
                    shared.plan_forgetting(&transaction, name, None, instance.keep).await?;
                    transaction.set(catalog, CatalogRow::new(number, instance).write());
                    set_new(&transaction, &DatabaseKeys::new(root, number), instance);
                    if instance.state == DatabaseState::Open {
                        events::created(&transaction, root, name);
                    }
                    Ok(Outcome::Write(number))
                }
            })
            .await?;
        let access = if instance.state == DatabaseState::Open { Access::Living } else { Access::Restoring };
        Ok(self.documents(name, &CatalogRow::new(number, &instance), access))
    }

    /// Drops a database with all its rows. If the database moved to another store, drops its remains and the marker
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
                        if let DatabaseState::Closing { .. } = instance.state {
                            return Err(ErrorKind::Moving.into());
                        }
                        shared.plan_build(&transaction, name, &instance.indexes, &Indexes::default()).await?;
                        shared.plan_rewrite(&transaction, name, instance.rewrites, None).await?;
                        shared.plan_forgetting(&transaction, name, instance.keep, None).await?;
                    }
                    let (begin, end) = keys.everything();
                    transaction.clear(catalog);
                    transaction.clear_range(&begin, &end);
                    events::dropped(&transaction, root, name).await?;
                    transaction.set_option(TransactionOption::BypassStorageQuota);
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

    /// The remains of a database that moved to another store, in their state at the move, for reading and checking.
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
        // In either direction, the end is the last name.
        if range.exclusive_end && names.last() == range.end.as_ref() {
            names.pop();
        }
        Ok(names)
    }

    pub(crate) fn documents(&self, name: &str, place: &CatalogRow, access: Access) -> Documents<D> {
        let keys = DatabaseKeys::new(&self.shared.guard.root, place.number);
        Documents::new(self.shared.clone(), name, keys, place, access)
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
    transaction.set(keys.key(DatabaseKey::Last), Seq::beginning_of(instance.incarnation).as_bytes());
}
