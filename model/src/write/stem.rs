//! Stems the branches of a database: its rows of `revisions` forget the ancestors beyond a lowered limit. Then removes
//! the bodies of [replaced revisions](crate::replaced) that it keeps, as a compaction in CouchDB does.
//!
//! Edits stem the branches that they write, and reads show no more than the limit. So this only frees space, and may
//! stop anywhere. A row keeps everything except its last ancestors: sequence, size, format. A batch has read conflict
//! ranges of the rows that it writes, so edits are never lost.

use kv_api::{ConflictRange, Database, KeyValue, RangeRequest, Read, Transaction};

use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::keys::{DatabaseKey, DatabaseKeys, Subspace};
use crate::limits::REVS_LIMITS;
use crate::rows::branch::Branch;
use crate::write::txids::Outcome;

/// Approximate size of the rows that a batch reads.
const READ_BYTES: usize = 500_000;

/// A walk through the branches of a database. While it exists, the database counts as being compacted.
#[derive(Debug)]
pub struct Stemming<D: Database> {
    documents: Documents<D>,
    /// The last row read: its key without the database's prefix. Empty at the start.
    after: Vec<u8>,
    /// Whether all branches are stemmed. Then `after` is the last replaced revision.
    is_stemmed: bool,
}

impl<D: Database> Drop for Stemming<D> {
    fn drop(&mut self) {
        self.documents.shared.stemming.lock().remove(self.documents.keys().prefix());
    }
}

impl<D: Database> Documents<D> {
    /// Starts to stem the branches, unless this process already does so.
    pub fn stemming(&self) -> Option<Stemming<D>> {
        let is_new = self.shared.stemming.lock().insert(self.keys().prefix().clone());
        is_new.then(|| Stemming { documents: self.clone(), after: Vec::new(), is_stemmed: false })
    }

    pub(crate) fn is_stemming(&self) -> bool {
        self.shared.stemming.lock().contains(self.keys().prefix())
    }
}

impl<D: Database> Stemming<D> {
    /// The same walk, the rest of it [in the background](Documents::in_background).
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.documents = self.documents.clone().in_background();
        self
    }

    /// Stems the next branches, or removes the next bodies of replaced revisions, in one transaction. Returns false at
    /// the end.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's errors.
    pub async fn next(&mut self) -> Result<bool> {
        if self.is_stemmed {
            let next = self.documents.forget_replaced_batch(&self.after, true, None).await?;
            let is_more = next.is_some();
            self.after = next.unwrap_or_default();
            return Ok(is_more);
        }
        let (documents, after) = (&self.documents, &self.after);
        let next = documents.shared.guard.run(|transaction| async move {
            let instance = documents.instance(&transaction, Read::Serializable).await?;
            // Branches can never have more.
            if instance.revs_limit >= *REVS_LIMITS.end() {
                return Ok(Outcome::ReadOnly((None, instance.keep.is_some())));
            }
            let keys = documents.keys();
            let (first, beyond) = keys.bounds(DatabaseKey::All(Subspace::Revisions));
            let begin = if after.is_empty() { first } else { [keys.prefix(), &after[..], &[0]].concat() };
            let range = RangeRequest::keys(begin, beyond).target_bytes(READ_BYTES);
            let batch = transaction.get_range(&range, Read::Snapshot).await?;
            let stemmed =
                batch.rows.iter().filter_map(|row| stemmed(keys, row, instance.revs_limit as usize).transpose());
            let stemmed = stemmed.collect::<Result<Vec<(&KeyValue, Vec<u8>)>>>()?;
            let is_any = !stemmed.is_empty();
            for (row, value) in stemmed {
                // A concurrent edit of the row makes the batch conflict.
                let beyond = [&row.key[..], &[0]].concat();
                transaction.add_conflict_range(&row.key, &beyond, ConflictRange::Read);
                transaction.set(&row.key, value);
            }
            let last = batch.rows.last().filter(|_| batch.more);
            let last = last.map(|row| row.key[keys.prefix().len()..].to_vec());
            let next = (last, instance.keep.is_some());
            Ok(if is_any { Outcome::Write(next) } else { Outcome::ReadOnly(next) })
        });
        let (last, has_replaced) = next.await?;
        self.is_stemmed = last.is_none();
        self.after = last.unwrap_or_default();
        Ok(!self.is_stemmed || has_replaced)
    }
}

/// A row that is too long, and its new value. An unreadable row is not changed.
fn stemmed<'r>(keys: &DatabaseKeys, row: &'r KeyValue, limit: usize) -> Result<Option<(&'r KeyValue, Vec<u8>)>> {
    let branch = keys.read_revision(&row.key).and_then(|(_, leaf)| Branch::read(leaf, &row.value));
    let value = alone(branch.and_then(|branch| branch.stemmed_row(&row.value, limit)))?;
    Ok(value.ok().flatten().map(|value| (row, value)))
}
