//! `_compact` asks the engine to free the space of removed rows, and answers at once.

use std::sync::Arc;

use kv_api::{AnyDatabase, AnyTransaction, Database, Durability, Limits, Result};
use parking_lot::Mutex;
use serde_json::json;
use server::http::Options;

use crate::support::Couch;

/// Keys from, and up to.
type Range = (Vec<u8>, Vec<u8>);

/// An engine that frees space only when the test allows it.
#[derive(Clone, Debug)]
struct Compacting {
    inner: AnyDatabase,
    asked: Arc<Mutex<Vec<Range>>>,
}

impl Database for Compacting {
    type Transaction = AnyTransaction;

    fn begin(&self) -> Result<AnyTransaction> {
        self.inner.begin()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.asked.lock().push((begin.to_vec(), end.to_vec()));
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.asked.lock().iter().any(|(from, to)| **from < *end && *begin < **to)
    }

    fn disk_bytes(&self, _: &[u8], _: &[u8]) -> Option<u64> {
        Some(54_321)
    }
}

async fn couch() -> (Couch, Compacting) {
    let inner = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let engine = Compacting { inner, asked: Arc::default() };
    let couch = Couch::over(AnyDatabase::new(engine.clone()), Options::default()).await;
    couch.database("db").await;
    couch.database("other").await;
    (couch, engine)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_runs_until_its_space_is_free() {
    let (couch, engine) = couch().await;
    let running = async |db: &str| couch.get(&format!("/{db}")).await.json()["compact_running"].as_bool().unwrap();
    assert!(!running("db").await);
    assert_eq!(couch.json("POST", "/db/_compact", json!({})).await.status, 202);
    assert!(running("db").await);
    assert!(!running("other").await);
    engine.asked.lock().clear();
    assert!(!running("db").await);
    couch.json("POST", "/none/_compact", json!({})).await.refused(404, "not_found", "Database does not exist.");
    assert!(engine.asked.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_size_of_the_file_is_what_the_database_takes_on_the_disk() {
    let (couch, _) = couch().await;
    let sizes = couch.get("/db").await.json()["sizes"].clone();
    assert_eq!(sizes["file"], 54_321);
    assert!(sizes["active"].as_u64().unwrap() < 10_000, "{sizes}");
}

#[cfg(feature = "javascript")]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_of_views_runs_until_its_space_is_free() {
    let (couch, engine) = couch().await;
    couch.put("/db/_design/none", json!({})).await;
    assert_eq!(couch.json("POST", "/db/_compact/none", json!({})).await.status, 202);
    assert!(engine.asked.lock().is_empty(), "it has no views");
    couch.put("/db/_design/d", json!({"views": {"v": {"map": "function (doc) { emit(doc._id) }"}}})).await;
    couch.put("/db/doc", json!({})).await;
    assert_eq!(couch.get("/db/_design/d/_view/v").await.status, 200);
    let running =
        async || couch.get("/db/_design/d/_info").await.json()["view_index"]["compact_running"].as_bool().unwrap();
    assert!(!running().await);
    assert_eq!(couch.json("POST", "/db/_compact/d", json!({})).await.status, 202);
    assert!(running().await);
    engine.asked.lock().clear();
    assert!(!running().await);
    let sizes = couch.get("/db/_design/d/_info").await.json()["view_index"]["sizes"].clone();
    assert_eq!(sizes["file"], 54_321);
    assert!(sizes["active"].as_u64().unwrap() < 10_000, "{sizes}");
}
