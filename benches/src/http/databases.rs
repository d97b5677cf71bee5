//! Many small databases, as one for each user: what they take to create, on disk and at rest, how long the server takes
//! to start with them, and how fast they are opened and listed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use benches::work;
use bytes::Bytes;
use clap::Args;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::client::{Address, Client};
use super::server::Spawned;

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// Number of databases, with one document each
    #[arg(long, default_value_t = 10_000)]
    databases: usize,
    /// Clients that create them; with many more, creations conflict with each other
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    clients: u64,
    /// Seconds at rest
    #[arg(long, default_value_t = 30)]
    rest: u64,
}

/// Databases that are opened, by chance, after the start.
const OPENED: usize = 1_000;

/// Length of a page of `_all_dbs`.
const PAGE: usize = 100;

fn name(database: usize) -> String {
    format!("user-{database:07}")
}

/// Creates these databases, with one document each.
async fn create(address: Address, databases: impl Iterator<Item = usize>) -> Result<()> {
    let mut client = Client::connect(&address).await?;
    for database in databases {
        client.request("PUT", &format!("/{}", name(database)), Bytes::new()).await?;
        client.request("PUT", &format!("/{}/settings", name(database)), r#"{"theme":"dark"}"#).await?;
    }
    Ok(())
}

async fn timed(client: &mut Client, path: &str) -> Result<(Duration, usize)> {
    let begun = Instant::now();
    let length = client.request("GET", path, Bytes::new()).await?.len();
    Ok((begun.elapsed(), length))
}

fn say(what: &str, value: f64, unit: &str) {
    println!("{what:<48} {value:>12.1} {unit}");
}

fn memory(server: &Spawned) -> Result<f64> {
    Ok(server.memory().context("the system does not tell a process's memory")? as f64 / 1e6)
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let folder = work::folder()?;
    let engine = format!("lsm:{}", folder.path().join("data").display());
    let server = Spawned::start(&options.binary, &engine).await?;
    say("memory without databases", memory(&server)?, "MB");
    let (all, clients) = (options.databases, usize::try_from(options.clients)?);
    let begun = Instant::now();
    let creating: Vec<_> =
        (0..clients).map(|first| tokio::spawn(create(server.address.clone(), (first..all).step_by(clients)))).collect();
    for one in creating {
        one.await??;
    }
    say("created, with a document", all as f64 / begun.elapsed().as_secs_f64(), "a second");
    say("memory after that", memory(&server)?, "MB");
    say("folder", work::disk(folder.path())? as f64 / 1e6, "MB");
    server.stop().await?;

    let begun = Instant::now();
    let server = Spawned::start(&options.binary, &engine).await?;
    let mut client = Client::connect(&server.address).await?;
    client.request("GET", "/_up", Bytes::new()).await?;
    say("start after a kill, until it answers", begun.elapsed().as_secs_f64() * 1e3, "ms");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = server.processor_time()?;
    tokio::time::sleep(Duration::from_secs(options.rest)).await;
    let busy = (server.processor_time()? - before).as_secs_f64();
    say("at rest: memory", memory(&server)?, "MB");
    say("at rest: processor", 100.0 * busy / options.rest.max(1) as f64, "% of a core");

    let mut random = StdRng::seed_from_u64(1);
    let mut client = Client::connect(&server.address).await?;
    let mut times = Vec::with_capacity(OPENED);
    for _ in 0..OPENED {
        times.push(timed(&mut client, &format!("/{}/settings", name(random.random_range(0..all)))).await?.0);
    }
    times.sort_unstable();
    say("first read of a database, median", times[OPENED / 2].as_secs_f64() * 1e6, "µs");
    say("first read of a database, 99 %", times[OPENED * 99 / 100].as_secs_f64() * 1e6, "µs");
    say("memory with 1,000 open", memory(&server)?, "MB");
    let middle = format!("/_all_dbs?limit={PAGE}&start_key=%22{}%22", name(all / 2));
    say("_all_dbs, a page of 100", timed(&mut client, &middle).await?.0.as_secs_f64() * 1e3, "ms");
    let (took, length) = timed(&mut client, "/_all_dbs").await?;
    ensure!(length > all * name(0).len(), "_all_dbs is too short: {length} bytes");
    say("_all_dbs, all of it", took.as_secs_f64() * 1e3, "ms");
    say("memory after it", memory(&server)?, "MB");
    server.stop().await
}
