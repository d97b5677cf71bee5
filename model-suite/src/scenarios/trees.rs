//! Revision trees as in the RFC's text, in the simplest form: nodes and their parents.

use std::collections::{BTreeMap, BTreeSet};

use model::RevId;

/// The tree of one document.
#[derive(Clone, Debug, Default)]
pub(crate) struct RevTree {
    /// The parent of each known revision, if it is known.
    parents: BTreeMap<RevId, Option<RevId>>,
    /// Whether each replicated revision is a tombstone.
    deleted: BTreeMap<RevId, bool>,
}

/// A leaf. Sorts like winners.
pub(crate) type Leaf = (bool, RevId);

impl RevTree {
    /// Adds a revision with its ancestors, newest first.
    pub(crate) fn merge(&mut self, path: &[RevId], deleted: bool) {
        if self.parents.contains_key(&path[0]) {
            return;
        }
        for (at, rev) in path.iter().enumerate() {
            let parent = path.get(at + 1).cloned();
            let known = self.parents.entry(rev.clone()).or_default();
            if known.is_none() {
                *known = parent;
            }
        }
        self.deleted.insert(path[0].clone(), deleted);
    }

    /// All leaves, the winner first.
    pub(crate) fn leaves(&self) -> Vec<Leaf> {
        let inner: BTreeSet<&RevId> = self.parents.values().flatten().collect();
        let leaves = self.parents.keys().filter(|rev| !inner.contains(rev));
        let mut leaves: Vec<Leaf> = leaves.map(|rev| (!self.deleted[rev], rev.clone())).collect();
        leaves.sort();
        leaves.reverse();
        leaves
    }

    /// The revision and its ancestors, newest first.
    pub(crate) fn path(&self, rev: &RevId) -> Vec<RevId> {
        let mut path = vec![rev.clone()];
        while let Some(Some(parent)) = path.last().and_then(|rev| self.parents.get(rev)) {
            path.push(parent.clone());
        }
        path
    }
}
