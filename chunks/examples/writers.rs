//! Measures how fast 1 to 32 concurrent writers store chunks, how often they conflict, and which document is
//! written most.
//!
//! ```text
//! cargo run --release -p couch-layer-chunks --example writers
//! ```
//!
//! Each writes batches of new chunks into the same vault of 116,000 chunks in memory. A document that all writers must
//! touch would be written once for each batch.

#[path = "vaults/processor.rs"]
mod processor;
mod vaults;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use chunks::store::{
    Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, Refusal, StoreResult, Written,
};
use chunks::{ChunkStore, Receipt};
use parking_lot::Mutex;
use processor::processor_seconds;
use vaults::{Failure, Pieces};

const VAULT: usize = 116_000;
/// Number of chunks stored in each run, by all writers together.
const TOTAL: usize = 3_200;
const BATCHES: [usize; 2] = [10, 100];
const WRITERS: [usize; 6] = [1, 2, 4, 8, 16, 32];

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let store = vaults::database().await?;
    let chunks = ChunkStore::new(store.clone());
    chunks.prepare(VAULT as u64).await?;
    let mut pieces = Pieces::new(1, 0);
    for _ in 0..VAULT / 4_000 {
        chunks.put(pieces.take(4_000)).await?;
    }
    println!(
        "| batch | writers | chunks/s | for a second of a processor | documents written | conflicts | a writer's conflicts for 100 chunks | attempts for a batch | most written document, of batches |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut serial = 0;
    for batch in BATCHES {
        for writers in WRITERS {
            measure(&store, batch, writers, &mut serial).await?;
        }
    }
    Ok(())
}

async fn measure(
    store: &Arc<dyn DocumentStore>,
    batch: usize,
    writers: usize,
    serial: &mut u64,
) -> Result<(), Failure> {
    let counted = Arc::new(Counted { inner: store.clone(), counts: Mutex::default() });
    let mut tasks = tokio::task::JoinSet::new();
    let batches = TOTAL / batch / writers;
    let (began, busy) = (Instant::now(), processor_seconds());
    for _ in 0..writers {
        *serial += 1;
        let (chunks, mut pieces) = (ChunkStore::new(counted.clone()), Pieces::new(1, *serial));
        tasks.spawn(async move {
            let mut receipt = Receipt::default();
            for _ in 0..batches {
                receipt.merge(chunks.put(pieces.take(batch)).await?);
            }
            Ok::<_, chunks::Error>(receipt)
        });
    }
    let mut receipt = Receipt::default();
    for each in tasks.join_all().await {
        receipt.merge(each?);
    }
    let (seconds, busy) = (began.elapsed().as_secs_f64(), processor_seconds() - busy);
    let counts = counted.counts.lock();
    let stored = (batches * writers * batch) as f64;
    let (most, times) =
        counts.written.iter().max_by_key(|(_, times)| **times).map_or(("", 0), |(id, times)| (id.as_str(), *times));
    println!(
        "| {batch} | {writers} | {:.0} | {:.0} | {} | {} | {:.2} | {:.2} | `{most}`, {times} of {} |",
        receipt.new as f64 / seconds,
        receipt.new as f64 / busy,
        counts.written.values().sum::<u64>(),
        counts.conflicts,
        counts.conflicts as f64 * 100.0 / stored,
        f64::from(receipt.attempts) / (batches * writers) as f64,
        batches * writers,
    );
    Ok(())
}

#[derive(Debug, Default)]
struct Counts {
    /// Number of writes of each document.
    written: HashMap<String, u64>,
    conflicts: u64,
}

/// A store that counts writes.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn DocumentStore>,
    counts: Mutex<Counts>,
}

#[async_trait]
impl DocumentStore for Counted {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.inner.leaves(ids, with_ancestors).await
    }

    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.inner.local(id).await
    }

    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.inner.revs(ids).await
    }

    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        let ids: Vec<String> = edits.iter().map(|edit| edit.id.clone()).collect();
        let written = self.inner.write(edits).await?;
        let mut counts = self.counts.lock();
        for (id, written) in ids.into_iter().zip(&written) {
            match written {
                Ok(_) => *counts.written.entry(id).or_default() += 1,
                Err(Refusal::Conflict) => counts.conflicts += 1,
                Err(_) => {}
            }
        }
        Ok(written)
    }

    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.inner.graft(leaves).await
    }

    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.inner.list(range).await
    }

    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.inner.changes(since, limit).await
    }

    async fn figures(&self) -> StoreResult<Figures> {
        self.inner.figures().await
    }

    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.inner.takes(bytes).await
    }
}
