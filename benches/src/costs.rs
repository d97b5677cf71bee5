//! Where the cost of a document lies: the bytes of its rows, of the log, the flushes, the compactions, and the folder at
//! rest; and the processor's time of the committing thread, the flushes, the compactions, and of reads at the end.
//!
//! Each thread of the store writes for one purpose, and Linux counts the bytes and the time of a thread, so the store
//! needs no counters for this. Bytes hold on other machines; times are a hint.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Sub;
use std::time::Duration;

use anyhow::{Context, Result};
use benches::engines::{Engine, Lsm, Syncing};
use benches::recording::Recording;
use benches::work::documents::{FORMATS, create, edits, store};
use benches::work::{disk, folder};
use clap::Args;
use engine_mem::MemStore;
use futures_executor::block_on;
use model::{AllDocsEntry, AllDocsRequest, BodyFormat, Documents, GetOptions};
use occ::OccDatabase;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of documents, written a thousand at a time, each thousand synced
    #[arg(long, default_value_t = 200_000)]
    documents: usize,
}

/// Number of documents of a write.
const BULK: usize = 1_000;

/// Time without a written byte after which the flushes and compactions of the last write count as done. Snapshots that
/// nobody reads are kept for six seconds, with their tables.
const QUIET: Duration = Duration::from_secs(8);

/// Names of the threads that flush and compact. All others write only to the log.
const FLUSHER: &str = "occ-flusher";
const COMPACTOR: &str = "lsm-compactor";

pub(crate) fn run(options: Options) -> Result<()> {
    println!("a document of {} in bulks of {BULK}, on lsm: bytes, and microseconds of processor", options.documents);
    let bytes = ["JSON", "rows", "keys", "values", "log", "flushes", "compactions", "written", "at rest"];
    let times = ["commit us", "flush us", "compact us", "GET us", "listing us"];
    let titles: Vec<String> = bytes.iter().chain(&times).map(|title| format!("{title:>12}")).collect();
    println!("{:<9}{}", "layout", titles.concat());
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

/// Bytes written for each document: to the log, by flushes, by compactions, all of these, and the folder at rest. Then
/// microseconds of the committing thread, of flushes, of compactions, of a GET, and of a document in a listing.
fn written(format: BodyFormat, count: usize) -> Result<Vec<f64>> {
    let folder = folder()?;
    let database = Lsm::database(folder.path(), Syncing::Synced);
    let documents = create(database.clone(), format)?;
    let first = by_threads()?;
    let bulks = count.div_ceil(BULK) as u64;
    for seed in 0..bulks {
        store(&documents, edits(seed, BULK)?)?;
    }
    let mut last = by_threads()?;
    loop {
        std::thread::sleep(QUIET);
        let now = by_threads()?;
        if sum(&std::mem::replace(&mut last, now)).bytes == sum(&last).bytes {
            break;
        }
    }
    let used = since(&first, &last);
    let of = |thread: &str| used.get(thread).copied().unwrap_or_default();
    let (flushed, compacted, all) = (of(FLUSHER), of(COMPACTOR), sum(&used));
    let (gets, listed) = (gets(&documents, bulks)?, listed(&documents, count)?);
    database.close()?;
    let log = all - flushed - compacted;
    let bytes = [log, flushed, compacted, all].map(|used| used.bytes as f64 / count as f64);
    let times = [log, flushed, compacted].map(|used| used.micros() / count as f64);
    Ok([&bytes[..], &[disk(folder.path())? as f64 / count as f64], &times, &[gets, listed]].concat())
}

/// Microseconds of a GET of documents of all bulks, as at most 20,000 GETs tell.
fn gets(documents: &Documents<<Lsm as Engine>::Database>, bulks: u64) -> Result<f64> {
    let each = (20_000 / bulks as usize).clamp(1, BULK);
    let ids: Vec<String> = (0..bulks)
        .map(|seed| Ok(edits(seed, BULK)?.into_iter().take(each).map(|edit| edit.id)))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    let first = by_threads()?;
    for id in &ids {
        black_box(block_on(documents.get(id, &GetOptions::default()))?.to_json());
    }
    Ok(sum(&since(&first, &by_threads()?)).micros() / ids.len() as f64)
}

/// Microseconds of a document in a listing with documents.
fn listed(documents: &Documents<<Lsm as Engine>::Database>, count: usize) -> Result<f64> {
    let (first, mut read) = (by_threads()?, 0);
    let mut next = Some(AllDocsRequest { include_docs: true, ..AllDocsRequest::default() });
    while let Some(request) = next.filter(|_| read < count.min(100_000)) {
        let batch = block_on(documents.all_docs(&request))?;
        for row in &batch.rows {
            if let AllDocsEntry::Live { doc: Some(document), .. } = &row.entry {
                black_box(document.to_json());
                read += 1;
            }
        }
        next = batch.next;
    }
    Ok(sum(&since(&first, &by_threads()?)).micros() / read as f64)
}

/// What a thread has used: bytes that it wrote, and nanoseconds of a processor.
#[derive(Clone, Copy, Default, PartialEq)]
struct Used {
    bytes: u64,
    time: u64,
}

impl Used {
    fn micros(self) -> f64 {
        self.time as f64 / 1e3
    }
}

impl Sub for Used {
    type Output = Used;

    fn sub(self, other: Used) -> Used {
        Used { bytes: self.bytes - other.bytes, time: self.time - other.time }
    }
}

fn sum(threads: &BTreeMap<String, Used>) -> Used {
    let add = |one: Used, other: &Used| Used { bytes: one.bytes + other.bytes, time: one.time + other.time };
    threads.values().fold(Used::default(), add)
}

/// What threads used between two looks. Those that ended meanwhile count as nothing.
fn since(first: &BTreeMap<String, Used>, last: &BTreeMap<String, Used>) -> BTreeMap<String, Used> {
    let used = |(name, last): (&String, &Used)| {
        let first = first.get(name).copied().unwrap_or_default();
        let (bytes, time) = (last.bytes.saturating_sub(first.bytes), last.time.saturating_sub(first.time));
        (name.clone(), Used { bytes, time })
    };
    last.iter().map(used).collect()
}

/// What the threads of this process have used, by their names.
fn by_threads() -> Result<BTreeMap<String, Used>> {
    let mut used = BTreeMap::<String, Used>::new();
    for thread in std::fs::read_dir("/proc/self/task").context("Linux counts what threads write")? {
        let thread = thread?.path();
        let read = |name: &str| std::fs::read_to_string(thread.join(name));
        // A thread may have ended.
        let (Ok(name), Ok(io), Ok(time)) = (read("comm"), read("io"), read("schedstat")) else { continue };
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar:")).context("no bytes of a thread")?;
        let of = used.entry(name.trim().to_owned()).or_default();
        of.bytes += bytes.trim().parse::<u64>()?;
        of.time += time.split_whitespace().next().context("no time of a thread")?.parse::<u64>()?;
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of the process end while this one measures.
    #[test]
    fn threads_that_end_take_nothing_from_the_others() {
        let used = |bytes| Used { bytes, time: bytes };
        let first =
            BTreeMap::from([("gone".to_owned(), used(9)), ("fewer".to_owned(), used(8)), ("on".to_owned(), used(1))]);
        let last =
            BTreeMap::from([("fewer".to_owned(), used(5)), ("on".to_owned(), used(4)), ("new".to_owned(), used(2))]);
        assert!(sum(&since(&first, &last)) == used(5));
    }

    #[test]
    fn what_is_written_is_counted_where_it_is_written() {
        for (_, format) in FORMATS {
            let [json, rows, keys, values] = rows(format).unwrap();
            assert!(json > 150.0 && rows >= 4.0 && keys + values > json);
            let written = written(format, BULK).unwrap();
            let [log, _, _, all, rest, commit, _, _, get, listed] = written[..] else { panic!("{written:?}") };
            assert!(log > 0.0 && all >= log && rest > 0.0 && commit > 0.0 && get > 0.0 && listed > 0.0);
        }
    }
}
