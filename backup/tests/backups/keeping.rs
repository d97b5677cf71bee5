//! Backups beside writers, prunings beside backups, and runs that are merged.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use backup::{Folder, Place, Protection, Repository, RestoreOptions, Stored};
use bytes::Bytes;
use engine_lsm::{LsmDatabase, LsmOptions};
use engine_mem::MemDatabase;
use model::{Environment, Layer, LayerOptions, Purge, Seq, SystemEnvironment};
use tokio::sync::Notify;

use crate::stage::{assert_same, dump, edit, json, new_repository, quiet};

const HOUR: u64 = 3_600_000;

/// A clock that the test sets forward.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl Environment for Clock {
    fn now_ms(&self) -> u64 {
        SystemEnvironment.now_ms() + self.0.load(Ordering::SeqCst)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

/// A folder that waits before it writes a run's description.
#[derive(Debug)]
struct Waiting {
    folder: Folder,
    reached: Notify,
    go_on: Notify,
}

#[async_trait]
impl Place for Waiting {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        if path.starts_with("runs/") {
            self.reached.notify_one();
            self.go_on.notified().await;
        }
        self.folder.create(path, content).await
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        self.folder.read(path).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        self.folder.read_part(path, at, bytes).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        self.folder.list(path).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        self.folder.delete(path).await
    }
}

async fn database_and_repository(folder: &Path, clock: Arc<Clock>) -> (MemDatabase, Layer<MemDatabase>, Repository) {
    let engine = MemDatabase::new();
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
    layer.create_database("db", Default::default()).await.unwrap().put(edit("a", "{}")).await.unwrap();
    let place = Arc::new(Folder::new(folder));
    let repository = Repository::open_or_create(place, &Protection::None, clock).await.unwrap();
    (engine, layer, repository)
}

#[tokio::test]
async fn old_runs_go_with_what_they_alone_need_and_a_backup_goes_on_beside() {
    let (folder, clock, options) = (tempfile::tempdir().unwrap(), Arc::new(Clock::default()), LayerOptions::default());
    let (engine, layer, repository) = database_and_repository(folder.path(), clock.clone()).await;
    let documents = layer.database("db").await.unwrap();
    layer.create_database("other", Default::default()).await.unwrap();
    for day in 0..5_u64 {
        documents.put(edit(&format!("day {day}"), "{}")).await.unwrap();
        let names: &[String] = if day == 0 { &[] } else { &["db".to_owned()] };
        repository.back_up(engine.clone(), &options, names, &mut quiet).await.unwrap();
        clock.0.fetch_add(24 * HOUR, Ordering::SeqCst);
    }
    let runs = repository.runs().await.unwrap();
    let pruned = repository.prune(60 * HOUR).await.unwrap();
    assert_eq!(pruned.runs, runs[1..3], "the first is the only one with the database \"other\"");
    assert_eq!(repository.runs().await.unwrap().len(), 3);

    // A backup waits before its last step. It continues a run that is pruned.
    let waiting =
        Arc::new(Waiting { folder: Folder::new(folder.path()), reached: Notify::new(), go_on: Notify::new() });
    let beside = Repository::open(waiting.clone(), &Protection::None, clock.clone()).await.unwrap();
    documents.put(edit("beside", "{}")).await.unwrap();
    let mut progress = quiet;
    let (made, ()) = tokio::join!(beside.back_up(engine.clone(), &options, &[], &mut progress), async {
        waiting.reached.notified().await;
        clock.0.fetch_add(2 * HOUR, Ordering::SeqCst);
        let pruned = repository.prune(0).await.unwrap();
        assert_eq!((pruned.running, pruned.packs), (1, 0), "its packs, and those of the runs before it, stay");
        waiting.go_on.notify_one();
    });
    assert_eq!(made.unwrap().whole, 0);
    let verified = repository.verify(&mut |_| {}).await.unwrap();
    assert_eq!((verified.problems, verified.unused), (Vec::new(), 0));

    // A backup that stands still for more than a day counts as ended. It fails, and removes nothing else.
    documents.put(edit("late", "{}")).await.unwrap();
    let mut progress = quiet;
    let (made, ()) = tokio::join!(beside.back_up(engine.clone(), &options, &[], &mut progress), async {
        waiting.reached.notified().await;
        clock.0.fetch_add(25 * HOUR, Ordering::SeqCst);
        let pruned = repository.prune(9_000 * HOUR).await.unwrap();
        assert_eq!((pruned.running, pruned.packs, pruned.runs.len()), (0, 1, 0));
        waiting.go_on.notify_one();
    });
    let failed = made.unwrap_err().to_string();
    assert!(failed.contains("a pruning removed its packs"), "{failed}");
    assert_eq!(repository.verify(&mut |_| {}).await.unwrap().problems, []);
    repository.back_up(engine.clone(), &options, &[], &mut quiet).await.unwrap();
    clock.0.fetch_add(HOUR, Ordering::SeqCst);
    repository.prune(0).await.unwrap();
    assert_eq!(repository.runs().await.unwrap().len(), 1, "the newest run stays, however old it is");
    let verified = repository.verify(&mut |_| {}).await.unwrap();
    assert_eq!((verified.problems, verified.unused, verified.runs), (Vec::new(), 0, 1));
}

#[tokio::test]
async fn many_runs_are_merged_and_purged_documents_are_gone_from_later_ones() {
    let (folder, clock, options) = (tempfile::tempdir().unwrap(), Arc::new(Clock::default()), LayerOptions::default());
    let (engine, layer, repository) = database_and_repository(folder.path(), clock).await;
    let documents = layer.database("db").await.unwrap();
    documents.set_purged_infos_limit(2).await.unwrap();
    for round in 0..40 {
        let rev = documents.put(edit(&format!("doc {round}"), "{}")).await.unwrap();
        if round % 3 == 0 {
            documents.purge(&[Purge::new(format!("doc {round}"), vec![rev])]).await.unwrap();
        }
        let report = repository.back_up(engine.clone(), &options, &[], &mut quiet).await.unwrap();
        assert_eq!(report.whole, usize::from(round == 0));
    }
    // More purges than are remembered, of documents in an earlier run: the feed does not show them.
    for round in [1, 2, 4] {
        let rev = model::GetOptions::default();
        let rev = documents.get(&format!("doc {round}"), &rev).await.unwrap().rev;
        documents.purge(&[Purge::new(format!("doc {round}"), vec![rev])]).await.unwrap();
    }
    let report = repository.back_up(engine.clone(), &options, &[], &mut quiet).await.unwrap();
    assert_eq!(report.whole, 1, "nobody knows what went");
    assert_eq!(repository.verify(&mut |_| {}).await.unwrap().problems, []);
    let target = MemDatabase::new();
    let whole = RestoreOptions::default();
    repository.restore(target.clone(), &options, &whole, &mut quiet).await.unwrap();
    let restored = Layer::open(target, options).await.unwrap().database("db").await.unwrap();
    assert_same(&dump(&documents).await, &dump(&restored).await, "after forty runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_beside_writers_is_the_database_at_the_sequence_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let engine = LsmDatabase::open(folder.path().join("data"), LsmOptions::new()).unwrap();
    let options = LayerOptions::default();
    let layer = Layer::open(engine.clone(), options.clone()).await.unwrap();
    let documents = layer.create_database("db", Default::default()).await.unwrap();
    let edits = (0..3_000).map(|at| edit(&format!("d{at}"), r#"{"n":0}"#)).collect();
    for result in documents.write(edits, model::WriteMode::Interactive).await.unwrap() {
        result.unwrap();
    }
    let start = documents.last_seq().await.unwrap();
    let repository = new_repository(&folder.path().join("repository")).await;
    let is_over = Arc::new(AtomicBool::new(false));
    // One writer, so that the sequence after a write is that of the write.
    let writing = {
        let (documents, is_over) = (documents.clone(), is_over.clone());
        tokio::spawn(async move {
            let mut log: Vec<(Seq, String, u64)> = Vec::new();
            for n in 1.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let id = format!("d{}", n * 7 % 3_000);
                let known = documents.get(&id, &model::GetOptions::default()).await.unwrap().rev;
                documents.put(edit(&id, &format!(r#"{{"n":{n}}}"#)).over(known)).await.unwrap();
                log.push((documents.last_seq().await.unwrap(), id, n));
                documents.put_local("_local/checkpoint", Some(n), json(&format!(r#"{{"n":{n}}}"#))).await.unwrap();
            }
            log
        })
    };
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(repository.back_up(engine.clone(), &options, &[], &mut quiet).await.unwrap().run);
    }
    is_over.store(true, Ordering::SeqCst);
    let log = writing.await.unwrap();
    for run in runs {
        let seq: Seq = run.databases[0].seq.parse().unwrap();
        assert!(seq >= start);
        let target = MemDatabase::new();
        let wanted = RestoreOptions { run: Some(run.id), ..RestoreOptions::default() };
        repository.restore(target.clone(), &options, &wanted, &mut quiet).await.unwrap();
        let restored = Layer::open(target, options.clone()).await.unwrap().database("db").await.unwrap();
        let at = log.partition_point(|(of, ..)| *of <= seq);
        let mut expected = std::collections::HashMap::new();
        for (_, id, n) in &log[..at] {
            expected.insert(id.clone(), *n);
        }
        for at in 0..3_000 {
            let id = format!("d{at}");
            let found = restored.get(&id, &model::GetOptions::default()).await.unwrap();
            let n = expected.get(&id).copied().unwrap_or(0);
            assert_eq!(found.body.as_str(), format!(r#"{{"n":{n}}}"#), "{id} at {seq}");
        }
        if let Ok(checkpoint) = restored.get_local("_local/checkpoint").await {
            let promised = checkpoint.rev - 1;
            assert!(log[..at].iter().any(|(_, _, n)| *n == promised), "{promised} is promised, and was not there yet");
        }
    }
}
