//! Measures the time and memory of a collection, by the number of chunks, half of which are garbage.
//!
//! ```text
//! cargo run --release -p couch-layer-chunks --example collection -- 116000 1000000
//! ```
//!
//! The first collection condemns. The second one, after the grace period, removes and repacks. The database is in the
//! memory of the same process. The last figure is the peak that the collection adds.

#[path = "vaults/processor.rs"]
mod processor;
mod vaults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chunks::store::{DocumentStore, Edit};
use chunks::{ChunkStore, CollectOptions, DEFAULT_GRACE_MS, TimedEnvironment};
use futures_util::future::BoxFuture;
use model::SystemEnvironment;
use processor::processor_seconds;
use serde_json::{Map, Value};
use twox_hash::XxHash64;
use vaults::{Failure, Pieces};

/// Chunks of a file.
const CHUNKS_OF_A_FILE: usize = 20;
const BATCH: usize = 4_000;

/// The system's clock, moved forward by this number of milliseconds.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl model::Environment for Ahead {
    fn now_ms(&self) -> u64 {
        SystemEnvironment.now_ms() + self.0.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

impl TimedEnvironment for Ahead {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        SystemEnvironment.sleep(pause)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let sizes = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let sizes = if sizes.is_empty() { vec![116_000] } else { sizes };
    println!(
        "| chunks | collection | s | of a processor | chunks/s | condemned | removed | documents before | after | MB before | after | database, MB of memory | beside it |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for size in sizes {
        measure(size).await?;
    }
    Ok(())
}

async fn measure(size: usize) -> Result<(), Failure> {
    let store: Arc<dyn DocumentStore> = vaults::database().await?;
    let clock = Arc::new(Ahead::default());
    let chunks = ChunkStore::with_environment(store.clone(), clock.clone());
    chunks.prepare(size as u64).await?;
    let mut pieces = Pieces::new(size as u64, 0).take(size);
    for (file, members) in pieces.chunks(2 * CHUNKS_OF_A_FILE).enumerate() {
        let children: Vec<Value> = members.iter().take(members.len() / 2).map(|(id, _)| id.as_str().into()).collect();
        let mut body = Map::new();
        body.insert("type".into(), "plain".into());
        body.insert("children".into(), children.into());
        let edit = Edit { id: format!("{file}.md"), rev: None, deleted: false, body };
        for written in store.write(vec![edit]).await? {
            written.map_err(|refusal| refusal.to_string())?;
        }
    }
    // Chunks of one index together, as a migration stores them.
    pieces.sort_by_cached_key(|(id, _)| XxHash64::oneshot(0, id.as_bytes()));
    while !pieces.is_empty() {
        let rest = pieces.split_off(pieces.len().min(BATCH));
        chunks.put(std::mem::replace(&mut pieces, rest)).await?;
    }
    for round in ["condemns", "removes"] {
        let resting = memory("VmRSS:");
        // The peak counts from here on.
        std::fs::write("/proc/self/clear_refs", "5").ok();
        let (began, busy) = (Instant::now(), processor_seconds());
        let options = CollectOptions { unused_percent: 0, ..CollectOptions::default() };
        let collected = chunks.collect(options, |_| ()).await?;
        let seconds = began.elapsed().as_secs_f64();
        let (highest, busy) = (memory("VmHWM:"), processor_seconds() - busy);
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "| {size} | {round} | {seconds:.1} | {busy:.1} | {:.0} | {} | {} | {} | {} | {:.1} | {:.1} | {resting} | {} |",
            size as f64 / seconds,
            collected.condemned,
            collected.removed,
            collected.before.documents,
            collected.after.documents,
            megabytes(collected.before.document_bytes),
            megabytes(collected.after.document_bytes),
            highest.saturating_sub(resting),
        );
        clock.0.fetch_add(DEFAULT_GRACE_MS + 1, Ordering::Relaxed);
    }
    let verified = chunks.verify(|_| ()).await?;
    println!("{} files refer to {} chunks, {} are missing", verified.files, verified.chunks, verified.missing.len());
    Ok(())
}

/// Megabytes of this process's memory, by a name in `/proc/self/status`; zero without that file.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes / 1_000)
}
