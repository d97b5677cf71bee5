//! The target's side of a relocation: the database that is copied here.
//!
//! ```text
//!  (6, Name) = (Format, Number, InstanceId, Incarnation, From, Run, Copied, Documents)
//! ```
//!
//! `InstanceId` and `Incarnation` are the source's: they tell a run whether it continues this copy. `Run` is the run
//! that works on the copy. Every transaction reads the row with a conflict range, so a run that was overtaken cannot
//! write. `Copied` is the sequence up to which documents are copied, in thirteen bytes.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use kv_api::{Database, Read, Runner, Transaction};

use crate::admin::catalog::{allocate, set_new};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::events;
use crate::feed::seq::Seq;
use crate::keys::{self, DatabaseKey, DatabaseKeys, Key};
use crate::layer::Layer;
use crate::read::batch::RETRIES;
use crate::read::reading;
use crate::rows::body::BodyFormat;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{self, Access, DatabaseState, Indexes, Instance};
use crate::rows::row::Reader;
use crate::rows::tuple;

use super::departure::Totals;

const FORMAT: u64 = 1;

/// The progress of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    number: u64,
    instance_id: [u8; 16],
    incarnation: u8,
    from: String,
    pub(super) run: [u8; 16],
    /// Documents up to this sequence are copied.
    pub(super) copied: Seq,
    /// Number of documents copied. A document that is copied again counts again.
    pub(super) documents: u64,
}

impl Arrival {
    /// The progress after more documents, up to this sequence.
    pub(super) fn after(&self, copied: Seq, more: u64) -> Arrival {
        Arrival { copied, documents: self.documents + more, ..self.clone() }
    }

    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(96 + self.from.len());
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_u64(&mut out, self.number);
        tuple::append_bytes(&mut out, &self.instance_id);
        tuple::append_u64(&mut out, u64::from(self.incarnation));
        tuple::append_str(&mut out, &self.from);
        tuple::append_bytes(&mut out, &self.run);
        tuple::append_bytes(&mut out, self.copied.as_bytes());
        tuple::append_u64(&mut out, self.documents);
        out
    }

    fn read(value: &[u8]) -> Result<Arrival> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::corrupt(format!("a copy in unknown format {other}"))),
        }
        let number = reader.int()?;
        let instance_id = instance::read_id(&mut reader)?;
        let incarnation = keys::read_incarnation(&mut reader)?;
        let from = reader.str()?.into_owned();
        let run = instance::read_id(&mut reader)?;
        let copied = reader.bytes()?.as_ref().try_into().map(Seq::from_bytes);
        let copied = copied.map_err(|_| Error::corrupt("a sequence of wrong length"))?;
        let documents = reader.int()?;
        reader.end()?;
        Ok(Arrival { number, instance_id, incarnation, from, run, copied, documents })
    }

    /// Whether this is the copy of the database with this instance.
    fn is_of(&self, instance: &Instance) -> bool {
        self.instance_id == instance.id && self.incarnation == instance.incarnation
    }
}

/// The state of the target when a run starts.
pub(super) enum Begun<D> {
    /// A copy, new or not.
    UnderWay(Arriving<D>),
    /// An earlier run has published the database.
    Published(Documents<D>),
}

/// A copy that this run works on.
pub(super) struct Arriving<D> {
    layer: Layer<D>,
    name: String,
    key: Vec<u8>,
    pub(super) documents: Documents<D>,
    pub(super) arrival: Arrival,
    /// The hidden instance. Its layout is the source's at the start of the copy.
    hidden: Box<Instance>,
    /// Whether the hidden instance says that bodies may have another layout than the database.
    is_mixed: AtomicBool,
}

impl<D: Database> Arriving<D> {
    /// Starts a copy of the database with this instance, or continues one.
    pub(super) async fn begin(target: &Layer<D>, name: &str, instance: &Instance, from: &str) -> Result<Begun<D>> {
        if let Some(there) = published(target, name, instance).await? {
            return Ok(Begun::Published(there));
        }
        let guard = target.guard();
        let mut run = [0; 16];
        guard.environment.random(&mut run);
        let key = Key::Arrival(name).under(&guard.root);
        let (catalog, allocator) = (Key::Catalog(name).under(&guard.root), Key::Allocator.under(&guard.root));
        let fresh = Arrival {
            number: 0,
            instance_id: instance.id,
            incarnation: instance.incarnation,
            from: from.to_owned(),
            run,
            copied: Seq::ZERO,
            documents: 0,
        };
        let hidden = Instance { state: DatabaseState::Arriving, ..instance.clone() };
        let (arrival, hidden) = Runner::new(&guard.engine)
            .option(RETRIES)
            .run(|transaction, _| {
                let place = transaction.get(&catalog, Read::Serializable);
                let known = transaction.get(&key, Read::Serializable);
                let next = transaction.get(&allocator, Read::Serializable);
                let (key, allocator, root, fresh, hidden) = (&key, &allocator, &guard.root, &fresh, &hidden);
                async move {
                    refuse_another(place.await?.as_deref(), hidden.id)?;
                    let (arrival, hidden) = match known.await? {
                        None => {
                            let number = allocate(&transaction, allocator, next.await?.as_deref())?;
                            set_new(&transaction, &DatabaseKeys::new(root, number), hidden);
                            (Arrival { number, ..fresh.clone() }, hidden.clone())
                        }
                        Some(known) => {
                            let known = Arrival::read(&known)?;
                            if !known.is_of(hidden) {
                                let from = known.from;
                                let reason = format!(
                                    "Another database of this name is being copied here from {from}. Finish or abandon that first."
                                );
                                return Err(Error::relocation(reason));
                            }
                            let hidden = DatabaseKeys::new(root, known.number).key(DatabaseKey::Instance);
                            let hidden = transaction.get(&hidden, Read::Serializable).await?;
                            let hidden = hidden.ok_or_else(|| Error::corrupt("a copy without an instance"))?;
                            let arrival = Arrival { run: fresh.run, from: fresh.from.clone(), ..known };
                            (arrival, Instance::read(&hidden)?)
                        }
                    };
                    transaction.set(key, arrival.write());
                    Ok((arrival, hidden))
                }
            })
            .await?;
        let documents = target.documents(name, &CatalogRow::new(arrival.number, instance), Access::Arriving);
        let (layer, name, is_mixed) = (target.clone(), name.to_owned(), AtomicBool::new(hidden.rewrites));
        let hidden = Box::new(hidden);
        Ok(Begun::UnderWay(Arriving { layer, name, key, documents, arrival, hidden, is_mixed }))
    }

    /// Call it before bodies are written here, with the source's instance from the transaction that read them.
    /// The source's layout may change and change back meanwhile; bodies that were copied in between then have the other
    /// layout.
    pub(super) async fn note_layout(&self, format: BodyFormat, rewrites: bool) -> Result<()> {
        let is_mixed = rewrites || format != self.hidden.format;
        if !is_mixed || self.is_mixed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let row = Instance { rewrites: true, ..Instance::clone(&self.hidden) }.write();
        let key = self.documents.keys().key(DatabaseKey::Instance);
        self.write(None, |transaction| {
            transaction.set(&key, &row);
            std::future::ready(Ok(()))
        })
        .await?;
        self.is_mixed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a transaction that writes to the copy, and writes the progress `next` if given. `body` may run again after
    /// it was committed, and must then have the same effect.
    pub(super) async fn write<T, F, Fut>(&self, next: Option<&Arrival>, mut body: F) -> Result<T>
    where
        F: FnMut(D::Transaction) -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let row = next.map(Arrival::write);
        Runner::new(self.documents.engine())
            .option(RETRIES)
            .run(|transaction, _| {
                let held = transaction.get(&self.key, Read::Serializable);
                let work = body(transaction.clone());
                let row = row.as_deref();
                async move {
                    self.still_mine(held.await?.as_deref())?;
                    let done = work.await?;
                    if let Some(row) = row {
                        transaction.set(&self.key, row);
                    }
                    Ok(done)
                }
            })
            .await
    }

    /// Fails if another run has taken over, or if the copy is gone.
    fn still_mine(&self, row: Option<&[u8]>) -> Result<()> {
        let run = row.map(Arrival::read).transpose()?.map(|arrival| arrival.run);
        if run == Some(self.arrival.run) {
            return Ok(());
        }
        Err(Error::relocation(if run.is_some() {
            "Another run of this relocation has taken over."
        } else {
            "The relocation was abandoned meanwhile."
        }))
    }

    /// Discards the copied rows.
    pub(super) async fn start_over(&mut self) -> Result<()> {
        let next = Arrival { copied: Seq::ZERO, documents: 0, ..self.arrival.clone() };
        let keys = self.documents.keys();
        let (_, instance_end) = keys.bounds(DatabaseKey::Instance);
        let (_, end) = keys.everything();
        self.write(Some(&next), |transaction| {
            transaction.clear_range(&instance_end, &end);
            transaction.set(keys.key(DatabaseKey::Last), Seq::ZERO.as_bytes());
            std::future::ready(Ok(()))
        })
        .await?;
        self.arrival = next;
        Ok(())
    }

    /// Sets the rows with totals of the whole database.
    pub(super) async fn set_totals(&self, totals: &Totals) -> Result<()> {
        let keys = self.documents.keys();
        self.write(None, |transaction| {
            transaction.set(keys.key(DatabaseKey::Last), totals.last.as_bytes());
            match &totals.stats {
                Some(stats) => transaction.set(keys.key(DatabaseKey::Stats), stats),
                None => transaction.clear(&keys.key(DatabaseKey::Stats)),
            }
            std::future::ready(Ok(()))
        })
        .await
    }

    /// Adds the database to the catalog, with the next incarnation. `instance` is that of the closed source.
    pub(super) async fn publish(&self, instance: &Instance) -> Result<()> {
        let guard = self.layer.guard();
        let catalog = Key::Catalog(&self.name).under(&guard.root);
        let incarnation = instance.incarnation + 1;
        // Definitions were copied, but rows were not.
        let indexes = instance.indexes.to_build();
        let open = Instance { incarnation, indexes, state: DatabaseState::Open, ..instance.clone() };
        let place = CatalogRow::new(self.arrival.number, instance);
        let key = self.documents.keys().key(DatabaseKey::Instance);
        Runner::new(&guard.engine)
            .option(RETRIES)
            .run(|transaction, _| {
                let known = transaction.get(&catalog, Read::Serializable);
                let held = transaction.get(&self.key, Read::Serializable);
                let begun = transaction.get(&key, Read::Serializable);
                let (catalog, root, place, open, key) = (&catalog, &guard.root, &place, &open, &key);
                let (shared, name) = (&self.documents.shared, &self.name);
                async move {
                    let known = known.await?;
                    if known.as_deref() == Some(&place.write()) {
                        // An earlier attempt with an unknown result did this.
                        return Ok(());
                    }
                    self.still_mine(held.await?.as_deref())?;
                    if let Some(remains) = refuse_another(known.as_deref(), place.instance_id)? {
                        let (begin, end) = DatabaseKeys::new(root, remains.number).everything();
                        transaction.clear_range(&begin, &end);
                    }
                    // Bodies may have been copied before they were rewritten at the source, or in a layout that it had
                    // meanwhile.
                    let begun = begun.await?.map(|row| Instance::read(&row)).transpose()?;
                    let rewrites = begun.is_none_or(|begun| begun.rewrites || begun.format != open.format);
                    let published = Instance { rewrites: rewrites || open.rewrites, ..open.clone() };
                    transaction.set(key, published.write());
                    shared.plan_build(&transaction, name, &Indexes::default(), &published.indexes).await?;
                    shared.plan_rewrite(&transaction, name, false, Some(&published)).await?;
                    shared.plan_forgetting(&transaction, name, None, published.keep).await?;
                    transaction.set(catalog, place.write());
                    events::created(&transaction, root, name);
                    transaction.clear(&self.key);
                    Ok(())
                }
            })
            .await
    }
}

/// Refuses a name that another database has, or that this database has at this store. Remains of this database from an
/// earlier move away may be replaced. They are returned.
fn refuse_another(place: Option<&[u8]>, id: [u8; 16]) -> Result<Option<CatalogRow>> {
    match place.map(CatalogRow::read).transpose()? {
        Some(place) if place.instance_id != id || place.moved_to.is_none() => Err(ErrorKind::FileExists.into()),
        remains => Ok(remains),
    }
}

/// The database that was published by a relocation from the source with this instance. It may have changed since.
pub(super) async fn published<D: Database>(
    target: &Layer<D>,
    name: &str,
    instance: &Instance,
) -> Result<Option<Documents<D>>> {
    let root = &target.guard().root;
    let catalog = Key::Catalog(name).under(root);
    let place = reading::run(target.engine(), |transaction| {
        let place = transaction.get(&catalog, Read::Snapshot);
        async move {
            let Some(place) = place.await?.map(|place| CatalogRow::read(&place)).transpose()? else { return Ok(None) };
            let key = DatabaseKeys::new(root, place.number).key(DatabaseKey::Instance);
            let Some(found) = transaction.get(&key, Read::Snapshot).await? else { return Ok(None) };
            let found = Instance::read(&found)?;
            let is_next = found.id == instance.id && Some(found.incarnation) == instance.incarnation.checked_add(1);
            Ok(is_next.then_some(place))
        }
    })
    .await?;
    Ok(place.map(|place| {
        let access = if place.moved_to.is_some() { Access::Remains } else { Access::Living };
        target.documents(name, &place, access)
    }))
}

/// Removes a copy in progress, unless it is a copy of a different database than that of `instance`. Returns whether
/// there was one.
pub(super) async fn remove<D: Database>(target: &Layer<D>, name: &str, instance: Option<&Instance>) -> Result<bool> {
    let guard = target.guard();
    let key = Key::Arrival(name).under(&guard.root);
    Runner::new(&guard.engine)
        .option(RETRIES)
        .run(|transaction, attempt| {
            let known = transaction.get(&key, Read::Serializable);
            let (key, root) = (&key, &guard.root);
            async move {
                let Some(known) = known.await? else { return Ok(attempt.maybe_committed) };
                let known = Arrival::read(&known)?;
                if instance.is_some_and(|instance| instance.id != known.instance_id) {
                    return Ok(false);
                }
                let (begin, end) = DatabaseKeys::new(root, known.number).everything();
                transaction.clear_range(&begin, &end);
                transaction.clear(key);
                Ok(true)
            }
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let arrival = Arrival {
            number: 7,
            instance_id: [0; 16],
            incarnation: 254,
            from: "sled:/a\0b".to_owned(),
            run: [9; 16],
            copied: Seq::beginning_of(3),
            documents: 1 << 40,
        };
        let row = arrival.write();
        assert_eq!(Arrival::read(&row).unwrap(), arrival);
        for cut in 0..row.len() {
            assert!(Arrival::read(&row[..cut]).is_err(), "cut at {cut}");
        }
    }
}
