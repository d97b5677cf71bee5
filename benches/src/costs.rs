//! Where the bytes of a document go: its rows, the log, the flushes, the compactions, and the folder at rest.
//!
//! Nothing is timed. Each thread of the store writes for one purpose, and Linux counts the bytes that a thread writes,
//! so the store needs no counters for this.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use benches::engines::{Engine, Lsm, Syncing};
use benches::recording::Recording;
use benches::work::documents::{FORMATS, create, edits, store};
use benches::work::{disk, folder};
use clap::Args;
use engine_mem::MemStore;
use model::BodyFormat;
use occ::OccDatabase;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of documents, written a thousand at a time, each thousand synced
    #[arg(long, default_value_t = 200_000)]
    documents: usize,
}

/// Number of documents of a write.
const BULK: usize = 1_000;

/// Time without a written byte after which the flushes and compactions of the last write count as done.
const QUIET: Duration = Duration::from_secs(3);

/// Names of the threads that flush and compact. All others write only to the log.
const FLUSHER: &str = "occ-flusher";
const COMPACTOR: &str = "lsm-compactor";

pub(crate) fn run(options: Options) -> Result<()> {
    println!("bytes for a document of {} in bulks of {BULK}, on lsm", options.documents);
    let titles = ["JSON", "rows", "keys", "values", "log", "flushes", "compactions", "written", "at rest"];
    println!("{:<9}{}", "layout", titles.map(|title| format!("{title:>12}")).concat());
    for (name, format) in FORMATS {
        let figures = [rows(format)?.to_vec(), written(format, options.documents.max(BULK))?.to_vec()].concat();
        let figures: Vec<String> = figures.iter().map(|figure| format!("{figure:>12.1}")).collect();
        println!("{name:<9}{}", figures.concat());
    }
    Ok(())
}

/// The rows that a bulk writes for each document: bytes of JSON, number of rows, bytes of keys, bytes of values.
fn rows(format: BodyFormat) -> Result<[f64; 4]> {
    let (recording, log) = Recording::new(MemStore::default());
    let documents = create(OccDatabase::over(recording)?, format)?;
    // The first document of a database sets rows that all share.
    store(&documents, edits(1, 1)?)?;
    log.take_batches();
    let edits = edits(2, BULK)?;
    let mut sums = [edits.iter().map(|edit| edit.body.as_str().len()).sum(), 0, 0, 0];
    store(&documents, edits)?;
    for (key, value) in log.take_batches().iter().flat_map(|batch| batch.rows()) {
        sums[1] += 1;
        sums[2] += key.len();
        sums[3] += value.map_or(0, |value| value.len());
    }
    Ok(sums.map(|sum| sum as f64 / BULK as f64))
}

/// Bytes written for each document: to the log, by flushes, by compactions, all of these, and the folder at rest.
fn written(format: BodyFormat, count: usize) -> Result<[f64; 5]> {
    let folder = folder()?;
    let database = Lsm::database(folder.path(), Syncing::Synced);
    let documents = create(database.clone(), format)?;
    let before = by_threads()?;
    for seed in 0..count.div_ceil(BULK) as u64 {
        store(&documents, edits(seed, BULK)?)?;
    }
    let mut after = by_threads()?;
    loop {
        std::thread::sleep(QUIET);
        let now = by_threads()?;
        if std::mem::replace(&mut after, now.clone()) == now {
            break;
        }
    }
    let of = |thread: &str| after.get(thread).copied().unwrap_or(0);
    let (flushed, compacted) = (of(FLUSHER), of(COMPACTOR));
    let all: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
    database.close()?;
    let rest = disk(folder.path())?;
    let log = all - flushed - compacted;
    Ok([log, flushed, compacted, all, rest].map(|bytes| bytes as f64 / count as f64))
}

/// Bytes that the threads of this process wrote, by their names.
fn by_threads() -> Result<BTreeMap<String, u64>> {
    let mut written = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task").context("Linux counts what threads write")? {
        let thread = thread?.path();
        let read = |name: &str| std::fs::read_to_string(thread.join(name));
        // A thread may have ended.
        let (Ok(name), Ok(io)) = (read("comm"), read("io")) else { continue };
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar:")).context("no bytes of a thread")?;
        *written.entry(name.trim().to_owned()).or_default() += bytes.trim().parse::<u64>()?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_counted_where_it_is_written() {
        for (_, format) in FORMATS {
            let [json, rows, keys, values] = rows(format).unwrap();
            assert!(json > 150.0 && rows >= 4.0 && keys + values > json);
            let [log, _, _, all, rest] = written(format, BULK).unwrap();
            assert!(log > 0.0 && all >= log && rest > 0.0);
        }
    }
}
