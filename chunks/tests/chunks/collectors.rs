//! Two collections and a writer, in an order that once lost a chunk: seed 500615 of the simulation with an old fork.

use std::sync::Arc;

use async_trait::async_trait;
use chunks::store::{DocumentStore, Edit, IdRange, StoreResult};
use chunks::{ChunkStore, CollectOptions, Collected};
use tokio::sync::Notify;

use crate::hybrid::{Clock, GRACE, configure, large, store};
use crate::support::{World, assert_read, ids, texts};
use crate::watched::{BeforeWrite, Watched};

/// Pauses before a data document is deleted, until it is told to continue.
#[derive(Clone, Debug, Default)]
struct Slow {
    reached: Arc<Notify>,
    go_on: Arc<Notify>,
}

#[async_trait]
impl BeforeWrite for Slow {
    async fn before_write(&self, _: &dyn DocumentStore, edits: &[Edit]) -> StoreResult<()> {
        if edits.iter().any(|edit| edit.deleted && edit.id.starts_with("dat:")) {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
        Ok(())
    }
}

async fn collect(chunks: &ChunkStore) -> Collected {
    chunks.collect(CollectOptions::default(), |_| ()).await.unwrap()
}

/// One collection has removed the entries of a data document and is about to delete it; another one finds its
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

    let slow = Slow::default();
    let watched = Arc::new(Watched { inner: documents.clone(), watch: slow.clone() });
    let slow_chunks = ChunkStore::with_environment(watched, Arc::new(clock.clone()));
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
    // The chunks that the second collection marked are removed too.
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

/// Seed 500839 of the simulation with an old fork: a collection marked copies and then repacked them, and the marks
/// were lost with the old documents.
#[tokio::test(flavor = "multi_thread")]
async fn copies_in_no_index_are_gone_after_two_collections() {
    let world = World::in_process().await;
    let (documents, clock) = (world.database("db").await, Clock::new());
    let chunks = ChunkStore::with_environment(documents.clone(), Arc::new(clock.clone()));
    configure(&chunks).await;
    // Too large to be packed with others.
    let some = large("note", 2);
    store(&chunks, "note.md", &some).await;
    let data = documents.list(&IdRange::prefix("dat:").with_bodies()).await.unwrap().rows.remove(0);
    let mut body = data.body.unwrap();
    body["chunks"].as_object_mut().unwrap().remove(&some[1].0).unwrap();
    let copy =
        |number| Edit { id: format!("dat:-{number:03}-00c0ffee"), rev: None, deleted: false, body: body.clone() };
    let index = documents.list(&IdRange::prefix("idx:")).await.unwrap().rows.remove(0);
    let edits = (2..8).map(copy).chain([Edit::delete(&index.id, &index.rev)]).collect();
    assert!(documents.write(edits).await.unwrap().iter().all(Result::is_ok));
    for _ in 0..2 {
        collect(&chunks).await;
        assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
        clock.pass(GRACE);
    }
    let left = documents.list(&IdRange::prefix("dat:")).await.unwrap().rows;
    assert_eq!(left.len(), 1, "{left:?}");
}
