//! What an edit does to its document, decided from the branches it read, before anything is written.
//!
//! RFC 001, "Update Path". The branches that were read need not be all of the document's: those named
//! in [`interactive`](super::interactive) are enough to know the next winner. In every case
//!
//! ```text
//!  branches after = branches before − branches removed + 1
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

/// What an edit does to a branch that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing, unless it gains or loses the crown.
    Stays,
    /// It remembers more ancestors than it did.
    Lengthened,
    /// The new leaf extends or equals it, or it turned out to be an ancestor of another.
    Removed,
}

/// What an edit does to its document.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Branches that are no more: the one extended, as a rule.
    pub(crate) removed: Vec<Branch>,
    pub(crate) new: NewLeaf,
    /// Another branch whose row changes: the old winner losing its crown, or one gaining or keeping it.
    pub(crate) other: Option<Branch>,
    /// Losing branches whose rows change beside these: they remember more.
    pub(crate) lengthened: Vec<Branch>,
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
    /// Decides. `known` holds the winner, if there is one, and whoever may win next.
    pub(crate) fn new(known: Vec<(Branch, Fate)>, new: NewLeaf) -> Result<Plan> {
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
        let branches = before.as_ref().map_or(0, |(_, crown)| crown.branches);
        let branches = branches
            .checked_sub(removed.len() as u64)
            .ok_or_else(|| Error::corrupt(format!("fewer branches counted than there are beside {}", new.leaf.rev)))?;
        let best = (0..stay.len()).max_by(|&a, &b| stay[a].0.leaf.cmp(&stay[b].0.leaf));
        let best = best.map(|best| stay.swap_remove(best));
        if let Some((branch, _)) = stay.iter().find(|(branch, _)| branch.crown.is_some()) {
            // The winner before is the greatest of all that were there.
            return Err(Error::corrupt(format!("{} had the winner's row and is not the winner", branch.leaf.rev)));
        }
        let (winner, other) = match best {
            Some((best, _)) if best.leaf > new.leaf => (Winner::Other, Some(best)),
            Some((best, fate)) if best.crown.is_some() || fate == Fate::Lengthened => (Winner::New, Some(best)),
            Some(_) | None => (Winner::New, None),
        };
        let lengthened = stay.into_iter().filter(|(_, fate)| *fate == Fate::Lengthened);
        let lengthened = lengthened.map(|(branch, _)| branch).collect();
        Ok(Plan { removed, new, other, lengthened, winner, branches: branches + 1, before })
    }

    /// The leaf that wins afterwards.
    pub(crate) fn winning_leaf(&self) -> &Leaf {
        match (self.winner, &self.other) {
            (Winner::Other, Some(other)) => &other.leaf,
            _ => &self.new.leaf,
        }
    }
}
