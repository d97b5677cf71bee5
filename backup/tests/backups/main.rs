//! Backups and restores of random stores.

mod breaking;
mod damage;
mod faults;
mod healing;
mod keeping;
mod killed;
mod objects;
mod random;
mod returns;
mod ships;
mod ships_gone_wrong;
mod stage;
mod standbys;

use std::sync::Arc;

use backup::{Error, Folder, Place, Protection, Repository, RestoreOptions};
use engine_lsm::{LsmDatabase, LsmOptions};
use engine_mem::MemDatabase;
use engine_sled::{SledDatabase, SledOptions};
use kv_api::{AnyDatabase, Database};
use model::{Layer, LayerOptions, NameRange, SystemEnvironment};

use stage::{Dump, dump, new_repository, quiet};

fn engine(name: &str, folder: &std::path::Path) -> AnyDatabase {
    match name {
        "mem" => AnyDatabase::new(MemDatabase::new()),
        "lsm" => AnyDatabase::new(LsmDatabase::open(folder, LsmOptions::new()).unwrap()),
        _ => AnyDatabase::new(SledDatabase::open(folder, SledOptions::new()).unwrap()),
    }
}

async fn dump_all<D: Database>(engine: D) -> Vec<(String, Dump)> {
    let layer = Layer::open(engine, LayerOptions::default()).await.unwrap();
    let mut all = Vec::new();
    for name in layer.database_names(&NameRange::default()).await.unwrap() {
        all.push((name.clone(), dump(&layer.database(&name).await.unwrap()).await));
    }
    all
}

/// A store that is backed up twice, with edits in between, comes back from each run, on another engine.
async fn comes_back(from: &str, to: &str) {
    let seed = random::seed();
    println!("seed {seed}, from {from} to {to}");
    let folder = tempfile::tempdir().unwrap();
    let source = engine(from, &folder.path().join("source"));
    let options = LayerOptions { threads: 2, ..LayerOptions::default() };
    let layer = Layer::open(source.clone(), options.clone()).await.unwrap();
    let mut store = random::Store::new(seed, layer.clone()).await;
    let repository = new_repository(&folder.path().join("repository")).await;
    let mut runs = Vec::new();
    for round in 0..3 {
        if round > 0 {
            store.edit(60).await;
        } else {
            store.edit(250).await;
        }
        let report = repository.back_up(source.clone(), &options, &[], &mut quiet).await.unwrap();
        assert_eq!(report.whole > 0, round == 0, "later runs go on from the first");
        assert!(report.run.databases.iter().all(|database| database.damaged.is_empty()), "{report:?}");
        runs.push((report.run.id, dump_all(source.clone()).await, layer.configuration().await.unwrap().0));
    }
    let report = repository.back_up(source.clone(), &options, &[], &mut quiet).await.unwrap();
    assert_eq!((report.bytes, report.whole), (0, 0), "what is unchanged costs nothing");
    runs.push((report.run.id, runs[2].1.clone(), runs[2].2.clone()));

    let verified = repository.verify(&mut |_| {}).await.unwrap();
    assert_eq!((verified.problems, verified.runs, verified.unused), (Vec::new(), 4, 0));
    for (at, (run, expected, configuration)) in runs.iter().enumerate() {
        let target = engine(to, &folder.path().join(format!("target{at}")));
        let wanted = RestoreOptions { run: Some(run.clone()), ..RestoreOptions::default() };
        let restored = repository.restore(target.clone(), &options, &wanted, &mut quiet).await.unwrap();
        assert!(restored.configuration && restored.identity && restored.damaged.is_empty());
        let found = dump_all(target.clone()).await;
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            stage::assert_same(expected, found, &format!("{name} of run {at}"));
        }
        assert_eq!(expected.len(), found.len());
        let there = Layer::open(target, options.clone()).await.unwrap();
        assert_eq!(there.configuration().await.unwrap().0, *configuration);
        assert_eq!(there.identity().await.unwrap(), layer.identity().await.unwrap());
        for (name, _) in expected {
            let restored = there.database(name).await.unwrap();
            let report = restored.check(|_| {}).await.unwrap();
            assert_eq!(report.problem_count, 0, "{report:?}");
            let (before, now) = (layer.database(name).await.unwrap(), restored.info().await.unwrap());
            assert_eq!(now.incarnation, 1);
            assert!(now.update_seq.seq > before.last_seq().await.unwrap(), "old sequences lie below all new ones");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_store_in_memory_comes_back_on_lsm() {
    comes_back("mem", "lsm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_store_on_lsm_comes_back_on_sled() {
    comes_back("lsm", "sled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_store_on_sled_comes_back_in_memory() {
    comes_back("sled", "mem").await;
}

#[tokio::test]
async fn a_restore_takes_no_name_that_exists_and_never_gives_out_an_incarnation_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, options) = (MemDatabase::new(), LayerOptions::default());
    let layer = Layer::open(engine.clone(), options.clone()).await.unwrap();
    let documents = layer.create_database("db", Default::default()).await.unwrap();
    documents.put(stage::edit("a", "{}")).await.unwrap();
    let repository = new_repository(folder.path()).await;
    let names = ["db".to_owned()];
    repository.back_up(engine.clone(), &options, &names, &mut quiet).await.unwrap();

    let one = RestoreOptions { databases: names.to_vec(), ..RestoreOptions::default() };
    let refused = repository.restore(engine.clone(), &options, &one, &mut quiet).await.unwrap_err().to_string();
    assert!(refused.contains("the database db exists"), "{refused}");
    let none = RestoreOptions { databases: vec!["other".to_owned()], ..RestoreOptions::default() };
    let refused = repository.restore(engine.clone(), &options, &none, &mut quiet).await.unwrap_err().to_string();
    assert!(refused.contains("does not have the database other"), "{refused}");
    let copy = RestoreOptions { rename: Some("copy".to_owned()), ..one.clone() };
    let restored = repository.restore(engine.clone(), &options, &copy, &mut quiet).await.unwrap();
    assert_eq!((restored.databases, restored.identity), (vec![("copy".to_owned(), 1)], false));

    layer.delete_database("db").await.unwrap();
    // The state after a restore whose process ended.
    layer.begin_restore("db", Default::default(), 7).await.unwrap().put(stage::edit("half", "{}")).await.unwrap();
    repository.restore(engine.clone(), &options, &one, &mut quiet).await.unwrap();
    let restored = layer.database("db").await.unwrap();
    assert_eq!(restored.info().await.unwrap().doc_count, 1);
    assert_eq!(restored.info().await.unwrap().incarnation, 1);
    repository.back_up(engine.clone(), &options, &names, &mut quiet).await.unwrap();
    layer.delete_database("db").await.unwrap();
    let first = RestoreOptions { run: Some(repository.runs().await.unwrap().remove(0)), ..one };
    repository.restore(engine.clone(), &options, &first, &mut quiet).await.unwrap();
    assert_eq!(layer.database("db").await.unwrap().info().await.unwrap().incarnation, 2);
}

#[tokio::test]
async fn a_repository_opens_by_its_passphrase_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, options) = (MemDatabase::new(), LayerOptions::default());
    let layer = Layer::open(engine.clone(), options.clone()).await.unwrap();
    let documents = layer.create_database("db", Default::default()).await.unwrap();
    documents.put(stage::edit("a", r#"{"secret":"SECRETSECRETSECRET"}"#)).await.unwrap();
    let passphrase = |text: &str| Protection::Passphrase(text.as_bytes().to_vec());
    let place = Arc::new(Folder::new(folder.path()));
    let environment = Arc::new(SystemEnvironment);
    let missing = Repository::open(place.clone(), &Protection::None, environment.clone()).await.unwrap_err();
    assert!(missing.to_string().contains("no repository.json"), "{missing}");
    let made = Repository::open_or_create(place.clone(), &passphrase("open"), environment.clone()).await.unwrap();
    made.back_up(engine, &options, &[], &mut quiet).await.unwrap();
    let again = Repository::open_or_create(place.clone(), &passphrase("open"), environment.clone()).await.unwrap();
    assert!(again.verify(&mut |_| {}).await.unwrap().problems.is_empty());
    let wrong = Repository::open(place.clone(), &passphrase("other"), environment.clone()).await.unwrap_err();
    assert!(matches!(wrong, Error::Passphrase), "{wrong}");
    let without = Repository::open_or_create(place.clone(), &Protection::None, environment.clone()).await.unwrap_err();
    assert!(without.to_string().contains("encrypted"), "{without}");
    for file in stage::files(folder.path()) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(6).any(|found| found == b"SECRET"), "{file:?} has plain text");
    }
    #[cfg(unix)]
    for file in stage::files(folder.path()) {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "others may read {file:?}");
    }
    // Only one of two first backups creates the repository.
    let again = Place::create(place.as_ref(), "repository.json", "{}".into()).await.unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    // A lost description is not replaced over existing files.
    std::fs::remove_file(folder.path().join("repository.json")).unwrap();
    let lost = Repository::open_or_create(place, &passphrase("open"), environment).await.unwrap_err();
    assert!(lost.to_string().contains("repository.json is damaged: it is missing"), "{lost}");
}
