//! A quota of stored bytes for the edits of a handle.
//!
//! An edit does not know the size of its database: a row with it would be in every transaction, and each edit would
//! change it. So a handle with a quota asks the store for its estimate, at most once in [`AGE_MS`], before it writes. A
//! database may therefore exceed its quota by the data written in that time.

use kv_api::{Database, Read, Transaction};

use crate::documents::Documents;
use crate::error::{ErrorKind, Result};
use crate::write::edit::{Edit, WriteMode};

/// Age of an estimate, in milliseconds, after which it is read again.
const AGE_MS: u64 = 1_000;

/// Size of a tombstone's body up to which its edit counts as a deletion that gives space back.
const SMALL_TOMBSTONE: usize = 1_024;

/// Whether an edit is a deletion that gives space back, as far as the edit shows.
pub(crate) fn gives_back(edit: &Edit) -> bool {
    edit.deleted && edit.body.as_str().len() <= SMALL_TOMBSTONE && edit.attachments.is_empty()
}

/// The multiple of the quota from which on an edit is refused; `None` if never. A deletion that names its leaf
/// gives space back. A replicated tombstone may be of a document that was never here.
fn times_for(edit: &Edit, mode: WriteMode) -> Option<u64> {
    match (gives_back(edit), mode) {
        (true, WriteMode::Interactive) if edit.rev.is_some() => None,
        (true, WriteMode::Replicated) => Some(2),
        _ => Some(1),
    }
}

impl<D: Database> Documents<D> {
    /// The same database, which accepts only deletions and purges while its rows have this many bytes or more
    /// ([`Sizes::active`](crate::Sizes::active)). Replicated deletions, and local documents, in which replications keep
    /// their checkpoints, are refused from twice as many bytes. `None` means no quota.
    ///
    /// The refusal is [`ErrorKind::QuotaExceeded`]. The size is read at most once a second.
    #[must_use]
    pub fn limited_to(mut self, bytes: Option<u64>) -> Self {
        self.quota = bytes;
        self
    }

    /// Refuses an edit that is not a deletion while the quota is used up.
    ///
    /// # Errors
    /// [`ErrorKind::QuotaExceeded`]; 404 if the database is gone; the store's errors.
    pub async fn require_quota(&self) -> Result<()> {
        self.require(1).await
    }

    /// Refuses a local document that may not be written now.
    pub(crate) async fn require_quota_of_local(&self) -> Result<()> {
        self.require(2).await
    }

    async fn require(&self, times: u64) -> Result<()> {
        self.over(times).await?.map_or(Ok(()), |full| Err(full.into()))
    }

    /// The refusal of a write that needs space, if the database has this many times its quota.
    async fn over(&self, times: u64) -> Result<Option<ErrorKind>> {
        let Some(quota) = self.quota else { return Ok(None) };
        let stored = Box::pin(self.stored_bytes()).await?;
        let is_over = stored >= quota.saturating_mul(times);
        Ok(is_over.then(|| ErrorKind::QuotaExceeded { quota, stored }))
    }

    /// The refusal of an edit that may not be written now.
    pub(crate) async fn refused_by_quota(&self, edit: &Edit, mode: WriteMode) -> Result<Option<ErrorKind>> {
        match times_for(edit, mode) {
            Some(times) => self.over(times).await,
            None => Ok(None),
        }
    }

    /// The estimated bytes of all rows, at most [`AGE_MS`] old.
    async fn stored_bytes(&self) -> Result<u64> {
        let now = self.shared.guard.environment.now_ms();
        if let Some((at, bytes)) = *self.home.stored.lock()
            && now.abs_diff(at) < AGE_MS
        {
            return Ok(bytes);
        }
        let (begin, end) = self.keys().everything();
        let bytes = self
            .read(|transaction| {
                let instance = self.instance(&transaction, Read::Snapshot);
                let size = transaction.get_estimated_range_size(&begin, &end);
                async move {
                    instance.await?;
                    Ok(size.await?)
                }
            })
            .await?;
        *self.home.stored.lock() = Some((now, bytes));
        Ok(bytes)
    }
}
