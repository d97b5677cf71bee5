//! Replicated edits: revisions arrive with their ancestors and are merged into the document's tree.
//!
//! ```text
//!            3-c            the path 4-x, 3-c, 2-b    extends the leaf 3-c
//!           ╱               the path 3-y, 2-b         forks at 2-b: a new branch
//!    1-a ─ 2-b ─ 3-d        the path 2-b              is known: nothing happens
//!                           the path 5-z              shares nothing: a new branch
//! ```
//!
//! RFC 001, "Update Path": all branches are read, in one round trip. All edits of a document in a transaction are
//! merged together, as CouchDB merges those of one `_bulk_docs`. Histories are stemmed afterwards.
//!
//! Invariant, in any order of arrival: after a merge a leaf is a known revision without known children, and a
//! branch remembers the newest part of its history that all branches together know. An interactive edit reads at
//! most two branches, so it may make a revision that is an ancestor elsewhere, on a branch that arrived without
//! the edit's parent. The next merge joins the two.
//!
//! If the [last write wins](crate::write::policy) there is no tree: the greatest revision replaces the existing one.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::error::Result;
use crate::keys::Leaf;
use crate::rows::ancestors::Ancestors;
use crate::rows::branch::{self, Branch};
use crate::rows::instance::Instance;
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, RevHistory};
use crate::write::policy::ConflictPolicy;

use super::join::{Path, join};
use super::plan::{Fate, Fates, NewLeaf, Plan};

/// A revision of an edit.
pub(super) struct Incoming<'e> {
    pub(super) edit: &'e Edit,
    /// Its place among the edits of its document.
    pub(super) place: usize,
    pub(super) rev: RevId,
    pub(super) history: Cow<'e, RevHistory>,
}

/// Merges edits of a document into its branches; `None` if all their revisions are known.
pub(super) fn merge(instance: &Instance, incoming: Vec<Incoming<'_>>, known: Vec<Branch>) -> Result<Option<Plan>> {
    let new = unknown(incoming, &known)?;
    if new.is_empty() {
        return Ok(None);
    }
    let limit = instance.revs_limit as usize;
    if instance.policy == ConflictPolicy::LastWriteWins {
        return replace(new, known, limit);
    }
    let paths: Vec<Path<'_>> = new.iter().map(|one| Path::of(&one.history)).collect();
    let (known, added) = match paths.as_slice() {
        &[path] if extends_all(path, &known, limit) => {
            let known = known.into_iter().map(|branch| (branch, Fate::Removed)).collect();
            (known, vec![Some(Ancestors::from_hashes(path.ids.iter().take(limit).skip(1)))])
        }
        _ => meet(paths, known, limit)?,
    };
    // One of several new revisions may be an ancestor of another, and so not a leaf. If several are equal, the first
    // one's body is used. All histories are joined by now.
    let mut seen = HashSet::with_capacity(new.len());
    let added = new.into_iter().zip(added).filter_map(|(Incoming { edit, place, rev, .. }, ancestors)| {
        let ancestors = ancestors.filter(|_| seen.insert(rev.clone()))?;
        Some(NewLeaf::of(edit, Leaf { not_deleted: !edit.deleted, rev }, ancestors, place))
    });
    Plan::new(known, added.collect()).map(Some)
}

/// Replaces the leaf by the greatest revision, with the history of its edit only, so that the result does not depend on
/// the order. If revisions are equal, the first one's body is kept.
fn replace(new: Vec<Incoming<'_>>, known: Vec<Branch>, limit: usize) -> Result<Option<Plan>> {
    let greatest = new.into_iter().rev().max_by(|one, other| one.rev.cmp(&other.rev));
    let added = greatest.map(|Incoming { edit, place, rev, history }| {
        let ancestors = Ancestors::from_hashes(history.ids.iter().take(limit).skip(1));
        NewLeaf::of(edit, Leaf { not_deleted: !edit.deleted, rev }, ancestors, place)
    });
    let known = known.into_iter().map(|branch| (branch, Fate::Removed));
    Plan::new(known.collect(), added.into_iter().collect()).map(Some)
}

/// The edits whose revisions are not in the tree.
fn unknown<'e>(mut incoming: Vec<Incoming<'e>>, known: &[Branch]) -> Result<Vec<Incoming<'e>>> {
    let in_tree = branch::known(known, incoming.iter().map(|incoming| &incoming.rev))?;
    let in_tree: HashSet<RevId> = in_tree.into_iter().cloned().collect();
    incoming.retain(|one| !in_tree.contains(&one.rev));
    Ok(incoming)
}

/// The branches through whose leaves a history goes.
pub(super) fn branches_on<'b>(known: &'b [Branch], history: &RevHistory) -> impl Iterator<Item = &'b Branch> {
    known.iter().filter(move |branch| {
        let rev = &branch.leaf.rev;
        let back = history.position.checked_sub(rev.position());
        back.and_then(|back| history.ids.get(usize::try_from(back).ok()?)) == Some(rev.hash())
    })
}

/// Whether a path is complete by itself: it needs nothing from the branches, and continues each of them.
fn extends_all(path: Path<'_>, known: &[Branch], limit: usize) -> bool {
    let is_on = |branch: &Branch| {
        let back = path.position.checked_sub(branch.leaf.rev.position());
        let hash = back.and_then(|back| path.ids.get(usize::try_from(back).ok()?));
        hash == Some(branch.leaf.rev.hash())
    };
    (path.ids.len() >= limit || path.ids.len() as u64 == path.position) && known.iter().all(is_on)
}

/// Joins the arriving paths with the existing ones. Returns the fates of the branches, and the ancestors of each new
/// path; `None` if its revision is an ancestor.
fn meet(new: Vec<Path<'_>>, known: Vec<Branch>, limit: usize) -> Result<(Fates, Vec<Option<Ancestors>>)> {
    let own = known.iter().map(Branch::path).collect::<Result<Vec<_>>>()?;
    let mut paths = Vec::with_capacity(known.len() + new.len());
    paths.extend(known.iter().zip(&own).map(|(branch, ids)| Path { position: branch.leaf.rev.position(), ids }));
    paths.extend(new);
    let joined = join(paths);
    let ancestors = |path| Ancestors::from_hashes(joined.ids(path).take(limit).skip(1));
    let mut fates = Vec::with_capacity(known.len());
    for (index, mut branch) in known.into_iter().enumerate() {
        let fate = if joined.is_inner(index) {
            Fate::Removed
        } else if own[index].len() < joined.ids(index).take(limit).count() {
            let longer = ancestors(index);
            // A full row is not changed.
            if longer == branch.ancestors {
                Fate::Stays
            } else {
                branch.ancestors = longer;
                Fate::Lengthened
            }
        } else {
            Fate::Stays
        };
        fates.push((branch, fate));
    }
    let added = (own.len()..joined.len()).map(|path| (!joined.is_inner(path)).then(|| ancestors(path)));
    let added = added.collect();
    Ok((fates, added))
}
