//! State that a client keeps over a restart of the server remains valid.

#![cfg(all(feature = "lsm", feature = "javascript"))]

use std::path::Path;

use serde_json::{Value, json};
use server::engine::{EngineUrl, IfMissing, open};
use server::http::Options;

use crate::support::Couch;

async fn serve(folder: &Path) -> Couch {
    let store: EngineUrl = format!("lsm:{}", folder.join("data").display()).parse().unwrap();
    Couch::over(open(&store, IfMissing::Create).unwrap(), Options::default()).await
}

async fn stop(couch: Couch) {
    let Couch { server, layer, .. } = couch;
    drop(layer);
    server.stop().await;
}

async fn restarted(couch: Couch, folder: &Path) -> Couch {
    stop(couch).await;
    serve(folder).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_lead_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut couch = serve(folder.path()).await;
    for name in ["db", "e", "f"] {
        couch.database(name).await;
    }
    let map = "function (doc) { emit(doc.n % 3, doc.n); }";
    let mut docs: Vec<Value> = (0..7).map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    docs.push(json!({"_id": "_design/d", "views": {"v": {"map": map, "reduce": "_sum"}}}));
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await.status, 201);
    couch.json("POST", "/db/_index", json!({"index": {"fields": ["n"]}, "ddoc": "i", "name": "n"})).await;

    // Pages of rows, whose members are in `list`.
    for (path, list) in [
        ("/db/_all_docs?include_docs=true&descending=true", "rows"),
        ("/db/_design/d/_view/v?reduce=false&startkey=0", "rows"),
        ("/db/_design/d/_view/v?group=true&descending=true", "rows"),
        ("/_dbs_info?descending=true", "items"),
    ] {
        let whole = couch.get(path).await.json();
        let whole = whole.get(list).unwrap_or(&whole).as_array().unwrap().clone();
        let mut page = couch.get(&format!("{path}&page_size=2")).await.json();
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            found.extend(page[list].as_array().unwrap().iter().cloned());
            pages += 1;
            let Some(next) = page["next"].as_str() else { break };
            // One restart for each kind, and the pages after it are read by one server.
            if pages == 1 {
                couch = restarted(couch, folder.path()).await;
            }
            page = couch.get(&format!("{}?bookmark={next}", path.split('?').next().unwrap())).await.json();
        }
        assert!(pages > 1, "{path}");
        assert_eq!(found, whole, "{path}");
    }

    // By an index, and by id.
    for selector in [json!({"n": {"$gte": 1}}), json!({"_id": {"$gte": "d1"}, "n": {"$gte": 0}})] {
        let ask = |limit: u64, bookmark: &Value| json!({"selector": selector, "fields": ["_id"], "limit": limit, "bookmark": bookmark});
        let find = async |couch: &Couch, body: Value| couch.json("POST", "/db/_find", body).await.json();
        let whole = find(&couch, ask(100, &Value::Null)).await["docs"].clone();
        assert_eq!(whole.as_array().unwrap().len(), 6, "{selector}");
        let first = find(&couch, ask(2, &Value::Null)).await;
        couch = restarted(couch, folder.path()).await;
        let second = find(&couch, ask(2, &first["bookmark"])).await;
        let third = find(&couch, ask(10, &second["bookmark"])).await;
        let found = [first, second, third].map(|page| page["docs"].as_array().unwrap().clone()).concat();
        assert_eq!(Value::Array(found), whole, "{selector}");
    }
    stop(couch).await;
}
