//! What a transaction does to a document, decided from the branches it read, before anything is written.
//!
//! RFC 001, "Update Path". A plan says which branches go, which leaves come and who wins then:
//!
//! ```text
//!  branches after = branches before − removed + added
//!  winner after   = the greatest of the added leaves and the known branches that stay; none where all go
//! ```
//!
//! A [purge](super::purge) is a plan that only removes.
//!
//! The branches that were read need not be all of the document's: those named in
//! [`interactive`](super::interactive) are enough to know the next winner.

use crate::branch::{Ancestors, Branch, Crown};
use crate::error::{Error, Result};
use crate::keys::Leaf;

/// A leaf that is added.
#[derive(Clone, Debug)]
pub(crate) struct NewLeaf {
    pub(crate) leaf: Leaf,
    pub(crate) ancestors: Ancestors,
    /// Bytes of its body; zero for a tombstone without one.
    pub(crate) size: u64,
    /// Whether it has attachments.
    pub(crate) attachments: bool,
    /// Which of the document's edits brings it and has its body.
    pub(crate) edit: usize,
}

/// What becomes of a branch that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing, unless it gains or loses the crown.
    Stays,
    /// It remembers more ancestors than it did.
    Lengthened,
    /// A new leaf extends or equals it, or it turned out to be an ancestor of another.
    Removed,
}

/// Branches that were read, and what becomes of each.
pub(crate) type Fates = Vec<(Branch, Fate)>;

/// What a transaction does to a document.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Branches that are no more: the one extended, as a rule.
    pub(crate) removed: Vec<Branch>,
    /// New leaves, in the order of their keys.
    pub(crate) added: Vec<NewLeaf>,
    /// Branches that stay and whose rows change: they gain, keep or lose the crown, or remember more.
    pub(crate) changed: Vec<Branch>,
    /// The winner afterwards; `None` where nothing is left of the document.
    pub(crate) winner: Option<Leaf>,
    /// How many branches there are afterwards.
    pub(crate) branches: u64,
    /// The winner before.
    pub(crate) before: Option<(Leaf, Crown)>,
}

impl Plan {
    /// Whether leaves with attachments come or go.
    pub(crate) fn has_attachments(&self) -> bool {
        self.removed.iter().any(|branch| branch.attachments) || self.added.iter().any(|new| new.attachments)
    }

    /// Decides. `known` holds the winner, if there is one, and whoever may win next.
    pub(crate) fn new(known: Fates, mut added: Vec<NewLeaf>) -> Result<Plan> {
        let before = known.iter().find_map(|(branch, _)| branch.crown.map(|crown| (branch.leaf.clone(), crown)));
        if let (None, Some((branch, _))) = (&before, known.first()) {
            return Err(Error::corrupt(format!("no winner beside {}", branch.leaf.rev)));
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
        if let Some((branch, _)) = stay.iter().find(|(branch, _)| branch.crown.is_some() && Some(&branch.leaf) != best)
        {
            // The winner before is the greatest of all that were there.
            return Err(Error::corrupt(format!("{} had the winner's row and is not the winner", branch.leaf.rev)));
        }
        let winner = best.max(added.last().map(|new| &new.leaf)).cloned();
        let counted = before.as_ref().map_or(0, |(_, crown)| crown.branches);
        let branches = counted.checked_sub(removed.len() as u64).map(|stay| stay + added.len() as u64);
        let branches = branches.filter(|&branches| (branches > 0) == winner.is_some());
        let branches = branches.ok_or_else(|| {
            let (removed, stay) = (removed.len(), stay.len());
            Error::corrupt(format!("{counted} branches are counted, {removed} are removed and {stay} stay"))
        })?;
        stay.retain(|(branch, fate)| {
            *fate == Fate::Lengthened || branch.crown.is_some() || Some(&branch.leaf) == winner.as_ref()
        });
        let changed = stay.into_iter().map(|(branch, _)| branch).collect();
        Ok(Plan { removed, added, changed, winner, branches, before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::Seq;

    fn leaf(rev: &str) -> Leaf {
        Leaf { not_deleted: true, rev: rev.parse().unwrap() }
    }

    fn branch(rev: &str, branches: u64) -> Branch {
        let crown = (branches > 0).then_some(Crown { seq: Seq::ZERO, branches });
        Branch { crown, ..Branch::bare(leaf(rev), 2) }
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
    fn rows_change_where_the_crown_or_the_history_does() {
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
