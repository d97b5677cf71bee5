//! Keys and values: the cost of a transaction compared with its store, and the gain of concurrent commits.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_executor::block_on;
use futures_util::future::try_join_all;
use kv_api::{Database, Direction, Durability, RangeRequest, Read, Runner, Transaction};
use occ::store::{Batch, Snapshot, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Group, Side, Work, folder, rate, scaled};
use crate::engines::{Engine, Syncing};

/// Number of rows that exist before the work, at scale 1.
const STORED: usize = 50_000;

const VALUE_BYTES: usize = 100;

/// Number of rows in a scan.
const SCANNED: usize = 100;

/// Number of reads in one transaction or snapshot.
const READS: usize = 100;

type Row = (Bytes, Bytes);

type TransactionOf<E> = <<E as Engine>::Database as Database>::Transaction;

fn rows(seed: u64, count: usize) -> Vec<Row> {
    let mut random = StdRng::seed_from_u64(seed);
    let row = |random: &mut StdRng| {
        let mut key: [u8; 16] = random.random();
        // The system's keys begin with 0xff.
        key[0] &= 0x7f;
        let mut value = vec![0; VALUE_BYTES];
        random.fill(&mut value[..]);
        (Bytes::copy_from_slice(&key), Bytes::from(value))
    };
    (0..count).map(|_| row(&mut random)).collect()
}

/// The work of an engine.
pub fn works<E: Engine + 'static>() -> Vec<Work> {
    let mut works = Vec::new();
    for keys in [1, 10, 100] {
        works.push(pair::<E>(
            format!("commit of {keys}"),
            "rows",
            Box::new(move |scale| commit::<E>(keys, scale)),
            Box::new(move |scale| commit_raw::<E>(keys, scale)),
        ));
    }
    works.push(pair::<E>("get".into(), "rows", Box::new(get::<E>), Box::new(get_raw::<E>)));
    works.push(pair::<E>(format!("range of {SCANNED}"), "rows", Box::new(range::<E>), Box::new(range_raw::<E>)));
    works.push(Work {
        group: Group::KeysAndValues,
        name: "one counter, 16 threads".into(),
        engine: E::NAME,
        format: None,
        unit: "commits",
        ours: Box::new(|scale| count::<E>(16, true, scale)),
        baseline: Some(("a counter for each", Box::new(|scale| count::<E>(16, false, scale)))),
    });
    if E::durability(Syncing::Synced) == Durability::Disk {
        let mut push = |name: &str, ours: Side, baseline: (&'static str, Side)| {
            let (group, engine) = (Group::Synced, E::NAME);
            let (name, baseline) = (name.into(), Some(baseline));
            works.push(Work { group, name, engine, format: None, unit: "commits", ours, baseline });
        };
        let one = || -> Side { Box::new(|scale| synced::<E>(1, scale)) };
        push("64 writers", Box::new(|scale| synced::<E>(64, scale)), ("one writer", one()));
        push("64 writers, a thread each", Box::new(|scale| synced_by_threads::<E>(64, scale)), ("one writer", one()));
        push("one writer", one(), ("append and sync", Box::new(append_and_sync)));
        push("one writer on its store", one(), ("raw store", Box::new(synced_raw::<E>)));
    }
    works
}

fn pair<E: Engine>(name: String, unit: &'static str, ours: Side, raw: Side) -> Work {
    let (group, engine) = (Group::KeysAndValues, E::NAME);
    Work { group, name, engine, format: None, unit, ours, baseline: Some(("raw store", raw)) }
}

fn fill<D: Database>(database: &D, rows: &[Row]) -> Result<()> {
    for rows in rows.chunks(1_000) {
        commit_rows(database, rows)?;
    }
    Ok(())
}

fn commit_rows<D: Database>(database: &D, rows: &[Row]) -> Result<()> {
    let transaction = database.begin()?;
    for (key, value) in rows {
        transaction.set(key, value);
    }
    Ok(block_on(transaction.commit())?)
}

/// Batches for a raw store, with rising versions.
struct Batches(i64);

impl Batches {
    fn apply<S: Store>(&mut self, store: &S, rows: &[Row]) -> Result<()> {
        self.0 += 1;
        match store.apply(Batch::of_rows(self.0, rows.iter().cloned())) {
            Ok(()) => Ok(()),
            Err(error) => anyhow::bail!("{error:?}"),
        }
    }

    fn fill<S: Store>(&mut self, store: &S, rows: &[Row]) -> Result<()> {
        rows.chunks(1_000).try_for_each(|rows| self.apply(store, rows))
    }
}

fn commit<E: Engine>(keys: usize, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let database = E::database(folder.path(), Syncing::Unsynced);
    fill(&database, &rows(1, scaled(STORED, scale)))?;
    let rows = rows(2, scaled(20_000, scale).next_multiple_of(keys));
    let begun = Instant::now();
    for rows in rows.chunks(keys) {
        commit_rows(&database, rows)?;
    }
    Ok(rate(rows.len(), begun.elapsed()))
}

fn commit_raw<E: Engine>(keys: usize, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let store = E::store(folder.path(), Syncing::Unsynced);
    let mut batches = Batches(0);
    batches.fill(&store, &rows(1, scaled(STORED, scale)))?;
    let rows = rows(2, scaled(20_000, scale).next_multiple_of(keys));
    let begun = Instant::now();
    for rows in rows.chunks(keys) {
        batches.apply(&store, rows)?;
        // The engine does this at each commit. On sled, unsynced data must have left the process.
        store.sync()?;
    }
    Ok(rate(rows.len(), begun.elapsed()))
}

/// The stored keys in scattered order: the stride is coprime to their number.
fn scattered(rows: &[Row], count: usize) -> impl Iterator<Item = &Bytes> {
    (0..count).map(|n| &rows[n * 7_919 % rows.len()].0)
}

fn get<E: Engine>(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let database = E::database(folder.path(), Syncing::Unsynced);
    let rows = rows(1, scaled(STORED, scale));
    fill(&database, &rows)?;
    let count = scaled(100_000, scale);
    let begun = Instant::now();
    let mut transaction = database.begin()?;
    for (n, key) in scattered(&rows, count).enumerate() {
        if n % READS == 0 {
            transaction = database.begin()?;
        }
        black_box(block_on(transaction.get(key, Read::Serializable))?.context("it is there")?);
    }
    Ok(rate(count, begun.elapsed()))
}

fn get_raw<E: Engine>(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let store = E::store(folder.path(), Syncing::Unsynced);
    let rows = rows(1, scaled(STORED, scale));
    Batches(0).fill(&store, &rows)?;
    let count = scaled(100_000, scale);
    let begun = Instant::now();
    let mut snapshot = store.snapshot()?;
    for (n, key) in scattered(&rows, count).enumerate() {
        if n % READS == 0 {
            snapshot = store.snapshot()?;
        }
        black_box(snapshot.get(key)?.context("it is there")?);
    }
    Ok(rate(count, begun.elapsed()))
}

/// The end of user keys.
const END: &[u8] = b"\xff";

fn range<E: Engine>(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let database = E::database(folder.path(), Syncing::Unsynced);
    let rows = rows(1, scaled(STORED, scale));
    fill(&database, &rows)?;
    let scans = scaled(2_000, scale);
    let mut read = 0;
    let begun = Instant::now();
    for key in scattered(&rows, scans) {
        let mut request = RangeRequest::keys(key.clone(), END);
        request.limit = SCANNED;
        let batch = block_on(database.begin()?.get_range(&request, Read::Serializable))?;
        read += black_box(batch).rows.len();
    }
    Ok(rate(read, begun.elapsed()))
}

fn range_raw<E: Engine>(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let store = E::store(folder.path(), Syncing::Unsynced);
    let rows = rows(1, scaled(STORED, scale));
    Batches(0).fill(&store, &rows)?;
    let scans = scaled(2_000, scale);
    let mut read = 0;
    let begun = Instant::now();
    for key in scattered(&rows, scans) {
        let snapshot = store.snapshot()?;
        let rows: Vec<Row> =
            snapshot.range(key, END, Direction::Forward).take(SCANNED).collect::<kv_api::Result<_>>()?;
        read += black_box(rows).len();
    }
    Ok(rate(read, begun.elapsed()))
}

/// Runs `body` on this many threads at once. Returns the time from the first start to the last end.
fn threads(count: usize, body: impl Fn(usize) -> Result<()> + Sync) -> Result<Duration> {
    let barrier = Barrier::new(count + 1);
    thread::scope(|scope| {
        let (barrier, body) = (&barrier, &body);
        let workers: Vec<_> = (0..count)
            .map(|n| {
                scope.spawn(move || {
                    barrier.wait();
                    body(n)
                })
            })
            .collect();
        barrier.wait();
        let begun = Instant::now();
        for worker in workers {
            match worker.join() {
                Ok(done) => done?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(begun.elapsed())
    })
}

/// Increments counters by reading and writing them, from many threads: one for all, or one for each.
fn count<E: Engine>(writers: usize, shared: bool, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let database = E::database(folder.path(), Syncing::Unsynced);
    let each = scaled(500, scale);
    let took = threads(writers, |n| {
        let key = format!("counter {}", if shared { 0 } else { n });
        for _ in 0..each {
            block_on(Runner::new(&database).run(|transaction: TransactionOf<E>, _| {
                let key = key.clone();
                async move {
                    let value = transaction.get(key.as_bytes(), Read::Serializable).await?;
                    let counted = value.and_then(|value| value[..].try_into().ok()).map_or(0, u64::from_le_bytes);
                    transaction.set(key.as_bytes(), &(counted + 1).to_le_bytes());
                    Ok::<_, kv_api::Error>(())
                }
            }))?;
        }
        Ok(())
    })?;
    Ok(rate(writers * each, took))
}

/// Commits of one row, each synced before its acknowledgement, from tasks on one thread.
fn synced<E: Engine>(writers: usize, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let database = E::database(folder.path(), Syncing::Synced);
    let rows = rows_of_writers(writers, scale);
    let begun = Instant::now();
    block_on(try_join_all(rows.iter().map(|rows| write_each(&database, rows))))?;
    Ok(rate(rows.iter().map(Vec::len).sum(), begun.elapsed()))
}

/// The same from one thread each. Includes the system's thread switches.
fn synced_by_threads<E: Engine>(writers: usize, scale: f64) -> Result<f64> {
    let folder = folder()?;
    let database = E::database(folder.path(), Syncing::Synced);
    let rows = rows_of_writers(writers, scale);
    let took = threads(writers, |n| block_on(write_each(&database, &rows[n])))?;
    Ok(rate(rows.iter().map(Vec::len).sum(), took))
}

fn rows_of_writers(writers: usize, scale: f64) -> Vec<Vec<Row>> {
    let each = scaled(if writers == 1 { 1_000 } else { 500 }, scale);
    (0..writers).map(|n| rows(n as u64, each)).collect()
}

async fn write_each<D: Database>(database: &D, rows: &[Row]) -> Result<()> {
    for (key, value) in rows {
        let transaction = database.begin()?;
        transaction.set(key, value);
        transaction.commit().await?;
    }
    Ok(())
}

/// The same from one writer on the raw store.
fn synced_raw<E: Engine>(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let store = E::store(folder.path(), Syncing::Synced);
    let rows = rows(0, scaled(1_000, scale));
    let mut batches = Batches(0);
    let begun = Instant::now();
    for row in &rows {
        batches.apply(&store, std::slice::from_ref(row))?;
        store.sync()?;
    }
    Ok(rate(rows.len(), begun.elapsed()))
}

/// The speed of the disk: appends a row's bytes to a file, and syncs.
fn append_and_sync(scale: f64) -> Result<f64> {
    let folder = folder()?;
    let mut file = File::create(folder.path().join("log"))?;
    let rows = rows(1, scaled(1_000, scale));
    let begun = Instant::now();
    for (key, value) in &rows {
        file.write_all(key)?;
        file.write_all(value)?;
        file.sync_data()?;
    }
    Ok(rate(rows.len(), begun.elapsed()))
}
