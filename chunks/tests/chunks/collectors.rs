//! Two collectors and a writer, in the order that once lost a chunk: seed 500615 of the plays with an old fork.

use std::sync::Arc;

use async_trait::async_trait;
use chunks::store::{Changes, DocumentStore, Edit, Figures, IdRange, Leaf, Page, StoreResult, Written};
use chunks::{ChunkStore, CollectOptions, Collected};
use tokio::sync::Notify;

use crate::hybrid::{Clock, GRACE, configure, store};
use crate::support::{World, assert_read, ids, texts};

/// A store that stands still before a data document is deleted, until it is told to go on.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn DocumentStore>,
    reached: Notify,
    go_on: Notify,
}

#[async_trait]
impl DocumentStore for Slow {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.inner.leaves(ids, with_ancestors).await
    }
    async fn live(&self, ids: &[String]) -> StoreResult<Vec<bool>> {
        self.inner.live(ids).await
    }
    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        if edits.iter().any(|edit| edit.deleted && edit.id.starts_with("dat:")) {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
        self.inner.write(edits).await
    }
    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.inner.graft(leaves).await
    }
    async fn list(&self, range: &IdRange) -> StoreResult<Page> {
        self.inner.list(range).await
    }
    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.inner.changes(since, limit).await
    }
    async fn figures(&self) -> StoreResult<Figures> {
        self.inner.figures().await
    }
    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.inner.takes(bytes).await
    }
}

async fn collect(chunks: &ChunkStore) -> Collected {
    chunks.collect(CollectOptions::default(), |_| ()).await.unwrap()
}

/// One collector has taken the entries of a data document away and is about to delete it; another one finds its
/// chunks in no index; a writer needs them.
async fn nobody_relies_on_what_is_about_to_be_removed(reindex: bool) {
    let world = World::in_process().await;
    let (documents, clock) = (world.database("db").await, Clock::new());
    let chunks = ChunkStore::with_environment(documents.clone(), Arc::new(clock.clone()));
    configure(&chunks).await;
    let some = texts("note", 5);
    chunks.put(some.clone()).await.unwrap();
    assert_eq!(collect(&chunks).await.condemned, 5);
    clock.pass(GRACE);

    let slow = Arc::new(Slow { inner: documents.clone(), reached: Notify::new(), go_on: Notify::new() });
    let slow_chunks = ChunkStore::with_environment(slow.clone(), Arc::new(clock.clone()));
    let first = tokio::spawn(async move { collect(&slow_chunks).await });
    slow.reached.notified().await;
    if reindex {
        chunks.reindex(|_, _| ()).await.unwrap();
    } else {
        collect(&chunks).await;
    }
    store(&chunks, "note.md", &some).await;
    slow.go_on.notify_one();
    assert_eq!(first.await.unwrap().removed, 5);

    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
    assert!(chunks.verify(|_| ()).await.unwrap().missing.is_empty());
    // What the second one marked goes away too.
    clock.pass(GRACE);
    collect(&chunks).await;
    let indexes = documents.list(&IdRange::prefix("idx:").with_bodies()).await.unwrap().rows;
    let index = indexes[0].body.as_ref().unwrap();
    assert_eq!((indexes.len(), index["chunks"].as_object().unwrap().len(), index.get("spare")), (1, 5, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_collector_takes_nothing_that_another_one_found() {
    nobody_relies_on_what_is_about_to_be_removed(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_collector_takes_nothing_that_a_rebuild_found() {
    nobody_relies_on_what_is_about_to_be_removed(true).await;
}
