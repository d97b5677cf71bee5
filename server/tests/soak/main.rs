//! A server process under everything at once, for as long as one wants: writers, feeds, queries, views, attachments,
//! logins, replications and backups, with a SIGKILL now and then.
//!
//! ```text
//!   64 writers ──┐                                ┌── 1,000 feeds
//!                ├──▶ 32 databases of one store ──┤── 4 replications, into 4 more databases
//!   a killer ────┘    by `serve --memory`         └── backups, one after the other
//! ```
//!
//! A writer has documents that nobody else edits, so it knows the revision that an answer must have. At all times: no 5xx while the server runs, except 503 with `Retry-After`, which the budget of memory may answer; no
//! acknowledged edit is gone after a kill; no feed goes back. In the end: each feed has seen each acknowledged edit;
//! copies are equal; a backup verifies; `check` finds nothing; the memory was within `--memory`, and the folder
//! within a multiple of what is live.
//!
//! `SOAK_SECONDS` is the time under load, and `SEED` repeats the choices, not the schedule. `COUCH_LAYER_BIN` is another
//! program than that of the test's build. An hour with a release build, on a machine with other work:
//!
//! ```text
//! SOAK_SECONDS=3600 COUCH_LAYER_BIN=$PWD/target/release/couch-layer nice cargo test --test soak -- --nocapture
//! ```
#![cfg(all(feature = "lsm", feature = "javascript", target_os = "linux"))]

mod client;
mod feed;
#[path = "../program/server.rs"]
mod process;
mod writer;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use reqwest::Method;
use serde_json::{Value, json};

use client::{Lie, Run};
use feed::Feed;
use process::Process;
use writer::{Known, Writer, generation, id};

const MIB: u64 = 1 << 20;

/// `--memory` of the server. An open feed reserves 320 KiB of the budget, and what waits for clients may have a half.
const MEMORY: u64 = 1_536 * MIB;

/// Databases that are copied by a replication.
const COPIED: usize = 4;

/// How often memory and disk are measured.
const SAMPLE: Duration = Duration::from_millis(200);

/// The shortest time between kills, and the longest as a part of the load.
const KILLS: (Duration, f64) = (Duration::from_secs(5), 0.25);

/// The folder has at most this many times the live bytes, and what does not grow with them: the log, and rows that live
/// for some minutes, such as transactions' ids.
const DISK_TIMES: u64 = 4;
const DISK_BESIDE: u64 = 64 * MIB;

struct Plan {
    load: Duration,
    databases: usize,
    writers: usize,
    feeds: usize,
    kills: bool,
    /// How long feeds and copies may take to become equal, after the load.
    patience: Duration,
    /// The most memory that the process may have.
    memory: u64,
    lie: Option<Lie>,
}

/// What `--memory` does not count, by the table in `docs/adr/0077`: a stack of 9 MiB and 16 MiB of text for each thread
/// for functions, of which there is one more than cores.
fn memory_beside() -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64 + 1;
    threads * (9 + 16) * MIB
}

struct Server {
    folder: tempfile::TempDir,
    process: Option<Process>,
    most_memory: u64,
    most_disk: u64,
    kills: u64,
    slowest_start: Duration,
}

impl Server {
    fn program(&self) -> Command {
        let program = std::env::var_os("COUCH_LAYER_BIN");
        let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_couch-layer").into()));
        command.env_clear().stdin(Stdio::null());
        command
    }

    fn store(&self) -> String {
        format!("lsm:{}", self.folder.path().join("store").display())
    }

    fn log(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    /// Starts it at this address. Its log goes on.
    fn start(&mut self, address: &str) -> String {
        let begun = Instant::now();
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut command = self.program();
        command.args(["serve", "--engine", &self.store(), "--listen", address, "--memory", &MEMORY.to_string()]);
        command.env("COUCHDB_USER", "anna").env("COUCHDB_PASSWORD", "secret").stdout(Stdio::piped()).stderr(log);
        let process = Process::of(&mut command);
        self.slowest_start = self.slowest_start.max(begun.elapsed());
        let base = process.base.clone();
        self.process = Some(process);
        base
    }

    fn measure(&mut self) {
        let memory = self.process.as_ref().and_then(|process| process.memory("VmHWM"));
        self.most_memory = self.most_memory.max(memory.unwrap_or_default());
        self.most_disk = self.most_disk.max(bytes_of(&self.folder.path().join("store")));
    }

    /// Kills it without a warning, and starts it again.
    fn kill(&mut self, run: &Run) {
        self.measure();
        run.next_epoch();
        // Dropping kills.
        self.process = None;
        let address = run.base.trim_start_matches("http://").to_owned();
        self.start(&address);
        run.next_epoch();
        self.kills += 1;
    }
}

/// The bytes of the files in a folder. Some may go while it is read.
fn bytes_of(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

fn database(number: usize) -> String {
    format!("soak{number:02}")
}

/// Repeats a request until the server takes it.
async fn insist(run: &Run, method: Method, path: &str, body: &Value, expected: &[u16]) -> Value {
    loop {
        if let Some(answer) = run.ask_json("set up", run.with_json(method.clone(), path, body), expected).await {
            return answer;
        }
        assert!(run.problems().is_empty(), "{:?}", run.problems());
    }
}

async fn set_up(run: &Run, plan: &Plan) {
    let user = json!({"name": "bea", "type": "user", "roles": [], "password": "apple"});
    for path in ["/_users", "/_replicator"] {
        insist(run, Method::PUT, path, &json!({}), &[201, 412]).await;
    }
    insist(run, Method::PUT, "/_users/org.couchdb.user:bea", &user, &[201]).await;
    let map = "function (doc) { if ('writer' in doc) emit(doc.writer, null); }";
    let views = json!({"language": "javascript", "views": {"writers": {"map": map, "reduce": "_count"}}});
    for number in 0..plan.databases {
        let name = database(number);
        insist(run, Method::PUT, &format!("/{name}"), &json!({}), &[201]).await;
        // A copy that misses all revisions that the source remembers has them as another edit branch.
        if number >= COPIED {
            insist(run, Method::PUT, &format!("/{name}/_revs_limit"), &json!(20), &[200]).await;
        }
        insist(run, Method::PUT, &format!("/{name}/_design/soak"), &views, &[201]).await;
        insist(run, Method::POST, &format!("/{name}/_index"), &json!({"index": {"fields": ["writer"]}}), &[200]).await;
    }
    for name in (0..COPIED.min(plan.databases)).map(database) {
        let mut asked = replication(run, &name);
        asked["continuous"] = json!(true);
        insist(run, Method::PUT, &format!("/_replicator/{name}"), &asked, &[201]).await;
    }
}

fn replication(run: &Run, name: &str) -> Value {
    let with_user = run.base.replace("http://", "http://anna:secret@");
    let (source, target) = (format!("{with_user}/{name}"), format!("{with_user}/{name}-copy"));
    json!({"source": source, "target": target, "create_target": true})
}

/// Makes backups until the run stops, and one more. The number of those that ended.
async fn back_up(run: Arc<Run>, to: String) -> u64 {
    let mut ended = 0;
    loop {
        let is_last = run.is_stopping();
        let asked = json!({"to": to, "no_encryption": true, "keep": "20s"});
        let request = run.with_json(Method::POST, "/_couch_layer/backup", &asked);
        if run.ask_json("backup", request, &[202]).await.is_some() {
            let state = loop {
                let request = run.request(Method::GET, "/_couch_layer/backup");
                match run.ask_json("backup, is it made", request, &[200]).await {
                    Some(state) if state["state"] == json!("running") => {}
                    other => break other,
                }
                tokio::time::sleep(SAMPLE).await;
            };
            match state {
                Some(state) if state["state"] == json!("failed") => run.problem(format!("a backup: {state}")),
                // After a kill nobody knows of it.
                Some(state) if state["state"] == json!("ended") => {
                    ended += 1;
                    if is_last {
                        return ended;
                    }
                }
                _ => {}
            }
        }
        if is_last && !run.problems().is_empty() {
            return ended;
        }
        tokio::time::sleep(SAMPLE).await;
    }
}

/// Repeats a check until it finds nothing. What it found after all patience is a problem.
async fn patiently<F: Future<Output = Option<String>>>(run: &Run, patience: Duration, check: impl Fn() -> F) {
    let until = Instant::now() + patience;
    while let Some(found) = check().await {
        if Instant::now() > until {
            return run.problem(found);
        }
        tokio::time::sleep(SAMPLE).await;
    }
}

/// The first edit that a feed has not seen.
fn unseen(feeds: &[Arc<Feed>], writers: &[Vec<Known>], databases: usize) -> Option<String> {
    feeds.iter().find_map(|feed| {
        let of_database = (feed.number % databases..writers.len()).step_by(databases);
        of_database.flat_map(|writer| writers[writer].iter().enumerate().map(move |at| (writer, at))).find_map(
            |(writer, (document, known))| {
                let (seen, rev) = (feed.seen(writer, document), known.rev.as_deref()?);
                let name = id(writer, document);
                let missing = format!("feed {} of {} was not shown {rev} of {name}", feed.number, feed.database);
                (seen < generation(rev)).then(|| format!("{missing}, the newest was generation {seen}"))
            },
        )
    })
}

/// All leaves of a database. `None` only after a problem, not if the server has no room at the moment.
async fn leaves(run: &Run, name: &str) -> Option<Vec<Value>> {
    let path = format!("/{name}/_changes?style=all_docs");
    let answer = loop {
        match run.ask_json("compare", run.request(Method::GET, &path), &[200]).await {
            Some(answer) => break answer,
            None if run.problems().is_empty() => {}
            None => return None,
        }
    };
    let rows = answer["results"].as_array().into_iter().flatten();
    let mut leaves: Vec<_> = rows.map(|row| json!([row["id"], row["changes"], row["deleted"]])).collect();
    leaves.sort_by_key(Value::to_string);
    Some(leaves)
}

/// What a database has, beside what the writers know.
fn differing(leaves: &[Value], writers: &[Vec<Known>], number: usize, databases: usize) -> Option<String> {
    let mut expected: Vec<Value> = Vec::new();
    for (writer, documents) in writers.iter().enumerate().skip(number).step_by(databases) {
        for (document, known) in documents.iter().enumerate().filter(|(_, known)| known.rev.is_some()) {
            let deleted = if known.is_deleted { json!(true) } else { Value::Null };
            expected.push(json!([id(writer, document), [{"rev": known.rev}], deleted]));
        }
    }
    expected.sort_by_key(Value::to_string);
    let found: Vec<_> = leaves.iter().filter(|row| row[0].as_str().is_some_and(|id| id.starts_with('w'))).collect();
    let differ = found.iter().zip(&expected).find(|(found, expected)| **found != *expected);
    match differ {
        Some((found, expected)) => Some(format!("{} has {found} and not {expected}", database(number))),
        None => (found.len() != expected.len())
            .then(|| format!("{}: {} of {} documents", database(number), found.len(), expected.len())),
    }
}

/// One run. The problems that it found; none if all is well.
async fn soak(plan: &Plan, seed: u64) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server =
        Server { folder, process: None, most_memory: 0, most_disk: 0, kills: 0, slowest_start: Duration::ZERO };
    let base = server.start("127.0.0.1:0");
    let run = Arc::new(Run::new(base, plan.lie));
    let mut random = Rng::with_seed(seed);
    set_up(&run, plan).await;

    let of = |number: usize| database(number % plan.databases);
    let feeds = (0..plan.feeds).map(|number| Arc::new(Feed::new(number, of(number), plan.databases, plan.writers)));
    let feeds: Vec<_> = feeds.collect();
    let following: Vec<_> = feeds.iter().map(|feed| tokio::spawn(feed.clone().follow(run.clone()))).collect();
    let writers = (0..plan.writers).map(|number| Writer::new(run.clone(), number, of(number), random.u64(..)));
    let writing: Vec<_> = writers.map(|writer| tokio::spawn(writer.play())).collect();
    let backups = server.folder.path().join("backups").display().to_string();
    let backing_up = tokio::spawn(back_up(run.clone(), backups.clone()));

    let end = Instant::now() + plan.load;
    let pause = |random: &mut Rng| KILLS.0 + plan.load.mul_f64(KILLS.1 * random.f64());
    let mut next = Instant::now() + pause(&mut random);
    while Instant::now() < end && run.problems().is_empty() {
        tokio::time::sleep(SAMPLE).await;
        tokio::task::block_in_place(|| server.measure());
        if plan.kills && Instant::now() > next {
            tokio::task::block_in_place(|| server.kill(&run));
            next = Instant::now() + pause(&mut random);
        }
    }
    run.stop();
    let mut known = Vec::new();
    for writer in writing {
        known.push(writer.await.expect("a writer"));
    }
    let made = backing_up.await.expect("backups");
    compare(&run, plan, &feeds, &known).await;
    following.iter().for_each(tokio::task::JoinHandle::abort);
    let live = space(&run, plan, &server, &known).await;
    tokio::task::block_in_place(|| afterwards(&run, plan, &mut server, &backups));

    if plan.kills {
        run.table().iter().for_each(|line| println!("{line}"));
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!("{} kills, slowest start {:.1} s, {made} backups", server.kills, server.slowest_start.as_secs_f64());
        println!("{} feeds were shown {} rows", plan.feeds, run.rows.load(Ordering::Relaxed));
        println!("memory: at most {:.0} of {:.0} MiB", mib(server.most_memory), mib(plan.memory));
        println!(
            "disk: at most {:.0} MiB, {:.0} in the end, {:.1} live",
            mib(server.most_disk),
            mib(bytes_of(&server.folder.path().join("store"))),
            mib(live)
        );
    }
    run.problems()
}

/// Feeds, databases and copies are what the writers know.
async fn compare(run: &Run, plan: &Plan, feeds: &[Arc<Feed>], known: &[Vec<Known>]) {
    patiently(run, plan.patience, async || unseen(feeds, known, plan.databases)).await;
    for number in 0..plan.databases {
        let name = database(number);
        let Some(here) = leaves(run, &name).await else { return };
        if let Some(difference) = differing(&here, known, number, plan.databases) {
            run.problem(difference);
        }
        if number < COPIED {
            // One that a kill ended waits before it goes on, up to ten minutes after many kills. This one does not wait.
            let copied = run.with_json(Method::POST, "/_replicate", &replication(run, &name));
            run.ask_json("replicate", copied, &[200]).await;
            let is_equal = async || {
                let there = leaves(run, &format!("{name}-copy")).await?;
                (there != here).then(|| format!("{name} has {} documents, its copy {}", here.len(), there.len()))
            };
            patiently(run, plan.patience, is_equal).await;
        }
    }
}

/// Compacts all, and waits until the folder is as small as the live data allow. These are returned.
async fn space(run: &Run, plan: &Plan, server: &Server, known: &[Vec<Known>]) -> u64 {
    let bytes = |writer: usize| {
        let documents = known[writer].iter().filter(|known| known.is_live());
        let copies = if writer % plan.databases < COPIED { 2 } else { 1 };
        copies * documents.map(|known| known.bytes).sum::<u64>()
    };
    let live = (0..plan.writers).map(bytes).sum();
    for number in 0..plan.databases {
        let path = format!("/{}/_compact", database(number));
        run.ask_json("compact", run.with_json(Method::POST, &path, &json!({})), &[202]).await;
    }
    let allowed = DISK_TIMES * live + DISK_BESIDE;
    let is_small = async || {
        let bytes = bytes_of(&server.folder.path().join("store"));
        (bytes > allowed).then(|| format!("the folder has {bytes} bytes, {live} are live, {allowed} were allowed"))
    };
    patiently(run, plan.patience, is_small).await;
    live
}

/// Stops the server, and looks at what it leaves behind.
fn afterwards(run: &Run, plan: &Plan, server: &mut Server, backups: &str) {
    server.measure();
    if server.most_memory > plan.memory {
        run.problem(format!("the process had {} bytes of memory, {} are allowed", server.most_memory, plan.memory));
    }
    let status = server.process.take().expect("it runs").stop("-TERM");
    if !status.success() {
        run.problem(format!("the server ended with {status}"));
    }
    let log = std::fs::read_to_string(server.log()).expect("a log");
    for line in log.lines().filter(|line| line.contains("panicked") || line.contains("ERROR")) {
        run.problem(line.to_owned());
    }
    let names = (0..plan.databases).map(database);
    let copies = (0..COPIED.min(plan.databases)).map(|number| format!("{}-copy", database(number)));
    let store = server.store();
    let checks = names.chain(copies).map(|name| vec!["check".to_owned(), name, "--engine".to_owned(), store.clone()]);
    let verify = ["backup", "verify", backups, "--no-encryption"].map(str::to_owned).to_vec();
    for arguments in checks.chain([verify]) {
        let output = server.program().args(&arguments).output().expect("the program runs");
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            run.problem(format!("{arguments:?}: {}", String::from_utf8_lossy(&said)));
        }
    }
}

/// Feeds and writers are a connection each, which may be more than the limit of open files at first.
fn raise_the_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("a limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_grows_under_everything_at_once() {
    raise_the_limit();
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    let seconds = std::env::var("SOAK_SECONDS").map_or(60, |seconds| seconds.parse().expect("a number"));
    println!("SEED={seed}, {seconds} s");
    let plan = Plan {
        load: Duration::from_secs(seconds),
        databases: 32,
        writers: 64,
        feeds: 1_000,
        kills: true,
        patience: Duration::from_secs(300),
        memory: MEMORY + memory_beside(),
        lie: None,
    };
    let problems = tokio::time::timeout(plan.load + 3 * plan.patience, soak(&plan, seed)).await.expect("the run ends");
    assert!(problems.is_empty(), "SEED={seed}: {problems:#?}");
}

/// The run finds a feed that drops rows, a lost write, and memory beyond what is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn planted_faults_are_found() {
    for (lie, memory, found) in [
        (Some(Lie::DroppedRows), MEMORY, "was not shown"),
        (Some(Lie::LostWrite), MEMORY, "and not"),
        (None, MIB, "of memory"),
    ] {
        let plan = Plan {
            load: Duration::from_secs(2),
            databases: 2,
            writers: 4,
            feeds: 4,
            kills: false,
            patience: Duration::from_secs(3),
            memory,
            lie,
        };
        let problems = soak(&plan, 1).await;
        assert!(problems.iter().any(|problem| problem.contains(found)), "{lie:?}: {problems:#?}");
    }
}
