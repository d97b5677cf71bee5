//! Histories of many clients over HTTP are strictly serializable, through kills of the server and faults of commits.
//!
//! The method is [`conformance::serializability`]'s: each document holds a list, edits append unique elements to it,
//! and a cycle of dependencies is an anomaly. An edit names the revision that it was made over, so it is a transaction
//! that reads a list and appends to it. The chain of revisions is the list, so generation and length are equal.
//!
//! ```text
//!   PUT, an edit of _bulk_docs                 one transaction each
//!   _transact                                  one transaction for all its edits, of two databases
//!   GET, a document of _bulk_get               one transaction each that reads
//!   _all_docs with documents, in one page      one transaction that reads all lists of a database
//!   _changes, resumed by `since`               the same: what all answers so far say is the database's state
//! ```
//!
//! A conflict is a transaction that failed. Where no answer came, or 5xx, the outcome is unknown: after a kill the
//! documents decide it.
//!
//! `SEED` repeats the choices, not the schedule. `HISTORIES_ROUNDS` is the number of kills for each engine of
//! `HISTORIES_ENGINES`. A long run:
//!
//! ```text
//! HISTORIES_ROUNDS=500 HISTORIES_ENGINES=lsm,sled cargo test --test histories -- --nocapture
//! ```

#![cfg(all(feature = "mem", feature = "lsm"))]

#[path = "program/server.rs"]
mod process;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::chaos::{Chaos, Rates};
use conformance::random::Random;
use conformance::serializability::{Anomaly, AnomalyKind, Element, History, Operation, Outcome, Recorded, check};
use kv_api::AnyDatabase;
use model::{Layer, LayerOptions};
use process::Process;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use server::engine::{IfMissing, open};
use server::http::{Options, Server};

/// Each has its own documents. A key of the history is a document of one of them.
const DATABASES: [&str; 2] = ["left", "right"];
const DOCUMENTS: u32 = 4;
const WRITERS: u64 = 6;

/// A document's key in the history.
fn key(database: usize, id: &str) -> u32 {
    let number: u32 = id.parse().expect("an id of this test");
    number + DOCUMENTS * u32::try_from(database).expect("a small number")
}

fn place(key: u32) -> (&'static str, String) {
    (DATABASES[(key / DOCUMENTS) as usize], (key % DOCUMENTS).to_string())
}

/// A document as read: its list and its revision.
#[derive(Clone, Debug, Default)]
struct Register {
    list: Vec<Element>,
    rev: Option<String>,
}

impl Register {
    /// From a document's JSON.
    fn of(document: &Value) -> Register {
        let list: Vec<Element> = document["list"].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect();
        let rev = document["_rev"].as_str().unwrap().to_owned();
        assert_eq!(generation(&rev), list.len(), "the chain of revisions is the list: {document}");
        Register { list, rev: Some(rev) }
    }

    /// An edit that appends to it.
    fn appended(&self, id: &str, element: Element) -> Value {
        let mut edit = json!({"_id": id, "list": self.list.iter().chain([&element]).collect::<Vec<_>>()});
        if let Some(rev) = &self.rev {
            edit["_rev"] = json!(rev);
        }
        edit
    }
}

fn generation(rev: &str) -> usize {
    rev.split_once('-').unwrap().0.parse().unwrap()
}

/// Lies of a client, to show that lies are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// A write is acknowledged but was not made.
    LostUpdate,
    /// A read gives an earlier list.
    StaleRead,
    /// A transaction is split into two.
    SplitTransaction,
    /// A feed leaves a row out.
    SkippingFeed,
}

/// State that all clients share.
struct Run {
    client: Client,
    base: Mutex<String>,
    stop: AtomicBool,
    clock: AtomicU64,
    elements: AtomicU64,
    recorded: Mutex<Vec<Recorded>>,
    /// Acknowledged revisions, by key and generation.
    revs: Mutex<BTreeMap<(u32, usize), String>>,
    /// Where the feed of each database stopped, and what its answers said so far.
    feeds: Mutex<Vec<(String, BTreeMap<u32, Register>)>>,
    /// Whether read versions may become too old, so that a listing is not a snapshot.
    interrupted: bool,
    lie: Option<Lie>,
}

/// An answer; `None` if the connection broke.
type Answer = Option<(u16, Value)>;

impl Run {
    fn new(interrupted: bool, lie: Option<Lie>) -> Arc<Run> {
        Arc::new(Run {
            client: Client::new(),
            base: Mutex::default(),
            stop: AtomicBool::new(false),
            clock: AtomicU64::new(0),
            elements: AtomicU64::new(0),
            recorded: Mutex::default(),
            revs: Mutex::default(),
            feeds: Mutex::new(vec![("0".to_owned(), BTreeMap::new()); DATABASES.len()]),
            interrupted,
            lie,
        })
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>, timeout: Option<Duration>) -> Answer {
        let url = format!("{}{path}", self.base.lock().unwrap());
        let mut request = self.client.request(method, url);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let text = response.text().await.ok()?;
        let answer = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {status} {text}"));
        assert!(status < 400 || [404, 409].contains(&status) || status >= 500, "{path}: {status} {text}");
        Some((status, answer))
    }

    async fn read(&self, path: &str, body: Option<Value>) -> Option<Value> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let (status, answer) = self.send(method, path, body, None).await?;
        (status < 500).then_some(answer)
    }

    fn record(&self, begun: u64, operations: Vec<Operation>, outcome: Outcome) {
        let ended = self.tick();
        self.recorded.lock().unwrap().push(Recorded { operations, outcome, begun, ended });
    }

    /// Starts as many transactions as there are edits. Their times are distinct.
    fn begin(&self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.tick()).collect()
    }

    /// Remembers that an edit made a revision.
    fn acknowledged(&self, key: u32, over: &Register, rev: &Value) {
        let rev = rev.as_str().expect("a revision");
        assert_eq!(generation(rev), over.list.len() + 1, "the next of {over:?}: {rev}");
        let other = self.revs.lock().unwrap().insert((key, generation(rev)), rev.to_owned());
        assert!(other.is_none(), "{rev} of {key} was acknowledged before: {other:?}");
    }
}

/// The operations of an edit.
fn edits_of(key: u32, register: &Register, element: Element) -> Vec<Operation> {
    vec![Operation::Read { key, list: register.list.clone() }, Operation::Append { key, element }]
}

fn reads_of(database: usize, registers: &BTreeMap<u32, Register>) -> Vec<Operation> {
    let keys = (0..DOCUMENTS).map(|number| key(database, &number.to_string()));
    let list = |key| registers.get(&key).map(|register: &Register| register.list.clone()).unwrap_or_default();
    keys.map(|key| Operation::Read { key, list: list(key) }).collect()
}

/// One of the clients.
struct Writer {
    run: Arc<Run>,
    random: Random,
    /// The documents as this client knows them. They may be old, so that edits conflict.
    known: BTreeMap<u32, Register>,
}

impl Writer {
    /// Sends requests until it is told to stop or the server is gone.
    async fn go(mut self) {
        while !self.run.stop.load(Ordering::Relaxed) {
            match self.random.below(10) {
                0..3 => self.get().await,
                3..6 => self.put().await,
                6 => self.bulk_docs().await,
                7 => self.transact().await,
                8 => self.bulk_get().await,
                _ => self.all_docs(0).await.and(self.all_docs(1).await),
            };
        }
    }

    fn lies(&mut self, lie: Lie) -> bool {
        self.run.lie == Some(lie) && self.random.chance(0.1)
    }

    fn any_key(&mut self) -> u32 {
        u32::try_from(self.random.below(u64::from(DOCUMENTS) * 2)).expect("a small number")
    }

    /// Some documents, each once, as known to this client, with an element to append.
    fn some(&mut self, of: std::ops::Range<u32>) -> Vec<(u32, Register, Element)> {
        let mut keys: Vec<u32> = of.filter(|_| self.random.chance(0.4)).collect();
        if self.random.chance(0.5) {
            keys.reverse();
        }
        let run = &self.run;
        let element = || run.elements.fetch_add(1, Ordering::Relaxed);
        keys.into_iter().map(|key| (key, self.known.get(&key).cloned().unwrap_or_default(), element())).collect()
    }

    /// A client that hangs up may do so at any moment.
    fn timeout(&mut self) -> Option<Duration> {
        self.random.chance(0.05).then(|| Duration::from_micros(200 + self.random.below(5_000)))
    }

    async fn get(&mut self) -> Option<()> {
        let key = self.any_key();
        let (database, id) = place(key);
        let begun = self.run.tick();
        let answer = self.run.read(&format!("/{database}/{id}"), None).await?;
        let mut register = if answer["_id"].is_null() { Register::default() } else { Register::of(&answer) };
        self.known.insert(key, register.clone());
        if register.list.len() > 2 && self.lies(Lie::StaleRead) {
            register.list.truncate(1);
        }
        self.run.record(begun, vec![Operation::Read { key, list: register.list }], Outcome::Committed);
        Some(())
    }

    async fn put(&mut self) -> Option<()> {
        let key = self.any_key();
        let register = self.known.get(&key).cloned().unwrap_or_default();
        let (database, id) = place(key);
        let (element, timeout) = (self.run.elements.fetch_add(1, Ordering::Relaxed), self.timeout());
        let begun = self.run.tick();
        let operations = edits_of(key, &register, element);
        if self.lies(Lie::LostUpdate) {
            self.run.record(begun, operations, Outcome::Committed);
            return Some(());
        }
        let edit = register.appended(&id, element);
        let answer = self.run.send(Method::PUT, &format!("/{database}/{id}"), Some(edit), timeout).await;
        let outcome = match &answer {
            Some((201, made)) => {
                self.run.acknowledged(key, &register, &made["rev"]);
                self.learn(key, &register, element, &made["rev"]);
                Outcome::Committed
            }
            Some((409, _)) => {
                self.known.remove(&key);
                Outcome::Failed
            }
            _ => Outcome::Unknown,
        };
        self.run.record(begun, operations, outcome);
        answer.map(drop)
    }

    fn learn(&mut self, key: u32, over: &Register, element: Element, rev: &Value) {
        let mut list = over.list.clone();
        list.push(element);
        self.known.insert(key, Register { list, rev: rev.as_str().map(str::to_owned) });
    }

    async fn bulk_docs(&mut self) -> Option<()> {
        let database = self.random.below(2) as usize;
        let first = key(database, "0");
        let asked = self.some(first..first + DOCUMENTS);
        let docs: Vec<Value> =
            asked.iter().map(|(key, register, element)| register.appended(&place(*key).1, *element)).collect();
        let (path, timeout) = (format!("/{}/_bulk_docs", DATABASES[database]), self.timeout());
        let begun = self.run.begin(asked.len());
        let answer = self.run.send(Method::POST, &path, Some(json!({"docs": docs})), timeout).await;
        for (at, (begun, (key, register, element))) in begun.into_iter().zip(asked).enumerate() {
            let result = match &answer {
                Some((201, results)) => &results[at],
                _ => &Value::Null,
            };
            let outcome = match result["error"].as_str() {
                None if result["ok"] == json!(true) => {
                    self.run.acknowledged(key, &register, &result["rev"]);
                    self.learn(key, &register, element, &result["rev"]);
                    Outcome::Committed
                }
                Some("conflict") => {
                    self.known.remove(&key);
                    Outcome::Failed
                }
                _ => Outcome::Unknown,
            };
            self.run.record(begun, edits_of(key, &register, element), outcome);
        }
        answer.map(drop)
    }

    async fn transact(&mut self) -> Option<()> {
        // So many concurrent edits nearly always conflict if the known documents are old.
        self.all_docs(0).await?;
        self.all_docs(1).await?;
        let splits = self.run.lie == Some(Lie::SplitTransaction);
        // Listings of a database show half transactions in it.
        let asked = self.some(0..if splits { DOCUMENTS } else { 2 * DOCUMENTS });
        let edits: Vec<Value> = asked
            .iter()
            .map(|(key, register, element)| {
                let (database, id) = place(*key);
                json!({"db": database, "doc": register.appended(&id, *element)})
            })
            .collect();
        let timeout = self.timeout();
        let operations =
            asked.iter().flat_map(|(key, register, element)| edits_of(*key, register, *element)).collect::<Vec<_>>();
        let begun = self.run.tick();
        if edits.len() > 1 && splits {
            return self.transact_in_halves(&edits, operations).await;
        }
        let answer = self.run.send(Method::POST, "/_transact", Some(json!({"edits": edits})), timeout).await;
        let outcome = match &answer {
            Some((201, made)) => {
                for ((key, register, element), made) in asked.iter().zip(made.as_array().unwrap()) {
                    self.run.acknowledged(*key, register, &made["rev"]);
                    self.learn(*key, register, *element, &made["rev"]);
                }
                Outcome::Committed
            }
            Some((409, _)) => Outcome::Failed,
            _ => Outcome::Unknown,
        };
        self.run.record(begun, operations, outcome);
        answer.map(drop)
    }

    /// Reports one transaction if both halves are made, and the truth otherwise.
    async fn transact_in_halves(&mut self, edits: &[Value], operations: Vec<Operation>) -> Option<()> {
        let half = edits.len().div_ceil(2);
        let mut halves = Vec::new();
        for (edits, operations) in edits.chunks(half).zip(operations.chunks(2 * half)) {
            let begun = self.run.tick();
            let (status, _) = self.run.send(Method::POST, "/_transact", Some(json!({"edits": edits})), None).await?;
            let outcome = if status == 201 { Outcome::Committed } else { Outcome::Failed };
            halves.push((begun, operations.to_vec(), outcome));
            self.all_docs(0).await?;
        }
        if halves.iter().all(|(_, _, outcome)| *outcome == Outcome::Committed) {
            self.run.record(halves[0].0, operations, Outcome::Committed);
        } else {
            halves.into_iter().for_each(|(begun, operations, outcome)| self.run.record(begun, operations, outcome));
        }
        Some(())
    }

    async fn bulk_get(&mut self) -> Option<()> {
        let database = self.random.below(2) as usize;
        let ids: Vec<Value> = (0..DOCUMENTS).map(|id| json!({"id": id.to_string()})).collect();
        let begun = self.run.begin(ids.len());
        let path = format!("/{}/_bulk_get", DATABASES[database]);
        let answer = self.run.read(&path, Some(json!({"docs": ids}))).await?;
        let results = answer["results"].as_array()?;
        for (begun, result) in begun.into_iter().zip(results) {
            let key = key(database, result["id"].as_str().unwrap());
            let found = &result["docs"][0];
            let register = match found["error"]["error"].as_str() {
                None => Register::of(&found["ok"]),
                Some("not_found") => Register::default(),
                Some(_) => continue,
            };
            self.known.insert(key, register.clone());
            self.run.record(begun, vec![Operation::Read { key, list: register.list }], Outcome::Committed);
        }
        Some(())
    }

    async fn all_docs(&mut self, database: usize) -> Option<()> {
        let begun = self.run.begin(DOCUMENTS as usize);
        let answer = self.run.read(&format!("/{}/_all_docs?include_docs=true", DATABASES[database]), None).await?;
        let rows = answer["rows"].as_array()?;
        let registers: BTreeMap<u32, Register> =
            rows.iter().map(|row| (key(database, row["id"].as_str().unwrap()), Register::of(&row["doc"]))).collect();
        let reads = reads_of(database, &registers);
        if !self.run.interrupted {
            self.run.record(begun[0], reads, Outcome::Committed);
        } else {
            // A listing whose read version becomes too old continues at a newer one.
            begun.into_iter().zip(reads).for_each(|(begun, read)| {
                self.run.record(begun, vec![read], Outcome::Committed);
            });
        }
        self.known.extend(registers);
        Some(())
    }
}

/// Follows the feed of a database from where it stopped last, until it is told to stop or the server is gone.
async fn follow(run: Arc<Run>, database: usize, mut random: Random) {
    let digits = |seq: &str| seq.split_once('-').map(|(_, digits)| digits.to_owned()).unwrap_or_default();
    while !run.stop.load(Ordering::Relaxed) {
        let (mut since, mut state) = run.feeds.lock().unwrap()[database].clone();
        let feed = ["normal", "longpoll&timeout=100"][random.below(2) as usize];
        let begun = run.tick();
        let path = format!("/{}/_changes?include_docs=true&feed={feed}&since={since}", DATABASES[database]);
        let Some(answer) = run.read(&path, None).await else { continue };
        let Some(rows) = answer["results"].as_array() else { continue };
        for row in rows {
            let (seq, register) = (row["seq"].as_str().unwrap(), Register::of(&row["doc"]));
            assert!(digits(seq) > digits(&since), "a row of {path} is not after {since}: {answer}");
            assert_eq!(row["changes"][0]["rev"].as_str(), register.rev.as_deref());
            since = seq.to_owned();
            if run.lie != Some(Lie::SkippingFeed) || !random.chance(0.1) {
                state.insert(key(database, row["id"].as_str().unwrap()), register);
            }
        }
        let last = answer["last_seq"].as_str().unwrap();
        assert!(digits(last) >= digits(&since), "{path}: {answer}");
        run.record(begun, reads_of(database, &state), Outcome::Committed);
        run.feeds.lock().unwrap()[database] = (last.to_owned(), state);
    }
}

impl Run {
    /// Runs all clients for some hundred transactions, then `end`s their server.
    async fn round(self: &Arc<Self>, base: &str, random: &mut Random, end: impl AsyncFnOnce()) {
        base.clone_into(&mut self.base.lock().unwrap());
        self.stop.store(false, Ordering::Relaxed);
        let before = self.recorded.lock().unwrap().len();
        let mut clients = Vec::new();
        for _ in 0..WRITERS {
            let writer = Writer { run: self.clone(), random: Random::new(random.bits()), known: BTreeMap::new() };
            clients.push(tokio::spawn(writer.go()));
        }
        for database in 0..DATABASES.len() {
            clients.push(tokio::spawn(follow(self.clone(), database, Random::new(random.bits()))));
        }
        let enough = before + 300 + random.below(500) as usize;
        while self.recorded.lock().unwrap().len() < enough {
            tokio::time::sleep(Duration::from_micros(random.below(5_000))).await;
        }
        end().await;
        self.stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        // The server is gone, so a write that has not happened by now never will.
        for transaction in &mut self.recorded.lock().unwrap()[before..] {
            if transaction.outcome == Outcome::Unknown {
                transaction.ended = self.tick();
            }
        }
    }

    /// The history, with all lists as they are now.
    async fn finish(&self, base: &str) -> History {
        base.clone_into(&mut self.base.lock().unwrap());
        let mut last = BTreeMap::new();
        for key in 0..2 * DOCUMENTS {
            let (database, id) = place(key);
            let begun = self.tick();
            let found = self.read(&format!("/{database}/{id}?revs=true"), None).await.expect("an answer");
            let register = if found["_id"].is_null() { Register::default() } else { Register::of(&found) };
            let ids = found["_revisions"]["ids"].as_array().cloned().unwrap_or_default();
            for ((_, generation), rev) in self.revs.lock().unwrap().range((key, 0)..(key + 1, 0)) {
                // Ancestors are listed from the newest on.
                let kept = register.list.len().checked_sub(*generation).and_then(|at| ids.get(at));
                let is_kept = kept.is_some_and(|hash| rev.ends_with(&format!("-{}", hash.as_str().unwrap())));
                assert!(
                    is_kept || self.lie.is_some(),
                    "{rev} of {key} was acknowledged, and is not an ancestor: {found}"
                );
            }
            self.record(begun, vec![Operation::Read { key, list: register.list.clone() }], Outcome::Committed);
            last.insert(key, register.list);
        }
        History { transactions: self.recorded.lock().unwrap().clone(), last }
    }
}

async fn create_databases(base: &str) {
    for database in DATABASES {
        let made = Client::new().put(format!("{base}/{database}")).send().await.unwrap();
        assert!(made.status() == 201, "{}", made.text().await.unwrap());
    }
}

fn seed() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = std::env::var("SEED").map_or(now, |seed| seed.parse().expect("a number"));
    println!("SEED={seed}");
    seed
}

/// Prints the outcomes of transactions, and requires enough of each.
fn count(name: &str, history: &History) {
    let count = |outcome| history.transactions.iter().filter(|one| one.outcome == outcome).count();
    let [committed, failed, unknown] = [Outcome::Committed, Outcome::Failed, Outcome::Unknown].map(count);
    println!("{name}: {committed} committed, {failed} failed, {unknown} unknown");
    assert!(committed > 100 && failed > 0, "so few that nothing is shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_through_kills_are_strictly_serializable() {
    let seed = seed();
    let rounds: u32 = std::env::var("HISTORIES_ROUNDS").map_or(3, |rounds| rounds.parse().expect("a number"));
    let engines = std::env::var("HISTORIES_ENGINES").unwrap_or_else(|_| "lsm".to_owned());
    for engine in engines.split(',') {
        let random = &mut Random::new(seed);
        // The documents of more rounds grow too large for a short history.
        for rounds in (0..rounds).step_by(4).map(|done| (rounds - done).min(4)) {
            let root = tempfile::tempdir().unwrap();
            let url = format!("{engine}:{}", root.path().join("data").display());
            let start = || Process::start(&["--engine", &url]);
            let run = Run::new(false, None);
            let mut server = start();
            create_databases(&server.base).await;
            for _ in 0..rounds {
                let base = server.base.clone();
                run.round(&base, random, async || {
                    server.child.kill().unwrap();
                    server.child.wait().unwrap();
                })
                .await;
                server = start();
            }
            let mut history = run.finish(&server.base).await;
            count(engine, &history);
            history.settle();
            check(&history).unwrap_or_else(|anomaly| panic!("SEED={seed}, {engine}: {anomaly}"));
        }
    }
}

/// Runs clients of a server in this process, whose commits fail at this rate.
async fn with_faults(seed: u64, rate: f64, lie: Option<Lie>) -> (History, Result<(), Anomaly>) {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let engine = AnyDatabase::new(Chaos::new(engine, seed, Rates::retryable(rate)));
    let layer = Layer::open(engine, LayerOptions::default()).await.unwrap();
    let server = Server::start(layer, "127.0.0.1:0".parse().unwrap(), Options::default()).await.unwrap();
    let base = format!("http://{}", server.address());
    create_databases(&base).await;
    let run = Run::new(rate > 0.0, lie);
    let stop = run.clone();
    run.round(&base, &mut Random::new(seed), async move || stop.stop.store(true, Ordering::Relaxed)).await;
    let history = run.finish(&base).await;
    let checked = check(&history);
    (history, checked)
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_through_faults_of_commits_are_strictly_serializable() {
    let seed = seed();
    let (history, checked) = with_faults(seed, 0.03, None).await;
    count("mem with faults", &history);
    checked.unwrap_or_else(|anomaly| panic!("SEED={seed}: {anomaly}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_are_told_wrongly_is_found() {
    use AnomalyKind::{CircularInformation, DirtyWrite, LongFork, LostUpdate, ReadSkew, StaleRead, WriteSkew};
    let seed = seed();
    for (lie, kinds) in [
        (Lie::LostUpdate, &[LostUpdate][..]),
        (Lie::StaleRead, &[StaleRead]),
        (Lie::SplitTransaction, &[DirtyWrite, CircularInformation, ReadSkew, WriteSkew, LongFork, StaleRead]),
        (Lie::SkippingFeed, &[ReadSkew, StaleRead, WriteSkew, LongFork]),
    ] {
        // Whether this is noticed depends on the schedule.
        let mut attempt = 0;
        let found = loop {
            match with_faults(seed.wrapping_add(attempt), 0.0, Some(lie)).await.1 {
                Err(found) => break found,
                Ok(()) => assert!(attempt < 20, "SEED={seed}: nobody notices {lie:?}"),
            }
            attempt += 1;
        };
        assert!(kinds.contains(&found.kind), "SEED={seed}, {lie:?}: {found}");
        println!("{lie:?}: {:?}", found.kind);
    }
}
