//! What an edit does to its document, decided from the branches it read, before anything is written.
//!
//! RFC 001, "Update Path". The branches that were read need not be all of the document's: those named
//! in [`interactive`](super::interactive) are enough to know the next winner. In every case
//!
//! ```text
//!  branches after = branches before − branches the new leaf extends or equals + 1
//!  winner after   = the greatest of the new leaf and the known branches that stay
//! ```

use crate::branch::{Ancestors, Branch, Crown};
use crate::error::{Error, Result};
use crate::keys::Leaf;

/// The leaf an edit makes.
#[derive(Clone, Debug)]
pub(crate) struct NewLeaf {
    pub(crate) leaf: Leaf,
    pub(crate) ancestors: Ancestors,
    /// Bytes of its body; zero for a tombstone without one.
    pub(crate) size: u64,
}

/// What an edit does to its document.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Branches that are no more: the one extended, as a rule.
    pub(crate) removed: Vec<Branch>,
    pub(crate) new: NewLeaf,
    /// Another branch whose row changes: the old winner losing its crown, or one gaining or keeping it.
    pub(crate) other: Option<Branch>,
    /// Who wins afterwards.
    pub(crate) winner: Winner,
    /// How many branches there are afterwards.
    pub(crate) branches: u64,
    /// Who won before.
    pub(crate) before: Option<(Leaf, Crown)>,
}

/// Who wins after an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Winner {
    /// The new leaf.
    New,
    /// The branch in [`Plan::other`].
    Other,
}

impl Plan {
    /// Decides. `known` holds the winner, if there is one, and whoever may win next; `is_removed` says
    /// which of them the new leaf extends or equals.
    pub(crate) fn new(known: Vec<Branch>, is_removed: impl Fn(&Branch) -> bool, new: NewLeaf) -> Result<Plan> {
        let before = known.iter().find_map(|branch| branch.crown.map(|crown| (branch.leaf.clone(), crown)));
        if before.is_none() && !known.is_empty() {
            return Err(Error::corrupt(format!("no winner beside {}", known[0].leaf.rev)));
        }
        let (removed, stay): (Vec<Branch>, Vec<Branch>) = known.into_iter().partition(is_removed);
        let branches = before.as_ref().map_or(0, |(_, crown)| crown.branches);
        let branches = branches
            .checked_sub(removed.len() as u64)
            .ok_or_else(|| Error::corrupt(format!("fewer branches counted than there are beside {}", new.leaf.rev)))?;
        let mut best: Option<Branch> = None;
        let mut dethroned = None;
        for branch in stay {
            if best.as_ref().is_none_or(|best| best.leaf < branch.leaf) {
                if let Some(loser) = best.replace(branch).filter(|loser| loser.crown.is_some()) {
                    dethroned = Some(loser);
                }
            } else if branch.crown.is_some() {
                dethroned = Some(branch);
            }
        }
        if let Some(branch) = dethroned {
            // The winner before is the greatest of all that were there.
            return Err(Error::corrupt(format!("{} had the winner's row and is not the winner", branch.leaf.rev)));
        }
        let (winner, other) = match best {
            Some(best) if best.leaf > new.leaf => (Winner::Other, Some(best)),
            Some(best) => (Winner::New, Some(best).filter(|best| best.crown.is_some())),
            None => (Winner::New, None),
        };
        Ok(Plan { removed, new, other, winner, branches: branches + 1, before })
    }

    /// The leaf that wins afterwards.
    pub(crate) fn winning_leaf(&self) -> &Leaf {
        match (self.winner, &self.other) {
            (Winner::Other, Some(other)) => &other.leaf,
            _ => &self.new.leaf,
        }
    }
}
