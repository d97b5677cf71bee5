//! The end of the trash: text that no client can need any more is removed.
//!
//! ```text
//!  in trash ─► every client connected after the tombstone was written: passed, since now
//!                  ─► as long as the caller asks ─► row and body are gone; the tombstone stays
//! ```
//!
//! The caller knows the clients, and the sequence that all of them have passed. It vouches for the time in which a client
//! that connected sends what it had written before.
//!
//! The tombstone stays, since other replicas have it. Without it a document that arrives again as it was first written
//! would be live here, and deleted there. With it, whoever has the tombstone writes the document over it.
//!
//! Invariants: as of [`collect`](super::collect), only the last collection that began writes. An edit that names a
//! document in the trash reads its row with a conflict range, and so does this: either the edit revives the document, or
//! it begins after the end of the text. A document that lives again or was named in vain stays, and one whose
//! tombstone was purged: nothing shows who has passed that.

use kv_api::{Database, Read, Transaction, TransactionOption};

use super::collect::{COLLECTED_AT_ONCE, Collection, distinct};
use super::interactive::last;
use super::revive::clear_row;
use crate::documents::Documents;
use crate::error::{Error, Result, alone};
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::rows::branch::branches;
use crate::rows::trash_row::{TrashRow, Trashed};
use crate::write::txids::Outcome;

/// What [`Documents::empty_trash`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Number of documents of which it is known since now that every client has passed their tombstones.
    pub passed: u64,
    /// Number of documents in the trash whose tombstones a client has not passed.
    pub waiting: u64,
    /// Number of documents that left the trash, and cannot be brought back.
    pub documents: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

impl<D: Database> Documents<D> {
    /// Removes the text of some documents from the trash: of those that every client has passed at least `kept_ms` ago,
    /// as an earlier call noted. Notes the others that every client has passed: whose last change is not after
    /// `passed`. What was done is added to `all`, also before an error.
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
        passed: Seq,
        kept_ms: u64,
        all: &mut Emptied,
    ) -> Result<()> {
        let due_ms = self.ago(kept_ms);
        for some in distinct(ids)?.chunks(COLLECTED_AT_ONCE) {
            let run = |transaction: D::Transaction| async move {
                self.empty_some(&transaction, collection, some, passed, due_ms).await
            };
            let done = self.shared.guard.run(run).await?;
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
        passed: Seq,
        due_ms: u64,
    ) -> Result<Outcome<Emptied>> {
        self.collecting(transaction, collection).await?;
        let (keys, now_ms) = (self.keys(), self.shared.guard.environment.now_ms());
        let mut reads = Vec::new();
        for (id, row) in self.trash_rows(transaction, ids).await? {
            if let Ok(TrashRow { trashed: Some(trashed), since_ms, collection }) = row
                && !trashed.in_vain
            {
                let winner = transaction.get_range(&last(keys, &id), Read::Serializable);
                reads.push((id, since_ms, collection, trashed, winner));
            }
        }
        let (mut done, mut is_changed) = (Emptied::default(), false);
        for (id, since_ms, collection, trashed, winner) in reads {
            let winner = winner.await.map_err(Error::from).and_then(|rows| Ok(branches(keys, &id, &rows.rows)?.pop()));
            let seq = alone(winner.and_then(|winner| match winner {
                Some(winner) if !winner.leaf.not_deleted => Ok(Some(winner.winner_info()?.seq)),
                _ => Ok(None),
            }))?;
            // What is damaged is named by a check.
            let Ok(Some(seq)) = seq else { continue };
            let passed_ms = match trashed.passed_ms {
                Some(passed_ms) if seq <= passed && passed_ms <= due_ms => {
                    clear_row(transaction, keys, &id);
                    (done.documents, done.bytes, is_changed) = (done.documents + 1, done.bytes + trashed.bytes, true);
                    continue;
                }
                Some(passed_ms) if seq <= passed => Some(passed_ms),
                None if seq <= passed => {
                    done.passed += 1;
                    Some(now_ms)
                }
                // A later tombstone, or a list of clients with a new one.
                _ => {
                    done.waiting += 1;
                    None
                }
            };
            if passed_ms != trashed.passed_ms {
                let trashed = Some(Trashed { passed_ms, ..trashed });
                let row = TrashRow { since_ms, collection, trashed };
                transaction.set(keys.key(DatabaseKey::Trash(&id)), row.write());
                is_changed = true;
            }
        }
        if !is_changed {
            return Ok(Outcome::ReadOnly(done));
        }
        // A mark takes few bytes, and without it nothing is given back.
        transaction.set_option(TransactionOption::BypassStorageQuota);
        Ok(Outcome::Write(done))
    }
}
