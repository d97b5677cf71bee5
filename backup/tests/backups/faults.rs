//! Effects of damage and failures on a repository.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use backup::{Folder, Place, Protection, Repository, RestoreOptions, Stored};
use bytes::Bytes;
use engine_mem::MemDatabase;
use kv_api::AnyDatabase;
use model::{Layer, LayerOptions, SystemEnvironment};

use crate::random::Store;
use crate::stage::{Dump, copy_folder, dump, files, new_repository, quiet};

/// A folder whose process ends at one of its changes: that one and all later calls fail.
#[derive(Debug)]
struct Ending {
    folder: Folder,
    /// Number of changes before the last one.
    left: AtomicI64,
    /// Whether the last one is made.
    is_made: bool,
}

impl Ending {
    fn new(folder: &Path, left: i64, is_made: bool) -> Arc<Self> {
        Arc::new(Ending { folder: Folder::new(folder), left: AtomicI64::new(left), is_made })
    }

    fn has_ended(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    /// Whether to make a change, and its result.
    fn change(&self) -> (bool, io::Result<()>) {
        let ended = || Err(io::Error::other("the process ended"));
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            1.. => (true, Ok(())),
            0 => (self.is_made, ended()),
            _ => (false, ended()),
        }
    }

    fn read(&self) -> io::Result<()> {
        if self.has_ended() { Err(io::Error::other("the process ended")) } else { Ok(()) }
    }
}

#[async_trait]
impl Place for Ending {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        let (is_made, outcome) = self.change();
        if is_made {
            self.folder.create(path, content).await?;
        }
        outcome
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        Ending::read(self)?;
        self.folder.read(path).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        Ending::read(self)?;
        self.folder.read_part(path, at, bytes).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        Ending::read(self)?;
        self.folder.list(path).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        let (is_made, outcome) = self.change();
        if is_made {
            self.folder.delete(path).await?;
        }
        outcome
    }
}

async fn open(place: Arc<dyn Place>) -> backup::Result<Repository> {
    Repository::open(place, &Protection::None, Arc::new(SystemEnvironment)).await
}

/// The database `notes` of a run, as a restore has it.
async fn restored(repository: &Repository, run: &str) -> Dump {
    let engine = MemDatabase::new();
    let (options, notes) = (LayerOptions::default(), vec!["notes".to_owned()]);
    let wanted = RestoreOptions { run: Some(run.to_owned()), databases: notes, rename: None };
    repository.restore(engine.clone(), &options, &wanted, &mut quiet).await.unwrap();
    dump(&Layer::open(engine, options).await.unwrap().database("notes").await.unwrap()).await
}

/// A store, and a repository with two runs of it.
async fn two_runs(folder: &Path) -> (Layer<AnyDatabase>, Store, Repository) {
    let layer = Layer::open(AnyDatabase::new(MemDatabase::new()), LayerOptions::default()).await.unwrap();
    let mut store = Store::new(11, layer.clone()).await;
    let repository = new_repository(folder).await;
    for _ in 0..2 {
        store.edit(80).await;
        repository.back_up(layer.engine().clone(), &LayerOptions::default(), &[], &mut quiet).await.unwrap();
    }
    (layer, store, repository)
}

#[tokio::test]
async fn a_backup_that_ends_at_any_step_leaves_the_earlier_runs_and_the_next_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let (layer, mut store, repository) = two_runs(&folder.path().join("0")).await;
    let options = LayerOptions::default();
    let runs = repository.runs().await.unwrap();
    let expected = [restored(&repository, &runs[0]).await, restored(&repository, &runs[1]).await];
    store.edit(80).await;
    let now = dump(&layer.database("notes").await.unwrap()).await;
    for at in 0.. {
        for is_made in [false, true] {
            let copy = folder.path().join(format!("{at}{is_made}"));
            copy_folder(&folder.path().join("0"), &copy);
            let ending = Ending::new(&copy, at, is_made);
            let outcome =
                open(ending.clone()).await.unwrap().back_up(layer.engine().clone(), &options, &[], &mut quiet).await;
            let has_ended = ending.has_ended();
            // Only the removal of the mark may fail silently.
            assert!(outcome.is_err() || !has_ended || at > 2, "step {at} failed: {outcome:?}");
            let after = open(Arc::new(Folder::new(&copy))).await.unwrap();
            let verified = after.verify(&mut |_| {}).await.unwrap();
            assert_eq!(verified.problems, [], "after step {at}");
            for (run, expected) in runs.iter().zip(&expected) {
                crate::stage::assert_same(expected, &restored(&after, run).await, &format!("{run} after step {at}"));
            }
            let report = after.back_up(layer.engine().clone(), &options, &[], &mut quiet).await.unwrap();
            crate::stage::assert_same(&now, &restored(&after, &report.run.id).await, &format!("after step {at}"));
            std::fs::remove_dir_all(&copy).unwrap();
            if !has_ended {
                assert!(at >= 3, "a mark, packs, a run");
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_pruning_that_ends_at_any_step_leaves_what_the_runs_need() {
    let folder = tempfile::tempdir().unwrap();
    let (layer, mut store, repository) = two_runs(&folder.path().join("0")).await;
    store.edit(30).await;
    let options = LayerOptions::default();
    repository.back_up(layer.engine().clone(), &options, &["notes".to_owned()], &mut quiet).await.unwrap();
    let runs = repository.runs().await.unwrap();
    let now = restored(&repository, &runs[2]).await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    for at in 0.. {
        for is_made in [false, true] {
            let copy = folder.path().join(format!("{at}{is_made}"));
            copy_folder(&folder.path().join("0"), &copy);
            let ending = Ending::new(&copy, at, is_made);
            let _ = open(ending.clone()).await.unwrap().prune(0).await;
            let after = open(Arc::new(Folder::new(&copy))).await.unwrap();
            assert_eq!(after.verify(&mut |_| {}).await.unwrap().problems, [], "after step {at}");
            let pruned = after.prune(0).await.unwrap();
            assert!(pruned.running == 0);
            // The second run is the newest one of the other databases.
            assert_eq!(after.runs().await.unwrap(), runs[1..]);
            let verified = after.verify(&mut |_| {}).await.unwrap();
            assert_eq!((verified.problems, verified.unused), (Vec::new(), 0));
            crate::stage::assert_same(&now, &restored(&after, &runs[2]).await, &format!("after step {at}"));
            std::fs::remove_dir_all(&copy).unwrap();
            if !ending.has_ended() {
                assert!(at > 0, "it removes the first run");
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_changed_bit_anywhere_is_found_and_its_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (protection, changes) in [(Protection::None, 40), (Protection::Passphrase(b"x".to_vec()), 6)] {
        let place = folder.path().join(format!("{changes}"));
        let layer = Layer::open(AnyDatabase::new(MemDatabase::new()), LayerOptions::default()).await.unwrap();
        let mut store = Store::new(5, layer.clone()).await;
        let environment = Arc::new(SystemEnvironment);
        let made = Arc::new(Folder::new(&place));
        let repository = Repository::open_or_create(made.clone(), &protection, environment.clone()).await.unwrap();
        for _ in 0..2 {
            store.edit(20).await;
            repository.back_up(layer.engine().clone(), &LayerOptions::default(), &[], &mut quiet).await.unwrap();
        }
        let all = files(&place);
        assert!(all.len() >= 5, "{all:?}");
        for file in all {
            let sound = std::fs::read(&file).unwrap();
            let name = file.strip_prefix(&place).unwrap().to_str().unwrap().to_owned();
            for change in 0..changes {
                // The first and the last bytes, and some in between.
                let at = match change {
                    0..10 => change,
                    10..20 => sound.len() - 1 - (change - 10),
                    _ => sound.len() * (change - 20) / (changes - 20),
                };
                let mut changed = sound.clone();
                changed[at] ^= 1 << (change % 8);
                std::fs::write(&file, &changed).unwrap();
                if name == "repository.json" {
                    let refused = Repository::open(made.clone(), &protection, environment.clone()).await.unwrap_err();
                    assert!(refused.to_string().starts_with("repository.json is damaged"), "byte {at}: {refused}");
                } else {
                    let problems = repository.verify(&mut |_| {}).await.unwrap().problems;
                    assert!(problems.iter().any(|(file, _)| *file == name), "byte {at} of {name}: {problems:?}");
                }
            }
            std::fs::write(&file, &sound).unwrap();
            if !name.starts_with("repository") && !name.starts_with("runs") {
                std::fs::remove_file(&file).unwrap();
                let problems = repository.verify(&mut |_| {}).await.unwrap().problems;
                assert!(problems.iter().any(|(file, _)| *file == name), "{name} is missing: {problems:?}");
                std::fs::write(&file, &sound).unwrap();
            }
        }
        assert_eq!(repository.verify(&mut |_| {}).await.unwrap().problems, []);
    }
}
