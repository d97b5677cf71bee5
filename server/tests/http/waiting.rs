//! Replications whose clients wait: jobs like the others, which are seen, shared and cancelled.

use std::net::SocketAddr;
use std::time::Duration;

use jobs::{Accepted, JobState, ServerOptions};
use serde_json::{Value, json};
use server::engine::{IfMissing, open};
use server::http::Options;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::Couch;

/// Long enough for a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A server with a database `here`, and an address at which it answers only while the gate is open.
struct Gated {
    couch: Couch,
    address: SocketAddr,
    gate: watch::Sender<bool>,
}

impl Gated {
    async fn start() -> Gated {
        let couch = Couch::with_administrator().await;
        let base = couch.base.replace("http://", "http://adm:pass%20word@");
        for path in ["/here", "/here/a", "/here/b"] {
            let put = couch.client.put(format!("{base}{path}")).body("{}").send().await.unwrap();
            assert_eq!(put.status(), 201);
        }
        let server: SocketAddr = couch.base.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (gate, opened) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut opened = opened.clone();
                tokio::spawn(async move {
                    if opened.wait_for(|is_open| *is_open).await.is_ok() {
                        let mut server = TcpStream::connect(server).await.unwrap();
                        // It ends as the connections do.
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Gated { couch, address, gate }
    }

    /// A replication from there.
    fn asked(&self, target: &str) -> Value {
        let source = json!({"url": format!("http://{}/here", self.address),
            "auth": {"basic": {"username": "adm", "password": "pass word"}}});
        json!({"source": source, "target": target, "create_target": true})
    }
}

/// Two servers on one store.
async fn two() -> (Couch, Couch) {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let first = Couch::over(engine.clone(), Options::default()).await;
    (first, Couch::over(engine, Options::default()).await)
}

/// Sends a request whose answer comes later.
fn begin(couch: &Couch, asked: &Value) -> JoinHandle<(u16, Value)> {
    let request = couch.request("POST", "/_replicate").header("content-type", "application/json");
    let request = request.body(asked.to_string());
    tokio::spawn(async move {
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap())
    })
}

async fn answered(waiting: JoinHandle<(u16, Value)>) -> (u16, Value) {
    tokio::time::timeout(TIMEOUT, waiting).await.expect("it is answered").unwrap()
}

/// Waits until this many replications run. Returns them as the scheduler lists them.
async fn running(couch: &Couch, count: usize) -> Vec<Value> {
    let waiting = async {
        loop {
            let answer = couch.get("/_scheduler/jobs").await;
            assert!(!answer.text.contains("pass"), "{}", answer.text);
            let jobs = answer.json()["jobs"].as_array().unwrap().clone();
            if jobs.len() == count && jobs.iter().all(|job| !job["pid"].is_null()) {
                return jobs;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{count} jobs"))
}

fn stopped() -> (u16, Value) {
    (500, json!({"error": "stopped", "reason": "The replication was cancelled."}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_does_not_wait_for_a_silent_source() {
    let (far, couch) = (Gated::start().await, Couch::start().await);
    let mut asked = far.asked("there");
    asked["continuous"] = json!(true);
    assert_eq!(couch.json("POST", "/_replicate", asked).await.status, 202);
    running(&couch, 1).await;
    // Some seconds; without a limit it would never stop.
    couch.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_is_seen_and_cancelled_while_its_client_waits() {
    let (far, (first, second)) = (Gated::start().await, two().await);
    let asked = far.asked("there");
    let waiting = begin(&first, &asked);
    let job = running(&second, 1).await.remove(0);
    let id = job["id"].as_str().unwrap().to_owned();
    assert!(id.ends_with("+create_target") && !id.contains("continuous"), "{id}");
    assert_eq!((&job["database"], &job["doc_id"], &job["user"]), (&json!(null), &json!(null), &json!(null)));
    let source = format!("http://{}/here/", far.address);
    assert_eq!((&job["source"], &job["target"], &job["info"]), (&json!(source), &json!("there"), &json!(null)));
    assert_eq!(second.get(&format!("/_scheduler/jobs/{}", id.replace('+', "%2B"))).await.json()["id"], json!(id));
    let tasks = second.get("/_active_tasks").await;
    assert!(!tasks.text.contains("pass"), "{}", tasks.text);
    let tasks = tasks.json();
    let task = tasks.as_array().unwrap().iter().find(|task| task["type"] == "replication").expect("a task");
    assert_eq!(
        (&task["replication_id"], &task["doc_id"], &task["continuous"]),
        (&json!(id), &json!(null), &json!(false))
    );

    // Cancelled by its description, at another server.
    let mut cancel = asked.clone();
    cancel["cancel"] = json!(true);
    let cancelled = second.json("POST", "/_replicate", cancel.clone()).await;
    assert_eq!((cancelled.status.as_u16(), cancelled.json()), (200, json!({"ok": true, "_local_id": id})));
    assert_eq!(answered(waiting).await, stopped());
    second.json("POST", "/_replicate", cancel).await.refused(404, "not_found", "missing");
    running(&second, 0).await;

    // By its id.
    let waiting = begin(&second, &asked);
    running(&first, 1).await;
    let cancel = json!({"cancel": true, "replication_id": id});
    assert_eq!(first.json("POST", "/_replicate", cancel.clone()).await.status, 200);
    assert_eq!(answered(waiting).await, stopped());

    // An ended replication is no longer a job, and can be requested again.
    far.gate.send_replace(true);
    let (status, done) = answered(begin(&first, &asked)).await;
    assert_eq!((status, &done["history"][0]["docs_written"]), (200, &json!(2)), "{done}");
    running(&first, 0).await;
    assert_eq!(first.json("POST", "/_replicate", cancel).await.status, 404);
    let (_, again) = answered(begin(&second, &asked)).await;
    assert_eq!((&again["no_changes"], &again["session_id"]), (&json!(true), &done["session_id"]));
    assert_eq!(far.couch.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_ask_for_the_same_share_it_and_one_that_left_leaves_it_running() {
    let (far, (first, second)) = (Gated::start().await, two().await);
    let clients = [begin(&first, &far.asked("there")), begin(&second, &far.asked("there"))];
    let left = begin(&first, &far.asked("other"));
    let mut jobs = running(&first, 2).await;
    jobs.retain(|job| job["target"] == "other");
    assert_eq!(jobs.len(), 1);
    left.abort();
    far.gate.send_replace(true);
    for client in clients {
        let (status, done) = answered(client).await;
        assert_eq!(
            (status, &done["history"][0]["docs_written"], done["history"].as_array().unwrap().len()),
            (200, &json!(2), 1),
            "{done}"
        );
    }
    running(&first, 0).await;
    assert_eq!(second.get("/other").await.json()["doc_count"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_goes_on_where_the_one_with_the_client_stops() {
    let (far, (first, second)) = (Gated::start().await, two().await);
    let waiting = begin(&first, &far.asked("there"));
    running(&second, 1).await;
    first.server.stop().await;
    let (status, refused) = answered(waiting).await;
    assert_eq!(status, 503, "{refused}");
    far.gate.send_replace(true);
    running(&second, 0).await;
    assert_eq!(second.get("/there").await.json()["doc_count"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_and_its_request_are_forgotten_after_a_minute() {
    let couch = Couch::start().await;
    couch.database("here").await;
    let asked = json!({"source": "here", "target": "there", "create_target": true});
    assert_eq!(couch.json("POST", "/_replicate", asked).await.status, 200);
    let jobs = couch.layer.jobs();
    let kept = async {
        loop {
            let job = jobs.list("replication").await.unwrap().remove(0);
            if job.state == JobState::Pending {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let kept = tokio::time::timeout(TIMEOUT, kept).await.expect("its run ends");
    let ended_ms = kept.progress.expect("an answer").updated_ms;
    assert!((60_000..120_000).contains(&(kept.scheduled_ms - ended_ms)), "{}", kept.scheduled_ms - ended_ms);
    // The minute passes: another server, whose clock is ahead, takes the job and gives it back.
    let options = ServerOptions { name: "later".into(), lease: TIMEOUT, is_alone: false };
    let mut later = jobs::Server::new(jobs.clone(), [7; 16], options);
    let Accepted::Job(_, hold) = later.accept("replication", kept.scheduled_ms).await.unwrap() else {
        panic!("it is due")
    };
    jobs.resubmit(&hold, 0).await.unwrap();
    let removed = async {
        while !jobs.list("replication").await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, removed).await.expect("it is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_too_large_for_a_job_runs_all_the_same() {
    let couch = Couch::start().await;
    couch.database("here").await;
    couch.put("/here/a", json!({})).await;
    let ids: Vec<String> = (0..5_000).map(|n| format!("a-long-id-{n:010}")).chain(["a".to_owned()]).collect();
    let asked = json!({"source": "here", "target": "there", "create_target": true, "doc_ids": ids});
    let done = couch.json("POST", "/_replicate", asked.clone()).await;
    assert_eq!((done.status.as_u16(), &done.json()["docs_written"]), (200, &json!(1)), "{}", done.text);
    let mut continuous = asked;
    continuous["continuous"] = json!(true);
    assert_eq!(couch.json("POST", "/_replicate", continuous).await.status, 413);
}
