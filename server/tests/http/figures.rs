//! `_stats`, `_system` and `_versions` of a node.

use serde_json::{Value, json};

use crate::rights::{admin, user, with_users};
use crate::support::Couch;

async fn count(couch: &Couch, path: &str) -> u64 {
    let answer = couch.get(&format!("/_node/_local/_stats/couchdb/{path}")).await.json();
    assert_eq!(answer["type"], "counter", "{answer}");
    assert!(answer["desc"].is_string(), "{answer}");
    answer["value"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_method_status_and_effect() {
    let couch = Couch::start().await;
    couch.call("PUT", "/db").await;
    assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, 201);
    assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, 409);
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": [{"_id": "b"}, {"_id": "c"}]})).await.status, 201);
    assert_eq!(couch.json("POST", "/db/_bulk_get", json!({"docs": [{"id": "a"}, {"id": "b"}]})).await.status, 200);
    assert_eq!(couch.get("/db/a").await.status, 200);
    assert_eq!(couch.get("/db/none").await.status, 404);
    assert_eq!(count(&couch, "httpd_request_methods/PUT").await, 3);
    assert_eq!(count(&couch, "httpd_request_methods/POST").await, 2);
    assert_eq!(count(&couch, "httpd_status_codes/201").await, 3);
    assert_eq!(count(&couch, "httpd_status_codes/409").await, 1);
    assert_eq!(count(&couch, "httpd_status_codes/404").await, 1);
    assert_eq!(count(&couch, "httpd/bulk_requests").await, 1);
    assert_eq!(count(&couch, "database_writes").await, 2, "a conflict changes nothing");
    assert_eq!(count(&couch, "database_reads").await, 3);
    assert_eq!(count(&couch, "open_databases").await, 1);
    // Each of these requests was one itself.
    assert_eq!(count(&couch, "httpd/requests").await, 16);
    let all = couch.get("/_node/nonode@nohost/_stats?flush=true").await.json();
    assert_eq!(all["couchdb"]["httpd_status_codes"]["409"]["value"], 1);
    assert_eq!(couch.get("/_node/_local/_stats/couchdb/none/x").await.json(), Value::Null);
    assert_eq!(couch.get("/_node/other@host/_stats").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_its_memory_and_its_versions() {
    let couch = Couch::start().await;
    let system = couch.get("/_node/_local/_system").await.json();
    assert!(system["uptime"].is_u64(), "{system}");
    if cfg!(target_os = "linux") {
        assert!(system["memory"]["other"].as_u64().unwrap() > 1_000_000, "{system}");
    }
    let versions = couch.get("/_node/_local/_versions").await.json();
    assert_eq!(versions["collation_driver"]["name"], "icu4x");
    assert_eq!(versions["javascript_engine"]["name"] == "quickjs", cfg!(feature = "javascript"));
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_for_administrators_and_those_who_measure() {
    let couch = with_users(&[("anna", &[]), ("meter", &["_metrics"])]).await;
    for (path, is_for_meters) in
        [("_stats", true), ("_stats/couchdb/httpd", true), ("_system", true), ("_versions", false)]
    {
        let path = format!("/_node/_local/{path}");
        assert_eq!(couch.get(&path).await.status, 401, "{path}");
        assert_eq!(user(&couch, "anna", "GET", &path).await.status, 401, "{path}");
        assert_eq!(user(&couch, "meter", "GET", &path).await.status == 200, is_for_meters, "{path}");
        assert_eq!(admin(&couch, "GET", &path, json!({})).await.status, 200, "{path}");
    }
    assert_eq!(user(&couch, "meter", "GET", "/_all_dbs").await.status, 401);
}
