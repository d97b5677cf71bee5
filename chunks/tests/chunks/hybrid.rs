//! Vaults whose sealed data documents are in objects: in memory, in a directory, and on an S3 server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chunks::objects::{Bucket, Connect, Connector, Objects};
use chunks::store::{DocumentStore, Edit, IdRange};
use chunks::{Chunk, ChunkStore, CollectOptions, Error, Settings, TimedEnvironment};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::objects::{Always, Dated, S3};
use crate::support::{World, assert_read, ids, replicate};

crate::scenarios!(
    a_vault_goes_to_a_bucket_and_comes_back,
    a_vault_goes_to_a_directory_and_comes_back,
    a_vault_goes_to_memory_and_comes_back,
    replicas_share_a_bucket,
);

pub(crate) const GRACE: u64 = chunks::LEAST_GRACE_MS;

/// Chunks, three of which fill a data document.
pub(crate) fn large(prefix: &str, count: usize) -> Vec<(String, Chunk)> {
    (0..count)
        .map(|number| {
            let text = format!("{prefix} {number}: a page of a book\n").repeat(600);
            (chunks::chunk_id(&text), Chunk::plain(text))
        })
        .collect()
}

/// Stores chunks, and a file that refers to them.
pub(crate) async fn store(chunks: &ChunkStore, file: &str, some: &[(String, Chunk)]) {
    let receipt = chunks.put(some.to_vec()).await.unwrap();
    let body = json!({"type": "plain", "path": file, "children": ids(some)});
    chunks.put_file(file, None, body.as_object().unwrap().clone(), &receipt).await.unwrap();
}

pub(crate) async fn configure(chunks: &ChunkStore) {
    let settings = Settings { chunk_prefix_length: 0, data_doc_size_limit: 64_000, grace_ms: GRACE };
    chunks.configure(settings, 100).await.unwrap();
}

async fn delete(store: &dyn DocumentStore, id: &str) {
    let leaves = store.leaves(&[id.to_owned()], false).await.unwrap();
    store.write(vec![Edit::delete(id, &leaves[0][0].rev)]).await.unwrap()[0].clone().unwrap();
}

/// The live data documents, and the stubs among them.
pub(crate) async fn data_documents(store: &dyn DocumentStore) -> (Vec<String>, Vec<String>) {
    let rows = store.list(&IdRange::prefix("dat:").with_bodies()).await.unwrap().rows;
    let stubs = rows.iter().filter(|row| row.body.as_ref().unwrap()["chunks"].is_string());
    let stubs = stubs.map(|row| row.id.clone()).collect();
    (rows.into_iter().map(|row| row.id).collect(), stubs)
}

/// A clock that a test sets.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock(Arc::new(AtomicU64::new(1_795_000_000_000)))
    }

    pub(crate) fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn dated(&self) -> Arc<Dated> {
        let clock = self.clone();
        Dated::new(move || clock.0.load(Ordering::Relaxed))
    }

    pub(crate) fn chunks(&self, store: Arc<dyn DocumentStore>, objects: Arc<dyn Objects>) -> ChunkStore {
        ChunkStore::with_environment(store, Arc::new(self.clone())).with_connect(Arc::new(Always(objects)))
    }
}

impl model::Environment for Clock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        model::SystemEnvironment.random(bytes);
    }
}

impl TimedEnvironment for Clock {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        self.pass(pause.as_millis() as u64);
        std::future::ready(()).boxed()
    }
}

/// Moves to objects and back, with all other operations in between.
async fn there_and_back(world: &World, connect: Arc<dyn Connect>, location: &str) {
    let database = world.database("db").await;
    let open = || ChunkStore::new(database.clone()).with_connect(connect.clone());
    let chunks = open();
    configure(&chunks).await;
    let (first, second) = (large("first", 10), large("second", 4));
    store(&chunks, "first.md", &first).await;
    store(&chunks, "second.md", &second).await;
    let before = database.list(&IdRange::prefix("dat:").with_bodies()).await.unwrap().rows;

    let planned = chunks.offload(location, true, |_, _| ()).await.unwrap();
    assert_eq!(data_documents(&*database).await.1, Vec::<String>::new());
    let moved = chunks.offload(location, false, |_, _| ()).await.unwrap();
    assert_eq!((moved.data_documents, moved.bytes, moved.left.len()), (planned.data_documents, planned.bytes, 0));
    let (all, stubs) = data_documents(&*database).await;
    assert_eq!(stubs.len() as u64, moved.data_documents);
    assert!(stubs.len() >= 4 && stubs.len() <= all.len(), "{stubs:?} of {all:?}");
    assert!(moved.after.document_bytes * 3 < moved.before.document_bytes, "{moved:?}");
    assert_eq!(moved.objects_after.objects, moved.data_documents);
    assert_eq!(moved.objects_before.objects, 0);
    // Repeating it does nothing.
    assert_eq!(open().offload(location, false, |_, _| ()).await.unwrap().data_documents, 0);

    let everything = [first.clone(), second.clone()].concat();
    assert_read(&open().get(&ids(&everything)).await.unwrap(), &everything);
    let verified = open().verify(|_| ()).await.unwrap();
    assert_eq!((verified.chunks, verified.missing.len(), verified.damaged.len()), (14, 0, 0));
    // Existing chunks are found, and new ones are stored beside them.
    let third = large("third", 5);
    let receipt = open().put([everything.clone(), third.clone()].concat()).await.unwrap();
    assert_eq!((receipt.new, receipt.known), (5, 14));
    store(&open(), "third.md", &third).await;
    let everything = [everything, third].concat();

    // Builds the index from stubs only.
    for row in database.list(&IdRange::prefix("idx:")).await.unwrap().rows {
        delete(&*database, &row.id).await;
    }
    assert_read(&open().get(&ids(&everything)).await.unwrap(), &everything);
    let reindexed = open().reindex(|_, _| ()).await.unwrap();
    assert_eq!((reindexed.entered, reindexed.damaged.len()), (19, 0));
    let collected = open().collect(CollectOptions::default(), |_| ()).await.unwrap();
    assert_eq!((collected.damaged.len(), collected.dangling, collected.condemned), (0, 0, 0));
    assert_eq!((collected.objects_marked, collected.objects_removed), (0, 0));

    let back = open().offload_back(Some(location), false, |_, _| ()).await.unwrap();
    assert_eq!((back.data_documents, back.left.len()), (moved.data_documents, 0));
    assert_eq!(data_documents(&*database).await.1, Vec::<String>::new());
    let after = database.list(&IdRange::prefix("dat:").with_bodies()).await.unwrap().rows;
    for row in before {
        let found = after.iter().find(|found| found.id == row.id).unwrap();
        let of = |body: &Option<chunks::store::Body>| body.as_ref().unwrap()["chunks"].as_object().unwrap().clone();
        assert!(of(&row.body).iter().all(|(id, value)| of(&found.body).get(id) == Some(value)), "{}", row.id);
    }
    assert_read(&open().get(&ids(&everything)).await.unwrap(), &everything);

    // Moves again, then all the way back to LiveSync's form.
    open().offload(location, false, |_, _| ()).await.unwrap();
    let migrated = open().migrate_back(false, |_, _| ()).await.unwrap();
    assert_eq!(migrated.chunks, 19);
    assert!(migrated.left.iter().any(|line| line.contains("are kept for the grace")), "{:?}", migrated.left);
    assert_eq!(database.list(&IdRange::prefix("dat:")).await.unwrap().rows, []);
    assert_read(&open().get(&ids(&everything)).await.unwrap(), &everything);
}

async fn a_vault_goes_to_memory_and_comes_back(world: World) {
    there_and_back(&world, Arc::new(Always(Arc::new(Bucket::in_memory()))), "s3://in/memory").await;
}

async fn a_vault_goes_to_a_directory_and_comes_back(world: World) {
    let folder = tempfile::tempdir().unwrap();
    let connector = Arc::new(Connector::from_env());
    there_and_back(&world, connector, &format!("file:{}", folder.path().display())).await;
}

async fn a_vault_goes_to_a_bucket_and_comes_back(world: World) {
    let s3 = S3::start("vaults").await;
    there_and_back(&world, Arc::new(s3.connector("key", "secret")), "s3://vaults/notes/mine").await;
    assert!(s3.folder().join("vaults/notes/mine").is_dir());
}

/// Two replicas with one place: objects that one replica removes stay readable for the other until it has replicated.
async fn replicas_share_a_bucket(world: World) {
    let clock = Clock::new();
    let objects = clock.dated();
    let (here, there) = (world.database("here").await, world.database("there").await);
    let (one, other) = (clock.chunks(here.clone(), objects.clone()), clock.chunks(there.clone(), objects.clone()));
    configure(&one).await;
    let (kept, dropped) = (large("kept", 4), large("dropped", 5));
    store(&one, "kept.md", &kept).await;
    store(&one, "dropped.md", &dropped).await;
    replicate(&*here, &*there).await;
    // Both move the same documents, without replication in between.
    one.offload("s3://vaults", false, |_, _| ()).await.unwrap();
    other.offload("s3://vaults", false, |_, _| ()).await.unwrap();
    replicate(&*here, &*there).await;
    replicate(&*there, &*here).await;
    let everything = [kept.clone(), dropped.clone()].concat();
    for replica in [&one, &other] {
        assert_read(&replica.get(&ids(&everything)).await.unwrap(), &everything);
        let collected = replica.collect(CollectOptions::default(), |_| ()).await.unwrap();
        assert_eq!(collected.damaged, Vec::<String>::new());
    }
    // United, and moved again: the two are one.
    one.offload("s3://vaults", false, |_, _| ()).await.unwrap();
    replicate(&*here, &*there).await;
    replicate(&*there, &*here).await;

    // Here a file is deleted. Its chunks are condemned and removed, and the rest of their object moves.
    delete(&*here, "dropped.md").await;
    let everything_goes = CollectOptions { unused_percent: 0, ..CollectOptions::default() };
    one.collect(everything_goes, |_| ()).await.unwrap();
    clock.pass(GRACE);
    let removing = one.collect(everything_goes, |_| ()).await.unwrap();
    assert_eq!((removing.removed, removing.damaged.len()), (5, 0));
    assert!(removing.data_documents_written > 0, "{removing:?}");
    // The other replica has not heard of it. The old objects are marked, and stay.
    clock.pass(GRACE / 2);
    one.collect(everything_goes, |_| ()).await.unwrap();
    let unaware = clock.chunks(there.clone(), objects.clone());
    assert_read(&unaware.get(&ids(&everything)).await.unwrap(), &everything);
    replicate(&*here, &*there).await;
    replicate(&*there, &*here).await;
    let before = one.object_figures().await.unwrap();
    for _ in 0..3 {
        clock.pass(GRACE);
        for replica in [&one, &other] {
            assert_eq!(replica.collect(everything_goes, |_| ()).await.unwrap().damaged, Vec::<String>::new());
        }
        replicate(&*here, &*there).await;
        replicate(&*there, &*here).await;
    }
    let after = one.object_figures().await.unwrap();
    assert!(after.objects < before.objects, "{before:?} {after:?}");
    assert_eq!(after.objects, data_documents(&*here).await.1.len() as u64, "no object is left that nobody names");
    for replica in [clock.chunks(here, objects.clone()), clock.chunks(there, objects)] {
        assert_read(&replica.get(&ids(&kept)).await.unwrap(), &kept);
        assert_eq!(replica.verify(|_| ()).await.unwrap().missing.len(), 0);
    }
}

/// An offloaded vault in process, with a clock.
async fn offloaded(world: &World) -> (Clock, Arc<Dated>, ChunkStore, Vec<(String, Chunk)>) {
    let clock = Clock::new();
    let objects = clock.dated();
    let chunks = clock.chunks(world.database("db").await, objects.clone());
    configure(&chunks).await;
    let some = large("page", 9);
    store(&chunks, "book.md", &some).await;
    assert_eq!(chunks.offload("s3://vaults", false, |_, _| ()).await.unwrap().data_documents, 3);
    (clock, objects, chunks, some)
}

/// Names of the objects of data documents.
async fn names(objects: &dyn Objects) -> Vec<String> {
    let all = objects.list("").await.unwrap();
    all.into_iter().map(|object| object.name).filter(|name| name.contains("/-") && !name.contains("/unused/")).collect()
}

#[tokio::test]
async fn a_collection_reads_no_object_that_it_does_not_change() {
    let world = World::in_process().await;
    let (clock, objects, chunks, some) = offloaded(&world).await;
    let fresh = clock.chunks(chunks.store().clone(), objects.clone());
    let before = objects.gets.load(Ordering::Relaxed);
    fresh.collect(CollectOptions::default(), |_| ()).await.unwrap();
    fresh.reindex(|_, _| ()).await.unwrap();
    assert_eq!(objects.gets.load(Ordering::Relaxed) - before, 1, "only whether the place is there");
    // A reader reads each object once, however often it asks.
    for (id, chunk) in &some {
        assert_eq!(fresh.get(std::slice::from_ref(id)).await.unwrap()[id].as_ref(), Some(chunk));
    }
    assert_eq!(objects.gets.load(Ordering::Relaxed) - before, 4);
}

#[tokio::test]
async fn damaged_and_missing_objects_are_named_and_repaired() {
    let world = World::in_process().await;
    let (clock, objects, chunks, some) = offloaded(&world).await;
    let copy = ChunkStore::new(world.database("copy").await);
    store(&copy, "book.md", &some).await;
    let names = names(&*objects).await;
    objects.delete(&names[0]).await.unwrap();
    objects.put(&names[1], bytes::Bytes::from_static(b"{}")).await.unwrap();

    let fresh = || clock.chunks(chunks.store().clone(), objects.clone());
    let verified = fresh().verify(|_| ()).await.unwrap();
    assert_eq!((verified.missing.len(), verified.damaged.len()), (6, 2));
    for (name, wanted) in [(&names[0], "is missing in s3://vaults"), (&names[1], "is not what was written")] {
        assert!(verified.damaged.iter().any(|line| line.contains(name) && line.contains(wanted)), "{verified:?}");
    }
    // The others can be read. A collection reports the two and leaves them alone.
    let read = fresh().get(&ids(&some)).await.unwrap();
    assert_eq!(read.values().flatten().count(), 3);
    let everything_goes = CollectOptions { unused_percent: 0, ..CollectOptions::default() };
    let collected = fresh().collect(everything_goes, |_| ()).await.unwrap();
    assert_eq!((collected.damaged.len(), collected.condemned, collected.removed), (2, 0, 0));

    let missing: Vec<String> = verified.missing.into_keys().collect();
    let (receipt, still) = fresh().repair(&missing, &copy).await.unwrap();
    assert_eq!((receipt.new, still.len()), (6, 0));
    assert_read(&fresh().get(&ids(&some)).await.unwrap(), &some);
    assert_eq!(fresh().verify(|_| ()).await.unwrap().missing.len(), 0);
    // The rest of the damaged ones is removed in time.
    for _ in 0..4 {
        fresh().collect(everything_goes, |_| ()).await.unwrap();
        clock.pass(GRACE);
    }
    let last = fresh().collect(everything_goes, |_| ()).await.unwrap();
    assert_eq!(last.damaged, Vec::<String>::new());
    assert_read(&fresh().get(&ids(&some)).await.unwrap(), &some);
}

/// An object whose writer ended before it wrote the stub.
#[tokio::test]
async fn orphans_go_after_the_grace_and_nothing_else_does() {
    let world = World::in_process().await;
    let (clock, objects, chunks, some) = offloaded(&world).await;
    let known = names(&*objects).await;
    let orphan = format!("{}.00000000deadbeef", known[0].split('.').next().unwrap());
    let alien = format!("{}/letter.txt", known[0].split('/').next().unwrap());
    let other = "0123456789abcdef/-001-9c0de1b2.0123456789abcdef";
    for name in [orphan.as_str(), alien.as_str(), other] {
        objects.put(name, bytes::Bytes::from_static(b"x")).await.unwrap();
    }
    let has = async |name: &str| objects.get(name).await.unwrap().is_some();
    let collect =
        async |dry_run| chunks.collect(CollectOptions { dry_run, ..CollectOptions::default() }, |_| ()).await.unwrap();
    assert_eq!(collect(false).await.objects_marked, 0);
    clock.pass(GRACE - 1);
    assert_eq!(collect(false).await.objects_marked, 0, "its stub may be on its way");
    clock.pass(1);
    assert_eq!(collect(true).await.objects_marked, 1);
    assert_eq!(collect(false).await.objects_marked, 1);
    clock.pass(GRACE - 1);
    assert_eq!(collect(false).await.objects_removed, 0);
    assert!(has(&orphan).await);
    clock.pass(1);
    assert_eq!(collect(true).await.objects_removed, 1);
    assert!(has(&orphan).await, "a dry run removes nothing");
    let removed = collect(false).await;
    assert_eq!((removed.objects_removed, removed.object_bytes_removed), (1, 1));
    assert!(!has(&orphan).await);
    // Neither foreign objects, nor another database's, nor those in use.
    for name in known.iter().map(String::as_str).chain([alien.as_str(), other]) {
        assert!(has(name).await, "{name}");
    }
    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
    assert!(objects.list("").await.unwrap().iter().all(|object| !object.name.contains("/unused/")));
}

/// A replica without knowledge of objects marks them; one that names them removes the marks.
#[tokio::test]
async fn a_mark_is_taken_away_by_who_names_the_object() {
    let world = World::in_process().await;
    let clock = Clock::new();
    let objects = clock.dated();
    let (here, there) = (world.database("here").await, world.database("there").await);
    let (one, deaf) = (clock.chunks(here.clone(), objects.clone()), clock.chunks(there.clone(), objects.clone()));
    configure(&one).await;
    one.offload("s3://vaults", false, |_, _| ()).await.unwrap();
    replicate(&*here, &*there).await;
    let some = large("page", 6);
    store(&one, "book.md", &some).await;
    assert_eq!(one.offload("s3://vaults", false, |_, _| ()).await.unwrap().data_documents, 2);
    clock.pass(GRACE);
    assert_eq!(deaf.collect(CollectOptions::default(), |_| ()).await.unwrap().objects_marked, 2);
    for _ in 0..3 {
        clock.pass(GRACE / 2);
        one.collect(CollectOptions::default(), |_| ()).await.unwrap();
        clock.pass(GRACE / 2);
        assert_eq!(deaf.collect(CollectOptions::default(), |_| ()).await.unwrap().objects_removed, 0);
    }
    let fresh = clock.chunks(here, objects);
    assert_read(&fresh.get(&ids(&some)).await.unwrap(), &some);
}

#[tokio::test]
async fn a_place_is_forgotten_once_it_is_empty() {
    let world = World::in_process().await;
    let (clock, objects, chunks, some) = offloaded(&world).await;
    let settings = async || {
        let leaves = chunks.store().leaves(&["chunks:settings".to_owned()], false).await.unwrap();
        Value::Object(leaves[0][0].body.clone())
    };
    assert_eq!(settings().await["format"], 2);
    chunks.offload_back(None, false, |_, _| ()).await.unwrap();
    assert_eq!(chunks.forget_places().await.unwrap(), 0, "replicas may still read the objects");
    assert_eq!(settings().await["format"], 2);
    for _ in 0..2 {
        clock.pass(GRACE);
        chunks.collect(CollectOptions::default(), |_| ()).await.unwrap();
    }
    assert_eq!(chunks.forget_places().await.unwrap(), 1);
    assert_eq!((&settings().await["format"], settings().await.get("objects")), (&json!(1), None));
    // A replica that has not heard of it may name the place again.
    let left = objects.list("").await.unwrap();
    assert!(left.len() == 1 && left[0].name.ends_with("/place"), "{left:?}");
    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
    let refused = chunks.offload_back(Some("s3://elsewhere"), false, |_, _| ()).await.unwrap_err();
    assert!(matches!(&refused, Error::Setting(_)) && refused.to_string().contains("s3://elsewhere"), "{refused}");
}

/// Lost or damaged settings do not lose the objects.
#[tokio::test]
async fn lost_places_are_found_again() {
    let world = World::in_process().await;
    let (clock, objects, chunks, some) = offloaded(&world).await;
    let fresh = || clock.chunks(chunks.store().clone(), objects.clone());
    let leaves = chunks.store().leaves(&["chunks:settings".to_owned()], false).await.unwrap();
    let mut damaged = leaves[0][0].body.clone();
    damaged.insert("grace_ms".into(), json!("x"));
    let rev = Some(leaves[0][0].rev.clone());
    let edit = Edit { id: "chunks:settings".into(), rev, deleted: false, body: damaged };
    chunks.store().write(vec![edit]).await.unwrap()[0].clone().unwrap();
    assert_eq!(fresh().reindex(|_, _| ()).await.unwrap().replaced, 1);
    assert_read(&fresh().get(&ids(&some)).await.unwrap(), &some);

    delete(&**chunks.store(), "chunks:settings").await;
    let verified = fresh().verify(|_| ()).await.unwrap();
    assert_eq!(verified.missing.len(), 9);
    assert!(verified.damaged.iter().all(|line| line.contains("a place that the settings do not name")), "{verified:?}");
    let again = fresh().offload("s3://vaults", false, |_, _| ()).await.unwrap();
    assert_eq!((again.data_documents, again.objects_after.objects), (0, 3), "they are there already");
    assert_read(&fresh().get(&ids(&some)).await.unwrap(), &some);
}

#[tokio::test]
async fn two_databases_in_one_bucket_do_not_meet() {
    let world = World::in_process().await;
    let clock = Clock::new();
    let objects = clock.dated();
    let (one, other) = (
        clock.chunks(world.database("one").await, objects.clone()),
        clock.chunks(world.database("other").await, objects.clone()),
    );
    let (mine, yours) = (large("mine", 6), large("yours", 6));
    for (chunks, some) in [(&one, &mine), (&other, &yours)] {
        configure(chunks).await;
        store(chunks, "file.md", some).await;
        chunks.offload("s3://vaults", false, |_, _| ()).await.unwrap();
    }
    for _ in 0..3 {
        clock.pass(2 * GRACE);
        let collected = one.collect(CollectOptions::default(), |_| ()).await.unwrap();
        assert_eq!((collected.objects_marked, collected.objects_removed), (0, 0));
    }
    let fresh = clock.chunks(other.store().clone(), objects);
    assert_read(&fresh.get(&ids(&yours)).await.unwrap(), &yours);
}

#[tokio::test]
async fn data_moves_from_one_place_to_another() {
    let world = World::in_process().await;
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |folder: &tempfile::TempDir| format!("file:{}", folder.path().display());
    let chunks = world.chunks("db").await;
    configure(&chunks).await;
    let some = large("page", 9);
    store(&chunks, "book.md", &some).await;
    chunks.offload(&at(&one), false, |_, _| ()).await.unwrap();
    assert_eq!(chunks.offload(&at(&other), false, |_, _| ()).await.unwrap().data_documents, 3);
    drop(one);
    let fresh = ChunkStore::new(chunks.store().clone());
    assert_read(&fresh.get(&ids(&some)).await.unwrap(), &some);
    // An operation that needs both places reports the missing one.
    let refused = fresh.collect(CollectOptions::default(), |_| ()).await.unwrap_err().to_string();
    assert!(refused.contains("must be there"), "{refused}");
}

#[tokio::test]
async fn who_cannot_reach_the_objects_is_told_which() {
    let world = World::in_process().await;
    let s3 = S3::start("vaults").await;
    let database = world.database("db").await;
    let open = |connector: Connector| ChunkStore::new(database.clone()).with_connect(Arc::new(connector));
    let chunks = open(s3.connector("key", "secret"));
    configure(&chunks).await;
    let (some, small) = (large("page", 6), crate::support::texts("note", 3));
    store(&chunks, "book.md", &some).await;
    chunks.put(small.clone()).await.unwrap();
    let stranger = open(s3.connector("key", "wrong"));
    for (location, wanted) in [("s3://vaults/a", "s3://vaults/a"), ("ftp://x", "not a place for objects")] {
        for dry_run in [true, false] {
            let refused = stranger.offload(location, dry_run, |_, _| ()).await.unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
        }
    }
    // A place that could not be reached is not written into the settings.
    assert_eq!(chunks.object_figures().await.unwrap().objects, 0);
    chunks.offload("s3://vaults/a", false, |_, _| ()).await.unwrap();

    // A wrong secret; the wrong store; no server.
    let refused = open(s3.connector("key", "wrong")).get(&ids(&some)).await.unwrap_err().to_string();
    assert!(refused.contains("s3://vaults/a"), "{refused}");
    let empty = S3::start("vaults").await;
    let refused = open(empty.connector("key", "secret")).get(&ids(&some)).await.unwrap_err().to_string();
    assert!(refused.contains("s3://vaults/a") && refused.contains("is it the right one?"), "{refused}");
    // Clients that need no objects continue: writers, and readers of chunks in documents.
    let lone = open(empty.connector("key", "secret"));
    assert_read(&lone.get(&ids(&small)).await.unwrap(), &small);
    assert_eq!(lone.put([some.clone(), large("new", 2)].concat()).await.unwrap().new, 2);
    // Unencrypted, beyond this machine.
    let variables =
        [("AWS_ENDPOINT", "http://192.0.2.1:9"), ("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")];
    let far = Connector::with_variables(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let refused = open(far).get(&ids(&some)).await.unwrap_err().to_string();
    assert!(refused.contains("s3://vaults/a"), "{refused}");
    assert_read(&open(s3.connector("key", "secret")).get(&ids(&some)).await.unwrap(), &some);
}

#[tokio::test]
async fn a_directory_that_is_not_mounted_is_no_empty_one() {
    let world = World::in_process().await;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("mnt");
    std::fs::create_dir(&place).unwrap();
    let chunks = world.chunks("db").await;
    configure(&chunks).await;
    let some = large("page", 6);
    store(&chunks, "book.md", &some).await;
    chunks.offload(&format!("file:{}", place.display()), false, |_, _| ()).await.unwrap();
    let away = folder.path().join("away");
    std::fs::rename(&place, &away).unwrap();
    std::fs::create_dir(&place).unwrap();
    let fresh = || ChunkStore::new(chunks.store().clone());
    for refused in [
        fresh().get(&ids(&some)).await.unwrap_err(),
        fresh().collect(CollectOptions::default(), |_| ()).await.unwrap_err(),
        fresh().offload_back(None, false, |_, _| ()).await.unwrap_err(),
    ] {
        assert!(refused.to_string().contains("is it the right one?"), "{refused}");
    }
    std::fs::remove_dir(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    assert_read(&fresh().get(&ids(&some)).await.unwrap(), &some);
}
