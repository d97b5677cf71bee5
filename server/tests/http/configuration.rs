//! Settings of `_config` that change what requests are answered.

use serde_json::{Value, json};
use server::http::Options;

use crate::support::Couch;

const LIMIT: &str = "/_node/_local/_config/couchdb/max_document_size";

/// A document of `bytes` as compact JSON.
fn document(bytes: usize) -> Value {
    json!({"a": "x".repeat(bytes - r#"{"a":""}"#.len())})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_document_is_configured() {
    let couch = Couch::start().await;
    let other = Couch::over(couch.layer.engine().clone(), Options::default()).await;
    couch.database("db").await;
    let limit = async |value: &str| assert_eq!(couch.json("PUT", LIMIT, json!(value)).await.status, 200);
    couch.put("/db/early", document(2_000)).await;

    limit("1000").await;
    couch.put("/db/fits", document(1_000)).await;
    let refused = async |couch: &Couch, path: &str, bytes: usize| {
        couch.json("PUT", path, document(bytes)).await.refused(
            413,
            "document_too_large",
            path.rsplit('/').next().unwrap(),
        );
    };
    refused(&couch, "/db/large", 1_001).await;
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": [document(1_001), document(1_000)]})).await;
    assert_eq!((&bulk.json()[0]["error"], &bulk.json()[1]["ok"]), (&json!("document_too_large"), &json!(true)));
    assert_eq!(couch.get("/db/early").await.status, 200, "what is stored stays");
    couch.database("new").await;
    refused(&couch, "/new/large", 1_001).await;
    // It counts at the other servers of the store too.
    let mut tries = 0;
    while other.json("PUT", &format!("/db/there{tries}"), document(1_001)).await.status != 413 {
        tries += 1;
    }

    // What set-up scripts set is more than a transaction takes.
    limit("50000000").await;
    couch.put("/new/large", document(1_001)).await;
    couch.put("/new/largest", document(8_000_000)).await;
    refused(&couch, "/new/larger", 8_000_001).await;
    refused(&couch, "/new/larger", 12_000_000).await;
    assert_eq!(couch.get(LIMIT).await.json(), "50000000");

    for value in ["many", "-1", ""] {
        limit(value).await;
        couch.put(&format!("/new/with{value}"), document(1_001)).await;
    }
    limit("1000").await;
    assert_eq!(couch.call("DELETE", LIMIT).await.json(), "1000");
    couch.put("/new/larger", document(1_001)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_document_survives_a_restart_and_precedes_the_option() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    for turn in 0..2 {
        let options = model::LayerOptions { max_document_size: 500, ..model::LayerOptions::default() };
        let layer = model::Layer::open(engine.clone(), options).await.unwrap();
        let couch = Couch::serving(layer, Options::default()).await;
        let put = async |name: &str, bytes| {
            couch.json("PUT", &format!("/db/{name}{turn}"), document(bytes)).await.status.as_u16()
        };
        if turn == 0 {
            couch.database("db").await;
            assert_eq!((put("a", 500).await, put("b", 501).await), (201, 413));
            assert_eq!(couch.json("PUT", LIMIT, json!("1000")).await.json(), "");
        }
        assert_eq!((put("c", 1_000).await, put("d", 1_001).await), (201, 413));
        if turn == 1 {
            assert_eq!(couch.call("DELETE", LIMIT).await.json(), "1000");
            assert_eq!((put("e", 500).await, put("f", 501).await), (201, 413));
        }
        couch.server.stop().await;
    }
}
