//! A store that does not answer for a while, as a cluster that cannot be reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::chaos::Chaos;
use kv_api::{AnyDatabase, Database, STORED_FORMAT, Transaction};
use serde_json::json;
use server::http::Options;

use crate::support::{Couch, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_at_once_while_the_store_does_not_answer() {
    let outage = Arc::new(AtomicBool::new(false));
    let store = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let engine = AnyDatabase::new(Chaos::with_outages(store, outage.clone()));
    let couch = Couch::over(engine, Options::default()).await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    assert_eq!(couch.get("/_up").await.status, 200);

    outage.store(true, Ordering::SeqCst);
    let first = couch.get("/db/a").await;
    assert_eq!((first.status.as_u16(), first.header("retry-after")), (503, "1"), "{}", first.text);
    assert!(first.text.contains("did not answer in time"), "{}", first.text);
    // From here on nothing waits for the store.
    let refused = "The store does not answer at the moment; try again.";
    wait_for("a refusal without a read", async || couch.get("/db/a").await.text.contains(refused).then_some(())).await;
    for path in ["/db/a", "/_all_dbs", "/_up"] {
        let answer = couch.get(path).await;
        answer.refused(503, "service unavailable", refused);
        assert_eq!(answer.header("retry-after"), "1", "{path}");
    }
    assert_eq!(couch.get("/").await.status, 200);
    assert_eq!(couch.get("/_node/_local/_system").await.status, 200);
    couch.json("PUT", "/db/b", json!({})).await.refused(503, "service unavailable", refused);

    outage.store(false, Ordering::SeqCst);
    wait_for("an answer", async || (couch.get("/db/a").await.status == 200).then_some(())).await;
    couch.put("/db/b", json!({})).await;
    assert_eq!(couch.get("/_up").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_does_nothing_more_in_a_store_whose_format_another_build_changed() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let options = Options { lease: Duration::from_millis(300), ..Options::default() };
    let couch = Couch::over(engine.clone(), options).await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    assert_eq!(couch.get("/_up").await.status, 200);
    let transaction = engine.begin().unwrap();
    transaction.set(b"\x14", &[0x15, STORED_FORMAT as u8 + 1]);
    transaction.commit().await.unwrap();
    wait_for("a refusal", async || (couch.get("/_up").await.status == 500).then_some(())).await;
    let says = format!("written by couch-layer format {}; this build reads format", STORED_FORMAT + 1);
    for (method, path) in [("GET", "/db/a"), ("PUT", "/db/b"), ("GET", "/db/_changes"), ("GET", "/_up"), ("PUT", "/e")]
    {
        let answer = couch.json(method, path, json!({})).await;
        assert_eq!(answer.status, 500, "{method} {path}: {}", answer.text);
        assert!(answer.json()["reason"].as_str().unwrap().contains(&says), "{method} {path}: {}", answer.text);
    }
    couch.server.stop().await;
}
