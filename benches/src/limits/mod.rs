//! The server and the store beside the limits that the machine and the libraries set: [`bare`] has those of libraries,
//! a feed bounds a replication, and a small database a large one.
//!
//! Each row has our rate, the limit's, and their ratio, which is that of the medians of rounds in turns. The clients take
//! their part of the machine on both sides.

mod bare;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use benches::engines::{Engine, Lsm, Syncing};
use benches::figures::Figures;
use benches::recording::{RawRead, Recording};
use benches::work::documents::{FORMATS, create, edits, store};
use benches::work::{folder, rate};
use clap::{Args, ValueEnum};
use engine_mem::MemStore;
use futures_executor::block_on;
use lsm_tree::SequenceNumberCounter;
use model::{BodyFormat, Documents, GetOptions, Layer, LayerOptions};
use occ::OccDatabase;
use occ::store::{ApplyError, Batch, Store};
use tokio::time::sleep;

use crate::http::client::Client;
use crate::http::large;
use crate::http::queries::{Side, map_function};
use crate::http::replications::{self, Way};
use crate::http::server::Spawned;
use crate::http::work::{self, Database, PAUSE, Target};

#[derive(Args)]
pub(crate) struct Options {
    /// The server to start
    #[arg(long, value_name = "PATH", default_value = "target/release/couch-layer")]
    binary: PathBuf,
    /// Number of documents of a large database; other rows have at most 100,000
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10_000..))]
    documents: u64,
    /// Rounds of each row; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only these rows
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Kind>,
    /// One JSON object for each row instead of the table
    #[arg(long)]
    json: bool,
}

/// Rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Reads over HTTP beside hyper
    Get,
    /// Writes and reads of the store beside `lsm-tree`
    Store,
    /// The build of a view beside QuickJS
    View,
    /// A replication beside the source's feed
    Replication,
    /// Writes, reads and memory of a large database
    Growth,
    /// Queries of a large database
    Find,
}

/// Number of clients that read.
const READERS: usize = 16;

/// A row of the table.
struct Row {
    work: String,
    unit: &'static str,
    ours: Figures,
    /// The limit's name, its figures, and the least ratio that we aim at.
    limit: Option<(String, Figures, f64)>,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    if !options.json {
        let titles = ["ours", "limit", "ratio", "aim"].map(|title| format!(" {title:>11}")).concat();
        println!("{:<60}{titles}  spread  beside", "work, a second");
    }
    let kinds = if options.only.is_empty() { Kind::value_variants() } else { &options.only };
    for kind in kinds {
        match kind {
            Kind::Get => get(&options).await,
            Kind::Store => stores(&options).await,
            Kind::View => view(&options).await,
            Kind::Replication => replication(&options).await,
            Kind::Growth => growth(&options).await,
            Kind::Find => find(&options).await,
        }
        .with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

impl Options {
    /// Number of documents of rows about databases that are not large.
    fn some(&self) -> usize {
        self.documents.min(100_000) as usize
    }

    async fn server(&self) -> Result<Spawned> {
        Spawned::start(&self.binary, Lsm::NAME).await
    }

    fn print(&self, row: &Row) {
        let limit = row.limit.as_ref();
        let ratio = limit.map(|(_, figures, _)| row.ours.median() / figures.median());
        if self.json {
            let line = serde_json::json!({
                "work": row.work, "unit": row.unit, "ours": row.ours, "ratio": ratio,
                "beside": limit.map(|(name, ..)| name), "limit": limit.map(|(_, figures, _)| figures),
                "aim": limit.map(|(.., aim)| aim),
            });
            return println!("{line}");
        }
        let short = |figure: Option<f64>, digits| figure.map_or("-".into(), |figure| format!("{figure:.digits$}"));
        let figures = [
            short(Some(row.ours.median()), 0),
            short(limit.map(|(_, figures, _)| figures.median()), 0),
            short(ratio, 2),
            short(limit.map(|(.., aim)| *aim), 2),
        ];
        let figures = figures.map(|figure| format!(" {figure:>11}")).concat();
        let spread = limit.map_or(1.0, |(_, figures, _)| figures.spread()).max(row.ours.spread());
        let name = limit.map_or("", |(name, ..)| name);
        println!("{:<60}{figures}  {spread:<6.2}  {name}", format!("{} ({})", row.work, row.unit));
    }
}

/// Measures both sides in turns.
async fn in_turns(
    rounds: u32,
    mut ours: impl AsyncFnMut(u32) -> Result<f64>,
    mut limit: impl AsyncFnMut(u32) -> Result<f64>,
) -> Result<[Figures; 2]> {
    let mut figures = [Figures::default(), Figures::default()];
    for round in 0..rounds {
        for turn in 0..2 {
            // Every other round is backwards, so that a slow phase of the machine slows both sides.
            let side = (turn + round as usize) % 2;
            figures[side].push(if side == 0 { ours(round).await? } else { limit(round).await? });
        }
    }
    Ok(figures)
}

/// Reads over HTTP, beside a server of hyper that sends the same bytes.
async fn get(options: &Options) -> Result<()> {
    let (server, count) = (options.server().await?, options.some());
    for (format, _) in FORMATS {
        let database = Database::create(&Target { address: server.address.clone(), format: Some(format) }).await?;
        let ids = database.fill(count).await?;
        let paths: Vec<String> = ids.iter().map(|id| database.path(&format!("/{id}"))).collect();
        let answer = bare::Answer::of(&server.address, &paths[0]).await?;
        let hyper = bare::Hyper::start(answer)?;
        sleep(PAUSE).await;
        let [ours, limit] = in_turns(
            options.rounds,
            async |_| work::read(&server.address, &paths, READERS, count).await,
            async |_| work::read(&hyper.address, &paths, READERS, count).await,
        )
        .await?;
        let work = format!("GET, {READERS} clients, {format}");
        options.print(&Row { work, unit: "documents", ours, limit: Some(("hyper".into(), limit, 0.7)) });
    }
    server.stop().await
}

/// What the layer does to a store.
struct Recorded {
    batches: Vec<Batch>,
    reads: Vec<RawRead>,
    /// Bytes of the keys and values that the reads find.
    found: usize,
}

impl Recorded {
    /// Documents are written in bulks, then read one by one.
    fn of(format: BodyFormat, ids: &[String]) -> Result<Recorded> {
        let (recording, log) = Recording::new(MemStore::default());
        let documents = create(OccDatabase::over(recording)?, format)?;
        store(&documents, edits(1, ids.len())?)?;
        let batches = log.take_batches();
        log.take_reads();
        read(&documents, ids)?;
        let reads = log.take_reads();
        drop(documents);
        // The same rows again.
        let rows = MemStore::default();
        for batch in &batches {
            rows.apply(batch.clone()).map_err(ApplyError::into_error)?;
        }
        let rows = rows.snapshot()?;
        let found = reads.iter().map(|read| read.replay(&rows)).sum::<kv_api::Result<usize>>()?;
        Ok(Recorded { batches, reads, found })
    }
}

/// Reads documents, and returns their number a second.
fn read<D: kv_api::Database>(documents: &Documents<D>, ids: &[String]) -> Result<f64> {
    let begun = Instant::now();
    for id in ids {
        black_box(block_on(documents.get(id, &GetOptions::default()))?);
    }
    Ok(rate(ids.len(), begun.elapsed()))
}

/// Writes documents to a new store, and returns their number a second. The store is closed afterwards.
fn write(folder: &Path, format: BodyFormat, count: usize) -> Result<f64> {
    let database = Lsm::database(folder, Syncing::Synced);
    let (documents, edits) = (create(database.clone(), format)?, edits(1, count)?);
    let begun = Instant::now();
    store(&documents, edits)?;
    let took = begun.elapsed();
    database.close()?;
    Ok(rate(count, took))
}

/// Bulks and reads through the model on the engine, beside the same rows in `lsm-tree`.
async fn stores(options: &Options) -> Result<()> {
    let count = options.some();
    let ids: Vec<String> = edits(1, count)?.into_iter().map(|edit| edit.id).collect();
    // The stride is coprime to the number of documents, so it visits all of them.
    let ids: Vec<String> = (0..count).map(|n| ids[n * 7_919 % count].clone()).collect();
    for (name, format) in FORMATS {
        let recorded = Recorded::of(format, &ids)?;
        let print = |work: &str, [ours, limit]: [Figures; 2], aim| {
            let limit = Some(("lsm-tree".to_owned(), limit, aim));
            options.print(&Row { work: format!("{work}, {name}"), unit: "documents", ours, limit });
        };
        let written = in_turns(
            options.rounds,
            async |_| write(folder()?.path(), format, count),
            async |_| Ok(rate(count, bare::write(folder()?.path(), &recorded.batches)?)),
        );
        print("bulk of 1,000 to the store", written.await?, 0.6);
        let (our_folder, bare_folder) = (folder()?, folder()?);
        write(our_folder.path(), format, count)?;
        bare::write(bare_folder.path(), &recorded.batches)?;
        let database = Lsm::database(our_folder.path(), Syncing::Synced);
        let layer = block_on(Layer::open(database.clone(), LayerOptions::default()))?;
        let documents = block_on(layer.database("bench"))?;
        let tree = bare::tree(bare_folder.path(), &SequenceNumberCounter::default())?;
        sleep(PAUSE).await;
        let repeat = async |_| {
            let begun = Instant::now();
            let found = bare::read(&tree, &recorded.reads)?;
            let took = begun.elapsed();
            ensure!(found == recorded.found, "{found} bytes instead of {}", recorded.found);
            Ok(rate(count, took))
        };
        let reads = in_turns(options.rounds, async |_| read(&documents, &ids), repeat).await?;
        print("read from the store", reads, 0.7);
        database.close()?;
    }
    Ok(())
}

/// The build of a view over HTTP, beside QuickJS.
async fn view(options: &Options) -> Result<()> {
    let (server, count) = (options.server().await?, options.some());
    let texts = bare::texts(count);
    for (format, _) in FORMATS {
        let mut side = Side::create(Target { address: server.address.clone(), format: Some(format) }).await?;
        side.fill(count).await?;
        sleep(PAUSE).await;
        let [ours, limit] = in_turns(
            options.rounds,
            async |round| side.build_view(round, count).await,
            async |round| bare::map(&map_function(round), &texts),
        )
        .await?;
        let work = format!("build of a view, {format}");
        options.print(&Row { work, unit: "documents", ours, limit: Some(("QuickJS".into(), limit, 0.7)) });
    }
    server.stop().await
}

/// A replication between two servers, beside the source's feed.
async fn replication(options: &Options) -> Result<()> {
    let (source, target, count) = (options.server().await?, options.server().await?, options.some());
    replications::fill(&mut Client::connect(&source.address).await?, count).await?;
    sleep(PAUSE).await;
    let one = async |way: &Way, round| -> Result<f64> {
        let took = replications::one(count, way, &source.address, &target.address, round).await?;
        Ok(rate(count, took))
    };
    let [ours, limit] = in_turns(
        options.rounds,
        async |round| one(&Way::Ours, round).await,
        async |round| one(&Way::Feed, round).await,
    )
    .await?;
    let limit = Some(("the feed with documents".into(), limit, 0.5));
    options.print(&Row { work: "replication".into(), unit: "documents", ours, limit });
    source.stop().await?;
    target.stop().await
}

/// A database as it grows, beside itself when it had a hundredth of its documents; and memory at rest.
async fn growth(options: &Options) -> Result<()> {
    let sizes = [options.documents / 100, options.documents];
    let mut new = Figures::default();
    // By layout and by size: writes, reads, bytes of memory.
    let mut figures: [[[Figures; 3]; 2]; 2] = Default::default();
    for round in 0..options.rounds {
        let server = options.server().await?;
        new.push(server.memory().context("the system does not tell a process's memory")? as f64);
        server.stop().await?;
        for turn in 0..FORMATS.len() {
            let at = (turn + round as usize) % FORMATS.len();
            let mut of_sizes = figures[at].iter_mut();
            let each = |step: large::Step| {
                let opened = step.opened.context("the system does not tell a process's memory")? as f64;
                let rates = [step.last_writes, step.reads, opened];
                of_sizes.next().into_iter().flatten().zip(rates).for_each(|(figures, rate)| figures.push(rate));
                Ok(())
            };
            large::grow(&options.binary, Lsm::NAME, FORMATS[at].0, sizes, each).await?;
        }
    }
    let memory = |work, ours| options.print(&Row { work, unit: "bytes", ours, limit: None });
    memory("memory of a new server".into(), new);
    let aims = [[0.8, 0.75], [0.95, 0.85]];
    for (((format, _), [before, after]), aims) in FORMATS.into_iter().zip(figures).zip(aims) {
        let ([writes_before, reads_before, _], [writes, reads, opened]) = (before, after);
        let beside = format!("at {} documents", sizes[0]);
        let print = |work, ours, limit, aim| {
            let work = format!("{work} at {}, {format}", sizes[1]);
            options.print(&Row { work, unit: "documents", ours, limit: Some((beside.clone(), limit, aim)) });
        };
        print("last 20,000 writes", writes, writes_before, aims[0]);
        print("GET, 16 clients,", reads, reads_before, aims[1]);
        memory(format!("memory with {} documents, {format}", sizes[1]), opened);
    }
    Ok(())
}

/// Queries of a large database, beside one with a tenth of its documents.
async fn find(options: &Options) -> Result<()> {
    let server = options.server().await?;
    let [few, many] = [options.documents / 10, options.documents].map(|count| count as usize);
    for (format, _) in FORMATS {
        let target = || Target { address: server.address.clone(), format: Some(format) };
        let (mut large, mut small) = (Side::create(target()).await?, Side::create(target()).await?);
        for (side, count) in [(&mut large, many), (&mut small, few)] {
            side.fill(count).await?;
            side.build_index(0, count).await?;
        }
        sleep(PAUSE).await;
        let [ours, limit] =
            in_turns(options.rounds, async |_| large.find_range(many).await, async |_| small.find_range(few).await)
                .await?;
        let work = format!("_find of a sorted range of 100 at {many}, {format}");
        let limit = Some((format!("at {few} documents"), limit, 0.8));
        options.print(&Row { work, unit: "queries", ours, limit });
    }
    server.stop().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a server of ours, which is another package's program.
    #[tokio::test]
    async fn the_bare_server_sends_the_answer_again() {
        let answer = bare::Answer::new([("etag", "\"1\""), ("server", "a")], "{}");
        let hyper = bare::Hyper::start(answer.clone()).unwrap();
        assert_eq!(bare::Answer::of(&hyper.address, "/any").await.unwrap(), answer);
        let paths = ["/one".to_owned(), "/two".to_owned()];
        assert!(work::read(&hyper.address, &paths, READERS, 40).await.unwrap() > 0.0);
    }

    /// The tree has what the reads found in memory.
    #[tokio::test]
    async fn the_store_stands_beside_the_same_rows() {
        for (_, format) in FORMATS {
            let ids: Vec<String> = edits(1, 1_500).unwrap().into_iter().map(|edit| edit.id).collect();
            let recorded = Recorded::of(format, &ids).unwrap();
            let bulks = recorded.batches.iter().filter(|batch| batch.row_count() > 1_000).count();
            assert_eq!(bulks, 2, "a bulk is written and synced at once");
            let (ours, other) = (folder().unwrap(), folder().unwrap());
            assert!(write(ours.path(), format, ids.len()).unwrap() > 0.0);
            bare::write(other.path(), &recorded.batches).unwrap();
            let tree = bare::tree(other.path(), &SequenceNumberCounter::default()).unwrap();
            assert_eq!(bare::read(&tree, &recorded.reads).unwrap(), recorded.found);
            assert!(recorded.found > 200 * ids.len(), "{}", recorded.found);
        }
    }

    #[test]
    fn quickjs_emits_a_row_for_each_document() {
        assert!(bare::map(&map_function(0), &bare::texts(30)).unwrap() > 0.0);
        assert!(bare::map("function (doc) {}", &bare::texts(3)).is_err());
    }

    #[tokio::test]
    async fn each_round_measures_both_sides_in_turns() {
        let order = parking_lot::Mutex::new(String::new());
        let side = |name, rate: f64| {
            let order = &order;
            async move |_| {
                order.lock().push(name);
                Ok(rate)
            }
        };
        let [ours, limit] = in_turns(2, side('o', 1.0), side('l', 2.0)).await.unwrap();
        assert_eq!((ours.median(), limit.median(), &**order.lock()), (1.0, 2.0, "ollo"));
    }
}
