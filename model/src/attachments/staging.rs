//! Staged uploads: parts that no content names yet.
//!
//! ```text
//!  transaction 1   (7, Deadline, Number, Store)  set          (10, Store, 0…21)
//!  transaction 2   read, cleared, set with a later deadline   (10, Store, 22…43)
//!  …
//!  the edit        read, cleared                              (9, Sha256, Length) = Store …
//!     or, when it was dropped, or after the deadline
//!  a sweep         read, cleared                              (10, Store, …) cleared
//! ```
//!
//! Each step reads the upload's row with a conflict range and clears it. So either an edit takes an upload over or
//! a sweep removes it, whichever is first. The clocks of processes that share a store must differ by far less than
//! an upload's deadline.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Database, Read, Runner, Transaction};

use super::StoreId;
use super::abandoned::Abandoned;
use super::address::part_bytes;
use super::sweep::clear_staged;
use crate::admin::environment::Environment;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::write::txids::{Guard, Outcome};
use crate::write::unguarded::Unguarded;

/// Time for which an upload is kept after its last bytes, in milliseconds: a day. The first part of a multipart
/// body waits that long for the last one, which may be large and slow.
const KEPT_FOR_MS: u64 = 86_400_000;

/// Number of parts that one transaction writes: a fifth of its limit.
const PARTS_AT_ONCE: usize = 22;

/// Writes the parts of one upload.
pub(super) struct Stager<D> {
    documents: Documents<D>,
    pub(super) store: StoreId,
    pub(super) part_bytes: usize,
    /// Number of parts written.
    parts: u64,
    /// The written parts.
    pub(super) staged: Option<Staged>,
}

/// An upload in the store. Once it is dropped, its parts are removed, unless an edit has taken them over.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) store: StoreId,
    /// Swept after this time if the process ends.
    pub(super) deadline_ms: u64,
    /// The key of its row.
    key: Vec<u8>,
    abandoned: Arc<Abandoned>,
}

impl PartialEq for Staged {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Staged {}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.key.is_empty() {
            self.abandoned.push(std::mem::take(&mut self.key));
        }
    }
}

impl<D: Database> Stager<D> {
    pub(super) fn new(documents: &Documents<D>) -> Self {
        let store = new_store(documents.shared.guard.environment.as_ref());
        let part_bytes = part_bytes(documents.engine().limits().value_bytes);
        Stager { documents: documents.clone(), store, part_bytes, parts: 0, staged: None }
    }

    /// Number of bytes that fill a transaction.
    pub(super) fn bytes_at_once(&self) -> usize {
        PARTS_AT_ONCE * self.part_bytes
    }

    /// Appends bytes to those written: whole parts, except at the end.
    ///
    /// # Errors
    /// 404 if the database is gone, 503 if the upload took too long, the store's errors.
    pub(super) async fn write(&mut self, bytes: &Bytes) -> Result<()> {
        let guard = &self.documents.shared.guard;
        if self.staged.is_none() {
            // A writer that may leave an upload behind also sweeps old ones.
            guard.sweep(guard.environment.now_ms()).await;
        }
        let at_once = self.bytes_at_once();
        for begin in (0..bytes.len()).step_by(at_once) {
            self.write_some(bytes.slice(begin..bytes.len().min(begin + at_once))).await?;
        }
        Ok(())
    }

    async fn write_some(&mut self, bytes: Bytes) -> Result<()> {
        let (documents, guard, keys) = (&self.documents, &self.documents.shared.guard, self.documents.keys());
        let deadline_ms = guard.environment.now_ms() + KEPT_FOR_MS;
        let before = self.staged.as_ref().map(|staged| staged.key.clone());
        let after = Key::Staging { deadline_ms, database: keys.number(), store: &self.store }.under(&guard.root);
        let rows: Vec<(Bytes, Bytes)> = part_rows(keys, &self.store, self.parts, &bytes, self.part_bytes).collect();
        guard
            .run(|transaction| {
                let instance = documents.instance(&transaction, Read::Serializable);
                let held = before.as_ref().map(|row| transaction.get(row, Read::Serializable));
                let (before, after, rows) = (&before, &after, rows.clone());
                async move {
                    instance.await?;
                    if let (Some(row), Some(held)) = (before, held) {
                        held.await?.ok_or_else(|| Error::new(ErrorKind::UploadGone))?;
                        transaction.clear(row);
                    }
                    transaction.set(after, b"");
                    for (key, value) in rows {
                        transaction.set_unguarded(key, value);
                    }
                    Ok(Outcome::Write(()))
                }
            })
            .await?;
        self.parts += rows.len() as u64;
        match &mut self.staged {
            Some(staged) => (staged.deadline_ms, staged.key) = (deadline_ms, after),
            None => {
                let (store, abandoned) = (self.store, guard.abandoned.clone());
                self.staged = Some(Staged { store, deadline_ms, key: after, abandoned });
            }
        }
        Ok(())
    }

    /// Removes the written parts.
    pub(super) async fn discard(&mut self) -> Result<()> {
        match &mut self.staged {
            Some(staged) => staged.discard(&self.documents.shared.guard).await,
            None => Ok(()),
        }
    }
}

/// A new store id.
pub(super) fn new_store(environment: &dyn Environment) -> StoreId {
    let mut store = [0; 16];
    environment.random(&mut store);
    store
}

/// The rows of these bytes, from this part on.
pub(super) fn part_rows<'a>(
    keys: &'a DatabaseKeys,
    store: &'a StoreId,
    first: u64,
    bytes: &'a Bytes,
    part_bytes: usize,
) -> impl Iterator<Item = (Bytes, Bytes)> + 'a {
    let begins = (0..bytes.len()).step_by(part_bytes);
    (first..).zip(begins).map(move |(part, begin)| {
        let key = Bytes::from(keys.key(DatabaseKey::Part(store, part)));
        (key, bytes.slice(begin..bytes.len().min(begin + part_bytes)))
    })
}

impl Staged {
    /// Removes the upload, unless an edit has taken it over.
    pub(super) async fn discard<D: Database>(&self, guard: &Guard<D>) -> Result<()> {
        guard.discard(&self.key).await
    }
}

impl<D: Database> Guard<D> {
    /// Removes the parts of uploads that were dropped. Parts that cannot be removed now are swept later.
    pub(crate) async fn give_back(&self) {
        for key in self.abandoned.take() {
            drop(self.discard(&key).await);
        }
    }

    /// Removes the upload with a row at `key`, unless an edit has taken it over.
    async fn discard(&self, key: &[u8]) -> Result<()> {
        let (database, store) = Key::read_staging(&self.root, key)?;
        let keys = &DatabaseKeys::new(&self.root, database);
        let store = &store;
        // The transaction can be repeated, so it needs no transaction id.
        Runner::new(&self.engine)
            .run(|transaction, _| async move {
                if transaction.get(key, Read::Serializable).await?.is_some() {
                    clear_staged(&transaction, keys, key, store);
                }
                Ok(())
            })
            .await
    }
}
