//! Joins the paths of one document into a tree.
//!
//! Each branch is stored as a separate path, and paths arrive stemmed and truncated, in any order. Together they
//! describe one tree:
//!
//! ```text
//!  stored     5-e ─ 4-d              4-d is a leaf, and an ancestor of 5-e: not a leaf of the tree
//!             4-d ─ 3-c ─ 2-b        so 5-e continues like 4-d
//!  arrives    3-x ─ 2-b ─ 1-a        and 4-d continues like 3-x
//!
//!  the tree   5-e ─ 4-d ─ 3-c ─ 2-b ─ 1-a ,  3-x ─ 2-b ─ 1-a
//! ```
//!
//! CouchDB stores the tree itself, and joins its parts in `couch_key_tree:merge/2` and `stem/2`.

use std::collections::{HashMap, HashSet};

use crate::revid::RevHash;

/// A leaf and its ancestors, parent first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// Position of the leaf.
    pub(super) position: u64,
    /// Hash of the leaf, then of its ancestors. Never empty, and no longer than the position.
    pub(super) ids: Vec<RevHash>,
}

impl Path {
    /// Position of its oldest revision.
    fn end(&self) -> u64 {
        self.position - (self.ids.len() as u64 - 1)
    }

    /// Whether it lacks ancestors.
    fn is_cut_short(&self) -> bool {
        self.end() > 1
    }
}

/// A revision that is looked up in other paths.
#[derive(Default)]
struct Lookups {
    /// Paths with this leaf.
    leaf_of: Vec<usize>,
    /// Paths with this oldest revision.
    end_of: Vec<usize>,
    /// Its places on paths that continue below it.
    seen: Vec<(usize, usize)>,
}

/// Extends each path by what the others know below its oldest revision. Returns which paths end in an ancestor of
/// another path, and so are not branches.
///
/// Takes time in proportion to all paths together, and hardly any if no path is truncated and all leaves have the same
/// position.
pub(super) fn join(paths: &mut [Path]) -> Vec<bool> {
    let mut inner = vec![false; paths.len()];
    let highest = paths.iter().map(|path| path.position).max().unwrap_or(0);
    let mut asked: HashMap<(u64, RevHash), Lookups> = HashMap::new();
    for (index, path) in paths.iter().enumerate() {
        if path.position < highest {
            asked.entry((path.position, path.ids[0].clone())).or_default().leaf_of.push(index);
        }
        if let Some(oldest) = path.ids.last()
            && path.is_cut_short()
        {
            asked.entry((path.end(), oldest.clone())).or_default().end_of.push(index);
        }
    }
    let positions: HashSet<u64> = asked.keys().map(|(position, _)| *position).collect();
    for (index, path) in paths.iter().enumerate() {
        for (back, id) in path.ids.iter().enumerate() {
            let position = path.position - back as u64;
            if !positions.contains(&position) {
                continue;
            }
            let Some(asked) = asked.get_mut(&(position, id.clone())) else { continue };
            if back > 0 {
                asked.leaf_of.drain(..).for_each(|leaf| inner[leaf] = true);
            }
            if back + 1 < path.ids.len() && !asked.end_of.is_empty() {
                asked.seen.push((index, back));
            }
        }
    }
    // The deepest first, so that a path that extends another one is complete.
    let mut ends: Vec<(u64, Lookups)> = asked.into_iter().map(|((position, _), asked)| (position, asked)).collect();
    ends.retain(|(_, asked)| !asked.end_of.is_empty() && !asked.seen.is_empty());
    ends.sort_by_key(|(position, _)| *position);
    for (_, asked) in ends {
        let longest = asked.seen.iter().map(|&(index, back)| &paths[index].ids[back + 1..]).max_by_key(|ids| ids.len());
        let below = longest.unwrap_or_default().to_vec();
        for index in asked.end_of {
            paths[index].ids.extend_from_slice(&below);
        }
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        let (position, ids) = text.split_once('-').unwrap();
        Path { position: position.parse().unwrap(), ids: ids.split(' ').map(|id| id.parse().unwrap()).collect() }
    }

    /// The paths after joining. Those that are not branches are in brackets.
    fn joined(texts: &[&str]) -> Vec<String> {
        let mut paths: Vec<Path> = texts.iter().map(|text| path(text)).collect();
        let inner = join(&mut paths);
        let text = |path: &Path| {
            let ids: Vec<String> = path.ids.iter().map(ToString::to_string).collect();
            format!("{}-{}", path.position, ids.join(" "))
        };
        paths
            .iter()
            .zip(inner)
            .map(|(path, inner)| if inner { format!("({})", text(path)) } else { text(path) })
            .collect()
    }

    #[test]
    fn a_path_is_lengthened_by_what_another_knows() {
        assert_eq!(joined(&["3-c b", "3-d b a"]), ["3-c b a", "3-d b a"]);
        assert_eq!(joined(&["3-c", "3-d b a"]), ["3-c", "3-d b a"], "they share nothing that is known");
        assert_eq!(
            joined(&["4-d c b", "4-e c", "3-x b a"]),
            ["4-d c b a", "4-e c b a", "3-x b a"],
            "by way of another"
        );
        assert_eq!(joined(&["2-b a", "3-b"]), ["2-b a", "3-b"], "a hash at another position is another revision");
    }

    #[test]
    fn a_leaf_that_is_an_ancestor_is_no_branch() {
        assert_eq!(joined(&["5-e d", "4-d c b", "3-x b a"]), ["5-e d c b a", "(4-d c b a)", "3-x b a"]);
        assert_eq!(joined(&["5-e d", "3-c b", "4-d c"]), ["5-e d c b", "(3-c b)", "(4-d c b)"]);
        assert_eq!(joined(&["1-a"]), ["1-a"]);
        assert_eq!(joined(&["2-b a", "2-c a", "2-d a"]), ["2-b a", "2-c a", "2-d a"]);
    }

    #[test]
    fn the_longest_of_several_histories_is_taken() {
        assert_eq!(joined(&["9-i h", "9-j h g", "9-k h g f"]), ["9-i h g f", "9-j h g f", "9-k h g f"]);
    }
}
