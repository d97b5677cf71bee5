//! Backups and restores of one database as it grows, beside its feed and its writes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::backup::{Folder, Protection, Repository, RestoreOptions};
use anyhow::{Result, bail, ensure};
use benches::documents::Source;
use benches::engines::{Engine, Syncing};
use benches::figures::Figures;
use benches::work::{disk, folder, rate};
use clap::Args;
use kv_api::Database;
use model::{
    BodyFormat, ChangesRequest, CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions, SystemEnvironment,
    WriteMode,
};

/// Number of documents written together.
const BULK: usize = 1_000;

/// Number of rows of the feed in a page.
const PAGE: usize = 500;

/// With so many documents there is a pause between writes and reads.
const WITH_PAUSE: usize = 10_000;
const PAUSE: Duration = Duration::from_secs(5);

/// Number of documents that are written before the second run.
const ADDED: usize = 1_000;

#[derive(Args)]
pub(crate) struct Options {
    /// The engine: lsm or sled
    #[arg(long, default_value = "lsm")]
    engine: String,
    /// Number of documents
    #[arg(long, default_value_t = 1_000_000)]
    documents: usize,
    /// Number of rounds, each with new stores: the figures are medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Do not encrypt
    #[arg(long)]
    no_encryption: bool,
}

pub(crate) async fn run(options: Options) -> Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(match options.engine.as_str() {
            #[cfg(feature = "lsm")]
            "lsm" => measure::<benches::engines::Lsm>(&options).await?,
            #[cfg(feature = "sled")]
            "sled" => measure::<benches::engines::Sled>(&options).await?,
            other => bail!("there is no engine {other} in this build"),
        });
    }
    println!("{:<26} {:>12}", "documents", options.documents);
    for (name, figure) in ROWS {
        let mut figures = Figures::default();
        rounds.iter().map(figure).for_each(|one| figures.push(one));
        println!("{name:<26} {:>12.2}   spread {:.2}", figures.median(), figures.spread());
    }
    Ok(())
}

/// The figures of a round.
struct Round {
    /// Documents a second: written a thousand at a time, read by the feed without and with bodies, copied, restored.
    written: f64,
    feed: f64,
    feed_with_bodies: f64,
    copied: f64,
    restored: f64,
    /// Times of the second run, with 1,000 more documents, and of reading all that was written.
    second: Duration,
    verified: Duration,
    /// Bytes of the store and of the backup.
    store: u64,
    backup: u64,
}

/// A line of the table, and its figure in a round.
type Row = (&'static str, fn(&Round) -> f64);

const ROWS: [Row; 11] = [
    ("writes, a second", |round| round.written),
    ("feed, a second", |round| round.feed),
    ("feed with bodies, a second", |round| round.feed_with_bodies),
    ("first run, a second", |round| round.copied),
    ("  of the feed with bodies", |round| round.copied / round.feed_with_bodies),
    ("second run, seconds", |round| round.second.as_secs_f64()),
    ("restore, a second", |round| round.restored),
    ("  of the writes", |round| round.restored / round.written),
    ("verify, seconds", |round| round.verified.as_secs_f64()),
    ("store, MB", |round| round.store as f64 / 1e6),
    ("backup, MB", |round| round.backup as f64 / 1e6),
];

async fn open(place: &Path, protection: &Protection) -> Result<Repository> {
    Ok(Repository::open_or_create(Arc::new(Folder::new(place)), protection, Arc::new(SystemEnvironment)).await?)
}

async fn write<D: Database>(documents: &Documents<D>, edits: Vec<Edit>) -> Result<Duration> {
    let begun = Instant::now();
    for written in documents.write(edits, WriteMode::Interactive).await? {
        written?;
    }
    Ok(begun.elapsed())
}

/// Reads the feed to its end.
async fn read_feed<D: Database>(documents: &Documents<D>, include_docs: bool, expected: usize) -> Result<Duration> {
    let begun = Instant::now();
    let mut request = ChangesRequest { limit: Some(PAGE), include_docs, ..ChangesRequest::default() };
    let mut found = 0;
    loop {
        let page = documents.changes(&request).await?;
        found += page.rows.len();
        if page.rows.is_empty() {
            break;
        }
        request.since = page.last_seq.into();
    }
    ensure!(found == expected, "the feed has {found} documents");
    Ok(begun.elapsed())
}

async fn measure<E: Engine>(options: &Options) -> Result<Round> {
    let count = options.documents;
    let folder = folder()?;
    let (source, place, target) = (folder.path().join("source"), folder.path().join("place"), folder.path().join("to"));
    let protection = match options.no_encryption {
        true => Protection::None,
        false => Protection::Passphrase(b"correct horse".to_vec()),
    };
    // As the commands.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let layer_options = LayerOptions { default_format: BodyFormat::Packed, threads, ..LayerOptions::default() };
    let engine = E::database(&source, Syncing::Synced);
    let layer = Layer::open(engine.clone(), layer_options.clone()).await?;
    let documents = layer.create_database("bench", CreateOptions::default()).await?;
    let mut random = Source::seeded(1);
    let mut edit = || -> Result<Edit> { Ok(Edit::new(random.id(), JsonText::parse(random.document().as_bytes())?)) };
    let mut took = Duration::ZERO;
    for first in (0..count).step_by(BULK) {
        let edits = (first..count.min(first + BULK)).map(|_| edit()).collect::<Result<_>>()?;
        took += write(&documents, edits).await?;
    }
    let written = rate(count, took);
    // What the writes left to be merged is not counted against the reads.
    if count >= WITH_PAUSE {
        tokio::time::sleep(PAUSE).await;
    }
    let feed = rate(count, read_feed(&documents, false, count).await?);
    let feed_with_bodies = rate(count, read_feed(&documents, true, count).await?);

    let mut quiet = |_: &str, _: u64| {};
    let repository = open(&place, &protection).await?;
    let begun = Instant::now();
    let report = repository.back_up(engine.clone(), &layer_options, &[], &mut quiet).await?;
    let copied = rate(count, begun.elapsed());
    ensure!(report.failed.is_empty() && report.whole == 1, "{report:?}");

    let added = (0..ADDED).map(|_| edit()).collect::<Result<_>>()?;
    write(&documents, added).await?;
    let begun = Instant::now();
    let again = open(&place, &protection).await?;
    let report = again.back_up(engine.clone(), &layer_options, &[], &mut quiet).await?;
    let second = begun.elapsed();
    ensure!(report.failed.is_empty() && report.whole == 0, "{report:?}");

    let begun = Instant::now();
    let verified = repository.verify(&mut |_| {}).await?;
    let verified_in = begun.elapsed();
    ensure!(verified.problems.is_empty() && verified.runs == 2, "{:?}", verified.problems);
    let store = disk(&source)?;
    drop((documents, layer, engine));

    let restoring = E::database(&target, Syncing::Synced);
    let begun = Instant::now();
    let done = repository.restore(restoring, &layer_options, &RestoreOptions::default(), &mut quiet).await?;
    let restored = rate(count + ADDED, begun.elapsed());
    ensure!(done.databases == [("bench".to_owned(), (count + ADDED) as u64)], "{done:?}");
    let backup = disk(&place)?;
    Ok(Round { written, feed, feed_with_bodies, copied, restored, second, verified: verified_in, store, backup })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "lsm")]
    #[tokio::test]
    async fn each_step_is_measured() {
        let options = Options { engine: "lsm".to_owned(), documents: 1_200, rounds: 1, no_encryption: true };
        let round = measure::<benches::engines::Lsm>(&options).await.unwrap();
        assert!(ROWS.iter().all(|(name, figure)| figure(&round) > 0.0 || panic!("{name}")));
    }
}
