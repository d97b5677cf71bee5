//! Measures the layer on a FoundationDB cluster, through the library and over HTTP, beside FoundationDB's crate
//! with the same rows.
//!
//! `raw` is the crate alone. It makes the layer's reads for a document together, then sets the layer's rows in one
//! transaction; both were recorded from the layer on the engine in memory. So the ratio is the cost of the layer,
//! and of HTTP above it.

mod raw;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use benches::documents::Source;
use benches::figures::Figures;
use bytes::Bytes;
use clap::Args;
use engine_fdb::FdbDatabase;
use kv_api::{DatabaseExt, Error, RangeRequest, Transaction};
use model::{CreateOptions, Documents, GetOptions, Layer, LayerOptions};

use crate::http::client::Address;
use crate::http::server::Spawned;
use crate::http::work::{self, Target, scaled, split};

use raw::{Raw, edits};

/// Number of documents from which the reads choose.
const STORED: usize = 2_000;

/// Numbers of clients, with the documents of a round: about the same number of seconds each.
const LOADS: [(usize, usize); 3] = [(1, 300), (16, 3_000), (128, 8_000)];

#[derive(Args)]
pub(crate) struct Options {
    /// The cluster file; by default that of FDB_CLUSTER_FILE, or the client's default
    #[arg(long, value_name = "FILE")]
    cluster_file: Option<PathBuf>,
    /// The server to start for HTTP, built with `--features fdb`
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// Rounds of each work; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How much work in a round, as a factor
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
}

/// Work that is done on each of the three sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Write,
    Read,
}

/// The three sides.
struct Sides {
    raw: Raw,
    library: Documents<FdbDatabase>,
    /// Documents of `library` that exist already.
    stored: Vec<String>,
    http: Address,
    http_database: work::Database,
    http_stored: Vec<String>,
    /// Seed of the ids of a round.
    seed: u64,
}

/// Runs the measurement and prints its table.
pub(crate) async fn run(options: Options) -> Result<()> {
    let engine = FdbDatabase::open(options.cluster_file.as_deref()).await?;
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let prefix = format!("couch-layer bench/{nanos:x}/");
    let measured = measure(&options, engine.clone(), &prefix).await;
    // Also after a failure: the cluster is shared.
    clear(&engine, &prefix).await.with_context(|| format!("{prefix} stays in the cluster"))?;
    measured
}

async fn measure(options: &Options, engine: FdbDatabase, prefix: &str) -> Result<()> {
    let file = engine.cluster_file().display().to_string();
    let url = format!("fdb:{file}?prefix={}http%2F", prefix.replace(' ', "%20"));
    let server = Spawned::start(&options.binary, &url).await?;
    let mut sides = Sides::prepare(engine, prefix, server.address.clone()).await?;
    println!(
        "{:<18} {:>9} {:>10} {:>6} {:>9} {:>6}  spread",
        "work", "raw /s", "library /s", "ratio", "HTTP /s", "ratio"
    );
    for work in [Work::Write, Work::Read] {
        for (clients, count) in LOADS {
            // Reads are quick.
            let count = scaled(if work == Work::Read { 4 * count } else { count }, options.scale);
            let mut figures = [Figures::default(), Figures::default(), Figures::default()];
            for round in 0..options.rounds as usize {
                // In turns, and each side is first in some rounds.
                for turn in 0..3 {
                    let side = (round + turn) % 3;
                    let took = sides.run(side, work, clients, count).await?;
                    figures[side].push(count as f64 / took.as_secs_f64());
                }
            }
            let [raw, library, http] = &figures;
            let spread = figures.iter().map(Figures::spread).fold(1.0, f64::max);
            println!(
                "{:<18} {:>9.0} {:>10.0} {:>6.2} {:>9.0} {:>6.2}  {spread:.2}",
                format!("{work:?}, {clients} clients"),
                raw.median(),
                library.median(),
                library.median() / raw.median(),
                http.median(),
                http.median() / raw.median(),
            );
        }
    }
    server.stop().await
}

async fn clear(engine: &FdbDatabase, prefix: &str) -> Result<(), Error> {
    let range = RangeRequest::prefix(prefix.as_bytes());
    engine
        .run(|tx, _| {
            tx.clear_range(&range.begin.key, &range.end.key);
            std::future::ready(Ok(()))
        })
        .await
}

impl Sides {
    async fn prepare(engine: FdbDatabase, prefix: &str, http: Address) -> Result<Sides> {
        let raw = Raw::prepare(engine.clone(), format!("{prefix}raw/"), STORED).await?;
        let options = LayerOptions { prefix: format!("{prefix}library/").into(), ..LayerOptions::default() };
        let library = Layer::open(engine, options).await?.create_database("bench", CreateOptions::default()).await?;
        let stored = edits(1, STORED)?;
        let ids = stored.iter().map(|edit| edit.id.clone()).collect();
        for chunk in stored.chunks(500) {
            for result in library.write(chunk.to_vec(), model::WriteMode::Interactive).await? {
                result?;
            }
        }
        let target = Target { address: http, format: None };
        let http_database = work::Database::create(&target).await?;
        let http_stored = http_database.fill(STORED).await?;
        Ok(Sides { raw, library, stored: ids, http: target.address, http_database, http_stored, seed: 10 })
    }

    async fn run(&mut self, side: usize, work: Work, clients: usize, count: usize) -> Result<Duration> {
        self.seed += 1;
        // The stride is coprime to the number of documents, so it visits all of them in scattered order.
        let scattered = |n: usize| n * 7_919 % STORED;
        match (side, work) {
            (0, Work::Write) => self.raw.write(self.seed, clients, count).await,
            (0, Work::Read) => self.raw.read(clients, (0..count).map(scattered).collect()).await,
            (1, Work::Write) => {
                let edits = edits(self.seed, count)?;
                self.each(split(edits, clients), async |documents, edit| documents.put(edit).await.map(drop)).await
            }
            (1, Work::Read) => {
                let ids: Vec<String> = (0..count).map(|n| self.stored[scattered(n)].clone()).collect();
                self.each(split(ids, clients), async |documents, id| {
                    let document = documents.get(&id, &GetOptions::default()).await?;
                    let mut text = Vec::with_capacity(512);
                    document.write_json(&mut text);
                    std::hint::black_box(text);
                    Ok(())
                })
                .await
            }
            (_, Work::Write) => {
                let mut source = Source::seeded(self.seed);
                let load = (0..count).map(|_| {
                    let path = self.http_database.path(&format!("/{}", source.id()));
                    ("PUT", path, source.document().into())
                });
                work::send(&self.http, split(load.collect(), clients)).await
            }
            (_, Work::Read) => {
                let load = (0..count).map(|n| {
                    let path = self.http_database.path(&format!("/{}", self.http_stored[scattered(n)]));
                    ("GET", path, Bytes::new())
                });
                work::send(&self.http, split(load.collect(), clients)).await
            }
        }
    }

    /// Runs the items of each client one after the other, and all clients at once.
    async fn each<T: 'static>(
        &self,
        loads: Vec<Vec<T>>,
        work: impl AsyncFn(&Documents<FdbDatabase>, T) -> model::Result<()> + Copy + 'static,
    ) -> Result<Duration> {
        let begun = Instant::now();
        let clients = loads.into_iter().map(|load| {
            let documents = self.library.clone();
            async move {
                for item in load {
                    work(&documents, item).await?;
                }
                Ok::<(), model::Error>(())
            }
        });
        futures_util::future::try_join_all(clients).await?;
        Ok(begun.elapsed())
    }
}
