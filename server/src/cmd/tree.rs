//! `couch-layer tree`: draws the revision tree of a document.
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
use super::source::{IfNoDatabase, SourceArgs, failure};
use crate::cli::Failure;

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
        progress::print(draw(&leaves).trim_end())?;
        Ok(())
    }
}

/// The children of each revision; those of `None` are the oldest that are known.
type Children = BTreeMap<Option<RevId>, BTreeSet<RevId>>;

/// The tree, a line for each revision.
fn draw(leaves: &[Revision]) -> String {
    let mut children = Children::new();
    for leaf in leaves {
        let mut child = leaf.rev.clone();
        if let Some(history) = &leaf.history {
            let positions = (1..history.position).rev();
            for (position, hash) in positions.zip(history.ids.iter().skip(1)) {
                let Ok(parent) = RevId::new(position, hash.clone()) else { break };
                children.entry(Some(parent.clone())).or_default().insert(child);
                child = parent;
            }
        }
        children.entry(None).or_default().insert(child);
    }
    // A branch that remembers less than another begins within it.
    let inner: BTreeSet<RevId> =
        children.iter().filter(|(parent, _)| parent.is_some()).flat_map(|(_, of)| of.clone()).collect();
    if let Some(oldest) = children.get_mut(&None) {
        oldest.retain(|rev| !inner.contains(rev));
    }
    let winner = leaves.iter().max_by_key(|leaf| (!leaf.deleted, &leaf.rev)).map(|leaf| &leaf.rev);
    let note = |rev: &RevId| match leaves.iter().find(|leaf| leaf.rev == *rev) {
        Some(leaf) if Some(rev) == winner => {
            if leaf.deleted {
                "  winner, deleted"
            } else {
                "  winner"
            }
        }
        Some(leaf) => {
            if leaf.deleted {
                "  deleted"
            } else {
                "  conflict"
            }
        }
        None => "",
    };
    let mut out = String::new();
    // What is left to draw, the next one last: the indentation of a revision's line, that of what follows it, and the
    // revision. A history is too long for recursion.
    let mut left: Vec<(String, String, RevId)> = Vec::new();
    below(&children, None, "", &mut left);
    while let Some((line, rest, rev)) = left.pop() {
        out.push_str(&format!("{line}{rev}{}\n", note(&rev)));
        below(&children, Some(rev), &rest, &mut left);
    }
    out
}

/// Adds the children of a revision. A single one goes on in the same column.
fn below(children: &Children, parent: Option<RevId>, indent: &str, left: &mut Vec<(String, String, RevId)>) {
    let Some(of) = children.get(&parent) else { return };
    for (place, child) in of.iter().enumerate().rev() {
        let (line, rest) = match (of.len(), place + 1 == of.len()) {
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
        Revision { id: "a".into(), rev, deleted, body, history: Some(history), attachments: Vec::new() }
    }

    #[test]
    fn branches_are_drawn_below_the_revision_that_they_share() {
        let leaves =
            [leaf("4-dd cc bb aa", false), leaf("3-ee bb aa", false), leaf("3-ff bb", true), leaf("9-99", true)];
        let drawn = "├─ 1-aa\n│  2-bb\n│  ├─ 3-cc\n│  │  4-dd  winner\n│  ├─ 3-ee  conflict\n│  └─ 3-ff  deleted\n\
                     └─ 9-99  deleted\n";
        assert_eq!(draw(&leaves), drawn);
        assert_eq!(draw(&[leaf("2-bb aa", true)]), "1-aa\n2-bb  winner, deleted\n");
    }

    #[test]
    fn a_long_history_is_drawn() {
        let ids: Vec<String> = (0..20_000).map(|n| format!("{n:032x}")).collect();
        assert_eq!(draw(&[leaf(&format!("20000-{}", ids.join(" ")), false)]).lines().count(), 20_000);
    }
}
