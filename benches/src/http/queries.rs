//! Compares queries with a rival: indexes and views are built, then read, in turns on each side.
//!
//! Each round builds another index and another view, since a built one is not built again. All sides have the same
//! documents, and find the same ones.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use benches::documents::Source;
use benches::figures::Figures;
use bytes::Bytes;
use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::client::{Address, Client};
use super::server::Spawned;
use super::work::{Database, Target};
use super::{Format, Rates, print_head, print_row};

/// Number of groups of the view at group level 1.
const GROUPS: usize = 100;

/// Number of rows that a range should return.
const RANGE: usize = 100;

/// How long queries of one kind are repeated in a round.
const LONG: Duration = Duration::from_secs(3);

#[derive(Args)]
pub(crate) struct Options {
    /// The other server, running already, as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT
    #[arg(long, value_name = "URL")]
    rival: Option<Address>,
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: std::path::PathBuf,
    /// The engine of the server to start: `sled`, say, on a fresh temporary folder, or a whole URL
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// The layout of our databases' documents
    #[arg(long, value_enum, default_value_t = Format::Both)]
    format: Format,
    /// Number of documents
    #[arg(long, default_value_t = 100_000)]
    documents: usize,
    /// Rounds of each work; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=5))]
    rounds: u32,
    /// One JSON object for each row instead of the table
    #[arg(long)]
    json: bool,
}

/// The second field of the index of each further round.
const SECOND: [&str; 4] = ["price", "name", "active", "type"];

/// The kinds of work, in the order of the table, and the units of their rates.
const WORKS: [(&str, &str); 10] = [
    ("bulk of 1,000", "documents"),
    ("the same with an index", "documents"),
    ("build of an index", "documents"),
    ("_find by equality", "queries"),
    ("_find of a range, sorted", "queries"),
    ("_find without an index", "documents"),
    ("build of a view", "documents"),
    ("view, a range", "queries"),
    ("view, sum of a range", "queries"),
    ("view, group_level=1 of all", "queries"),
];

/// The serial number that the n-th query asks for.
fn serial(n: usize) -> usize {
    n * 7_919 % 1_000_000
}

/// An answer whose documents or rows are only counted: on a machine with few cores, the client's own work lowers the
/// rate.
#[derive(Deserialize)]
struct Answer {
    #[serde(alias = "rows")]
    docs: Vec<IgnoredAny>,
}

/// A server with a database.
pub(crate) struct Side {
    target: Target,
    database: Database,
    client: Client,
    /// By work.
    figures: Vec<Figures>,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let spawned = Spawned::start(&options.binary, &options.engine).await?;
    let formats = options.format.names();
    let ours = formats.iter().map(|format| Target { address: spawned.address.clone(), format: Some(format) });
    let rival = options.rival.iter().map(|rival| Target { address: rival.clone(), format: None });
    let mut sides = Vec::new();
    for target in ours.chain(rival) {
        sides.push(Side::create(target).await?);
    }
    for side in &sides {
        side.fill(options.documents).await?;
    }
    for round in 0..options.rounds {
        for turn in 0..sides.len() {
            // Every other round is backwards, so that a slow phase of the machine slows all sides equally.
            let at = if round % 2 == 0 { turn } else { sides.len() - 1 - turn };
            let side = &mut sides[at];
            side.round(round, options.documents).await.with_context(|| side.target.address.to_string())?;
        }
    }
    if !options.json {
        print_head(formats);
    }
    for (at, (name, unit)) in WORKS.into_iter().enumerate() {
        let mut figures: Vec<Figures> = sides.iter_mut().map(|side| std::mem::take(&mut side.figures[at])).collect();
        let rival = options.rival.as_ref().and_then(|_| figures.pop());
        let ours = formats.iter().copied().zip(figures).collect();
        print_row(&Rates { name, unit, ours, rival }, options.json);
    }
    spawned.stop().await
}

/// The map function of a round's view. It emits a row for each document.
pub(crate) fn map_function(round: u32) -> String {
    format!(
        "function (doc) {{ // {round}\n if (doc.type === 'record') emit([doc.serial % {GROUPS}, doc.serial], doc.price); }}"
    )
}

impl Side {
    /// A new database.
    pub(crate) async fn create(target: Target) -> Result<Side> {
        let (database, client) = (Database::create(&target).await?, Client::connect(&target.address).await?);
        Ok(Side { target, database, client, figures: vec![Figures::default(); WORKS.len()] })
    }

    /// Writes documents, the same ones into each database.
    pub(crate) async fn fill(&self, documents: usize) -> Result<()> {
        self.database.fill(documents).await.map(drop)
    }

    /// Servers close connections that were idle during the other sides' rounds.
    async fn connect(&mut self) -> Result<()> {
        self.client = Client::connect(&self.target.address).await?;
        Ok(())
    }

    /// Does each work once.
    async fn round(&mut self, round: u32, documents: usize) -> Result<()> {
        self.connect().await?;
        let mut rates = vec![self.write(documents / 5, false).await?, self.write(documents / 5, true).await?];
        rates.push(self.build_index(round, documents).await?);
        rates.push(self.find(|n| json!({"selector": {"serial": serial(n)}, "use_index": "by-0"}), None).await?);
        rates.push(self.find_range(documents).await?);
        let without = self.find(|n| json!({"selector": {"owner.mail": format!("nobody {n}")}}), Some(0)).await?;
        rates.push(without * documents as f64);
        rates.push(self.build_view(round, documents).await?);
        let view = |rest: String| format!("/_design/view-0/_view/by-group?{rest}");
        let range = |n: usize| view(format!("reduce=false&limit={RANGE}&startkey=[{}]", n * 37 % (GROUPS / 2)));
        rates.push(self.view(range, |rows| rows == RANGE.min(documents / 2)).await?);
        let sum = |n: usize| {
            let group = n * 37 % GROUPS;
            view(format!("startkey=[{group}]&endkey=[{group},{{}}]").replace('{', "%7B").replace('}', "%7D"))
        };
        rates.push(self.view(sum, |rows| rows <= 1).await?);
        let all = |_| view("group_level=1".to_owned());
        rates.push(self.view(all, |rows| rows == GROUPS.min(documents)).await?);
        for (figures, rate) in self.figures.iter_mut().zip(rates) {
            figures.push(rate);
        }
        Ok(())
    }

    /// Writes documents to a new database.
    async fn write(&mut self, count: usize, indexed: bool) -> Result<f64> {
        let database = Database::create(&self.target).await?;
        if indexed {
            self.post(&database.path("/_index"), &json!({"index": {"fields": ["serial"]}})).await?;
        }
        let mut documents = Source::seeded(4);
        let bulks: Vec<String> = (0..count.div_ceil(1_000)).map(|_| documents.bulk(1_000)).collect();
        self.client = Client::connect(&self.target.address).await?;
        let (written, begun) = (bulks.len() * 1_000, Instant::now());
        for bulk in bulks {
            self.client.request("POST", &database.path("/_bulk_docs"), bulk).await?;
        }
        Ok(written as f64 / begun.elapsed().as_secs_f64())
    }

    /// Builds a new index, until a query has used it for its order. The first round's is that of the queries.
    pub(crate) async fn build_index(&mut self, round: u32, documents: usize) -> Result<f64> {
        self.connect().await?;
        let name = format!("by-{round}");
        let mut fields = vec!["serial"];
        fields.extend(round.checked_sub(1).and_then(|further| SECOND.get(further as usize)));
        let begun = Instant::now();
        let index = json!({"index": {"fields": fields}, "ddoc": name, "name": name});
        self.post(&self.database.path("/_index"), &index).await?;
        // A query waits for an index only if it cannot be answered without it.
        let query = json!({"selector": {"serial": {"$gte": 0}}, "sort": fields, "limit": 1, "use_index": name});
        self.post(&self.database.path("/_find"), &query).await?;
        Ok(documents as f64 / begun.elapsed().as_secs_f64())
    }

    /// Builds a new view.
    pub(crate) async fn build_view(&mut self, round: u32, documents: usize) -> Result<f64> {
        self.connect().await?;
        let design = json!({"views": {"by-group": {"map": map_function(round), "reduce": "_sum"}}}).to_string();
        let (path, begun) = (self.database.path(&format!("/_design/view-{round}")), Instant::now());
        self.client.request("PUT", &path, design).await?;
        let rows = self.rows(&format!("{path}/_view/by-group?reduce=false&limit=1")).await?;
        let took = begun.elapsed();
        ensure!(rows == 1, "{path}: {rows} rows");
        Ok(documents as f64 / took.as_secs_f64())
    }

    /// Repeats queries of sorted ranges.
    pub(crate) async fn find_range(&mut self, documents: usize) -> Result<f64> {
        self.connect().await?;
        let range = |n: usize| {
            let selector = json!({"serial": {"$gte": serial(n) / 2}});
            json!({"selector": selector, "sort": ["serial"], "limit": RANGE, "use_index": "by-0"})
        };
        self.find(range, Some(RANGE.min(documents / 2))).await
    }

    /// Repeats a query; it must find `found` documents.
    async fn find(&mut self, query: impl Fn(usize) -> Value, found: Option<usize>) -> Result<f64> {
        let path = self.database.path("/_find");
        let (mut count, begun) = (0, Instant::now());
        while count == 0 || begun.elapsed() < LONG {
            let query = query(count);
            let answer: Answer = serde_json::from_slice(&self.post(&path, &query).await?)?;
            let docs = answer.docs.len();
            ensure!(found.is_none_or(|found| docs == found), "{query}: {docs} documents");
            count += 1;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    async fn view(&mut self, path: impl Fn(usize) -> String, is_right: impl Fn(usize) -> bool) -> Result<f64> {
        let (mut count, begun) = (0, Instant::now());
        while count == 0 || begun.elapsed() < LONG {
            let path = self.database.path(&path(count));
            let rows = self.rows(&path).await?;
            ensure!(is_right(rows), "{path}: {rows} rows");
            count += 1;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    async fn post(&mut self, path: &str, body: &Value) -> Result<Bytes> {
        self.client.request("POST", path, body.to_string()).await
    }

    /// The number of rows of an answer.
    async fn rows(&mut self, path: &str) -> Result<usize> {
        let answer: Answer = serde_json::from_slice(&self.client.request("GET", path, Bytes::new()).await?)?;
        Ok(answer.docs.len())
    }
}
