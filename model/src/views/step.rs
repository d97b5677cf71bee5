//! One transaction of an update.
//!
//! ```text
//!  purges      the next ones; documents follow only if there are no more
//!  old rows    of removed documents, and of as many of the others as fit into the transaction
//!  write       old rows are removed, new rows set, then the nodes above them, and the group's row
//! ```

use std::collections::{BTreeMap, BTreeSet};

use jobs::Hold;
use kv_api::{Database, Read, Transaction};

use super::group::ViewGroup;
use super::prepare::{Prepared, ROW_BYTES, WRITTEN_BYTES, fitting};
use super::rows::{IdRow, Named, Place, clear_parts, set_row};
use super::tree::ViewTree;
use super::{BuiltGroup, Upto};
use crate::admin::purge::{self, PurgeInfo};
use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::feed::seq::Seq;
use crate::indexes::checked;
use crate::keys::DatabaseKey;
use crate::read::winner::TreePart;
use crate::write::unguarded::Unguarded;

/// Maximum number of purges that a transaction handles.
const PURGES_AT_ONCE: usize = 50;

/// Number of id rows that are read at the same time.
const AT_ONCE: usize = 100;

/// The part of a batch that is not written yet.
#[derive(Clone, Copy)]
pub(super) struct Rest<'b> {
    pub(super) documents: &'b [Prepared],
    /// The sequence up to which the feed was read, after the last of them.
    pub(super) last_seq: Seq,
}

/// Maximum amounts of a transaction.
#[derive(Clone, Copy)]
struct Share {
    documents: usize,
    purges: usize,
}

impl Rest<'_> {
    /// The share of a transaction, halved this many times: at least one document or one purge.
    fn share(&self, halvings: u32) -> Share {
        let half = |most: usize| (most >> halvings).max(1);
        Share { documents: half(fitting(self.documents)).min(self.documents.len()), purges: half(PURGES_AT_ONCE) }
    }
}

/// The result of a transaction.
pub(super) struct Written {
    pub(super) upto: Upto,
    /// Number of documents.
    pub(super) documents: usize,
}

/// The next purges of a group.
struct Purges {
    /// The last of them.
    seq: u64,
    /// Documents that no longer exist.
    gone: BTreeSet<String>,
    /// Whether there are more.
    more: bool,
}

/// The previous id rows of documents, each with the number of its parts.
type OldRows<'d> = BTreeMap<&'d str, (IdRow, u64)>;

/// The added and removed places of a view.
#[derive(Default)]
struct Moved {
    came: BTreeSet<Vec<u8>>,
    went: BTreeSet<Vec<u8>>,
}

/// A transaction of an update of a group whose progress is `state`.
pub(super) struct Step<'s, D: Database> {
    pub(super) documents: &'s Documents<D>,
    pub(super) tx: &'s D::Transaction,
    pub(super) group: &'s ViewGroup,
    pub(super) state: &'s BuiltGroup,
    /// With it, only a run that has the job can write.
    pub(super) hold: Option<&'s Hold>,
}

impl<D: Database> Step<'_, D> {
    /// Whether the group is still at `state`. If it changes later, the writes conflict.
    pub(super) async fn is_current(&self) -> Result<bool> {
        let Step { documents, tx, state, .. } = *self;
        let instance = documents.instance(tx, Read::Serializable);
        let checked = checked(self.hold, tx);
        let head = documents.view_head(tx, self.group.signature(), Read::Serializable);
        let upto = tx.get(&documents.keys().key(DatabaseKey::ViewRows(state.head.number)), Read::Serializable);
        instance.await?;
        checked.await?;
        let upto = upto.await?.map(|upto| Upto::read(&upto)).transpose()?;
        Ok(head.await?.as_ref() == Some(&state.head) && upto == Some(state.upto))
    }

    /// Handles the next purges, and then writes the rows of the first documents of `rest`: as many as fit into a
    /// transaction, halved this many times. `None` if the group is no longer at `state`.
    pub(super) async fn write(&self, rest: Rest<'_>, halvings: u32) -> Result<Option<Written>> {
        let (upto, number, share) = (self.state.upto, self.state.head.number, rest.share(halvings));
        let purges = self.documents.keys().purges_from(upto.purge_seq + 1).limit(share.purges);
        let purges = self.tx.get_range(&purges, Read::Snapshot);
        if !self.is_current().await? {
            return Ok(None);
        }
        let Some(purges) = self.purges(purges.await?, share).await? else {
            // Purges were forgotten or cannot be read, so it is unknown which documents are gone.
            return Ok(Some(Written { upto: self.documents.rebuild_views(self.tx, number).await?, documents: 0 }));
        };
        // The group's sequence means that all purges before it were handled.
        let next = if purges.more { &[] } else { &rest.documents[..share.documents] };
        let (old, taken) = self.old_rows(&purges.gone, next).await?;
        let seq = match next[..taken].last() {
            _ if purges.more => upto.seq,
            // After the last document, the position is where the feed was read to.
            Some(last) if taken < rest.documents.len() => last.seq,
            _ => rest.last_seq,
        };
        let left_out = self.replace(&old, &purges.gone, &next[..taken]).await?;
        let upto = Upto { seq, purge_seq: purges.seq, left_out };
        self.tx.set(self.documents.keys().key(DatabaseKey::ViewRows(number)), upto.write());
        Ok(Some(Written { upto, documents: taken }))
    }

    /// The purges of these rows; `None` if one is missing.
    async fn purges(&self, batch: kv_api::RangeBatch, share: Share) -> Result<Option<Purges>> {
        let keys = self.documents.keys();
        let (mut seq, mut gone) = (self.state.upto.purge_seq, BTreeSet::new());
        for row in &batch.rows {
            let info = keys.read_purge(&row.key).and_then(|seq| PurgeInfo::read(seq, &row.value));
            let Some(info) = info.ok().filter(|info| info.seq == seq + 1) else { return Ok(None) };
            seq = info.seq;
            gone.insert(info.id);
        }
        let more = batch.more || batch.rows.len() >= share.purges;
        Ok(Some(Purges { seq, gone: self.documents.purged(self.tx, gone).await?, more }))
    }

    /// Reads the id rows of all removed documents, and of as many of the next ones as have rows that fit into a
    /// transaction: at least one. Also returns the number of the latter.
    async fn old_rows<'d>(&self, gone: &'d BTreeSet<String>, next: &'d [Prepared]) -> Result<(OldRows<'d>, usize)> {
        let (tx, keys, number) = (self.tx, self.documents.keys(), self.state.head.number);
        let ids: Vec<&str> = gone.iter().map(String::as_str).chain(next.iter().map(|one| one.id.as_str())).collect();
        let (mut old, mut taken, mut bytes) = (OldRows::new(), 0, 0);
        for (chunk, some) in ids.chunks(AT_ONCE).enumerate() {
            let reads: Vec<_> =
                some.iter().map(|id| tx.get(&keys.key(DatabaseKey::ViewIds(number, id)), Read::Snapshot)).collect();
            for (place, (id, read)) in some.iter().zip(reads).enumerate() {
                if taken > 0 && bytes > WRITTEN_BYTES {
                    return Ok((old, taken));
                }
                if let Some(first) = read.await? {
                    let (row, parts) = IdRow::read(tx, keys, number, id, &first).await?;
                    bytes += row.rows.iter().map(|row| 2 * (row.key.len() + id.len()) + ROW_BYTES).sum::<usize>();
                    old.insert(id, (row, parts));
                }
                taken = (chunk * AT_ONCE + place + 1).saturating_sub(gone.len());
            }
        }
        Ok((old, taken))
    }

    /// Replaces the old rows of documents by new ones. Returns the group's new number of rows that leave a document
    /// out.
    async fn replace(&self, old: &OldRows<'_>, gone: &BTreeSet<String>, new: &[Prepared]) -> Result<u64> {
        let (tx, keys, number) = (self.tx, self.documents.keys(), self.state.head.number);
        let mut left_out = self.state.upto.left_out;
        let mut moved: Vec<Moved> = self.group.views().iter().map(|_| Moved::default()).collect();
        for (id, (row, _)) in old {
            self.clear(id, row, &mut moved);
            left_out = left_out.saturating_sub(row.left_out.len() as u64);
        }
        for one in new.iter().filter(|one| !gone.contains(&one.id)) {
            let row = self.set(one, &mut moved);
            left_out += row.left_out.len() as u64;
            let parts = old.get(one.id.as_str()).map_or(0, |(_, parts)| *parts);
            if !row.is_empty() {
                row.set(tx, keys, number, &one.id, parts);
            } else if parts > 0 {
                self.clear_id_row(&one.id);
            }
        }
        gone.iter().for_each(|id| self.clear_id_row(id));
        let secret = &self.state.head.secret;
        for (view, Moved { came, went }) in moved.iter().enumerate() {
            if !came.is_empty() || !went.is_empty() {
                ViewTree { tx, keys, group: self.group, secret, number, view }.update(came, went).await?;
            }
        }
        Ok(left_out)
    }

    /// Clears the rows of a document, except the id row.
    fn clear(&self, id: &str, row: &IdRow, moved: &mut [Moved]) {
        let (tx, keys, group) = (self.tx, self.documents.keys(), self.state.head.number);
        for Named { view, emit, has_parts, key } in &row.rows {
            let place = Place { key: key.clone(), id: id.to_owned(), emit: *emit }.write();
            let Some(moved) = usize::try_from(*view).ok().and_then(|view| moved.get_mut(view)) else { continue };
            if *has_parts {
                clear_parts(tx, keys, (group, *view), &place);
            }
            tx.clear_unguarded(&keys.key(DatabaseKey::ViewRow { group, view: *view, level: 0, place: &place }));
            moved.went.insert(place);
        }
        if row.has_error {
            tx.clear_unguarded(&keys.key(DatabaseKey::ViewError(group, id)));
        }
        for &view in &row.left_out {
            tx.clear_unguarded(&keys.key(DatabaseKey::ViewLeftOut { group, view, id }));
        }
    }

    /// Sets the new rows of a document. Returns the id row, which is not set yet.
    fn set(&self, document: &Prepared, moved: &mut [Moved]) -> IdRow {
        let (tx, keys, group) = (self.tx, self.documents.keys(), self.state.head.number);
        let id = document.id.as_str();
        let mut row = IdRow { has_error: document.error.is_some(), ..IdRow::default() };
        for (view, place, pair) in &document.rows {
            let at = place.write();
            let has_parts = set_row(tx, keys, (group, *view as u64), &at, pair);
            row.rows.push(Named { view: *view as u64, emit: place.emit, has_parts, key: place.key.clone() });
            if let Some(moved) = moved.get_mut(*view) {
                moved.went.remove(&at);
                moved.came.insert(at);
            }
        }
        if let Some(error) = &document.error {
            tx.set_unguarded(keys.key(DatabaseKey::ViewError(group, id)), error.row());
        }
        for (view, error) in &document.left_out {
            let view = *view as u64;
            tx.set_unguarded(keys.key(DatabaseKey::ViewLeftOut { group, view, id }), error.row());
            row.left_out.push(view);
        }
        row
    }

    fn clear_id_row(&self, id: &str) {
        let (begin, end) = self.documents.keys().bounds(DatabaseKey::ViewIds(self.state.head.number, id));
        self.tx.clear_range(&begin, &end);
    }
}

impl<D: Database> Documents<D> {
    /// Those of these documents that no longer exist.
    pub(super) async fn purged(&self, tx: &D::Transaction, ids: BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut gone = BTreeSet::new();
        let reads: Vec<_> = ids
            .into_iter()
            .map(|id| {
                let read = TreePart::Winner.read(tx, self.keys(), &id);
                (id, read)
            })
            .collect();
        for (id, read) in reads {
            // A document that cannot be read is reported by the feed.
            if alone(read.await)?.is_ok_and(|branches| branches.is_empty()) {
                gone.insert(id);
            }
        }
        Ok(gone)
    }

    /// Removes all rows of a group, so that it is rebuilt.
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
