//! The steps of a collection of documents that no document names, such as chunks of files.
//!
//! ```text
//!  begin      the instance row gets the next number: the collection's. One that begins after its census only condemns
//!  (census)   the caller reads all documents, and finds the ones that nobody names
//!  condemn    (20, DocID) = condemned, now, number
//!  discard    condemned long ago, by an earlier collection ─► tombstone, body into the trash
//!  empty      in the trash for long, by an earlier collection ─► tombstone purged, body gone
//! ```
//!
//! Why no document that is named is deleted: every edit reads the rows of what it [names](super::revive), with conflict
//! ranges, and clears them. A row that an earlier collection wrote was there before this one's census began. So a file
//! that names the document was written either before the census, which then saw it, or after the row, which is then
//! gone; and the deletion reads the row with a conflict range. Neither clocks nor sequences take part in this.
//!
//! Invariants: only the last collection that began writes. Each step is one transaction for each batch, so a collection
//! that ends anywhere leaves a consistent state, and the next one goes on.

use std::collections::{BTreeMap, BTreeSet};

use json::JsonText;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt, TransactionOption};

use super::attempt::{Attempt, MissingStub};
use super::draft::Turn;
use super::revive::clear_row;
use super::verdicts::Verdicts;
use crate::admin::purge::Purge;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, Subspace, end_of};
use crate::read::document::{Document, GetOptions};
use crate::rows::blob;
use crate::rows::branch::branches;
use crate::rows::instance::Instance;
use crate::rows::trash_row::TrashRow;
use crate::write::edit::{Edit, WriteMode};
use crate::write::txids::Outcome;

/// Number of documents in a transaction.
const AT_ONCE: usize = 100;

/// Approximate bytes of the bodies in a transaction.
const BYTES: usize = 2_000_000;

/// A collection that began before its census, which may condemn and delete. No run that read its documents earlier has
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection(u64);

/// A collection that may condemn. One that began after its census may do no more: documents may have been named since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condemning(u64);

impl From<Collection> for Condemning {
    fn from(collection: Collection) -> Self {
        Condemning(collection.0)
    }
}

/// What [`Documents::discard_condemned`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Number of documents that were deleted and are in the trash now.
    pub documents: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Documents that were due and stay, each with the reason.
    pub left: Vec<(String, String)>,
    /// Documents that are not condemned, or not by an earlier collection.
    pub not_condemned: Vec<String>,
}

/// A document that is condemned or in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTrash {
    /// Its id.
    pub id: String,
    /// Whether it was deleted and its body is in the trash. It is condemned, and lives, if not.
    pub deleted: bool,
    /// When it was condemned or deleted, in milliseconds since 1970.
    pub since_ms: u64,
}

impl<D: Database> Documents<D> {
    /// Begins a collection of documents that no document names in its list `children`. The caller **then** reads which
    /// ones these are. An earlier collection that still runs can no longer write. From now on an edit looks up what it
    /// names.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn begin_collection(&self) -> Result<Collection> {
        Ok(Collection(self.begin().await?))
    }

    /// Begins a collection whose census was made before: it may condemn only. So a database in which there is nothing
    /// to condemn is not changed.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn begin_condemning(&self) -> Result<Condemning> {
        Ok(Condemning(self.begin().await?))
    }

    async fn begin(&self) -> Result<u64> {
        let change = |_, instance: Instance| async move {
            let collections = instance.collections + 1;
            Ok((collections, Some(Instance { collections, ..instance })))
        };
        self.change_instance(change).await
    }

    /// Condemns documents that the census of this collection found unnamed. Returns how many were not condemned before.
    ///
    /// # Errors
    /// 400 if another collection has begun; 404 if the database is gone.
    pub async fn condemn(&self, collection: impl Into<Condemning>, ids: &[String]) -> Result<u64> {
        let Condemning(collection) = collection.into();
        let mut condemned = 0;
        for some in ids.chunks(AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.collecting(&transaction, collection).await?;
                let (keys, rows) = (self.keys(), self.trash_rows_of(&transaction, some).await?);
                let since_ms = self.shared.guard.environment.now_ms();
                let row = TrashRow { in_trash: false, since_ms, collection }.write();
                let mut new = 0;
                for id in some {
                    match rows.get(id) {
                        Some(row) if !row.in_trash => continue,
                        // What is in the trash may be all that is left of it.
                        Some(_) if self.live(&transaction, id).await?.is_none() => continue,
                        Some(_) => clear_row(&transaction, keys, id),
                        // Unreadable rows are kept.
                        None if self.has_row(&transaction, id).await? => continue,
                        None => {}
                    }
                    transaction.set(keys.key(DatabaseKey::Trash(id)), row.clone());
                    new += 1;
                }
                Ok(if new == 0 { Outcome::ReadOnly(0) } else { Outcome::Write(new) })
            };
            condemned += self.shared.guard.run(run).await?;
        }
        Ok(condemned)
    }

    /// Deletes those of some documents that the census of this collection found unnamed and that an earlier one
    /// condemned at least `grace_ms` ago. Their bodies go into the trash. A document with attachments, or in conflict, stays.
    ///
    /// # Errors
    /// 400 if another collection has begun; 404 if the database is gone.
    pub async fn discard_condemned(&self, collection: Collection, ids: &[String], grace_ms: u64) -> Result<Discarded> {
        let Collection(collection) = collection;
        let due_ms = self.ago(grace_ms);
        let (mut all, mut rest) = (Discarded::default(), ids);
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(AT_ONCE)];
            let run = |transaction: D::Transaction| async move {
                transaction.set_option(TransactionOption::BypassStorageQuota);
                self.discard_some(&transaction, collection, some, due_ms).await
            };
            let (taken, done) = self.shared.guard.run(run).await?;
            all.documents += done.documents;
            all.bytes += done.bytes;
            all.left.extend(done.left);
            all.not_condemned.extend(done.not_condemned);
            rest = &rest[taken.clamp(1, rest.len())..];
        }
        Ok(all)
    }

    /// Discards the first of these documents, as many as have [`BYTES`] together. Returns how many were looked at.
    async fn discard_some(
        &self,
        transaction: &D::Transaction,
        collection: u64,
        ids: &[String],
        due_ms: u64,
    ) -> Result<Outcome<(usize, Discarded)>> {
        self.collecting(transaction, collection).await?;
        let (keys, rows) = (self.keys(), self.trash_rows_of(transaction, ids).await?);
        let (mut done, mut found, mut gone) = (Discarded::default(), Vec::<(Edit, Document)>::new(), Vec::new());
        let (mut bytes, mut taken) = (0, 0);
        for id in ids {
            if bytes > BYTES {
                break;
            }
            taken += 1;
            match rows.get(id) {
                Some(row) if !row.in_trash && row.collection < collection => {
                    if row.since_ms > due_ms {
                        continue;
                    }
                }
                Some(row) if !row.in_trash => continue,
                _ => {
                    done.not_condemned.push(id.clone());
                    continue;
                }
            }
            match alone(self.live(transaction, id).await)? {
                Ok(Some(document)) if document.attachments.is_empty() => {
                    bytes += document.body.len();
                    found.push((
                        Edit::new(id.clone(), JsonText::empty_object()).over(document.rev.clone()).deleting(),
                        document,
                    ));
                }
                Ok(Some(_)) => done.left.push((id.clone(), "has attachments".into())),
                Ok(None) => gone.push(id),
                Err(damage) => done.left.push((id.clone(), damage.reason().to_string())),
            }
        }
        for id in &gone {
            clear_row(transaction, keys, id);
        }
        let turns: Vec<Turn<'_>> = found.iter().enumerate().map(|(turn, (edit, _))| Turn { turn, edit }).collect();
        let (drafts, verdicts) = (self.drafts(&turns, WriteMode::Interactive), Verdicts::default());
        let attempt = self.attempt(transaction, &drafts, WriteMode::Interactive, &verdicts);
        let attempt = Attempt { missing_stub: MissingStub::FailsItsEdit, ..attempt };
        let mut decisions = attempt.decide().await?;
        attempt.validate(&mut decisions).await?;
        for decided in &mut decisions.documents {
            if decided.plan.as_ref().is_ok_and(|plan| plan.as_ref().is_some_and(|plan| plan.branches > 1)) {
                decided.plan = Err(Error::conflict());
            }
        }
        let (decided, written) = attempt.apply(attempt.prepare(decisions).await?).await?;
        let row = TrashRow { in_trash: true, since_ms: self.shared.guard.environment.now_ms(), collection }.write();
        for (decided, (edit, document)) in decided.iter().zip(&found) {
            match &decided.plan {
                Ok(Some(_)) => {
                    blob::set(transaction, &keys.key(DatabaseKey::TrashDoc(&edit.id)), 0, &document.body);
                    transaction.set(keys.key(DatabaseKey::Trash(&edit.id)), row.clone());
                    done.documents += 1;
                    done.bytes += document.body.len() as u64;
                }
                Ok(None) => {}
                Err(error) if error.kind() == &ErrorKind::Conflict => {
                    done.left.push((edit.id.clone(), "has several revisions".into()));
                }
                Err(error) => done.left.push((edit.id.clone(), error.reason().to_string())),
            }
        }
        let is_unchanged = written == 0 && gone.is_empty();
        Ok(if is_unchanged { Outcome::ReadOnly((taken, done)) } else { Outcome::Write((taken, done)) })
    }

    /// What is condemned or in the trash after an id, in the order of ids. Unreadable rows are left out.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn trash(&self, after: Option<&str>, limit: usize) -> Result<Vec<InTrash>> {
        let keys = self.keys();
        let (first, end) = keys.bounds(DatabaseKey::All(Subspace::Trash));
        let begin = after.map_or(first, |id| end_of(&keys.key(DatabaseKey::Trash(id))));
        let range = &RangeRequest::keys(begin, end).limit(limit);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            async move {
                if instance.await?.collections == 0 {
                    return Ok(Vec::new());
                }
                let rows = transaction.get_all(range.clone(), Read::Snapshot).await?;
                let read = |row: &kv_api::KeyValue| {
                    let (id, row) = (keys.read_trash(&row.key).ok()?, TrashRow::read(&row.value).ok()?);
                    Some(InTrash { id, deleted: row.in_trash, since_ms: row.since_ms })
                };
                Ok(rows.iter().filter_map(read).collect())
            }
        })
        .await
    }

    /// Takes documents out of the list of the condemned: the census of this collection found them named.
    ///
    /// # Errors
    /// 400 if another collection has begun; 404 if the database is gone.
    pub async fn acquit(&self, collection: Collection, ids: &[String]) -> Result<()> {
        let Collection(collection) = collection;
        for some in ids.chunks(AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.collecting(&transaction, collection).await?;
                let rows = self.trash_rows_of(&transaction, some).await?;
                let condemned: Vec<&String> = rows.iter().filter(|(_, row)| !row.in_trash).map(|(id, _)| id).collect();
                condemned.iter().for_each(|id| clear_row(&transaction, self.keys(), id));
                Ok(if condemned.is_empty() { Outcome::ReadOnly(()) } else { Outcome::Write(()) })
            };
            self.shared.guard.run(run).await?;
        }
        Ok(())
    }

    /// Removes for good those of some documents that an earlier collection than this one put into the trash at least
    /// `age_ms` ago: their tombstones are purged, and their bodies removed. Returns how many. **Whoever still names one
    /// without having sent it cannot get it back from here.**
    ///
    /// # Errors
    /// 400 if another collection has begun; 404 if the database is gone.
    pub async fn empty_trash(&self, collection: Collection, ids: &[String], age_ms: u64) -> Result<u64> {
        let Collection(collection) = collection;
        let due_ms = self.ago(age_ms);
        let mut removed = 0;
        for some in ids.chunks(AT_ONCE) {
            // A tombstone goes before the body in the trash: without one, a file that names the document makes it anew.
            let tombstones =
                self.read(|transaction| self.due_tombstones(transaction, collection, some, due_ms)).await?;
            for purged in self.purge_deleted(&tombstones).await? {
                purged?;
            }
            let run = |transaction: D::Transaction| async move {
                self.collecting(&transaction, collection).await?;
                let rows = self.trash_rows_of(&transaction, some).await?;
                let due: Vec<&String> =
                    rows.iter().filter(|(_, row)| is_due(row, collection, due_ms)).map(|(id, _)| id).collect();
                due.iter().for_each(|id| clear_row(&transaction, self.keys(), id));
                let count = due.len() as u64;
                Ok(if count == 0 { Outcome::ReadOnly(0) } else { Outcome::Write(count) })
            };
            removed += self.shared.guard.run(run).await?;
        }
        Ok(removed)
    }

    /// The tombstones of those of these documents that are in the trash for long.
    async fn due_tombstones(
        &self,
        transaction: D::Transaction,
        collection: u64,
        ids: &[String],
        due_ms: u64,
    ) -> Result<Vec<Purge>> {
        self.collecting(&transaction, collection).await?;
        let (keys, rows) = (self.keys(), self.trash_rows_of(&transaction, ids).await?);
        let mut purges = Vec::new();
        for (id, _) in rows.iter().filter(|(_, row)| is_due(row, collection, due_ms)) {
            let known = transaction.get_all(keys.range(DatabaseKey::RevisionsOf(id)), Read::Snapshot).await?;
            let revs = branches(keys, id, &known)?.into_iter().map(|branch| branch.leaf.rev).collect();
            purges.push(Purge::new(id.clone(), revs));
        }
        Ok(purges)
    }

    /// The number of the last collection that began; zero if there was none.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn last_collection(&self) -> Result<u64> {
        Ok(self.read(|transaction| self.instance(&transaction, Read::Snapshot)).await?.collections)
    }

    /// The time this long ago, in milliseconds since 1970.
    fn ago(&self, age_ms: u64) -> u64 {
        self.shared.guard.environment.now_ms().saturating_sub(age_ms)
    }

    /// Checks that this collection is the last one that began.
    async fn collecting(&self, transaction: &D::Transaction, collection: u64) -> Result<()> {
        match self.instance(transaction, Read::Serializable).await?.collections {
            last if last == collection => Ok(()),
            _ => Err(Error::bad_request("Another collection of this database has begun, so this one ends.")),
        }
    }

    async fn trash_rows_of(&self, transaction: &D::Transaction, ids: &[String]) -> Result<BTreeMap<String, TrashRow>> {
        self.trash_rows(transaction, &ids.iter().cloned().collect::<BTreeSet<String>>()).await
    }

    async fn has_row(&self, transaction: &D::Transaction, id: &str) -> Result<bool> {
        Ok(transaction.get(&self.keys().key(DatabaseKey::Trash(id)), Read::Serializable).await?.is_some())
    }

    /// A document at its live winner.
    async fn live(&self, transaction: &D::Transaction, id: &str) -> Result<Option<Document>> {
        match self.winner(transaction.clone(), id, &GetOptions::default()).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a document may be removed from the trash for good.
fn is_due(row: &TrashRow, collection: u64, due_ms: u64) -> bool {
    row.in_trash && row.collection < collection && row.since_ms <= due_ms
}
