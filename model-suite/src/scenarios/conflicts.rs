//! Transactions that conflict at the store, and those that do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use kv_api::{AnyDatabase, Counted, Database, Read, Transaction};
use model::{ChangesRequest, Documents, ErrorKind, WriteMode};

use crate::stage::*;

/// The engine with a pause before every response, so that transactions of one thread overlap.
fn slow(stage: &Stage) -> Counted<Chaos<AnyDatabase>> {
    let rates = Rates { latency: 1.0, longest: Duration::from_millis(3), ..Rates::default() };
    Counted::new(Chaos::new(stage.engine(), 11, rates))
}

/// Number of commits since the last call: more than the number of writes if some conflicted.
fn commits(counted: &Counted<impl Database>) -> u64 {
    counted.take().iter().map(|counts| counts.commits).sum()
}

/// All kinds of edits of documents that no one else writes. Returns the number of transactions.
async fn live_and_die<D: Database>(documents: &Documents<D>, writer: usize) -> u64 {
    let (id, other) = (format!("doc-{writer}"), format!("doc-{writer}-too"));
    let first = documents.put(edit(&id, r#"{"n":1}"#)).await.unwrap();
    let second = documents.put(edit(&id, r#"{"n":2}"#).over(first)).await.unwrap();
    merge(documents, replicated(&id, "1-lost", r#"{"n":3}"#)).await;
    documents.put(edit(&id, r#"{"n":4}"#).over(rev("1-lost"))).await.unwrap();
    merge(documents, replicated(&other, "2-b a", "{}")).await;
    let batch = vec![edit(&id, "{}").over(second).deleting(), edit(&other, r#"{"n":5}"#).over(rev("2-b"))];
    for result in documents.write(batch, WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
    let last = documents.put(edit(&format!("doc-{writer}-gone"), "{}")).await.unwrap();
    documents.put(edit(&format!("doc-{writer}-gone"), "{}").over(last).deleting()).await.unwrap();
    documents.put_local(&format!("_local/{writer}"), None, json("{}")).await.unwrap();
    9
}

pub(crate) async fn writers_of_different_documents_never_conflict(stage: Stage) {
    const WRITERS: usize = 16;
    let counted = slow(&stage);
    let documents = database(counted.clone()).await;
    counted.take();
    let writers = (0..WRITERS).map(|writer| {
        let documents = documents.clone();
        async move { live_and_die(&documents, writer).await }
    });
    let writes: u64 = futures_util::future::join_all(writers).await.into_iter().sum();
    assert_eq!(commits(&counted), writes, "no write was refused and done again: no key is everyone's");
    // All of them add to the counters, and none reads them.
    let info = documents.info().await.unwrap();
    let (live, bytes) = (WRITERS as u64 * 2, WRITERS as u64 * 14);
    assert_eq!((info.doc_count, info.doc_del_count, info.sizes.external), (live, WRITERS as u64, bytes));
    assert_eq!(feed(&documents, ChangesRequest::default()).await.len(), 3 * WRITERS);

    // Writers of one document do conflict if they overlap like these.
    counted.take();
    let writers = (0..WRITERS).map(|n| {
        let documents = documents.clone();
        async move { merge(&documents, replicated("shared", &format!("1-{n}"), "{}")).await }
    });
    futures_util::future::join_all(writers).await;
    let again = commits(&counted) - WRITERS as u64;
    assert!(again > 0, "the writers did not overlap, so that nothing is proved above");
    assert_eq!(lost(&documents, "shared").await.len(), WRITERS - 1);
    assert_sound(&stage.layer().await.database("db").await.unwrap()).await;
}

pub(crate) async fn one_of_two_writers_of_a_document_wins(stage: Stage) {
    let documents = database(stage.engine()).await;
    let first = documents.put(edit("a", r#"{"n":0}"#)).await.unwrap();
    let (won, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let writers = (0..8).map(|n| {
        let (documents, first, won, lost) = (documents.clone(), first.clone(), won.clone(), lost.clone());
        tokio::spawn(async move {
            match documents.put(edit("a", &format!(r#"{{"writer":{n}}}"#)).over(first)).await {
                Ok(_) => won.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    assert_eq!(*error.kind(), ErrorKind::Conflict);
                    lost.fetch_add(1, Ordering::Relaxed)
                }
            }
        })
    });
    for writer in futures_util::future::join_all(writers).await {
        writer.unwrap();
    }
    assert_eq!((won.load(Ordering::Relaxed), lost.load(Ordering::Relaxed)), (1, 7));
    // A transaction loses to a commit after its read. Its retry sees that commit.
    let transaction = stage.engine().begin().unwrap();
    let range = kv_api::RangeRequest::prefix(&[0x15, 4, 0x14, 0x15, 4]).reverse().limit(1);
    transaction.get_range(&range, Read::Serializable).await.unwrap();
    let second = get(&documents, "a").await.rev;
    documents.put(edit("a", "{}").over(second)).await.unwrap();
    transaction.set(b"\xfe", b"");
    assert_eq!(transaction.commit().await.unwrap_err().code(), kv_api::error::NOT_COMMITTED);
    assert_sound(&documents).await;
}

pub(crate) async fn of_writers_that_create_a_document_one_wins(stage: Stage) {
    let counted = slow(&stage);
    let documents = database(counted.clone()).await;
    counted.take();
    let writers = (0..8).map(|n| {
        let documents = documents.clone();
        async move { documents.put(edit("a", &format!(r#"{{"writer":{n}}}"#))).await }
    });
    let results = futures_util::future::join_all(writers).await;
    assert!(commits(&counted) > 1, "the writers did not overlap, so that nothing is proved below");
    let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, 7));
    assert!(refused.into_iter().all(|result| *result.unwrap_err().kind() == ErrorKind::Conflict));
    let documents = stage.layer().await.database("db").await.unwrap();
    assert_eq!(Some(&get(&documents, "a").await.rev), made[0].as_ref().ok());
    assert_eq!(lost(&documents, "a").await, []);
    assert_sound(&documents).await;
}
