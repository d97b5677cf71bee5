//! Commits whose outcome is not known (1021): no edit is lost, doubled or answered wrongly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::chaos::{Chaos, Fault, Rates};
use kv_api::{Database, Read, Transaction, TransactionExt};
use model::{
    ChangesRequest, CreateOptions, Documents, Edit, Environment, ErrorKind, GetOptions, Layer, LayerOptions,
    SystemEnvironment, WriteMode,
};

use crate::stage::*;

/// The database of `engine`, seen through faults.
async fn faulty<D: Database>(engine: &D, faults: &[Fault]) -> Documents<Chaos<D>> {
    let chaos = Chaos::scripted(engine.clone(), faults.iter().copied().map(Some));
    layer(chaos).await.database("db").await.unwrap()
}

async fn every_kind_of_write<D: Database>(engine: D, fault: Fault) {
    let sound = database(engine.clone()).await;
    // Twice in a row, then refused, then again.
    let faults = [fault, fault, Fault::NotCommitted, fault];
    let first = faulty(&engine, &faults).await.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    assert_eq!(first.position(), 1);
    let second = faulty(&engine, &faults).await.put(edit("a", r#"{"n":2}"#).over(first)).await.unwrap();
    assert_eq!((second.position(), get(&sound, "a").await.rev), (2, second.clone()));

    let edits: Vec<Edit> = (0..20).map(|n| edit(&format!("doc-{n}"), "{}")).collect();
    let mut edits_with_a_conflict = edits.clone();
    edits_with_a_conflict.push(edit("a", "{}"));
    let results = faulty(&engine, &faults).await.write(edits_with_a_conflict, WriteMode::Interactive).await.unwrap();
    assert!(results[..20].iter().all(Result::is_ok), "no false conflict: {results:?}");
    assert_eq!(*results[20].as_ref().unwrap_err().kind(), ErrorKind::Conflict, "and a true one");

    merge(&faulty(&engine, &faults).await, replicated("a", "2-zz other", "{}")).await;
    let third = faulty(&engine, &faults).await.put(edit("a", "{}").over(second).deleting()).await.unwrap();
    assert_eq!(third.position(), 3);
    assert_eq!(faulty(&engine, &faults).await.put_local("_local/x", Some(4), json("{}")).await.unwrap(), 5);
    faulty(&engine, &faults).await.delete_local("_local/x").await.unwrap();
    faulty(&engine, &faults).await.set_revs_limit(7).await.unwrap();

    let changes = feed(&sound, ChangesRequest::default()).await;
    assert_eq!(changes.len(), 21, "each document has one change");
    let info = sound.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count, info.revs_limit), (21, 0, 7));
    assert_sound(&sound).await;
}

pub(crate) async fn a_write_of_unknown_result_that_was_committed_is_done_once(stage: Stage) {
    every_kind_of_write(stage.engine(), Fault::UnknownCommitted).await;
}

pub(crate) async fn a_write_of_unknown_result_that_was_not_committed_is_done_again(stage: Stage) {
    every_kind_of_write(stage.engine(), Fault::UnknownNotCommitted).await;

    // And at random, many writers at once, with reads that fail too.
    let seed = 7;
    let chaos = Chaos::new(stage.engine(), seed, Rates::retryable(0.1));
    let documents = layer(chaos).await.create_database("chaos", CreateOptions::default()).await.unwrap();
    let writers = (0..8).map(|writer| {
        let documents = documents.clone();
        async move {
            let mut last = None;
            for n in 0..10 {
                let mut edit = edit(&format!("doc-{writer}"), &format!(r#"{{"n":{n}}}"#));
                edit.rev = last;
                let made = documents.put(edit).await;
                last = Some(made.unwrap_or_else(|error| panic!("{error}; seed {seed}")));
            }
            last.unwrap().position()
        }
    });
    let positions = futures_util::future::join_all(writers).await;
    assert_eq!(positions, [10; 8], "seed {seed}");
    let calm = stage.layer().await.database("chaos").await.unwrap();
    assert_eq!(feed(&calm, ChangesRequest::default()).await.len(), 8, "seed {seed}");
    assert_sound(&calm).await;
}

pub(crate) async fn databases_are_created_and_dropped_once(stage: Stage) {
    stage.layer().await;
    for fault in [Fault::UnknownCommitted, Fault::UnknownNotCommitted] {
        let faulty = async || layer(Chaos::scripted(stage.engine(), [Some(fault), Some(fault)])).await;
        faulty().await.create_database("db", CreateOptions::default()).await.unwrap();
        let again = faulty().await.create_database("db", CreateOptions::default()).await.unwrap_err();
        assert_eq!(again.status(), 412);
        faulty().await.delete_database("db").await.unwrap();
        assert_eq!(faulty().await.delete_database("db").await.unwrap_err().status(), 404);
    }
}

/// Time as a test says it.
#[derive(Clone, Debug)]
struct Clock(Arc<AtomicU64>);

impl Environment for Clock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

pub(crate) async fn ids_are_swept_when_they_are_old(stage: Stage) {
    let clock = Clock(Arc::new(AtomicU64::new(1_000_000)));
    let options = LayerOptions { environment: Arc::new(clock.clone()), ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    documents.put(edit("a", "{}")).await.unwrap();
    let ids = async || {
        // The subspace of transaction ids: the integer 3.
        let range = kv_api::RangeRequest::prefix(&[0x15, 3]);
        stage.engine().begin().unwrap().get_all(range, Read::Snapshot).await.unwrap().len()
    };
    assert_eq!(ids().await, 2, "one for the database, one for the document");
    clock.0.fetch_add(500_000, Ordering::Relaxed);
    documents.put(edit("b", "{}")).await.unwrap();
    layer.sweep().await.unwrap();
    assert_eq!(ids().await, 3, "none is old enough");
    clock.0.fetch_add(200_000, Ordering::Relaxed);
    let report = layer.sweep().await.unwrap();
    assert_eq!((ids().await, report.transactions_before_ms), (1, 1_100_000), "the younger one stays");
    assert_eq!(documents.get("a", &GetOptions::default()).await.unwrap().rev.position(), 1);
    let _ = stage.engine().begin().unwrap().get_read_version().await;
}
