//! Remembers which chunks a revision of a data document has, after it was read or written.
//!
//! Before it relies on an index entry, a writer checks that the data document has the chunk. The chunks of one
//! file are spread over all data documents, so every round of a push reads nearly all of them. A revision never
//! changes: if the winner is known, only its revision has to be read again.

use std::collections::{HashMap, HashSet};

use parking_lot::{Mutex, MutexGuard};

/// Maximum number of remembered chunks: some tens of megabytes.
const MOST_CHUNKS: usize = 500_000;

/// The memory shared by the handles of one database.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    /// By the ids of data documents.
    documents: HashMap<String, Revision>,
    /// Number of chunks in all of them.
    chunks: usize,
}

#[derive(Debug)]
struct Revision {
    rev: String,
    chunks: HashSet<String>,
}

impl Seen {
    /// Whether this revision of a data document is known and has all these chunks.
    pub(crate) fn has_all(&self, id: &str, rev: &str, chunks: &[&String]) -> bool {
        let memory = self.memory();
        let revision = memory.documents.get(id).filter(|revision| revision.rev == rev);
        revision.is_some_and(|revision| chunks.iter().all(|chunk| revision.chunks.contains(*chunk)))
    }

    /// Remembers a revision of a data document with its chunks, and forgets an earlier one.
    pub(crate) fn remember(&self, id: &str, rev: &str, chunks: impl Iterator<Item = String>) {
        let chunks: HashSet<String> = chunks.collect();
        let mut memory = self.memory();
        if memory.chunks + chunks.len() > MOST_CHUNKS {
            *memory = Memory::default();
        }
        memory.chunks += chunks.len();
        let before = memory.documents.insert(id.to_owned(), Revision { rev: rev.to_owned(), chunks });
        memory.chunks -= before.map_or(0, |before| before.chunks.len());
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
        range.map(|n| format!("h:{n}"))
    }

    #[test]
    fn only_the_revision_that_was_seen_is_known() {
        let seen = Seen::default();
        seen.remember("dat:1", "1-a", ids(0..3));
        let (known, other) = ("h:2".to_owned(), "h:3".to_owned());
        assert!(seen.has_all("dat:1", "1-a", &[&known]));
        assert!(!seen.has_all("dat:1", "1-a", &[&known, &other]));
        assert!(!seen.has_all("dat:1", "2-b", &[&known]) && !seen.has_all("dat:2", "1-a", &[&known]));
        seen.remember("dat:1", "2-b", ids(3..4));
        assert!(seen.has_all("dat:1", "2-b", &[&other]) && !seen.has_all("dat:1", "2-b", &[&known]));
        assert_eq!(seen.memory().chunks, 1);
    }

    #[test]
    fn memory_is_bounded() {
        let seen = Seen::default();
        for document in 0..12 {
            seen.remember(&format!("dat:{document}"), "1-a", ids(0..MOST_CHUNKS / 10));
            assert!(seen.memory().chunks <= MOST_CHUNKS);
        }
        assert!(seen.has_all("dat:11", "1-a", &[&"h:0".to_owned()]));
    }
}
