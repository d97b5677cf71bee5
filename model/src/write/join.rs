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

use crate::rows::revid::RevHash;
use crate::write::edit::RevHistory;

/// A leaf and its ancestors, parent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path<'p> {
    /// Position of the leaf.
    pub(super) position: u64,
    /// Hash of the leaf, then of its ancestors. Never empty, and no longer than the position.
    pub(super) ids: &'p [RevHash],
}

impl<'p> Path<'p> {
    /// The path of a history.
    pub(super) fn of(history: &'p RevHistory) -> Path<'p> {
        Path { position: history.position, ids: &history.ids }
    }

    /// Position of its oldest revision.
    fn end(&self) -> u64 {
        self.position - (self.ids.len() as u64 - 1)
    }

    /// Whether it lacks ancestors.
    fn is_cut_short(&self) -> bool {
        self.end() > 1
    }
}

/// Paths, and the continuation of each. Nothing is copied: one long path may continue thousands of others.
pub(super) struct Joined<'p> {
    paths: Vec<Path<'p>>,
    /// Continuation of each path: another path, which ends deeper, and the first of its ids to add.
    next: Vec<Option<(usize, usize)>>,
    /// Whether each path ends in an ancestor of another one, and so is not a branch.
    inner: Vec<bool>,
}

impl<'p> Joined<'p> {
    /// Number of paths.
    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether a path is not a branch.
    pub(super) fn is_inner(&self, path: usize) -> bool {
        self.inner[path]
    }

    /// The leaf and the ancestors of a path, with the ancestors that the others know.
    pub(super) fn ids(&self, path: usize) -> impl Iterator<Item = &'p RevHash> + Clone + '_ {
        let mut rest = Some((path, 0));
        let parts = std::iter::from_fn(move || {
            let (path, begin) = rest?;
            rest = self.next[path];
            Some(&self.paths[path].ids[begin..])
        });
        parts.flatten()
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

/// Extends each path by what the others know below its oldest revision.
///
/// Takes time in proportion to all paths together, and hardly any if no path is truncated and all leaves have the same
/// position.
pub(super) fn join(paths: Vec<Path<'_>>) -> Joined<'_> {
    let mut inner = vec![false; paths.len()];
    let highest = paths.iter().map(|path| path.position).max().unwrap_or(0);
    let mut asked: HashMap<(u64, &RevHash), Lookups> = HashMap::new();
    for (index, path) in paths.iter().enumerate() {
        if path.position < highest {
            asked.entry((path.position, &path.ids[0])).or_default().leaf_of.push(index);
        }
        if let Some(oldest) = path.ids.last()
            && path.is_cut_short()
        {
            asked.entry((path.end(), oldest)).or_default().end_of.push(index);
        }
    }
    let positions: HashSet<u64> = asked.keys().map(|(position, _)| *position).collect();
    for (index, path) in paths.iter().enumerate() {
        for (back, id) in path.ids.iter().enumerate() {
            let position = path.position - back as u64;
            if !positions.contains(&position) {
                continue;
            }
            let Some(asked) = asked.get_mut(&(position, id)) else { continue };
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
    // Number of ids that each path continues with.
    let mut more = vec![0; paths.len()];
    let mut next = vec![None; paths.len()];
    for (_, asked) in ends {
        let below = |&(index, back): &(usize, usize)| paths[index].ids.len() - (back + 1) + more[index];
        let Some(longest) = asked.seen.iter().copied().max_by_key(below) else { continue };
        let ids = below(&longest);
        for index in asked.end_of {
            next[index] = Some((longest.0, longest.1 + 1));
            more[index] = ids;
        }
    }
    Joined { paths, next, inner }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths after joining. Those that are not branches are in brackets.
    fn joined(texts: &[&str]) -> Vec<String> {
        let split = |text: &&str| {
            let (position, ids) = text.split_once('-').unwrap();
            (position.parse().unwrap(), ids.split(' ').map(|id| id.parse().unwrap()).collect())
        };
        let owned: Vec<(u64, Vec<RevHash>)> = texts.iter().map(split).collect();
        let joined = join(owned.iter().map(|(position, ids)| Path { position: *position, ids }).collect());
        let text = |(index, (position, _)): (usize, &(u64, Vec<RevHash>))| {
            let ids: Vec<String> = joined.ids(index).map(ToString::to_string).collect();
            let text = format!("{position}-{}", ids.join(" "));
            if joined.is_inner(index) { format!("({text})") } else { text }
        };
        owned.iter().enumerate().map(text).collect()
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

    /// Copying the tail for each would take 24 GB.
    #[test]
    fn a_long_path_continues_many_without_a_copy() {
        let id = |text: &str| text.parse::<RevHash>().unwrap();
        let long = [vec![id("y"), id("x")], vec![id(""); 100_000]].concat();
        let short: Vec<[RevHash; 2]> = (0..10_000).map(|number| [id(&number.to_string()), id("x")]).collect();
        let mut paths = vec![Path { position: 1_000_000, ids: &long }];
        paths.extend(short.iter().map(|ids| Path { position: 1_000_000, ids }));
        let joined = join(paths);
        assert_eq!(joined.ids(10_000).nth(1_000), Some(&id("")));
        assert_eq!(joined.ids(1).count(), long.len());
    }
}
