//! Commits with an unknown result (1021): no edit is lost, repeated or answered wrongly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::chaos::{Chaos, Fault, Rates};
use kv_api::{Counted, Database, Read, Transaction, TransactionExt};
use model::{
    Begun, ChangesRequest, CreateOptions, Documents, Edit, Environment, ErrorKind, Layer, LayerOptions,
    SystemEnvironment, WriteMode,
};

use crate::stage::*;

/// The database of `engine` behind faults.
async fn faulty<D: Database>(engine: &D, faults: &[Fault]) -> Documents<Chaos<D>> {
    let chaos = Chaos::scripted(engine.clone(), faults.iter().copied().map(Some));
    layer(chaos).await.database("db").await.unwrap()
}

async fn every_kind_of_write<D: Database>(engine: D, fault: Fault) {
    let sound = database(engine.clone()).await;
    // Twice in a row, then a conflict, then again.
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

    // Random faults with many concurrent writers, also in reads.
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

/// Writes as many transaction ids, whose version is 256.
async fn plant<D: Database>(engine: &D, number: u16) {
    let transaction = engine.begin().unwrap();
    for n in 0..number {
        transaction.set([&[0x15, 3, 0x16, 1, 0][..], &n.to_be_bytes()].concat(), b"");
    }
    transaction.commit().await.unwrap();
}

pub(crate) async fn whoever_writes_clears_ids_that_have_expired(stage: Stage) {
    let engine = stage.engine();
    let ids = async || {
        // The subspace of transaction ids: the integer 3.
        let range = kv_api::RangeRequest::prefix(&[0x15, 3]);
        engine.begin().unwrap().get_all(range, Read::Snapshot).await.unwrap().len()
    };
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    // Ids expire after ten minutes, a million versions each second. A cluster may be younger.
    let version = engine.begin().unwrap().get_read_version().await.unwrap();
    let expires = |number: usize| if version > 256 + 600_000_000 { number } else { 0 };
    plant(&engine, 1_500).await;
    counted.take();
    for n in 0..1_000 {
        documents.put_local("_local/a", Some(n), json("{}")).await.unwrap();
    }
    // One in a thousand writes clears.
    let cleared = expires(1_500);
    assert_eq!(ids().await, 1_001 + 1_500 - cleared);
    let counts = counted.take();
    let uncommitted = counts.iter().filter(|counts| counts.commits == 0).count();
    assert_eq!(uncommitted, 1, "in their own transactions, but for the sweep that finds nothing");
    let most = counts.iter().map(|counts| counts.kvs_read).max().unwrap();
    assert_eq!((counts.len(), most), (1_001, 1 + cleared as u64), "the instance and what is cleared, and a sweep");

    // A process that writes only once clears ids too, but only a limited number.
    let left = ids().await;
    plant(&engine, 3_000).await;
    stage.layer().await.database("db").await.unwrap().put(edit("a", "{}")).await.unwrap();
    let planted = 3_000 - (1_500 - cleared);
    assert_eq!(ids().await, left + planted + 1 - expires(2_000));
}

pub(crate) async fn a_clock_that_is_ahead_clears_no_id_that_decides(stage: Stage) {
    let documents = stage.documents().await;
    let layer = documents.layer();
    let token = layer.token();
    // The answer of this commit is lost.
    let transaction = stage.engine().begin().unwrap();
    let Begun::Edits(edits) = layer.edits(&transaction, &token).await.unwrap() else { panic!("nothing was written") };
    edits.put(&documents, edit("a", "{}")).unwrap();
    let revs = edits.finish().await.unwrap();
    transaction.commit().await.unwrap();
    // A server whose clock is years ahead writes meanwhile.
    let clock = Clock::default();
    clock.pass(4_000_000_000_000);
    let other = Layer::open(stage.engine(), clock.options()).await.unwrap();
    other.database("db").await.unwrap().put(edit("b", "{}")).await.unwrap();
    match layer.edits(&stage.engine().begin().unwrap(), &token).await.unwrap() {
        Begun::Landed(landed) => assert_eq!(landed, revs),
        Begun::Edits(_) => panic!("the transaction would find its own edit, and report a conflict"),
    }
}

/// A clock that advances by a number of milliseconds whenever it is read.
#[derive(Debug)]
pub(super) struct Ticking(AtomicU64, u64);

impl Ticking {
    pub(super) fn by(ms: u64) -> Arc<Self> {
        Arc::new(Ticking(AtomicU64::new(1_000_000), ms))
    }
}

impl Environment for Ticking {
    fn now_ms(&self) -> u64 {
        self.0.fetch_add(self.1, Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

/// The only database of `engine`, in a layer with such a clock.
async fn ticking<D: Database>(engine: D, by: u64) -> Documents<D> {
    let environment = Ticking::by(by);
    let layer = Layer::open(engine, LayerOptions { environment, ..LayerOptions::default() }).await.unwrap();
    layer.database("db").await.unwrap()
}

pub(crate) async fn an_id_that_may_have_expired_decides_nothing(stage: Stage) {
    let sound = stage.documents().await;
    let first = sound.put(edit("a", "{}")).await.unwrap();
    // The id is read in time after the first tick, and too late after the second: the deadline is a minute.
    for (by, is_written) in [(20_000, true), (40_000, false)] {
        let chaos = Chaos::scripted(stage.engine(), [Some(Fault::UnknownNotCommitted)]);
        let id = format!("doc-{by}");
        let written = ticking(chaos, by).await.put(edit(&id, "{}")).await;
        match written {
            Ok(_) => assert!(is_written, "{by}"),
            Err(error) => {
                assert!(!is_written, "{by}: {error}");
                assert_eq!(kv_api::RetryError::kv_error(&error).map(kv_api::Error::code), Some(1021));
            }
        }
    }
    assert_eq!(get(&sound, "a").await.rev, first);
    assert_sound(&sound).await;
}

pub(crate) async fn a_write_of_unknown_result_is_still_done_by_halves(stage: Stage) {
    let sound = stage.documents().await;
    // The first commit has an unknown result, and the store is too slow for a transaction with all documents.
    let slow = Chaos::slow(stage.engine(), 250_000);
    let chaos = Chaos::scripted(slow, [Some(Fault::UnknownNotCommitted)]);
    let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(60_000));
    let edits: Vec<Edit> = (0..12).map(|n| edit(&format!("doc-{n:02}"), &body)).collect();
    let results = ticking(chaos, 5_000).await.write(edits, WriteMode::Interactive).await.unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_sound(&sound).await;
}
