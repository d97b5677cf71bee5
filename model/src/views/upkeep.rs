//! Lists and removes view groups, and the errors of their documents.

use std::collections::HashSet;

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction, TransactionExt, TransactionOption};

use super::errors::{FunctionError, ViewError};
use super::group::ViewGroup;
use super::{GroupRow, Upto};
use crate::documents::Documents;
use crate::error::{NotFound, Result};
use crate::feed::seq::Seq;
use crate::keys::DatabaseKey;
use crate::write::txids::Outcome;

/// Maximum number of errors in a page.
const ERRORS_AT_ONCE: usize = 500;

/// A view group that has rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewGroupInfo {
    /// Its signature, which identifies it.
    pub signature: [u8; 16],
    /// Its name when it was created.
    pub name: String,
    /// Whether it belongs to a design document.
    pub is_of_design: bool,
    /// The sequence up to which it is built.
    pub seq: Seq,
    /// The last purge that it took into account.
    pub purge_seq: u64,
}

/// The size of a view group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewGroupStats {
    /// The sequence up to which it is built.
    pub seq: Seq,
    /// The last purge that it took into account.
    pub purge_seq: u64,
    /// Approximate number of bytes of all its rows.
    pub bytes: u64,
    /// Bytes on disk, including removed rows whose space is not free yet. `bytes` if the store does not know.
    pub file_bytes: u64,
    /// Whether space that was [asked for](Documents::compact_views) is not free yet.
    pub is_compacting: bool,
}

impl<D: Database> Documents<D> {
    /// The view groups that have rows.
    ///
    /// # Errors
    /// 404 if the database is gone; an error for a damaged row.
    pub async fn view_groups(&self) -> Result<Vec<ViewGroupInfo>> {
        let (begin, end) = self.keys().bounds(DatabaseKey::ViewGroups);
        let request = RangeRequest::keys(begin, end);
        self.read(|tx| {
            let instance = self.instance(&tx, Read::Snapshot);
            let rows = tx.get_all(request.clone(), Read::Snapshot);
            async move {
                instance.await?;
                let mut groups = Vec::new();
                for row in rows.await? {
                    let (signature, head) = (self.keys().read_view_group(&row.key)?, GroupRow::read(&row.value)?);
                    let Upto { seq, purge_seq, .. } = self.view_upto(&tx, head.number, Read::Snapshot).await?;
                    let GroupRow { name, is_of_design, .. } = head;
                    groups.push(ViewGroupInfo { signature, name, is_of_design, seq, purge_seq });
                }
                Ok(groups)
            }
        })
        .await
    }

    /// The size of a group; all zero if it has no rows yet.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn view_stats(&self, group: &ViewGroup) -> Result<ViewGroupStats> {
        self.read(|tx| async move {
            let instance = self.instance(&tx, Read::Snapshot);
            let head = self.view_head(&tx, group.signature(), Read::Snapshot);
            instance.await?;
            let Some(head) = head.await? else { return Ok(ViewGroupStats::default()) };
            let Upto { seq, purge_seq, .. } = self.view_upto(&tx, head.number, Read::Snapshot).await?;
            let (begin, end) = self.keys().bounds(DatabaseKey::ViewRows(head.number));
            let bytes = tx.get_estimated_range_size(&begin, &end).await?;
            let engine = &self.shared.guard.engine;
            let file_bytes = engine.disk_bytes(&begin, &end).unwrap_or(bytes);
            let is_compacting = engine.is_compacting(&begin, &end);
            Ok(ViewGroupStats { seq, purge_seq, bytes, file_bytes, is_compacting })
        })
        .await
    }

    /// Asks the engine to free the disk space of a group's removed rows. Returns before it is free.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn compact_views(&self, group: &ViewGroup) -> Result<()> {
        self.read(|tx| async move {
            let instance = self.instance(&tx, Read::Snapshot);
            let head = self.view_head(&tx, group.signature(), Read::Snapshot);
            instance.await?;
            if let Some(head) = head.await? {
                let (begin, end) = self.keys().bounds(DatabaseKey::ViewRows(head.number));
                self.shared.guard.engine.compact(&begin, &end);
            }
            Ok(())
        })
        .await
    }

    /// The documents after `after` that lack rows in a group because of an error, by id. Returns at most one page of
    /// them; empty at the end.
    ///
    /// # Errors
    /// 404 if the database is gone, or the group has no rows.
    pub async fn view_errors(&self, group: &ViewGroup, after: Option<&str>) -> Result<Vec<ViewError>> {
        self.read(|tx| async move {
            let (head, _) = self.built_view(&tx, group).await?;
            let (begin, end) = self.keys().bounds(DatabaseKey::ViewErrors(head.number));
            let begin = match after {
                None => KeySelector::first_greater_or_equal(begin),
                Some(id) => KeySelector::first_greater_than(self.keys().key(DatabaseKey::ViewError(head.number, id))),
            };
            let range = RangeRequest::selectors(begin, KeySelector::first_greater_or_equal(end));
            let rows = tx.get_range(&range.limit(ERRORS_AT_ONCE), Read::Snapshot).await?.rows;
            let error = |row: kv_api::KeyValue| {
                Ok(ViewError { id: self.keys().read_view_error(&row.key)?, error: FunctionError::of_row(row.value)? })
            };
            rows.into_iter().map(error).collect()
        })
        .await
    }

    /// Removes a group with its rows. Returns whether there was one.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn remove_view_group(&self, signature: &[u8; 16]) -> Result<bool> {
        let keys = self.keys();
        self.shared
            .guard
            .run(|tx| async move {
                let instance = self.instance(&tx, Read::Serializable);
                let head = self.view_head(&tx, signature, Read::Serializable);
                instance.await?;
                let Some(head) = head.await? else { return Ok(Outcome::ReadOnly(false)) };
                // An update conflicts at the group's own rows.
                tx.clear(&keys.key(DatabaseKey::ViewGroup(signature)));
                let (begin, end) = keys.bounds(DatabaseKey::ViewRows(head.number));
                tx.clear_range(&begin, &end);
                tx.set_option(TransactionOption::BypassStorageQuota);
                Ok(Outcome::Write(true))
            })
            .await
    }

    /// Removes the rows of all groups, so that they are rebuilt.
    pub(crate) async fn rebuild_all_views(&self, tx: &D::Transaction) -> Result<()> {
        let (begin, end) = self.keys().bounds(DatabaseKey::ViewGroups);
        for row in tx.get_all(RangeRequest::keys(begin, end), Read::Serializable).await? {
            // If the head of a group cannot be read, its rows cannot be found.
            if let Ok(head) = GroupRow::read(&row.value) {
                self.rebuild_views(tx, head.number).await?;
            }
        }
        Ok(())
    }

    /// Removes the groups of design documents that are no longer in use. Returns how many. Groups of a program are
    /// kept, and so is every group if one cannot be read.
    ///
    /// # Errors
    /// 404 if the database is gone; an error for a damaged row.
    pub async fn clean_up_views(&self, in_use: &HashSet<[u8; 16]>) -> Result<u64> {
        let mut removed = 0;
        for group in self.view_groups().await? {
            if group.is_of_design && !in_use.contains(&group.signature) {
                removed += u64::from(self.remove_view_group(&group.signature).await?);
            }
        }
        Ok(removed)
    }
}

/// Whether a query found that its group was removed after the update.
pub(super) fn is_gone(error: &crate::error::Error) -> bool {
    matches!(error.kind(), crate::error::ErrorKind::NotFound(NotFound::Index))
}
