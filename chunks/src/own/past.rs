//! The replaced revisions that describe a conflict.
//!
//! ```text
//!            ┌─ 3-b ── 4-c    a leaf
//!  1-a ── 2-a┤
//!            └─ 3-d           a leaf          2-a, 3-b: whoever merges the two may read them
//! ```
//!
//! LiveSync merges from the nearest shared revision that a device has, and a device that undoes may go back to any
//! revision since. Its own collection keeps the chunks of those revisions that are *available* on the device. Here
//! every one of them counts: one that this database has not kept may be available on a device.

use std::collections::HashMap;

use crate::store::Leaf;

/// The replaced revisions that describe the conflict of these live leaves: those of each branch, back to the nearest
/// one that all branches share. `None` if the history does not go back so far.
pub(super) fn of_conflict(leaves: &[&Leaf]) -> Option<Vec<String>> {
    let mut branches: HashMap<&String, usize> = HashMap::new();
    for ancestor in leaves.iter().flat_map(|leaf| &leaf.ancestors) {
        *branches.entry(ancestor).or_default() += 1;
    }
    let is_shared = |rev: &String| branches.get(rev) == Some(&leaves.len());
    let mut past = Vec::new();
    for leaf in leaves {
        let shared = leaf.ancestors.iter().position(is_shared);
        let oldest = leaf.ancestors.last().unwrap_or(&leaf.rev);
        // Without a shared revision the branches must have begun apart.
        if shared.is_none() && !oldest.starts_with("1-") {
            return None;
        }
        past.extend(leaf.ancestors.iter().take(shared.map_or(usize::MAX, |place| place + 1)).cloned());
    }
    past.sort_unstable();
    past.dedup();
    Some(past)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Body;

    fn past(leaves: &[&[&str]]) -> Option<Vec<String>> {
        let leaf = |revs: &&[&str]| Leaf {
            rev: revs[0].to_owned(),
            deleted: false,
            body: Body::new(),
            ancestors: revs[1..].iter().map(|rev| (*rev).to_owned()).collect(),
        };
        let leaves: Vec<Leaf> = leaves.iter().map(leaf).collect();
        of_conflict(&leaves.iter().collect::<Vec<&Leaf>>())
    }

    fn revs(revs: &[&str]) -> Option<Vec<String>> {
        Some(revs.iter().map(|rev| (*rev).to_owned()).collect())
    }

    #[test]
    fn a_conflict_needs_its_branches_and_what_they_share() {
        assert_eq!(past(&[&["4-c", "3-b", "2-a", "1-a"], &["3-d", "2-a", "1-a"]]), revs(&["2-a", "3-b"]));
        // Three branches: back to what all of them share.
        assert_eq!(
            past(&[&["4-c", "3-b", "2-a", "1-a"], &["3-d", "2-a", "1-a"], &["2-e", "1-a"]]),
            revs(&["1-a", "2-a", "3-b"])
        );
        // Begun apart.
        assert_eq!(past(&[&["2-c", "1-a"], &["1-b"]]), revs(&["1-a"]));
        assert_eq!(past(&[&["1-a"], &["1-b"]]), revs(&[]));
    }

    #[test]
    fn a_history_that_was_cut_is_unknown() {
        assert_eq!(past(&[&["9-c", "8-a"], &["2-b", "1-b"]]), None);
        assert_eq!(past(&[&["9-c"], &["9-d"]]), None);
        // What was cut is older than what they share.
        assert_eq!(past(&[&["9-c", "8-a"], &["9-d", "8-a"]]), revs(&["8-a"]));
    }
}
