//! The database's state of a file that is to be pushed.

use super::cutting::Kind;
use super::document::{FileDocument, Meaning};
use super::{Problem, path};
use crate::livesync::Key;
use crate::store::Leaf;

/// A document's description of a file, without its list of chunks.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) rev: String,
    pub(super) ctime: u64,
    /// Hash of the file's content.
    pub(super) content: u64,
    pub(super) path: String,
    pub(super) deleted: bool,
}

/// The database's state of a file: its winner, with the revision.
///
/// # Errors
/// The reason why the file must not be written.
pub(super) fn look(
    path: &str,
    id: &str,
    leaves: &[Leaf],
    key: Option<&Key>,
    notes: &mut Vec<Problem>,
) -> std::result::Result<Option<(FileDocument, String)>, String> {
    let live = leaves.iter().filter(|leaf| !leaf.deleted).count();
    let Some(winner) = leaves.first().filter(|leaf| !leaf.deleted) else { return Ok(None) };
    match Meaning::of(id, winner, key) {
        Meaning::Other => Err(format!("the database has a document \"{}\" that is not a file", path::shown(id))),
        Meaning::Closed(reason) => Err(format!("its document {reason}; it is left as it is")),
        Meaning::File(file) => {
            if live > 1 {
                notes.push(others(path, live));
            }
            Ok(Some((file, winner.rev.clone())))
        }
    }
}

pub(super) fn others(path: &str, live: usize) -> Problem {
    let what = match live {
        2 => "has a conflicting revision, which is left".to_owned(),
        _ => format!("has {} conflicting revisions, which are left", live - 1),
    };
    Problem::new(path, what)
}

impl Known {
    pub(super) fn of(file: &FileDocument, rev: String) -> Known {
        let content = content(&file.children, file.kind, file.size);
        // This program does not write chunks inside the document, so such a file differs.
        let content = if file.inline.is_empty() { content } else { !content };
        Known { rev, ctime: file.ctime, content, path: file.path.clone(), deleted: file.deleted }
    }
}

/// A hash of a file's content. Collisions are as unlikely as for ids of chunks.
pub(super) fn content(children: &[String], kind: Kind, bytes: u64) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hash = twox_hash::XxHash64::with_seed(0);
    (children, kind, bytes).hash(&mut hash);
    hash.finish()
}
