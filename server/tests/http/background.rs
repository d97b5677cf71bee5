//! While a cluster is at its limit, work in the background stands still, and everything that clients wait for goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::chaos::Chaos;
use jobs::{JobId, NewJob};
use kv_api::AnyDatabase;
use serde_json::{Value, json};
use server::http::Options;
use tokio::sync::watch;

use crate::support::{Couch, wait_for};

/// A server of a store that gives transactions in the background no answer while the switch is on.
async fn starving() -> (Couch, watch::Sender<bool>) {
    let (switch, starved) = watch::channel(true);
    let couch = Couch::over(AnyDatabase::new(Chaos::starving(memory(), starved)), Options::default()).await;
    (couch, switch)
}

fn memory() -> AnyDatabase {
    server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap()
}

async fn filled(couch: &Couch, database: &str) {
    couch.database(database).await;
    let docs: Vec<Value> = (0..20).map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    let written = couch.json("POST", &format!("/{database}/_bulk_docs"), json!({"docs": docs})).await;
    assert_eq!(written.status, 201, "{}", written.text);
}

fn index() -> Value {
    json!({"index": {"fields": ["n"]}, "name": "n"})
}

async fn is_built(couch: &Couch, database: &str) -> bool {
    couch.layer.database(database).await.unwrap().indexes().await.unwrap().iter().all(|index| index.active)
}

/// The kinds of the jobs that are running.
async fn running(couch: &Couch) -> BTreeSet<String> {
    couch.layer.jobs().running().await.unwrap().into_iter().map(|job| job.id.kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_nobody_waits_for_stand_still() {
    let (couch, switch) = starving().await;
    stand_still(couch, switch, async || {}).await;
}

/// More answers 1051 than there are retries of all transactions that are under way.
const ANSWERS: u64 = 5_000;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_outlast_a_cluster_that_refuses_work_in_the_background() {
    let (switch, starved) = watch::channel(true);
    let refusals = Arc::new(AtomicU64::new(0));
    let engine = AnyDatabase::new(Chaos::refusing(memory(), starved, refusals.clone()));
    let couch = Couch::over(engine.clone(), Options::default()).await;
    stand_still(couch, switch.clone(), async || {
        let end = refusals.load(Ordering::SeqCst) + ANSWERS;
        wait_for("answers", async || (refusals.load(Ordering::SeqCst) >= end).then_some(())).await;
    })
    .await;

    // A backup of the same store.
    switch.send_replace(true);
    let folder = tempfile::tempdir().unwrap();
    let place = Arc::new(backup::Folder::new(folder.path()));
    let environment = Arc::new(model::SystemEnvironment);
    let repository = backup::Repository::open_or_create(place, &backup::Protection::None, environment).await.unwrap();
    let copy = tokio::spawn(async move {
        let options = model::LayerOptions::default();
        repository.back_up(engine, &options, &["db".to_owned()], &mut |_, _| {}).await.map(|_| ())
    });
    let end = refusals.load(Ordering::SeqCst) + 200;
    wait_for("answers", async || (refusals.load(Ordering::SeqCst) >= end).then_some(())).await;
    assert!(!copy.is_finished());
    switch.send_replace(false);
    copy.await.unwrap().unwrap();
}

/// `meanwhile`: while work in the background stands still.
async fn stand_still(couch: Couch, switch: watch::Sender<bool>, meanwhile: impl AsyncFn()) {
    filled(&couch, "db").await;
    couch.put("/db/d0", json!({"_rev": couch.get("/db/d0").await.json()["_rev"]})).await;
    // Old bodies that are kept no longer, another layout, an index, tombstones, a vault.
    assert_eq!(couch.call("PUT", "/old?keep_replaced=5").await.status, 201);
    let rev = couch.put("/old/a", json!({"n": 1})).await;
    couch.put("/old/a", json!({"n": 2, "_rev": rev})).await;
    assert_eq!(couch.raw("PUT", "/old/_keep_replaced", "0").await.status, 200);
    assert_eq!(couch.call("PUT", "/layout?format=exploded").await.status, 201);
    couch.put("/layout/a", json!({"n": [1]})).await;
    assert_eq!(couch.json("PUT", "/layout/_couch_layer/format", json!("packed")).await.status, 202);
    assert_eq!(couch.json("POST", "/db/_index", index()).await.status, 200);
    for (key, value) in [
        ("couch_auto_purge_plugin/deleted_document_ttl", "1_day"),
        ("couch_scanner_plugins/couch_auto_purge_plugin", "true"),
    ] {
        let set = couch.json("PUT", &format!("/_node/_local/_config/{key}"), json!(value)).await;
        assert_eq!(set.status, 200, "{}", set.text);
    }
    couch.layer.jobs().add(&JobId::new("vault_collection", "db"), &NewJob::default()).await.unwrap();

    let all: BTreeSet<_> = ["auto_purge", "forget", "indexer", "rewrite", "vault_collection"].map(String::from).into();
    wait_for("all kinds", async || (running(&couch).await == all).then_some(())).await;
    meanwhile().await;
    assert_eq!(running(&couch).await, all, "no run has failed");
    assert_eq!(couch.get("/layout/_couch_layer/format").await.json()["rewriting"], true);
    assert!(!is_built(&couch, "db").await);

    switch.send_replace(false);
    wait_for("all work", async || running(&couch).await.is_empty().then_some(())).await;
    wait_for("the layout", async || {
        (couch.get("/layout/_couch_layer/format").await.json()["rewriting"] == false).then_some(())
    })
    .await;
    wait_for("the index", async || is_built(&couch, "db").await.then_some(())).await;
    assert_eq!(couch.get("/db/_couch_layer/check").await.json()["problem_count"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_and_what_they_wait_for_is_done() {
    let (couch, _switch) = starving().await;
    filled(&couch, "db").await;
    let rev = couch.get("/db/d1").await.json()["_rev"].clone();
    couch.put("/db/_design/d", json!({"views": {"v": {"map": "function (doc) { emit(doc.n) }"}}})).await;
    couch.put("/db/_local/l", json!({})).await;
    couch.database("copy").await;
    // The index, its first query, which nothing else can answer, and everything else.
    let (replicated, sorted) =
        (json!({"source": "db", "target": "copy"}), json!({"selector": {"n": {"$gt": 17}}, "sort": ["n"]}));
    let mut requests = vec![
        ("POST", "/db/_index", index()),
        ("POST", "/db/_find", sorted),
        ("GET", "/db", Value::Null),
        ("GET", "/db/d1", Value::Null),
        ("PUT", "/db/d1", json!({"_rev": rev, "n": 1})),
        ("POST", "/db/_bulk_get", json!({"docs": [{"id": "d1"}]})),
        ("GET", "/db/_all_docs?include_docs=true", Value::Null),
        ("GET", "/db/_changes?include_docs=true", Value::Null),
        ("POST", "/db/_changes?feed=longpoll&since=now&timeout=1", json!({})),
        ("POST", "/db/_revs_diff", json!({"d1": ["1-0"]})),
        ("POST", "/db/_purge", json!({"d2": ["1-00000000000000000000000000000000"]})),
        ("POST", "/_replicate", replicated),
        ("POST", "/db/_compact", json!({})),
        ("GET", "/_all_dbs", Value::Null),
        ("GET", "/_active_tasks", Value::Null),
        ("GET", "/_up", Value::Null),
        ("DELETE", "/copy", Value::Null),
    ];
    if cfg!(feature = "javascript") {
        requests.push(("GET", "/db/_design/d/_view/v?limit=1", Value::Null));
    }
    for (method, path, body) in requests {
        let answer = tokio::time::timeout(std::time::Duration::from_secs(60), async {
            if body.is_null() { couch.call(method, path).await } else { couch.json(method, path, body).await }
        });
        let answer = answer.await.unwrap_or_else(|_| panic!("{method} {path} waits for work in the background"));
        assert!(answer.status.is_success(), "{method} {path}: {}", answer.text);
    }
    assert!(is_built(&couch, "db").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_reads_all_documents_meanwhile_hastens_the_build() {
    let (couch, _switch) = starving().await;
    filled(&couch, "db").await;
    assert_eq!(couch.json("POST", "/db/_index", index()).await.status, 200);
    let query = json!({"selector": {"n": {"$gt": 17}}});
    assert_eq!(couch.json("POST", "/db/_explain", query.clone()).await.status, 200);
    assert!(!is_built(&couch, "db").await);
    let found = couch.json("POST", "/db/_find", query).await.json();
    assert_eq!(found["docs"].as_array().map(Vec::len), Some(2), "{found}");
    wait_for("the index", async || is_built(&couch, "db").await.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_that_stand_still_make_room_for_one_that_a_client_waits_for() {
    let (couch, switch) = starving().await;
    // As many as run at a time, and one more.
    let databases = ["a", "b", "c", "d", "e"];
    for database in databases {
        filled(&couch, database).await;
        couch.layer.database(database).await.unwrap().put(design()).await.unwrap();
    }
    let builds = async || couch.layer.jobs().running().await.unwrap();
    wait_for("four builds", async || (builds().await.len() == 4).then_some(())).await;
    let busy: BTreeSet<String> = builds().await.into_iter().map(|job| job.id.id).collect();
    let last = databases.into_iter().find(|name| !busy.contains(*name)).unwrap();
    let query = json!({"selector": {"n": {"$gt": 17}}, "sort": ["n"]});
    let found = couch.json("POST", &format!("/{last}/_find"), query).await.json();
    assert_eq!(found["docs"].as_array().map(Vec::len), Some(2), "{found}");
    assert!(is_built(&couch, last).await);
    for name in busy {
        assert!(!is_built(&couch, &name).await, "{name}");
    }
    switch.send_replace(false);
    for database in databases {
        wait_for("the others", async || is_built(&couch, database).await.then_some(())).await;
    }
}

fn design() -> model::Edit {
    let view = json!({"map": {"fields": {"n": "asc"}, "partial_filter_selector": {}}, "reduce": "_count",
        "options": {"def": {"fields": ["n"]}}});
    let design = json!({"language": "query", "views": {"n": view}});
    model::Edit::new("_design/x", model::JsonText::parse(design.to_string().as_bytes()).unwrap())
}
