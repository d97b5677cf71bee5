//! Counts a vault's documents and their sizes before and after aggregation, and the bytes of documents that each
//! byte of a new chunk then costs.
//!
//! ```text
//! cargo run --release -p couch-layer-chunks --example documents -- 7000 32000 116000
//! ```
//!
//! The vaults are text: pieces of 128 to 1,024 bytes, mostly short, with LiveSync's ids. The figures are counts,
//! the same on every machine.

mod vaults;

use chunks::store::{DocumentStore, Edit, IdRange};
use chunks::{ChunkStore, Receipt};
use serde_json::{Map, Value};
use vaults::{Failure, Pieces};

/// Chunks of a file.
const CHUNKS_OF_A_FILE: usize = 20;
/// Number of batches stored before the measurement, with a sixth of the chunks in total: a vault in use has open data
/// documents of all sizes.
const WARMING: usize = 10;
/// Numbers of batches that are measured, and of chunks in each.
const MEASURED: [(usize, usize); 3] = [(200, 1), (50, 10), (10, 100)];

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let sizes = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let sizes = if sizes.is_empty() { vec![7_000, 32_000, 116_000] } else { sizes };
    println!(
        "| chunks | documents before | after | MB before | after | largest index | written for a byte of chunk, 1 a batch | 10 | 100 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for size in sizes {
        measure(size).await?;
    }
    Ok(())
}

async fn measure(size: usize) -> Result<(), Failure> {
    let store = vaults::database().await?;
    let mut pieces = Pieces::new(size as u64, 0);
    let mut left = size;
    while left > 0 {
        let some = pieces.take(left.min(1_000));
        left -= some.len();
        let mut edits = Vec::new();
        for (file, chunks) in some.chunks(CHUNKS_OF_A_FILE).enumerate() {
            let children: Vec<Value> = chunks.iter().map(|(id, _)| id.as_str().into()).collect();
            let mut body = Map::new();
            body.insert("type".into(), "plain".into());
            body.insert("children".into(), children.into());
            edits.push(Edit { id: format!("{left}-{file}.md"), rev: None, deleted: false, body });
        }
        for (id, chunk) in some {
            let mut body = Map::new();
            body.insert("type".into(), "leaf".into());
            body.insert("data".into(), chunk.data.into());
            edits.push(Edit { id, rev: None, deleted: false, body });
        }
        for written in store.write(edits).await? {
            written.map_err(|refusal| refusal.to_string())?;
        }
    }

    let chunks = ChunkStore::new(store.clone());
    let migrated = chunks.migrate(false, |_, _| ()).await?;
    let (before, after) = (migrated.before, migrated.after);
    let largest = largest_index(&*store).await?;

    for _ in 0..WARMING {
        chunks.put(pieces.take(size / 6 / WARMING)).await?;
    }
    let mut amplification = Vec::new();
    for (batches, batch) in MEASURED {
        let mut receipt = Receipt::default();
        for _ in 0..batches {
            receipt.merge(chunks.put(pieces.take(batch)).await?);
        }
        amplification.push((receipt.document_bytes as f64 / receipt.chunk_bytes as f64).round());
    }
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    println!(
        "| {size} | {} | {} | {:.1} | {:.1} | {largest} | {} | {} | {} |",
        before.documents,
        after.documents,
        megabytes(before.document_bytes),
        megabytes(after.document_bytes),
        amplification[0],
        amplification[1],
        amplification[2],
    );
    Ok(())
}

async fn largest_index(store: &dyn DocumentStore) -> Result<usize, Failure> {
    let (mut range, mut largest) = (Some(IdRange::prefix("idx:").with_bodies()), 0);
    while let Some(next) = range {
        let page = store.list(&next).await?;
        let sizes = page.rows.into_iter().map(|row| Value::Object(row.body.unwrap_or_default()).to_string().len());
        largest = sizes.max().unwrap_or(0).max(largest);
        range = page.rest;
    }
    Ok(largest)
}
