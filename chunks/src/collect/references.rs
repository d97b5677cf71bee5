//! Which chunks files refer to.
//!
//! Every document with `children` refers to what is in them, at each of its live leaves, whether it is
//! marked as deleted or not: LiveSync keeps such files, and their content can be had back.
//!
//! The feed of changes is read from its beginning to its end. A reference that moves from one file to
//! another meanwhile is met at one of them, since the later write is later in the feed.

use std::collections::HashSet;

use serde_json::Value;
use twox_hash::XxHash64;

use crate::ChunkStore;
use crate::error::Result;
use crate::placement::is_no_file;
use crate::store::Leaf;

/// Rows of the feed, and files, read at a time.
const AT_ONCE: usize = 500;

/// The chunks that are referred to. Eight bytes each, of a hash: where two meet, a chunk too many is
/// kept, never one too few.
#[derive(Debug, Default)]
pub(crate) struct References {
    hashes: HashSet<u64>,
    /// Files that refer to any.
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
    // Another seed than for buckets: all chunks of an index share the beginning of that one.
    XxHash64::oneshot(1, chunk.as_bytes())
}

/// The chunks that a leaf of a file refers to, in the file's order.
pub(crate) fn children(leaf: &Leaf) -> impl Iterator<Item = &str> {
    leaf.body.get("children").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

impl ChunkStore {
    /// Calls `visit` for every file with its live leaves.
    ///
    /// # Errors
    /// The store's failures, and those of `visit`.
    pub(crate) async fn each_file(&self, mut visit: impl FnMut(&str, &[Leaf]) + Send) -> Result<()> {
        let mut since: Option<String> = None;
        loop {
            let changes = self.store.changes(since.as_deref(), AT_ONCE).await?;
            let files = changes.rows.into_iter().filter(|row| !row.deleted && !is_no_file(&row.id));
            let ids: Vec<String> = files.map(|row| row.id).collect();
            if !ids.is_empty() {
                for (id, mut leaves) in ids.iter().zip(self.store.leaves(&ids, false).await?) {
                    leaves.retain(|leaf| !leaf.deleted && leaf.body.contains_key("children"));
                    if !leaves.is_empty() {
                        visit(id, &leaves);
                    }
                }
            }
            if !changes.more {
                return Ok(());
            }
            since = Some(changes.last_seq);
        }
    }

    pub(crate) async fn references(&self) -> Result<References> {
        let mut references = References::default();
        self.each_file(|_, leaves| {
            references.files += 1;
            references.hashes.extend(leaves.iter().flat_map(children).map(hash));
        })
        .await?;
        Ok(references)
    }
}
