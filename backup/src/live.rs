//! The documents of a run: those of its segments, without the ones that a later segment replaces.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::manifest::Segment;
use crate::pack::ObjectId;
use crate::record::{Record, read_block};
use crate::repository::{Objects, PACKS};

/// The first bytes of the hash of an id.
type Short = [u8; 16];

fn short(id: &str) -> Short {
    let hash: [u8; 32] = Sha256::digest(id).into();
    std::array::from_fn(|at| hash[at])
}

/// The documents of a chain of segments, block by block, in the order in which they were copied.
pub(crate) struct Live {
    /// The remaining blocks with the numbers of their segments. The next one is at the end.
    blocks: Vec<(usize, ObjectId)>,
    /// The last segment of each document that is in a later segment than the first.
    last: HashMap<Short, usize>,
}

impl Live {
    pub(crate) async fn new(objects: &mut Objects, segments: &[ObjectId]) -> Result<Self> {
        let mut live = Live { blocks: Vec::new(), last: HashMap::new() };
        for (number, name) in segments.iter().enumerate() {
            let segment = read_segment(objects, *name).await?;
            for block in segment.blocks {
                if number > 0 {
                    for record in records(objects, block).await? {
                        live.last.insert(short(&record.id), number);
                    }
                }
                live.blocks.push((number, block));
            }
        }
        live.blocks.reverse();
        Ok(live)
    }

    /// The documents of the next block; `None` after the last one.
    pub(crate) async fn next(&mut self, objects: &mut Objects) -> Result<Option<Vec<Record>>> {
        let Some((number, block)) = self.blocks.pop() else { return Ok(None) };
        let mut found = records(objects, block).await?;
        found.retain(|record| {
            let is_last = self.last.get(&short(&record.id)).is_none_or(|last| *last == number);
            is_last && !record.leaves.is_empty()
        });
        Ok(Some(found))
    }
}

pub(crate) async fn read_segment(objects: &mut Objects, name: ObjectId) -> Result<Segment> {
    let segment = objects.get(name).await?;
    serde_json::from_slice(&segment).map_err(|error| Error::damaged(PACKS, format!("segment {name}: {error}")))
}

pub(crate) async fn records(objects: &mut Objects, block: ObjectId) -> Result<Vec<Record>> {
    let bytes = objects.get(block).await?;
    read_block(&bytes).map_err(|reason| Error::damaged(PACKS, format!("block {block}: {reason}")))
}
