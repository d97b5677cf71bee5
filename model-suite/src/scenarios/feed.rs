//! Waiting for changes.

use std::pin::pin;
use std::time::Duration;

use conformance::chaos::Chaos;
use kv_api::Counted;
use model::{ErrorKind, NotFound};

use crate::stage::*;

/// Fails a test that waits forever.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("a wake-up")
}

pub(crate) async fn waiters_wake_once_for_each_change(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("before", "{}")).await.unwrap();
    let seen = documents.last_seq().await.unwrap();

    // A change after the seen sequence, but before the wait, ends the wait at once.
    let mut watcher = documents.watch_changes(model::Seq::ZERO);
    assert_eq!(soon(watcher.changed()).await.unwrap(), seen);

    let mut watcher = documents.watch_changes(seen);
    for n in 0..5 {
        let made = {
            let mut waiting = pin!(watcher.changed());
            for _ in 0..10 {
                assert!(poll_once(waiting.as_mut()).is_none(), "nothing changed");
                tokio::task::yield_now().await;
            }
            documents.put(edit(&format!("doc-{n}"), "{}")).await.unwrap();
            let made = documents.last_seq().await.unwrap();
            assert_eq!(soon(waiting).await.unwrap(), made);
            made
        };
        watcher.saw(made);
    }
    // A change between two waits is not lost. A local document is not a change.
    documents.put(edit("between", "{}")).await.unwrap();
    let last = documents.last_seq().await.unwrap();
    assert_eq!(soon(watcher.changed()).await.unwrap(), last);
    documents.put_local("_local/x", None, json("{}")).await.unwrap();
    let mut waiting = pin!(watcher.changed());
    for _ in 0..10 {
        assert!(poll_once(waiting.as_mut()).is_none());
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn dropping_the_database_ends_all_waiting(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", Default::default()).await.unwrap();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let mut watcher = documents.watch_changes(model::Seq::ZERO);
            tokio::spawn(async move { watcher.changed().await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    layer.delete_database("db").await.unwrap();
    for waiter in waiters {
        let error = soon(waiter).await.unwrap().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NotFound(NotFound::Database));
    }
}

pub(crate) async fn waiters_share_one_watch(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    counted.take();
    // More than the number of watches that the store allows.
    let mut waiters = Vec::new();
    for _ in 0..20_000 {
        let mut watcher = documents.watch_changes(model::Seq::ZERO);
        waiters.push(tokio::spawn(async move { watcher.changed().await }));
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(counted.take().len(), 1, "one transaction watches for all");
    // Half of them stop waiting, including the one that drives the watch.
    for waiter in waiters.drain(..10_000) {
        waiter.abort();
    }
    documents.put(edit("a", "{}")).await.unwrap();
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
    // On a remote store the watch may be set after the write.
    let transactions = counted.take().len();
    assert!((1..=2).contains(&transactions), "one wrote, one looked what had changed: {transactions}");
}

pub(crate) async fn waiters_poll_a_store_without_watches(stage: Stage) {
    let documents = database(Chaos::without_watches(stage.engine())).await;
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mut watcher = documents.watch_changes(model::Seq::ZERO);
            tokio::spawn(async move { watcher.changed().await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    // Another server writes.
    let other = stage.layer().await.database("db").await.unwrap();
    other.put(edit("a", "{}")).await.unwrap();
    let last = other.last_seq().await.unwrap();
    for waiter in waiters {
        assert_eq!(soon(waiter).await.unwrap().unwrap(), last);
    }
    let mut watcher = documents.watch_changes(last);
    let mut waiting = pin!(watcher.changed());
    assert!(poll_once(waiting.as_mut()).is_none());
    stage.layer().await.delete_database("db").await.unwrap();
    let error = soon(waiting).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotFound(NotFound::Database));
}
