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
//! arrival: a leaf that was merged is a known revision without known children. A branch takes over the
//! longest history that those it shares an ancestor with know when it arrives; one that is there
//! already is not lengthened by what arrives later on another.

use crate::branch::{Ancestors, Branch};
use crate::edit::{Edit, RevHistory};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::keys::Leaf;
use crate::revid::{RevHash, RevId};

use super::interactive::stored_size;
use super::plan::{NewLeaf, Plan};

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
    let history = longest_history(incoming, &known)?;
    let remembered = history.len().min(instance.revs_limit as usize);
    let ancestors = Ancestors::from_hashes(history.get(1..remembered).unwrap_or_default());
    let new = NewLeaf { leaf: Leaf { not_deleted: !edit.deleted, rev }, ancestors, size: stored_size(edit) };
    Plan::new(known, |branch| is_on(incoming, branch), new).map(Some)
}

/// Whether a branch's leaf is an ancestor on the path.
fn is_on(path: &RevHistory, branch: &Branch) -> bool {
    let back = path.position.checked_sub(branch.leaf.rev.position());
    let hash = back.and_then(|back| path.ids.get(usize::try_from(back).ok()?));
    hash == Some(branch.leaf.rev.hash())
}

/// The path, and below it what a branch remembers of the same ancestors.
fn longest_history(path: &RevHistory, known: &[Branch]) -> Result<Vec<RevHash>> {
    let mut history = path.ids.clone();
    let position = path.position - (path.ids.len() as u64 - 1);
    let oldest = path.ids.last().cloned().and_then(|hash| RevId::new(position, hash).ok());
    let Some(oldest) = oldest else { return Ok(history) };
    let mut older: Vec<RevHash> = Vec::new();
    for branch in known {
        if branch.contains(&oldest)? {
            let back = usize::try_from(branch.leaf.rev.position() - position).unwrap_or(usize::MAX);
            let below = branch.ancestors.iter().skip(back).collect::<Result<Vec<RevHash>>>()?;
            if below.len() > older.len() {
                older = below;
            }
        }
    }
    history.append(&mut older);
    Ok(history)
}
