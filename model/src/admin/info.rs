//! Information about a database.

use kv_api::{Database, Read, Transaction};

use crate::admin::purge;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::feed::seq::{NumberedSeq, Seq};
use crate::keys::DatabaseKey;
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::body::BodyFormat;
use crate::rows::stats::Stats;
use crate::write::policy::ConflictPolicy;

/// Reads the row of the last sequence.
pub(crate) fn read_last(value: Option<&[u8]>) -> Result<Seq> {
    let value = value.ok_or_else(|| Error::corrupt("the last sequence is missing"))?;
    value.try_into().map(Seq::from_bytes).map_err(|_| Error::corrupt("a last sequence of wrong length"))
}

/// Sizes of a database, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of all leaves' bodies as compact JSON, without those of replaced revisions. Exact.
    pub external: u64,
    /// Size of all rows of the database. Estimated by the store.
    pub active: u64,
    /// Bytes on disk, including removed rows whose space is not free yet. `active` if the store does not know.
    pub file: u64,
}

/// Information about a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseInfo {
    /// Its name.
    pub name: String,
    /// Number of documents whose winner is live.
    pub doc_count: u64,
    /// Number of documents whose winner is a tombstone.
    pub doc_del_count: u64,
    /// The last sequence.
    pub update_seq: NumberedSeq,
    /// The sequence of the last purge; 0 if nothing was purged.
    pub purge_seq: u64,
    /// Its sizes.
    pub sizes: Sizes,
    /// Number of times that it moved to another store, or that its store was adopted.
    pub incarnation: u8,
    /// Time of its creation, in milliseconds since 1970.
    pub created_ms: u64,
    /// An id that distinguishes it from other databases with its name.
    pub instance_id: [u8; 16],
    /// The layout of new bodies.
    pub format: BodyFormat,
    /// Whether bodies in another layout may be left to rewrite.
    pub rewrites: bool,
    /// Maximum number of revisions that a branch remembers.
    pub revs_limit: u32,
    /// The replaced revisions whose bodies it keeps; `None` keeps none.
    pub keep_replaced: Option<KeepReplaced>,
    /// Its conflict policy.
    pub conflicts: ConflictPolicy,
    /// The quota of the handle that was asked, in bytes ([`limited_to`](Documents::limited_to)).
    pub quota: Option<u64>,
    /// Whether it is partitioned.
    pub partitioned: bool,
    /// Whether space that was [asked for](Documents::compact) is not free yet.
    pub is_compacting: bool,
}

impl<D: Database> Documents<D> {
    /// Reads information about the database, all as of one moment except the estimate.
    ///
    /// # Errors
    /// 404.
    pub async fn info(&self) -> Result<DatabaseInfo> {
        let keys = self.keys();
        let (last_key, stats_key) = (keys.key(DatabaseKey::Last), keys.key(DatabaseKey::Stats));
        let (begin, end) = keys.everything();
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = transaction.get(&last_key, Read::Snapshot);
            let version = transaction.get_read_version();
            let stats = transaction.get(&stats_key, Read::Snapshot);
            let purged = transaction.get_range(&purge::newest(keys), Read::Snapshot);
            let size = transaction.get_estimated_range_size(&begin, &end);
            let is_compacting = self.is_stemming() || self.shared.guard.engine.is_compacting(&begin, &end);
            let file = self.shared.guard.engine.disk_bytes(&begin, &end);
            async move {
                let instance = instance.await?;
                let last = read_last(last.await?.as_deref())?;
                self.check_last(&instance, last, version.await?)?;
                let active = size.await?;
                let stats = Stats::read(stats.await?.as_deref())?;
                let numbered = self.number(&transaction, &[last]).await?[0];
                let count = |value: i64| u64::try_from(value).unwrap_or(0);
                Ok(DatabaseInfo {
                    name: self.name().to_owned(),
                    doc_count: count(stats.doc_count),
                    doc_del_count: count(stats.doc_del_count),
                    update_seq: numbered,
                    purge_seq: purge::seq_of(keys, &purged.await?.rows)?,
                    sizes: Sizes { external: count(stats.external), active, file: file.unwrap_or(active) },
                    incarnation: instance.incarnation,
                    created_ms: instance.created_ms,
                    instance_id: instance.id,
                    format: instance.format,
                    rewrites: instance.rewrites,
                    revs_limit: instance.revs_limit,
                    keep_replaced: instance.keep.filter(KeepReplaced::keeps_any),
                    conflicts: instance.policy,
                    quota: self.quota,
                    partitioned: instance.partitioned,
                    is_compacting,
                })
            }
        })
        .await
    }

    /// The keys of all rows of the database: the start, and the end, which is excluded.
    pub fn key_range(&self) -> (Vec<u8>, Vec<u8>) {
        let (begin, end) = self.keys().everything();
        (begin.to_vec(), end)
    }

    /// Asks the engine to free the disk space of the database's removed rows. Returns before it is free.
    pub fn compact(&self) {
        let (begin, end) = self.keys().everything();
        self.shared.guard.engine.compact(&begin, &end);
    }

    /// The sequence of the last edit.
    ///
    /// # Errors
    /// 404.
    pub async fn last_seq(&self) -> Result<Seq> {
        let key = self.keys().key(DatabaseKey::Last);
        self.read(|transaction| {
            let instance = self.instance(&transaction, Read::Snapshot);
            let last = transaction.get(&key, Read::Snapshot);
            let version = transaction.get_read_version();
            async move {
                let instance = instance.await?;
                let last = read_last(last.await?.as_deref())?;
                self.check_last(&instance, last, version.await?)?;
                Ok(last)
            }
        })
        .await
    }
}
