//! Replications with servers that answer without end, with texts without measure, or never; and a server whose jobs are
//! paused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use jobs::{JobId, JobState};
use serde_json::{Value, json};
use server::engine::{IfMissing, open};
use server::http::Options;

use crate::support::Couch;

/// Long enough for a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A server that answers each request by `answer`, which gets its first line, and ends the connection.
fn serve(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, answer) = (listener.local_addr().unwrap(), Arc::new(answer));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (answer, mut client) = (answer.clone(), client.unwrap());
            std::thread::spawn(move || {
                let (mut reader, mut head) = (BufReader::new(client.try_clone().unwrap()), String::new());
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let lower = head.to_ascii_lowercase();
                let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let _ = reader.read_exact(&mut vec![0; length.unwrap_or(0)]);
                // The server may have disconnected, as it should.
                let _ = answer(head.lines().next().unwrap_or_default(), &mut client);
            });
        }
    });
    address
}

fn write(client: &mut TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    write!(client, "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn without_end(client: &mut TcpStream) -> std::io::Result<()> {
    client.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{")?;
    loop {
        client.write_all(&[b' '; 1 << 16])?;
    }
}

const INFO: &str = r#"{"db_name":"x","doc_count":1,"update_seq":"1-x","instance_start_time":"0"}"#;

/// Waits until a replication's job is as it should be.
async fn job_until(couch: &Couch, id: &str, is_good: impl Fn(&jobs::Job) -> bool) {
    let (jobs, id) = (couch.layer.jobs(), JobId::new("replication", id));
    let waiting = async {
        loop {
            let (job, changed) = jobs.watch(&id).await.unwrap();
            if job.as_ref().is_some_and(&is_good) {
                return;
            }
            changed.await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{id:?}"));
}

fn has_failed(job: &jobs::Job) -> bool {
    job.state == JobState::Pending && job.attempts > 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_without_end_is_the_failure_of_its_replication() {
    let couch = Couch::start().await;
    couch.database("_replicator").await;
    couch.database("there").await;
    // First all answers are endless, then only later ones.
    for (number, path) in ["GET /x ", "GET /x/_local/", "/_changes", "/_bulk_get"].into_iter().enumerate() {
        let source = serve(move |line, client| match line {
            _ if line.contains(path) => without_end(client),
            _ if line.starts_with("PUT ") => write(client, 201, r#"{"ok":true,"id":"x","rev":"0-1"}"#),
            _ if line.contains("/_changes") => {
                write(client, 200, r#"{"results":[{"seq":"1-x","id":"a","changes":[{"rev":"1-a"}]}],"last_seq":"1-x"}"#)
            }
            _ if line.contains("/_local/") => write(client, 404, r#"{"error":"not_found","reason":"missing"}"#),
            _ => write(client, 200, INFO),
        });
        let id = format!("x{number}");
        let document = json!({"source": format!("http://{source}/x"), "target": "there", "retries_per_request": 0});
        couch.put(&format!("/_replicator/{id}"), document).await;
        if path == "/_bulk_get" {
            // A document that is too long does not keep others from arriving.
            let ended = async {
                loop {
                    let found = couch.get(&format!("/_replicator/{id}")).await.json();
                    if found.get("_replication_state").is_some() {
                        return found;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let ended = tokio::time::timeout(TIMEOUT, ended).await.unwrap();
            assert_eq!(ended["_replication_stats"]["doc_write_failures"], 1, "{ended}");
            continue;
        }
        job_until(&couch, &format!("_replicator:{id}"), has_failed).await;
        let row = couch.get(&format!("/_scheduler/docs/_replicator/{id}")).await.json();
        let reason = row["info"]["error"].as_str().unwrap_or_default();
        assert!(row["state"] == "crashing" && reason.contains("is longer than"), "{path}: {row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_of_megabytes_ends_a_replication_and_is_seen_in_part() {
    let couch = Couch::start().await;
    couch.database("there").await;
    let long = "x".repeat(5_000_000);
    let refusal = json!({"error": "bad", "reason": long}).to_string();
    // Longer than what is read of a refusal, and shorter.
    for size in [5_000_000, 50_000] {
        let refusal = refusal.replace(&long, &long[..size]);
        let source = serve(move |line, client| match line.starts_with("GET /x ") {
            true => write(client, 200, INFO),
            false => write(client, 400, &refusal),
        });
        let asked = json!({"source": format!("http://{source}/x"), "target": "there"});
        let answered = tokio::time::timeout(TIMEOUT, couch.json("POST", "/_replicate", asked)).await.unwrap();
        assert_eq!((answered.status.as_u16(), answered.text.len() < 2_000), (500, true), "{}", answered.text.len());
    }
    // A sequence is stored and shown.
    let source = serve(move |line, client| match line {
        _ if line.contains("/_changes") => write(client, 200, &format!(r#"{{"results":[],"last_seq":"{long}"}}"#)),
        _ if line.contains("/_local/") => write(client, 404, r#"{"error":"not_found","reason":"missing"}"#),
        _ => write(client, 200, INFO),
    });
    let asked = json!({"source": format!("http://{source}/x"), "target": "there"});
    let answered = tokio::time::timeout(TIMEOUT, couch.json("POST", "/_replicate", asked)).await.unwrap();
    assert_eq!((answered.status.as_u16(), answered.text.len() < 2_000), (500, true), "{}", answered.text.len());
}

/// A record invented by a source is not written to the target without bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_without_measure_is_not_written_back() {
    let couch = Couch::start().await;
    couch.database("there").await;
    let session = |id: &str, more: &str| format!(r#"{{"session_id":"{id}","recorded_seq":"1-x","more":"{more}"}}"#);
    let sessions = vec![session("s", &"y".repeat(100_000)); 30].join(",");
    let record = format!(r#"{{"session_id":"s","source_last_seq":"1-x","history":[{sessions}]}}"#);
    let stored = record.clone();
    let source = serve(move |line, client| match line {
        _ if line.starts_with("PUT ") => write(client, 201, r#"{"ok":true,"id":"x","rev":"0-2"}"#),
        _ if line.contains("/_local/") => {
            write(client, 200, &stored.replacen('{', r#"{"_id":"_local/x","_rev":"0-1","#, 1))
        }
        _ if line.contains("/_changes") => write(client, 200, r#"{"results":[],"last_seq":"2-x"}"#),
        _ if line.contains("/_ensure_full_commit") => write(client, 201, r#"{"ok":true,"instance_start_time":"0"}"#),
        _ => write(client, 200, INFO),
    });
    let asked = json!({"source": format!("http://{source}/x"), "target": "there"});
    // The target has the same session, so that the source's history is the common one.
    let first = couch.json("POST", "/_replicate", asked.clone()).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let local = couch.get("/there/_local_docs").await.json()["rows"][0]["id"].as_str().unwrap().to_owned();
    let rev = couch.get(&format!("/there/{local}")).await.json()["_rev"].clone();
    let mut same: Value = serde_json::from_str(&record).unwrap();
    (same["_id"], same["_rev"]) = (json!(local), rev);
    couch.put(&format!("/there/{local}"), same).await;
    let second = couch.json("POST", "/_replicate", asked).await;
    assert_eq!(second.status, 200, "{}", second.text);
    let written = couch.get(&format!("/there/{local}")).await;
    assert!(written.json()["source_last_seq"] == "2-x" && written.text.len() < 10_000, "{}", written.text.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_jobs_are_paused_shows_them_and_runs_none() {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let paused = Couch::over(engine.clone(), Options { pause_jobs: true, ..Options::default() }).await;
    for name in ["_replicator", "here", "there"] {
        paused.database(name).await;
    }
    paused.put("/here/a", json!({})).await;
    paused.put("/_replicator/x", json!({"source": "here", "target": "there"})).await;
    let asked = json!({"source": "here", "target": "other", "create_target": true, "continuous": true});
    let begun = paused.json("POST", "/_replicate", asked).await;
    assert_eq!(begun.status, 202, "{}", begun.text);
    let once = paused.json("POST", "/_replicate", json!({"source": "here", "target": "there"})).await;
    let reason = "Jobs are paused: the server was started with --pause-jobs.";
    once.refused(503, "service unavailable", reason);
    let jobs = paused.get("/_scheduler/jobs").await.json();
    let job = &jobs["jobs"][0];
    assert_eq!((&jobs["total_rows"], &job["pid"], &job["history"]), (&json!(1), &json!(null), &json!([])));
    // Nobody follows the database.
    let row = paused.get("/_scheduler/docs/_replicator/x").await.json();
    assert_eq!(row["state"], "initializing");
    assert_eq!(paused.layer.jobs().running().await.unwrap(), []);

    // Another server runs them.
    let running = Couch::over(engine, Options::default()).await;
    let arrived = async {
        for db in ["there", "other"] {
            while running.get(&format!("/{db}/a")).await.status != 200 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, arrived).await.unwrap();
}
