//! Replications that continue by themselves: documents of `_replicator`, and continuous ones of `_replicate`.

use std::time::Duration;

use jobs::JobId;
use serde_json::{Value, json};
use server::engine::{IfMissing, open};
use server::http::Options;

use crate::support::Couch;

/// Long enough for a machine that does much else.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A server with a replicator's database and one with documents.
async fn couch() -> Couch {
    let couch = Couch::start().await;
    couch.database("_replicator").await;
    couch.database("here").await;
    for number in 0..5 {
        couch.put(&format!("/here/{number}"), json!({"n": number})).await;
    }
    couch
}

/// Waits until a document of a database matches a selector.
async fn until(couch: &Couch, db: &str, id: &str, selector: Value) {
    let mut selector = selector;
    selector["_id"] = json!(id);
    let path = format!("/{db}/_changes?feed=longpoll&filter=_selector&timeout=60000");
    let waiting = async {
        loop {
            let found = couch.json("POST", &path, json!({"selector": selector})).await.json();
            if !found["results"].as_array().unwrap().is_empty() {
                return;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{db}/{id}: {selector}"));
}

async fn arrived(couch: &Couch, db: &str, id: &str) {
    until(couch, db, id, json!({})).await;
}

/// Waits until the replicator has written its outcome into a document; the document.
async fn ended(couch: &Couch, id: &str) -> Value {
    until(couch, "_replicator", id, json!({"_replication_state": {"$exists": true}})).await;
    couch.get(&format!("/_replicator/{id}")).await.json()
}

/// Waits until a job is as it should be.
async fn job_until(couch: &Couch, id: &str, is_good: impl Fn(Option<&jobs::Job>) -> bool) {
    let (jobs, id) = (couch.layer.jobs(), JobId::new("replication", id));
    let waiting = async {
        loop {
            let (job, changed) = jobs.watch(&id).await.unwrap();
            if is_good(job.as_ref()) {
                return;
            }
            changed.await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{id:?}"));
}

async fn scheduled(couch: &Couch, id: &str) -> Value {
    let answer = couch.get(&format!("/_scheduler/docs/_replicator/{id}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(!answer.text.contains("pass"), "{}", answer.text);
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_runs_and_is_completed() {
    let (near, far) = (couch().await, Couch::with_administrator().await);
    let target = format!("{}/there", far.base.replace("http://", "http://adm:pass%20word@"));
    let document = json!({"source": "here", "target": target, "create_target": true, "note": "mine"});
    let rev = near.put("/_replicator/push", document.clone()).await;
    let done = ended(&near, "push").await;
    assert_eq!(
        (&done["_replication_state"], &done["note"], &done["target"]),
        (&json!("completed"), &json!("mine"), &document["target"])
    );
    assert_eq!(
        (&done["_replication_stats"]["docs_written"], &done["_replication_stats"]["changes_pending"]),
        (&json!(5), &json!(0))
    );
    assert!(done["_replication_state_time"].as_str().unwrap().ends_with('Z') && done["_rev"] != json!(rev));
    let row = scheduled(&near, "push").await;
    assert_eq!(
        (&row["state"], &row["info"]["docs_written"], &row["error_count"]),
        (&json!("completed"), &json!(5), &json!(0))
    );
    assert_eq!((&row["target"], &row["id"]), (&json!(format!("{}/there/", far.base)), &json!(null)));
    assert_eq!((row.get("node"), row.get("source_proxy")), (None, None), "as CouchDB shows what has ended");
    job_until(&near, "_replicator:push", |job| job.is_none()).await;

    // It does not change until a client removes the state.
    near.put("/here/6", json!({})).await;
    let mut again = document;
    again["_rev"] = done["_rev"].clone();
    again["_replication_state"] = json!("completed");
    let rev = near.put("/_replicator/push", again.clone()).await;
    again["_rev"] = json!(rev);
    again.as_object_mut().unwrap().remove("_replication_state");
    near.put("/_replicator/push", again).await;
    // The figures count on, as in CouchDB.
    assert_eq!(ended(&near, "push").await["_replication_stats"]["docs_written"], 6);
    let listed = near.get("/_scheduler/docs").await.json();
    assert_eq!((&listed["total_rows"], &listed["docs"][0]["doc_id"]), (&json!(1), &json!("push")));
    let others = near.get("/_scheduler/docs?states=failed,running").await.json();
    assert_eq!((&others["total_rows"], &others["docs"]), (&json!(1), &json!([])));
    assert_eq!(near.get("/_scheduler/docs?states=x").await.status, 400);
    assert_eq!(near.get("/_scheduler/docs/_replicator/none").await.status, 404);
    assert_eq!(near.get("/_scheduler/docs/here").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_one_goes_on_until_its_document_is_deleted() {
    let (near, far) = (couch().await, Couch::with_administrator().await);
    let server = far.base.replace("http://", "http://adm:pass%20word@");
    let created = reqwest::Client::new().put(format!("{server}/there")).send().await.unwrap();
    assert_eq!(created.status(), 201);
    let push =
        json!({"source": "here", "target": format!("{server}/there"), "continuous": true, "checkpoint_interval": 1});
    let rev = near.put("/_replicator/push", push).await;
    let pull = json!({"source": format!("{server}/there"), "target": "back", "continuous": true});
    near.database("back").await;
    near.put("/_replicator/pull", pull).await;
    job_until(&near, "_replicator:pull", |job| job.is_some_and(|job| job.attempts > 0)).await;
    near.put("/here/later", json!({"n": 9})).await;
    until(&near, "back", "later", json!({"n": 9})).await;

    let answer = near.get("/_scheduler/jobs").await;
    assert!(!answer.text.contains("pass"), "{}", answer.text);
    let jobs = answer.json();
    let job = jobs["jobs"].as_array().unwrap().iter().find(|job| job["doc_id"] == "push").unwrap();
    assert_eq!(
        (&jobs["total_rows"], &job["database"], &job["source"]),
        (&json!(2), &json!("_replicator"), &json!("here"))
    );
    let types: Vec<_> =
        job["history"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["started", "added"]);
    let id = job["id"].as_str().unwrap();
    assert!(id.ends_with("+continuous"));
    assert_eq!(near.get(&format!("/_scheduler/jobs/{}", id.replace('+', "%2B"))).await.json()["doc_id"], "push");
    assert_eq!(scheduled(&near, "push").await["state"], "running");
    let answer = near.get("/_active_tasks").await;
    assert!(!answer.text.contains("pass"), "{}", answer.text);
    let tasks = answer.json();
    let task = tasks.as_array().unwrap().iter().find(|task| task["doc_id"] == "push").unwrap();
    assert_eq!(
        (&task["type"], &task["continuous"], &task["replication_id"]),
        (&json!("replication"), &json!(true), &json!(id))
    );

    // Its document says nothing while it runs, as in CouchDB.
    assert_eq!(near.get("/_replicator/push").await.json().get("_replication_state"), None);
    assert_eq!(near.call("DELETE", &format!("/_replicator/push?rev={rev}")).await.status, 200);
    job_until(&near, "_replicator:push", |job| job.is_none()).await;
    // Dropping the database removes the others.
    assert_eq!(near.call("DELETE", "/_replicator").await.status, 200);
    job_until(&near, "_replicator:pull", |job| job.is_none()).await;
    let (jobs, follower) = (near.layer.jobs(), JobId::new("replicator", "_replicator"));
    tokio::time::timeout(TIMEOUT, async {
        while let (Some(_), changed) = jobs.watch(&follower).await.unwrap() {
            changed.await.unwrap();
        }
    })
    .await
    .expect("nobody follows what is gone");
    // A later database of that name is another one.
    near.database("_replicator").await;
    near.put("/_replicator/copy", json!({"source": "here", "target": "copy", "create_target": true})).await;
    assert_eq!(ended(&near, "copy").await["_replication_state"], "completed");
}

/// A client may not write it. A replication may bring it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_document_that_makes_no_sense_fails_with_the_reason() {
    let couch = couch().await;
    let document = json!({"source": "here", "target": "there", "query_params": null});
    let reason = "parameter `query_params` must be an object";
    couch.json("PUT", "/_replicator/x", document.clone()).await.refused(403, "forbidden", reason);
    let mut stored = document;
    (stored["_id"], stored["_rev"]) = (json!("x"), json!("1-a"));
    couch.json("POST", "/_replicator/_bulk_docs", json!({"new_edits": false, "docs": [stored]})).await;
    let ended = ended(&couch, "x").await;
    assert_eq!(ended["_replication_state"], "failed", "{ended}");
    assert!(ended["_replication_state_reason"].as_str().unwrap().contains(reason), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fails_says_why_and_is_tried_again() {
    let couch = couch().await;
    let rev = couch.put("/_replicator/x", json!({"source": "here", "target": "there"})).await;
    job_until(&couch, "_replicator:x", |job| {
        job.is_some_and(|job| job.state == jobs::JobState::Pending && job.attempts > 0)
    })
    .await;
    let row = scheduled(&couch, "x").await;
    assert_eq!(
        (&row["state"], &row["info"]),
        (&json!("crashing"), &json!({"error": "db_not_found: could not open there"}))
    );
    assert!(row["error_count"].as_u64().unwrap() >= 1);
    let job = couch.get("/_scheduler/jobs").await.json()["jobs"][0].clone();
    assert_eq!(
        (&job["history"][0]["type"], &job["history"][0]["reason"]),
        (&json!("crashed"), &json!("db_not_found: could not open there"))
    );
    assert_eq!(job["info"], json!(null), "its history says it");
    couch.database("there").await;
    let done = ended(&couch, "x").await;
    assert_eq!(
        (&done["_replication_state"], &done["_replication_stats"]["docs_written"]),
        (&json!("completed"), &json!(5))
    );

    // Another definition replaces a waiting one.
    assert_ne!(done["_rev"], json!(rev));
    couch.put("/_replicator/y", json!({"source": "none", "target": "there", "continuous": true})).await;
    job_until(&couch, "_replicator:y", |job| {
        job.is_some_and(|job| job.state == jobs::JobState::Pending && job.attempts > 0)
    })
    .await;
    let rev = couch.get("/_replicator/y").await.json()["_rev"].clone();
    couch.put("/_replicator/y", json!({"_rev": rev, "source": "here", "target": "y", "create_target": true})).await;
    assert_eq!(ended(&couch, "y").await["_replication_state"], "completed");
}

/// Two documents and a request for one replication, as in CouchDB.
#[tokio::test(flavor = "multi_thread")]
async fn a_replication_runs_once() {
    let couch = couch().await;
    couch.database("there").await;
    let asked = json!({"source": "here", "target": "there", "continuous": true});
    couch.put("/_replicator/one", asked.clone()).await;
    job_until(&couch, "_replicator:one", |job| job.is_some_and(|job| job.attempts > 0)).await;
    let running = scheduled(&couch, "one").await;
    let id = running["id"].as_str().unwrap();
    assert!(running["state"] == "running" && id.ends_with("+continuous"), "{running}");
    couch.put("/_replicator/two", asked.clone()).await;
    let two = ended(&couch, "two").await;
    let reason = format!(
        "Replication `{id}` specified by document `two` already started, triggered by document `one` from db `_replicator`"
    );
    assert_eq!((&two["_replication_state"], &two["_replication_state_reason"]), (&json!("failed"), &json!(reason)));
    // A request has what it asks for, and cannot end a document's.
    let begun = couch.json("POST", "/_replicate", asked.clone()).await;
    assert_eq!((begun.status.as_u16(), &begun.json()["_local_id"]), (202, &json!(id)));
    let mut cancel = asked.clone();
    cancel["cancel"] = json!(true);
    assert_eq!(couch.json("POST", "/_replicate", cancel.clone()).await.status, 404);
    let jobs = couch.get("/_scheduler/jobs").await.json();
    assert_eq!((&jobs["total_rows"], &jobs["jobs"][0]["doc_id"]), (&json!(1), &json!("one")));

    // The id is free when its document is gone. Then a document waits for the end of a request's replication.
    let rev = couch.get("/_replicator/one").await.json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(couch.json("DELETE", &format!("/_replicator/one?rev={rev}"), json!({})).await.status, 200);
    job_until(&couch, "_replicator:one", |job| job.is_none()).await;
    assert_eq!(couch.json("POST", "/_replicate", asked.clone()).await.json()["_local_id"], json!(id));
    couch.put("/_replicator/three", asked).await;
    job_until(&couch, "_replicator:three", |job| {
        job.is_some_and(|job| job.state == jobs::JobState::Pending && job.attempts > 0)
    })
    .await;
    let row = scheduled(&couch, "three").await;
    let reason = format!(
        "Replication `{id}` specified by document `three` already running as a transient replication, started via `_replicate` API endpoint"
    );
    assert_eq!(
        (&row["state"], &row["id"], &row["info"]["error"], row.get("source")),
        (&json!("error"), &json!(null), &json!(reason), None)
    );
    assert_eq!(couch.json("POST", "/_replicate", cancel).await.json(), json!({"ok": true, "_local_id": id}));
    job_until(&couch, "_replicator:three", |job| job.is_some_and(|job| job.name.as_deref() == Some(id))).await;

    // A waiting client is told at once, even while the document's replication is between two attempts.
    let once = json!({"source": "none", "target": "there"});
    couch.put("/_replicator/four", once.clone()).await;
    job_until(&couch, "_replicator:four", |job| job.is_some_and(|job| job.attempts > 0 && job.name.is_some())).await;
    let refused = couch.json("POST", "/_replicate", once).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (409, &json!("conflict")), "{}", refused.text);
    let reason = refused.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.ends_with("already started, triggered by document `four` from db `_replicator`"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_is_refused_or_fails() {
    let couch = couch().await;
    let secure = json!({"source": "ftp://u:geheim@a/b", "target": "c"});
    for (method, path, body) in [
        ("PUT", "/_replicator/x", json!({"source": "here"})),
        ("PUT", "/_replicator/x", secure.clone()),
        ("POST", "/_replicator", secure.clone()),
    ] {
        let refused = couch.json(method, path, body).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (403, &json!("forbidden")), "{path}");
        assert!(!refused.text.contains("geheim"));
    }
    let bulk = couch.json("POST", "/_replicator/_bulk_docs", json!({"docs": [{"_id": "x", "source": "a"}]})).await;
    assert_eq!((bulk.status.as_u16(), &bulk.json()[0]["error"]), (201, &json!("forbidden")));
    assert_eq!(couch.get("/_replicator/x").await.status, 404);
    // Documents from elsewhere are stored, with a failed state.
    let mut brought = secure;
    brought["_id"] = json!("x");
    brought["_rev"] = json!("1-abc");
    let sent = json!({"docs": [brought], "new_edits": false});
    assert_eq!(couch.json("POST", "/_replicator/_bulk_docs", sent).await.status, 201);
    let failed = ended(&couch, "x").await;
    assert_eq!(failed["_replication_state"], "failed");
    let reason = failed["_replication_state_reason"].as_str().unwrap();
    assert!(reason.contains("https") && !reason.contains("geheim"), "{reason}");
    let row = scheduled(&couch, "x").await;
    assert_eq!(
        (&row["state"], &row["source"], &row["info"]["error"]),
        (&json!("failed"), &json!(null), &json!(reason))
    );
    assert_eq!(couch.put("/_replicator/_design/x", json!({})).await.split('-').next(), Some("1"));
    assert_eq!(couch.get("/_scheduler/jobs").await.json()["total_rows"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuous_request_outlives_its_server_until_it_is_cancelled() {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let first = Couch::over(engine.clone(), Options::default()).await;
    let second = Couch::over(engine, Options::default()).await;
    first.database("here").await;
    first.database("there").await;
    let asked = json!({"source": "here", "target": "there", "create_target": true, "continuous": true});
    let begun = first.json("POST", "/_replicate", asked.clone()).await;
    let id = begun.json()["_local_id"].as_str().unwrap().to_owned();
    assert_eq!((begun.status.as_u16(), begun.json()), (202, json!({"ok": true, "_local_id": id})));
    assert!(id.ends_with("+continuous+create_target"));
    assert_eq!(second.json("POST", "/_replicate", asked.clone()).await.json()["_local_id"], json!(id), "it is one");
    first.put("/here/a", json!({})).await;
    job_until(&first, &id, |job| job.is_some_and(|job| job.attempts > 0)).await;
    // Whichever server runs it, the other one continues.
    first.server.stop().await;
    second.put("/here/b", json!({})).await;
    until(&second, "there", "a", json!({})).await;
    arrived(&second, "there", "b").await;
    let jobs = second.get("/_scheduler/jobs").await.json();
    assert_eq!(
        (&jobs["total_rows"], &jobs["jobs"][0]["doc_id"], &jobs["jobs"][0]["id"]),
        (&json!(1), &json!(null), &json!(id))
    );

    let mut cancel = asked;
    cancel["cancel"] = json!(true);
    assert_eq!(second.json("POST", "/_replicate", cancel.clone()).await.json(), json!({"ok": true, "_local_id": id}));
    assert_eq!(second.json("POST", "/_replicate", cancel).await.status, 404);
    job_until(&second, &id, |job| job.is_none()).await;
    let by_id = json!({"cancel": true, "replication_id": id});
    assert_eq!(second.json("POST", "/_replicate", by_id).await.status, 404);
    assert_eq!(second.get("/_scheduler/jobs").await.json()["total_rows"], 0);
}

/// The checkpoint of one function says nothing about what another function accepts.
#[cfg(feature = "javascript")]
#[tokio::test(flavor = "multi_thread")]
async fn another_filter_function_begins_another_replication() {
    let couch = couch().await;
    couch.database("there").await;
    couch.json("PUT", "/_node/_local/_config/replicator/interval", json!("50")).await;
    let filters = |what: &str| json!({"filters": {"f": format!("function (doc) {{ return doc.n {what} 2; }}")}});
    let rev = couch.put("/here/_design/app", filters("<")).await;
    couch
        .put("/_replicator/x", json!({"source": "here", "target": "there", "filter": "app/f", "continuous": true}))
        .await;
    arrived(&couch, "there", "0").await;
    arrived(&couch, "there", "1").await;
    let before = scheduled(&couch, "x").await["id"].clone();
    let mut changed = filters("==");
    changed["_rev"] = json!(rev);
    couch.put("/here/_design/app", changed).await;
    arrived(&couch, "there", "2").await;
    let after = scheduled(&couch, "x").await;
    assert!(after["state"] == "running" && after["id"] != before, "{after}");
    assert_eq!(couch.get("/there").await.json()["doc_count"], 3);
}

/// With room for one, each of three endless replications gets its turn, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_may_run_take_turns() {
    let couch = couch().await;
    for (key, value) in [("max_jobs", "1"), ("max_churn", "1"), ("interval", "50")] {
        let put = couch.json("PUT", &format!("/_node/_local/_config/replicator/{key}"), json!(value)).await;
        assert_eq!(put.status, 200, "{}", put.text);
    }
    for name in ["a", "b", "c"] {
        couch.database(name).await;
        let document = json!({"source": "here", "target": name, "continuous": true});
        couch.put(&format!("/_replicator/{name}"), document).await;
    }
    for round in 0..3 {
        let id = format!("round{round}");
        couch.put(&format!("/here/{id}"), json!({})).await;
        for name in ["a", "b", "c"] {
            arrived(&couch, name, &id).await;
            let running = couch.layer.jobs().running().await.unwrap();
            let running = running.iter().filter(|job| job.id.kind == "replication").count();
            assert!(running <= 1, "{running}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_makes_room_lets_those_that_wait_begin() {
    let engine = open(&"mem:".parse().unwrap(), IfMissing::Create).unwrap();
    let couch = Couch::over(engine, Options { lease: Duration::from_secs(3), ..Options::default() }).await;
    for name in ["_replicator", "here", "a", "b", "c"] {
        couch.database(name).await;
    }
    let most = async |number: &str| {
        let put = couch.json("PUT", "/_node/_local/_config/replicator/max_jobs", json!(number)).await;
        assert_eq!(put.status, 200, "{}", put.text);
    };
    most("2").await;
    for name in ["a", "b", "c"] {
        couch.put(&format!("/_replicator/{name}"), json!({"source": "here", "target": name, "continuous": true})).await;
    }
    couch.put("/here/x", json!({})).await;
    let has = async |name: &str| couch.get(&format!("/{name}/x")).await.status == 200;
    let waiting = async {
        loop {
            let mut waiting = Vec::new();
            for name in ["a", "b", "c"] {
                if !has(name).await {
                    waiting.push(name);
                }
            }
            if let [one] = waiting[..] {
                return one;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let one = tokio::time::timeout(TIMEOUT, waiting).await.expect("two begin");
    assert!(!has(one).await, "{one} waits");
    most("3").await;
    arrived(&couch, one, "x").await;
}
