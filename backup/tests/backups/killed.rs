//! Backups, prunings and restores that are killed at any operation, or whose disk is full, while the database is
//! written. Whatever is listed afterwards is whole, and each run has the database exactly as it was at the sequence that
//! the run names.
//!
//! `KILLS` is the number of kills and full disks; `BACKUP_SEED` repeats a round.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use backup::{Error, Folder, Protection, Repository, RestoreOptions};
use engine_mem::MemDatabase;
use futures_executor::block_on;
use kv_api::{AnyDatabase, Database};
use model::{
    AttachmentEdit, AttachmentSource, BulkGet, ChangesRequest, CreateOptions, Documents, Layer, LayerOptions, OpenRev,
    Purge, RevId,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::breaking::{Breaking, Fault, Faults, NEVER};
use crate::ships::Ticks;
use crate::stage::{Ends, edit, files, json, quiet};

/// A day, after which the mark of a run that was killed no longer counts.
const DAY_MS: u64 = 86_400_000;

/// Documents as the writer knows them: whether each is deleted, its revision, number, and length of its attachment.
type State = BTreeMap<String, (bool, RevId, u64, u64)>;

/// The one writer of the database, which knows each state that there was.
struct Writer {
    random: StdRng,
    documents: Documents<AnyDatabase>,
    clock: Arc<Ticks>,
    now: State,
    history: Arc<Mutex<History>>,
    number: u64,
}

/// Documents are read, and written, by threads beside each other.
fn options() -> LayerOptions {
    LayerOptions { threads: 2, ..LayerOptions::default() }
}

/// What was acknowledged, and when.
#[derive(Default)]
struct History {
    /// The states at each sequence: a purge changes the state and may leave the sequence.
    states: BTreeMap<String, Vec<(u64, State)>>,
    /// The number of each write, and the time of its acknowledgement.
    acknowledged: Vec<(u64, u64)>,
}

impl Writer {
    async fn new(seed: u64, documents: Documents<AnyDatabase>, clock: Arc<Ticks>) -> Writer {
        let (now, history) = (State::new(), Arc::default());
        let mut writer = Writer { random: StdRng::seed_from_u64(seed), documents, clock, now, history, number: 0 };
        writer.note().await;
        writer
    }

    async fn note(&mut self) {
        let seq = self.documents.last_seq().await.unwrap().to_string();
        let mut history = self.history.lock().unwrap();
        history.states.entry(seq).or_default().push((self.number, self.now.clone()));
        history.acknowledged.push((self.number, self.clock.tick()));
    }

    /// One write.
    async fn write(&mut self) {
        self.number += 1;
        let (number, id) = (self.number, format!("document {}", self.random.random_range(0..60)));
        let known = self.now.get(&id).cloned();
        match (self.random.random_range(0..20), known) {
            (0..3, Some((false, rev, ..))) => {
                let rev = self.documents.put(edit(&id, "{}").over(rev).deleting()).await.unwrap();
                self.now.insert(id, (true, rev, 0, 0));
            }
            (3, Some((_, rev, ..))) => {
                for result in self.documents.purge(&[Purge::new(&id, vec![rev])]).await.unwrap() {
                    result.unwrap();
                }
                self.now.remove(&id);
            }
            (4..6, _) => {
                // A checkpoint: it promises what was acknowledged before it.
                let body = json(&format!(r#"{{"n":{}}}"#, number - 1));
                self.documents.put_local("_local/checkpoint", None, body).await.unwrap();
            }
            (kind, known) => {
                let filler = "x".repeat(self.random.random_range(0..3_000));
                let mut written = edit(&id, &format!(r#"{{"n":{number},"filler":"{filler}"}}"#));
                if let Some((false, rev, ..)) = known {
                    written = written.over(rev);
                }
                let mut length = 0;
                if kind < 10 {
                    // Few different contents, so that documents share them.
                    length = self.random.random_range(1..20) * 1_000;
                    let data = vec![b'a'; usize::try_from(length).unwrap()];
                    written.attachments = vec![AttachmentEdit {
                        name: "a".to_owned(),
                        content_type: "application/octet-stream".to_owned(),
                        revpos: None,
                        source: AttachmentSource::Data(data.into()),
                    }];
                }
                let rev = self.documents.put(written).await.unwrap();
                self.now.insert(id, (false, rev, number, length));
            }
        }
        // Marks of runs are renewed after a minute.
        if self.random.random_range(0..20) == 0 {
            self.clock.pass(self.random.random_range(0..50_000));
        }
        self.note().await;
    }
}

/// The documents of a restored database, and what its checkpoint promises.
async fn read<D: Database>(documents: &Documents<D>) -> (State, u64) {
    let mut state = State::new();
    let page = documents.changes(&ChangesRequest::default()).await.unwrap();
    assert!(!page.more);
    for row in page.rows {
        let (_, found) = documents.get_stored(&[BulkGet { id: row.id.clone(), rev: None }]).await.unwrap().remove(0);
        let mut found = found.unwrap();
        assert_eq!(found.len(), 1, "{} has conflicts", row.id);
        let OpenRev::Found(mut document) = found.remove(0) else { panic!("no leaf") };
        documents.load_all_attachments(&mut document).await.unwrap();
        let length = document.attachments.iter().map(|attachment| attachment.length).sum();
        let number = document.body.get("n").and_then(|n| n.as_u64()).unwrap_or(0);
        state.insert(row.id, (document.deleted, document.rev.clone(), number, length));
    }
    let local = documents.get_local("_local/checkpoint").await;
    let promised = local.map_or(0, |local| local.body.get("n").unwrap().as_u64().unwrap());
    (state, promised)
}

/// A store that is written, and its repository.
struct Store {
    random: StdRng,
    root: tempfile::TempDir,
    clock: Arc<Ticks>,
    engine: AnyDatabase,
    history: Arc<Mutex<History>>,
    faults: Arc<Faults>,
    /// Runs whose backup succeeded, and which no pruning removed.
    runs: Vec<String>,
    states: u64,
    flips: u64,
}

impl Store {
    async fn new(seed: u64, faults: &Arc<Faults>) -> (Store, Writer) {
        let mut random = StdRng::seed_from_u64(seed);
        let clock = Arc::new(Ticks::default());
        let engine = AnyDatabase::new(MemDatabase::new());
        let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
        let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
        let writer = Writer::new(random.random(), documents, clock.clone()).await;
        let (history, faults) = (writer.history.clone(), faults.clone());
        let root = tempfile::tempdir().unwrap();
        let (runs, states, flips) = (Vec::new(), 0, 0);
        let store = Store { random, root, clock, engine, history, faults, runs, states, flips };
        store.open().await.unwrap();
        (store, writer)
    }

    fn place(&self) -> PathBuf {
        self.root.path().join("repository")
    }

    async fn open(&self) -> backup::Result<Repository> {
        let place = Arc::new(Folder::new(self.place()));
        Repository::open_or_create(place, &Protection::None, self.clock.clone()).await
    }

    /// The repository as a process sees it that a fault hits after so many operations.
    async fn breaking(&self, fault: Fault, left: i64) -> (Arc<Breaking>, backup::Result<Repository>) {
        let place = Arc::new(Folder::new(self.place()));
        let breaking = Breaking::new(place, &self.place(), fault, left, &self.faults);
        let opened = Repository::open_or_create(breaking.clone(), &Protection::None, self.clock.clone()).await;
        (breaking, opened)
    }

    async fn breaking_at_random(&mut self) -> (Arc<Breaking>, backup::Result<Repository>) {
        let fault = Fault::random(&mut self.random);
        let left = if self.random.random_range(0..6) == 0 { NEVER } else { self.random.random_range(0..40) };
        self.breaking(fault, left).await
    }

    async fn back_up(&self, repository: &Repository) -> backup::Result<String> {
        let report = repository.back_up(self.engine.clone(), &options(), &[], &mut quiet).await?;
        match report.failed.into_iter().next() {
            Some((_, reason)) => Err(Error::Refused(reason)),
            None => Ok(report.run.id),
        }
    }

    /// One piece of work, or several at the same time, each with its fault.
    async fn step(&mut self) -> Result<(), String> {
        let keep_ms = self.random.random_range(0..1_000_000);
        let with_backup = self.random.random_range(0..4) > 0;
        let with_other = self.random.random_range(0..8) == 0;
        let with_pruning = !with_backup || self.random.random_range(0..3) == 0;
        let (one, repository) = self.breaking_at_random().await;
        let (other, another) = self.breaking_at_random().await;
        let (pruning, third) = self.breaking_at_random().await;
        let began = self.clock.tick();
        let backup = async {
            match (with_backup, repository) {
                (true, Ok(repository)) => Some(self.back_up(&repository).await),
                _ => None,
            }
        };
        let second = async {
            match (with_other, another) {
                (true, Ok(another)) => Some(self.back_up(&another).await),
                _ => None,
            }
        };
        let pruned = async {
            match (with_pruning, third) {
                (true, Ok(third)) => Some(third.prune(keep_ms).await),
                _ => None,
            }
        };
        let (first, second, pruned) = tokio::join!(backup, second, pruned);
        let after = self.open().await.map_err(|error| format!("open: {error}"))?;
        let listed = after.runs().await.map_err(|error| format!("runs: {error}"))?;
        for (breaking, made) in [(&one, first), (&other, second)] {
            match made {
                Some(Ok(run)) if !listed.contains(&run) => return Err(format!("the run {run} is missing")),
                Some(Ok(run)) => self.runs.push(run),
                // The database changed faster than it was copied, or a pruning ended the run: then it says so.
                Some(Err(error)) if !breaking.has_happened() && !is_of_neighbour(&error) => {
                    return Err(format!("a backup failed without a fault: {error}"));
                }
                _ => {}
            }
        }
        if let Some(Err(error)) = &pruned
            && !pruning.has_happened()
        {
            return Err(format!("a pruning failed without a fault: {error}"));
        }
        let gone: Vec<String> = self.runs.iter().filter(|run| !listed.contains(run)).cloned().collect();
        for run in gone {
            let began_ms = ms_of(&run);
            if !with_pruning || began_ms + keep_ms > began + DAY_MS {
                return Err(format!("the run {run} is gone, although it was to be kept"));
            }
            self.runs.retain(|known| *known != run);
        }
        if !self.runs.is_empty() && listed.is_empty() {
            return Err("no run is left".to_owned());
        }
        self.check(&after, &listed).await?;
        if self.random.random_range(0..5) == 0 {
            self.flip(&after).await?;
        }
        if self.random.random_range(0..10) == 0 {
            self.clock.pass(DAY_MS + 1);
        }
        Ok(())
    }

    /// Verifies everything, and restores a run.
    async fn check(&mut self, repository: &Repository, listed: &[String]) -> Result<(), String> {
        let verified = repository.verify(&mut |_| {}).await.map_err(|error| format!("verify: {error}"))?;
        if !verified.problems.is_empty() || verified.runs != listed.len() {
            return Err(format!("{} runs of {}: {:?}", verified.runs, listed.len(), verified.problems));
        }
        let Some(newest) = listed.last() else { return Ok(()) };
        let run = match self.random.random() {
            true => newest.clone(),
            false => listed[self.random.random_range(0..listed.len())].clone(),
        };
        let target = MemDatabase::new();
        let wanted = RestoreOptions { run: Some(run.clone()), ..RestoreOptions::default() };
        let options = options();
        // A restore that was killed is repeated.
        let (fault, left) =
            ([Fault::KilledBefore, Fault::Once][self.random.random_range(0..2)], self.random.random_range(3..20));
        if let (_, Ok(broken)) = self.breaking(fault, left).await
            && broken
                .restore(target.clone(), &options, &wanted, &mut quiet)
                .await
                .is_ok_and(|done| done.failed.is_empty())
        {
            return self.compare(repository, &run, target).await;
        }
        let restored = repository.restore(target.clone(), &options, &wanted, &mut quiet).await;
        let restored = restored.map_err(|error| format!("{run} cannot be restored: {error}"))?;
        if !restored.failed.is_empty() || !restored.different.is_empty() || !restored.damaged.is_empty() {
            return Err(format!("{restored:?}"));
        }
        self.compare(repository, &run, target).await
    }

    /// Compares what was restored with the states that there were.
    async fn compare(&mut self, repository: &Repository, run: &str, target: MemDatabase) -> Result<(), String> {
        let info = repository.run(run).await.map_err(|error| error.to_string())?;
        let seq = info.databases[0].seq.clone();
        let layer = Layer::open(target, LayerOptions::default()).await.unwrap();
        let (found, promised) = read(&layer.database("db").await.unwrap()).await;
        self.states += 1;
        let history = self.history.lock().unwrap();
        let states =
            history.states.get(&seq).ok_or_else(|| format!("{run}: the sequence {seq} was never given out"))?;
        // The last one of several: a local document changes neither the sequence nor the documents.
        let Some((number, _)) = states.iter().rfind(|(_, state)| *state == found) else {
            return Err(format!("{run}: it is not as it was at {seq}:\n{found:?}\n{states:?}"));
        };
        if promised > *number {
            return Err(format!("{run}: its checkpoint promises {promised}, and it has {number}"));
        }
        let before = history.acknowledged.iter().take_while(|(_, at)| *at < info.began_ms).last();
        match before {
            Some((acknowledged, _)) if acknowledged > number => {
                Err(format!("{run}: {acknowledged} was acknowledged before it began, and it has {number}"))
            }
            _ => Ok(()),
        }
    }

    /// Flips a bit somewhere, which `verify` must find. Whatever is done meanwhile, nothing is lost by it.
    async fn flip(&mut self, repository: &Repository) -> Result<(), String> {
        let place = self.place();
        let all: Vec<PathBuf> = files(&place).into_iter().filter(|file| !file.starts_with(place.join("tmp"))).collect();
        let file = &all[self.random.random_range(0..all.len())];
        let name = file.strip_prefix(&place).unwrap().to_str().unwrap().to_owned();
        let sound = std::fs::read(file).unwrap();
        let mut flipped = sound.clone();
        let at = self.random.random_range(0..sound.len());
        flipped[at] ^= 1 << self.random.random_range(0..8);
        std::fs::write(file, &flipped).unwrap();
        self.flips += 1;
        if name == "repository.json" {
            let refused = self.open().await.err().map(|error| error.to_string()).unwrap_or_default();
            if !refused.starts_with("repository.json is damaged") {
                return Err(format!("byte {at} of {name}: {refused:?}"));
            }
        } else {
            let problems = repository.verify(&mut |_| {}).await.map_err(|error| error.to_string())?.problems;
            if !problems.iter().any(|(found, _)| *found == name) {
                return Err(format!("byte {at} of {name} is not named: {problems:?}"));
            }
            if self.random.random() {
                // Both fail, or work around it.
                if let Ok(run) = self.back_up(repository).await {
                    self.runs.push(run);
                }
                let _ = repository.prune(DAY_MS * 1_000).await;
            }
        }
        if file.exists() {
            std::fs::write(file, &sound).unwrap();
        }
        let problems = repository.verify(&mut |_| {}).await.map_err(|error| error.to_string())?.problems;
        if problems.is_empty() { Ok(()) } else { Err(format!("after byte {at} of {name}: {problems:?}")) }
    }
}

/// Whether the error is that of work beside other work.
fn is_of_neighbour(error: &Error) -> bool {
    let said = error.to_string();
    said.contains("changes faster than it is copied") || said.contains("stood still for so long")
}

/// The time in a run's id, in milliseconds since 1970.
fn ms_of(run: &str) -> u64 {
    let at = |from: usize, to: usize| run[from..to].to_owned();
    let text =
        format!("{}-{}-{}T{}:{}:{}.{}Z", at(0, 4), at(4, 6), at(6, 8), at(9, 11), at(11, 13), at(13, 15), at(15, 18));
    let time = humantime::parse_rfc3339(&text).unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(time.as_millis()).unwrap()
}

/// Runs steps until so many faults have happened. Returns the numbers of states and of flipped bits that were looked at.
async fn round(seed: u64, faults: &Arc<Faults>, until: u64) -> Result<(u64, u64), String> {
    let (mut store, mut writer) = Store::new(seed, faults).await;
    let (allowed, is_over) = (AtomicU64::new(100), AtomicBool::new(false));
    let steps = async {
        for _ in 0..60 {
            if faults.number() >= until {
                break;
            }
            allowed.fetch_add(store.random.random_range(0..150), Ordering::SeqCst);
            store.step().await?;
        }
        Ok::<_, String>(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                match writer.number < allowed.load(Ordering::SeqCst) {
                    true => block_on(writer.write()),
                    false => std::thread::sleep(std::time::Duration::from_micros(100)),
                }
            }
        });
        let _ends = Ends(&is_over);
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(steps))
    })?;
    Ok((store.states, store.flips))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_run_is_a_state_that_was_acknowledged_whatever_is_killed() {
    let (faults, mut states, mut flips) = (Arc::new(Faults::default()), 0, 0);
    let one = async |seed, wanted| {
        let outcome = round(seed, &faults, wanted).await;
        let (more, flipped) = outcome.unwrap_or_else(|problem| panic!("BACKUP_SEED={seed}: {problem}"));
        (states, flips) = (states + more, flips + flipped);
    };
    faults.rounds(30, one).await;
    println!("{states} restored states, {flips} flipped bits");
    assert!(states > 0);
}

/// The harness sees a place that loses what it acknowledged, and a store that loses a document.
#[tokio::test(flavor = "multi_thread")]
async fn planted_losses_are_seen() {
    let faults = Arc::new(Faults::default());
    let (mut lost, mut seen) = (0, 0);
    for left in 0..40 {
        let (mut store, mut writer) = Store::new(left, &faults).await;
        for _ in 0..20 {
            writer.write().await;
        }
        let (breaking, repository) = store.breaking(Fault::Lost, i64::try_from(left).unwrap()).await;
        let made = store.back_up(&repository.unwrap()).await;
        if !breaking.has_happened() {
            break;
        }
        lost += 1;
        let after = store.open().await.unwrap();
        let listed = after.runs().await.unwrap();
        let is_missing = made.is_ok_and(|run| !listed.contains(&run));
        // A backup reads its segments again, and then notices by itself that the pack of the documents is missing.
        seen += u32::from(is_missing || store.check(&after, &listed).await.is_err());
    }
    println!("{lost} files were lost, and {seen} of them were seen by the harness");
    assert!(lost >= 3 && seen >= 2, "a pack of documents, one of contents, a run: {lost}, {seen}");

    let (mut store, mut writer) = Store::new(1, &faults).await;
    for _ in 0..20 {
        writer.write().await;
    }
    let repository = store.open().await.unwrap();
    store.back_up(&repository).await.unwrap();
    let listed = repository.runs().await.unwrap();
    store.check(&repository, &listed).await.unwrap();
    for (_, state) in store.history.lock().unwrap().states.values_mut().flatten() {
        state.pop_first();
    }
    assert!(store.check(&repository, &listed).await.unwrap_err().contains("it is not as it was"));
}
