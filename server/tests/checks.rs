//! `couch-layer check` of a database with views: rows that no function emits are found, and repaired.

#![cfg(all(feature = "lsm", feature = "javascript"))]

#[path = "program/server.rs"]
mod process;
mod program;

use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};
use process::Process;
use serde_json::{Value, json};

/// The program's result and its messages.
fn couch_layer(arguments: &[&str]) -> (bool, String) {
    let output = program::run(arguments, "");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("UTF-8"))
}

#[track_caller]
fn succeed(arguments: &[&str]) -> String {
    let (is_done, text) = couch_layer(arguments);
    assert!(is_done, "{arguments:?}: {text}");
    text
}

/// Replaces `from` by `to` in all rows of the store. Returns the number of changed rows.
async fn replace(store: &str, from: &[u8], to: &[u8]) -> usize {
    let engine = server::engine::open(&store.parse().unwrap(), server::engine::IfMissing::Fail).unwrap();
    let transaction = engine.begin().unwrap();
    let mut replaced = 0;
    for row in transaction.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot).await.unwrap() {
        let Some(at) = row.value.windows(from.len()).position(|some| some == from) else { continue };
        let value = [&row.value[..at], to, &row.value[at + from.len()..]].concat();
        transaction.set(&row.key, &value);
        replaced += 1;
    }
    transaction.commit().await.unwrap();
    replaced
}

async fn put(client: &reqwest::Client, server: &Process, path: &str, body: Value) {
    let request = client.put(server.url(path)).header("content-type", "application/json").body(body.to_string());
    let status = request.send().await.unwrap().status();
    assert_eq!(status, 201, "{path}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_no_function_emits_are_found_and_repaired() {
    let root = tempfile::tempdir().unwrap();
    let store = format!("lsm:{}", root.path().join("data").display());
    let client = reqwest::Client::new();
    let get = async |server: &Process, path: &str| -> Value {
        let answer = client.get(server.url(path)).send().await.unwrap().text().await.unwrap();
        serde_json::from_str(&answer).unwrap()
    };
    let server = Process::start(&["--engine", &store]);
    put(&client, &server, "/db", json!({})).await;
    // The function emits values that are not in the documents.
    let map = "function (doc) { if (doc.n) { emit(doc.n, 'twice ' + 2 * doc.n); } }";
    put(&client, &server, "/db/_design/v", json!({"views": {"v": {"map": map}}})).await;
    put(&client, &server, "/db/_design/w", json!({"views": {"w": {"map": map, "reduce": "_count"}}})).await;
    put(&client, &server, "/db/_design/never", json!({"views": {"u": {"map": map}}})).await;
    for n in 1..50 {
        put(&client, &server, &format!("/db/d{n}"), json!({"n": n})).await;
    }
    let view = get(&server, "/db/_design/v/_view/v").await;
    assert_eq!(view["total_rows"], 49);
    assert_eq!(get(&server, "/db/_design/w/_view/w").await["rows"][0]["value"], 49);
    // These views are behind, and one of their documents has changed.
    put(&client, &server, "/db/late", json!({"n": 50})).await;
    let rev = get(&server, "/db/d8").await["_rev"].clone();
    put(&client, &server, "/db/d8", json!({"_rev": rev, "n": 80})).await;
    let text = succeed(&["check", "db", "--url", &server.base]);
    assert!(text.ends_with(", the views of 2 design documents\neverything agrees\n"), "{text}");
    assert_eq!(server.stop("-TERM").code(), Some(0));
    let text = succeed(&["check", "db", "--engine", &store]);
    assert!(text.ends_with(", the views of 2 design documents\neverything agrees\n"), "{text}");

    // Only the function knows that it emits something else: the row's key and the number of rows are right.
    assert_eq!(replace(&store, b"twice 14", b"twice 41").await, 2, "one in each group");
    let wrong = r#""d7": emits a row that differs from the stored one, in the views of "_design/v""#;
    let (is_sound, text) = couch_layer(&["check", "db", "--engine", &store]);
    assert!(!is_sound && text.contains(wrong) && text.contains("2 problems were found in db"), "{text}");
    let (_, text) = couch_layer(&["check", "db", "--engine", &store, "--json"]);
    let report: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&report["problem_count"], &report["view_groups"]), (&json!(2), &json!(2)), "{report}");
    assert_eq!((&report["problems"][0], &report["views_left_out"]), (&json!(wrong), &json!([])), "{report}");
    let server = Process::start(&["--engine", &store]);
    assert_eq!(get(&server, "/db/_couch_layer/check").await["problems"][0], wrong);
    assert_eq!(server.stop("-TERM").code(), Some(0));

    let text = succeed(&["check", "db", "--engine", &store, "--repair"]);
    assert!(text.contains(r#"the views of "_design/v": removed, the next query rebuilds them"#), "{text}");
    assert!(text.contains("rows in changes\neverything agrees"), "no views are left: {text}");
    let server = Process::start(&["--engine", &store]);
    let view = get(&server, "/db/_design/v/_view/v").await;
    assert_eq!((&view["rows"][6]["value"], &view["total_rows"]), (&json!("twice 14"), &json!(50)), "{view}");
    // These rows no longer have functions.
    let rev = get(&server, "/db/_design/v").await["_rev"].clone();
    put(&client, &server, "/db/_design/v", json!({"_rev": rev, "views": {}})).await;
    assert_eq!(server.stop("-TERM").code(), Some(0));
    let text = succeed(&["check", "db", "--engine", &store]);
    let left_out = r#"the views of "_design/v" were not compared with their functions: no design document has these views any more"#;
    assert!(text.contains("rows in changes\nwhat was compared agrees") && text.contains(left_out), "{text}");
}

/// That is not an inconsistency, and answers to queries do not mention it.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_lack_rows_because_of_errors_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let store = format!("lsm:{}", root.path().join("data").display());
    let client = reqwest::Client::new();
    let server = Process::start(&["--engine", &store]);
    put(&client, &server, "/db", json!({})).await;
    let map = "function (doc) { if (doc.n > 2) { throw new Error('too high'); } emit(doc.n); }";
    put(&client, &server, "/db/_design/v", json!({"views": {"v": {"map": map}}})).await;
    for n in 1..6 {
        put(&client, &server, &format!("/db/d{n}"), json!({"n": n})).await;
    }
    let view = client.get(server.url("/db/_design/v/_view/v")).send().await.unwrap().text().await.unwrap();
    assert_eq!(serde_json::from_str::<Value>(&view).unwrap()["total_rows"], 2);
    let said = r#"the views of "_design/v" lack rows of 3 documents because of errors; the first is "d3": "#;
    let text = succeed(&["check", "db", "--url", &server.base]);
    assert!(text.contains("everything agrees\n") && text.contains(said), "{text}");
    assert_eq!(server.stop("-TERM").code(), Some(0));
    let text = succeed(&["check", "db", "--engine", &store, "--json"]);
    let report: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(report["views_incomplete"][0].as_str().unwrap().starts_with(said), "{report}");
}
