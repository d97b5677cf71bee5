//! A database: the handle that all its operations hang on.
//!
//! Each operation is in a file of its own; here is what they share: the keys, and the instance that
//! every transaction reads in its first round trip. A handle outlives its database; it then answers 404
//! and never reaches a successor of the same name.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kv_api::{Database, Read, Transaction};

use crate::body::BodyFormat;
use crate::catalog::Shared;
use crate::error::{Error, NotFound, Result};
use crate::instance::{Access, Instance};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::limits::DEFAULT_REVS_LIMIT;

/// One database. A cheap handle.
#[derive(Clone)]
pub struct Documents<D> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) home: Arc<Home>,
}

impl<D> fmt::Debug for Documents<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("name", &self.home.name).finish_non_exhaustive()
    }
}

/// Where a database is.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) name: String,
    pub(crate) keys: DatabaseKeys,
    pub(crate) instance_id: [u8; 16],
    pub(crate) access: Access,
    instance_key: Vec<u8>,
    /// Whether bodies were packed when last seen: a guess, for what is done before the instance is read.
    packed: AtomicBool,
    /// How many revisions a branch remembered when that was last seen: another guess.
    revs_limit: AtomicU32,
}

impl<D: Database> Documents<D> {
    pub(crate) fn new(
        shared: Arc<Shared<D>>,
        name: &str,
        keys: DatabaseKeys,
        instance_id: [u8; 16],
        access: Access,
    ) -> Self {
        let instance_key = keys.key(DatabaseKey::Instance);
        Documents {
            shared,
            home: Arc::new(Home {
                name: name.to_owned(),
                keys,
                instance_id,
                access,
                instance_key,
                packed: AtomicBool::new(false),
                revs_limit: AtomicU32::new(DEFAULT_REVS_LIMIT),
            }),
        }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.home.name
    }

    /// What tells the database from others of the same name, before or after it.
    pub fn instance_id(&self) -> [u8; 16] {
        self.home.instance_id
    }

    /// The largest body a document may have here, in bytes of compact JSON.
    pub fn max_document_size(&self) -> usize {
        self.shared.max_document_size
    }

    /// The largest attachment that is taken here, in bytes as they arrive.
    pub fn max_attachment_size(&self) -> u64 {
        self.shared.max_attachment_size
    }

    pub(crate) fn keys(&self) -> &DatabaseKeys {
        &self.home.keys
    }

    pub(crate) fn engine(&self) -> &D {
        &self.shared.guard.engine
    }

    /// How bodies were laid out when that was last seen.
    pub(crate) fn format_seen(&self) -> BodyFormat {
        if self.home.packed.load(Ordering::Relaxed) { BodyFormat::Packed } else { BodyFormat::Exploded }
    }

    /// How many revisions a branch remembered when that was last seen.
    pub(crate) fn revs_limit_seen(&self) -> usize {
        self.home.revs_limit.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn saw(&self, instance: &Instance) {
        self.home.packed.store(instance.format == BodyFormat::Packed, Ordering::Relaxed);
        self.home.revs_limit.store(instance.revs_limit, Ordering::Relaxed);
    }

    /// Reads the instance; the read is issued by the call, serializable if the transaction writes. 404
    /// where the database is gone, and [`Instance::admit`]'s errors where it is on its way elsewhere.
    pub(crate) fn instance(
        &self,
        transaction: &D::Transaction,
        read: Read,
    ) -> impl Future<Output = Result<Instance>> + Send + use<D> {
        let row = transaction.get(&self.home.instance_key, read);
        let (id, access) = (self.home.instance_id, self.home.access);
        async move {
            let row = row.await?.ok_or_else(|| Error::not_found(NotFound::Database))?;
            Instance::read(&row)?.admit(id, access, read)
        }
    }

    /// Runs a transaction that only reads; see [`reading::run`](crate::reading::run).
    pub(crate) async fn read<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnMut(D::Transaction) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        crate::reading::run(self.engine(), body).await
    }
    /// Runs a transaction that reads a batch; see [`reading::run_batch`](crate::reading::run_batch).
    pub(crate) async fn read_batch<T, F, Fut>(&self, most: usize, body: F) -> Result<T>
    where
        F: FnMut(D::Transaction, usize) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        crate::reading::run_batch(self.engine(), most, body).await
    }
}
