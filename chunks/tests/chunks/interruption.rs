//! Migration, migration back, collection and reindexing: interrupted at every single operation, and repeated. The
//! end is the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use chunks::objects::{Object, Objects};
use chunks::store::{Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, StoreResult, Written};
use chunks::{Chunk, ChunkStore, CollectOptions, Receipt, Settings, StoreError, StoreErrorKind};
use serde_json::{Value, json};

use crate::support::{World, assert_read, ids, set_grace, texts};

/// A store that fails after a number of operations. The last one is done, but its answer is lost. Documents and objects
/// may share the count.
#[derive(Debug)]
pub(crate) struct Ending<S: ?Sized> {
    pub(crate) inner: Arc<S>,
    pub(crate) left: Arc<AtomicI64>,
}

impl<S: ?Sized> Ending<S> {
    fn before(&self) -> StoreResult<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 { Err(self.gone()) } else { Ok(()) }
    }

    fn after(&self) -> StoreResult<()> {
        if self.left.load(Ordering::Relaxed) <= 0 { Err(self.gone()) } else { Ok(()) }
    }

    // Not transient, since it stands for the end of the process.
    fn gone(&self) -> StoreError {
        StoreError::new(StoreErrorKind::Refused, "interrupted")
    }
}

#[async_trait]
impl Objects for Ending<dyn Objects> {
    async fn put(&self, name: &str, content: Bytes) -> StoreResult<()> {
        self.before()?;
        self.inner.put(name, content).await?;
        self.after()
    }
    async fn get(&self, name: &str) -> StoreResult<Option<Bytes>> {
        self.before()?;
        self.inner.get(name).await
    }
    async fn list(&self, folder: &str) -> StoreResult<Vec<Object>> {
        self.before()?;
        self.inner.list(folder).await
    }
    async fn delete(&self, name: &str) -> StoreResult<()> {
        self.before()?;
        self.inner.delete(name).await?;
        self.after()
    }
}

#[async_trait]
impl DocumentStore for Ending<dyn DocumentStore> {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.before()?;
        self.inner.leaves(ids, with_ancestors).await
    }
    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.before()?;
        self.inner.local(id).await
    }
    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.before()?;
        self.inner.revs(ids).await
    }
    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        self.before()?;
        let written = self.inner.write(edits).await?;
        self.after()?;
        Ok(written)
    }
    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.before()?;
        self.inner.graft(leaves).await
    }
    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.before()?;
        self.inner.list(range).await
    }
    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.before()?;
        self.inner.changes(since, limit).await
    }
    async fn figures(&self) -> StoreResult<Figures> {
        self.before()?;
        self.inner.figures().await
    }
    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.inner.takes(bytes).await
    }
}

pub(crate) fn edit(id: &str, body: Value) -> Edit {
    Edit { id: id.into(), rev: None, deleted: false, body: body.as_object().unwrap().clone() }
}

/// A vault as LiveSync leaves it, with some documents that are not chunks.
pub(crate) async fn vault(world: &World, name: &str) -> (Arc<dyn DocumentStore>, Vec<(String, Chunk)>) {
    vault_of(world, name, 120).await
}

pub(crate) async fn vault_of(
    world: &World,
    name: &str,
    notes: usize,
) -> (Arc<dyn DocumentStore>, Vec<(String, Chunk)>) {
    let store = world.database(name).await;
    let mut chunks = texts("vault", notes);
    chunks.push(("h:+u3yj679xuo58".into(), Chunk::encrypted("%=Lx6Xqs/Zqx")));
    chunks.push(("h:binary".into(), Chunk::plain("iVBORw0KGgo=".repeat(3_000))));
    let mut edits: Vec<Edit> = chunks
        .iter()
        .map(|(id, chunk)| {
            let mut body = json!({"type": "leaf", "data": chunk.data});
            if chunk.encrypted {
                body["e_"] = json!(true);
            }
            edit(id, body)
        })
        .collect();
    edits.push(edit("note.md", json!({"type": "plain", "path": "note.md", "children": ids(&chunks), "eden": {}})));
    edits.push(edit("h:strange", json!({"type": "leaf", "data": "x", "more": 1})));
    assert!(store.write(edits).await.unwrap().iter().all(Result::is_ok));
    (store, chunks)
}

/// Every live document, without the names of data documents, which differ in each run.
pub(crate) async fn content(store: &dyn DocumentStore) -> BTreeMap<String, Value> {
    let mut content = BTreeMap::new();
    let everything = IdRange { start: "\u{20}".into(), end: "\u{7f}".into(), limit: 10_000, bodies: true };
    for row in store.list(&everything).await.unwrap().rows {
        let mut body = row.body.unwrap();
        body.remove("open");
        if row.id.starts_with("idx:") {
            let chunks = body["chunks"].as_object().unwrap();
            body = json!({"chunks": chunks.keys().collect::<Vec<_>>(), "spare": body.get("spare")})
                .as_object()
                .unwrap()
                .clone();
        }
        if row.id.starts_with("dat:") {
            for (id, value) in body["chunks"].as_object().unwrap() {
                content.insert(format!("data of {id}"), value.clone());
            }
            continue;
        }
        content.insert(row.id, Value::Object(body));
    }
    content
}

/// Maximum number of operations, above which the test is considered endless.
const MOST_OPERATIONS: i64 = 400;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Migrate,
    MigrateBack,
    Reindex,
    Collect,
}

impl Operation {
    pub(crate) async fn run(self, chunks: &ChunkStore) -> chunks::Result<()> {
        match self {
            Operation::Migrate => drop(chunks.migrate(false, |_, _| ()).await?),
            Operation::MigrateBack => drop(chunks.migrate_back(false, |_, _| ()).await?),
            Operation::Reindex => drop(chunks.reindex(|_, _| ()).await?),
            Operation::Collect => {
                drop(chunks.collect(CollectOptions { unused_percent: 0, ..CollectOptions::default() }, |_| ()).await?);
            }
        }
        Ok(())
    }
}

/// Runs an operation on copies of one state, interrupted after 0, 1, 2, … operations of the store, and then
/// completes it. Each copy must end like an uninterrupted one.
async fn interrupt_everywhere(
    operation: Operation,
    prepare: impl AsyncFn(&World, &str) -> (Arc<dyn DocumentStore>, Vec<(String, Chunk)>),
) {
    let world = World::in_process().await;
    let (store, wanted) = prepare(&world, "whole").await;
    let chunks = ChunkStore::new(store.clone());
    operation.run(&chunks).await.unwrap();
    operation.run(&chunks).await.unwrap();
    let whole = content(&*store).await;
    assert_read(&chunks.get(&ids(&wanted)).await.unwrap(), &wanted);
    for left in 0..MOST_OPERATIONS {
        let (store, _) = prepare(&world, &format!("after-{left}")).await;
        let ending = Ending { inner: store.clone(), left: Arc::new(AtomicI64::new(left)) };
        let outcome = operation.run(&ChunkStore::new(Arc::new(ending))).await;
        let chunks = ChunkStore::new(store.clone());
        assert_read(&chunks.get(&ids(&wanted)).await.unwrap(), &wanted);
        operation.run(&chunks).await.unwrap();
        operation.run(&chunks).await.unwrap();
        assert_read(&chunks.get(&ids(&wanted)).await.unwrap(), &wanted);
        let found = content(&*store).await;
        if operation == Operation::Collect {
            // Copies are marked, and removed later. Nothing else differs.
            assert!(whole.keys().all(|id| found.contains_key(id)), "interrupted after {left} operations");
        } else {
            assert_eq!(found, whole, "interrupted after {left} operations");
        }
        if outcome.is_ok() {
            assert!(left > 5, "it was never interrupted");
            return;
        }
    }
    panic!("it does not come to an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_is_gone_on_with() {
    interrupt_everywhere(Operation::Migrate, vault).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_is_taken_back() {
    interrupt_everywhere(Operation::MigrateBack, async |world, name| {
        let (store, chunks) = vault(world, name).await;
        let before = content(&*store).await;
        ChunkStore::new(store.clone()).migrate(false, |_, _| ()).await.unwrap();
        if name == "whole" {
            // Migrated and back, it is as before.
            let (copy, _) = vault(world, "copy").await;
            ChunkStore::new(copy.clone()).migrate(false, |_, _| ()).await.unwrap();
            ChunkStore::new(copy.clone()).migrate_back(false, |_, _| ()).await.unwrap();
            assert_eq!(content(&*copy).await, before);
        }
        (store, chunks)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_index_is_built_again() {
    interrupt_everywhere(Operation::Reindex, async |world, name| {
        let (store, chunks) = vault_of(world, name, 10).await;
        let aggregated = ChunkStore::new(store.clone());
        let settings = Settings { chunk_prefix_length: 1, ..Settings::default() };
        aggregated.configure(settings, 5_000).await.unwrap();
        aggregated.migrate(false, |_, _| ()).await.unwrap();
        // Most indexes are lost, one is damaged.
        let indexes = store.list(&IdRange::prefix("idx:")).await.unwrap().rows;
        let mut edits: Vec<Edit> = indexes.iter().skip(2).map(|row| Edit::delete(&row.id, &row.rev)).collect();
        edits.push(Edit { rev: Some(indexes[0].rev.clone()), ..edit(&indexes[0].id, json!({"chunks": 7})) });
        assert!(store.write(edits).await.unwrap().iter().all(Result::is_ok));
        (store, chunks)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_begun_again() {
    interrupt_everywhere(Operation::Collect, async |world, name| {
        let (store, chunks) = vault(world, name).await;
        let aggregated = ChunkStore::new(store.clone());
        aggregated.migrate(false, |_, _| ()).await.unwrap();
        // No grace period, and garbage that a collection has condemned.
        let rubbish = texts("rubbish", 60);
        let mut receipt = Receipt::default();
        for some in rubbish.chunks(20) {
            receipt.merge(aggregated.put(some.to_vec()).await.unwrap());
        }
        assert_eq!(receipt.new, 60);
        set_grace(&*store, 0).await;
        aggregated.collect(CollectOptions { unused_percent: 100, ..CollectOptions::default() }, |_| ()).await.unwrap();
        (store, chunks)
    })
    .await;
}
