//! The plan of a document's changes in a transaction. It is made from the branches that were read, before anything is
//! written.
//!
//! RFC 001, "Update Path". A plan has the branches to remove, the leaves to add, and the new winner:
//!
//! ```text
//!  branches after = branches before − removed + added
//!  winner after   = the greatest of the added leaves and the remaining known branches; none if all are removed
//! ```
//!
//! A [purge](super::purge) is a plan that only removes.
//!
//! The known branches need not be all branches of the document. Those that [`interactive`](super::interactive) reads
//! suffice to find the next winner.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::keys::Leaf;
use crate::rows::ancestors::Ancestors;
use crate::rows::branch::{Branch, WinnerInfo};
use crate::write::edit::Edit;

/// A leaf to add.
#[derive(Clone, Debug)]
pub(crate) struct NewLeaf {
    pub(crate) leaf: Leaf,
    pub(crate) ancestors: Ancestors,
    /// Size of its body in bytes; zero for a tombstone without a stored body.
    pub(crate) size: u64,
    /// Whether it has attachments.
    pub(crate) attachments: bool,
    /// Index of the edit that adds it, among the document's edits.
    pub(crate) edit: usize,
}

impl NewLeaf {
    /// The new leaf of the edit at this place among the document's edits.
    pub(crate) fn of(edit: &Edit, leaf: Leaf, ancestors: Ancestors, place: usize) -> NewLeaf {
        NewLeaf { leaf, ancestors, size: edit.stored_size(), attachments: !edit.attachments.is_empty(), edit: place }
    }
}

/// The fate of an existing branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It remains. Its row changes only if it becomes the winner or is no longer the winner.
    Stays,
    /// It remains, with more ancestors than before.
    Lengthened,
    /// It is removed: a new leaf extends or replaces it, it is an ancestor of another leaf, or it is purged.
    Removed,
}

/// The branches that were read, with their fates.
pub(crate) type Fates = Vec<(Branch, Fate)>;

/// The decision about a document's edits in a transaction.
pub(super) struct Decided<'e> {
    /// The document.
    pub(super) id: &'e str,
    /// Indexes of the edits' drafts; empty for a purge.
    pub(super) drafts: Range<usize>,
    /// `None` if the revisions of all edits exist already.
    pub(super) plan: Result<Option<Plan>>,
}

impl Decided<'_> {
    /// Whether it is a purge, which has no edit.
    pub(super) fn is_purge(&self) -> bool {
        self.drafts.start == self.drafts.end
    }
}

/// The changes of a document in a transaction.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Branches to remove. Usually the extended one.
    pub(crate) removed: Vec<Branch>,
    /// Leaves to add, in key order.
    pub(crate) added: Vec<NewLeaf>,
    /// Remaining branches whose rows change: they become, stay or cease to be the winner, or get more ancestors.
    pub(crate) changed: Vec<Branch>,
    /// The new winner; `None` if no leaf remains.
    pub(crate) winner: Option<Leaf>,
    /// The new number of branches.
    pub(crate) branches: u64,
    /// The previous winner.
    pub(crate) before: Option<(Leaf, WinnerInfo)>,
    /// Whether it writes a text [again](super::ended), which may be in the trash.
    pub(crate) brings_back: bool,
}

impl Plan {
    /// Whether a deleted document lives afterwards.
    pub(crate) fn ends_deletion(&self) -> bool {
        let was_deleted = self.before.as_ref().is_some_and(|(leaf, _)| !leaf.not_deleted);
        was_deleted && self.winner.as_ref().is_some_and(|leaf| leaf.not_deleted)
    }

    /// Whether the plan adds or removes leaves with attachments.
    pub(crate) fn has_attachments(&self) -> bool {
        self.removed.iter().any(|branch| branch.attachments) || self.added.iter().any(|new| new.attachments)
    }

    /// Makes the plan. `known` has the winner, if there is one, and all branches that may win next.
    pub(crate) fn new(known: Fates, mut added: Vec<NewLeaf>) -> Result<Plan> {
        let before = known
            .iter()
            .find_map(|(branch, _)| branch.winner_info.map(|winner_info| (branch.leaf.clone(), winner_info)));
        if let (None, Some((branch, _))) = (&before, known.first()) {
            return Err(Error::corrupt(format!("there is no winner beside {}", branch.leaf.rev)));
        }
        let (mut removed, mut stay) = (Vec::new(), Vec::new());
        for (branch, fate) in known {
            match fate {
                Fate::Removed => removed.push(branch),
                Fate::Stays | Fate::Lengthened => stay.push((branch, fate)),
            }
        }
        added.sort_by(|a, b| a.leaf.cmp(&b.leaf));
        let best = stay.iter().map(|(branch, _)| &branch.leaf).max();
        if let Some((branch, _)) =
            stay.iter().find(|(branch, _)| branch.winner_info.is_some() && Some(&branch.leaf) != best)
        {
            // The previous winner must be the greatest of the known branches.
            return Err(Error::corrupt(format!("{} had the winner's row but is not the winner", branch.leaf.rev)));
        }
        let winner = best.max(added.last().map(|new| &new.leaf)).cloned();
        let counted = before.as_ref().map_or(0, |(_, winner_info)| winner_info.branches);
        let branches = counted.checked_sub(removed.len() as u64).map(|stay| stay + added.len() as u64);
        let branches = branches.filter(|&branches| (branches > 0) == winner.is_some());
        let branches = branches.ok_or_else(|| {
            let (removed, stay) = (removed.len(), stay.len());
            Error::corrupt(format!("{counted} branches are counted, {removed} are removed and {stay} stay"))
        })?;
        stay.retain(|(branch, fate)| {
            *fate == Fate::Lengthened || branch.winner_info.is_some() || Some(&branch.leaf) == winner.as_ref()
        });
        let changed = stay.into_iter().map(|(branch, _)| branch).collect();
        Ok(Plan { removed, added, changed, winner, branches, before, brings_back: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::seq::Seq;

    fn leaf(rev: &str) -> Leaf {
        Leaf { not_deleted: true, rev: rev.parse().unwrap() }
    }

    fn branch(rev: &str, branches: u64) -> Branch {
        let winner_info = (branches > 0).then_some(WinnerInfo { seq: Seq::ZERO, branches });
        Branch { winner_info, ..Branch::bare(leaf(rev), 2) }
    }

    fn new(rev: &str) -> NewLeaf {
        NewLeaf { leaf: leaf(rev), ancestors: Ancestors::EMPTY, size: 2, attachments: false, edit: 0 }
    }

    fn changed(plan: &Plan) -> Vec<String> {
        plan.changed.iter().map(|branch| branch.leaf.rev.to_string()).collect()
    }

    #[test]
    fn a_plan_may_add_and_remove_several_leaves_or_leave_nothing() {
        let known = || vec![(branch("2-b", 0), Fate::Removed), (branch("3-c", 3), Fate::Removed)];
        let plan = Plan::new(known(), vec![new("4-e"), new("4-d"), new("1-z")]).unwrap();
        assert_eq!((plan.branches, plan.winner.as_ref()), (4, Some(&leaf("4-e"))));
        assert!(plan.added.is_sorted_by(|a, b| a.leaf < b.leaf));

        let mut known = known();
        known.push((branch("2-a", 0), Fate::Stays));
        let plan = Plan::new(known, Vec::new()).unwrap();
        assert_eq!((plan.branches, plan.winner.as_ref(), changed(&plan)), (1, Some(&leaf("2-a")), vec!["2-a".into()]));

        let plan = Plan::new(vec![(branch("3-c", 1), Fate::Removed)], Vec::new()).unwrap();
        assert_eq!((plan.branches, plan.winner), (0, None));
    }

    #[test]
    fn rows_change_where_the_winner_or_the_history_does() {
        let known = || vec![(branch("3-c", 3), Fate::Stays), (branch("2-b", 0), Fate::Lengthened)];
        assert_eq!(changed(&Plan::new(known(), vec![new("1-a")]).unwrap()), ["3-c", "2-b"]);
        let known = vec![(branch("3-c", 2), Fate::Stays), (branch("2-b", 0), Fate::Stays)];
        assert_eq!(changed(&Plan::new(known, vec![new("4-a")]).unwrap()), ["3-c"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (known, added) in [
            (vec![(branch("2-b", 0), Fate::Stays)], vec![new("3-c")]),
            (vec![(branch("2-b", 2), Fate::Stays), (branch("3-c", 0), Fate::Stays)], vec![new("1-a")]),
            (vec![(branch("2-b", 1), Fate::Removed), (branch("1-a", 0), Fate::Removed)], vec![new("3-c")]),
            (vec![(branch("2-b", 2), Fate::Removed)], Vec::new()),
        ] {
            let what = format!("{known:?}");
            assert!(Plan::new(known, added).is_err(), "{what}");
        }
    }
}
