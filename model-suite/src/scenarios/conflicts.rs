//! What conflicts at the store, and what does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kv_api::{Database, Read, Transaction};
use model::{ChangesRequest, ErrorKind, WriteMode};

use crate::stage::*;

pub(crate) async fn writers_of_different_documents_never_conflict(stage: Stage) {
    // Counted transactions of the store: one for each write means that none was done again.
    let counted = kv_api::Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    for n in 0..16 {
        documents.put(edit(&format!("doc-{n}"), "{}")).await.unwrap();
    }
    counted.take();
    let writers = (0..16).map(|writer| {
        let documents = documents.clone();
        async move {
            let id = format!("doc-{writer}");
            let mut last = get(&documents, &id).await.rev;
            for n in 0..20 {
                tokio::task::yield_now().await;
                last = documents.put(edit(&id, &format!(r#"{{"n":{n}}}"#)).over(last)).await.unwrap();
                let new = replicated(&format!("{id}-{n}"), "1-a", "{}");
                documents.write(vec![new], WriteMode::Replicated).await.unwrap().pop().unwrap().unwrap();
            }
        }
    });
    futures_util::future::join_all(writers).await;
    let commits: u64 = counted.take().iter().map(|counts| counts.commits).sum();
    assert_eq!(commits, 16 * 20 * 2, "each write took one commit");
    assert_eq!(feed(&documents, ChangesRequest::default()).await.len(), 16 + 16 * 20);
    assert_sound(&documents).await;
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
    // A writer that has read loses to a commit in between, and sees it when it looks again.
    let transaction = stage.engine().begin().unwrap();
    let range = kv_api::RangeRequest::prefix(&[0x15, 4, 0x14, 0x15, 4]).reverse().limit(1);
    transaction.get_range(&range, Read::Serializable).await.unwrap();
    let second = get(&documents, "a").await.rev;
    documents.put(edit("a", "{}").over(second)).await.unwrap();
    transaction.set(b"\xfe", b"");
    assert_eq!(transaction.commit().await.unwrap_err().code(), kv_api::error::NOT_COMMITTED);
    assert_sound(&documents).await;
}
