//! Replication: many documents from another server, beside other replicators, and many replications that have nothing
//! to do.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::client::{Address, Client};
use super::server::Spawned;
use benches::documents::Source;
use benches::figures::Figures;

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// The engine, on new temporary folders
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// Another server whose `_replicate` copies the same documents, running already
    #[arg(long, value_name = "URL")]
    rival: Option<Address>,
    /// A program that copies the same documents: it is run with the URLs of source and target
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    /// Number of documents to copy; 0 leaves that out
    #[arg(long, default_value_t = 100_000)]
    documents: usize,
    /// Rounds of each copy; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Number of continuous replications at rest; 0 leaves them out
    #[arg(long, default_value_t = 1_000)]
    idle: usize,
    /// Seconds for which they are watched
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    if options.documents > 0 {
        copy(&options).await?;
    }
    if options.idle > 0 {
        rest(&options, false).await?;
        rest(&options, true).await?;
    }
    Ok(())
}

/// A way to copy a database.
pub(crate) enum Way {
    /// `_replicate` of the server that has the target.
    Ours,
    /// `_replicate` of another server, which reaches both by HTTP.
    Rival(Address),
    /// The same, into a database of that server.
    RivalHome(Address),
    Program(String),
    /// Only reads the source's feed with its documents: the highest possible rate of a copy.
    Feed,
}

async fn copy(options: &Options) -> Result<()> {
    let source = Spawned::start(&options.binary, &options.engine).await?;
    let target = Spawned::start(&options.binary, &options.engine).await?;
    let mut client = Client::connect(&source.address).await?;
    fill(&mut client, options.documents).await?;
    let mut ways = vec![("our _replicate", Way::Ours), ("the feed alone", Way::Feed)];
    if let Some(rival) = &options.rival {
        ways.push(("rival's _replicate", Way::Rival(rival.clone())));
        ways.push(("the same, into its own", Way::RivalHome(rival.clone())));
    }
    ways.extend(options.program.clone().map(|program| ("program", Way::Program(program))));
    let mut figures = vec![Figures::default(); ways.len()];
    for round in 0..options.rounds {
        for turn in 0..ways.len() {
            // Every other round is backwards, so that a slow phase of the machine slows all sides equally.
            let at = if round % 2 == 0 { turn } else { ways.len() - 1 - turn };
            let took = one(options.documents, &ways[at].1, &source.address, &target.address, round).await?;
            figures[at].push(options.documents as f64 / took.as_secs_f64());
        }
    }
    println!("{:<22} {:>14} {:>14}  spread", "documents a second", "median", "ours are");
    for ((name, _), figure) in ways.iter().zip(&figures) {
        let times = figures[0].median() / figure.median();
        println!("{name:<22} {:>14.0} {times:>12.2} x  {:.2}", figure.median(), figure.spread());
    }
    let memory = |server: &Spawned| server.most_memory().unwrap_or_default() as f64 / 1e6;
    println!("most memory: source {:.0} MB, target {:.0} MB", memory(&source), memory(&target));
    source.stop().await?;
    target.stop().await
}

/// Fills a new database `source`.
pub(crate) async fn fill(client: &mut Client, documents: usize) -> Result<()> {
    client.request("PUT", "/source", "").await?;
    let mut made = Source::seeded(1);
    let mut left = documents;
    while left > 0 {
        let some = left.min(1_000);
        client.request("POST", "/source/_bulk_docs", made.bulk(some)).await?;
        left -= some;
    }
    Ok(())
}

/// Copies the documents into a new database. Returns the time that it took.
pub(crate) async fn one(
    documents: usize,
    way: &Way,
    source: &Address,
    target: &Address,
    round: u32,
) -> Result<Duration> {
    // A checkpoint of an earlier round would leave nothing to do, so each round's target has a new name.
    let name = match way {
        Way::Ours => format!("ours{round}"),
        Way::Rival(_) | Way::RivalHome(_) => format!("rival{round}"),
        Way::Program(_) => format!("program{round}"),
        Way::Feed => String::new(),
    };
    let target = match way {
        Way::RivalHome(rival) => rival,
        _ => target,
    };
    let (from, to) = (format!("{source}/source"), format!("{}/{name}", target.with_user()));
    if !name.is_empty() {
        Client::connect(target).await?.request("PUT", &format!("/{name}"), "").await?;
    }
    let began = Instant::now();
    match way {
        Way::Ours => {
            let mut there = Client::connect(target).await?;
            let asked = json!({"source": from, "target": name}).to_string();
            there.request("POST", "/_replicate", asked).await?;
        }
        Way::Rival(rival) | Way::RivalHome(rival) => {
            let asked = json!({"source": from, "target": to}).to_string();
            Client::connect(rival).await?.request("POST", "/_replicate", asked).await?;
        }
        Way::Program(program) => {
            let mut words = program.split_whitespace();
            let first = words.next().context("an empty program")?;
            let status = tokio::process::Command::new(first).args(words).args([&from, &to]).status().await?;
            ensure!(status.success(), "{program}: {status}");
        }
        Way::Feed => {
            Client::connect(source).await?.download("/source/_changes?include_docs=true", "").await?;
        }
    }
    let took = began.elapsed();
    if !name.is_empty() {
        // A connection that waited for the copy may have been closed.
        let mut there = Client::connect(target).await?;
        let info: Value = serde_json::from_slice(&there.request("GET", &format!("/{name}"), "").await?)?;
        ensure!(info["doc_count"] == documents, "{name} has {}", info["doc_count"]);
        there.request("DELETE", &format!("/{name}"), "").await?;
    }
    Ok(took)
}

/// Watches continuous replications that have nothing to do. Their sources are databases of the same server or of
/// another one.
async fn rest(options: &Options, is_far: bool) -> Result<()> {
    let near = Spawned::start(&options.binary, &options.engine).await?;
    let far = Spawned::start(&options.binary, &options.engine).await?;
    let mut client = Client::connect(&near.address).await?;
    let mut there = Client::connect(&far.address).await?;
    let before = near.memory().context("the system does not tell a process's memory")?;
    client.request("PUT", "/_replicator", "").await?;
    for number in 0..options.idle {
        let (source, target) = (format!("source{number}"), format!("target{number}"));
        let host = if is_far { &mut there } else { &mut client };
        host.request("PUT", &format!("/{source}"), "").await?;
        host.request("PUT", &format!("/{source}/first"), "{}").await?;
        let source = if is_far { format!("{}/{source}", far.address) } else { source };
        let asked = json!({"source": source, "target": target, "create_target": true, "continuous": true});
        client.request("PUT", &format!("/_replicator/{number}"), asked.to_string()).await?;
    }
    // All have copied their document and written their checkpoint, which they do every five seconds.
    let began = Instant::now();
    loop {
        let jobs = client.request("GET", &format!("/_scheduler/jobs?limit={}", options.idle), "").await?;
        let jobs: Value = serde_json::from_slice(&jobs)?;
        let is_done = |job: &Value| {
            let info = &job["info"];
            info["docs_written"] == 1 && info["checkpointed_source_seq"] == info["through_seq"]
        };
        let done = jobs["jobs"].as_array().into_iter().flatten().filter(|job| is_done(job)).count();
        if done == options.idle {
            break;
        }
        if began.elapsed() > Duration::from_secs(300) {
            bail!("only {done} of {} replications have done their work", options.idle);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (cpu, began) = (near.processor_time()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let used = near.processor_time()?.saturating_sub(cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let memory = near.memory().context("the system does not tell a process's memory")?;
    println!(
        "{} replications at rest, sources {}: {:.2} % of a core, {:.0} MB more than the {:.0} MB before",
        options.idle,
        if is_far { "far" } else { "here" },
        used * 100.0,
        memory.saturating_sub(before) as f64 / 1e6,
        before as f64 / 1e6,
    );
    near.stop().await?;
    far.stop().await
}
