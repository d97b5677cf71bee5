//! `PATCH` of documents.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

const MERGE: &str = "application/merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";

async fn patch(couch: &Couch, path: &str, kind: &str, body: &Value) -> Answer {
    couch.send(couch.request("PATCH", path).header("content-type", kind).body(body.to_string())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_patched() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let first = couch.put("/db/a", json!({"n": 1, "m": {"x": 1}})).await;
    let made = patch(&couch, "/db/a", MERGE, &json!({"m": {"x": null, "y": 2}})).await;
    let rev = made.json()["rev"].as_str().unwrap().to_owned();
    assert_eq!((made.status.as_u16(), &made.json()["ok"], &made.json()["id"]), (201, &json!(true), &json!("a")));
    assert_eq!(made.header("etag"), format!("\"{rev}\""));
    assert!(made.header("location").ends_with("/db/a"));
    assert_eq!(couch.get("/db/a").await.json(), json!({"_id": "a", "_rev": rev, "n": 1, "m": {"y": 2}}));
    // The same revision as by a PUT of the result.
    couch.put("/db/b", json!({"n": 1, "m": {"x": 1}})).await;
    assert_eq!(couch.put("/db/b", json!({"_rev": first, "n": 1, "m": {"y": 2}})).await, rev);

    let operations = json!([{"op": "test", "path": "/n", "value": 1}, {"op": "replace", "path": "/n", "value": 2}]);
    let made =
        patch(&couch, &format!("/db/a?rev={rev}"), "application/json-patch+json; charset=utf-8", &operations).await;
    assert_eq!(made.status.as_u16(), 201);
    assert_eq!(couch.get("/db/a").await.json()["n"], json!(2));
    let conflict = "Document update conflict.";
    patch(&couch, &format!("/db/a?rev={rev}"), OPERATIONS, &operations).await.refused(409, "conflict", conflict);
    patch(&couch, "/db/a", OPERATIONS, &operations).await.refused(409, "conflict", "the test of /n failed");
    let matched =
        couch.request("PATCH", "/db/a").header("content-type", MERGE).header("if-match", format!("\"{rev}\""));
    couch.send(matched.body("{}")).await.refused(409, "conflict", conflict);
    let slash = couch.put("/db/_design/d", json!({"language": "query"})).await;
    assert!(slash.starts_with("1-"));
    assert_eq!(patch(&couch, "/db/_design/d", MERGE, &json!({"views": {}})).await.status.as_u16(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_patches_are_refused() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let other = patch(&couch, "/db/a", "application/json", &json!({})).await;
    let reason = format!("Content-Type must be {MERGE} or {OPERATIONS}");
    other.refused(415, "bad_content_type", &reason);
    assert_eq!(other.header("accept-patch"), format!("{MERGE}, {OPERATIONS}"));
    let reason = "a JSON Patch is an array of operations";
    patch(&couch, "/db/a", OPERATIONS, &json!({})).await.refused(400, "bad_request", reason);
    let bare = couch.send(couch.request("PATCH", "/db/a").header("content-type", MERGE).body("{")).await;
    bare.refused(400, "bad_request", "invalid UTF-8 JSON");
    patch(&couch, "/db/nobody", MERGE, &json!({})).await.refused(404, "not_found", "missing");
    patch(&couch, "/none/a", MERGE, &json!({})).await.refused(404, "not_found", "Database does not exist.");
    let reason = "Document must be a JSON object";
    patch(&couch, "/db/a", MERGE, &json!([1])).await.refused(400, "bad_request", reason);
    assert_eq!(patch(&couch, "/db/_local/a", MERGE, &json!({})).await.status.as_u16(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_of_different_members_at_the_same_time_are_all_kept() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    let patches = (0..12).map(|n| {
        let couch = &couch;
        async move { patch(couch, "/db/a", MERGE, &json!({format!("m{n}"): n})).await.status.as_u16() }
    });
    assert!(futures_util::future::join_all(patches).await.into_iter().all(|status| status == 201));
    let found = couch.get("/db/a").await.json();
    assert!(found["_rev"].as_str().unwrap().starts_with("13-"), "{found}");
    assert!((0..12).all(|n| found[format!("m{n}")] == json!(n)), "{found}");
}
