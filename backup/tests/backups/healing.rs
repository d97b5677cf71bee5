//! Problems of earlier runs, of one database among several, and of a restored run.

use std::path::Path;
use std::sync::Arc;

use backup::{Folder, Protection, Repository, RestoreOptions};
use engine_lsm::{LsmDatabase, LsmOptions};
use engine_mem::MemDatabase;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};
use model::{Environment, Layer, LayerOptions, SystemEnvironment};
use sha2::{Digest, Sha256};

use crate::stage::{assert_same, copy_folder, dump, edit, files, new_repository, quiet};

/// A store with databases that have these documents.
async fn store(databases: &[(&str, &[&str])]) -> Layer<MemDatabase> {
    let layer = Layer::open(MemDatabase::new(), LayerOptions::default()).await.unwrap();
    for (name, ids) in databases {
        let documents = layer.create_database(name, Default::default()).await.unwrap();
        for id in *ids {
            documents.put(edit(id, "{}")).await.unwrap();
        }
    }
    layer
}

async fn back_up<D: Database>(repository: &Repository, layer: &Layer<D>, names: &[&str]) -> backup::Report {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    repository.back_up(layer.engine().clone(), &LayerOptions::default(), &names, &mut quiet).await.unwrap()
}

/// Restores into an empty store.
async fn restore(repository: &Repository, run: Option<&str>) -> (Layer<MemDatabase>, backup::Restored) {
    let layer = store(&[]).await;
    let wanted = RestoreOptions { run: run.map(str::to_owned), ..RestoreOptions::default() };
    let options = LayerOptions::default();
    let restored = repository.restore(layer.engine().clone(), &options, &wanted, &mut quiet).await.unwrap();
    (layer, restored)
}

async fn count<D: Database>(layer: &Layer<D>, name: &str) -> u64 {
    layer.database(name).await.unwrap().info().await.unwrap().doc_count
}

#[tokio::test]
async fn a_damaged_pack_is_not_gone_on_from_and_whole_writes_it_anew() {
    let folder = tempfile::tempdir().unwrap();
    let layer = store(&[("db", &["a", "b"])]).await;
    let expected = dump(&layer.database("db").await.unwrap()).await;
    let repository = new_repository(folder.path()).await;
    back_up(&repository, &layer, &[]).await;
    let pack = files(&folder.path().join("packs")).remove(0);
    let sound = std::fs::read(&pack).unwrap();

    // The end of a pack tells where its objects are.
    std::fs::write(&pack, &sound[..sound.len() - 1]).unwrap();
    let report = back_up(&repository, &layer, &[]).await;
    assert_eq!(report.whole, 1);
    assert!(report.remarks[0].contains("is damaged") && report.remarks[0].contains("packs/"), "{:?}", report.remarks);
    let (there, _) = restore(&repository, None).await;
    assert_same(&expected, &dump(&there.database("db").await.unwrap()).await, "copied as a whole");

    // Only a verification, or reading the object, finds a changed bit in the middle.
    let packs = files(&folder.path().join("packs"));
    let pack = packs.iter().find(|other| **other != pack).unwrap();
    let mut changed = std::fs::read(pack).unwrap();
    let middle = changed.len() / 3;
    changed[middle] ^= 1;
    std::fs::write(pack, changed).unwrap();
    let all =
        repository.back_up_whole(layer.engine().clone(), &LayerOptions::default(), &[], &mut quiet).await.unwrap();
    assert!(all.whole == 1 && all.bytes > 0, "{all:?}");
    assert_eq!(repository.verify(&mut |_| {}).await.unwrap().runs, 1, "the earlier two are damaged");
    let (there, _) = restore(&repository, Some(&all.run.id)).await;
    assert_same(&expected, &dump(&there.database("db").await.unwrap()).await, "written anew");
}

/// A clock that shows another time.
#[derive(Debug)]
struct Clock(u64);

impl Environment for Clock {
    fn now_ms(&self) -> u64 {
        self.0
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

#[tokio::test]
async fn a_later_run_is_the_newest_also_if_the_clock_was_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let layer = store(&[("db", &["a"])]).await;
    let mut made = Vec::new();
    for (ms, id) in [(1_900_000_000_000, "b"), (1_800_000_000_000, "c"), (1_800_000_000_000, "d")] {
        let place = Arc::new(Folder::new(folder.path()));
        let clock = Arc::new(Clock(ms));
        let repository = Repository::open_or_create(place, &Protection::None, clock).await.unwrap();
        made.push(back_up(&repository, &layer, &[]).await.run.id);
        layer.database("db").await.unwrap().put(edit(id, "{}")).await.unwrap();
        assert_eq!(repository.runs().await.unwrap(), made);
    }
    let (there, restored) = restore(&new_repository(folder.path()).await, None).await;
    assert_eq!((restored.run, count(&there, "db").await), (made.remove(2), 3));
}

async fn open(folder: &Path) -> Layer<LsmDatabase> {
    let engine = LsmDatabase::open(folder, LsmOptions::new()).unwrap();
    Layer::open(engine, LayerOptions::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_was_put_back_to_an_older_copy_is_copied_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let repository = new_repository(&folder.path().join("repository")).await;
    let layer = open(&data).await;
    let documents = layer.create_database("db", Default::default()).await.unwrap();
    for at in 0..12 {
        documents.put(edit(&format!("before {at:02}"), "{}")).await.unwrap();
    }
    layer.identity().await.unwrap();
    drop((documents, layer));
    copy_folder(&data, &copy);

    let layer = open(&data).await;
    for id in ["lost", "changed again"] {
        layer.database("db").await.unwrap().put(edit(id, "{}")).await.unwrap();
    }
    back_up(&repository, &layer, &[]).await;
    drop(layer);
    std::fs::remove_dir_all(&data).unwrap();
    copy_folder(&copy, &data);

    let layer = open(&data).await;
    let documents = layer.database("db").await.unwrap();
    for id in ["later", "changed again"] {
        documents.put(edit(id, "{}")).await.unwrap();
    }
    let report = back_up(&repository, &layer, &[]).await;
    let (there, _) = restore(&repository, None).await;
    let restored = dump(&there.database("db").await.unwrap()).await;
    assert_same(&dump(&documents).await, &restored, "after the return");
    assert_eq!(report.whole, 1);
    assert!(report.remarks[0].contains("another history"), "{:?}", report.remarks);
    // Changes and purges after a run do not make another history.
    let rev = documents.get("later", &Default::default()).await.unwrap().rev;
    documents.purge(&[model::Purge::new("later", vec![rev])]).await.unwrap();
    for id in ["before 11", "before 10"] {
        let rev = documents.get(id, &Default::default()).await.unwrap().rev;
        documents.put(edit(id, "{}").over(rev)).await.unwrap();
    }
    let report = back_up(&repository, &layer, &[]).await;
    assert_eq!((report.whole, report.remarks), (0, Vec::new()));
}

/// Makes the last created database unreadable.
async fn break_last(engine: &MemDatabase) {
    let transaction = engine.begin().unwrap();
    let all = RangeRequest::keys(&b""[..], &b"\xff"[..]);
    let rows = transaction.get_all(all, Read::Snapshot).await.unwrap();
    let row = rows.iter().rfind(|row| model::is_instance_key(&row.key)).unwrap();
    transaction.set(row.key.clone(), bytes::Bytes::from_static(b"\xff\xff"));
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn one_database_that_cannot_be_read_does_not_stop_the_backup_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let layer = store(&[("good", &["a"]), ("ill", &["x", "y"])]).await;
    let repository = new_repository(folder.path()).await;
    back_up(&repository, &layer, &[]).await;
    break_last(layer.engine()).await;
    layer.database("good").await.unwrap().put(edit("b", "{}")).await.unwrap();
    for _ in 0..2 {
        let report = back_up(&repository, &layer, &[]).await;
        let failed: Vec<&str> = report.failed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(failed, ["ill"], "{report:?}");
        let renewed: Vec<bool> = report.run.databases.iter().map(|found| found.not_renewed.is_none()).collect();
        assert_eq!(renewed, [true, false], "{report:?}");
    }
    let (there, restored) = restore(&repository, None).await;
    assert_eq!((count(&there, "good").await, count(&there, "ill").await), (2, 2));
    assert!(restored.failed.is_empty() && restored.different.is_empty(), "{restored:?}");
    // Without any good database there is no run.
    let (engine, options) = (layer.engine().clone(), LayerOptions::default());
    let runs = repository.runs().await.unwrap();
    repository.back_up(engine.clone(), &options, &["ill".to_owned()], &mut quiet).await.unwrap_err();
    repository.back_up(engine, &options, &["no".to_owned(), "good".to_owned()], &mut quiet).await.unwrap_err();
    assert_eq!(repository.runs().await.unwrap(), runs);
}

#[tokio::test]
async fn a_restore_goes_on_after_a_database_that_the_run_does_not_have_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let layer = store(&[("a", &["1"]), ("b", &["1", "2"]), ("c", &["1", "2", "3"])]).await;
    let repository = new_repository(folder.path()).await;
    let first = back_up(&repository, &layer, &["b"]).await.run.id;
    back_up(&repository, &layer, &["a", "c"]).await;
    let all = back_up(&repository, &layer, &[]).await;
    assert_eq!((all.whole, all.bytes), (0, 0));
    let pack = files(&folder.path().join("packs").join(first)).remove(0);
    std::fs::remove_file(&pack).unwrap();
    let (there, restored) = restore(&repository, None).await;
    assert_eq!(restored.databases, [("a".to_owned(), 1), ("c".to_owned(), 3)]);
    assert_eq!(restored.failed.len(), 1);
    let (name, reason) = &restored.failed[0];
    assert!(name == "b" && reason.contains("packs/") && reason.contains("is missing"), "{reason}");
    assert_eq!(there.database("b").await.unwrap_err().status(), 404);
    assert!(restored.configuration);
}

#[tokio::test]
async fn a_restored_database_with_another_number_of_documents_stays_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let layer = store(&[("db", &["a", "b"])]).await;
    let repository = new_repository(folder.path()).await;
    let run = back_up(&repository, &layer, &[]).await.run.id;
    let file = folder.path().join("runs").join(run);
    let bytes = std::fs::read(&file).unwrap();
    let (wanted, other) = (b"\"documents\":2", b"\"documents\":7");
    let at = bytes.windows(wanted.len()).position(|found| found == wanted).unwrap();
    let mut changed = bytes[..bytes.len() - 32].to_vec();
    changed[at..at + other.len()].copy_from_slice(other);
    let hash = Sha256::digest(&changed);
    changed.extend_from_slice(&hash);
    std::fs::write(&file, changed).unwrap();
    let (there, restored) = restore(&repository, None).await;
    assert_eq!(count(&there, "db").await, 2);
    assert_eq!(restored.databases, [("db".to_owned(), 2)]);
    assert!(restored.different[0].1.contains("7 documents, and 2 were restored"), "{restored:?}");
}

#[tokio::test]
async fn runs_of_two_stores_in_a_repository_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let repository = new_repository(folder.path()).await;
    let (one, other) = (store(&[("db", &["a"])]).await, store(&[("db", &["x", "y"])]).await);
    let first = back_up(&repository, &one, &[]).await.run;
    let second = back_up(&repository, &other, &[]).await;
    assert_eq!((second.whole, second.remarks), (1, Vec::new()));
    assert_ne!(first.store, second.run.store);
    let again = back_up(&repository, &one, &[]).await;
    assert_eq!((again.whole, again.bytes, &again.run.store), (0, 0, &first.store));

    other.delete_database("db").await.unwrap();
    let (engine, options) = (other.engine().clone(), LayerOptions::default());
    let restored = repository.restore(engine, &options, &RestoreOptions::default(), &mut quiet).await.unwrap();
    assert_eq!((restored.run, count(&other, "db").await), (second.run.id, 2));
    let empty = store(&[]).await.engine().clone();
    let refused = repository.restore(empty, &options, &RestoreOptions::default(), &mut quiet).await.unwrap_err();
    assert!(refused.to_string().contains("runs of several stores"), "{refused}");
    // The newest run of each store stays, although both have a database of this name.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    repository.prune(0).await.unwrap();
    assert_eq!(repository.runs().await.unwrap().len(), 2);
}
