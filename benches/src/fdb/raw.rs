//! FoundationDB's crate alone, with the layer's reads and writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use benches::documents::Source;
use benches::recording::{RawRead, Recording};
use bytes::Bytes;
use engine_fdb::FdbDatabase;
use engine_fdb::foundationdb::options::StreamingMode;
use engine_fdb::foundationdb::{Database, FdbResult, RangeOption, Transaction};
use engine_mem::MemStore;
use futures_util::future::{Either, try_join_all};
use kv_api::Direction;
use model::{CreateOptions, Edit, GetOptions, JsonText, Layer, LayerOptions};
use occ::OccDatabase;
use occ::store::Batch;

use crate::http::work::split;

/// A document's transaction: its reads, then its writes.
struct Write {
    reads: Vec<RawRead>,
    batches: Vec<Batch>,
}

/// The crate's side.
pub(super) struct Raw {
    engine: FdbDatabase,
    /// Prefix of every key.
    prefix: Arc<[u8]>,
    /// The reads for each stored document.
    reads: Vec<Arc<Vec<RawRead>>>,
}

impl Raw {
    /// Stores the rows of `stored` documents, and records the reads for each.
    pub(super) async fn prepare(engine: FdbDatabase, prefix: String, stored: usize) -> Result<Raw> {
        let Recorded { database, writes, reads } = record(edits(1, stored)?).await?;
        let raw = Raw { engine, prefix: prefix.into_bytes().into(), reads };
        raw.write_all(vec![vec![Write { reads: Vec::new(), batches: database }]]).await?;
        raw.write_all(split(writes, 16)).await?;
        Ok(raw)
    }

    /// Writes the rows of new documents. Returns the duration.
    pub(super) async fn write(&self, seed: u64, clients: usize, count: usize) -> Result<Duration> {
        let writes = record(edits(seed, count)?).await?.writes;
        self.write_all(split(writes, clients)).await
    }

    async fn write_all(&self, loads: Vec<Vec<Write>>) -> Result<Duration> {
        let begun = Instant::now();
        let clients = loads.into_iter().map(|load| async move {
            for write in load {
                write_one(self.engine.native(), &self.prefix, &write).await?;
            }
            FdbResult::Ok(())
        });
        try_join_all(clients).await?;
        Ok(begun.elapsed())
    }

    /// Reads the rows of stored documents. Returns the duration.
    pub(super) async fn read(&self, clients: usize, documents: Vec<usize>) -> Result<Duration> {
        let begun = Instant::now();
        let clients = split(documents, clients).into_iter().map(|load| async move {
            for document in load {
                let transaction = self.engine.native().create_trx()?;
                let found = read_all(&transaction, &self.prefix, &self.reads[document], true).await?;
                std::hint::black_box(found);
            }
            FdbResult::Ok(())
        });
        try_join_all(clients).await?;
        Ok(begun.elapsed())
    }
}

/// Recorded operations of documents.
struct Recorded {
    /// Rows of their database.
    database: Vec<Batch>,
    /// The write of each.
    writes: Vec<Write>,
    /// The later read of each.
    reads: Vec<Arc<Vec<RawRead>>>,
}

async fn record(edits: Vec<Edit>) -> Result<Recorded> {
    let (store, log) = Recording::new(MemStore::default());
    let layer = Layer::open(OccDatabase::over(store)?, LayerOptions::default()).await?;
    let documents = layer.create_database("bench", CreateOptions::default()).await?;
    let database = log.take_batches();
    let ids: Vec<String> = edits.iter().map(|edit| edit.id.clone()).collect();
    let mut writes = Vec::with_capacity(edits.len());
    for edit in edits {
        log.take_reads();
        log.take_batches();
        documents.put(edit).await?;
        let batches = log.take_batches();
        ensure!(batches.len() == 1, "a document is written in one transaction");
        writes.push(Write { reads: log.take_reads(), batches });
    }
    forget_shared(&mut writes);
    let mut reads = Vec::with_capacity(ids.len());
    for id in ids {
        log.take_reads();
        documents.get(&id, &GetOptions::default()).await?;
        reads.push(Arc::new(log.take_reads()));
    }
    Ok(Recorded { database, writes, reads })
}

/// Removes the reads of keys that every document sets, the counters: on the engine in memory, `occ` reads them to apply
/// an atomic addition; on a cluster they are not read.
fn forget_shared(writes: &mut [Write]) {
    let set = |write: &Write| -> HashSet<Bytes> {
        let rows = write.batches.iter().flat_map(Batch::rows);
        rows.filter(|(_, value)| value.is_some()).map(|(key, _)| key.clone()).collect()
    };
    let [first, second, ..] = writes else { return };
    let shared: HashSet<Bytes> = set(first).intersection(&set(second)).cloned().collect();
    for write in writes {
        write.reads.retain(|read| !matches!(read, RawRead::Get(key) if shared.contains(key)));
    }
}

async fn write_one(database: &Database, prefix: &[u8], write: &Write) -> FdbResult<()> {
    let mut transaction = database.create_trx()?;
    loop {
        std::hint::black_box(read_all(&transaction, prefix, &write.reads, false).await?);
        for batch in &write.batches {
            for (begin, end) in batch.clears().iter() {
                transaction.clear_range(&[prefix, begin].concat(), &[prefix, end].concat());
            }
            for (key, value) in batch.rows() {
                match value {
                    Some(value) => transaction.set(&[prefix, key].concat(), value),
                    None => transaction.clear(&[prefix, key].concat()),
                }
            }
        }
        match transaction.commit().await {
            Ok(_) => return Ok(()),
            Err(failed) => transaction = failed.on_error().await?,
        }
    }
}

/// Issues all reads, then waits for them. Returns the bytes read.
async fn read_all(transaction: &Transaction, prefix: &[u8], reads: &[RawRead], snapshot: bool) -> FdbResult<usize> {
    let issued = reads.iter().map(|read| match read {
        RawRead::Get(key) => {
            let value = transaction.get(&[prefix, key].concat(), snapshot);
            Either::Left(async move { FdbResult::Ok(value.await?.map_or(0, |value| value.len())) })
        }
        RawRead::Range { begin, end, direction, asked } => {
            let option = RangeOption {
                limit: Some((*asked).max(1)),
                mode: StreamingMode::Exact,
                reverse: *direction == Direction::Reverse,
                ..RangeOption::from(([prefix, begin].concat(), [prefix, end].concat()))
            };
            let rows = transaction.get_range(&option, 1, snapshot);
            Either::Right(async move {
                let rows = rows.await?;
                FdbResult::Ok(rows.iter().map(|row| row.key().len() + row.value().len()).sum())
            })
        }
    });
    let issued: Vec<_> = issued.collect();
    Ok(try_join_all(issued).await?.into_iter().sum())
}

/// New documents.
pub(super) fn edits(seed: u64, count: usize) -> Result<Vec<Edit>> {
    let mut source = Source::seeded(seed);
    let edit = |source: &mut Source| Ok(Edit::new(source.id(), JsonText::parse(source.document().as_bytes())?));
    (0..count).map(|_| edit(&mut source)).collect()
}
