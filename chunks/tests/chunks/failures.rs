//! Transient failures: every operation has the same result as without failures, or a clear error at the limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chunks::store::{DocumentStore, Edit, PeerStore};
use chunks::{Chunk, ChunkStore, CollectOptions, Error, Receipt, Settings};
use engine_mem::MemDatabase;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use model::{CreateOptions, Layer, LayerOptions};
use occ::{Clock, OccBuilder};
use serde_json::{Value, json};

use crate::flaky::{Flaky, Hasty, Proxy};
use crate::interruption::{Operation, content, edit, vault_of};
use crate::support::{World, assert_read, ids, set_grace, texts};

const SEEDS: std::ops::Range<u64> = 0..6;

/// A vault in the state before an operation.
async fn prepare(world: &World, name: &str, operation: Operation) -> (Arc<dyn DocumentStore>, Vec<(String, Chunk)>) {
    let (store, chunks) = vault_of(world, name, 60).await;
    let aggregated = ChunkStore::with_environment(store.clone(), Hasty::new(1));
    let settings = Settings { chunk_prefix_length: 1, ..Settings::default() };
    aggregated.configure(settings, 1_000).await.unwrap();
    if operation == Operation::Migrate {
        return (store, chunks);
    }
    aggregated.migrate(false, |_, _| ()).await.unwrap();
    match operation {
        Operation::Reindex => {
            let indexes = store.list(&chunks::store::IdRange::prefix("idx:")).await.unwrap().rows;
            let edits = indexes.iter().skip(3).map(|row| Edit::delete(&row.id, &row.rev));
            assert!(store.write(edits.collect()).await.unwrap().iter().all(Result::is_ok));
        }
        Operation::Collect => {
            aggregated.put(texts("rubbish", 60)).await.unwrap();
            set_grace(&*store, 0).await;
            let nothing = CollectOptions { unused_percent: 100, ..CollectOptions::default() };
            aggregated.collect(nothing, |_| ()).await.unwrap();
        }
        Operation::Migrate | Operation::MigrateBack => {}
    }
    (store, chunks)
}

async fn ends_rightly(operation: Operation) {
    let world = World::in_process().await;
    let (store, _) = prepare(&world, "undisturbed", operation).await;
    operation.run(&ChunkStore::with_environment(store.clone(), Hasty::new(1))).await.unwrap();
    let wanted = content(&*store).await;
    let mut failures = 0;
    for seed in SEEDS {
        let (store, chunks) = prepare(&world, &format!("seed-{seed}"), operation).await;
        let flaky = Flaky::new(store.clone(), seed, 6);
        operation.run(&flaky.chunks(seed)).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        failures += flaky.failures.load(Ordering::Relaxed);
        let verified = flaky.chunks(seed + 1).verify(|_| ()).await.unwrap();
        assert_eq!((verified.files, verified.missing), (1, BTreeMap::new()), "seed {seed}");
        assert_read(&ChunkStore::new(store.clone()).get(&ids(&chunks)).await.unwrap(), &chunks);
        let found = content(&*store).await;
        if operation == Operation::Collect {
            // Chunks whose write was uncertain stay as copies, to be collected later.
            assert!(wanted.keys().all(|id| found.contains_key(id)), "seed {seed}");
            for _ in 0..2 {
                operation.run(&flaky.chunks(seed)).await.unwrap();
            }
            let found = content(&*store).await;
            assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>(), "seed {seed}");
        } else {
            assert_eq!(found, wanted, "seed {seed}");
        }
    }
    assert!(failures > 50, "only {failures} failures");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_ends_rightly() {
    ends_rightly(Operation::Migrate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_way_back_ends_rightly() {
    ends_rightly(Operation::MigrateBack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reindexing_ends_rightly() {
    ends_rightly(Operation::Reindex).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_ends_rightly() {
    ends_rightly(Operation::Collect).await;
}

/// Closed connections, busy servers, lost and truncated answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_hard_to_reach_is_worked_with() {
    let world = World::over_http().await;
    let server = world.address().unwrap();
    for seed in 0..3 {
        let name = format!("vault-{seed}");
        let (store, chunks) = vault_of(&world, &name, 200).await;
        let before = content(&*store).await;
        let proxy = Proxy::start(server, seed, 5).await;
        let far = PeerStore::http(&format!("http://{}/{name}", proxy.address), None).unwrap();
        let aggregated = ChunkStore::with_environment(Arc::new(far), Hasty::new(seed));
        let migrated = aggregated.migrate(false, |_, _| ()).await.unwrap();
        assert_eq!((migrated.chunks, migrated.left.len()), (202, 1), "seed {seed}: {:?}", migrated.left);
        let more = texts("more", 300);
        for some in more.chunks(50) {
            assert_eq!(aggregated.put(some.to_vec()).await.unwrap().new, 50);
        }
        let verified = aggregated.verify(|_| ()).await.unwrap();
        assert_eq!((verified.files, verified.chunks, verified.missing.len()), (1, 202, 0));
        let collected = aggregated.collect(CollectOptions::default(), |_| ()).await.unwrap();
        assert_eq!((collected.condemned, collected.removed), (300, 0));
        aggregated.reindex(|_, _| ()).await.unwrap();
        assert_read(&aggregated.get(&ids(&chunks)).await.unwrap(), &chunks);
        let back = aggregated.migrate_back(false, |_, _| ()).await.unwrap();
        assert_eq!((back.chunks, back.left.len()), (502, 0));
        let after = content(&*store).await;
        assert!(before.iter().all(|(id, body)| after.get(id) == Some(body)), "seed {seed}");
        assert!(proxy.failures.load(Ordering::Relaxed) > 5);
    }
}

#[tokio::test]
async fn a_store_that_stays_away_is_given_up() {
    let world = World::in_process().await;
    let store = world.database("db").await;
    ChunkStore::new(store.clone()).put(texts("note", 5)).await.unwrap();
    // The store has never answered.
    let gone = Flaky::new(store.clone(), 1, 0);
    let refused = gone.chunks(1).settings().await.unwrap_err().to_string();
    assert!(refused.starts_with("not done (given up after 5 attempts in"), "{refused}");
    assert_eq!(gone.operations.load(Ordering::Relaxed), 5);
    // No server listens there.
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = PeerStore::http(&format!("http://{nobody}/db"), None).unwrap();
    let environment = Hasty::new(1);
    let chunks = ChunkStore::with_environment(Arc::new(nobody), environment.clone());
    let refused = chunks.put(texts("note", 5)).await.unwrap_err();
    assert!(matches!(&refused, Error::Store(failure) if failure.is_transient()), "{refused}");
    assert!(refused.to_string().contains("given up after 5 attempts"), "{refused}");
    // Growing pauses, with a limit.
    let slept = environment.slept.load(Ordering::Relaxed);
    assert!((375..=750).contains(&slept), "{slept}");
}

/// A file whose write is uncertain is written once, or the writer is told that it is unknown.
#[tokio::test]
async fn a_file_in_doubt_is_settled() {
    let world = World::in_process().await;
    let mut given_up = 0;
    for seed in 0..40 {
        let store = world.database(&format!("db-{seed}")).await;
        let flaky = Flaky::new(store.clone(), seed, 3);
        let chunks = flaky.chunks(seed);
        let some = texts("note", 3);
        let Ok(receipt) = chunks.put(some.clone()).await else { continue };
        let body = json!({"type": "plain", "children": ids(&some)}).as_object().unwrap().clone();
        let mut rev: Option<String> = None;
        for number in 0..4 {
            let mut body = body.clone();
            body.insert("n".into(), number.into());
            match chunks.put_file("note.md", rev.as_deref(), body.clone(), &receipt).await {
                Ok(written) => {
                    let leaves = store.leaves(&["note.md".to_owned()], false).await.unwrap().remove(0);
                    assert_eq!((leaves.len(), &leaves[0].rev, &leaves[0].body), (1, &written, &body), "seed {seed}");
                    assert!(
                        written.starts_with(&format!("{}-", number + 1)),
                        "seed {seed}: {written} was written twice"
                    );
                    rev = Some(written);
                }
                Err(error) => {
                    assert!(matches!(error, Error::Store(_)), "seed {seed}: {error}");
                    given_up += 1;
                    break;
                }
            }
        }
    }
    assert!(given_up < 4, "{given_up} of 40 were given up");
}

/// Each reading of the clock advances it by a tenth of a second.
#[derive(Clone, Debug, Default)]
struct Ticking(Arc<AtomicU64>);

impl Ticking {
    fn tick(&self) -> u64 {
        self.0.fetch_add(100, Ordering::Relaxed)
    }
}

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.tick())
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

impl model::Environment for Ticking {
    fn now_ms(&self) -> u64 {
        1_795_000_000_000 + self.tick()
    }

    fn random(&self, bytes: &mut [u8]) {
        let tick = self.tick().to_le_bytes();
        bytes.iter_mut().zip(tick.into_iter().cycle()).for_each(|(byte, tick)| *byte = tick);
    }
}

/// On a slow machine, transactions of a hundred documents become too old before they end.
#[tokio::test]
async fn batches_are_cut_to_what_a_slow_store_does_in_a_transaction() {
    let clock = Ticking::default();
    let engine: MemDatabase = OccBuilder::new().clock(clock.clone()).seed(7).build();
    let options = LayerOptions { environment: Arc::new(clock), ..LayerOptions::default() };
    let layer = Layer::open(engine, options).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let store: Arc<dyn DocumentStore> = Arc::new(PeerStore::local(documents));
    let ids: Vec<String> = (0..300).map(|n| format!("doc-{n}")).collect();
    let edits = ids.iter().map(|id| edit(id, json!({"n": id})));
    let written = store.write(edits.collect()).await.unwrap();
    assert!(written.iter().all(Result::is_ok));
    let read = store.leaves(&ids, false).await.unwrap();
    assert!(read.iter().zip(&ids).all(|(leaves, id)| leaves[0].body["n"] == **id));
    assert_eq!(store.live(&ids).await.unwrap(), vec![true; 300]);
    let chunks = ChunkStore::with_environment(store, Hasty::new(1));
    let some = texts("note", 300);
    let receipt: Receipt = chunks.put(some.clone()).await.unwrap();
    assert_eq!(receipt.new, 300);
    let body = json!({"children": some.iter().map(|(id, _)| Value::from(id.as_str())).collect::<Vec<_>>()});
    chunks.put_file("note.md", None, body.as_object().unwrap().clone(), &receipt).await.unwrap();
    assert_eq!(chunks.verify(|_| ()).await.unwrap().missing.len(), 0);
}
