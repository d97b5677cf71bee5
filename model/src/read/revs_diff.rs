//! `_revs_diff`: finds the revisions that a replicator need not send.
//!
//! Source: `couch_db:get_missing_revs/2` and `possible_ancestors/2` of CouchDB.

use std::collections::HashSet;

use kv_api::{Database, Read};

use crate::documents::Documents;
use crate::error::{Result, alone};
use crate::read::batch::Batch;
use crate::read::winner::TreePart;
use crate::rows::branch::{self, Branch};
use crate::rows::revid::RevId;
use crate::write::ended;

/// Number of documents read in one transaction.
const DOCUMENTS_AT_ONCE: usize = 500;

/// Missing revisions of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevsDiff {
    /// Id of the document.
    pub id: String,
    /// Unknown revisions among the requested ones, in the requested order; never empty.
    pub missing: Vec<RevId>,
    /// Leaves that may be ancestors of missing revisions: those of a lower position, in their order.
    pub possible_ancestors: Vec<RevId>,
}

impl<D: Database> Documents<D> {
    /// The unknown revisions among the given ones. Documents whose revisions are all known are left out. All revisions
    /// of a damaged document count as unknown: a client that sends them then gets the error. So do older revisions of a
    /// document whose text is in the [trash](Self::trash) or has left it: a client that has one should send it.
    ///
    /// # Errors
    /// 404 if the database is gone.
    pub async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        let (mut diffs, mut rest) = (Vec::new(), wanted.as_slice());
        while !rest.is_empty() {
            let (found, read) = self
                .read_batch(DOCUMENTS_AT_ONCE, |transaction, at_once| async move {
                    let some = &rest[..rest.len().min(at_once)];
                    let instance = self.instance(&transaction, Read::Snapshot);
                    let trees: Vec<_> =
                        some.iter().map(|(id, _)| TreePart::Whole.read(&transaction, self.keys(), id)).collect();
                    let instance = instance.await?;
                    let (mut read, mut batch) = (Vec::with_capacity(some.len()), Batch::of(some.len()));
                    for ((id, revs), tree) in some.iter().zip(trees) {
                        if batch.is_full() {
                            break;
                        }
                        let tree = alone(tree.await)?;
                        batch.add(tree.iter().flatten().map(Branch::row_bytes).sum());
                        let is_asked = |tree: &[Branch]| {
                            let is_leaf = |rev: &RevId| tree.iter().any(|branch| branch.leaf.rev == *rev);
                            ended::is_hidden(&instance, tree) && !revs.iter().all(is_leaf)
                        };
                        let has_ended = match &tree {
                            Ok(tree) if is_asked(tree) => Some(self.has_ended(&transaction, id, Read::Snapshot)),
                            _ => None,
                        };
                        read.push((id, revs, tree, has_ended));
                    }
                    let mut found = Vec::new();
                    for (id, revs, tree, has_ended) in read {
                        let has_ended = match has_ended {
                            Some(has_ended) => has_ended.await?,
                            None => false,
                        };
                        let diff = tree.and_then(|tree| diff(id, revs, &tree, has_ended));
                        found.extend(alone(diff)?.unwrap_or_else(|_| missing(id, revs, &HashSet::new(), &[])));
                    }
                    Ok((found, batch.items()))
                })
                .await?;
            diffs.extend(found);
            rest = &rest[read..];
        }
        Ok(diffs)
    }

    /// Whether a document has a revision, as a leaf or before one.
    pub(crate) async fn is_known(&self, id: &str, rev: &RevId) -> Result<bool> {
        let tree = self.read(|transaction| TreePart::Whole.read(&transaction, self.keys(), id)).await?;
        Ok(branch::known(&tree, [rev])?.contains(rev))
    }
}

/// `has_ended` is whether the text of the document is in the trash or has [ended]: only its leaves are known then.
fn diff(id: &str, revs: &[RevId], tree: &[Branch], has_ended: bool) -> Result<Option<RevsDiff>> {
    let mut known = branch::known(tree, revs)?;
    if has_ended {
        known.retain(|rev| tree.iter().any(|branch| branch.leaf.rev == **rev));
    }
    Ok(missing(id, revs, &known, tree))
}

fn missing(id: &str, revs: &[RevId], known: &HashSet<&RevId>, tree: &[Branch]) -> Option<RevsDiff> {
    let mut seen = HashSet::new();
    let missing: Vec<RevId> = revs.iter().filter(|rev| !known.contains(rev) && seen.insert(*rev)).cloned().collect();
    let highest = missing.iter().map(RevId::position).max()?;
    let leaves = tree.iter().map(|branch| &branch.leaf.rev);
    let mut possible_ancestors: Vec<RevId> = leaves.filter(|leaf| leaf.position() < highest).cloned().collect();
    possible_ancestors.sort();
    Some(RevsDiff { id: id.to_owned(), missing, possible_ancestors })
}
