//! The settings of a database: the number of revisions that a branch remembers, which replaced revisions it keeps, and
//! the security object.

use kv_api::{Database, Read, Transaction, TransactionExt};

use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::DatabaseKey;
use crate::limits::{check_document_size, check_revs_limit};
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::blob;
use crate::rows::instance::Instance;
use crate::write::txids::Outcome;
use json::{JsonKind, JsonText};

/// CouchDB 3's security object of a new database.
pub fn default_security() -> JsonText {
    let text = br#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#;
    JsonText::parse(text).unwrap_or_else(|_| JsonText::empty_object())
}

impl<D: Database> Documents<D> {
    /// Maximum number of revisions that a branch remembers, including the leaf.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn revs_limit(&self) -> Result<u32> {
        let instance = self.read(|transaction| self.instance(&transaction, Read::Snapshot)).await?;
        Ok(instance.revs_limit)
    }

    /// Sets the number of revisions that a branch remembers: 1 to 4,000. Reads apply it at once. A branch is
    /// stemmed at its next write, and by [`stemming`](Self::stemming).
    ///
    /// # Errors
    /// 400 for any other limit.
    pub async fn set_revs_limit(&self, limit: u32) -> Result<()> {
        check_revs_limit(limit)?;
        let change = |_, instance| async move { Ok(((), Some(Instance { revs_limit: limit, ..instance }))) };
        self.change_instance(change).await
    }

    /// Changes the instance row, or leaves it unchanged (`None`). `change` may also write other rows in the
    /// transaction, and returns the answer.
    pub(crate) async fn change_instance<T, F>(&self, change: impl Fn(D::Transaction, Instance) -> F) -> Result<T>
    where
        F: Future<Output = Result<(T, Option<Instance>)>>,
    {
        let key = self.keys().key(DatabaseKey::Instance);
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let (key, change) = (&key, &change);
                async move {
                    let (answer, changed) = change(transaction.clone(), instance.await?).await?;
                    let Some(changed) = changed else { return Ok(Outcome::ReadOnly(answer)) };
                    transaction.set(key, changed.write());
                    Ok(Outcome::Write(answer))
                }
            })
            .await
    }

    /// The replaced revisions whose bodies are kept; `None` keeps none.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn keep_replaced(&self) -> Result<Option<KeepReplaced>> {
        let instance = self.read(|transaction| self.instance(&transaction, Read::Snapshot)).await?;
        Ok(instance.keep.filter(KeepReplaced::keeps_any))
    }

    /// Sets which replaced revisions are kept, with their attachments: `?rev=`, `open_revs` and `revs_info` read them.
    /// At most as many revisions of a document are kept as a branch remembers. Revisions replaced before this call are
    /// not available. A shorter time applies to reads at once, a lower number with the next edits of each document.
    /// With `None`, replaced revisions can no longer be read; [a job](crate::FORGET_JOBS) removes the bodies.
    ///
    /// # Errors
    /// 400 for no revisions or no time, and for more than 4,000 revisions; 404 if the database is gone.
    pub async fn set_keep_replaced(&self, keep: Option<KeepReplaced>) -> Result<()> {
        keep.map_or(Ok(()), |keep| keep.check_for(self.name()))?;
        let change = |transaction: D::Transaction, instance: Instance| async move {
            let before = instance.keep;
            // Some bodies may be left.
            let after = keep.or(before.map(|_| KeepReplaced::Revisions(0)));
            if after == before {
                return Ok(((), None));
            }
            self.shared.plan_forgetting(&transaction, self.name(), before, after).await?;
            Ok(((), Some(Instance { keep: after, ..instance })))
        };
        self.change_instance(change).await
    }

    /// The security object. Until one is set it is CouchDB 3's default, which lets only server administrators use the
    /// database.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn security(&self) -> Result<JsonText> {
        let key = self.keys().key(DatabaseKey::Security);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let rows = transaction.get_all(blob::range(&key), Read::Snapshot);
            async move {
                instance.await?;
                Ok(blob::read(&rows.await?)?.map_or_else(default_security, |(_, text)| text))
            }
        })
        .await
    }

    /// Sets the security object.
    ///
    /// # Errors
    /// 400 if it is not an object, 413 if it is larger than a document may be.
    pub async fn set_security(&self, object: JsonText) -> Result<()> {
        self.check_security(&object)?;
        let key = self.keys().key(DatabaseKey::Security);
        // The stored object is not read, so that a damaged one can be replaced.
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let (key, object) = (&key, &object);
                async move {
                    instance.await?;
                    blob::set(&transaction, key, 0, object);
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }

    fn check_security(&self, object: &JsonText) -> Result<()> {
        if object.kind() != JsonKind::Object {
            return Err(Error::bad_request("Request body must be a JSON object"));
        }
        check_document_size("_security", object.len(), self.max_document_size())
    }

    /// Changes the security object. `change` gets the current object, if one is set, and returns the new one, or `None`
    /// to leave it unchanged. It may be called several times.
    ///
    /// # Errors
    /// Those of [`set_security`](Self::set_security).
    pub async fn change_security(&self, change: impl Fn(Option<&JsonText>) -> Option<JsonText> + Sync) -> Result<()> {
        let key = self.keys().key(DatabaseKey::Security);
        self.shared
            .guard
            .run(|transaction| {
                let instance = self.instance(&transaction, Read::Serializable);
                let rows = transaction.get_all(blob::range(&key), Read::Serializable);
                let (key, change) = (&key, &change);
                async move {
                    instance.await?;
                    let before = blob::read(&rows.await?)?.map(|(_, text)| text);
                    let Some(object) = change(before.as_ref()) else { return Ok(Outcome::ReadOnly(())) };
                    self.check_security(&object)?;
                    blob::set(&transaction, key, 0, &object);
                    Ok(Outcome::Write(()))
                }
            })
            .await
    }
}
