//! Counts the documents of a partition.
//!
//! These counts are not stored, since every edit would have to change them. They are computed from the rows of
//! `revisions`: a read of one range, page by page, without bodies.

use kv_api::{Database, RangeRequest, Read, Transaction};

use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::DatabaseKey;
use crate::rows::branch::Branch;

/// Maximum number of rows in a page.
const ROWS_AT_ONCE: usize = 2_000;

/// Information about a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionInfo {
    /// Number of documents whose winner is live.
    pub doc_count: u64,
    /// Number of documents whose winner is a tombstone.
    pub doc_del_count: u64,
    /// Size of all leaves' bodies as compact JSON.
    pub external: u64,
    /// The same, plus the size of the rows of their revisions.
    pub active: u64,
}

impl<D: Database> Documents<D> {
    /// Makes sure that the database is partitioned.
    ///
    /// # Errors
    /// `bad_request` if it is not; 404 if it is gone.
    pub async fn require_partitioned(&self) -> Result<()> {
        if self.is_partitioned() || self.is_partitioned_now().await? {
            return Ok(());
        }
        Err(Error::bad_request("database is not partitioned"))
    }

    /// Whether the database is partitioned. Unlike [`is_partitioned`](Self::is_partitioned), this notices by a read
    /// that the database is gone: another database of its name may differ.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn is_partitioned_now(&self) -> Result<bool> {
        Ok(self.read(|transaction| self.instance(&transaction, Read::Snapshot)).await?.partitioned)
    }

    /// Counts the documents of a partition. Reads a row for each of their leaves. The counts are as of one moment if
    /// they fit in a page.
    ///
    /// # Errors
    /// `bad_request` if the database is not partitioned; 404 if it is gone.
    pub async fn partition_info(&self, partition: &str) -> Result<PartitionInfo> {
        self.require_partitioned().await?;
        let keys = self.keys();
        let edge = |id: &str| keys.key(DatabaseKey::RevisionsOf(id));
        let (first, beyond) = mango::ids_of_partition(partition);
        let mut next = Some(RangeRequest::keys(edge(&first), edge(&beyond)));
        let mut info = PartitionInfo::default();
        while let Some(range) = next.take() {
            let page = self.read_batch(ROWS_AT_ONCE, |transaction, most| {
                let instance = self.instance(&transaction, Read::Snapshot);
                let rows = transaction.get_range(&range.clone().limit(most), Read::Snapshot);
                async move {
                    instance.await?;
                    Ok(rows.await?)
                }
            });
            let page = page.await?;
            for row in &page.rows {
                let (_, leaf) = keys.read_revision(&row.key)?;
                let branch = Branch::read(leaf, &row.value)?;
                info.external += branch.size;
                info.active += branch.size + (row.key.len() + row.value.len()) as u64;
                match branch.winner_info {
                    Some(_) if branch.leaf.not_deleted => info.doc_count += 1,
                    Some(_) => info.doc_del_count += 1,
                    None => {}
                }
            }
            next = range.after(&page);
        }
        Ok(info)
    }
}
