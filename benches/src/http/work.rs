//! The kinds of work over HTTP, each on a new database.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;

use super::client::{Address, Client};
use benches::documents::Source;

/// Number of documents in the database for reads.
const DOCUMENTS: usize = 20_000;

/// A request of a load: method, path, body.
pub(crate) type Load = Vec<(&'static str, String, Bytes)>;

type Figure<'a> = Pin<Box<dyn Future<Output = Result<f64>> + Send + 'a>>;

pub(crate) struct Work {
    pub(crate) name: &'static str,
    /// Unit of the rate.
    pub(crate) unit: &'static str,
    run: fn(&Target, f64) -> Figure<'_>,
}

impl Work {
    /// Does the work once and returns its rate.
    pub(crate) async fn run(&self, target: &Target, scale: f64) -> Result<f64> {
        (self.run)(target, scale).await
    }
}

/// Pause between filling and reading a database, on both sides: background work after the writes must not be
/// counted against the reads.
pub(crate) const PAUSE: Duration = Duration::from_secs(3);

/// All kinds, in the order of the table.
pub(crate) const WORKS: &[Work] = &[
    Work { name: "put, 1 client", unit: "documents", run: |a, s| Box::pin(put(a, 1, scaled(1_000, s))) },
    Work { name: "put, 16 clients", unit: "documents", run: |a, s| Box::pin(put(a, 16, scaled(8_000, s))) },
    Work { name: "get, 1 client", unit: "documents", run: |a, s| Box::pin(get(a, 1, scaled(5_000, s))) },
    Work { name: "get, 16 clients", unit: "documents", run: |a, s| Box::pin(get(a, 16, scaled(40_000, s))) },
    Work {
        name: "bulk of 100, 2 clients",
        unit: "documents",
        run: |a, s| Box::pin(bulk(a, 2, 100, scaled(10_000, s))),
    },
    Work {
        name: "bulk of 1,000, 1 client",
        unit: "documents",
        run: |a, s| Box::pin(bulk(a, 1, 1_000, scaled(20_000, s))),
    },
    Work { name: "_changes", unit: "rows", run: |a, s| Box::pin(list(a, "_changes", "\"seq\":", scaled(5, s))) },
    Work {
        name: "_all_docs?include_docs=true",
        unit: "rows",
        run: |a, s| Box::pin(list(a, "_all_docs?include_docs=true", "\"key\":", scaled(5, s))),
    },
];

pub(crate) fn scaled(count: usize, scale: f64) -> usize {
    ((count as f64 * scale) as usize).max(1)
}

/// A server, and the options of its databases.
pub(crate) struct Target {
    pub(crate) address: Address,
    /// Layout of bodies, for a server with a choice.
    pub(crate) format: Option<&'static str>,
}

/// A database for one piece of work. It is not dropped: a server's background work after a drop would be counted
/// against the next work.
pub(crate) struct Database {
    name: String,
    address: Address,
}

impl Database {
    pub(crate) async fn create(target: &Target) -> Result<Database> {
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("bench-{nanos:x}");
        let database = Database { name, address: target.address.clone() };
        let format = target.format.map(|format| format!("?format={format}")).unwrap_or_default();
        Client::connect(&target.address).await?.request("PUT", &database.path(&format), Bytes::new()).await?;
        Ok(database)
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/{}{rest}", self.name)
    }

    pub(crate) async fn fill(&self, count: usize) -> Result<Vec<String>> {
        let mut client = Client::connect(&self.address).await?;
        let mut documents = Source::seeded(1);
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            let body = documents.bulk((count - ids.len()).min(1_000));
            let answer = client.request("POST", &self.path("/_bulk_docs"), body).await?;
            let rows: Vec<serde_json::Value> = serde_json::from_slice(&answer)?;
            ids.extend(rows.iter().filter_map(|row| row["id"].as_str().map(str::to_owned)));
        }
        Ok(ids)
    }
}

/// Sends each client's requests one after the other, all clients at once. Returns the duration.
pub(crate) async fn send(address: &Address, loads: Vec<Load>) -> Result<Duration> {
    let mut clients = Vec::with_capacity(loads.len());
    for _ in &loads {
        clients.push(Client::connect(address).await?);
    }
    let begun = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .zip(loads)
        .map(|(mut client, load)| {
            tokio::spawn(async move {
                for (method, path, body) in load {
                    client.request(method, &path, body).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(begun.elapsed())
}

pub(crate) fn split<T>(items: Vec<T>, clients: usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = (0..clients).map(|_| Vec::new()).collect();
    for (index, item) in items.into_iter().enumerate() {
        parts[index % clients].push(item);
    }
    parts
}

async fn put(target: &Target, clients: usize, count: usize) -> Result<f64> {
    let database = Database::create(target).await?;
    let mut documents = Source::seeded(2);
    let load: Load = (0..count)
        .map(|_| ("PUT", database.path(&format!("/{}", documents.id())), documents.document().into()))
        .collect();
    let took = send(&target.address, split(load, clients)).await?;
    Ok(count as f64 / took.as_secs_f64())
}

async fn get(target: &Target, clients: usize, count: usize) -> Result<f64> {
    let database = Database::create(target).await?;
    let ids = database.fill(DOCUMENTS).await?;
    tokio::time::sleep(PAUSE).await;
    let paths: Vec<String> = ids.iter().map(|id| database.path(&format!("/{id}"))).collect();
    read(&target.address, &paths, clients, count).await
}

/// Reads documents in scattered order. Returns the number of reads a second.
pub(crate) async fn read(address: &Address, paths: &[String], clients: usize, count: usize) -> Result<f64> {
    // The stride is coprime to the number of documents, so it visits all of them.
    let load = (0..count).map(|n| ("GET", paths[n * 7_919 % paths.len()].clone(), Bytes::new())).collect();
    let took = send(address, split(load, clients)).await?;
    Ok(count as f64 / took.as_secs_f64())
}

async fn bulk(target: &Target, clients: usize, size: usize, count: usize) -> Result<f64> {
    let database = Database::create(target).await?;
    let mut documents = Source::seeded(3);
    let requests = count.div_ceil(size);
    let load: Load =
        (0..requests).map(|_| ("POST", database.path("/_bulk_docs"), documents.bulk(size).into())).collect();
    let took = send(&target.address, split(load, clients)).await?;
    Ok((requests * size) as f64 / took.as_secs_f64())
}

/// Reads a whole listing several times. Counts its rows by `mark`, which each row has once.
async fn list(target: &Target, listing: &str, mark: &str, times: usize) -> Result<f64> {
    let database = Database::create(target).await?;
    database.fill(DOCUMENTS).await?;
    tokio::time::sleep(PAUSE).await;
    let path = database.path(&format!("/{listing}"));
    let mut client = Client::connect(&target.address).await?;
    let mut took = Duration::ZERO;
    let mut rows = 0;
    for _ in 0..times {
        let begun = Instant::now();
        let answer = client.request("GET", &path, Bytes::new()).await?;
        took += begun.elapsed();
        rows += String::from_utf8_lossy(&answer).matches(mark).count();
    }
    anyhow::ensure!(rows == DOCUMENTS * times, "{path} gave {rows} rows, not {}", DOCUMENTS * times);
    Ok(rows as f64 / took.as_secs_f64())
}
