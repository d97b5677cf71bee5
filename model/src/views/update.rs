//! Brings a view group up to date from the changes feed.
//!
//! ```text
//!  read      changes after the group's sequence, with their documents      one read version
//!  map       the documents, outside of any transaction
//!  write     the group's row is still the one that was read ─┬─ no: another update was faster; begin again
//!            id rows ──► old rows go, new rows come ─► nodes └─ then the group's row names the new sequence
//! ```
//!
//! Map functions run on several threads, each with some documents ([`prepare_some`]), and an [update](ViewUpdate) that
//! has more to do reads and maps the next documents while it writes. Rows are written by one transaction after the
//! other, in the order of the feed.
//!
//! A document that changes after it was read has a later sequence, so a later batch has it again. Several updates of
//! one group conflict at the group's row: one of them wins, and the others continue after its batch. An update with an
//! unknown result finds the group's row changed, and does the same. So any server may continue an update at any time.
//!
//! A purge has no row in the feed. Each transaction first takes the next purges, and removes the rows of documents that
//! do not exist any more. If it took some, all documents that were read already, also those of the next batch, are read
//! again: one of them may be gone. If purges were forgotten meanwhile, the group is built anew.
//!
//! A transaction that is too large or becomes too old is tried again with half as many documents. A document that does
//! not fit even alone gets an error. It has no rows in the view where it emits the most bytes, then in the next such
//! view, until the rest fits.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join;
use jobs::Hold;
use kv_api::{Database, Read, RetryError, Runner, Transaction};

use super::group::ViewGroup;
use super::prepare::{Prepared, ROW_BYTES, WRITTEN_BYTES, fitting, mapped_documents, prepare_some};
use super::rows::{IdRow, Named, Place, clear_parts, set_row};
use super::tree::Tree;
use super::{Head, Upto};
use crate::batch::RETRIES;
use crate::catalog::allocate;
use crate::changes::{ChangesRequest, Since};
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::indexes::checked;
use crate::keys::DatabaseKey;
use crate::purge::{self, PurgeInfo};
use crate::read::Tree as Revisions;
use crate::seq::Seq;
use crate::unguarded::Unguarded;
use crate::write::is_too_much;

/// Maximum number of documents in a batch.
const DOCUMENTS_AT_ONCE: usize = 1_000;

/// Maximum number of purges that a transaction handles.
const PURGES_AT_ONCE: usize = 50;

/// How often the share of a transaction is halved. After that the share is at most one document or one purge.
const HALVINGS: u32 = 10;

/// Number of id rows that are read at the same time.
const AT_ONCE: usize = 100;

/// The progress of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewProgress {
    /// The sequence up to which the group is built.
    pub seq: Seq,
    /// Number of documents that this call processed.
    pub documents: u64,
    /// Whether there were more changes.
    pub more: bool,
    /// How many of these documents are left out of a view, given by its place: they cannot be read, or their functions
    /// exceed a limit.
    pub left_out: BTreeMap<usize, u64>,
}

/// Brings a group up to date, batch by batch, and reads and maps the next batch while one is written.
#[derive(Debug)]
pub struct ViewUpdate<D> {
    documents: Documents<D>,
    group: ViewGroup,
    ahead: Option<Batch>,
}

impl<D: Database> ViewUpdate<D> {
    /// Writes the next batch, of at most `most` documents. With `hold`, only a run that has the job can write.
    ///
    /// # Errors
    /// Like [`Documents::update_views`], and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn next(&mut self, most: usize, hold: Option<&Hold>) -> Result<ViewProgress> {
        let (documents, group) = (&self.documents, &self.group);
        let state = documents.view_state(group).await?;
        let batch = match self.ahead.take().filter(|ahead| ahead.after.place() == state.upto.place()) {
            Some(ahead) => ahead,
            None => documents.view_batch(group, state.upto, most).await?,
        };
        // Purges handled meanwhile invalidate these rows, so the state records their number.
        let next = Upto { seq: batch.last_seq, ..state.upto };
        let more = batch.more;
        let ahead = async {
            // An error comes again when the batch is read in its turn.
            if more { documents.view_batch(group, next, most).await.ok() } else { None }
        };
        let (progress, ahead) = join(documents.write_batch(group, state, batch, hold), ahead).await;
        self.ahead = ahead;
        progress
    }
}

/// Documents that were read and mapped.
#[derive(Debug)]
struct Batch {
    /// Up to where the group was built before it.
    after: Upto,
    documents: Vec<Prepared>,
    /// Up to where the feed was read.
    last_seq: Seq,
    /// Whether there is more in the feed.
    more: bool,
}

/// Places that came or went.
type Places = BTreeSet<Vec<u8>>;

/// A group and up to where it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    head: Head,
    upto: Upto,
}

impl<D: Database> Documents<D> {
    /// Brings a group up to the last sequence at the time of the call.
    ///
    /// # Errors
    /// 404 if the database is gone; errors of the functions; the store's errors.
    pub async fn update_views(&self, group: &ViewGroup) -> Result<()> {
        let wanted = self.last_seq().await?;
        let mut update = self.view_update(group);
        loop {
            let progress = update.next(usize::MAX, None).await?;
            if progress.seq >= wanted || !progress.more {
                return Ok(());
            }
        }
    }

    /// An update of many batches.
    pub fn view_update(&self, group: &ViewGroup) -> ViewUpdate<D> {
        ViewUpdate { documents: self.clone(), group: group.clone(), ahead: None }
    }

    /// Processes the next changes, of at most `most` documents. With `hold`, only a run that has the job can write.
    ///
    /// # Errors
    /// Like [`update_views`](Self::update_views), and [`ErrorKind::JobLost`](crate::ErrorKind::JobLost).
    pub async fn update_views_batch(
        &self,
        group: &ViewGroup,
        most: usize,
        hold: Option<&Hold>,
    ) -> Result<ViewProgress> {
        let state = self.view_state(group).await?;
        let batch = self.view_batch(group, state.upto, most).await?;
        self.write_batch(group, state, batch, hold).await
    }

    /// Reads and maps the next documents.
    async fn view_batch(&self, group: &ViewGroup, after: Upto, most: usize) -> Result<Batch> {
        let request = ChangesRequest {
            since: Since::Seq(after.seq),
            limit: Some(most.clamp(1, DOCUMENTS_AT_ONCE)),
            ..mapped_documents()
        };
        let read = self.changes(&request).await?;
        let (count, mut last_seq, mut more) = (read.rows.len(), read.last_seq, read.more);
        let documents = prepare_some(group, read.rows).await?;
        if let Some(last) = documents.last().filter(|_| documents.len() < count) {
            (last_seq, more) = (last.seq, true);
        }
        Ok(Batch { after, documents, last_seq, more })
    }

    async fn write_batch(
        &self,
        group: &ViewGroup,
        mut state: State,
        batch: Batch,
        hold: Option<&Hold>,
    ) -> Result<ViewProgress> {
        let Batch { documents: mut prepared, last_seq, more, .. } = batch;
        let mut progress = ViewProgress { seq: state.upto.seq, ..ViewProgress::default() };
        if last_seq <= state.upto.seq {
            return Ok(progress);
        }
        let (mut at, mut halvings) = (0, 0);
        loop {
            let written = match self.write_views(group, &state, &prepared[at..], halvings, last_seq, hold).await {
                Err(error) if error.kv_error().is_some_and(is_too_much) => {
                    match prepared.get_mut(at) {
                        _ if halvings < HALVINGS => halvings += 1,
                        // Even this document alone does not fit (or a purge does not, and it is never written).
                        Some(one) if !one.rows.is_empty() => one.leave_out_most(group),
                        // Its old rows cannot be removed either; rebuilding the group drops them.
                        _ => {
                            self.rebuild_views_at(group, &state, hold).await?;
                            return Ok(ViewProgress { more: true, ..progress });
                        }
                    }
                    continue;
                }
                written => written?,
            };
            let Some((upto, taken)) = written else {
                // Another update continued the group. There may be more.
                return Ok(ViewProgress { more: true, ..progress });
            };
            progress.seq = upto.seq;
            progress.documents += taken as u64;
            for view in prepared[at..at + taken].iter().flat_map(|one| one.left_out.keys()) {
                *progress.left_out.entry(*view).or_default() += 1;
            }
            if upto.seq == last_seq {
                return Ok(ViewProgress { more, ..progress });
            }
            if upto.purge_seq != state.upto.purge_seq {
                // A document of this batch may be gone, and the purge will not be seen again: the rest is read anew.
                return Ok(ViewProgress { more: true, ..progress });
            }
            state.upto = upto;
            at += taken;
            halvings = u32::saturating_sub(halvings, 1);
        }
    }

    /// The group as stored. A new one is added.
    async fn view_state(&self, group: &ViewGroup) -> Result<State> {
        let found = self
            .read(|tx| async move {
                let instance = self.instance(&tx, Read::Snapshot);
                let head = self.view_head(&tx, group.signature(), Read::Snapshot);
                instance.await?;
                let Some(head) = head.await? else { return Ok(None) };
                let upto = self.view_upto(&tx, head.number, Read::Snapshot).await?;
                Ok(Some(State { head, upto }))
            })
            .await?;
        match found {
            Some(state) => Ok(state),
            None => self.add_view_group(group).await,
        }
    }

    async fn add_view_group(&self, group: &ViewGroup) -> Result<State> {
        let keys = self.keys();
        let mut secret = [0; 16];
        self.shared.guard.environment.random(&mut secret);
        // Adding it twice has the effect of adding it once.
        Runner::new(self.engine())
            .option(RETRIES)
            .run(|tx, _| async move {
                let instance = self.instance(&tx, Read::Serializable);
                let head = self.view_head(&tx, group.signature(), Read::Serializable);
                let allocator = keys.key(DatabaseKey::NextViewGroup);
                let next = tx.get(&allocator, Read::Serializable);
                let purged = tx.get_range(&purge::newest(keys), Read::Snapshot);
                instance.await?;
                if let Some(head) = head.await? {
                    let upto = self.view_upto(&tx, head.number, Read::Snapshot).await?;
                    return Ok(State { head, upto });
                }
                let number = allocate(&tx, &allocator, next.await?.as_deref())?;
                let (is_of_design, name) = (group.is_of_design(), group.name().to_owned());
                let head = Head { number, secret, is_of_design, name };
                let upto = Upto { purge_seq: purge::seq_of(keys, &purged.await?.rows)?, ..Upto::default() };
                tx.set(keys.key(DatabaseKey::ViewGroup(group.signature())), head.write());
                tx.set(keys.key(DatabaseKey::ViewRows(number)), upto.write());
                Ok(State { head, upto })
            })
            .await
    }

    /// Handles the next purges, and then writes the rows of the first of these documents: as many as fit into a
    /// transaction, halved this many times. Returns the progress and their number; `None` if the group is not at
    /// `state` any more.
    async fn write_views(
        &self,
        group: &ViewGroup,
        state: &State,
        documents: &[Prepared],
        halvings: u32,
        last_seq: Seq,
        hold: Option<&Hold>,
    ) -> Result<Option<(Upto, usize)>> {
        let share =
            Share { documents: (fitting(documents) >> halvings).max(1), purges: (PURGES_AT_ONCE >> halvings).max(1) };
        Runner::new(self.engine())
            .option(RETRIES)
            .run(|tx, _| async move {
                self.write_views_in(&tx, group, state, documents, share, last_seq, hold).await.map_err(OrTooMuch)
            })
            .await
            .map_err(|OrTooMuch(error)| error)
    }

    /// Whether a group is still at `state`. Later writes conflict if it leaves it.
    async fn is_at(&self, tx: &D::Transaction, group: &ViewGroup, state: &State, hold: Option<&Hold>) -> Result<bool> {
        let checked = checked(hold, tx);
        let instance = self.instance(tx, Read::Serializable);
        let head = self.view_head(tx, group.signature(), Read::Serializable);
        let upto = tx.get(&self.keys().key(DatabaseKey::ViewRows(state.head.number)), Read::Serializable);
        instance.await?;
        checked.await?;
        let upto = upto.await?.map(|upto| Upto::read(&upto)).transpose()?;
        Ok(head.await?.as_ref() == Some(&state.head) && upto == Some(state.upto))
    }

    #[allow(clippy::too_many_arguments)]
    async fn write_views_in(
        &self,
        tx: &D::Transaction,
        group: &ViewGroup,
        state: &State,
        documents: &[Prepared],
        share: Share,
        last_seq: Seq,
        hold: Option<&Hold>,
    ) -> Result<Option<(Upto, usize)>> {
        let (keys, number) = (self.keys(), state.head.number);
        let purges = keys.purges_from(state.upto.purge_seq + 1).limit(share.purges);
        let purges = tx.get_range(&purges, Read::Snapshot);
        if !self.is_at(tx, group, state, hold).await? {
            return Ok(None);
        }
        let purges = purges.await?;
        let (mut purge_seq, mut gone) = (state.upto.purge_seq, BTreeSet::new());
        for row in &purges.rows {
            let info = keys.read_purge(&row.key).and_then(|seq| PurgeInfo::read(seq, &row.value));
            let Some(info) = info.ok().filter(|info| info.seq == purge_seq + 1) else {
                // Purges were forgotten or cannot be read, so it is unknown which documents are gone.
                return Ok(Some((self.rebuild_views(tx, number).await?, 0)));
            };
            purge_seq = info.seq;
            gone.insert(info.id);
        }
        // While there are more purges, no documents follow: the sequence says that all purges before it were handled.
        let more_purges = purges.more || purges.rows.len() >= share.purges;
        let now = if more_purges { &[] } else { &documents[..share.documents.min(documents.len())] };
        let gone = self.purged(tx, gone).await?;

        // The old rows, by document.
        let mut had: BTreeMap<&str, (IdRow, u64)> = BTreeMap::new();
        let (mut taken, mut bytes) = (0, 0);
        let ids: Vec<&str> = gone.iter().map(String::as_str).chain(now.iter().map(|one| one.id.as_str())).collect();
        let mut at = 0;
        'ids: for some in ids.chunks(AT_ONCE) {
            let reads: Vec<_> =
                some.iter().map(|id| tx.get(&keys.key(DatabaseKey::ViewIds(number, id)), Read::Snapshot)).collect();
            for (id, read) in some.iter().zip(reads) {
                // At least one document, and all that are gone.
                if taken > 0 && bytes > WRITTEN_BYTES {
                    break 'ids;
                }
                if let Some(first) = read.await? {
                    let (row, parts) = IdRow::read(tx, keys, number, id, &first).await?;
                    bytes += row.rows.iter().map(|row| 2 * (row.key.len() + id.len()) + ROW_BYTES).sum::<usize>();
                    had.insert(id, (row, parts));
                }
                at += 1;
                taken = usize::saturating_sub(at, gone.len());
            }
        }
        let now = &now[..taken];
        let seq = match now.last() {
            _ if more_purges => state.upto.seq,
            // After the last document, the feed was read to there.
            Some(last) if taken < documents.len() => last.seq,
            _ => last_seq,
        };
        let mut left_out = state.upto.left_out;
        let mut changed: Vec<(Places, Places)> = vec![Default::default(); group.views().len()];
        for (id, (row, _)) in &had {
            for named in &row.rows {
                let place = Place { key: named.key.clone(), id: (*id).to_owned(), emit: named.emit }.write();
                let view = named.view;
                if let Some((_, went)) = usize::try_from(view).ok().and_then(|view| changed.get_mut(view)) {
                    if named.has_parts {
                        clear_parts(tx, keys, (number, view), &place);
                    }
                    let row = DatabaseKey::ViewRow { group: number, view, level: 0, place: &place };
                    tx.clear_unguarded(&keys.key(row));
                    went.insert(place);
                }
            }
            if row.has_error {
                tx.clear_unguarded(&keys.key(DatabaseKey::ViewError(number, id)));
            }
            for &view in &row.left_out {
                tx.clear_unguarded(&keys.key(DatabaseKey::ViewLeftOut { group: number, view, id }));
                left_out = left_out.saturating_sub(1);
            }
        }
        for one in now.iter().filter(|one| !gone.contains(&one.id)) {
            let mut row = IdRow { has_error: one.error.is_some(), ..IdRow::default() };
            for (view, place, pair) in &one.rows {
                let at = place.write();
                let has_parts = set_row(tx, keys, (number, *view as u64), &at, pair);
                row.rows.push(Named { view: *view as u64, emit: place.emit, has_parts, key: place.key.clone() });
                if let Some((came, went)) = changed.get_mut(*view) {
                    went.remove(&at);
                    came.insert(at);
                }
            }
            if let Some(error) = &one.error {
                tx.set_unguarded(keys.key(DatabaseKey::ViewError(number, &one.id)), error.row());
            }
            for (view, error) in &one.left_out {
                let (view, id) = (*view as u64, one.id.as_str());
                tx.set_unguarded(keys.key(DatabaseKey::ViewLeftOut { group: number, view, id }), error.row());
                row.left_out.push(view);
                left_out += 1;
            }
            let parts = had.get(one.id.as_str()).map_or(0, |(_, parts)| *parts);
            if !row.is_empty() {
                row.set(tx, keys, number, &one.id, parts);
            } else if parts > 0 {
                let (begin, end) = keys.bounds(DatabaseKey::ViewIds(number, &one.id));
                tx.clear_range(&begin, &end);
            }
        }
        for id in &gone {
            let (begin, end) = keys.bounds(DatabaseKey::ViewIds(number, id));
            tx.clear_range(&begin, &end);
        }
        for (view, (came, went)) in changed.iter().enumerate() {
            if !came.is_empty() || !went.is_empty() {
                let tree = Tree { tx, keys, group, secret: &state.head.secret, number, view };
                tree.update(came, went).await?;
            }
        }
        let upto = Upto { seq, purge_seq, left_out };
        tx.set(keys.key(DatabaseKey::ViewRows(number)), upto.write());
        Ok(Some((upto, taken)))
    }

    /// Those of these documents that do not exist any more.
    pub(super) async fn purged(&self, tx: &D::Transaction, ids: BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut gone = BTreeSet::new();
        let reads: Vec<_> = ids
            .into_iter()
            .map(|id| {
                let read = Revisions::Winner.read(tx, self.keys(), &id);
                (id, read)
            })
            .collect();
        for (id, read) in reads {
            // A document that cannot be read is reported by the feed.
            if crate::error::alone(read.await)?.is_ok_and(|branches| branches.is_empty()) {
                gone.insert(id);
            }
        }
        Ok(gone)
    }

    /// Begins to rebuild a group, if it is still at `state`.
    async fn rebuild_views_at(&self, group: &ViewGroup, state: &State, hold: Option<&Hold>) -> Result<()> {
        Runner::new(self.engine())
            .option(RETRIES)
            .run(|tx, _| async move {
                if self.is_at(&tx, group, state, hold).await? {
                    self.rebuild_views(&tx, state.head.number).await?;
                }
                Ok(())
            })
            .await
    }

    /// Removes all rows of a group, which is built again.
    pub(super) async fn rebuild_views(&self, tx: &D::Transaction, number: u64) -> Result<Upto> {
        let keys = self.keys();
        let purged = tx.get_range(&purge::newest(keys), Read::Snapshot);
        let upto = Upto { purge_seq: purge::seq_of(keys, &purged.await?.rows)?, ..Upto::default() };
        let (begin, end) = keys.bounds(DatabaseKey::ViewRows(number));
        tx.clear_range(&begin, &end);
        tx.set(begin, upto.write());
        Ok(upto)
    }
}

/// How much a transaction takes at most.
#[derive(Clone, Copy)]
struct Share {
    documents: usize,
    purges: usize,
}

/// An error that is returned at once if a smaller transaction may succeed, and otherwise retried as usual.
struct OrTooMuch(Error);

impl From<kv_api::Error> for OrTooMuch {
    fn from(error: kv_api::Error) -> Self {
        OrTooMuch(error.into())
    }
}

impl RetryError for OrTooMuch {
    fn kv_error(&self) -> Option<&kv_api::Error> {
        self.0.kv_error().filter(|error| !is_too_much(error))
    }
}
