//! The handle of a database. All operations on documents are its methods.
//!
//! Each operation has a file of its own. This file has what they share: the keys, and the instance row that every
//! transaction reads in its first round trip. A handle may outlive its database. It then returns 404, and never reaches
//! another database of the same name.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kv_api::{Database, Read, Tag, Transaction, TransactionOption};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::error::{Error, NotFound, Result};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::layer::{Layer, LayerState};
use crate::limits::{DEFAULT_REVS_LIMIT, check_document_id, check_partitioned_id, require_partition};
use crate::rows::body::BodyFormat;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{Access, Instance};
use crate::write::validation::{Designs, Validating, Validator, Writing};

/// A handle of one database. Cheap to clone.
#[derive(Clone)]
pub struct Documents<D> {
    pub(crate) shared: Arc<LayerState<D>>,
    pub(crate) home: Arc<Home>,
    /// The validator of its edits, used if design documents validate them.
    pub(crate) validating: Validating,
    /// The size in bytes from which on edits are refused; see [`quota`](crate::write::quota).
    pub(crate) quota: Option<u64>,
}

impl<D> fmt::Debug for Documents<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("name", &self.home.name).finish_non_exhaustive()
    }
}

/// The identity and the keys of a database.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) name: String,
    pub(crate) keys: DatabaseKeys,
    pub(crate) instance_id: [u8; 16],
    pub(crate) partitioned: bool,
    pub(crate) access: Access,
    instance_key: Vec<u8>,
    /// The tag of its transactions.
    tag: Tag,
    /// Whether bodies were packed when the instance was last read. A guess, for work that is done before reading it.
    packed: AtomicBool,
    /// Maximum number of revisions of a branch when the instance was last read. Also a guess.
    revs_limit: AtomicU32,
    /// Whether design documents validated edits when the instance was last read. Also a guess.
    validates: AtomicBool,
    /// The design documents that validate edits, as last read.
    pub(crate) designs: Mutex<Option<Designs>>,
    /// When a quota last asked for the size, in milliseconds, and the estimated bytes of all rows then.
    pub(crate) stored: Mutex<Option<(u64, u64)>>,
}

impl<D: Database> Documents<D> {
    pub(crate) fn new(
        shared: Arc<LayerState<D>>,
        name: &str,
        keys: DatabaseKeys,
        place: &CatalogRow,
        access: Access,
    ) -> Self {
        let instance_key = keys.key(DatabaseKey::Instance);
        let packed = AtomicBool::new(shared.default_format == BodyFormat::Packed);
        Documents {
            shared,
            home: Arc::new(Home {
                name: name.to_owned(),
                keys,
                instance_id: place.instance_id,
                partitioned: place.partitioned,
                access,
                instance_key,
                tag: tag_of(name),
                packed,
                revs_limit: AtomicU32::new(DEFAULT_REVS_LIMIT),
                validates: AtomicBool::new(false),
                designs: Mutex::default(),
                stored: Mutex::default(),
            }),
            validating: Validating::default(),
            quota: None,
        }
    }

    /// The same database for work in the background; see [`Layer::in_background`].
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.shared = Layer::of(self.shared).in_background().shared;
        self
    }

    /// The same database. If its design documents have `validate_doc_update`, this validator is called for edits.
    #[must_use]
    pub fn validated_by(mut self, validator: Arc<dyn Validator>) -> Self {
        self.validating = Validating::By(validator);
        self
    }

    /// The same database, with edits that no function validates: for programs that write on their own behalf, or
    /// repair.
    #[must_use]
    pub fn unvalidated(mut self) -> Self {
        self.validating = Validating::Waived;
        self
    }

    /// Asks the validator whether the writer may do this. Every write does this itself; a program calls it before it
    /// reads a request that would be refused.
    ///
    /// # Errors
    /// Those of [`Validator::authorize`].
    pub async fn authorize(&self, writing: Writing<'_>) -> Result<()> {
        match &self.validating {
            Validating::By(validator) => match validator.authorize(writing) {
                Some(verdict) => verdict.await,
                None => Ok(()),
            },
            Validating::Impossible | Validating::Waived => Ok(()),
        }
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.home.name
    }

    /// The id that distinguishes the database from earlier and later ones with its name.
    pub fn instance_id(&self) -> [u8; 16] {
        self.home.instance_id
    }

    /// Whether the database is partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.home.partitioned
    }

    /// Checks that documents of this database may have these ids. Costs a read only if one may not, and the database is
    /// partitioned.
    ///
    /// # Errors
    /// `illegal_docid` and `illegal_partition` with CouchDB's reason for the first one; 404 if the database is gone.
    pub async fn check_ids(&self, ids: &[&str]) -> Result<()> {
        let checked = ids.iter().try_for_each(|id| self.check_id(id));
        self.certain(checked).await
    }

    /// The same for one id, with the knowledge of this handle, whose database may be gone.
    pub(crate) fn check_id(&self, id: &str) -> Result<()> {
        check_document_id(id)?;
        if self.home.partitioned { check_partitioned_id(id) } else { Ok(()) }
    }

    /// Checks an id of a document to read.
    pub(crate) async fn check_id_to_read(&self, id: &str) -> Result<()> {
        check_document_id(id)?;
        self.check_partitions(&[id]).await
    }

    /// Checks that these ids, of documents to read or to purge, name partitions if the database is partitioned. Its
    /// documents have no other ids.
    ///
    /// # Errors
    /// `illegal_docid`; 404 if the database is gone.
    pub async fn check_partitions(&self, ids: &[&str]) -> Result<()> {
        if !self.home.partitioned {
            return Ok(());
        }
        // Boxed, so that reads in other databases do not grow.
        Box::pin(self.certain(ids.iter().try_for_each(|id| require_partition(id)))).await
    }

    /// A refusal based on this handle's knowledge, unless its database is gone: another database of its name may not be
    /// partitioned.
    pub(crate) async fn certain<T>(&self, checked: Result<T>) -> Result<T> {
        if checked.is_err() && self.home.partitioned {
            self.is_partitioned_now().await?;
        }
        checked
    }

    /// Maximum size of a document's body, in bytes of compact JSON.
    pub fn max_document_size(&self) -> usize {
        usize::try_from(self.shared.limits.document.get()).unwrap_or(usize::MAX)
    }

    /// Maximum size of an attachment, in bytes as received.
    pub fn max_attachment_size(&self) -> u64 {
        self.shared.limits.attachment.get()
    }

    /// Its layer.
    pub fn layer(&self) -> Layer<D> {
        Layer::of(self.shared.clone())
    }

    /// Whether it belongs to this layer, or to the same one for work in the background.
    pub(crate) fn is_of(&self, layer: &Layer<D>) -> bool {
        Arc::ptr_eq(&layer.guard().format, &self.shared.guard.format)
    }

    pub(crate) fn keys(&self) -> &DatabaseKeys {
        &self.home.keys
    }

    pub(crate) fn engine(&self) -> &D {
        &self.shared.guard.engine
    }

    /// The layout of bodies when the instance was last read.
    pub(crate) fn format_seen(&self) -> BodyFormat {
        if self.home.packed.load(Ordering::Relaxed) { BodyFormat::Packed } else { BodyFormat::Exploded }
    }

    /// Maximum number of revisions of a branch when the instance was last read.
    pub(crate) fn revs_limit_seen(&self) -> usize {
        self.home.revs_limit.load(Ordering::Relaxed) as usize
    }

    /// Whether design documents validated edits when the instance was last read.
    pub(crate) fn validates_seen(&self) -> bool {
        self.home.validates.load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, instance: &Instance) {
        self.home.packed.store(instance.format == BodyFormat::Packed, Ordering::Relaxed);
        self.home.revs_limit.store(instance.revs_limit, Ordering::Relaxed);
        self.home.validates.store(!instance.validation.designs.is_empty(), Ordering::Relaxed);
    }

    /// Reads the instance row, and sets the database's tag: every transaction of a database begins here. The call issues
    /// the read, which is serializable if the transaction writes. Fails with 404 if the database is gone, and with the
    /// errors of [`Instance::admit`] during a relocation.
    pub(crate) fn instance(
        &self,
        transaction: &D::Transaction,
        read: Read,
    ) -> impl Future<Output = Result<Instance>> + Send + use<D> {
        transaction.set_option(TransactionOption::Tag(self.home.tag));
        let row = transaction.get(&self.home.instance_key, read);
        let known = self.shared.guard.format.check_known();
        let (id, access) = (self.home.instance_id, self.home.access);
        async move {
            known?;
            let row = row.await?.ok_or_else(|| Error::not_found(NotFound::Database))?;
            Instance::read(&row)?.admit(id, access, read)
        }
    }

    /// Runs a transaction that only reads; see [`reading::run`](crate::read::reading::run).
    pub(crate) async fn read<T, F, Fut>(&self, body: F) -> Result<T>
    where
        F: FnMut(D::Transaction) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        crate::read::reading::run(self.engine(), body).await
    }
    /// Runs a transaction that reads a batch; see [`reading::run_batch`](crate::read::reading::run_batch).
    pub(crate) async fn read_batch<T, F, Fut>(&self, most: usize, body: F) -> Result<T>
    where
        F: FnMut(D::Transaction, usize) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        crate::read::reading::run_batch(self.engine(), most, body).await
    }
}

/// The tag of a database's transactions: its name if that is short enough, else seven bytes of the name, `~`, and the
/// first eight hexadecimal digits of the name's SHA-256.
fn tag_of(name: &str) -> Tag {
    let shortened = || {
        let begin = &name[..name.floor_char_boundary(7)];
        let hash = crate::hex(&Sha256::digest(name)[..4]);
        Tag::new(&format!("{begin}~{hash}"))
    };
    Tag::new(name).or_else(shortened).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_database_is_known_from_its_name() {
        // printf %s userdb-6a6f686e2d646f65 | sha256sum
        for (name, tag) in [
            ("notes", "notes"),
            ("exactly-16-bytes", "exactly-16-bytes"),
            ("userdb-6a6f686e2d646f65", "userdb-~b5e104ea"),
            ("äöüäöüäöüäöü", "äöü~5f25ecbe"),
        ] {
            assert_eq!(tag_of(name).as_str(), tag);
        }
    }
}
