//! Reads replaced revisions whose bodies are kept.

use std::collections::HashMap;
use std::future::Future;

use kv_api::{Database, Read, Transaction, TransactionExt};

use super::Replaced;
use crate::documents::Documents;
use crate::error::Result;
use crate::keys::{DatabaseKey, Leaf};
use crate::read::document::{RevInfo, RevStatus};
use crate::read::winner::TreePart;
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::ancestors::Ancestors;
use crate::rows::branch::Branch;
use crate::rows::revid::RevId;

impl<D: Database> Documents<D> {
    /// Looks for a revision that is not a leaf. The call issues the reads. The returned branch ends at the
    /// revision; it has ancestors only `with_history`, and if a leaf remembers them.
    pub(crate) fn find_replaced(
        &self,
        transaction: &D::Transaction,
        keep: KeepReplaced,
        id: &str,
        rev: &RevId,
        with_history: bool,
    ) -> impl Future<Output = Result<Option<Branch>>> + Send + use<D> {
        let (keys, now_ms) = (self.keys(), self.shared.guard.environment.now_ms());
        let rows = [true, false].map(|not_deleted| {
            let leaf = Leaf { not_deleted, rev: rev.clone() };
            let row = transaction.get(&keys.key(DatabaseKey::Replaced(id, &leaf)), Read::Snapshot);
            (leaf, row)
        });
        let tree = with_history.then(|| TreePart::Whole.read(transaction, keys, id));
        async move {
            for (leaf, row) in rows {
                let Some(row) = row.await? else { continue };
                let Replaced { leaf, since_ms, size, attachments } = Replaced::read(leaf, &row)?;
                if keep.is_over(since_ms, now_ms) {
                    continue;
                }
                let ancestors = match tree {
                    Some(tree) => ancestors(&tree.await?, &leaf.rev)?,
                    None => Ancestors::EMPTY,
                };
                return Ok(Some(Branch { attachments, ancestors, ..Branch::bare(leaf, size) }));
            }
            Ok(None)
        }
    }

    /// Marks the revisions whose bodies are kept.
    pub(crate) async fn mark_replaced(
        &self,
        transaction: &D::Transaction,
        keep: KeepReplaced,
        id: &str,
        infos: &mut [RevInfo],
    ) -> Result<()> {
        let keys = self.keys();
        let rows = transaction.get_all(keys.range(DatabaseKey::ReplacedOf(id)), Read::Snapshot).await?;
        let now_ms = self.shared.guard.environment.now_ms();
        let kept = Replaced::of_document(keys, &rows).into_iter();
        let kept = kept.filter(|replaced| !keep.is_over(replaced.since_ms, now_ms));
        let kept: HashMap<RevId, bool> = kept.map(|Replaced { leaf, .. }| (leaf.rev, leaf.not_deleted)).collect();
        for info in infos.iter_mut().filter(|info| info.status == RevStatus::Missing) {
            match kept.get(&info.rev) {
                Some(true) => info.status = RevStatus::Available,
                Some(false) => info.status = RevStatus::Deleted,
                None => {}
            }
        }
        Ok(())
    }
}

/// The ancestors of a revision, as far as a branch remembers them.
fn ancestors(tree: &[Branch], rev: &RevId) -> Result<Ancestors> {
    for branch in tree {
        let Some(back) = branch.leaf.rev.position().checked_sub(rev.position()) else { continue };
        let (path, back) = (branch.path()?, usize::try_from(back).unwrap_or(usize::MAX));
        if path.get(back) == Some(rev.hash()) {
            return Ok(Ancestors::from_hashes(&path[back + 1..]));
        }
    }
    Ok(Ancestors::EMPTY)
}
