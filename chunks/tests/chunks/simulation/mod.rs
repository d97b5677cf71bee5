//! Many concurrent clients from one seed: editors, deleters, collectors, a server and forks of it that write apart
//! and return by replication, failures and sudden ends. Requirements:
//!
//! * When all is quiet and replicas have met, every chunk of every file can be read, on all of them.
//! * While no replication runs, it holds on each of them at any moment.
//! * After quiet and two collections, no garbage is left.
//!
//! Forks return within half of the grace period; [`forks`] has those that return later. `CHUNKS_SEEDS=N` plays N
//! seeds from a random one (`CHUNKS_FIRST_SEED=S`: from that one), and reports progress. A failing seed is printed
//! and must be added to [`SEEDS`].

mod forks;
mod hybrid;
mod stepped;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use chunks::store::{Body, DocumentStore, Edit, IdRange, Leaf};
use chunks::{Chunk, ChunkStore, CollectOptions, Error, Receipt, chunk_id};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::objects::Dated;
use crate::support::{World, replicate};
use stepped::{Fault, Played, Stage, Stepped};

/// Seeds that are always played, including all that failed once.
const SEEDS: &[u64] = &[1, 2, 5, 10108, 1795258078140];

const GRACE: u64 = 1_000_000;
const EPISODES: usize = 12;
const FILES: u64 = 12;
const REPLICAS: usize = 3;

/// A play: its databases, and the expected contents.
struct Play {
    stage: Arc<Stage>,
    fault: Fault,
    replicas: Vec<Arc<dyn DocumentStore>>,
    /// The contents that a chunk may have.
    contents: Mutex<BTreeMap<String, BTreeSet<String>>>,
    unused_percent: u8,
    /// Replicas whose clients are active.
    present: Mutex<Vec<usize>>,
    /// Whether they collect.
    collects: AtomicBool,
    /// The first of the pieces that they write.
    first_piece: AtomicU64,
    /// Destination of full data documents, if any.
    objects: Option<Arc<Dated>>,
}

/// The number of steps, or the reason why a play failed.
type Verdict = Result<u64, String>;

impl Play {
    async fn new(world: &World, seed: u64, fault: Fault) -> Play {
        let stage = Stage::new(seed);
        let mut replicas = Vec::new();
        for replica in 0..REPLICAS {
            replicas.push(world.database(&format!("replica-{seed}-{replica}")).await);
        }
        let unused_percent = [0, 20, 60][stage.roll(3) as usize];
        let present = Mutex::new((0..REPLICAS).collect());
        let play = Play {
            stage,
            fault,
            replicas,
            contents: Mutex::default(),
            unused_percent,
            present,
            collects: AtomicBool::new(true),
            first_piece: AtomicU64::new(0),
            objects: None,
        };
        let settings = json!({
            "format": 1,
            "chunk_prefix_length": play.stage.roll(2),
            "data_doc_size_limit": 64_000,
            "grace_ms": GRACE,
        });
        let body = settings.as_object().unwrap().clone();
        let edit = Edit { id: "chunks:settings".into(), rev: None, deleted: false, body };
        play.replicas[0].write(vec![edit]).await.unwrap();
        play.meet().await;
        play
    }

    /// The chunks of a replica, as an actor sees them; `None` is an observer that is never stopped.
    fn chunks(&self, replica: usize, actor: Option<usize>, fault: Fault) -> ChunkStore {
        let played = Played { stage: self.stage.clone(), actor };
        let stepped =
            Stepped { inner: self.replicas[replica].clone(), played: played.clone(), fault, held: Mutex::default() };
        let connect = self.connect(&played);
        ChunkStore::with_environment(Arc::new(stepped), Arc::new(played)).with_connect(connect)
    }

    /// A piece of a file. There are so few that most exist already. Some are encrypted.
    fn piece(&self, actor: usize) -> (String, Chunk) {
        let number = self.first_piece.load(Ordering::Relaxed) + self.stage.roll(70);
        let text = format!("{number:04} ").repeat((20 + (number as usize * 37) % 900) * self.size());
        let id = chunk_id(&text);
        let (id, chunk) = if number.is_multiple_of(7) {
            (id.replace("h:", "h:+"), Chunk::encrypted(format!("%={actor}{text}")))
        } else {
            (id, Chunk::plain(text))
        };
        self.contents.lock().unwrap().entry(id.clone()).or_default().insert(chunk.data.clone());
        (id, chunk)
    }

    /// A random actor, and whether it copies one replica to another.
    fn actor(&self, number: usize) -> (BoxFuture<'_, ()>, bool) {
        let present = self.present.lock().unwrap().clone();
        let count = present.len();
        // The first replica, the server, has as much to do as all others together.
        let place = (self.stage.roll(2 * count as u64) as usize).saturating_sub(count - 1).min(count - 1);
        let replica = present[place];
        if self.objects.is_some() && self.stage.roll(4) == 0 {
            return (self.offload(number, replica).boxed(), false);
        }
        let doing = match self.stage.roll(20) {
            0..10 => self.edit(number, replica).boxed(),
            10..13 => self.delete(number, replica).boxed(),
            13..17 if self.collects.load(Ordering::Relaxed) => self.collect(number, replica).boxed(),
            17 => self.grow(number, replica).boxed(),
            13..17 => self.edit(number, replica).boxed(),
            _ if count == 1 => self.edit(number, replica).boxed(),
            _ => {
                let other = present[(place + 1 + self.stage.roll(count as u64 - 1) as usize) % count];
                return (self.copy(number, replica, other).boxed(), true);
            }
        };
        (doing, false)
    }

    async fn edit(&self, number: usize, replica: usize) {
        let chunks = self.chunks(replica, Some(number), self.fault_of(false));
        for _ in 0..1 + self.stage.roll(3) {
            let pieces: Vec<_> = (0..1 + self.stage.roll(8)).map(|_| self.piece(number)).collect();
            let file = format!("file-{}", self.stage.roll(FILES));
            // Clients report failures to their users. All that matters is that nothing is lost.
            let Ok(receipt) = chunks.put(pieces.clone()).await else { continue };
            let Ok(leaves) = chunks.store().leaves(std::slice::from_ref(&file), false).await else { continue };
            let rev = leaves[0].iter().find(|leaf| !leaf.deleted).map(|leaf| leaf.rev.clone());
            let children: Vec<&String> = pieces.iter().map(|(id, _)| id).collect();
            let body = json!({"type": "plain", "path": file, "children": children, "by": number});
            let body = body.as_object().unwrap();
            // Sometimes without the receipt, like a client that has lost it.
            let receipt = if self.stage.roll(4) == 0 { Receipt::default() } else { receipt };
            if let Err(Error::Missing(_)) = chunks.put_file(&file, rev.as_deref(), body.clone(), &receipt).await {
                let Ok(receipt) = chunks.put(pieces).await else { continue };
                drop(chunks.put_file(&file, rev.as_deref(), body.clone(), &receipt).await);
            }
        }
    }

    async fn delete(&self, number: usize, replica: usize) {
        let chunks = self.chunks(replica, Some(number), Fault::None);
        for _ in 0..2 {
            let file = format!("file-{}", self.stage.roll(FILES));
            let Ok(leaves) = chunks.store().leaves(std::slice::from_ref(&file), false).await else { continue };
            let live: Vec<&Leaf> = leaves[0].iter().filter(|leaf| !leaf.deleted).collect();
            if live.is_empty() {
                continue;
            }
            // The winner or, to resolve a conflict, another leaf.
            let leaf = live[self.stage.roll(live.len() as u64) as usize];
            drop(chunks.store().write(vec![Edit::delete(file, &leaf.rev)]).await);
        }
    }

    async fn collect(&self, number: usize, replica: usize) {
        let chunks = self.chunks(replica, Some(number), self.fault_of(true));
        let options = CollectOptions { unused_percent: self.unused_percent, ..CollectOptions::default() };
        drop(chunks.collect(options, |_| ()).await);
    }

    async fn grow(&self, number: usize, replica: usize) {
        if self.stage.roll(3) == 0 {
            let chunks = self.chunks(replica, Some(number), Fault::None);
            drop(chunks.prepare(1_000).await);
        }
    }

    async fn copy(&self, number: usize, from: usize, to: usize) {
        let (from, to) = (self.chunks(from, Some(number), Fault::None), self.chunks(to, Some(number), Fault::None));
        let mut since: Option<String> = None;
        while let Ok(changes) = from.store().changes(since.as_deref(), 10).await {
            let ids: Vec<String> = changes.rows.iter().map(|row| row.id.clone()).collect();
            let Ok(found) = from.store().leaves(&ids, true).await else { return };
            for (id, leaves) in ids.iter().zip(found) {
                let leaves = leaves.into_iter().map(|leaf| (id.clone(), leaf)).collect();
                if to.store().graft(leaves).await.is_err() {
                    return;
                }
            }
            if !changes.more {
                return;
            }
            since = Some(changes.last_seq);
        }
    }

    fn fault_of(&self, is_collector: bool) -> Fault {
        match (self.fault, is_collector) {
            (Fault::NoGrace, true) => Fault::NoGrace,
            (Fault::IndexFirst | Fault::LastWriterWins, false) => self.fault,
            _ => Fault::None,
        }
    }

    /// Several actors, one step after the other in a random order.
    async fn episode(&self) -> Result<(), String> {
        let count = 2 + self.stage.roll(7) as usize;
        let (mut actors, copies): (Vec<Option<BoxFuture<'_, ()>>>, Vec<bool>) =
            (0..count).map(|number| self.actor(number)).map(|(doing, copies)| (Some(doing), copies)).unzip();
        // In the middle of a replication a file may arrive before its chunks.
        let is_copied = copies.contains(&true);
        self.stage.set_rough(self.stage.roll(2) == 0);
        let mut elapsed = 0;
        while actors.iter().any(Option::is_some) {
            let number = self.stage.roll(count as u64) as usize;
            let Some(future) = &mut actors[number] else { continue };
            let is_over = self.stage.drive(number, future).await;
            // Interrupted: between two operations, or after one without an answer.
            if is_over || self.stage.roll(400) == 0 {
                actors[number] = None;
                self.stage.forget(number);
            }
            if !is_copied && self.stage.roll(150) == 0 {
                let replica = self.stage.roll(REPLICAS as u64) as usize;
                self.check(replica).await.map_err(|why| format!("in between: {why}"))?;
            }
            if elapsed < GRACE / 8 {
                let pause = self.stage.roll(400);
                self.stage.pass(pause);
                elapsed += pause;
            }
        }
        self.stage.set_rough(false);
        Ok(())
    }

    /// Replicates between all active replicas.
    async fn meet(&self) {
        let present = self.present.lock().unwrap().clone();
        for _ in 0..2 {
            for replica in present.iter().copied().filter(|&replica| replica != 0) {
                replicate(&*self.replicas[replica], &*self.replicas[0]).await;
                replicate(&*self.replicas[0], &*self.replicas[replica]).await;
            }
        }
    }

    /// Checks that every chunk of every file can be read.
    async fn check(&self, replica: usize) -> Result<(), String> {
        let chunks = self.chunks(replica, None, Fault::None);
        let verified = chunks.verify(|_| ()).await.map_err(|error| error.to_string())?;
        if let Some((chunk, files)) = verified.missing.first_key_value() {
            return Err(format!("replica {replica}: {chunk} of {files:?} is missing"));
        }
        let known = self.contents.lock().unwrap().clone();
        let ids: Vec<String> = known.keys().cloned().collect();
        for (id, chunk) in chunks.get(&ids).await.map_err(|error| error.to_string())? {
            if chunk.is_some_and(|chunk| !known[&id].contains(&chunk.data)) {
                return Err(format!("replica {replica}: {id} reads back as something else"));
            }
        }
        Ok(())
    }

    /// Checks that no garbage is left.
    async fn check_clean(&self) -> Result<(), String> {
        let store = &self.replicas[0];
        let (mut referenced, mut kept) = (BTreeSet::new(), BTreeSet::new());
        let ids =
            |page: Vec<chunks::store::ListedDocument>| page.into_iter().map(|row| row.id).collect::<Vec<String>>();
        let files = ids(store.list(&IdRange::prefix("file-")).await.unwrap().rows);
        let ours = ids(store.list(&IdRange { start: "dat:".into(), ..IdRange::prefix("idx:") }).await.unwrap().rows);
        for leaf in store.leaves(&files, false).await.unwrap().iter().flatten().filter(|leaf| !leaf.deleted) {
            let children = leaf.body["children"].as_array().unwrap();
            referenced.extend(children.iter().map(|child| child.as_str().unwrap().to_owned()));
        }
        let copies = &mut BTreeMap::<String, usize>::new();
        for (id, leaves) in ours.iter().zip(store.leaves(&ours, false).await.unwrap()) {
            for leaf in leaves.iter().filter(|leaf| !leaf.deleted) {
                let members = ["chunks", "sizes"].map(|member| leaf.body.get(member).and_then(Value::as_object));
                let chunks = members.into_iter().flatten().next().cloned().unwrap_or_else(Body::new);
                if id.starts_with("dat:") {
                    chunks.keys().for_each(|chunk| *copies.entry(chunk.clone()).or_default() += 1);
                }
                kept.extend(chunks.keys().cloned());
            }
        }
        if let Some(orphan) = kept.difference(&referenced).next() {
            return Err(format!("{orphan} is left, and nobody refers to it"));
        }
        match copies.iter().find(|(_, count)| **count > 1) {
            Some((chunk, count)) => Err(format!("{count} copies of {chunk} are left")),
            None => Ok(()),
        }
    }

    async fn run(&self) -> Verdict {
        for _ in 0..EPISODES {
            self.episode().await?;
            self.meet().await;
            for replica in 0..REPLICAS {
                self.check(replica).await?;
            }
            let pause = self.stage.roll(GRACE / 4);
            self.stage.pass(pause);
        }
        self.quiet().await?;
        Ok(self.stage.trace())
    }

    /// Two collections, a grace period apart: exactly the referenced chunks remain.
    async fn quiet(&self) -> Result<(), String> {
        let everything = CollectOptions { unused_percent: 0, ..CollectOptions::default() };
        let server = self.chunks(0, None, Fault::None);
        for _ in 0..2 {
            server.collect(everything, |_| ()).await.map_err(|error| error.to_string())?;
            self.stage.pass(GRACE);
        }
        self.check(0).await?;
        self.check_clean().await?;
        self.meet().await;
        for replica in 0..REPLICAS {
            self.check(replica).await?;
        }
        Ok(())
    }
}

async fn play(world: &World, seed: u64, fault: Fault) -> Verdict {
    Play::new(world, seed, fault).await.run().await
}

/// Plays these seeds, as many at a time as there are cores, each in a world of its own, which limits memory. Returns
/// what the plays returned, in the order of the seeds.
fn play_each<T: Send>(
    what: &str,
    seeds: &[u64],
    play_one: impl AsyncFn(&World, u64) -> Result<T, String> + Sync,
) -> Vec<T> {
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let play_some = || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut played = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(&seed) = seeds.get(place) else { break };
            let one = runtime.block_on(async { play_one(&World::in_process().await, seed).await });
            if one.is_err() {
                stopped.store(true, Ordering::Relaxed);
            }
            played.push((place, one.map_err(|why| format!("{what}, seed {seed}: {why}"))));
            if (place + 1).is_multiple_of(50) {
                eprintln!("{what}: {} of {} seeds played", place + 1, seeds.len());
            }
        }
        played
    };
    let mut played: Vec<_> = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(seeds.len());
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(play_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a play without a panic")).collect()
    });
    played.sort_by_key(|(place, _)| *place);
    played.into_iter().map(|(_, one)| one.unwrap_or_else(|why| panic!("{why}"))).collect()
}

/// These seeds, and those from `CHUNKS_SEEDS`.
fn with_more(seeds: &[u64]) -> Vec<u64> {
    let mut all = seeds.to_vec();
    if let Ok(count) = std::env::var("CHUNKS_SEEDS") {
        let first = match std::env::var("CHUNKS_FIRST_SEED") {
            Ok(first) => first.parse().unwrap(),
            Err(_) => model::Environment::now_ms(&model::SystemEnvironment),
        };
        all.extend(first..first + count.parse::<u64>().unwrap());
    }
    all
}

#[test]
fn nothing_is_lost_in_memory() {
    let mut seeds = with_more(SEEDS);
    seeds.push(SEEDS[0]);
    let traces = play_each("many at once", &seeds, async |world, seed| play(world, seed, Fault::None).await);
    assert_eq!(traces.first(), traces.last(), "one seed is one play");
    assert_ne!(traces[0], traces[1]);
}

async fn play_in(world: World, seed: u64) {
    if let Err(why) = play(&world, seed, Fault::None).await {
        panic!("seed {seed}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_over_http() {
    play_in(World::over_http().await, SEEDS[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_disk() {
    for engine in ["sled", "lsm"] {
        play_in(World::over(engine, false).await, SEEDS[1]).await;
    }
}

/// If the suite passed with a faulty store, it would prove nothing. `first` is the first seed that catches the fault;
/// the seeds behind it are for the day when one play becomes another.
async fn assert_caught(fault: Fault, first: u64) {
    for seed in first..first + 40 {
        let play = Play::new(&World::in_process().await, seed, fault).await;
        if let Err(why) = play.run().await {
            println!("{fault:?} is caught by seed {seed}, after {} steps: {why}", play.stage.steps());
            assert!(why.contains("missing") || why.contains("left"), "{fault:?}: {why}");
            return;
        }
    }
    panic!("{fault:?} was not noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_without_a_grace_is_caught() {
    assert_caught(Fault::NoGrace, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_before_its_data_is_caught() {
    assert_caught(Fault::IndexFirst, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_writer_that_wins_is_caught() {
    assert_caught(Fault::LastWriterWins, 17).await;
}
