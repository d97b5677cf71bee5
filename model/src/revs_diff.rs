//! Which revisions a replicator need not send: `_revs_diff`.
//!
//! Source: `couch_db:get_missing_revs/2` and `possible_ancestors/2` of CouchDB.

use kv_api::{Database, Read};

use crate::branch::Branch;
use crate::documents::Documents;
use crate::error::Result;
use crate::read::Tree;
use crate::revid::RevId;

/// Documents read in one transaction.
const DOCUMENTS_AT_ONCE: usize = 500;

/// What is missing of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevsDiff {
    /// The document.
    pub id: String,
    /// Revisions asked about that are not known, in the order asked; never empty.
    pub missing: Vec<RevId>,
    /// Leaves that may be ancestors of missing ones: those of a lesser position, in their order.
    pub possible_ancestors: Vec<RevId>,
}

impl<D: Database> Documents<D> {
    /// Of the revisions asked about, those that are not known here; documents of which all are known
    /// are left out.
    ///
    /// # Errors
    /// 404 where the database is gone.
    pub async fn revs_diff(&self, wanted: Vec<(String, Vec<RevId>)>) -> Result<Vec<RevsDiff>> {
        let mut diffs = Vec::new();
        for some in wanted.chunks(DOCUMENTS_AT_ONCE) {
            let found = self
                .read(|transaction| async move {
                    let instance = self.instance(&transaction, Read::Snapshot);
                    let trees: Vec<_> =
                        some.iter().map(|(id, _)| Tree::Whole.read(&transaction, self.keys(), id)).collect();
                    instance.await?;
                    let mut found = Vec::new();
                    for ((id, revs), tree) in some.iter().zip(trees) {
                        found.extend(diff(id, revs, &tree.await?)?);
                    }
                    Ok(found)
                })
                .await?;
            diffs.extend(found);
        }
        Ok(diffs)
    }
}

fn diff(id: &str, revs: &[RevId], tree: &[Branch]) -> Result<Option<RevsDiff>> {
    let mut missing = Vec::new();
    'revs: for rev in revs {
        for branch in tree {
            if branch.contains(rev)? {
                continue 'revs;
            }
        }
        if !missing.contains(rev) {
            missing.push(rev.clone());
        }
    }
    let Some(highest) = missing.iter().map(RevId::position).max() else { return Ok(None) };
    let leaves = tree.iter().map(|branch| &branch.leaf.rev);
    let mut possible_ancestors: Vec<RevId> = leaves.filter(|leaf| leaf.position() < highest).cloned().collect();
    possible_ancestors.sort();
    Ok(Some(RevsDiff { id: id.to_owned(), missing, possible_ancestors }))
}
