//! Lists all files of a database page by page, in the order of their ids.

use super::document::Meaning;
use crate::ChunkStore;
use crate::error::Result;
use crate::id::CHUNK_PREFIX;
use crate::placement::{DATA_PREFIX, INDEX_PREFIX, SETTINGS_ID};
use crate::store::{IdRange, Leaf};

/// Number of ids in a page of the listing.
const IDS_AT_ONCE: usize = 1_000;
/// Number of documents read at a time. The document of a large file may have some hundred KB.
const LEAVES_AT_ONCE: usize = 50;

/// A live document, with all its live leaves, the winner first.
pub(crate) type ListedDocument = (String, Vec<Leaf>);

/// State of a listing. Documents that are written meanwhile may or may not be in it.
#[derive(Debug)]
pub(crate) struct Listing {
    /// Ranges to list, the last one first: all ids except those of chunks, indexes and data documents.
    ranges: Vec<IdRange>,
    /// Ids that are listed and not read yet.
    ids: std::vec::IntoIter<String>,
}

impl Listing {
    pub(crate) fn new() -> Self {
        let (mut ranges, mut start) = (Vec::new(), String::new());
        for prefix in [DATA_PREFIX, CHUNK_PREFIX, INDEX_PREFIX] {
            let IdRange { start: from, end: behind, .. } = IdRange::prefix(prefix);
            ranges.push(range(std::mem::replace(&mut start, behind), from));
        }
        ranges.push(range(start, "\u{10ffff}".into()));
        ranges.reverse();
        Listing { ranges, ids: Vec::new().into_iter() }
    }

    /// The next documents; `None` after the last one. A page in between may be empty.
    ///
    /// # Errors
    /// The store's failures.
    pub(crate) async fn next(&mut self, chunks: &ChunkStore) -> Result<Option<Vec<ListedDocument>>> {
        let mut ids: Vec<String> = self.ids.by_ref().take(LEAVES_AT_ONCE).collect();
        if ids.is_empty() {
            let Some(range) = self.ranges.pop() else { return Ok(None) };
            let page = chunks.store.list(&range).await?;
            self.ranges.extend(page.rest);
            let listed: Vec<String> = page.rows.into_iter().map(|row| row.id).filter(|id| id != SETTINGS_ID).collect();
            self.ids = listed.into_iter();
            ids = self.ids.by_ref().take(LEAVES_AT_ONCE).collect();
        }
        let found = if ids.is_empty() { Vec::new() } else { chunks.store.leaves(&ids, false).await? };
        let live = |mut leaves: Vec<Leaf>| {
            leaves.retain(|leaf| !leaf.deleted);
            leaves
        };
        Ok(Some(ids.into_iter().zip(found.into_iter().map(live)).filter(|(_, leaves)| !leaves.is_empty()).collect()))
    }
}

fn range(start: String, end: String) -> IdRange {
    IdRange { start, end, limit: IDS_AT_ONCE, bodies: false }
}

/// A file in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Id of its document.
    pub id: String,
    /// Its path.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change, in milliseconds since 1970.
    pub mtime: u64,
    /// Number of its chunks.
    pub chunks: u64,
    /// Number of live leaves besides the winner: unresolved conflicts.
    pub conflicts: u64,
    /// The reason why it cannot be read, if it cannot. The fields above are then unknown.
    pub closed: Option<String>,
}

impl super::Vault {
    /// Calls `visit` for every file, in the order of ids, without deleted files.
    ///
    /// # Errors
    /// The store's failures.
    pub async fn files(&self, mut visit: impl FnMut(Listed) + Send) -> Result<()> {
        let mut listing = Listing::new();
        while let Some(page) = listing.next(&self.chunks).await? {
            for (id, leaves) in page {
                let conflicts = leaves.len().saturating_sub(1) as u64;
                let Some(winner) = leaves.first() else { continue };
                match Meaning::of(&id, winner, self.chunks.key.as_deref()) {
                    Meaning::File(file) if !file.deleted => visit(Listed {
                        id,
                        path: file.path,
                        size: file.size,
                        mtime: file.mtime,
                        chunks: file.children.len() as u64,
                        conflicts,
                        closed: None,
                    }),
                    Meaning::Closed(reason) => visit(Listed {
                        path: id.clone(),
                        id,
                        size: 0,
                        mtime: 0,
                        chunks: 0,
                        conflicts,
                        closed: Some(reason),
                    }),
                    Meaning::File(_) | Meaning::Other => {}
                }
            }
        }
        Ok(())
    }
}
