//! The program `couch-layer serve`, as a process.

#![cfg(all(feature = "mem", feature = "lsm", feature = "sled"))]

#[path = "program/server.rs"]
mod process;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use process::{Process, command};
use serde_json::{Value, json};

/// A server under other limits of open files, which a shell sets (`ulimit`).
#[cfg(target_os = "linux")]
fn limited(limits: &str, folder: &Path) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_couch-layer"), "serve"]);
    command.args(["--listen", "127.0.0.1:0", "--engine", &format!("lsm:{}", folder.display())]);
    Process::of(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_limit_of_open_files_is_raised_and_connections_leave_some_to_the_store() {
    let root = tempfile::tempdir().unwrap();
    let server = limited("ulimit -Sn 60", &root.path().join("raised"));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let limit: Vec<&str> = limit.split_whitespace().skip(3).take(2).collect();
    assert_eq!(limit[0], limit[1], "the soft limit is the hard one");
    drop(server);

    let mut server = limited("ulimit -n 60", &root.path().join("capped"));
    // One connection, which it keeps.
    let client = reqwest::Client::new();
    assert_eq!(client.put(server.url("/db")).send().await.unwrap().status(), 201);
    let address = server.base.strip_prefix("http://").unwrap().to_owned();
    let idle: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
    for n in 0..20 {
        let put = client.put(server.url(&format!("/db/{n}"))).body("{}").send().await.unwrap();
        assert_eq!(put.status(), 201);
        assert!((30..55).contains(&open()), "{n}: {} files are open", open());
    }
    drop(idle);
    let mut log = server.child.stderr.take().unwrap();
    server.stop("-TERM");
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    assert!(said.contains("ulimit -n"), "{said}");
}

/// Runs a server that must not start. Returns its output.
fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = command(arguments).envs(environment.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty());
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    assert!(!sentence.contains("panicked"), "{sentence}");
    sentence
}

fn sled(folder: &Path) -> String {
    format!("sled:{}", folder.display())
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    for engine in ["lsm", "sled"] {
        write_and_restart(engine).await;
    }
}

async fn write_and_restart(engine: &str) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("data");
    let url = format!("{engine}:{}", folder.display());
    let client = reqwest::Client::new();
    let mut first = Process::start(&["--engine", &url]);
    let mut line = String::new();
    first.out.read_line(&mut line).unwrap();
    assert!(line.contains("data") && line.contains("on disk before it is acknowledged"), "{line}");
    for path in ["/db", "/db/x"] {
        assert_eq!(client.put(first.url(path)).body("{\"a\":1}").send().await.unwrap().status(), 201);
    }
    let uuid = async |server: &Process| {
        let text = client.get(server.url("/")).send().await.unwrap().text().await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["uuid"].clone()
    };
    let before = uuid(&first).await;

    // A folder has one owner.
    let sentence = refused(&["--engine", &url, "--listen", "127.0.0.1:0"], &[]);
    assert!(sentence.contains("another process"), "{sentence}");

    assert_eq!(first.stop("-TERM").code(), Some(0));
    // With the folder alone as its URL.
    let again = Process::start(&["--engine", &folder.display().to_string()]);
    let text = client.get(again.url("/db/x")).send().await.unwrap().text().await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["a"], json!(1));
    assert_eq!(uuid(&again).await, before);
    assert_eq!(again.stop("-INT").code(), Some(0));
}

/// A huge page kept for one small piece takes two megabytes of memory.
#[cfg(target_os = "linux")]
#[test]
fn huge_pages_are_off_unless_the_environment_asks_for_them() {
    let enabled = |mut command: Command| {
        let mut child = command.args(["--engine", "mem:", "--listen", "127.0.0.1:0"]).spawn().unwrap();
        let mut line = String::new();
        // It listens, so its `main` has begun.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Kernels before 5.0 do not report it.
        status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).map(|value| value.trim() == "1")
    };
    assert_ne!(enabled(command(&[])), Some(true));
    let mut asked = command(&[]);
    asked.env("MIMALLOC_ALLOW_THP", "1");
    // Where this process may not have any, its child may not either.
    let here = std::fs::read_to_string("/proc/self/status").unwrap();
    if here.contains("THP_enabled:\t1") {
        assert_eq!(enabled(asked), Some(true));
    }
}

/// Waits until a document is in a database.
async fn arrived(server: &Process, db: &str, id: &str) {
    let url = server.url(&format!("/{db}/_changes?feed=longpoll&timeout=60000&filter=_doc_ids&doc_ids=[\"{id}\"]"));
    let waiting = async {
        loop {
            let text = reqwest::get(&url).await.unwrap().text().await.unwrap();
            if !serde_json::from_str::<Value>(&text).unwrap()["results"].as_array().unwrap().is_empty() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| panic!("{db}/{id}"));
}

#[tokio::test]
async fn a_replication_goes_on_whichever_server_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let [near_store, far_store] = ["near", "far"].map(|name| format!("lsm:{}", root.path().join(name).display()));
    let far = Process::start(&["--engine", &far_store]);
    let near = Process::start(&["--engine", &near_store]);
    let address = far.base.trim_start_matches("http://").to_owned();
    let client = reqwest::Client::new();
    let put = async |url: String, body: Value| {
        let status = client.put(&url).body(body.to_string()).send().await.unwrap().status();
        assert_eq!(status, 201, "{url}");
    };
    for url in [near.url("/_replicator"), near.url("/here"), far.url("/there")] {
        put(url, json!({})).await;
    }
    let document =
        json!({"source": "here", "target": far.url("/there"), "continuous": true, "checkpoint_interval": 50});
    put(near.url("/_replicator/x"), document).await;
    put(near.url("/here/a"), json!({})).await;
    arrived(&far, "there", "a").await;

    assert_eq!(near.stop("-KILL").code(), None);
    let near = Process::start(&["--engine", &near_store]);
    put(near.url("/here/b"), json!({})).await;
    arrived(&far, "there", "b").await;

    assert_eq!(far.stop("-KILL").code(), None);
    put(near.url("/here/c"), json!({})).await;
    let far = Process::start_at(&address, &["--engine", &far_store]);
    arrived(&far, "there", "c").await;
    // It ends with its document.
    let text = client.get(near.url("/_replicator/x")).send().await.unwrap().text().await.unwrap();
    let rev = serde_json::from_str::<Value>(&text).unwrap()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(client.delete(near.url(&format!("/_replicator/x?rev={rev}"))).send().await.unwrap().status(), 200);
    assert_eq!(near.stop("-TERM").code(), Some(0));
}

/// The last acknowledged number of a client, and its last requested one. `None` before the first answer.
type Told = Arc<Mutex<BTreeMap<String, (Option<u64>, u64)>>>;

/// A client that writes until its server is gone.
struct Writer {
    client: reqwest::Client,
    base: String,
    told: Told,
    /// Receives a message for each answer.
    answered: tokio::sync::mpsc::UnboundedSender<()>,
    name: usize,
}

impl Writer {
    /// Sends a request that does `what` with number `n`. `None` if the server is gone.
    async fn ask(&self, what: &str, n: u64, method: &str, path: &str, body: Vec<u8>, kind: &str) -> Option<Value> {
        let key = format!("{what}-{}", self.name);
        self.told.lock().unwrap().entry(key.clone()).or_insert((None, n)).1 = n;
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request =
            self.client.request(method, format!("{}{path}", self.base)).header("content-type", kind).body(body);
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let answer: Value = serde_json::from_str(&answer.text().await.ok()?).ok()?;
        assert!(status.is_success(), "{path}: {answer}");
        self.told.lock().unwrap().get_mut(&key).unwrap().0 = Some(n);
        let _ = self.answered.send(());
        Some(answer)
    }

    /// All kinds of writes, one after the other, from number `n` on.
    async fn write(self, mut n: u64) -> Option<()> {
        let (name, json) = (self.name, "application/json");
        let revision = |answer: &Value| answer["rev"].as_str().expect("a revision").to_owned();
        let mut attached = String::new();
        let mut together: Option<[String; 2]> = None;
        loop {
            n += 1;
            if is_staged(name, n) {
                let path = format!("/db/staged-{name}-{n}/f");
                self.ask("staged", n, "PUT", &path, noise(n), "application/octet-stream").await?;
            }
            let path = format!("/db/attached-{name}-{}/f{attached}", n / 1_000);
            let data = content(n);
            attached = format!("?rev={}", revision(&self.ask("attached", n, "PUT", &path, data, "text/plain").await?));

            let patch = json!({"n": n, format!("m{}", n % 3): {"n": n}}).to_string().into_bytes();
            let path = format!("/db/patched-{name}");
            self.ask("patched", n, "PATCH", &path, patch, "application/merge-patch+json").await?;

            let document = |place: usize| {
                let mut document = json!({"_id": format!("together-{name}-{}", n / 1_000), "n": n});
                if let Some(revs) = &together {
                    document["_rev"] = json!(revs[place]);
                }
                let db = ["db", "lww"][place];
                json!({"db": db, "doc": document})
            };
            let edits = json!({"edits": [document(0), document(1)]}).to_string().into_bytes();
            let made = self.ask("together", n, "POST", "/_transact", edits, json).await?;
            together = Some([revision(&made[0]), revision(&made[1])]);

            let gone = format!("/db/purged-{name}-{n}");
            let rev = revision(&self.ask("made", n, "PUT", &gone, b"{\"n\":1}".to_vec(), json).await?);
            let purge = json!({format!("purged-{name}-{n}"): [rev]}).to_string().into_bytes();
            self.ask("purged", n, "POST", "/db/_purge", purge, json).await?;

            let document = json!({"_id": format!("last-{name}"), "_rev": format!("{n}-{name}"), "n": n});
            let replicated = json!({"docs": [document], "new_edits": false}).to_string().into_bytes();
            self.ask("last", n, "POST", "/lww/_bulk_docs", replicated, json).await?;
        }
    }
}

/// The attachment with this number. Packed, it has a few kilobytes at most, so the edit itself writes it.
fn content(n: u64) -> Vec<u8> {
    let line = format!("line {n} of an attachment\n");
    line.repeat(if n.is_multiple_of(4) { 20_000 } else { 50 }).into_bytes()
}

/// Whether this writer also uploads [`noise`] with this number: one writer a round does, as each takes time.
fn is_staged(name: usize, n: u64) -> bool {
    n / 1_000 == name as u64
}

/// More than a transaction of staged bytes holds, so a second transaction stages the rest.
const STAGED_BYTES: usize = 2_200_000;

/// Bytes that do not compress, for a type that is not compressed.
fn noise(n: u64) -> Vec<u8> {
    let mut state = n;
    let mut bytes = Vec::with_capacity(STAGED_BYTES);
    while bytes.len() < STAGED_BYTES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_be_bytes());
    }
    bytes
}

/// Attachments, patches, transactions, purges, a database in which the last write wins, and a layout that changes
/// meanwhile: after a kill, acknowledged writes exist, and others exist completely or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_outlives_a_kill() {
    const WRITERS: usize = 3;
    let root = tempfile::tempdir().unwrap();
    let store = format!("lsm:{}", root.path().join("data").display());
    let client = reqwest::Client::new();
    let told = Told::default();
    let mut server = Process::start(&["--engine", &store]);
    let get = async |server: &Process, path: &str| {
        let answer = client.get(server.url(path)).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap())
    };
    let attachment = async |server: &Process, path: String| {
        let answer = client.get(server.url(&path)).send().await.unwrap();
        let status = answer.status().as_u16();
        assert!(status == 200 || status == 404, "{path}: {status}");
        let bytes = answer.bytes().await.unwrap();
        (status == 200).then_some(bytes)
    };
    // Numbers of staged uploads: acknowledged, and ended by a kill.
    let (mut staged, mut torn) = (0, 0);
    for path in ["/db", "/lww?conflicts=last-write-wins"] {
        assert_eq!(client.put(server.url(path)).send().await.unwrap().status(), 201);
    }
    for name in 0..WRITERS {
        let path = server.url(&format!("/db/patched-{name}"));
        assert_eq!(client.put(path).body("{\"n\":0}").send().await.unwrap().status(), 201);
    }
    for (round, answers) in [25, 60, 41].into_iter().enumerate() {
        let layout = if round % 2 == 0 { "\"packed\"" } else { "\"exploded\"" };
        let asked = client.put(server.url("/db/_couch_layer/format")).body(layout).send().await.unwrap();
        assert_eq!(asked.status(), 202);
        // Its first part is in the store at the kill, and its last byte never arrives.
        let mut half = TcpStream::connect(server.base.trim_start_matches("http://")).unwrap();
        let head = format!("PUT /db/half-{round}/f HTTP/1.1\r\nhost: localhost\r\ncontent-length: {STAGED_BYTES}");
        half.write_all(&[head.as_bytes(), b"\r\n\r\n", &noise(0)[1..]].concat()).unwrap();
        let (answered, mut answer) = tokio::sync::mpsc::unbounded_channel();
        let mut writers = tokio::task::JoinSet::new();
        for name in 0..WRITERS {
            let (client, base, told) = (client.clone(), server.base.clone(), told.clone());
            let writer = Writer { client, base, told, answered: answered.clone(), name };
            writers.spawn(writer.write(1_000 * round as u64));
        }
        for _ in 0..answers {
            answer.recv().await.expect("the writers go on");
        }
        assert_eq!(server.stop("-KILL").code(), None);
        while let Some(ended) = writers.join_next().await {
            assert!(ended.unwrap().is_none());
        }
        server = Process::start(&["--engine", &store]);

        for db in ["db", "lww"] {
            let (_, report) = get(&server, &format!("/{db}/_couch_layer/check")).await;
            assert_eq!(report["problem_count"], json!(0), "round {round}: {report}");
        }
        assert!(!matches!(half.read(&mut [0]), Ok(1)), "round {round}: the upload was refused before the kill");
        assert_eq!(get(&server, &format!("/db/half-{round}")).await.0, 404);
        torn += 1;
        let told = told.lock().unwrap().clone();
        for name in 0..WRITERS {
            // The stored number. It must be a requested one, and not older than an acknowledged one.
            let agrees = |what: &str, found: Option<u64>| {
                let Some((acknowledged, asked)) = told.get(&format!("{what}-{name}")) else { return };
                let is_known = found.is_none_or(|found| found <= *asked) && found >= *acknowledged;
                assert!(is_known, "round {round}: {what} of {name} is {found:?}, told {acknowledged:?}, asked {asked}");
            };
            let (_, patched) = get(&server, &format!("/db/patched-{name}")).await;
            let n = patched["n"].as_u64().unwrap();
            agrees("patched", Some(n).filter(|n| *n > 0));
            assert!(n == 0 || patched[format!("m{}", n % 3)]["n"] == json!(n), "{patched}");
            let (_, last) = get(&server, &format!("/lww/last-{name}")).await;
            agrees("last", last["n"].as_u64());
            let both = ["db", "lww"].map(|db| format!("/{db}/together-{name}-{round}"));
            let [here, there] = [get(&server, &both[0]).await.1, get(&server, &both[1]).await.1];
            assert_eq!(here["n"], there["n"], "round {round}: one of two in a transaction");
            agrees("together", here["n"].as_u64().or(earlier(&told, "together", name, round)));
            let found = attachment(&server, format!("/db/attached-{name}-{round}/f")).await;
            let number = found.map(|bytes| {
                let line = std::str::from_utf8(&bytes).unwrap().lines().next().unwrap();
                let n = line.split(' ').nth(1).unwrap().parse().unwrap();
                assert!(bytes == content(n), "round {round}: not the whole attachment {n}");
                n
            });
            agrees("attached", number.or(earlier(&told, "attached", name, round)));
            if let Some((acknowledged, asked)) = told.get(&format!("staged-{name}")) {
                for n in (1_000 * round as u64 + 1..=*asked).filter(|n| is_staged(name, *n)) {
                    let found = attachment(&server, format!("/db/staged-{name}-{n}/f")).await;
                    let is_told = Some(n) <= *acknowledged;
                    assert!(found.is_some() || !is_told, "round {round}: the staged attachment {n} of {name} is gone");
                    let is_whole = found.is_none_or(|bytes| bytes == noise(n));
                    assert!(is_whole, "round {round}: not the whole staged attachment {n} of {name}");
                    *if is_told { &mut staged } else { &mut torn } += 1;
                }
            }
            if let Some((Some(purged), _)) = told.get(&format!("purged-{name}")) {
                for n in (1_000 * round as u64 + 1)..=*purged {
                    let (status, found) = get(&server, &format!("/db/purged-{name}-{n}")).await;
                    assert_eq!((status, &found["reason"]), (404, &json!("missing")), "round {round}");
                }
            }
        }
    }
    println!("{staged} staged uploads were acknowledged, {torn} were under way at a kill");
    assert!(staged > 0, "no upload was staged");
    // The job continues by itself.
    let rewritten = async {
        while get(&server, "/db/_couch_layer/format").await.1["rewriting"] == json!(true) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), rewritten).await.expect("the bodies are rewritten");
    assert_eq!(get(&server, "/db/_couch_layer/format").await.1["format"], json!("packed"));
    assert_eq!(server.stop("-TERM").code(), Some(0));
}

/// The acknowledgements of an earlier round, if this round has none yet.
fn earlier(told: &BTreeMap<String, (Option<u64>, u64)>, what: &str, name: usize, round: usize) -> Option<u64> {
    let (acknowledged, _) = told.get(&format!("{what}-{name}"))?;
    acknowledged.filter(|n| *n <= 1_000 * round as u64)
}

#[test]
fn what_cannot_be_served_is_said_in_a_sentence() {
    let root = tempfile::tempdir().unwrap();
    let unused = sled(&root.path().join("unused"));
    let open = refused(&["--engine", &unused, "--listen", "0.0.0.0:0"], &[]);
    assert!(open.contains("COUCHDB_USER") && open.contains("loopback"), "{open}");
    let half = refused(&["--engine", &unused], &[("COUCHDB_USER", "adm"), ("COUCHDB_PASSWORD", "")]);
    assert!(half.contains("COUCHDB_PASSWORD"), "{half}");
    assert!(refused(&["--engine", &unused, "--listen", "nowhere"], &[]).contains("HOST:PORT"));
    assert!(refused(&["--engine", &unused, "--log", "loud"], &[]).contains("debug"));
    assert!(!root.path().join("unused").exists(), "nothing is created for a server that cannot start");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(refused(&["--engine", "mem:", "--listen", &address], &[]).contains(&address));

    let photos = root.path().join("photos");
    std::fs::create_dir(&photos).unwrap();
    std::fs::write(photos.join("cat.jpg"), "meow").unwrap();
    let theirs = refused(&["--engine", &sled(&photos), "--listen", "127.0.0.1:0"], &[]);
    assert!(theirs.contains("cat.jpg"), "{theirs}");
    assert_eq!(std::fs::read_dir(&photos).unwrap().count(), 1);
}

#[tokio::test]
async fn a_file_comes_before_the_environment_and_that_before_flags() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("couch.toml");
    let path = file.display().to_string();
    std::fs::write(&file, "engine = 'mem:'\nlisten = 'from-the-file'\n").unwrap();
    let environment = [("COUCH_LAYER_LISTEN", "from-the-environment"), ("COUCH_LAYER_CONFIG", &*path)];
    assert!(refused(&["--config", &path], &[]).contains("from-the-file"));
    assert!(refused(&[], &environment[1..]).contains("from-the-file"));
    assert!(refused(&[], &environment).contains("from-the-environment"));
    assert!(refused(&["--listen", "from-a-flag"], &environment).contains("from-a-flag"));
    std::fs::write(&file, "engine = 'mem:'\nlistn = 'x'\n").unwrap();
    let wrong = refused(&["--config", &path], &[]);
    assert!(wrong.contains("couch.toml:2: listn: there is no such option"), "{wrong}");
    let none = root.path().join("none").display().to_string();
    assert!(refused(&["--config", &none], &[]).contains("none cannot be read: "));

    std::fs::write(&file, "engine = 'mem:'\n[config.chttpd_auth]\ntimeout = 77\n").unwrap();
    let mut server = Process::start(&["--config", &path]);
    let client = reqwest::Client::new();
    let url = server.url("/_node/_local/_config/chttpd_auth/timeout");
    let token = server.setup_token();
    let refused = client.put(&url).body("\"88\"").send().await.unwrap();
    assert_eq!(refused.status(), 403, "without the token that the server printed");
    let shows = |request: reqwest::RequestBuilder| request.header("x-couch-layer-setup-token", &token);
    let text = async |request: reqwest::RequestBuilder| request.send().await.unwrap().text().await.unwrap();
    assert_eq!(text(shows(client.get(&url))).await, "\"77\"\n");
    text(shows(client.put(&url).body("\"88\""))).await;
    assert_eq!(text(shows(client.get(&url))).await, "\"88\"\n");
    text(shows(client.delete(&url))).await;
    assert_eq!(text(shows(client.get(&url))).await, "\"77\"\n");
}

#[tokio::test]
async fn a_server_whose_output_nobody_reads_goes_on() {
    let mut server = Process::start(&["--engine", "mem:", "--log", "debug"]);
    drop(server.child.stderr.take());
    drop(std::mem::replace(&mut server.out, BufReader::new(Box::new(std::io::empty()))));
    let client = reqwest::Client::new();
    for _ in 0..10 {
        assert_eq!(client.get(server.url("/_up")).send().await.unwrap().status(), 200);
    }
    assert_eq!(server.stop("-TERM").code(), Some(0));
}

#[tokio::test]
async fn the_administrator_comes_from_the_environment() {
    let mut child = command(&["--engine", "mem:", "--listen", "0.0.0.0:0"])
        .envs([("COUCHDB_USER", "adm"), ("COUCHDB_PASSWORD", "secret")])
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().trim_end_matches('/').rsplit(':').next().unwrap().to_owned();
    let client = reqwest::Client::new();
    let url = format!("http://127.0.0.1:{port}/_all_dbs");
    let without = client.get(&url).send().await.unwrap().status();
    let with = client.get(&url).basic_auth("adm", Some("secret")).send().await.unwrap().status();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((without.as_u16(), with.as_u16()), (401, 200));
}

#[test]
fn commands_reach_a_server_by_its_own_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name).display().to_string());
    let arguments = ["--engine", "mem:", "--tls-self-signed", "--tls-cert", &certificate, "--tls-key", &key];
    let server = Process::start(&arguments);
    assert!(server.base.starts_with("https://"), "{}", server.base);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_couch-layer"));
        let output = command.args(arguments).env_clear().stdin(Stdio::null()).output().unwrap();
        (output.status.code(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()))
    };
    let file = folder.path().join("lines");
    std::fs::write(&file, "{\"_id\":\"a\",\"n\":1}\n").unwrap();
    let secured = ["--url", &server.base, "--tls-roots", &certificate];
    let (code, [_, error]) = run(&[&["import", "db", &file.display().to_string()], &secured[..]].concat());
    assert_eq!(code, Some(0), "{error}");
    let to = format!("{}/copy", server.base);
    let from = format!("{}/db", server.base);
    let (code, [out, error]) = run(&["replicate", &from, &to, "--create-target", "--tls-roots", &certificate]);
    assert_eq!((code, out.trim()), (Some(0), "1 read, 1 written, 0 failed"), "{error}");
    let (code, [out, error]) = run(&[&["export", "copy"], &secured[..]].concat());
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("\"n\":1"), "{out}");

    // The certificate of another server.
    let [other, other_key] = ["other.pem", "other-key.pem"].map(|name| folder.path().join(name).display().to_string());
    let arguments = ["--engine", "mem:", "--tls-self-signed", "--tls-cert", &other, "--tls-key", &other_key];
    drop(Process::start(&arguments));
    let (code, [_, error]) = run(&["export", "copy", "--url", &server.base, "--tls-roots", &other]);
    assert_eq!(code, Some(1));
    assert!(error.contains(&format!("the certificate of {} is not trusted", server.base)), "{error}");
    let (code, [_, error]) = run(&["export", "copy", "--url", &server.base, "--tls-roots", &key]);
    assert!(
        code == Some(1) && error.contains("key.pem contains no usable certificates: it has no certificate in PEM"),
        "{error}"
    );
    assert!(!error.contains("PRIVATE"), "{error}");
}

/// A program that replicates.
#[cfg(unix)]
fn replicating(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    command.arg("replicate").args(arguments).env_clear().stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends the program with a signal. Returns its output, and the number of sessions in its report when it runs again.
#[cfg(unix)]
fn interrupted(child: std::process::Child, signal: &str, arguments: &[&str]) -> (String, usize) {
    // It learns of its last write a moment after others see it.
    std::thread::sleep(Duration::from_secs(1));
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let again = replicating(&[arguments, &["--json"]].concat()).output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let record: Value = serde_json::from_slice(&again.stdout).unwrap();
    (String::from_utf8(ended.stdout).unwrap(), record["history"].as_array().unwrap().len())
}

/// It continues until a signal, and then writes a checkpoint for the next run.
#[cfg(unix)]
#[tokio::test]
async fn a_continuous_replication_of_the_program_ends_at_a_signal_with_a_checkpoint() {
    let (server, client) = (Process::start(&["--engine", "mem:"]), reqwest::Client::new());
    let put = async |path: &str| {
        let answer = client.put(server.url(path)).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), 201, "{path}");
    };
    let arrived = async |path: &str| {
        let begun = std::time::Instant::now();
        while client.get(server.url(path)).send().await.unwrap().status() != 200 {
            assert!(begun.elapsed() < Duration::from_secs(120), "{path}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    put("/here").await;
    put("/here/first").await;
    let (here, there) = (server.url("/here"), server.url("/there"));
    let sides = [here.as_str(), there.as_str()];
    let child = replicating(&[&sides[..], &["--continuous", "--create-target"]].concat()).spawn().unwrap();
    arrived("/there/first").await;
    put("/here/later").await;
    arrived("/there/later").await;
    let (out, sessions) = interrupted(child, "-TERM", &sides);
    assert_eq!((out.trim(), sessions), ("2 read, 2 written, 0 failed", 1));

    // A folder is closed, and can be opened again.
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    let pulled = replicating(&[&here, "notes", "--create-target", "--engine", &data]).output().unwrap();
    assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    let copy = server.url("/copy");
    let sides = ["notes", copy.as_str(), "--engine", &data];
    let child = replicating(&[&sides[..], &["--continuous", "--create-target"]].concat()).spawn().unwrap();
    arrived("/copy/first").await;
    arrived("/copy/later").await;
    let (out, sessions) = interrupted(child, "-INT", &sides);
    assert_eq!((out.trim(), sessions), ("2 read, 2 written, 0 failed", 1));
}

#[test]
fn certificates_that_cannot_be_used_are_named_before_the_store_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("data");
    let none = folder.path().join("none.pem").display().to_string();
    let sentence = refused(&["--engine", &sled(&store), "--tls-cert", &none, "--tls-key", &none], &[]);
    assert!(sentence.contains("none.pem cannot be read: No such file"), "{sentence}");
    let sentence = refused(&["--engine", &sled(&store)], &[("COUCH_LAYER_TLS_ROOTS", none.as_str())]);
    assert!(sentence.contains("none.pem cannot be read: No such file"), "{sentence}");
    assert!(!store.exists());
}

/// A server's actions at SIGHUP.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_hangup_reloads_settings_and_opens_logs_again() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let (file, log, audit) = (path("couch.toml"), path("access"), path("audit"));
    let write = |timeout: &str| {
        let logs = format!("access-log = '{}'\naudit-log = '{}'", log.display(), audit.display());
        let text = format!("engine = 'mem:'\n{logs}\n[config.chttpd_auth]\ntimeout = '{timeout}'\n");
        std::fs::write(&file, text).unwrap();
    };
    write("1h");
    let mut server = Process::start(&["--config", &file.display().to_string()]);
    let token = server.setup_token();
    let mut said = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let hangup = |server: &Process| {
        assert!(Command::new("kill").args(["-HUP", &server.child.id().to_string()]).status().unwrap().success());
    };
    let timeout = async |server: &Process| {
        let url = server.url("/_node/_local/_config/chttpd_auth/timeout");
        let request = reqwest::Client::new().get(url).header("x-couch-layer-setup-token", &token);
        request.send().await.unwrap().text().await.unwrap().trim().to_owned()
    };
    let mut until = |sentence: &str| loop {
        let line = said.next().expect("the server ended").unwrap();
        if line.contains(sentence) {
            return;
        }
    };
    assert_eq!(timeout(&server).await, "\"1h\"");
    write("2h");
    std::fs::rename(&log, path("access.1")).unwrap();
    hangup(&server);
    until("reloaded settings");
    assert_eq!(timeout(&server).await, "\"2h\"");
    assert_eq!(std::fs::read_to_string(path("access.1")).unwrap().lines().count(), 1);
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1);
    // A mistake changes nothing.
    write("soon");
    hangup(&server);
    until("couch.toml:5: config.chttpd_auth.timeout");
    until("some could not be reloaded");
    assert_eq!(timeout(&server).await, "\"2h\"");
    // A log that cannot be opened changes nothing either.
    write("3h");
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    hangup(&server);
    until("failed=\"access log\"");
    assert_eq!(timeout(&server).await, "\"3h\"");
    assert_eq!(std::fs::read_to_string(&audit).unwrap().matches("\"settings_reloaded\"").count(), 2);
    assert_eq!(server.stop("-TERM").code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_starts_a_server_hears_when_it_is_ready_and_when_it_stops() {
    use std::os::unix::net::UnixDatagram;
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let heard = || {
        let mut text = [0; 64];
        let length = socket.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    let mut command = command(&["--engine", "mem:", "--listen", "127.0.0.1:0"]);
    let server = Process::of(command.env("NOTIFY_SOCKET", &path));
    assert_eq!(heard(), "READY=1");
    assert_eq!(server.stop("-TERM").code(), Some(0));
    assert_eq!(heard(), "STOPPING=1");
}

#[test]
fn what_a_flag_and_the_file_say_twice_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("couch.toml");
    std::fs::write(&file, "engine = 'mem:'\n[config.cors]\norigins = 'https://a.example'\n").unwrap();
    let file = file.display().to_string();
    let sentence = refused(&["--config", &file, "--cors-origins", "https://b.example"], &[]);
    assert!(sentence.contains("--cors-origins and cors/origins in the file"), "{sentence}");
    let sentence = refused(&["--config", &file], &[("COUCH_LAYER_CORS_ORIGINS", "https://b.example")]);
    assert!(sentence.contains("--cors-origins and cors/origins in the file"), "{sentence}");
    drop(Process::start(&["--config", &file]));
}

#[test]
fn sizes_on_the_command_line_have_units() {
    let server = Process::start(&["--engine", "mem:", "--memory", "1GiB", "--max-request-size", "10MB"]);
    drop(server);
    let sentence = command(&["--engine", "mem:", "--memory", "1 lot"]).output().unwrap();
    let said = String::from_utf8(sentence.stderr).unwrap();
    assert!(said.contains("for example 64MB"), "{said}");
}

#[cfg(not(feature = "otlp"))]
#[test]
fn a_collector_needs_the_feature_that_sends_spans() {
    let sentence = refused(&["--engine", "mem:", "--otlp-endpoint", "http://127.0.0.1:4318"], &[]);
    assert!(sentence.contains("built without the feature otlp") && sentence.contains("--features otlp"), "{sentence}");
}
