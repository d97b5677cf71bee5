//! The source's side of a relocation: the database that moves away.
//!
//! The instance row stores the state of the move. Each step reads it, and does nothing if the step is already done. So
//! each step may be retried, whatever the result of an attempt.

use kv_api::{Bytes, Database, Read, Runner, Transaction};

use crate::admin::info::read_last;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, Key, Subspace};
use crate::layer::Layer;
use crate::read::batch::RETRIES;
use crate::read::reading;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{Access, DatabaseState, Indexes, Instance};
use crate::rows::stats::Stats;

/// The database that moves away.
pub(super) struct Departing<D> {
    layer: Layer<D>,
    name: String,
    place: CatalogRow,
    /// The instance when the run began.
    pub(super) instance: Instance,
    pub(super) documents: Documents<D>,
}

/// The rows with totals of the whole database.
pub(super) struct Totals {
    pub(super) last: Seq,
    /// The counters as stored; `None` in a database that was never written.
    pub(super) stats: Option<Bytes>,
}

impl<D: Database> Departing<D> {
    /// Finds the database with this name.
    pub(super) async fn find(source: &Layer<D>, name: &str) -> Result<Departing<D>> {
        let place = source.place(name).await?;
        let documents = source.documents(name, &place, Access::Living);
        let key = documents.keys().key(DatabaseKey::Instance);
        let instance = reading::run(source.engine(), |transaction| {
            let row = transaction.get(&key, Read::Snapshot);
            async move { own(row.await?.as_deref(), place.instance_id) }
        });
        let instance = instance.await?;
        Ok(Departing { layer: source.clone(), name: name.to_owned(), place, instance, documents })
    }

    /// Number of its documents.
    pub(super) async fn count(&self) -> Result<u64> {
        let stats = Stats::read(self.totals().await?.stats.as_deref())?;
        Ok(u64::try_from(stats.doc_count.saturating_add(stats.doc_del_count)).unwrap_or(0))
    }

    pub(super) async fn totals(&self) -> Result<Totals> {
        let keys = self.documents.keys();
        let (last, stats) = (keys.key(DatabaseKey::Last), keys.key(DatabaseKey::Stats));
        reading::run(self.layer.engine(), |transaction| {
            let last = transaction.get(&last, Read::Snapshot);
            let stats = transaction.get(&stats, Read::Snapshot);
            async move { Ok(Totals { last: read_last(last.await?.as_deref())?, stats: stats.await? }) }
        })
        .await
    }

    /// Whether the database was dropped.
    pub(super) async fn is_gone(&self) -> bool {
        match Departing::find(&self.layer, &self.name).await {
            Ok(found) => found.place.number != self.place.number,
            Err(error) => *error.kind() == ErrorKind::NotFound(NotFound::Database),
        }
    }

    /// Closes the database to writers, on behalf of a run. Returns the new instance.
    pub(super) async fn close(&self, to: &str, run: [u8; 16]) -> Result<Instance> {
        let closing = DatabaseState::Closing { to: to.to_owned(), run };
        self.change(|instance| match &instance.state {
            DatabaseState::Open => Ok(Some(Instance { state: closing.clone(), ..instance.clone() })),
            state if *state == closing => Ok(None),
            DatabaseState::Moved { to } => Err(ErrorKind::Moved(to.clone()).into()),
            _ => Err(Error::relocation("Another run of this relocation has taken over.")),
        })
        .await
    }

    /// Opens the database again if it was closed: by the given run, or by any. Returns whether it was.
    pub(super) async fn open(&self, by: Option<[u8; 16]>) -> Result<bool> {
        let was_closed = std::sync::atomic::AtomicBool::new(false);
        self.change(|instance| match &instance.state {
            DatabaseState::Closing { run, .. } if by.is_none_or(|by| by == *run) => {
                was_closed.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok(Some(Instance { state: DatabaseState::Open, ..instance.clone() }))
            }
            _ => Ok(None),
        })
        .await?;
        Ok(was_closed.into_inner())
    }

    /// Changes the instance. Returns the new one.
    async fn change(&self, change: impl Fn(&Instance) -> Result<Option<Instance>>) -> Result<Instance> {
        let key = self.documents.keys().key(DatabaseKey::Instance);
        Runner::new(self.layer.engine())
            .option(RETRIES)
            .run(|transaction, _| {
                let row = transaction.get(&key, Read::Serializable);
                let (key, change) = (&key, &change);
                async move {
                    let instance = own(row.await?.as_deref(), self.place.instance_id)?;
                    Ok(match change(&instance)? {
                        Some(changed) => {
                            transaction.set(key, changed.write());
                            changed
                        }
                        None => instance,
                    })
                }
            })
            .await
    }

    /// Records the target's name, for clients that request the database or wait for its changes.
    pub(super) async fn leave(&self, to: &str) -> Result<()> {
        let keys = self.documents.keys();
        let (instance_key, last_key) = (keys.key(DatabaseKey::Instance), keys.key(DatabaseKey::Last));
        let catalog = Key::Catalog(&self.name).under(&self.layer.guard().root);
        let place = CatalogRow { moved_to: Some(to.to_owned()), ..self.place.clone() };
        Runner::new(self.layer.engine())
            .option(RETRIES)
            .run(|transaction, _| {
                let known = transaction.get(&catalog, Read::Serializable);
                let row = transaction.get(&instance_key, Read::Serializable);
                let (catalog, place, instance_key, last_key) = (&catalog, &place, &instance_key, &last_key);
                let (shared, name) = (&self.documents.shared, &self.name);
                async move {
                    let known = known.await?.map(|known| CatalogRow::read(&known)).transpose()?;
                    if known.is_none_or(|known| known.number != place.number) {
                        return Err(Error::not_found(NotFound::Database));
                    }
                    let instance = own(row.await?.as_deref(), place.instance_id)?;
                    if instance.state == DatabaseState::Open {
                        return Err(Error::relocation("The database was opened to writers again meanwhile."));
                    }
                    let next = Seq::beginning_of(instance.incarnation + 1);
                    // Indexes are built at the target, and bodies are rewritten there.
                    shared.plan_build(&transaction, name, &instance.indexes, &Indexes::default()).await?;
                    shared.plan_rewrite(&transaction, name, instance.rewrites, None).await?;
                    shared.plan_forgetting(&transaction, name, instance.keep, None).await?;
                    let moved =
                        Instance { rewrites: false, state: DatabaseState::Moved { to: to.to_owned() }, ..instance };
                    transaction.set(catalog, place.write());
                    transaction.set(instance_key, moved.write());
                    // Watchers of this row wake up, and learn that the database has moved.
                    transaction.set(last_key, next.as_bytes());
                    Ok(())
                }
            })
            .await
    }

    /// The database's remains after the move.
    pub(super) fn remains(&self) -> Documents<D> {
        self.layer.documents(&self.name, &self.place, Access::Remains)
    }

    /// Deletes the remains, except the marker with the target's name. Rows that a repair moved, which were not copied,
    /// are kept too.
    pub(super) async fn delete_rows(&self) -> Result<()> {
        let keys = self.documents.keys();
        let key = keys.key(DatabaseKey::Instance);
        let goes = |subspace: &Subspace| match subspace {
            // They have the target's name, and wake clients that wait for changes.
            Subspace::Instance | Subspace::Last => false,
            Subspace::Security
            | Subspace::Stats
            | Subspace::Revisions
            | Subspace::Changes
            | Subspace::Docs
            | Subspace::AllDocs
            | Subspace::Local
            | Subspace::Contents
            | Subspace::Parts
            | Subspace::References
            | Subspace::Indexes
            | Subspace::IndexRows
            | Subspace::Indexed
            | Subspace::Purges
            | Subspace::Views
            | Subspace::Counts
            | Subspace::Replaced
            | Subspace::ReplacedDocs
            | Subspace::Trash
            | Subspace::TrashDocs
            | Subspace::Passed
            | Subspace::Ended => true,
        };
        let ranges = Subspace::ALL.into_iter().filter(goes).map(|subspace| keys.bounds(DatabaseKey::All(subspace)));
        let ranges: Vec<(Vec<u8>, Vec<u8>)> = ranges.collect();
        Runner::new(self.layer.engine())
            .option(RETRIES)
            .run(|transaction, _| {
                let row = transaction.get(&key, Read::Serializable);
                let (ranges, key) = (&ranges, &key);
                async move {
                    let mut instance = own(row.await?.as_deref(), self.place.instance_id)?;
                    if !matches!(instance.state, DatabaseState::Moved { .. }) {
                        return Err(Error::relocation("The database has not moved, so nothing was deleted."));
                    }
                    for (begin, end) in ranges {
                        transaction.clear_range(begin, end);
                    }
                    if !instance.indexes.kept.is_empty() {
                        instance.indexes.kept.clear();
                        transaction.set(key, instance.write());
                    }
                    Ok(())
                }
            })
            .await
    }
}

/// The instance in a row, if it belongs to the database with this id.
fn own(row: Option<&[u8]>, id: [u8; 16]) -> Result<Instance> {
    let instance = row.map(Instance::read).transpose()?;
    instance.filter(|found| found.id == id).ok_or_else(|| Error::not_found(NotFound::Database))
}
