//! A server that ships, makes backups and prunes them, its standby, and restores: each killed at any time, and the disk of
//! the places filled now and then. Each state that is restored, of a time or of a run, has what was acknowledged before
//! the time that it names, and nothing that was sent later. So has the standby, and so it has once it is promoted.
//!
//! `KILLS` is the number of kills and full disks; `SEED` repeats their order. Disks are filled where this user can mount
//! a small one.
#![cfg(all(feature = "lsm", feature = "mem", unix))]

mod program;
#[path = "program/server.rs"]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use serde_json::{Value, json};

use program::commands::{couch_layer, succeed};
use server::{Process, get, now_ms, put, shipped};

/// After so many kills and full disks there are new folders.
const IN_ONE_STORE: u64 = 40;

/// Writers, and the documents that each writes in a round.
const WRITERS: usize = 3;
const DOCUMENTS: usize = 40;

const PAUSE: Duration = Duration::from_millis(50);

/// A small disk for the places. None if this user cannot mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=400m", "tmpfs"]).arg(path).output();
        mount.is_ok_and(|output| output.status.success()).then(|| SmallDisk(path.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process may have just been killed.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// A document of a writer: its number, when it was sent, and when it was acknowledged.
#[derive(Clone, Copy)]
struct Sent {
    sent: u64,
    acknowledged: Option<u64>,
}

/// The documents of each writer, in their order.
type Written = Arc<Mutex<BTreeMap<String, Vec<Sent>>>>;

async fn write(written: Written, name: String, here: String, pause: Duration) {
    let client = Client::new();
    for at in 0..DOCUMENTS {
        let sent = Sent { sent: now_ms(), acknowledged: None };
        written.lock().expect("no panic").entry(name.clone()).or_default().push(sent);
        let filler = "x".repeat(200 + at * 20);
        if !put(&client, format!("{here}/db/{name}-{at:05}"), json!({ "n": at, "filler": filler })).await {
            return;
        }
        written.lock().expect("no panic").get_mut(&name).expect("a writer")[at].acknowledged = Some(now_ms());
        tokio::time::sleep(pause).await;
    }
}

/// Compares the documents of a state with what is known: all that was acknowledged before a time, nothing that was sent
/// after another, and of each writer the first ones.
fn compare(written: &Written, found: &BTreeSet<String>, before: u64, after: u64) -> Result<(), String> {
    let mut known = 0;
    for (name, documents) in &*written.lock().expect("no panic") {
        let mut lacks = None;
        for (at, document) in documents.iter().enumerate() {
            let id = format!("{name}-{at:05}");
            let is_there = found.contains(&id);
            known += usize::from(is_there);
            match (is_there, &lacks) {
                (true, Some(earlier)) => return Err(format!("{id} is there, and {earlier} is not")),
                (true, None) if document.sent > after => {
                    return Err(format!("{id} was sent at {}, after {after}", document.sent));
                }
                (false, _) if document.acknowledged.is_some_and(|acknowledged| acknowledged < before) => {
                    return Err(format!("{id} is missing at {before}: {:?}", document.acknowledged));
                }
                (true, None) => {}
                (false, _) => lacks = Some(id),
            }
        }
    }
    if known == found.len() { Ok(()) } else { Err("there are documents that nobody wrote".to_owned()) }
}

fn ids(engine: &str) -> BTreeSet<String> {
    let exported = succeed(&["export", "db", "--engine", engine]);
    let lines = exported.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["_id"].as_str().map(str::to_owned)).collect()
}

fn time(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

fn ms(text: &str) -> u64 {
    let time = humantime::parse_rfc3339(text).expect("a time").duration_since(UNIX_EPOCH).expect("a time");
    u64::try_from(time.as_millis()).expect("a time")
}

/// The time in "as it was at TIME;".
fn restored_ms(said: &str) -> u64 {
    ms(said.split_once("as it was at ").and_then(|(_, rest)| rest.split(';').next()).expect("a time"))
}

/// The time in a run's id: `20261128T092000123Z-…`.
fn run_ms(run: &str) -> u64 {
    let at = |from: usize, to: usize| &run[from..to];
    let (date, clock) = ((at(0, 4), at(4, 6), at(6, 8)), (at(9, 11), at(11, 13), at(13, 15)));
    ms(&format!("{}-{}-{}T{}:{}:{}.{}Z", date.0, date.1, date.2, clock.0, clock.1, clock.2, at(15, 18)))
}

/// What happened so far.
#[derive(Debug, Default)]
struct Counts {
    kills: u64,
    full: u64,
    times: u64,
    runs: u64,
    standbys: u64,
}

impl Counts {
    fn faults(&self) -> u64 {
        self.kills + self.full
    }
}

/// The servers and their folders.
struct Stage<'a> {
    random: &'a mut StdRng,
    counts: &'a mut Counts,
    client: Client,
    written: Written,
    primary: Option<Process>,
    standby: Option<Process>,
    /// From when on each time can be restored.
    first: u64,
    round: u64,
    /// Before the folder: it is unmounted first.
    disk: Option<SmallDisk>,
    root: tempfile::TempDir,
}

impl<'a> Stage<'a> {
    async fn new(random: &'a mut StdRng, counts: &'a mut Counts) -> Stage<'a> {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("small")).expect("a folder");
        let disk = SmallDisk::mount(&root.path().join("small"));
        let (written, primary, standby) = (Written::default(), None, None);
        let client = Client::new();
        let mut stage = Stage { random, counts, client, written, primary, standby, first: 0, round: 0, disk, root };
        let here = stage.start_primary();
        assert!(put(&stage.client, format!("{here}/db"), Value::Null).await);
        shipped(&stage.client, &here).await;
        stage.first = now_ms();
        stage.start_standby();
        stage
    }

    fn path(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    /// Starts what is not running. Returns the address.
    fn start_primary(&mut self) -> String {
        let (store, place) = (self.path("store"), self.path("small/ship"));
        let options = ["--ship-to", &place, "--ship-no-encryption", "--cache-size", "1048576"];
        let primary = self.primary.get_or_insert_with(|| Process::with_administrator(&store, &options));
        primary.administrator_url()
    }

    fn start_standby(&mut self) -> String {
        let (store, place) = (self.path("standby"), self.path("small/ship"));
        let options = ["--follow", &place, "--ship-to", &place, "--ship-no-encryption", "--cache-size", "1048576"];
        let standby = self.standby.get_or_insert_with(|| Process::with_administrator(&store, &options));
        standby.administrator_url()
    }

    fn kill(&mut self, process: fn(&mut Self) -> &mut Option<Process>) {
        if let Some(mut killed) = process(self).take() {
            killed.child.kill().expect("a kill");
            killed.child.wait().expect("an end");
            self.counts.kills += 1;
        }
    }

    async fn backup(&self, here: &str) {
        let body = json!({"to": self.path("small/backups"), "no_encryption": true, "keep": "3s"});
        let asked = self.client.post(format!("{here}/_couch_layer/backup")).header("content-type", "application/json");
        let answer = asked.body(body.to_string()).send().await.expect("an answer");
        // 409: one runs still.
        assert!([202, 409].contains(&answer.status().as_u16()), "{}", answer.text().await.expect("a text"));
    }

    /// The outcome of the backup that runs.
    async fn backed_up(&self, here: &str) -> Value {
        loop {
            let state = get(&self.client, format!("{here}/_couch_layer/backup")).await;
            if state["state"] != json!("running") {
                return state;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn round(&mut self) -> Result<(), String> {
        self.round += 1;
        let here = self.start_primary();
        self.start_standby();
        let pause = Duration::from_millis(self.random.random_range(0..15));
        let writer = |at: usize| {
            let name = format!("r{:04}w{at}", self.round);
            tokio::spawn(write(self.written.clone(), name, here.clone(), pause))
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        if self.random.random_range(0..3) > 0 {
            self.backup(&here).await;
        }
        // Not a time that a result depends on.
        tokio::time::sleep(Duration::from_millis(self.random.random_range(0..1_200))).await;
        match self.random.random_range(0..10) {
            0..4 => self.kill(|stage| &mut stage.primary),
            4..6 => self.kill(|stage| &mut stage.standby),
            6 => {
                self.kill(|stage| &mut stage.primary);
                self.kill(|stage| &mut stage.standby);
            }
            7 => self.kill_restore().await?,
            _ => self.fill(&here).await,
        }
        for writer in writers {
            writer.await.expect("a writer");
        }
        if self.standby.is_some() {
            self.compare_standby().await?;
        }
        match self.random.random_range(0..4) {
            0 => self.compare_time(),
            1 => self.compare_run().await,
            _ => Ok(()),
        }
    }

    /// Fills the disk for a while.
    async fn fill(&mut self, here: &str) {
        let Some(disk) = &self.disk else { return };
        let balloon = disk.0.join("balloon");
        let mut file = std::fs::File::create(&balloon).expect("a file");
        while std::io::Write::write_all(&mut file, &[1; 1 << 16]).is_ok() {}
        self.backup(here).await;
        let is_backup_failed = self.backed_up(here).await["state"] == json!("failed");
        tokio::time::sleep(Duration::from_millis(self.random.random_range(0..1_000))).await;
        let state = get(&self.client, format!("{here}/_couch_layer/ship")).await;
        self.counts.full += u64::from(is_backup_failed) + u64::from(state["state"] == json!("failing"));
        // Some are killed while it is full.
        if self.random.random_range(0..3) == 0 {
            self.kill(|stage| &mut stage.primary);
        }
        std::fs::remove_file(&balloon).expect("a file");
    }

    /// Kills a restore, which is repeated then: nothing of the first is left.
    async fn kill_restore(&mut self) -> Result<(), String> {
        let (place, to) = (self.path("small/ship"), self.path("interrupted"));
        let arguments = ["restore", &place, "--at", "latest", "--engine", &to, "--no-encryption"];
        let mut command = program::program();
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let mut restore = command.spawn().expect("a process");
        tokio::time::sleep(Duration::from_millis(self.random.random_range(0..400))).await;
        restore.kill().expect("a kill");
        if !restore.wait().expect("an end").success() {
            self.counts.kills += 1;
        }
        // It is whole once it has its name.
        if !Path::new(&to).exists() {
            let (success, said, remarks) = couch_layer(&arguments);
            if !success && !is_short(&remarks) {
                return Err(format!("{said}{remarks}"));
            }
        }
        let left: Vec<String> = std::fs::read_dir(self.root.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("interrupted.partial-"))
            .filter(|name| self.root.path().join(name).join("LOCK").exists())
            .collect();
        std::fs::remove_dir_all(to).expect("a folder");
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} were left")) }
    }

    /// The standby has what was acknowledged before the time that it says.
    async fn compare_standby(&mut self) -> Result<(), String> {
        let there = self.start_standby();
        let read = async |path: &str| {
            loop {
                // It may start again meanwhile.
                if let Ok(answer) = self.client.get(format!("{there}{path}")).send().await
                    && answer.status().is_success()
                    && let Ok(body) = answer.bytes().await
                {
                    return serde_json::from_slice::<Value>(&body).expect("JSON");
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let until = read("/_couch_layer/ship").await["until_ms"].as_u64().expect("a time");
        let listed = read("/db/_all_docs").await;
        let rows = listed["rows"].as_array().expect("rows").iter();
        let found = rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect();
        self.counts.standbys += 1;
        compare(&self.written, &found, until, u64::MAX).map_err(|problem| format!("the standby: {problem}"))
    }

    /// A time that was shipped.
    fn compare_time(&mut self) -> Result<(), String> {
        let (place, to) = (self.path("small/ship"), self.path("restored"));
        let at = time(self.random.random_range(self.first..=now_ms()));
        let (success, said, remarks) =
            couch_layer(&["restore", &place, "--at", &at, "--engine", &to, "--no-encryption"]);
        if !success && !is_short(&remarks) {
            return Err(format!("{said}{remarks}"));
        }
        let ms = restored_ms(&said);
        succeed(&["adopt", &to]);
        compare(&self.written, &ids(&to), ms, ms).map_err(|problem| format!("at {ms}: {problem}"))?;
        succeed(&["check", "db", "--engine", &to]);
        std::fs::remove_dir_all(to).expect("a folder");
        self.counts.times += 1;
        succeed(&["backup", "verify", &place, "--no-encryption"]);
        Ok(())
    }

    /// The newest run.
    async fn compare_run(&mut self) -> Result<(), String> {
        if let Some(primary) = &self.primary {
            self.backed_up(&primary.administrator_url()).await;
        }
        let (place, to) = (self.path("small/backups"), format!("lsm:{}", self.path("restored")));
        // The first one may have been killed before anything was there.
        let (has_runs, listed, _) = couch_layer(&["backup", "list", &place, "--no-encryption"]);
        let newest =
            listed.lines().rfind(|line| !line.starts_with(' ')).and_then(|line| line.split_whitespace().next());
        let (true, Some(run)) = (has_runs, newest) else { return Ok(()) };
        let until = now_ms();
        succeed(&["backup", "verify", &place, "--no-encryption"]);
        succeed(&["restore", &place, "--run", run, "--engine", &to, "--no-encryption"]);
        compare(&self.written, &ids(&to), run_ms(run), until).map_err(|problem| format!("{run}: {problem}"))?;
        succeed(&["check", "db", "--engine", &to]);
        std::fs::remove_dir_all(self.path("restored")).expect("a folder");
        self.counts.runs += 1;
        Ok(())
    }

    /// The server is killed once all is shipped, and the standby has all of it.
    async fn promote(mut self) -> Result<(), String> {
        let (here, there) = (self.start_primary(), self.start_standby());
        shipped(&self.client, &here).await;
        let acknowledged = now_ms();
        self.kill(|stage| &mut stage.primary);
        loop {
            // Where the log is broken off, the standby is restored anew first.
            let (success, said, remarks) = couch_layer(&["promote", "--url", &there]);
            if success {
                break;
            }
            if !remarks.contains("is not promoted") && !remarks.contains("connect") {
                return Err(format!("{said}{remarks}"));
            }
            tokio::time::sleep(PAUSE).await;
        }
        while !put(&self.client, format!("{there}/other"), Value::Null).await {
            tokio::time::sleep(PAUSE).await;
        }
        let listed = get(&self.client, format!("{there}/db/_all_docs")).await;
        let rows = listed["rows"].as_array().expect("rows").iter();
        let found = rows.map(|row| row["id"].as_str().expect("an id").to_owned()).collect();
        compare(&self.written, &found, acknowledged, acknowledged).map_err(|problem| format!("promoted: {problem}"))
    }
}

/// Whether a restore said that it does not have all states. A server that was killed before its tables were there left
/// states that cannot be restored; what it acknowledged last is in the tables of the next one only.
fn is_short(remarks: &str) -> bool {
    remarks.contains("later states are shipped, but the tables that they need are not complete")
        || remarks.contains("the log does not continue here")
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_each_copy_is_a_state_that_was_acknowledged() {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    let wanted = std::env::var("KILLS").map_or(4, |kills| kills.parse().expect("a number"));
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut counts = Counts::default();
    while counts.faults() < wanted {
        let until = wanted.min(counts.faults() + IN_ONE_STORE);
        let mut stage = Stage::new(&mut random, &mut counts).await;
        while stage.counts.faults() < until {
            if let Err(problem) = stage.round().await {
                panic!("SEED={seed}, round {}: {problem}", stage.round);
            }
        }
        stage.compare_time().and(stage.compare_run().await).unwrap_or_else(|problem| panic!("SEED={seed}: {problem}"));
        stage.promote().await.unwrap_or_else(|problem| panic!("SEED={seed}: {problem}"));
        println!("{counts:?}");
    }
}

/// The comparison sees what was lost, and what came too early.
#[test]
fn planted_losses_are_seen() {
    let sent = |sent: u64, acknowledged: u64| Sent { sent, acknowledged: Some(acknowledged) };
    let written = Written::default();
    written.lock().unwrap().insert("w".to_owned(), vec![sent(10, 20), sent(30, 40), sent(50, 60)]);
    let found = |numbers: &[usize]| numbers.iter().map(|at| format!("w-{at:05}")).collect::<BTreeSet<_>>();
    assert_eq!(compare(&written, &found(&[0, 1]), 50, 50), Ok(()));
    assert_eq!(compare(&written, &found(&[0, 1, 2]), 55, 55), Ok(()), "it was under way");
    assert!(compare(&written, &found(&[0]), 50, 50).unwrap_err().contains("w-00001 is missing"));
    assert!(compare(&written, &found(&[0, 2]), 35, 100).unwrap_err().contains("w-00002 is there"));
    assert!(compare(&written, &found(&[0, 1, 2]), 45, 45).unwrap_err().contains("was sent at 50"));
    assert!(compare(&written, &found(&[0, 1, 7]), 45, 45).unwrap_err().contains("nobody wrote"));
}
