//! Documents through the model beside the same rows written and read raw, on each engine, in both
//! formats, on one thread, without syncing.
//!
//! `raw` is the store itself, the one under `occ`: the batches that the model's work came to, applied
//! again to a fresh store; the rows that its reads fetched, fetched again.

use std::hint::black_box;
use std::time::{Duration, Instant};

use benches::documents::Documents as Source;
#[cfg(feature = "redb")]
use benches::engines::Redb;
#[cfg(feature = "sled")]
use benches::engines::Sled;
use benches::engines::{Engine, Mem, Syncing};
use benches::recording::{RawRead, Recording};
use criterion::{Criterion, criterion_group, criterion_main};
use engine_mem::MemStore;
use futures_executor::block_on;
use kv_api::Database;
use model::{BodyFormat, CreateOptions, Documents, Edit, GetOptions, JsonText, Layer, LayerOptions, WriteMode};
use occ::OccDatabase;
use occ::store::{Batch, Store};
use tempfile::TempDir;

/// Documents that the reads choose from.
const STORED: usize = 10_000;

fn formats() -> [(&'static str, BodyFormat); 2] {
    [("exploded", BodyFormat::Exploded), ("packed", BodyFormat::Packed)]
}

fn edits(seed: u64, count: usize) -> Vec<Edit> {
    let mut source = Source::seeded(seed);
    let body = |source: &mut Source| JsonText::parse(source.document().as_bytes()).expect("the source writes JSON");
    (0..count).map(|_| Edit::new(source.id(), body(&mut source))).collect()
}

fn create<D: Database>(engine: D, format: BodyFormat) -> Documents<D> {
    block_on(async {
        let layer = Layer::open(engine, LayerOptions::default()).await.expect("a fresh store");
        layer.create_database("bench", CreateOptions { format: Some(format) }).await.expect("a fresh layer")
    })
}

/// What single-document inserts come to in a store.
fn recorded(format: BodyFormat, count: usize) -> Vec<Batch> {
    let (store, log) = Recording::new(MemStore::default());
    let documents = create(OccDatabase::over(store).expect("an empty map"), format);
    log.take_batches();
    for edit in edits(1, count) {
        block_on(documents.put(edit)).expect("a new document");
    }
    log.take_batches()
}

/// The stored documents as batches, and for each document what reading it comes to.
fn recorded_reads(format: BodyFormat) -> (Vec<Batch>, Vec<Vec<RawRead>>) {
    let (store, log) = Recording::new(MemStore::default());
    let documents = create(OccDatabase::over(store).expect("an empty map"), format);
    let stored = edits(2, STORED);
    let ids: Vec<String> = stored.iter().map(|edit| edit.id.clone()).collect();
    block_on(documents.write(stored, WriteMode::Interactive)).expect("new documents");
    let batches = log.take_batches();
    let reads = ids.iter().map(|id| {
        log.take_reads();
        block_on(documents.get(id, &GetOptions::default())).expect("it is there");
        log.take_reads()
    });
    (batches, reads.collect())
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("couch-layer-bench").tempdir().expect("a temporary folder")
}

fn insert<E: Engine>(criterion: &mut Criterion) {
    for (name, format) in formats() {
        let mut group = criterion.benchmark_group(format!("insert/{}/{name}", E::NAME));
        group.bench_function("model", |bencher| {
            bencher.iter_custom(|iterations| {
                let folder = folder();
                let documents = create(E::database(folder.path(), Syncing::Unsynced), format);
                let edits = edits(1, iterations as usize);
                let begun = Instant::now();
                for edit in edits {
                    block_on(documents.put(edit)).expect("a new document");
                }
                begun.elapsed()
            });
        });
        group.bench_function("raw", |bencher| {
            bencher.iter_custom(|iterations| {
                let folder = folder();
                let store = E::store(folder.path(), Syncing::Unsynced);
                let batches = recorded(format, iterations as usize);
                let begun = Instant::now();
                for batch in batches {
                    store.apply(batch).expect("a working store");
                }
                begun.elapsed()
            });
        });
    }
}

fn read<E: Engine>(criterion: &mut Criterion) {
    for (name, format) in formats() {
        let mut group = criterion.benchmark_group(format!("read/{}/{name}", E::NAME));
        let directory = folder();
        let documents = create(E::database(directory.path(), Syncing::Unsynced), format);
        let stored = edits(2, STORED);
        let ids: Vec<String> = stored.iter().map(|edit| edit.id.clone()).collect();
        block_on(documents.write(stored, WriteMode::Interactive)).expect("new documents");
        group.bench_function("model", |bencher| {
            let mut next = 0;
            bencher.iter(|| {
                next = (next + 7_919) % ids.len();
                let document = block_on(documents.get(&ids[next], &GetOptions::default())).expect("it is there");
                let mut text = Vec::with_capacity(512);
                document.write_json(&mut text);
                black_box(text)
            });
        });
        let raw = folder();
        let store = E::store(raw.path(), Syncing::Unsynced);
        let (batches, reads) = recorded_reads(format);
        for batch in batches {
            store.apply(batch).expect("a working store");
        }
        let values: Vec<serde_json::Value> = edits(2, STORED)
            .iter()
            .map(|edit| serde_json::from_slice(edit.body.as_bytes()).expect("a body is JSON"))
            .collect();
        group.bench_function("raw", |bencher| {
            let mut next = 0;
            bencher.iter(|| {
                next = (next + 7_919) % reads.len();
                let view = store.view().expect("a working store");
                let bytes: usize = reads[next].iter().map(|read| read.replay(&view).expect("a working store")).sum();
                black_box(bytes);
                black_box(serde_json::to_vec(&values[next]).expect("JSON"))
            });
        });
    }
}

fn all(criterion: &mut Criterion) {
    insert::<Mem>(criterion);
    #[cfg(feature = "redb")]
    insert::<Redb>(criterion);
    #[cfg(feature = "sled")]
    insert::<Sled>(criterion);
    read::<Mem>(criterion);
    #[cfg(feature = "redb")]
    read::<Redb>(criterion);
    #[cfg(feature = "sled")]
    read::<Sled>(criterion);
}

criterion_group! {
    name = documents;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = all
}
criterion_main!(documents);
