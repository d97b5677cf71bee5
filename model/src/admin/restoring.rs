//! Restores databases from a backup.
//!
//! ```text
//!  begin_restore ─► arriving ── documents, local documents, settings, purges ──► finish_restore ─► open
//!                      │  clients are answered 404, and the name is taken
//!                      └─ begin_restore: the remains of an unfinished restore are dropped
//! ```
//!
//! Documents are written again, so they have new sequences. The incarnation is one that the database never had, so
//! every earlier sequence is lower than all of the new ones: a client that continues from an earlier one reads
//! everything again and misses nothing.

use kv_api::{Database, Read, Transaction};

use crate::admin::catalog::CreateOptions;
use crate::admin::identity::IDENTITY_BYTES;
use crate::admin::purge::PurgeInfo;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::feed::events;
use crate::keys::{DatabaseKey, DatabaseKeys, Key};
use crate::layer::Layer;
use crate::read::reading;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{Access, DatabaseState, Indexes, Instance};
use crate::rows::tuple;
use crate::write::txids::Outcome;

/// Number of purges in a transaction.
const PURGES_AT_ONCE: usize = 100;

impl<D: Database> Layer<D> {
    /// Creates a database to be filled from a backup. Until [`finish_restore`](Documents::finish_restore) only the
    /// returned handle can use it; clients get a 404, and its name is taken. The remains of an unfinished restore of
    /// this name are dropped first: if that restore is still running, its next write fails with 404.
    ///
    /// # Errors
    /// As [`create_database`](Self::create_database).
    pub async fn begin_restore(&self, name: &str, options: CreateOptions, incarnation: u8) -> Result<Documents<D>> {
        if self.has_unfinished_restore(name).await? {
            let unfinished = self.documents(name, &self.place(name).await?, Access::Restoring);
            match unfinished.drop_restore().await {
                // It was finished or dropped meanwhile.
                Err(error) if error.status() == 404 => {}
                dropped => dropped?,
            }
        }
        self.create(name, options, incarnation, DatabaseState::Arriving).await
    }

    /// Whether this database has an unfinished restore.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn has_unfinished_restore(&self, name: &str) -> Result<bool> {
        let root = &self.guard().root;
        let catalog = Key::Catalog(name).under(root);
        reading::run(self.engine(), |transaction| {
            let place = transaction.get(&catalog, Read::Snapshot);
            async move {
                let Some(place) = place.await? else { return Ok(false) };
                let key = DatabaseKeys::new(root, CatalogRow::read(&place)?.number).key(DatabaseKey::Instance);
                let Some(row) = transaction.get(&key, Read::Snapshot).await? else { return Ok(false) };
                Ok(Instance::read(&row)?.state == DatabaseState::Arriving)
            }
        })
        .await
    }

    /// Gives this identity to a store that has no [identity](Self::identity), for example when everything of another
    /// store is restored into it. Returns whether the store has this identity now.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn take_identity(&self, identity: [u8; IDENTITY_BYTES]) -> Result<bool> {
        Ok(self.identity_or(identity).await? == identity)
    }
}

impl<D: Database> Documents<D> {
    /// Remembers purges of the restored database, under their sequences and UUIDs. Nothing
    /// is purged.
    ///
    /// # Errors
    /// 400 unless the database is being restored; 404 if the restore was dropped.
    pub async fn remember_purges(&self, purges: &[PurgeInfo]) -> Result<()> {
        if self.home.access != Access::Restoring {
            return Err(Error::bad_request("Only a restore can remember purges."));
        }
        let keys = self.keys();
        for some in purges.chunks(PURGES_AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.instance(&transaction, Read::Serializable).await?;
                for info in some {
                    let mut seq = Vec::with_capacity(9);
                    tuple::append_u64(&mut seq, info.seq);
                    transaction.set(keys.key(DatabaseKey::PurgeOf(&info.uuid)), seq);
                    transaction.set(keys.key(DatabaseKey::Purge(info.seq)), info.write());
                }
                Ok(Outcome::Write(()))
            };
            self.shared.guard.run(run).await?;
        }
        Ok(())
    }

    /// Drops this unfinished restore, and never another database of its name.
    ///
    /// # Errors
    /// 404 if it is finished, or was dropped.
    pub async fn drop_restore(&self) -> Result<()> {
        let guard = &self.shared.guard;
        let catalog = Key::Catalog(self.name()).under(&guard.root);
        let run = |transaction: D::Transaction| {
            let catalog = &catalog;
            async move {
                // Fails unless it is this database, and arriving.
                let instance = self.instance(&transaction, Read::Serializable).await?;
                self.shared.plan_build(&transaction, self.name(), &instance.indexes, &Indexes::default()).await?;
                self.shared.plan_forgetting(&transaction, self.name(), instance.keep, None).await?;
                let (begin, end) = self.keys().everything();
                transaction.clear(catalog);
                transaction.clear_range(&begin, &end);
                Ok(Outcome::Write(()))
            }
        };
        guard.run(run).await
    }

    /// Opens a restored database to clients.
    ///
    /// # Errors
    /// 404 if the restore was dropped, or is finished.
    pub async fn finish_restore(&self) -> Result<Documents<D>> {
        let guard = &self.shared.guard;
        let key = self.keys().key(DatabaseKey::Instance);
        let run = |transaction: D::Transaction| {
            let key = &key;
            async move {
                let instance = self.instance(&transaction, Read::Serializable).await?;
                let open = Instance { state: DatabaseState::Open, ..instance };
                transaction.set(key, open.write());
                // A server may have accepted the jobs of the first writes, and found no database.
                self.shared.plan_build(&transaction, self.name(), &Indexes::default(), &open.indexes).await?;
                self.shared.plan_forgetting(&transaction, self.name(), None, open.keep).await?;
                events::created(&transaction, &guard.root, self.name());
                Ok(Outcome::Write(()))
            }
        };
        guard.run(run).await?;
        self.layer().database(self.name()).await
    }
}
