//! A database over HTTP as it grows large: rates, disk, memory, and the opening after a kill.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use serde::Serialize;

use super::client::Client;
use super::server::Spawned;
use super::work::{Load, send};
use benches::documents::Source;
use benches::work::{disk, folder, rate};

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// The engine, on a new temporary folder
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// The layout of the database's documents: exploded or packed
    #[arg(long, default_value = "exploded")]
    format: String,
    /// Number of documents at the end
    #[arg(long, default_value_t = 1_000_000)]
    until: u64,
    /// One JSON object for each size instead of the table
    #[arg(long)]
    json: bool,
}

/// The figures at one size.
#[derive(Serialize)]
pub(crate) struct Step {
    documents: u64,
    /// Documents written a second since the last size, a thousand in a request.
    writes: f64,
    /// Documents written a second in the last 20,000.
    pub(crate) last_writes: f64,
    /// Documents read a second by 16 clients, at random.
    pub(crate) reads: f64,
    /// Bytes on disk for a byte of JSON.
    disk: f64,
    /// Largest resident memory of the server so far, in bytes, if the system tells.
    memory: Option<u64>,
    /// Seconds from the start of a program on a killed server's folder until it listens.
    opening: f64,
    /// Resident memory of that program once it has opened the database, in bytes, if the system tells.
    pub(crate) opened: Option<u64>,
}

/// Documents in a request.
const BULK: u64 = 1_000;
/// Documents whose writing is timed at the end of each size.
const LAST: u64 = 20_000;
const READERS: u64 = 16;
const READS: u64 = 32_000;
/// Pause between writes and reads, so that merges of the last flushes are not counted against the reads.
const PAUSE: Duration = Duration::from_secs(5);

pub(crate) async fn run(options: Options) -> Result<()> {
    if !options.json {
        println!(
            "{:>10} {:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "documents", "writes/s", "last 20,000", "reads/s", "disk/JSON", "memory MB", "opening s", "opened MB"
        );
    }
    let sizes = (4..).map(|power| 10_u64.pow(power)).take_while(|size| *size < options.until).chain([options.until]);
    grow(&options.binary, &options.engine, &options.format, sizes, |step| print(&step, options.json)).await
}

/// Grows a new database to one size after the other.
pub(crate) async fn grow(
    binary: &Path,
    engine: &str,
    format: &str,
    sizes: impl IntoIterator<Item = u64>,
    mut each: impl FnMut(Step) -> Result<()>,
) -> Result<()> {
    let folder = folder()?;
    let data = folder.path().join("data");
    let url = format!("{engine}:{}", data.display());
    let mut server = Spawned::start(binary, &url).await?;
    let path = format!("/large?format={format}");
    Client::connect(&server.address).await?.request("PUT", &path, Bytes::new()).await?;
    let mut documents = Source::seeded(1);
    let (mut written, mut json) = (0, 0);
    for size in sizes {
        let mut client = Client::connect(&server.address).await?;
        let (mut took, mut took_last) = (Duration::ZERO, Duration::ZERO);
        let before = written;
        let last_from = size.saturating_sub(LAST).max(before);
        while written < size {
            let count = BULK.min(size - written);
            let (body, bytes) = bulk(&mut documents, written, count);
            json += bytes;
            let begun = Instant::now();
            let answer = client.request("POST", "/large/_bulk_docs", body).await?;
            let elapsed = begun.elapsed();
            anyhow::ensure!(!answer.windows(8).any(|part| part == b"\"error\":"), "a document was refused");
            took += elapsed;
            if written >= last_from {
                took_last += elapsed;
            }
            written += count;
        }
        tokio::time::sleep(PAUSE).await;
        let loads: Vec<Load> = (0..READERS).map(|reader| reads(reader, size)).collect();
        let reads = send(&server.address, loads).await?;
        let memory = server.most_memory();
        let disk = disk(&data)?;
        server.stop().await?;
        let begun = Instant::now();
        server = Spawned::start(binary, &url).await?;
        let opening = begun.elapsed().as_secs_f64();
        Client::connect(&server.address).await?.request("GET", "/large", Bytes::new()).await?;
        each(Step {
            documents: size,
            writes: rate((size - before) as usize, took),
            last_writes: rate((size - last_from) as usize, took_last),
            reads: rate(READS as usize, reads),
            disk: disk as f64 / json as f64,
            memory,
            opening,
            opened: server.memory(),
        })?;
    }
    server.stop().await
}

fn print(step: &Step, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(step)?);
    } else {
        let megabytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6));
        let (memory, opened) = (megabytes(step.memory), megabytes(step.opened));
        println!(
            "{:>10} {:>10.0} {:>12.0} {:>10.0} {:>10.2} {memory:>10} {:>10.2} {opened:>10}",
            step.documents, step.writes, step.last_writes, step.reads, step.disk, step.opening
        );
    }
    Ok(())
}

/// The id of the document with this number. Ids look random, as those of clients do, and need not be kept for reading.
fn id(number: u64) -> String {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    format!("{:032x}", u128::from(mixed) << 64 | u128::from(number))
}

/// A request's body with new documents, and the bytes of the documents in it.
fn bulk(documents: &mut Source, from: u64, count: u64) -> (String, u64) {
    let all: Vec<String> =
        (from..from + count).map(|n| format!(r#"{{"_id":"{}",{}}}"#, id(n), documents.members())).collect();
    let bytes = all.iter().map(|document| document.len() as u64).sum();
    (format!(r#"{{"docs":[{}]}}"#, all.join(",")), bytes)
}

/// One reader's requests for documents at random among `size`.
fn reads(reader: u64, size: u64) -> Load {
    let numbers = (0..READS / READERS).map(|n| (reader * READS + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % size);
    numbers.map(|number| ("GET", format!("/large/{}", id(number)), Bytes::new())).collect()
}
