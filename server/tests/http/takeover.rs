//! Several servers of one store share its replications, and take over those of a server that dies.

use std::collections::BTreeSet;
use std::time::Duration;

use jobs::{Job, JobState};
use kv_api::AnyDatabase;
use serde_json::{Value, json};
use server::engine::{IfMissing, open};
use server::http::Options;
use tokio::runtime::Runtime;

use crate::support::{Couch, wait_for};

/// Long enough that a busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(3);

fn options() -> Options {
    Options { lease: LEASE, ..Options::default() }
}

/// A server on threads of its own, which end without stopping it first.
struct Mortal {
    couch: Couch,
    runtime: Runtime,
}

impl Mortal {
    async fn over(engine: AnyDatabase) -> Mortal {
        let runtime = Runtime::new().unwrap();
        let couch = runtime.spawn(async { Couch::over(engine, options()).await }).await.unwrap();
        Mortal { couch, runtime }
    }

    /// Ends it like a crash: it gives nothing back, and no longer renews its lease.
    fn die(self) {
        self.runtime.shutdown_background();
    }
}

/// The jobs of replications that run, with their servers.
async fn running(couch: &Couch) -> Vec<Job> {
    let running = couch.layer.jobs().running().await.unwrap();
    running.into_iter().filter(|job| job.id.kind == "replication").collect()
}

fn server_of(job: &Job) -> &str {
    job.run.as_ref().and_then(|run| run.server.as_deref()).unwrap_or_default()
}

fn name(couch: &Couch) -> String {
    format!("couch-layer@{}", couch.server.address())
}

async fn arrived(couch: &Couch, db: &str, id: &str) {
    let path = format!("/{db}/{id}");
    wait_for(&path, async || (couch.get(&path).await.status == 200).then_some(())).await;
}

/// The sessions of the last checkpoint in a database, the newest first; empty before the first checkpoint.
async fn sessions(couch: &Couch, db: &str) -> Vec<Value> {
    let found = couch.get(&format!("/{db}/_local_docs?include_docs=true")).await.json();
    found["rows"][0]["doc"]["history"].as_array().cloned().unwrap_or_default()
}

async fn checkpointed(couch: &Couch, db: &str, written: u64, count: usize) -> Vec<Value> {
    wait_for(&format!("a checkpoint in {db}"), async || {
        let sessions = sessions(couch, db).await;
        (sessions.len() == count && sessions[0]["docs_written"] == json!(written)).then_some(sessions)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_over_the_replication_of_one_that_died() {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let first = Mortal::over(engine.clone()).await;
    for name in ["_replicator", "here", "there"] {
        first.couch.database(name).await;
    }
    for number in 0..5 {
        first.couch.put(&format!("/here/{number}"), json!({"n": number})).await;
    }
    let document = json!({"source": "here", "target": "there", "continuous": true, "checkpoint_interval": 1});
    first.couch.put("/_replicator/x", document).await;
    let before = checkpointed(&first.couch, "there", 5, 1).await;

    // A second server does not take it while the first one lives.
    let second = Couch::over(engine, options()).await;
    tokio::time::sleep(LEASE * 2).await;
    first.couch.put("/here/5", json!({"n": 5})).await;
    arrived(&second, "there", "5").await;
    let before_death = checkpointed(&second, "there", 6, 1).await;
    assert_eq!(before_death[0]["session_id"], before[0]["session_id"]);
    let held = running(&second).await;
    assert_eq!((held.len(), held[0].attempts, server_of(&held[0])), (1, 1, name(&first.couch).as_str()));
    let scheduled = async |couch: &Couch| couch.get("/_scheduler/docs/_replicator/x").await.json();
    let row = scheduled(&second).await;
    assert_eq!((&row["state"], &row["node"]), (&json!("running"), &json!(name(&first.couch))));

    first.die();
    second.put("/here/meanwhile", json!({"n": 6})).await;
    arrived(&second, "there", "meanwhile").await;
    // It continued from the checkpoint, so this document was the only one to write. Its record continues to count.
    let after = checkpointed(&second, "there", 7, 2).await;
    assert_eq!(after[0]["start_last_seq"], before_death[0]["recorded_seq"]);
    assert_eq!((&after[0]["docs_read"], &after[1]), (&json!(7), &before_death[0]));
    let arrived = second.get("/there/meanwhile?revs=true&conflicts=true").await.json();
    assert_eq!((&arrived["_revisions"]["start"], arrived.get("_conflicts")), (&json!(1), None));

    let held = running(&second).await;
    assert_eq!((held.len(), held[0].attempts, server_of(&held[0])), (1, 2, name(&second).as_str()));
    let row = scheduled(&second).await;
    // The run that was lost with its server counts as an error until this one has run for long.
    assert_eq!(
        (&row["state"], &row["node"], &row["error_count"]),
        (&json!("running"), &json!(name(&second)), &json!(1))
    );
    let job = second.get("/_scheduler/jobs").await.json()["jobs"][0].clone();
    let types: Vec<&str> =
        job["history"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((&job["node"], types), (&json!(name(&second)), vec!["started", "crashed", "started", "added"]));
    assert_eq!(job["history"][1]["reason"], "the server ended while it ran");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_each_replication_runs_on_one() {
    const COUNT: usize = 20;
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let first = Mortal::over(engine.clone()).await;
    let second = Couch::over(engine, options()).await;
    // None of them has room for all.
    let most = second.json("PUT", "/_node/_local/_config/replicator/max_jobs", json!("12")).await;
    assert_eq!(most.status, 200, "{}", most.text);
    for name in ["here", "_replicator"] {
        second.database(name).await;
    }
    second.put("/here/a", json!({})).await;
    let targets: Vec<String> = (0..COUNT).map(|number| format!("t{number}")).collect();
    for target in &targets {
        second.database(target).await;
        let document = json!({"source": "here", "target": target, "continuous": true, "checkpoint_interval": 1});
        second.put(&format!("/_replicator/{target}"), document).await;
    }
    for target in &targets {
        checkpointed(&second, target, 1, 1).await;
    }
    tokio::time::sleep(LEASE).await;
    second.put("/here/b", json!({})).await;
    let mut ids = BTreeSet::new();
    for target in &targets {
        // A second run would have written its own session.
        let sessions = checkpointed(&second, target, 2, 1).await;
        ids.insert(sessions[0]["session_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), COUNT);
    let held = running(&second).await;
    assert!(held.len() == COUNT && held.iter().all(|job| job.attempts == 1), "{held:?}");
    let of_second = held.iter().filter(|job| server_of(job) == name(&second)).count();
    let of_first = held.iter().filter(|job| server_of(job) == name(&first.couch)).count();
    assert!(of_first <= 12 && of_second <= 12 && of_first + of_second == COUNT, "{of_first} and {of_second}");

    assert_eq!(second.call("DELETE", "/_node/_local/_config/replicator/max_jobs").await.status, 200);
    first.die();
    second.put("/here/c", json!({})).await;
    for target in &targets {
        arrived(&second, target, "c").await;
    }
    let held = running(&second).await;
    assert!(held.iter().all(|job| server_of(job) == name(&second)), "{held:?}");
    let taken = held.iter().filter(|job| job.attempts == 2).count();
    assert_eq!((held.len(), taken), (COUNT, of_first));
    assert!(second.layer.jobs().list("replication").await.unwrap().iter().all(|job| job.state == JobState::Running));
}

/// Long before the first checkpoint is due.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_stopped_writes_a_last_checkpoint() {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let first = Couch::over(engine.clone(), options()).await;
    for name in ["_replicator", "here", "of-document", "of-request", "of-server"] {
        first.database(name).await;
    }
    for number in 0..5 {
        first.put(&format!("/here/{number}"), json!({"n": number})).await;
    }
    let job = |target: &str| json!({"source": "here", "target": target, "continuous": true});
    let rev = first.put("/_replicator/x", job("of-document")).await;
    first.put("/_replicator/y", job("of-server")).await;
    assert_eq!(first.json("POST", "/_replicate", job("of-request")).await.status, 202);
    for target in ["of-document", "of-request", "of-server"] {
        let path = format!("/{target}");
        wait_for(&path, async || (first.get(&path).await.json()["doc_count"] == 5).then_some(())).await;
        // The progress that a checkpoint has follows the documents.
        let done = async || {
            let jobs = first.get("/_scheduler/jobs").await.json();
            let mut jobs = jobs["jobs"].as_array().unwrap().iter();
            jobs.any(|job| job["target"] == target && job["info"]["docs_written"] == 5).then_some(())
        };
        wait_for(&path, done).await;
        assert!(sessions(&first, target).await.is_empty(), "{target}");
    }
    assert_eq!(first.call("DELETE", &format!("/_replicator/x?rev={rev}")).await.status, 200);
    checkpointed(&first, "of-document", 5, 1).await;
    let mut cancel = job("of-request");
    cancel["cancel"] = json!(true);
    assert_eq!(first.json("POST", "/_replicate", cancel).await.status, 200);
    checkpointed(&first, "of-request", 5, 1).await;
    first.server.stop().await;
    let second = Couch::over(engine, options()).await;
    checkpointed(&second, "of-server", 5, 1).await;
    second.server.stop().await;
}
