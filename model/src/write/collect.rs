//! The steps of a collection of documents that no document names, such as chunks of files.
//!
//! ```text
//!  begin      the instance row gets the next number: the collection's. One that begins after its census only condemns
//!  (census)   the caller reads all documents, and finds the ones that nobody names
//!  condemn    (20, DocID) = condemned, now, number
//!  discard    condemned long ago, by an earlier collection ─► tombstone, body into the trash
//! ```
//!
//! Why no document that is named is deleted: every edit clears the rows of what it [names](super::revive). A row that an
//! earlier collection wrote was there before this one's census began. So a file that names the document was written
//! either before this collection began, and its census then saw the file; or after the row, which is then gone. An edit
//! that began before this collection cannot commit after its beginning, since both read the instance row; and the
//! deletion reads the document's row with a conflict range, as an edit does that finds it. Neither clocks nor sequences
//! take part in this.
//!
//! An edit whose list cannot be read clears no row. It ends the collection that runs, and the next census refuses.
//!
//! What leaves the trash without being revived: what every client has [passed](super::empty_trash), and what somebody
//! [purges](crate::Documents::purge) with the last leaf of its document.
//!
//! Invariants: only the last collection that began writes. Each step is one transaction for each batch, so a collection
//! that ends anywhere leaves a consistent state, and the next one goes on.

use std::collections::BTreeSet;

use json::JsonText;
use kv_api::keys::key_after;
use kv_api::{Bytes, Database, RangeRequest, Read, RetryError, Transaction, TransactionOption};

use super::attempt::{Attempt, MissingStub};
use super::draft::Turn;
use super::interactive::last;
use super::plan::Plan;
use super::revive::{clear_row, is_hopeless};
use super::verdicts::Verdicts;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, Subspace};
use crate::read::document::{Document, GetOptions};
use crate::rows::blob;
use crate::rows::branch::branches;
use crate::rows::instance::Instance;
use crate::rows::trash_row::{TrashRow, Trashed};
use crate::write::edit::{Edit, WriteMode};
use crate::write::txids::Outcome;

/// Number of documents in a transaction. [`Documents::condemn`] with no more of them is one.
pub const COLLECTED_AT_ONCE: usize = 100;

/// Approximate bytes of the bodies in a transaction. A larger body has one of its own.
const BYTES: usize = 2_000_000;

/// Approximate bytes of the rows of a document besides its body, with conflict ranges.
const ROWS_BYTES: usize = 1_000;

/// A collection that began before its census, which may condemn and delete. No run that read its documents earlier has
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection(pub(super) u64);

/// A collection that may condemn. One that began after its census may do no more: documents may have been named since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condemning(u64);

impl From<Collection> for Condemning {
    fn from(collection: Collection) -> Self {
        Condemning(collection.0)
    }
}

/// What [`Documents::condemn`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condemned {
    /// Number of documents that were not condemned before.
    pub documents: u64,
    /// Documents that cannot be condemned, since their rows are damaged, each with the reason.
    pub left: Vec<(String, String)>,
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
    /// Documents without a row, and those whose row says that they are in the trash: the caller may condemn them.
    pub not_condemned: Vec<String>,
}

/// A document that is condemned or in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTrash {
    /// Its id.
    pub id: String,
    /// Bytes of its body, if it was deleted and its body is in the trash. `None` if it is condemned, and lives.
    pub trashed: Option<u64>,
    /// Whether an edit named it, and it could not be brought back. It stays in the trash.
    pub in_vain: bool,
    /// When it was condemned or deleted, in milliseconds since 1970.
    pub since_ms: u64,
}

/// A page of the trash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrashPage {
    /// What is condemned or in the trash.
    pub documents: Vec<InTrash>,
    /// Number of rows that cannot be read.
    pub unreadable: u64,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Bytes>,
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
        let change = |transaction: D::Transaction, instance: Instance| async move {
            // On a full disk, too: the trash is emptied by it.
            transaction.set_option(TransactionOption::BypassStorageQuota);
            // An even number: an edit that ends the collection adds one.
            let collections = (instance.collections | 1) + 1;
            Ok((collections, Some(Instance { collections, ..instance })))
        };
        self.change_instance(change).await
    }

    /// Condemns documents that the census of this collection found unnamed.
    ///
    /// # Errors
    /// 400 if another collection has begun, if a document was written whose list cannot be read, and for ids of design
    /// and local documents; 404 if the database is gone.
    pub async fn condemn(&self, collection: impl Into<Condemning>, ids: &[String]) -> Result<Condemned> {
        let Condemning(collection) = collection.into();
        let mut all = Condemned::default();
        for some in distinct(ids)?.chunks(COLLECTED_AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.collecting(&transaction, collection).await?;
                let (keys, rows) = (self.keys(), self.trash_rows(&transaction, some).await?);
                let since_ms = self.shared.guard.environment.now_ms();
                let row = TrashRow { since_ms, collection, trashed: None }.write();
                let mut done = Condemned::default();
                for id in some {
                    let is_new = match rows.get(id) {
                        None => Ok(true),
                        Some(Ok(TrashRow { trashed: None, .. })) => Ok(false),
                        // What is in the trash may be all that is left of it.
                        Some(Ok(_)) => alone(self.is_live(&transaction, id).await)?,
                        Some(Err(damage)) => Err(damage.clone()),
                    };
                    match is_new {
                        Ok(true) => {
                            clear_row(&transaction, keys, id);
                            transaction.set(keys.key(DatabaseKey::Trash(id)), row.clone());
                            done.documents += 1;
                        }
                        Ok(false) => {}
                        Err(damage) => done.left.push((id.clone(), damage.reason().to_string())),
                    }
                }
                Ok(if done.documents == 0 { Outcome::ReadOnly(done) } else { Outcome::Write(done) })
            };
            let done = self.shared.guard.run(run).await?;
            all.documents += done.documents;
            all.left.extend(done.left);
        }
        Ok(all)
    }

    /// Deletes those of some documents that the census of this collection found unnamed and that an earlier one
    /// condemned at least `grace_ms` ago. Their bodies go into the trash. A document with attachments, with several live
    /// revisions or with damaged rows stays, and so does one that does not fit into a transaction.
    ///
    /// # Errors
    /// 400 if another collection has begun, if a document was written whose list cannot be read, and for ids of design
    /// and local documents; 404 if the database is gone; 507 if the store is full: each body is written again, into the
    /// trash.
    pub async fn discard_condemned(&self, collection: Collection, ids: &[String], grace_ms: u64) -> Result<Discarded> {
        let mut all = Discarded::default();
        self.discard_condemned_into(collection, ids, grace_ms, &mut all).await?;
        Ok(all)
    }

    /// The same. What was done is added to `all`, also before an error.
    ///
    /// # Errors
    /// Those of [`discard_condemned`](Self::discard_condemned).
    pub async fn discard_condemned_into(
        &self,
        collection: Collection,
        ids: &[String],
        grace_ms: u64,
        all: &mut Discarded,
    ) -> Result<()> {
        let Collection(collection) = collection;
        let (due_ms, ids) = (self.ago(grace_ms), distinct(ids)?);
        let (mut rest, mut at_once) = (ids.as_slice(), COLLECTED_AT_ONCE);
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(at_once)];
            // The room that is kept for deletions is not for these: the trash takes what they free.
            let run = |transaction: D::Transaction| async move {
                self.discard_some(&transaction, collection, some, due_ms).await
            };
            let hopeless = |error: &kv_api::Error| is_hopeless(error, some.len());
            match self.shared.guard.run_unless(hopeless, run).await {
                Ok((taken, done)) => {
                    all.documents += done.documents;
                    all.bytes += done.bytes;
                    all.left.extend(done.left);
                    all.not_condemned.extend(done.not_condemned);
                    (rest, at_once) = (&rest[taken.clamp(1, some.len())..], COLLECTED_AT_ONCE);
                }
                Err(error) if !error.kv_error().is_some_and(|error| is_hopeless(error, some.len())) => {
                    return Err(error);
                }
                Err(_) if some.len() > 1 => at_once = some.len() / 2,
                Err(_) => {
                    all.left.push((some[0].clone(), "does not fit into one transaction with its copy".into()));
                    (rest, at_once) = (&rest[1..], COLLECTED_AT_ONCE);
                }
            }
        }
        Ok(())
    }

    /// Discards the first of these documents, as many as have [`BYTES`] together, or one. Returns how many were looked
    /// at.
    async fn discard_some(
        &self,
        transaction: &D::Transaction,
        collection: u64,
        ids: &[String],
        due_ms: u64,
    ) -> Result<Outcome<(usize, Discarded)>> {
        let instance = self.collecting(transaction, collection).await?;
        let (keys, rows) = (self.keys(), self.trash_rows(transaction, ids).await?);
        let (mut done, mut found, mut gone) = (Discarded::default(), Vec::<(Edit, Document)>::new(), Vec::new());
        // The copy in the trash, and the one that the database keeps of a replaced revision.
        let copies = if instance.keep.is_some() { 2 } else { 1 };
        let (mut bytes, mut taken) = (0, ids.len());
        for (place, id) in ids.iter().enumerate() {
            match rows.get(id) {
                Some(Ok(TrashRow { trashed: None, collection: by, since_ms })) => {
                    if *by >= collection || *since_ms > due_ms {
                        continue;
                    }
                }
                Some(Err(damage)) => {
                    done.left.push((id.clone(), damage.reason().to_string()));
                    continue;
                }
                _ => {
                    done.not_condemned.push(id.clone());
                    continue;
                }
            }
            match alone(self.live(transaction, id).await)? {
                Ok(Some(document)) if document.attachments.is_empty() => {
                    let cost = (document.body.len() + ROWS_BYTES) * copies;
                    if bytes + cost > BYTES && !found.is_empty() {
                        taken = place;
                        break;
                    }
                    bytes += cost;
                    let edit = Edit::new(id.clone(), JsonText::empty_object()).over(document.rev.clone()).deleting();
                    found.push((edit, document));
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
            // Another live leaf wins. Tombstones beside it are no obstacle.
            let is_live = |plan: &Plan| plan.winner.as_ref().is_some_and(|leaf| leaf.not_deleted);
            if matches!(&decided.plan, Ok(Some(plan)) if is_live(plan)) {
                decided.plan = Err(Error::conflict());
            }
        }
        let (decided, written) = attempt.apply(attempt.prepare(decisions).await?).await?;
        let since_ms = self.shared.guard.environment.now_ms();
        for (decided, (edit, document)) in decided.iter().zip(&found) {
            match &decided.plan {
                Ok(Some(plan)) => {
                    let bytes = document.body.len() as u64;
                    let made = plan.added.first().ok_or_else(Error::without_result)?;
                    let trashed = Some(Trashed { tombstone: made.leaf.rev.clone(), in_vain: false, bytes });
                    let row = TrashRow { since_ms, collection, trashed };
                    blob::set(transaction, &keys.key(DatabaseKey::TrashDoc(&edit.id)), 0, &document.body);
                    transaction.set(keys.key(DatabaseKey::Trash(&edit.id)), row.write());
                    done.documents += 1;
                    done.bytes += bytes;
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

    /// A page of what is condemned or in the trash, in the order of ids: from the beginning, or from the
    /// [`next`](TrashPage::next) of the page before.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn trash(&self, from: Option<Bytes>, limit: usize) -> Result<TrashPage> {
        let keys = self.keys();
        let (first, end) = keys.bounds(DatabaseKey::All(Subspace::Trash));
        let range = &RangeRequest::keys(from.unwrap_or_else(|| first.into()), end).limit(limit);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            async move {
                if instance.await?.collections == 0 {
                    return Ok(TrashPage::default());
                }
                let batch = transaction.get_range(range, Read::Snapshot).await?;
                let mut page = TrashPage::default();
                for row in &batch.rows {
                    match (keys.read_trash(&row.key), TrashRow::read(&row.value)) {
                        (Ok(id), Ok(TrashRow { since_ms, trashed, .. })) => {
                            let in_vain = trashed.as_ref().is_some_and(|trashed| trashed.in_vain);
                            let trashed = trashed.map(|trashed| trashed.bytes);
                            page.documents.push(InTrash { id, trashed, in_vain, since_ms });
                        }
                        _ => page.unreadable += 1,
                    }
                }
                page.next = batch.rows.last().filter(|_| batch.more).map(|row| key_after(&row.key));
                Ok(page)
            }
        })
        .await
    }

    /// Takes documents out of the list of the condemned: the census of this collection found them named.
    ///
    /// # Errors
    /// 400 if another collection has begun, if a document was written whose list cannot be read, and for ids of design
    /// and local documents; 404 if the database is gone.
    pub async fn acquit(&self, collection: Collection, ids: &[String]) -> Result<()> {
        let Collection(collection) = collection;
        for some in distinct(ids)?.chunks(COLLECTED_AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.collecting(&transaction, collection).await?;
                let rows = self.trash_rows(&transaction, some).await?;
                let condemned = rows.iter().filter(|(_, row)| matches!(row, Ok(TrashRow { trashed: None, .. })));
                let condemned: Vec<&String> = condemned.map(|(id, _)| id).collect();
                condemned.iter().for_each(|id| clear_row(&transaction, self.keys(), id));
                transaction.set_option(TransactionOption::BypassStorageQuota);
                Ok(if condemned.is_empty() { Outcome::ReadOnly(()) } else { Outcome::Write(()) })
            };
            self.shared.guard.run(run).await?;
        }
        Ok(())
    }

    /// The number of the last collection that began, or one more if an edit ended it; zero if there was none.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn last_collection(&self) -> Result<u64> {
        Ok(self.read(|transaction| self.instance(&transaction, Read::Snapshot)).await?.collections)
    }

    /// The time this long ago, in milliseconds since 1970.
    pub(super) fn ago(&self, age_ms: u64) -> u64 {
        self.shared.guard.environment.now_ms().saturating_sub(age_ms)
    }

    /// Checks that this collection may write: it is the last one that began, and nothing ended it.
    pub(super) async fn collecting(&self, transaction: &D::Transaction, collection: u64) -> Result<Instance> {
        let instance = self.instance(transaction, Read::Serializable).await?;
        match instance.collections {
            last if last == collection => Ok(instance),
            last if last == collection + 1 => Err(Error::bad_request(
                "A document was written whose list of others cannot be read, so this collection ends.",
            )),
            _ => Err(Error::bad_request("Another collection of this database has begun, so this one ends.")),
        }
    }

    /// Whether a document is live. If it changes before the commit, the transaction conflicts.
    async fn is_live(&self, transaction: &D::Transaction, id: &str) -> Result<bool> {
        let keys = self.keys();
        let rows = transaction.get_range(&last(keys, id), Read::Serializable).await?.rows;
        Ok(branches(keys, id, &rows)?.pop().is_some_and(|winner| winner.leaf.not_deleted))
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

/// The ids without repetitions, in order.
pub(super) fn distinct(ids: &[String]) -> Result<Vec<String>> {
    if let Some(id) = ids.iter().find(|id| id.starts_with('_')) {
        return Err(Error::bad_request(format!("{id:?} cannot be collected: only ordinary documents are.")));
    }
    Ok(ids.iter().cloned().collect::<BTreeSet<String>>().into_iter().collect())
}
