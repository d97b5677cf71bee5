//! The answers of a server built without JavaScript: requests that need a function are refused, and nothing passes that
//! a function would have refused. What needs another feature says so, too.
//!
//! `cargo test -p couch-layer-server --no-default-features --features mem --test without_javascript`

#![cfg(all(feature = "mem", not(feature = "javascript")))]

// Each test file uses a part of it.
#[allow(dead_code)]
#[path = "http/support.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobs::{Accepted, JobId, JobState, NewJob, ServerOptions};
use model::{GetOptions, Mapped, Reduced, Reduction, View, ViewFunctions, ViewGroup, ViewOptions};
use serde_json::{Value, json};
use support::Couch;

const ABSENT: &str =
    "this couch-layer was built without the feature javascript, which functions of design documents need";

const NOT_VALIDATED: &str = "The database has validate_doc_update functions, which this program cannot run. Only its design \
     documents can be written.";

/// A server with `db`, whose design document has functions of all kinds but `validate_doc_update`.
async fn with_functions() -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    let design = json!({
        "views": {
            "rows": {"map": "function (doc) { emit(doc.n, 1); }"},
            "sum": {"map": "function (doc) { emit(doc.n, 1); }", "reduce": "_sum"},
            "own": {"map": "function (doc) { emit(doc.n, 1); }", "reduce": "function () { return 1; }"}
        },
        "filters": {"f": "function () { return true; }"},
        "updates": {"u": "function (doc, req) { return [{_id: 'made'}, 'made']; }"}
    });
    couch.put("/db/_design/d", design).await;
    for n in 0..3 {
        couch.put(&format!("/db/d{n}"), json!({"n": n})).await;
    }
    couch
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_a_function_is_refused() {
    let couch = with_functions().await;
    let before = couch.contents("db").await;
    for (method, path) in [
        ("GET", "/db/_design/d/_view/rows"),
        ("GET", "/db/_design/d/_view/rows?update=false"),
        // A reduce function that comes with the server reduces what a map function emits.
        ("GET", "/db/_design/d/_view/sum"),
        ("GET", "/db/_design/d/_view/sum?reduce=false"),
        ("GET", "/db/_design/d/_view/own"),
        ("GET", "/db/_design/d/_info"),
        ("POST", "/db/_view_cleanup"),
        ("GET", "/db/_changes?filter=d/f"),
        // Without a row, the function is not needed.
        ("GET", "/db/_changes?filter=d/f&since=now"),
        ("GET", "/db/_changes?filter=d/f&feed=longpoll&since=now&timeout=1000"),
        ("GET", "/db/_changes?filter=_view&view=d/rows"),
        ("POST", "/db/_design/d/_update/u"),
        ("PUT", "/db/_design/d/_update/u/d1"),
    ] {
        let answer = couch.json(method, path, json!({})).await;
        println!("{method} {path}");
        answer.refused(501, "not_implemented", ABSENT);
    }
    let queries = json!({"queries": [{"limit": 1}]});
    couch.json("POST", "/db/_design/d/_view/rows/queries", queries).await.refused(501, "not_implemented", ABSENT);
    couch.get("/db/_changes?filter=d/none").await.refused(404, "not_found", "missing json key: none");
    assert_eq!(couch.contents("db").await, before);
    assert!(couch.get("/_node/_local/_versions").await.json().get("javascript_engine").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_no_function_is_answered() {
    let couch = with_functions().await;
    let index = json!({"index": {"fields": ["n"]}, "ddoc": "i", "name": "n"});
    assert_eq!(couch.json("POST", "/db/_index", index).await.json()["result"], "created");
    let query = json!({"selector": {"n": {"$gt": 0}}, "sort": ["n"], "fields": ["_id"], "use_index": "i"});
    let found = couch.json("POST", "/db/_find", query).await.json();
    assert_eq!(found["docs"], json!([{"_id": "d1"}, {"_id": "d2"}]), "{found}");
    let fed = couch.json("POST", "/db/_changes?filter=_selector", json!({"selector": {"n": 1}})).await.json();
    assert_eq!(fed["results"].as_array().unwrap().len(), 1, "{fed}");
    assert_eq!(couch.get("/db/_changes?filter=_design").await.json()["results"].as_array().unwrap().len(), 2);
    assert_eq!(couch.get("/db/_design_docs").await.json()["rows"].as_array().unwrap().len(), 2);
    let copied = json!({"source": "db", "target": "copy", "create_target": true});
    assert_eq!(couch.json("POST", "/_replicate", copied).await.json()["history"][0]["docs_written"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_documents_are_validated_takes_none() {
    let couch = with_functions().await;
    let rev = couch.get("/db/d0").await.json()["_rev"].as_str().unwrap().to_owned();
    // It accepts everything, but the server cannot know that.
    couch.put("/db/_design/v", json!({"validate_doc_update": "function () {}"})).await;
    let before = couch.contents("db").await;
    couch.json("PUT", "/db/new", json!({})).await.refused(501, "not_implemented", NOT_VALIDATED);
    couch.json("POST", "/db", json!({})).await.refused(501, "not_implemented", NOT_VALIDATED);
    couch.json("PUT", "/db/d0", json!({"_rev": rev})).await.refused(501, "not_implemented", NOT_VALIDATED);
    couch.call("DELETE", &format!("/db/d0?rev={rev}")).await.refused(501, "not_implemented", NOT_VALIDATED);
    let attached = couch.send(couch.request("PUT", &format!("/db/d0/file?rev={rev}")).body("text")).await;
    attached.refused(501, "not_implemented", NOT_VALIDATED);
    for (new_edits, doc) in [(true, json!({"_id": "new"})), (false, json!({"_id": "new", "_rev": "1-a"}))] {
        let docs = json!({"docs": [doc], "new_edits": new_edits});
        let answer = couch.json("POST", "/db/_bulk_docs", docs).await;
        let row = &answer.json()[0];
        let found = (answer.status.as_u16(), &row["id"], &row["error"], &row["reason"]);
        assert_eq!(found, (201, &json!("new"), &json!("not_implemented"), &json!(NOT_VALIDATED)), "{}", answer.text);
    }
    couch.database("other").await;
    couch.put("/other/copied", json!({})).await;
    let copied = couch.json("POST", "/_replicate", json!({"source": "other", "target": "db"})).await;
    let session = copied.json()["history"][0].clone();
    assert_eq!((&session["docs_written"], &session["doc_write_failures"]), (&json!(0), &json!(1)), "{}", copied.text);
    assert_eq!(couch.get("/db/new").await.status, 404);
    let documents = |contents: &str| contents.split("{\"total_rows\"").next().unwrap().to_owned();
    assert_eq!(documents(&couch.contents("db").await), documents(&before));

    // Reads and queries still work, and clients that may write design documents can remove the function.
    assert_eq!(couch.json("POST", "/db/_find", json!({"selector": {"n": 2}})).await.json()["docs"][0]["_id"], "d2");
    let rev = couch.get("/db/_design/v").await.json()["_rev"].clone();
    couch.put("/db/_design/v", json!({"_rev": rev})).await;
    couch.put("/db/new", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_validated_without_a_function() {
    let couch = Couch::start().await;
    couch.database("_users").await;
    assert_eq!(couch.get("/_users/_design/_auth").await.status, 200);
    let user = json!({"type": "user", "name": "anna", "roles": [], "password": "pw"});
    couch.put("/_users/org.couchdb.user:anna", user.clone()).await;
    let wrong = couch.json("PUT", "/_users/org.couchdb.user:berta", user.clone()).await;
    wrong.refused(403, "forbidden", "Doc ID must be of the form org.couchdb.user:name");
    couch.put("/_users/_design/more", json!({"validate_doc_update": "function () {}"})).await;
    let more = json!({"type": "user", "name": "berta", "roles": [], "password": "pw"});
    couch.json("PUT", "/_users/org.couchdb.user:berta", more).await.refused(501, "not_implemented", NOT_VALIDATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_validate_without_javascript() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let selector = json!({"newDoc": {"type": {"$type": "string"}}});
    couch.put("/db/_design/v", json!({"language": "query", "validate_doc_update": selector})).await;
    couch.put("/db/a", json!({"type": "x"})).await;
    couch.json("PUT", "/db/b", json!({})).await.refused(403, "forbidden", "document is not valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_with_a_filter_function_fails_and_copies_nothing() {
    let couch = with_functions().await;
    let asked = json!({"source": "db", "target": "copy", "create_target": true, "filter": "d/f"});
    // It is not retried for half a minute, unlike passing errors.
    let began = Instant::now();
    couch.json("POST", "/_replicate", asked).await.refused(500, "replication_failed", ABSENT);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let copy = couch.get("/copy").await;
    assert!(copy.status == 404 || copy.json()["doc_count"] == 0, "{}", copy.text);
}

/// Functions in Rust, in place of those that a build with JavaScript would run.
struct Emits;

impl ViewFunctions for Emits {
    fn map(&self, documents: Vec<model::JsonText>) -> kv_api::BoxFuture<model::Result<Vec<Mapped>>> {
        Box::pin(async move {
            Ok(documents.iter().map(|_| Mapped { rows: vec![Vec::new()], ..Mapped::default() }).collect())
        })
    }

    fn reduce(&self, _: usize, _: Vec<Reduction>) -> kv_api::BoxFuture<model::Result<Vec<Reduced>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_that_it_does_not_run_functions() {
    let couch = with_functions().await;
    let sound = couch.get("/db/_couch_layer/check").await.json();
    assert_eq!((&sound["problem_count"], &sound["views_left_out"]), (&json!(0), &json!([])), "no view was built");
    let options = ViewOptions { is_of_design: true, ..ViewOptions::default() };
    let views = vec![View { name: "rows".to_owned(), reduce: None, is_raw: false }];
    let group = ViewGroup::new("_design/d", "{}", options, views, Arc::new(Emits));
    let documents = couch.layer.database("db").await.unwrap();
    documents.update_views(&group).await.unwrap();
    assert!(documents.get("_design/d", &GetOptions::default()).await.is_ok());
    let checked: Value = couch.get("/db/_couch_layer/check").await.json();
    let left_out = format!("the views of \"_design/d\" were not compared with their functions: {ABSENT}");
    let found = (&checked["problem_count"], &checked["view_groups"], &checked["views_left_out"]);
    assert_eq!(found, (&json!(0), &json!(0), &json!([left_out])), "{checked}");
}

/// On a store shared with servers that have JavaScript.
#[tokio::test(flavor = "multi_thread")]
async fn updates_of_views_are_left_to_other_servers() {
    let couch = with_functions().await;
    let (jobs, id) = (couch.layer.jobs(), JobId::new("views", "db:_design/d"));
    jobs.add(&id, &NewJob::default()).await.unwrap();
    // A job that was added later, and is done.
    let copied =
        couch.json("POST", "/_replicate", json!({"source": "db", "target": "copy", "create_target": true})).await;
    assert_eq!(copied.json()["ok"], true);
    assert_eq!(jobs.get(&id).await.unwrap().unwrap().state, JobState::Pending);
    let options = ServerOptions { name: "other".into(), lease: Duration::from_secs(60), is_alone: false };
    let accepted = jobs::Server::new(jobs, [1; 16], options).accept("views", 0).await.unwrap();
    assert!(matches!(accepted, Accepted::Job(job, _) if job.id == id));
}

#[cfg(not(feature = "acme"))]
#[test]
fn a_domain_needs_the_feature_that_orders_its_certificate() {
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    let arguments = ["serve", "--engine", "mem:", "--listen", "127.0.0.1:0", "--domain", "notes.example"];
    let output = server.args(arguments).env_clear().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("built without the feature acme") && said.contains("--features acme"), "{said}");
}
