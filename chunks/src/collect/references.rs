//! The chunks that files refer to.
//!
//! A document with `children` refers to the chunks in them, at each of its live leaves, even if it is marked as
//! deleted: LiveSync keeps such files, so that they can be restored. If the list of any live leaf cannot be read,
//! garbage cannot be recognised, and nothing is collected.
//!
//! The feed of changes is read from beginning to end. A reference that moves from one file to another meanwhile is seen
//! at one of them, since the later write is later in the feed.

use std::collections::HashSet;

use twox_hash::XxHash64;

use crate::ChunkStore;
use crate::error::{Error, Result};
use crate::livesync::Entry;
use crate::placement::is_no_file;

/// Number of rows of the feed, and of files, read at a time.
const AT_ONCE: usize = 500;

/// A live leaf of a file, or why it cannot be read.
pub(crate) type ReadEntry = std::result::Result<Entry, String>;

/// The referenced chunks, as eight bytes of hash each. A collision keeps a chunk too many, never one too few.
#[derive(Debug, Default)]
pub(crate) struct References {
    hashes: HashSet<u64>,
    /// Number of files that refer to any chunk.
    pub(crate) files: u64,
}

impl References {
    pub(crate) fn contains(&self, chunk: &str) -> bool {
        self.hashes.contains(&hash(chunk))
    }

    pub(crate) fn len(&self) -> u64 {
        self.hashes.len() as u64
    }
}

fn hash(chunk: &str) -> u64 {
    // A seed other than that of buckets: all chunks of an index share a prefix of that hash.
    XxHash64::oneshot(1, chunk.as_bytes())
}

impl ChunkStore {
    /// Calls `visit` for every file, with each of its live leaves or the reason why a leaf cannot be read.
    ///
    /// # Errors
    /// The store's failures.
    pub(crate) async fn each_file(&self, mut visit: impl FnMut(&str, Vec<ReadEntry>) + Send) -> Result<()> {
        let mut since: Option<String> = None;
        loop {
            let changes = self.store.changes(since.as_deref(), AT_ONCE).await?;
            let files = changes.rows.into_iter().filter(|row| !row.deleted && !is_no_file(&row.id));
            let ids: Vec<String> = files.map(|row| row.id).collect();
            if !ids.is_empty() {
                for (id, leaves) in ids.iter().zip(self.store.leaves(&ids, false).await?) {
                    let live = leaves.iter().filter(|leaf| !leaf.deleted);
                    let found: Vec<ReadEntry> =
                        live.filter_map(|leaf| Entry::read(id, &leaf.body, self.key.as_deref()).transpose()).collect();
                    if !found.is_empty() {
                        visit(id, found);
                    }
                }
            }
            if !changes.more {
                return Ok(());
            }
            since = Some(changes.last_seq);
        }
    }

    /// The chunks that files refer to.
    ///
    /// # Errors
    /// [`Error::Unread`] if any file's references cannot be read: its chunks would look like garbage.
    pub(crate) async fn references(&self) -> Result<References> {
        let mut references = References::default();
        let mut unread: Option<(u64, String)> = None;
        self.each_file(|id, found| {
            references.files += 1;
            let mut reason = None;
            for found in found {
                match found {
                    Ok(entry) => references.hashes.extend(entry.children.iter().map(|chunk| hash(chunk))),
                    Err(what) => reason = Some(what),
                }
            }
            if let Some(what) = reason {
                unread.get_or_insert_with(|| (0, format!("\"{id}\" {what}"))).0 += 1;
            }
        })
        .await?;
        match unread {
            Some((files, first)) => Err(Error::Unread { files, first }),
            None => Ok(references),
        }
    }
}
