//! Rounds: many chunks at a time, in the order of their buckets.
//!
//! Each batch reads and writes its indexes and open data documents again, and the chunks of one file are spread
//! over all of them. So chunks of many files are gathered first, and those that share an index go together: a
//! round touches each document about once, however large the database is. Batches of a round that share no index
//! run concurrently.

use std::collections::{BTreeSet, HashMap};

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::reader::Piece;
use crate::ChunkStore;
use crate::chunk::Chunk;
use crate::error::Result;
use crate::id::Bucket;
use crate::write::Receipt;

/// Maximum number of chunks in a round, and of their bytes: both are in memory.
pub(crate) const ROUND_CHUNKS: usize = 100_000;
pub(crate) const ROUND_BYTES: usize = 32 << 20;

/// Number of chunks in a batch, and of their bytes.
const BATCH_CHUNKS: usize = 4_000;
const BATCH_BYTES: usize = 4 << 20;
/// Number of chunks read at a time.
const READ_AT_ONCE: usize = 1_000;
/// Number of concurrent batches.
const BATCHES: usize = 3;

/// Stores a round of chunks.
///
/// # Errors
/// As for [`ChunkStore::put`].
pub(crate) async fn store(chunks: &ChunkStore, round: impl IntoIterator<Item = Piece>) -> Result<Receipt> {
    let length = chunks.length();
    let mut sorted: Vec<(Bucket, Piece)> = round.into_iter().map(|piece| (Bucket::of(&piece.0), piece)).collect();
    sorted.sort_unstable_by_key(|(bucket, _)| *bucket);
    let stored = stream::iter(sequences(sorted, length)).map(|sequence| async move {
        let mut receipt = Receipt::default();
        for batch in sequence {
            receipt.merge(chunks.put(batch).await?);
        }
        Ok(receipt)
    });
    let merge = |mut all: Receipt, one| async move {
        all.merge(one);
        Ok(all)
    };
    stored.buffer_unordered(BATCHES).try_fold(Receipt::default(), merge).await
}

/// Batches. Those that share an index form a sequence, which runs in order.
fn sequences(sorted: Vec<(Bucket, Piece)>, length: u8) -> Vec<Vec<Vec<Piece>>> {
    let (mut sequences, mut batch, mut bytes) = (Vec::<Vec<Vec<Piece>>>::new(), Vec::new(), 0);
    // Whether the batch continues with the index of the previous one.
    let mut goes_on = false;
    let mut last: Option<String> = None;
    let mut push = |batch: Vec<Piece>, goes_on: bool| match sequences.last_mut() {
        Some(sequence) if goes_on => sequence.push(batch),
        _ => sequences.push(vec![batch]),
    };
    for (bucket, piece) in sorted {
        let prefix = bucket.prefix(length);
        let is_same_index = last.as_ref() == Some(&prefix);
        // A full batch takes the rest of its index, within a limit.
        let most = if is_same_index { 2 } else { 1 };
        if batch.len() >= most * BATCH_CHUNKS || bytes >= most * BATCH_BYTES {
            push(std::mem::take(&mut batch), goes_on);
            bytes = 0;
            goes_on = is_same_index;
        }
        bytes += piece.1.data.len();
        batch.push(piece);
        last = Some(prefix);
    }
    if !batch.is_empty() {
        push(batch, goes_on);
    }
    sequences
}

/// Reads a round of chunks. Missing chunks are not in the result.
///
/// # Errors
/// The store's failures.
pub(crate) async fn fetch(chunks: &ChunkStore, ids: BTreeSet<String>) -> Result<HashMap<String, Chunk>> {
    let mut sorted: Vec<(Bucket, String)> = ids.into_iter().map(|id| (Bucket::of(&id), id)).collect();
    sorted.sort_unstable();
    let parts: Vec<Vec<String>> =
        sorted.chunks(READ_AT_ONCE).map(|some| some.iter().map(|(_, id)| id.clone()).collect()).collect();
    let read = stream::iter(parts).map(|ids| async move { chunks.get(&ids).await });
    let take = |mut all: HashMap<String, Chunk>, some: std::collections::BTreeMap<String, Option<Chunk>>| async move {
        all.extend(some.into_iter().filter_map(|(id, chunk)| Some((id, chunk?))));
        Ok(all)
    };
    read.buffer_unordered(BATCHES).try_fold(HashMap::new(), take).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_at_the_same_time_share_no_index() {
        let pieces = (0..30_000).map(|number| (format!("h:{number}"), Chunk::plain("x".repeat(300))));
        let mut sorted: Vec<(Bucket, Piece)> = pieces.map(|piece| (Bucket::of(&piece.0), piece)).collect();
        sorted.sort_unstable_by_key(|(bucket, _)| *bucket);
        for length in 0..4 {
            let sequences = sequences(sorted.clone(), length);
            let mut seen = BTreeSet::new();
            let mut count = 0;
            for sequence in &sequences {
                let batches = sequence.iter().flatten();
                let prefixes: BTreeSet<String> = batches.map(|(id, _)| Bucket::of(id).prefix(length)).collect();
                count += sequence.iter().map(Vec::len).sum::<usize>();
                // The last index of a sequence must not be the first of another one.
                assert!(prefixes.iter().all(|prefix| seen.insert(prefix.clone())), "length {length}");
                assert!(sequence.iter().all(|batch| batch.len() <= 2 * BATCH_CHUNKS));
            }
            assert_eq!(count, 30_000);
            assert!(length == 0 || sequences.len() > 1);
        }
    }
}
