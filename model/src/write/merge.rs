//! Replicated edits: a revision comes with its ancestors and is merged into the document's tree.
//!
//! ```text
//!            3-c            the path 4-x, 3-c, 2-b    extends the leaf 3-c
//!           ╱               the path 3-y, 2-b         forks at 2-b: a new branch
//!    1-a ─ 2-b ─ 3-d        the path 2-b              is known: nothing happens
//!                           the path 5-z              shares nothing: a new branch
//! ```
//!
//! RFC 001, "Update Path": all branches are read, in one round trip. Invariant, in any order of
//! arrival: after a merge a leaf is a known revision without known children, and a branch remembers the
//! newest of what all of them together know of its history. An interactive edit reads two branches at
//! most, so that it may make a revision which is an ancestor elsewhere, on a branch that came without
//! the edit's parent: the next merge joins the two.

use crate::branch::{Ancestors, Branch};
use crate::edit::{Edit, RevHistory};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::keys::Leaf;

use super::interactive::stored_size;
use super::join::{Path, join};
use super::plan::{Fate, NewLeaf, Plan};

/// Merges `edit` into the document that has these branches; `None` where its revision is known.
pub(super) fn merge(
    instance: &Instance,
    edit: &Edit,
    incoming: &RevHistory,
    known: Vec<Branch>,
) -> Result<Option<Plan>> {
    let rev = incoming.leaf().ok_or_else(|| Error::bad_request("Invalid rev format"))?;
    for branch in &known {
        if branch.contains(&rev)? {
            return Ok(None);
        }
    }
    let limit = instance.revs_limit as usize;
    let mut path = Path { position: incoming.position, ids: incoming.ids.clone() };
    let enough = path.ids.len() >= limit || path.ids.len() as u64 == path.position;
    let known = if enough && known.iter().all(|branch| is_on(incoming, branch)) {
        known.into_iter().map(|branch| (branch, Fate::Removed)).collect()
    } else {
        meet(&mut path, known, limit)?
    };
    path.ids.truncate(limit);
    let ancestors = Ancestors::from_hashes(path.ids.get(1..).unwrap_or_default());
    let new = NewLeaf { leaf: Leaf { not_deleted: !edit.deleted, rev }, ancestors, size: stored_size(edit) };
    Plan::new(known, new).map(Some)
}

/// Whether a branch's leaf is an ancestor on the path.
fn is_on(path: &RevHistory, branch: &Branch) -> bool {
    let back = path.position.checked_sub(branch.leaf.rev.position());
    let hash = back.and_then(|back| path.ids.get(usize::try_from(back).ok()?));
    hash == Some(branch.leaf.rev.hash())
}

/// Joins the path that arrives with those that are there; what becomes of them.
fn meet(path: &mut Path, known: Vec<Branch>, limit: usize) -> Result<Vec<(Branch, Fate)>> {
    let mut paths = Vec::with_capacity(known.len() + 1);
    for branch in &known {
        paths.push(Path { position: branch.leaf.rev.position(), ids: branch.path()? });
    }
    let own: Vec<usize> = paths.iter().map(|path| path.ids.len()).collect();
    paths.push(path.clone());
    let inner = join(&mut paths);
    if let Some(longest) = paths.pop() {
        *path = longest;
    }
    let mut fates = Vec::with_capacity(known.len());
    for (index, mut branch) in known.into_iter().enumerate() {
        let fate = if inner[index] {
            Fate::Removed
        } else if own[index] < paths[index].ids.len().min(limit) {
            paths[index].ids.truncate(limit);
            let longer = Ancestors::from_hashes(&paths[index].ids[1..]);
            // A row that is full stays as it is.
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
    Ok(fates)
}
