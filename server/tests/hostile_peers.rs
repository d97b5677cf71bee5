//! A hostile peer and the server program: it survives under a limit of its memory, and one that was killed starts
//! again, with the jobs that ran waiting.

#![cfg(all(target_os = "linux", feature = "lsm"))]

#[path = "program/server.rs"]
mod process;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use process::Process;
use serde_json::{Value, json};

/// Long enough for a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A server in a folder, of which a shell limits the address space.
fn capped(folder: &Path, more: &[&str]) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 4000000 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_couch-layer"), "serve"]);
    command.args(["--listen", "127.0.0.1:0", "--engine", &format!("lsm:{}", folder.display())]).args(more);
    let mut server = Process::of(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    // It is read while the server runs, so that a full pipe does not stop the server.
    let mut log = server.child.stderr.take().unwrap();
    std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
    server
}

/// A server whose answers have no end; or that does not answer.
fn hostile(is_silent: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(client.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) && line != "\r\n" {
                    line.clear();
                }
                if is_silent {
                    // Until the client is gone.
                    let _ = reader.read_line(&mut line);
                    return;
                }
                let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{";
                let mut sent = client.write_all(head);
                while sent.is_ok() {
                    sent = client.write_all(&[b' '; 1 << 16]);
                }
            });
        }
    });
    address
}

async fn put(server: &Process, path: &str, body: Value) {
    let request = reqwest::Client::new().put(server.url(path)).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().await.unwrap();
    assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
}

/// Waits until `_scheduler/docs` shows a replication as it should be.
async fn shown(server: &Process, id: &str, is_good: impl Fn(&Value) -> bool) -> Value {
    let client = reqwest::Client::new();
    let waiting = async {
        loop {
            let answer = client.get(server.url(&format!("/_scheduler/docs/_replicator/{id}"))).send().await.unwrap();
            let row: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
            if is_good(&row) {
                return row;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap()
}

async fn history(server: &Process, id: &str) -> Vec<Value> {
    let answer = reqwest::get(server.url("/_scheduler/jobs")).await.unwrap();
    let jobs: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let job = jobs["jobs"].as_array().unwrap().iter().find(|job| job["doc_id"] == id).cloned();
    job.unwrap_or_else(|| panic!("{jobs}"))["history"].as_array().unwrap().clone()
}

/// The history of a replication once it has more than `known` events, and the latest one is a start. Until a server
/// takes the job of a killed one over, its state is still that of the killed one.
async fn started(server: &Process, id: &str, known: usize) -> Vec<Value> {
    let started = tokio::time::timeout(TIMEOUT, async {
        loop {
            let events = history(server, id).await;
            if events.len() > known && events[0]["type"] == "started" {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    started.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_outlives_a_peer_without_end_and_its_lost_jobs_wait() {
    let folder = tempfile::tempdir().unwrap();
    let server = capped(folder.path(), &[]);
    put(&server, "/_replicator", json!({})).await;
    put(&server, "/there", json!({})).await;
    let endless = json!({"source": format!("http://{}/x", hostile(false)), "target": "there", "continuous": true});
    put(&server, "/_replicator/endless", endless).await;
    let row = shown(&server, "endless", |row| row["error_count"].as_u64() > Some(0)).await;
    assert!(row["info"]["error"].as_str().unwrap().contains("is longer than"), "{row}");
    assert_eq!(reqwest::get(server.url("/there")).await.unwrap().status(), 200, "it serves");

    let silent = json!({"source": format!("http://{}/x", hostile(true)), "target": "there", "continuous": true});
    put(&server, "/_replicator/silent", silent).await;
    shown(&server, "silent", |row| row["state"] == "running").await;
    server.stop("-KILL");
    let reason = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
    let mut known = 0;
    for expected in ["the server ended while it ran", "the server ended while it ran, 2 times in a row"] {
        // Nothing runs here, so what waits can be seen.
        let paused = capped(folder.path(), &["--pause-jobs"]);
        let row = shown(&paused, "silent", |row| row["state"] == "crashing").await;
        let lost = history(&paused, "silent").await;
        assert_eq!((lost[0]["type"].as_str().unwrap(), reason(&lost[0]).as_str()), ("crashed", expected), "{row}");
        assert_eq!(row["info"]["error"], json!(expected));
        paused.stop("-TERM");
        // It runs again, and the history keeps what was.
        let server = capped(folder.path(), &[]);
        shown(&server, "silent", |row| row["state"] == "running").await;
        let after = started(&server, "silent", lost.len()).await;
        known = after.len();
        assert_eq!((after[0]["type"].as_str().unwrap(), reason(&after[1]).as_str()), ("started", expected));
        server.stop("-KILL");
    }
    // A stop in order counts for nothing.
    let server = capped(folder.path(), &[]);
    shown(&server, "silent", |row| row["state"] == "running").await;
    started(&server, "silent", known).await;
    server.stop("-TERM");
    let paused = capped(folder.path(), &["--pause-jobs"]);
    let row = shown(&paused, "silent", |row| row["state"] != "initializing").await;
    assert_eq!((&row["state"], &row["error_count"]), (&json!("pending"), &json!(0)), "{row}");
}
