//! Interactive edits: the client names the leaf to replace, and the layer makes the revision.
//!
//! RFC 001, "Update Path". Reads of each edit, issued together for all edits of a transaction:
//!
//! ```text
//!                        first round trip                          second
//!  no named revision     the last branch                           –
//!  extend                the named branch                          if it is not the winner: the last branch
//!  delete                the named branch and the one before it    if it is not the winner: the last branch
//! ```
//!
//! The named branch is searched among live branches only. So an edit that names an unknown revision, an ancestor
//! or a tombstone finds nothing, and conflicts.
//!
//! A second edit cannot make an existing revision, since the hash of a revision covers its parent. But a
//! replicated revision without ancestors may exist as a separate branch. If that is possible (a losing branch,
//! a tombstone), its key is read too, which usually returns no row.

use std::future::Future;

use bytes::Bytes;
use kv_api::{RangeBatch, RangeRequest, Read, Transaction};

use super::draft::Draft;
use super::plan::{Fate, NewLeaf, Plan};
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf};
use crate::rows::ancestors::Ancestors;
use crate::rows::branch::{Branch, branches};
use crate::rows::instance::Instance;
use crate::rows::revid::RevId;
use crate::write::edit::Edit;
use crate::write::policy::ConflictPolicy;

/// The reads of an edit's first round trip.
pub(super) enum First<G, R> {
    /// The last branch.
    Last(R),
    /// The named branch.
    Named { target: Leaf, row: G },
    /// The named branch and the one before it, and the tombstone to be made, if it exists.
    NamedAndBefore { target: Leaf, made: Leaf, rows: R, same: G },
    /// No reads: the edit is invalid.
    Refused(Error),
}

/// Issues the first reads of an edit.
pub(super) fn begin<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    draft: &Draft<'_>,
) -> First<
    impl Future<Output = kv_api::Result<Option<Bytes>>> + Send + use<T>,
    impl Future<Output = kv_api::Result<RangeBatch>> + Send + use<T>,
> {
    let edit = draft.edit;
    let get = |leaf: &Leaf| transaction.get(&keys.key(DatabaseKey::Revision(&edit.id, leaf)), Read::Serializable);
    let Some(rev) = &edit.rev else {
        return First::Last(transaction.get_range(&last(keys, &edit.id), Read::Serializable));
    };
    let target = Leaf { not_deleted: true, rev: rev.clone() };
    if !edit.deleted {
        let row = get(&target);
        return First::Named { target, row };
    }
    match draft.made_over(Some(rev)) {
        Ok(made) => {
            let rows = keys.revisions_down_from(&edit.id, &target).limit(2);
            let rows = transaction.get_range(&rows, Read::Serializable);
            let same = get(&made);
            First::NamedAndBefore { target, made, rows, same }
        }
        Err(error) => First::Refused(error),
    }
}

/// A document's last branch, the winner.
pub(super) fn last(keys: &DatabaseKeys, id: &str) -> RangeRequest {
    keys.range(DatabaseKey::RevisionsOf(id)).reverse().limit(1)
}

/// Result of an edit's first reads. The edit is decided unless it is on a losing branch.
pub(super) enum FirstDecision {
    Decided(Result<Plan>),
    Losing { target: Branch, made: Leaf },
}

/// Waits for an edit's first reads and decides the edit if possible.
pub(super) async fn decide<G, R>(
    keys: &DatabaseKeys,
    instance: &Instance,
    draft: &Draft<'_>,
    first: First<G, R>,
) -> Result<FirstDecision>
where
    G: Future<Output = kv_api::Result<Option<Bytes>>>,
    R: Future<Output = kv_api::Result<RangeBatch>>,
{
    let edit = draft.edit;
    Ok(match first {
        First::Refused(error) => FirstDecision::Decided(Err(error)),
        First::Last(rows) => {
            let winner = branches(keys, &edit.id, &rows.await?.rows)?.pop();
            FirstDecision::Decided(create(instance, draft, winner)?)
        }
        First::Named { target, row } => {
            let Some(row) = row.await? else { return Ok(FirstDecision::Decided(Err(Error::conflict()))) };
            let target = Branch::read(target, &row)?;
            let made = match draft.made_over(Some(&target.leaf.rev)) {
                Ok(made) => made,
                Err(error) => return Ok(FirstDecision::Decided(Err(error))),
            };
            if target.winner_info.is_some() {
                // The new leaf is live, and one position beyond the winner: no branch can be greater.
                FirstDecision::Decided(Ok(extend(instance, edit, target, made, Vec::new())?))
            } else {
                FirstDecision::Losing { target, made }
            }
        }
        First::NamedAndBefore { target, made, rows, same } => {
            let rows = rows.await?;
            let same = same.await?;
            let mut found = branches(keys, &edit.id, &rows.rows)?.into_iter();
            let Some(target) = found.next().filter(|branch| branch.leaf == target) else {
                return Ok(FirstDecision::Decided(Err(Error::conflict())));
            };
            if target.winner_info.is_none() {
                return Ok(FirstDecision::Losing { target, made });
            }
            let mut others: Vec<Branch> = found.collect();
            add_same(&mut others, &made, same)?;
            FirstDecision::Decided(Ok(extend(instance, edit, target, made, others)?))
        }
    })
}

/// The reads of the second round trip, for an edit on a losing branch.
pub(super) struct Second<G, R> {
    target: Branch,
    made: Leaf,
    last: R,
    same: G,
}

/// Issues the second reads of an edit on a losing branch.
pub(super) fn weigh<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    edit: &Edit,
    target: Branch,
    made: Leaf,
) -> Second<
    impl Future<Output = kv_api::Result<Option<Bytes>>> + Send + use<T>,
    impl Future<Output = kv_api::Result<RangeBatch>> + Send + use<T>,
> {
    let last = transaction.get_range(&last(keys, &edit.id), Read::Serializable);
    let same = transaction.get(&keys.key(DatabaseKey::Revision(&edit.id, &made)), Read::Serializable);
    Second { target, made, last, same }
}

/// Decides an edit on a losing branch.
pub(super) async fn decide_losing<G, R>(
    keys: &DatabaseKeys,
    instance: &Instance,
    edit: &Edit,
    second: Second<G, R>,
) -> Result<Plan>
where
    G: Future<Output = kv_api::Result<Option<Bytes>>>,
    R: Future<Output = kv_api::Result<RangeBatch>>,
{
    let mut others = branches(keys, &edit.id, &second.last.await?.rows)?;
    add_same(&mut others, &second.made, second.same.await?)?;
    extend(instance, edit, second.target, second.made, others)
}

/// Adds the branch whose leaf is the revision to be made, if it exists.
fn add_same(others: &mut Vec<Branch>, made: &Leaf, row: Option<Bytes>) -> Result<()> {
    if let Some(row) = row
        && others.iter().all(|branch| branch.leaf != *made)
    {
        others.push(Branch::read(made.clone(), &row)?);
    }
    Ok(())
}

/// An edit without a revision: creates the document, or continues the winning tombstone.
fn create(instance: &Instance, draft: &Draft<'_>, winner: Option<Branch>) -> Result<Result<Plan>> {
    let edit = draft.edit;
    // Without a revision only a tombstone can be replaced, and not by another tombstone. (CouchDB allows a
    // deletion without a revision only for a document that never existed.)
    if winner.as_ref().is_some_and(|winner| winner.leaf.not_deleted || edit.deleted) {
        return Ok(Err(Error::conflict()));
    }
    let leaf = match draft.made_over(winner.as_ref().map(|winner| &winner.leaf.rev)) {
        Ok(leaf) => leaf,
        Err(error) => return Ok(Err(error)),
    };
    match winner {
        Some(tombstone) => Ok(Ok(extend(instance, edit, tombstone, leaf, Vec::new())?)),
        None => {
            let new = NewLeaf::of(edit, leaf, Ancestors::EMPTY, 0);
            Ok(Ok(Plan::new(Vec::new(), vec![new])?))
        }
    }
}

/// Decides the edit that revives a document over the tombstone that a collection made. `known` are all branches. The new
/// leaf is a descendant of the tombstone, also if that was purged here: other replicas have it, and would take any other
/// revision for one of those that it ended.
pub(super) fn revive(instance: &Instance, draft: &Draft<'_>, tombstone: &RevId, known: Vec<Branch>) -> Result<Plan> {
    if known.last().is_some_and(|winner| winner.leaf.not_deleted) {
        return Err(Error::conflict());
    }
    let mut known = known;
    for at in (0..known.len()).rev() {
        if descends(&known[at], tombstone)? {
            let target = known.remove(at);
            let made = draft.made_over(Some(&target.leaf.rev))?;
            return extend(instance, draft.edit, target, made, known);
        }
    }
    let made = draft.made_over(Some(tombstone))?;
    let limit = instance.revs_limit.saturating_sub(1) as usize;
    let ancestors = Ancestors::EMPTY.of_child(tombstone.hash(), limit)?;
    let fate = match instance.policy {
        ConflictPolicy::KeepAll => Fate::Stays,
        ConflictPolicy::LastWriteWins => Fate::Removed,
    };
    let known = known.into_iter().map(|branch| (branch, fate)).collect();
    Plan::new(known, vec![NewLeaf::of(draft.edit, made, ancestors, 0)])
}

/// Whether the leaf of a branch is this revision, or follows it.
fn descends(branch: &Branch, rev: &RevId) -> Result<bool> {
    if branch.leaf.rev == *rev {
        return Ok(true);
    }
    let Some(above) = branch.leaf.rev.position().checked_sub(rev.position() + 1) else { return Ok(false) };
    let ancestor = branch.ancestors.iter().nth(usize::try_from(above).unwrap_or(usize::MAX)).transpose()?;
    Ok(ancestor.is_some_and(|hash| hash == *rev.hash()))
}

/// Writes over a leaf. `others` are the branches that may win beside the new leaf, and one that has its revision.
pub(super) fn extend(
    instance: &Instance,
    edit: &Edit,
    target: Branch,
    leaf: Leaf,
    others: Vec<Branch>,
) -> Result<Plan> {
    let limit = instance.revs_limit.saturating_sub(1) as usize;
    let ancestors = target.ancestors.of_child(target.leaf.rev.hash(), limit)?;
    let replaced = target.leaf.clone();
    let made = leaf.clone();
    let new = NewLeaf::of(edit, leaf, ancestors, 0);
    let known = others.into_iter().chain([target]).map(|branch| {
        let gone = branch.leaf == replaced || branch.leaf == made;
        (branch, if gone { Fate::Removed } else { Fate::Stays })
    });
    Plan::new(known.collect(), vec![new])
}
