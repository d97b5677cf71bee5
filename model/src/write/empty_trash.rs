//! The end of the trash: text that no client can need any more is removed.
//!
//! ```text
//!  in trash ─► every client connected after the tombstone was written: a mark says since when
//!                  ─► as long as the caller asks ─► row and body are gone; the tombstone stays
//! ```
//!
//! The caller knows the clients, and the sequence that all of them have passed. It vouches for the time in which a client
//! that connected sends what it had written before. The [marks](crate::rows::passed_row) are for all documents together.
//!
//! The tombstone stays, since other replicas have it. Without it a document that arrives again as it was first written
//! would be live here, and deleted there. With it, whoever has the tombstone writes the document over it. For those who do
//! not have it, a row says that the text has [ended].
//!
//! Invariants: as of [`collect`](super::collect), only the last collection that began writes. An edit that names a
//! document in the trash, or sends its text again, reads its row with a conflict range, and so does this: either the edit
//! revives the document, or it begins after the end of the text. A document that lives again or was named in vain stays,
//! and one whose tombstone was purged: nothing shows who has passed that.

use kv_api::{Database, Read, Transaction, TransactionOption};

use super::collect::{COLLECTED_AT_ONCE, Collection, distinct};
use super::ended;
use super::interactive::last;
use super::revive::clear_row;
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::rows::branch::branches;
use crate::rows::passed_row::{Due, Passed, PassedRow};
use crate::rows::trash_row::{TrashRow, Trashed};
use crate::write::txids::Outcome;

/// What [`Documents::empty_trash`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Number of documents that stay in the trash for some time, and whose tombstones every client has passed.
    pub passed: u64,
    /// Number of documents in the trash whose tombstones a client has not passed.
    pub waiting: u64,
    /// Number of documents that left the trash, and cannot be brought back.
    pub documents: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl<D: Database> Documents<D> {
    /// Notes what every client has passed; `None` takes all earlier notes back. Returns what every client of the same list
    /// had passed at least `kept_ms` ago, as earlier calls noted.
    ///
    /// # Errors
    /// 400 if another collection has begun, or if a document was written whose list cannot be read; 404 if the database is
    /// gone.
    pub async fn note_passed(&self, collection: Collection, passed: Option<Passed>, kept_ms: u64) -> Result<Due> {
        let run = |transaction: D::Transaction| async move {
            self.note_once(&transaction, collection, passed, kept_ms).await
        };
        self.shared.guard.run(run).await
    }

    async fn note_once(
        &self,
        transaction: &D::Transaction,
        Collection(collection): Collection,
        passed: Option<Passed>,
        kept_ms: u64,
    ) -> Result<Outcome<Due>> {
        self.collecting(transaction, collection).await?;
        let key = self.keys().key(DatabaseKey::Passed);
        let found = transaction.get(&key, Read::Serializable).await.map_err(Error::from);
        let found = found.and_then(|row| row.map(|row| PassedRow::read(&row)).transpose());
        // Without notes the periods begin anew.
        let row = alone(found)?.unwrap_or_else(|error| {
            tracing::warn!(database = self.name(), %error, "what devices have passed cannot be read, and is noted anew");
            Some(PassedRow::default())
        });
        let due = match passed {
            Some(passed) => {
                let mut row = row.unwrap_or_default();
                let due = row.note(passed, self.shared.guard.environment.now_ms(), kept_ms);
                transaction.set(key, row.write());
                due
            }
            None if row.is_none() => return Ok(Outcome::ReadOnly(Due::default())),
            None => {
                transaction.clear(&key);
                Due::default()
            }
        };
        // The row is small, and without it nothing is given back.
        transaction.set_option(TransactionOption::BypassStorageQuota);
        Ok(Outcome::Write(due))
    }

    /// Removes the text of some documents from the trash: of those whose last change is not after `due`. Of the others it
    /// counts those whose last change is not after `passed`. What was done is added to `all`, also before an error.
    ///
    /// The census of this collection must have found that nothing names them.
    ///
    /// # Errors
    /// 400 if another collection has begun, if a document was written whose list cannot be read, and for ids of design
    /// and local documents; 404 if the database is gone.
    pub async fn empty_trash(
        &self,
        collection: Collection,
        ids: &[String],
        due: Option<Seq>,
        passed: Seq,
        all: &mut Emptied,
    ) -> Result<()> {
        for some in distinct(ids)?.chunks(COLLECTED_AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.empty_some(&transaction, collection, some, due, passed).await
            };
            let done = self.shared.guard.run(run).await?;
            if done.documents > 0 {
                // At once: a run may be cut off before it tells what it did.
                let Emptied { documents, bytes, .. } = done;
                tracing::info!(database = self.name(), documents, bytes, "text left the trash for good");
            }
            all.passed += done.passed;
            all.waiting += done.waiting;
            all.documents += done.documents;
            all.bytes += done.bytes;
        }
        Ok(())
    }

    async fn empty_some(
        &self,
        transaction: &D::Transaction,
        Collection(collection): Collection,
        ids: &[String],
        due: Option<Seq>,
        passed: Seq,
    ) -> Result<Outcome<Emptied>> {
        self.collecting(transaction, collection).await?;
        let keys = self.keys();
        let mut reads = Vec::new();
        for (id, row) in self.trash_rows(transaction, ids).await? {
            if let Ok(TrashRow { trashed: Some(Trashed { in_vain: false, bytes, .. }), .. }) = row {
                let winner = transaction.get_range(&last(keys, &id), Read::Serializable);
                reads.push((id, bytes, winner));
            }
        }
        let mut done = Emptied::default();
        for (id, bytes, winner) in reads {
            let winner = winner.await.map_err(Error::from).and_then(|rows| Ok(branches(keys, &id, &rows.rows)?.pop()));
            let seq = alone(winner.and_then(|winner| match winner {
                Some(winner) if !winner.leaf.not_deleted => Ok(Some(winner.winner_info()?.seq)),
                _ => Ok(None),
            }))?;
            // What is damaged is named by a check.
            let Ok(Some(seq)) = seq else { continue };
            if due.is_some_and(|due| seq <= due) {
                clear_row(transaction, keys, &id);
                ended::note(transaction, keys, &id);
                (done.documents, done.bytes) = (done.documents + 1, done.bytes + bytes);
            } else if seq <= passed {
                done.passed += 1;
            } else {
                done.waiting += 1;
            }
        }
        if done.documents == 0 {
            return Ok(Outcome::ReadOnly(done));
        }
        transaction.set_option(TransactionOption::BypassStorageQuota);
        Ok(Outcome::Write(done))
    }
}
