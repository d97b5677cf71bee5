//! Documents whose text is in the trash or has left it, and which a client still has or writes anew as it was.
//!
//! ```text
//!  1-a ── 2-t    here: a tombstone, and a row that says that its text is in the trash, or has ended
//!  1-a           a client that never saw the tombstone: the first revision of a text depends only on the text
//!                     ─► _revs_diff calls 1-a missing ─► the client sends it ─► 3-z over 2-t, with its body
//! ```
//!
//! Otherwise the client would take 1-a for known here, and never send it again. A file that names the document would
//! then have no text anywhere else. A text in the trash may end before the client's file arrives, so it is asked for like
//! one that has ended. The edit reads both rows with conflict ranges: no text ends beside it.
//!
//! The rows are read for documents only whose winner is a tombstone, in databases with collections, and then only if
//! somebody has an older revision. The row of an ended text is cleared when its document lives again or is purged:
//! otherwise a later deletion by somebody else would be undone.
//!
//! Where the [last write wins](crate::write::policy) there are no ancestors, so such rows are not used: the caller lets
//! no text end there.

use std::future::Future;

use kv_api::{Bytes, Database, Read, Transaction};

use super::draft::Draft;
use super::interactive;
use super::plan::Plan;
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::rows::branch::Branch;
use crate::rows::instance::Instance;
use crate::rows::revid::RevId;
use crate::rows::trash_row::TrashRow;
use crate::rows::tuple;
use crate::write::policy::ConflictPolicy;

const FORMAT: u64 = 1;

/// Notes that the text of a document has ended.
pub(super) fn note(transaction: &impl Transaction, keys: &DatabaseKeys, id: &str) {
    let mut row = Vec::with_capacity(2);
    tuple::append_u64(&mut row, FORMAT);
    transaction.set(keys.key(DatabaseKey::Ended(id)), row);
}

/// Whether a client may have a revision of the document that it should send again: it is deleted, in a database with
/// collections.
pub(crate) fn is_hidden(instance: &Instance, tree: &[Branch]) -> bool {
    let is_deleted = tree.last().is_some_and(|winner| !winner.leaf.not_deleted);
    is_deleted && instance.collections > 0 && instance.policy == ConflictPolicy::KeepAll
}

impl<D: Database> Documents<D> {
    /// Whether the text of a document is in the trash, or has left it. The reads are begun at once. A row of the trash
    /// that cannot be read counts as one with a text.
    pub(crate) fn has_ended(
        &self,
        transaction: &D::Transaction,
        id: &str,
        read: Read,
    ) -> impl Future<Output = Result<bool>> + Send + use<D> {
        let ended = transaction.get(&self.keys().key(DatabaseKey::Ended(id)), read);
        let trashed = transaction.get(&self.keys().key(DatabaseKey::Trash(id)), read);
        async move {
            let is_trashed = |row: &Bytes| !matches!(TrashRow::read(row), Ok(TrashRow { trashed: None, .. }));
            let trashed = trashed.await.map_err(Error::from)?;
            Ok(ended.await.map_err(Error::from)?.is_some() || trashed.is_some_and(|row| is_trashed(&row)))
        }
    }
}

/// Writes the first of these edits that has a live ancestor of a tombstone over the tombstone. All their revisions are
/// known, and `tree` has all branches. `None` if there is no such edit.
pub(super) fn write_again(instance: &Instance, drafts: &[Draft<'_>], mut tree: Vec<Branch>) -> Result<Option<Plan>> {
    let is_ancestor = |draft: &Draft<'_>| {
        let is_leaf = |rev: RevId| tree.iter().any(|branch| branch.leaf.rev == rev);
        !draft.edit.deleted && draft.edit.attachments.is_empty() && draft.leaf().is_ok_and(|leaf| !is_leaf(leaf.rev))
    };
    let Some(place) = drafts.iter().position(is_ancestor) else { return Ok(None) };
    let Some(tombstone) = tree.pop() else { return Ok(None) };
    let made = drafts[place].leaf_over(&tombstone.leaf.rev)?;
    let mut plan = interactive::extend(instance, drafts[place].edit, tombstone, made, tree)?;
    plan.added.iter_mut().for_each(|new| new.edit = place);
    plan.brings_back = true;
    Ok(Some(plan))
}
