//! Moving data to objects, back, and collecting beside them: interrupted at every single operation on documents
//! and objects, and repeated. The end is the same, and no object is left over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use chunks::objects::Objects;
use chunks::store::{DocumentStore, Edit, IdRange};
use chunks::{Chunk, ChunkStore, CollectOptions};
use serde_json::Value;

use crate::hybrid::{Clock, GRACE, configure, data_documents, large, store};
use crate::interruption::Ending;
use crate::objects::Dated;
use crate::support::{World, assert_read, ids};

const LOCATION: &str = "s3://vaults";
/// Maximum number of operations, above which the test is considered endless.
const MOST_OPERATIONS: i64 = 200;

/// A vault with its objects and its time.
struct Vault {
    documents: Arc<dyn DocumentStore>,
    objects: Arc<Dated>,
    clock: Clock,
    wanted: Vec<(String, Chunk)>,
}

impl Vault {
    async fn new(world: &World, name: &str) -> Vault {
        let clock = Clock::new();
        let documents = world.database(name).await;
        let vault = Vault { documents, objects: clock.dated(), clock, wanted: large("page", 7) };
        configure(&vault.chunks()).await;
        store(&vault.chunks(), "book.md", &vault.wanted).await;
        vault
    }

    fn chunks(&self) -> ChunkStore {
        self.clock.chunks(self.documents.clone(), self.objects.clone())
    }

    /// The same, failing after this number of operations.
    fn ending(&self, left: i64) -> ChunkStore {
        let left = Arc::new(AtomicI64::new(left));
        let objects: Arc<dyn Objects> = self.objects.clone();
        let objects: Ending<dyn Objects> = Ending { inner: objects, left: left.clone() };
        let documents: Ending<dyn DocumentStore> = Ending { inner: self.documents.clone(), left };
        self.clock.chunks(Arc::new(documents), Arc::new(objects))
    }

    /// The place of each chunk, and everything else except names and times.
    async fn content(&self) -> BTreeMap<String, Value> {
        let mut content = BTreeMap::new();
        let everything = IdRange { start: "\u{20}".into(), end: "\u{7f}".into(), limit: 10_000, bodies: true };
        for row in self.documents.list(&everything).await.unwrap().rows {
            let body = row.body.unwrap();
            let members = |name: &str| body.get(name).and_then(Value::as_object).into_iter().flat_map(|all| all.keys());
            if row.id.starts_with("dat:") {
                let place = if body["chunks"].is_string() { "an object" } else { "a document" };
                for id in members("chunks").chain(members("sizes")) {
                    *content.entry(format!("data of {id}")).or_insert(Value::from("")) = place.into();
                }
            } else if row.id.starts_with("idx:") {
                content.extend(members("chunks").map(|id| (format!("entry of {id}"), Value::Null)));
            } else if row.id == "chunks:settings" {
                content.insert(row.id, body["format"].clone());
            } else {
                content.insert(row.id, Value::Object(body));
            }
        }
        content
    }

    /// Checks that after two grace periods there is an object for each stub and no other.
    async fn check_objects(&self) {
        let everything = CollectOptions { unused_percent: 0, ..CollectOptions::default() };
        for _ in 0..5 {
            self.clock.pass(GRACE);
            let collected = self.chunks().collect(everything, |_| ()).await.unwrap();
            assert_eq!(collected.damaged, Vec::<String>::new());
        }
        let figures = self.chunks().object_figures().await.unwrap();
        assert_eq!(figures.objects, data_documents(&*self.documents).await.1.len() as u64);
        assert_read(&self.chunks().get(&ids(&self.wanted)).await.unwrap(), &self.wanted);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Offload,
    OffloadBack,
    Collect,
    MigrateBack,
}

impl Operation {
    async fn run(self, chunks: &ChunkStore) -> chunks::Result<()> {
        match self {
            Operation::Offload => drop(chunks.offload(LOCATION, false, |_, _| ()).await?),
            Operation::OffloadBack => drop(chunks.offload_back(None, false, |_, _| ()).await?),
            Operation::Collect => {
                drop(chunks.collect(CollectOptions { unused_percent: 0, ..CollectOptions::default() }, |_| ()).await?);
            }
            Operation::MigrateBack => drop(chunks.migrate_back(false, |_, _| ()).await?),
        }
        Ok(())
    }
}

async fn interrupt_everywhere(operation: Operation, prepare: impl AsyncFn(&Vault)) {
    let world = World::in_process().await;
    let whole = Vault::new(&world, "whole").await;
    prepare(&whole).await;
    for _ in 0..2 {
        operation.run(&whole.chunks()).await.unwrap();
    }
    let wanted = whole.content().await;
    for left in 0..MOST_OPERATIONS {
        let vault = Vault::new(&world, &format!("after-{left}")).await;
        prepare(&vault).await;
        let outcome = operation.run(&vault.ending(left)).await;
        assert_read(&vault.chunks().get(&ids(&vault.wanted)).await.unwrap(), &vault.wanted);
        for _ in 0..2 {
            operation.run(&vault.chunks()).await.unwrap();
        }
        assert_read(&vault.chunks().get(&ids(&vault.wanted)).await.unwrap(), &vault.wanted);
        let found = vault.content().await;
        if operation == Operation::Collect {
            // Copies are marked, and removed later. Nothing else differs.
            assert!(wanted.keys().all(|id| found.contains_key(id)), "interrupted after {left} operations");
        } else {
            assert_eq!(found, wanted, "interrupted after {left} operations");
        }
        vault.check_objects().await;
        if outcome.is_ok() {
            assert!(left > 5, "it was never interrupted");
            return;
        }
    }
    panic!("it does not come to an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offload_is_gone_on_with() {
    interrupt_everywhere(Operation::Offload, async |_| ()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offload_is_taken_back() {
    interrupt_everywhere(Operation::OffloadBack, async |vault| {
        vault.chunks().offload(LOCATION, false, |_, _| ()).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offloaded_vault_is_given_back_its_documents() {
    interrupt_everywhere(Operation::MigrateBack, async |vault| {
        vault.chunks().offload(LOCATION, false, |_, _| ()).await.unwrap();
    })
    .await;
}

/// Half-empty objects are rewritten, and one without a stub is removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_beside_objects_is_begun_again() {
    interrupt_everywhere(Operation::Collect, async |vault| {
        let chunks = vault.chunks();
        store(&chunks, "rubbish.md", &large("rubbish", 5)).await;
        chunks.offload(LOCATION, false, |_, _| ()).await.unwrap();
        let objects = vault.objects.list("").await.unwrap();
        let name = objects.iter().map(|object| &object.name).find(|name| name.contains("/-")).unwrap();
        let orphan = format!("{}.00000000deadbeef", name.split('.').next().unwrap());
        vault.objects.put(&orphan, bytes::Bytes::from_static(b"x")).await.unwrap();
        let leaves = chunks.store().leaves(&["rubbish.md".to_owned()], false).await.unwrap();
        chunks.store().write(vec![Edit::delete("rubbish.md", &leaves[0][0].rev)]).await.unwrap();
        vault.clock.pass(GRACE);
        chunks.collect(CollectOptions::default(), |_| ()).await.unwrap();
        vault.clock.pass(GRACE);
    })
    .await;
}
