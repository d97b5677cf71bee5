//! Indexes are built by jobs: whatever defined the index, whichever server started, and without a request.

use std::time::Duration;

use jobs::{Accepted, ServerOptions};
use kv_api::AnyDatabase;
use model::{BUILD_JOBS, CreateOptions, Documents, Edit, JsonText, Layer, LayerOptions, WriteMode};
use serde_json::{Value, json};
use server::engine::{IfMissing, open};
use server::http::Options;

use crate::support::Couch;

fn design() -> Value {
    let view = json!({"map": {"fields": {"n": "asc"}, "partial_filter_selector": {}}, "reduce": "_count",
        "options": {"def": {"fields": ["n"]}}});
    json!({"language": "query", "views": {"n": view}})
}

fn edit(id: &str, body: &Value) -> Edit {
    Edit::new(id, JsonText::parse(body.to_string().as_bytes()).unwrap())
}

/// A store with a database of this many documents, not yet opened by a server.
async fn store(documents: usize) -> (AnyDatabase, Documents<AnyDatabase>) {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
    let database = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let edits = (0..documents).map(|n| edit(&format!("{n:05}"), &json!({"n": n}))).collect();
    for written in database.write(edits, WriteMode::Interactive).await.unwrap() {
        written.unwrap();
    }
    (engine, database)
}

/// Waits until there is no job.
async fn built(database: &Documents<AnyDatabase>) {
    let waiting = async {
        loop {
            let (job, changed) = database.jobs().watch(&database.build_job()).await.unwrap();
            if job.is_none() {
                return;
            }
            changed.await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("an index");
    assert!(database.indexes().await.unwrap().iter().all(|index| index.active));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_goes_on_by_itself_when_the_server_is_started_again() {
    let (engine, database) = store(500).await;
    database.put(edit("_design/x", &design())).await.unwrap();
    // A server that accepted the job, did a part of it, and stopped.
    let options = ServerOptions { name: "gone".into(), lease: Duration::from_secs(3_600), is_alone: false };
    let mut gone = jobs::Server::new(database.jobs(), [1; 16], options);
    let Accepted::Job(_, hold) = gone.accept(BUILD_JOBS, 0).await.unwrap() else { panic!("a job") };
    let progress = database.build_indexes_batch(100, Some(&hold)).await.unwrap().unwrap();
    assert_eq!((progress.documents, progress.done), (100, false));
    gone.close().await.unwrap();
    assert!(!database.indexes().await.unwrap()[0].active);

    let couch = Couch::over(engine, Options::default()).await;
    built(&database).await;
    let asked = json!({"selector": {"n": {"$lt": 3}}, "execution_stats": true});
    let found = couch.json("POST", "/db/_find", asked).await.json();
    assert_eq!(
        (found["docs"].as_array().unwrap().len(), &found["execution_stats"]["total_keys_examined"]),
        (3, &json!(3))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_one_store_share_the_builds() {
    let (engine, database) = store(3_000).await;
    let here = Couch::over(engine.clone(), Options::default()).await;
    let there = Couch::over(engine, Options::default()).await;
    // A replication brings the definition.
    let mut brought = design();
    brought["_id"] = json!("_design/x");
    brought["_rev"] = json!("1-abc");
    let sent = json!({"docs": [brought], "new_edits": false});
    assert_eq!(here.json("POST", "/db/_bulk_docs", sent).await.status, 201);
    // Whichever server runs it, the other one continues.
    here.server.stop().await;
    built(&database).await;
    let sorted = there.json("POST", "/db/_find", json!({"selector": {}, "sort": [{"n": "desc"}], "limit": 1})).await;
    assert_eq!(sorted.json()["docs"][0]["n"], 2_999);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_among_the_active_tasks_and_a_query_waits_for_it() {
    let (engine, database) = store(50).await;
    database.put(edit("_design/x", &design())).await.unwrap();
    let options = ServerOptions { name: "elsewhere".into(), lease: Duration::from_secs(3_600), is_alone: false };
    let mut elsewhere = jobs::Server::new(database.jobs(), [1; 16], options);
    let Accepted::Job(_, hold) = elsewhere.accept(BUILD_JOBS, 1_700_000_000_000).await.unwrap() else {
        panic!("a job")
    };
    database.build_indexes_batch(20, Some(&hold)).await.unwrap();
    let couch = Couch::over(engine, Options::default()).await;
    let task = json!({"node": "nonode@nohost", "server": "elsewhere", "pid": "<0.0.0>", "process_status": "running",
        "type": "indexer", "database": "db",
        "started_on": 1_700_000_000, "updated_on": 1_700_000_000});
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([task]));
    let listed = couch.get("/db/_index").await.json();
    assert_eq!(
        (&listed["indexes"][1]["build_status"], &listed["indexes"][1]["documents_done"]),
        (&json!("building"), &json!(20))
    );

    // Only this index can answer: the answer comes when any server has built it.
    let asked = json!({"selector": {"n": {"$gte": 48}}, "sort": [{"n": "asc"}]});
    let asking = couch.json("POST", "/db/_find", asked);
    let building =
        async { while database.build_indexes_batch(5, Some(&hold)).await.is_ok_and(|done| done.is_some()) {} };
    let (answer, ()) = tokio::join!(asking, building);
    assert_eq!(answer.json()["docs"].as_array().unwrap().len(), 2, "{}", answer.text);
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([]));
}

/// Documents that its filter leaves out are never in the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_waits_for_the_index_that_it_names() {
    let (engine, database) = store(50).await;
    let mut partial = design();
    partial["views"]["n"]["map"]["partial_filter_selector"] = json!({"n": {"$gte": 40}});
    database.put(edit("_design/partial", &partial)).await.unwrap();
    database.put(edit("_design/whole", &design())).await.unwrap();
    let options = ServerOptions { name: "elsewhere".into(), lease: Duration::from_secs(3_600), is_alone: false };
    let mut elsewhere = jobs::Server::new(database.jobs(), [1; 16], options);
    let Accepted::Job(_, hold) = elsewhere.accept(BUILD_JOBS, 0).await.unwrap() else { panic!("a job") };
    let couch = Couch::over(engine, Options::default()).await;
    let by = |name: &str| json!({"selector": {"n": {"$gte": 30}}, "use_index": name, "limit": 100});
    // The plan names it before it is built.
    let explained = couch.json("POST", "/db/_explain", by("partial")).await.json();
    assert_eq!(explained["index"]["ddoc"], "_design/partial");
    // A query that does not name an index does not wait.
    let unnamed = couch.json("POST", "/db/_find", json!({"selector": {"n": {"$gte": 30}}})).await.json();
    assert_eq!(unnamed["docs"].as_array().unwrap().len(), 20);
    let asking = futures_util::future::join(
        couch.json("POST", "/db/_find", by("partial")),
        couch.json("POST", "/db/_find", by("whole")),
    );
    let building =
        async { while database.build_indexes_batch(5, Some(&hold)).await.is_ok_and(|done| done.is_some()) {} };
    let ((partial, whole), ()) = tokio::join!(asking, building);
    for (answer, count) in [(partial, 10), (whole, 20)] {
        let found = answer.json();
        assert_eq!((found["docs"].as_array().unwrap().len(), found.get("warning")), (count, None), "{}", answer.text);
    }
}

/// One build covers all indexes of a database, so its task does not name a design document.
#[tokio::test(flavor = "multi_thread")]
async fn the_task_of_a_build_says_how_far_it_is() {
    let (engine, database) = store(10_000).await;
    database.put(edit("_design/x", &design())).await.unwrap();
    let couch = Couch::over(engine, Options::default()).await;
    let said = async {
        loop {
            let tasks = couch.get("/_active_tasks").await.json();
            if let Some(task) = tasks.get(0).filter(|task| task.get("changes_done").is_some()) {
                return task.clone();
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let task = tokio::time::timeout(Duration::from_secs(60), said).await.expect("a task");
    let number = |name: &str| task[name].as_u64().unwrap();
    assert_eq!((&task["type"], &task["database"]), (&json!("indexer"), &json!("db")), "{task}");
    assert!(0 < number("changes_done") && number("changes_done") <= number("total_changes"), "{task}");
    assert_eq!(number("progress"), 100 * number("changes_done") / 10_001, "{task}");
    assert!(number("started_on") <= number("updated_on"), "{task}");
    built(&database).await;
}
