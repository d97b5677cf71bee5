//! Data beside documents on a disk that loses power: local documents, security objects, configuration, the places of
//! consumers, and jobs.
//!
//! The harness compares the rows with those that clients were told of. Also, each opening continues the consumer and
//! the job in a copy in memory: each effect must have happened exactly once.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "support/mod.rs"]
mod support;

use std::path::Path;
use std::time::Duration;

use engine_lsm::LsmDatabase;
use engine_mem::MemDatabase;
use futures_executor::block_on;
use jobs::{Accepted, Hold, JobId, Jobs, NewJob, Registry, Server, ServerOptions};
use kv_api::{Database, DatabaseExt, MutationType, RangeRequest, Read, Result, Transaction, TransactionExt};
use model::{Change, Consumer, CreateOptions, Documents, Edits};
use powercut::dice::Dice;
use powercut::harness::cut;
use powercut::{Engine, Rows};
use support::{Workload, cuts, edit, has_layer, json, layer, record, rows, without_log_syncs};

struct Store;

impl Engine for Store {
    type Database = LsmDatabase;
    const NAME: &'static str = "bookkeeping on lsm";

    fn open(folder: &Path) -> Result<LsmDatabase> {
        let database = support::open(folder)?;
        if has_layer(&database)? {
            block_on(assert_work_goes_on(rows(&database)));
        }
        Ok(database)
    }

    fn close(database: &LsmDatabase) -> Result<()> {
        database.close()
    }
}

/// Number of batches of the job.
const BATCHES: u8 = 5;

/// Copies rows of the feed: an edit of another database, and a row that counts.
async fn copy<D: Database>(consumer: &Consumer<D>, copies: &Documents<D>) -> model::Result<usize> {
    consumer
        .consume(2, async |edits: Edits<D>, rows: Vec<Change>| {
            for row in &rows {
                let copy = format!("{}-{}", row.id, row.seq);
                edits.transaction().atomic_op(MutationType::Add, format!("copied/{copy}").into_bytes(), &[1][..]);
                edits.put(copies, edit(&copy, "{}"))?;
            }
            Ok::<_, model::Error>(())
        })
        .await
}

fn registry<D: Database>(database: &D) -> Jobs<D> {
    Jobs::new(database.clone(), Registry::new(&b"jobs/"[..]))
}

fn server<D: Database>(database: &D, id: u8) -> Server<D> {
    let options = ServerOptions { name: "server".into(), lease: Duration::from_secs(15), is_alone: true };
    Server::new(registry(database), [id; 16], options)
}

/// One batch of the job: its effect and its progress in one fenced transaction.
async fn batch<D: Database>(database: &D, hold: &Hold, number: u8) -> Result<(), jobs::Error> {
    database
        .run(|transaction, _| async move {
            hold.update(&transaction, &[number], 0).await?;
            transaction.atomic_op(MutationType::Add, vec![b'j', b'/', number], &[1][..]);
            Ok(())
        })
        .await
}

/// A time at which every job is due, even one whose run was lost.
const LATE: u64 = 1 << 40;

async fn accept<D: Database>(server: &mut Server<D>) -> Option<(Vec<u8>, Hold)> {
    match server.accept("kind", LATE).await.expect("an answer") {
        Accepted::Job(job, hold) => Some((job.progress.map(|one| one.bytes.to_vec()).unwrap_or_default(), hold)),
        Accepted::Nothing { .. } => None,
    }
}

async fn effects<D: Database>(database: &D, prefix: &[u8]) -> Vec<Vec<u8>> {
    let transaction = database.begin().expect("a transaction");
    let rows = transaction.get_all(RangeRequest::prefix(prefix), Read::Snapshot).await.expect("rows");
    assert!(rows.iter().all(|row| row.value[..] == [1]), "an effect happened twice: {rows:?}");
    rows.into_iter().map(|row| row.key[prefix.len()..].to_vec()).collect()
}

/// Continues the consumer and the job in a copy of the store, as another process would.
async fn assert_work_goes_on(rows: Rows) {
    let store = MemDatabase::new();
    let copied = store.run(|transaction, _| {
        rows.iter().for_each(|(key, value)| transaction.set(key, value));
        async { Ok::<_, kv_api::Error>(()) }
    });
    copied.await.expect("a copy");

    let layer = layer(&store).await;
    if let (Ok(documents), Ok(copies)) = (layer.database("documents").await, layer.database("copies").await) {
        let consumer = documents.feed().consumer("copier");
        while copy(&consumer, &copies).await.expect("it goes on") > 0 {}
        let seen = effects(&store, b"copied/").await;
        assert_eq!(
            copies.info().await.expect("information").doc_count,
            seen.len() as u64,
            "copies and rows that count"
        );
    }

    let mut server = server(&store, 2);
    server.take_over(Duration::ZERO, 1).await.expect("runs are taken over");
    if let Some((progress, hold)) = accept(&mut server).await {
        let done = progress.first().copied().unwrap_or(0);
        assert_eq!(effects(&store, b"j/").await, (1..=done).map(|one| vec![one]).collect::<Vec<_>>());
        for number in done + 1..=BATCHES {
            batch(&store, &hold, number).await.expect("a batch");
        }
        effects(&store, b"j/").await;
    }
}

fn run(workload: &mut Workload) {
    let database = workload.database.clone();
    let layer = workload.step(async { Ok::<_, model::Error>(layer(&database).await) });
    let documents = workload.step(layer.create_database("documents", CreateOptions::default()));
    let copies = workload.step(layer.create_database("copies", CreateOptions::default()));
    let consumer = documents.feed().consumer("copier");
    let (jobs, mut server) = (registry(&database), server(&database, 1));
    let id = JobId::new("kind", "job");
    workload.step(jobs.add(&id, &NewJob::default()));
    let (_, hold) = workload.step(async { accept(&mut server).await.ok_or("no job") });
    let mut local = None;
    for round in 0..BATCHES {
        let body = format!(r#"{{"round":{round},"text":"{}"}}"#, "x".repeat(1_000 * usize::from(round)));
        local = Some(workload.step(documents.put_local("_local/checkpoint", local, json(&body))));
        workload.step(documents.put_local(&format!("_local/{round}"), None, json("{}")));
        workload.step(documents.set_security(json(&format!(r#"{{"members":{{"roles":["r{round}"]}}}}"#))));
        let value = round.to_string();
        workload.step(layer.configure("couch_httpd_auth", "timeout", (round % 2 == 0).then_some(value.as_str())));
        for n in 0..3 {
            workload.step(documents.put(edit(&format!("d{round}{n}"), "{}")));
        }
        workload.step(copy(&consumer, &copies));
        workload.step(batch(&database, &hold, round + 1));
        if round > 0 {
            workload.step(documents.delete_local(&format!("_local/{}", round - 1)));
        }
    }
    workload.step(jobs.finish(&hold, Some(&[BATCHES]), 0));
}

#[test]
fn local_documents_settings_consumers_and_jobs_outlive_a_loss_of_power() {
    let history = record::<Store>(run);
    let seed = support::seed(11);
    cut::<Store>(&history, cuts(), &mut Dice::new(seed)).unwrap_or_else(|found| found.report(seed));

    // Without the log's syncs, the same cuts find that acknowledged changes are gone.
    cut::<Store>(&without_log_syncs(history), 2_000, &mut Dice::new(seed)).expect_err("a missing sync");
}

/// The check after each opening finds an effect without its place or progress, and the other way round.
#[test]
fn a_place_or_a_progress_without_its_effects_is_found() {
    let recorded = record::<Store>(run);
    let is_found = |state: &Rows, changed: &dyn Fn(&mut Rows)| {
        let mut state = state.clone();
        changed(&mut state);
        std::panic::catch_unwind(|| block_on(assert_work_goes_on(state))).is_err()
    };
    // The last batch of the job is done, and the run has not ended.
    let state = &recorded.states[recorded.states.len() - 3];
    assert!(!is_found(state, &|_| ()));
    for prefix in [&b"j/"[..], b"copied/"] {
        let effect = state.keys().rfind(|key| key.starts_with(prefix)).expect("an effect").clone();
        assert!(is_found(state, &|rows| drop(rows.remove(&effect))), "{effect:?} is lost");
        assert!(
            is_found(state, &|rows| drop(rows.insert(effect.clone(), vec![2].into()))),
            "{effect:?} happened twice"
        );
    }
}
