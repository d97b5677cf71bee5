//! `couch-layer tree`: draws the revision tree of a document as text. The console draws it as a picture.
//!
//! ```text
//!  1-967a00dff5e02add41819138abb3284d
//!  2-7051cbe5c8faecd085a3fa619e6e6337
//!  ├─ 3-825cb35de44c433bfb2df415563a19de
//!  │  4-2bf1d5b8ba2dbd2a7c7d2fd9e4ae8d3f  winner
//!  └─ 3-6a508370f7a33b1a0c5a0b4b7e3b7b2e  conflict
//! ```

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use model::{BulkGet, RevId};
use peer::{Peer, ReadOptions, Revision};

use super::progress;
use super::source::{IfNoDatabase, SourceArgs};
use crate::cmd::{Failure, failure};

/// Draw the revision tree of a document
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// The database
    #[arg(value_name = "DB")]
    database: String,
    /// The document
    #[arg(value_name = "DOC")]
    document: String,
    #[command(flatten)]
    source: SourceArgs,
}

impl Tree {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let source = self.source.open(&self.database, IfNoDatabase::Fail).await?;
        let wanted = [BulkGet { id: self.document.clone(), rev: None }];
        let options = ReadOptions { ancestors: true, ..ReadOptions::default() };
        let leaves = source.peer().read(&wanted, options).await?.pop().unwrap_or_else(|| Ok(Vec::new()))?;
        if leaves.is_empty() {
            return Err(failure(format!("{} has no document {}", self.database, self.document)));
        }
        Ok(progress::print(draw(&Shape::of(&leaves)).trim_end())?)
    }
}

/// The children of each revision; those of `None` are the oldest that are known.
type Children = BTreeMap<Option<RevId>, BTreeSet<RevId>>;

/// What a drawing says about a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Winner,
    /// The winner of a deleted document.
    DeletedWinner,
    /// Another live leaf.
    Conflict,
    /// Another deleted leaf.
    Deleted,
    /// An ancestor: only its name is left.
    Missing,
}

impl Kind {
    fn mark(self) -> &'static str {
        match self {
            Kind::Winner => "  winner",
            Kind::DeletedWinner => "  winner, deleted",
            Kind::Conflict => "  conflict",
            Kind::Deleted => "  deleted",
            Kind::Missing => "",
        }
    }
}

/// A revision tree, as it is drawn.
struct Shape<'a> {
    leaves: BTreeMap<&'a RevId, &'a Revision>,
    children: Children,
    winner: Option<&'a RevId>,
}

impl<'a> Shape<'a> {
    fn of(leaves: &'a [Revision]) -> Self {
        let mut children = Children::new();
        // Histories from outside may give a revision several parents. It is drawn below the first one only; otherwise
        // the number of paths could double with every generation.
        let mut parents: BTreeMap<RevId, RevId> = BTreeMap::new();
        for leaf in leaves {
            let mut child = leaf.rev.clone();
            if let Some(history) = &leaf.history {
                let positions = (1..history.position).rev();
                for (position, hash) in positions.zip(history.ids.iter().skip(1)) {
                    let Ok(parent) = RevId::new(position, hash.clone()) else { break };
                    if *parents.entry(child.clone()).or_insert_with(|| parent.clone()) == parent {
                        children.entry(Some(parent.clone())).or_default().insert(child);
                    }
                    child = parent;
                }
            }
            children.entry(None).or_default().insert(child);
        }
        // A branch with a shorter history starts inside a longer one.
        let inner: BTreeSet<RevId> =
            children.iter().filter(|(parent, _)| parent.is_some()).flat_map(|(_, of)| of.clone()).collect();
        if let Some(oldest) = children.get_mut(&None) {
            oldest.retain(|rev| !inner.contains(rev));
        }
        let winner = leaves.iter().max_by_key(|leaf| (!leaf.deleted, &leaf.rev)).map(|leaf| &leaf.rev);
        Shape { leaves: leaves.iter().map(|leaf| (&leaf.rev, leaf)).collect(), children, winner }
    }

    fn kind(&self, rev: &RevId) -> Kind {
        match self.leaves.get(rev) {
            None => Kind::Missing,
            Some(leaf) => match (Some(rev) == self.winner, leaf.deleted) {
                (true, false) => Kind::Winner,
                (true, true) => Kind::DeletedWinner,
                (false, false) => Kind::Conflict,
                (false, true) => Kind::Deleted,
            },
        }
    }

    /// The children of a revision, or the oldest revisions.
    fn below(&self, parent: Option<RevId>) -> impl DoubleEndedIterator<Item = &RevId> + ExactSizeIterator {
        self.children.get(&parent).map(BTreeSet::iter).unwrap_or_default()
    }
}

/// The tree, a line for each revision.
fn draw(shape: &Shape<'_>) -> String {
    let mut out = String::new();
    // Lines left to draw, the next one last: the indentation of the revision's line, that of the lines below it, and
    // the revision. A history is too long for recursion.
    let mut left: Vec<(String, String, RevId)> = Vec::new();
    below(shape, None, "", &mut left);
    while let Some((line, rest, rev)) = left.pop() {
        out.push_str(&format!("{line}{rev}{}\n", shape.kind(&rev).mark()));
        below(shape, Some(rev), &rest, &mut left);
    }
    out
}

/// Adds the children of a revision. A single child continues in the same column.
fn below(shape: &Shape<'_>, parent: Option<RevId>, indent: &str, left: &mut Vec<(String, String, RevId)>) {
    let of = shape.below(parent);
    let count = of.len();
    for (place, child) in of.enumerate().rev() {
        let (line, rest) = match (count, place + 1 == count) {
            (1, _) => ("", ""),
            (_, false) => ("├─ ", "│  "),
            (_, true) => ("└─ ", "   "),
        };
        left.push((format!("{indent}{line}"), format!("{indent}{rest}"), child.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{JsonText, RevHistory};

    fn leaf(path: &str, deleted: bool) -> Revision {
        let (position, ids) = path.split_once('-').unwrap();
        let ids = ids.split(' ').map(|id| id.parse().unwrap()).collect();
        let history = RevHistory { position: position.parse().unwrap(), ids };
        let (rev, body) = (history.leaf().unwrap(), JsonText::empty_object());
        Revision {
            id: "a".into(),
            rev,
            deleted,
            body,
            history: Some(history),
            attachments: Vec::new(),
            held: peer::Held::default(),
        }
    }

    #[test]
    fn branches_are_drawn_below_the_revision_that_they_share() {
        let leaves =
            [leaf("4-dd cc bb aa", false), leaf("3-ee bb aa", false), leaf("3-ff bb", true), leaf("9-99", true)];
        let drawn = "├─ 1-aa\n│  2-bb\n│  ├─ 3-cc\n│  │  4-dd  winner\n│  ├─ 3-ee  conflict\n│  └─ 3-ff  deleted\n\
                     └─ 9-99  deleted\n";
        assert_eq!(draw(&Shape::of(&leaves)), drawn);
        assert_eq!(draw(&Shape::of(&[leaf("2-bb aa", true)])), "1-aa\n2-bb  winner, deleted\n");
    }

    #[test]
    fn a_revision_with_several_parents_is_drawn_once() {
        // Two revisions in each of sixty generations, each below both of the one before.
        let path = |turns: [&str; 2], last: &str| {
            let ids: Vec<String> = (0..60).rev().map(|level| format!("{level:02}{}", turns[level % 2])).collect();
            leaf(&format!("61-{last} {}", ids.join(" ")), false)
        };
        let leaves = [path(["a", "a"], "w"), path(["b", "b"], "x"), path(["a", "b"], "y"), path(["b", "a"], "z")];
        assert_eq!(draw(&Shape::of(&leaves)).lines().count(), 124);
    }

    #[test]
    fn a_long_history_is_drawn() {
        let ids: Vec<String> = (0..20_000).map(|n| format!("{n:032x}")).collect();
        let leaf = leaf(&format!("20000-{}", ids.join(" ")), false);
        assert_eq!(draw(&Shape::of(&[leaf])).lines().count(), 20_000);
    }
}
