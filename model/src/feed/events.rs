//! The events of a store's databases: which were created, updated and dropped, as CouchDB's `_db_updates` lists them.
//!
//! ```text
//!  (10)           versionstamp of the last creation or drop, which servers watch
//!  (10, 0, Name)  = (Format, Versionstamp)   when the database was created
//!  (10, 1, Versionstamp, Name)  = (Format)   a drop
//!  (10, 2)        versionstamp of the last drop that was forgotten
//! ```
//!
//! The last [`KEPT_DROPS`] drops are kept: each drop forgets older ones. A reader that continues from before a
//! forgotten drop is told so.
//!
//! An update has no row: a database's last event is its last sequence, which each edit writes anyway. So edits cost
//! nothing extra, and a request for events reads three rows of each database.
//!
//! The events of all databases are in the order of their commits, and a page must have every event up to its end. A
//! page is read in several transactions, so it ends at the read version of the first one; later events are left for the
//! next page.
//!
//! Sequences of another store have no meaning here. A database that moved to another store has no more events. One that
//! came from another store has no events for earlier edits.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::task::Poll;

use futures_util::future::{BoxFuture, poll_fn};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use kv_api::{Database, MutationType, RangeRequest, Read, Runner, Transaction, TransactionExt};

use crate::admin::info::read_last;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::feed::seq::Seq;
use crate::keys::{DatabaseKey, DatabaseKeys, Key, end_of, pending_stamp};
use crate::layer::Layer;
use crate::read::batch::RETRIES;
use crate::read::reading;
use crate::rows::catalog_row::CatalogRow;
use crate::rows::instance::{Access, Instance};
use crate::rows::row::{self, Reader, STAMP_LEN};
use crate::rows::tuple;

const FORMAT: u64 = 1;

/// Number of databases that are read in one transaction.
const BATCH: usize = 300;

/// Maximum number of databases that a watcher watches. Stores allow some thousand watches.
const MOST_WATCHED: usize = 2_000;

/// Number of drops that are kept.
const KEPT_DROPS: usize = 1_000;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DatabaseEventKind {
    /// The last database of this name was dropped.
    Deleted,
    /// It was created, or came from another store.
    Created,
    /// A document was written.
    Updated,
}

impl DatabaseEventKind {
    /// CouchDB's word for it, the `type` of an event.
    pub fn name(self) -> &'static str {
        match self {
            DatabaseEventKind::Deleted => "deleted",
            DatabaseEventKind::Created => "created",
            DatabaseEventKind::Updated => "updated",
        }
    }
}

/// The last event of its kind of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatabaseEvent {
    /// When it happened.
    pub seq: Seq,
    /// The kind of event.
    pub kind: DatabaseEventKind,
    /// The database's name.
    pub name: String,
}

/// Events in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatabaseEvents {
    /// The events after the given sequence.
    pub events: Vec<DatabaseEvent>,
    /// All events up to here are among them: where to continue.
    pub last_seq: Seq,
    /// Drops after the given sequence were forgotten. Only the list of databases shows what exists.
    pub lacks_drops: bool,
}

/// Records that a database was created, in the same transaction.
pub(crate) fn created<T: Transaction>(transaction: &T, root: &[u8], name: &str) {
    let mut row = Vec::with_capacity(32);
    tuple::append_u64(&mut row, FORMAT);
    row::append_stamp(&mut row, &pending_stamp(0));
    // The place of the versionstamp in the value: behind the format and the type code.
    let place = u32::try_from(row.len() - STAMP_LEN).unwrap_or_default();
    row.extend_from_slice(&place.to_le_bytes());
    transaction.atomic_op(MutationType::SetVersionstampedValue, Key::Created(name).under(root), row);
    note(transaction, root);
}

/// Records that a database was dropped, in the same transaction, and forgets the oldest drops.
pub(crate) async fn dropped<T: Transaction>(transaction: &T, root: &[u8], name: &str) -> Result<()> {
    let (begin, end) = Key::drops(root, &[0; STAMP_LEN]);
    // This drop counts too, so one fewer is kept. Concurrent drops may leave one more until the next drop. A selector
    // with an offset would read rows before these if there are few, and fail if one of them is damaged.
    let kept = RangeRequest::keys(begin.clone(), end).reverse().limit(KEPT_DROPS);
    let kept = transaction.get_all(kept, Read::Snapshot).await?;
    if let Some(oldest) = kept.get(KEPT_DROPS - 1) {
        let (stamp, _) = Key::read_drop(root, &oldest.key)?;
        transaction.clear_range(&begin, &end_of(&oldest.key));
        // Another drop at the same time may forget more.
        transaction.atomic_op(MutationType::ByteMax, Key::ForgottenDrops.under(root), stamp.to_vec());
    }
    transaction.clear(&Key::Created(name).under(root));
    record_drop(transaction, root, name);
    Ok(())
}

fn record_drop<T: Transaction>(transaction: &T, root: &[u8], name: &str) {
    let stamp = pending_stamp(0);
    let mut key = Key::Dropped(&stamp, name).under(root);
    let place = Key::drops(root, &stamp).0.len() - STAMP_LEN;
    key.extend_from_slice(&u32::try_from(place).unwrap_or_default().to_le_bytes());
    let mut row = Vec::with_capacity(2);
    tuple::append_u64(&mut row, FORMAT);
    transaction.atomic_op(MutationType::SetVersionstampedKey, key, row);
    note(transaction, root);
}

/// Records an event, in the same transaction.
pub(crate) fn note<T: Transaction>(transaction: &T, root: &[u8]) {
    transaction.atomic_op(MutationType::SetVersionstampedValue, Key::Events.under(root), &[0; 14]);
}

fn read_event(row: &[u8]) -> Result<Seq> {
    let mut reader = Reader::new(row);
    check_format(&mut reader)?;
    let stamp = reader.stamp()?;
    reader.end()?;
    Ok(Seq::new(0, &stamp))
}

fn check_format(reader: &mut Reader<'_>) -> Result<()> {
    match reader.int()? {
        FORMAT => Ok(()),
        other => Err(Error::unknown_format(format!("an event of a database in format {other}"))),
    }
}

/// A database as a page found it.
struct Found {
    name: String,
    place: CatalogRow,
    last: Seq,
    /// `None` if its row is gone.
    created: Option<Seq>,
    /// `None` if it has no edits, or if its last edit was made in another store.
    updated: Option<Seq>,
}

/// All events, and the existing databases.
struct EventsPage {
    events: DatabaseEvents,
    databases: Vec<Found>,
    /// Whether there were events too late for this page.
    is_behind: bool,
}

impl<D: Database> Layer<D> {
    /// The events after `since`: for each database its creation and its last update, and for each name its last drop.
    /// If `since` lies ahead, it comes from another store, and all events are returned.
    ///
    /// This reads three rows of each database in the store.
    ///
    /// # Errors
    /// The store's errors.
    pub async fn database_events(&self, since: Seq) -> Result<DatabaseEvents> {
        let version = reading::run(self.engine(), |transaction| {
            let version = transaction.get_read_version();
            async move { Ok(version.await?) }
        })
        .await?;
        Ok(self.events_until(since, version).await?.events)
    }

    /// A watcher of events.
    pub fn watch_databases(&self) -> DatabaseWatcher<D> {
        DatabaseWatcher {
            layer: self.clone(),
            list: None,
            waiting: FuturesUnordered::new(),
            watched: HashSet::new(),
            is_behind: false,
            misses_some: false,
        }
    }

    /// The events after `since`, up to a commit version.
    async fn events_until(&self, since: Seq, version: i64) -> Result<EventsPage> {
        let mut end = [0xff; STAMP_LEN];
        end[..8].copy_from_slice(&version.to_be_bytes());
        let end = Seq::new(0, &end);
        // A client at the start knows no databases yet. A client that was ahead knows those of another store.
        let knows_some = since > Seq::ZERO;
        let since = if since > end { Seq::ZERO } else { since };
        let drops = self.drops(since).await?;
        // Read after the drops, since they may be forgotten meanwhile.
        let lacks_drops = knows_some && self.forgotten_drops().await?.is_some_and(|last| last > since);
        let mut page = EventsPage {
            events: DatabaseEvents { events: Vec::new(), last_seq: since, lacks_drops },
            databases: Vec::new(),
            is_behind: false,
        };
        // Only the last drop of each name.
        let mut last = HashMap::new();
        for (name, seq) in drops {
            page.is_behind |= seq > end;
            if seq <= end {
                last.insert(name, seq);
            }
        }
        for (name, seq) in last {
            page.add(since, end, seq, DatabaseEventKind::Deleted, &name);
        }
        let (begin, behind) = Key::catalog_range(&self.guard().root);
        let mut next = Some(RangeRequest::keys(begin, behind).limit(BATCH));
        while let Some(request) = next.take() {
            let (found, rest) = self.found(&request).await?;
            for database in found {
                if let Some(created) = database.created {
                    page.add(since, end, created, DatabaseEventKind::Created, &database.name);
                }
                if let Some(updated) = database.updated.filter(|updated| Some(*updated) > database.created) {
                    page.add(since, end, updated, DatabaseEventKind::Updated, &database.name);
                }
                page.databases.push(database);
            }
            next = rest;
        }
        page.events
            .events
            .sort_by(|one, other| (one.seq, one.kind, &one.name).cmp(&(other.seq, other.kind, &other.name)));
        Ok(page)
    }

    /// The names of databases that were dropped, and when, in this order; those after `since`.
    async fn drops(&self, since: Seq) -> Result<Vec<(String, Seq)>> {
        let root = &self.guard().root;
        let (begin, end) = Key::drops(root, &since.stamp());
        let mut drops = Vec::new();
        let mut next = Some(RangeRequest::keys(begin, end));
        while let Some(request) = next.take() {
            let batch = reading::run(self.engine(), |transaction| {
                let batch = transaction.get_range(&request, Read::Snapshot);
                async move { Ok(batch.await?) }
            })
            .await?;
            for row in &batch.rows {
                let (stamp, name) = Key::read_drop(root, &row.key)?;
                let mut reader = Reader::new(&row.value);
                check_format(&mut reader)?;
                reader.end()?;
                drops.push((name, Seq::new(0, &stamp)));
            }
            next = request.after(&batch);
        }
        Ok(drops)
    }

    /// The last drop that was forgotten.
    async fn forgotten_drops(&self) -> Result<Option<Seq>> {
        let key = Key::ForgottenDrops.under(&self.guard().root);
        let row = reading::run(self.engine(), |transaction| {
            let row = transaction.get(&key, Read::Snapshot);
            async move { Ok(row.await?) }
        });
        let stamp = |row: bytes::Bytes| row.as_ref().try_into().map(|stamp| Seq::new(0, &stamp));
        row.await?.map(stamp).transpose().map_err(|_| Error::corrupt("a versionstamp of wrong length"))
    }

    /// Records the drops that lie ahead again, at the current version: the store's versions went back.
    pub(crate) async fn renew_drops(&self) -> Result<()> {
        let root = &self.guard().root;
        if let Some(forgotten) = self.forgotten_drops().await? {
            Runner::new(self.engine())
                .option(RETRIES)
                .run(|transaction, _| async move {
                    if forgotten.is_after(0, transaction.get_read_version().await?) {
                        let key = Key::ForgottenDrops.under(root);
                        // A versionstamp at the start, and its place.
                        transaction.atomic_op(MutationType::SetVersionstampedValue, key, &[0; STAMP_LEN + 4]);
                    }
                    Ok::<_, Error>(())
                })
                .await?;
        }
        for drops in self.drops(Seq::ZERO).await?.chunks(BATCH) {
            Runner::new(self.engine())
                .option(RETRIES)
                .run(|transaction, _| {
                    let version = transaction.get_read_version();
                    async move {
                        let version = version.await?;
                        for (name, seq) in drops.iter().filter(|(_, seq)| seq.is_after(0, version)) {
                            transaction.clear(&Key::Dropped(&seq.stamp(), name).under(root));
                            record_drop(&transaction, root, name);
                        }
                        Ok::<_, Error>(())
                    }
                })
                .await?;
        }
        Ok(())
    }

    /// The databases of a part of the catalog, and the request for the next part.
    async fn found(&self, request: &RangeRequest) -> Result<(Vec<Found>, Option<RangeRequest>)> {
        let root = &self.guard().root;
        reading::run(self.engine(), |transaction| async move {
            let batch = transaction.get_range(request, Read::Snapshot).await?;
            let mut reads = Vec::with_capacity(batch.rows.len());
            for row in &batch.rows {
                let (name, place) = (Key::catalog_name(root, &row.key)?, CatalogRow::read(&row.value)?);
                let keys = DatabaseKeys::new(root, place.number);
                let created = transaction.get(&Key::Created(&name).under(root), Read::Snapshot);
                let instance = transaction.get(&keys.key(DatabaseKey::Instance), Read::Snapshot);
                let last = transaction.get(&keys.key(DatabaseKey::Last), Read::Snapshot);
                reads.push((name, place, created, instance, last));
            }
            let mut found = Vec::with_capacity(reads.len());
            for (name, place, created, instance, last) in reads {
                let created = created.await?.map(|row| read_event(&row)).transpose()?;
                let incarnation =
                    instance.await?.map(|row| Instance::read(&row)).transpose()?.map(|row| row.incarnation);
                let last = last.await?.map_or(Ok(Seq::ZERO), |last| read_last(Some(&last)))?;
                let is_from_here = last.stamp() != [0; STAMP_LEN] && incarnation == Some(last.incarnation());
                let updated = is_from_here.then(|| Seq::new(0, &last.stamp()));
                found.push(Found { name, place, last, created, updated });
            }
            let is_cut = batch.more || batch.rows.len() >= BATCH;
            let next = batch.rows.last().filter(|_| is_cut).map(|last| {
                let begin = [&last.key[..], &[0]].concat();
                RangeRequest::keys(begin, request.end.key.clone()).limit(BATCH)
            });
            Ok((found, next))
        })
        .await
    }
}

impl EventsPage {
    fn add(&mut self, since: Seq, end: Seq, seq: Seq, kind: DatabaseEventKind, name: &str) {
        if seq > end {
            self.is_behind = true;
            return;
        }
        self.events.last_seq = self.events.last_seq.max(seq);
        if seq > since {
            self.events.events.push(DatabaseEvent { seq, kind, name: name.to_owned() });
        }
    }
}

/// Reads events and waits for further ones, with one watch for the list of databases, and one for each database, which
/// it shares with the feeds of that database.
pub struct DatabaseWatcher<D> {
    layer: Layer<D>,
    /// Completes when a database was created or dropped.
    list: Option<BoxFuture<'static, kv_api::Result<()>>>,
    /// Completes with the instance of a database that changed; `false` if it cannot be watched.
    waiting: FuturesUnordered<BoxFuture<'static, ([u8; 16], Result<bool>)>>,
    watched: HashSet<[u8; 16]>,
    is_behind: bool,
    misses_some: bool,
}

impl<D> fmt::Debug for DatabaseWatcher<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseWatcher").field("watched", &self.watched.len()).finish_non_exhaustive()
    }
}

impl<D: Database> DatabaseWatcher<D> {
    /// The events after `since`. No later event is missed by [`changed`](Self::changed).
    ///
    /// # Errors
    /// The store's errors.
    pub async fn read(&mut self, since: Seq) -> Result<DatabaseEvents> {
        let key = Key::Events.under(&self.layer.guard().root);
        // The watch starts before anything is read.
        let (version, list) = reading::run(self.layer.engine(), |transaction| {
            let (version, list) = (transaction.get_read_version(), transaction.watch(&key).boxed());
            async move {
                let version = version.await?;
                transaction.commit().await?;
                Ok((version, list))
            }
        })
        .await?;
        let page = self.layer.events_until(since, version).await?;
        self.list = Some(list);
        self.is_behind = page.is_behind;
        self.misses_some = false;
        for found in page.databases.into_iter().filter(|found| found.place.moved_to.is_none()) {
            let id = found.place.instance_id;
            if self.watched.contains(&id) {
                continue;
            }
            if self.watched.len() >= MOST_WATCHED {
                self.misses_some = true;
                break;
            }
            self.watched.insert(id);
            let documents = self.layer.documents(&found.name, &found.place, Access::Living);
            let mut watcher = documents.watch_changes(found.last);
            self.waiting.push(Box::pin(async move {
                let changed = match watcher.changed().await {
                    Ok(_) => Ok(true),
                    // The list shows that it was dropped.
                    Err(error) if is_gone(&error) => Ok(false),
                    Err(error) => Err(error),
                };
                (id, changed)
            }));
        }
        Ok(page.events)
    }

    /// Waits until there may be events after those that were read last.
    ///
    /// Cancel-safe.
    pub async fn changed(&mut self) {
        if self.is_behind {
            return;
        }
        poll_fn(|context| {
            if let Some(list) = &mut self.list
                && let Poll::Ready(ended) = list.poll_unpin(context)
            {
                self.list = None;
                match ended {
                    Ok(()) => return Poll::Ready(()),
                    Err(_) => self.misses_some = true,
                }
            }
            while let Poll::Ready(Some((id, changed))) = self.waiting.poll_next_unpin(context) {
                self.watched.remove(&id);
                match changed {
                    Ok(true) => return Poll::Ready(()),
                    Ok(false) => {}
                    Err(_) => self.misses_some = true,
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether it cannot watch some databases, since there are too many or the store has no more watches.
    /// Then [`read`](Self::read) must be called now and then.
    pub fn misses_some(&self) -> bool {
        self.misses_some
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound(NotFound::Database) | ErrorKind::Moved(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_rows_are_errors() {
        let mut row = Vec::new();
        tuple::append_u64(&mut row, FORMAT);
        row::append_stamp(&mut row, &[7; STAMP_LEN]);
        assert_eq!(read_event(&row).unwrap(), Seq::new(0, &[7; STAMP_LEN]));
        for cut in 0..row.len() {
            assert!(read_event(&row[..cut]).is_err(), "cut at {cut}");
        }
        assert!(read_event(&[&row[..], &[0]].concat()).is_err());
    }
}
