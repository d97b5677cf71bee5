//! Lists in bodies: how many entries they may have, and long ones, which are read and answered page by page.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

async fn set(couch: &Couch, key: &str, value: &str) {
    let answer = couch.json("PUT", &format!("/_node/_local/_config/{key}"), json!(value)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

async fn post(couch: &Couch, path: &str, body: Value) -> Answer {
    couch.json("POST", path, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_documents_are_refused_before_any_is_looked_at() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let writes = "max_bulk_docs_count_exceeded";
    let reads = "max_bulk_get_count_exceeded";
    let many = vec![json!(0); 10_001];
    post(&couch, "/db/_bulk_docs", json!({"docs": many})).await.refused(413, writes, "10000");
    post(&couch, "/db/_bulk_get", json!({"docs": many})).await.refused(413, reads, "10000");
    post(&couch, "/_transact", json!({"edits": many})).await.refused(413, writes, "10000");
    let object = "Document must be a JSON object";
    post(&couch, "/db/_bulk_docs", json!({"docs": many[1..]})).await.refused(400, "bad_request", object);
    let read = post(&couch, "/db/_bulk_get", json!({"docs": many[1..]})).await.json();
    assert_eq!(read["results"].as_array().unwrap().len(), 10_000);

    set(&couch, "couchdb/max_bulk_docs_count", "2").await;
    set(&couch, "couchdb/max_bulk_get_count", "1").await;
    let three = json!([{"_id": "a"}, {"_id": "b"}, {"_id": "c"}]);
    post(&couch, "/db/_bulk_docs", json!({"docs": three})).await.refused(413, writes, "2");
    let edits = json!([{"db": "db", "doc": {}}, {"db": "db", "doc": {}}, {"db": "db", "doc": {}}]);
    post(&couch, "/_transact", json!({"edits": edits})).await.refused(413, writes, "2");
    post(&couch, "/db/_bulk_get", json!({"docs": [{"id": "a"}, {"id": "b"}]})).await.refused(413, reads, "1");
    assert_eq!(couch.get("/db").await.json()["doc_count"], json!(0));
    let two = post(&couch, "/db/_bulk_docs", json!({"docs": [{"_id": "a"}, {"_id": "b"}]})).await;
    assert_eq!((two.status.as_u16(), two.json().as_array().unwrap().len()), (201, 2));
    let one = post(&couch, "/db/_bulk_get", json!({"docs": [{"id": "a"}]})).await;
    assert_eq!(one.json()["results"][0]["docs"][0]["ok"]["_id"], json!("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_lists_have_their_maximum_too() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let queries = |count: usize| json!({"queries": vec![json!({"limit": 0}); count]});
    let reason = "a request has 5000 queries at most";
    post(&couch, "/db/_all_docs/queries", queries(5_001)).await.refused(413, "too_large", reason);
    assert_eq!(post(&couch, "/db/_all_docs/queries", queries(3)).await.status, 200);
    let members: serde_json::Map<String, Value> = (0..51).map(|n| (n.to_string(), json!(n))).collect();
    let reason = "each of `queries` has 50 members at most";
    post(&couch, "/db/_all_docs/queries", json!({"queries": [members]})).await.refused(413, "too_large", reason);
    let keys = vec!["a"; 101];
    post(&couch, "/_dbs_info", json!({"keys": keys})).await.refused(400, "bad_request", "too_many_keys");
    let named = json!({"source": "db", "target": "other", "doc_ids": vec![""; 100_001]});
    let reason = "a replication names 100000 documents at most";
    post(&couch, "/_replicate", named).await.refused(413, "too_large", reason);
    let sort = json!({"selector": {}, "sort": vec!["a"; 1_001]});
    let reason = "A query may sort by 1000 fields at most.";
    post(&couch, "/db/_find", sort).await.refused(400, "invalid_sort_json", reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_of_many_documents_are_compared_and_purged_page_by_page() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let id = |n: usize| format!("doc-{n:04}");
    // Every third document exists.
    let docs: Vec<Value> = (0..1_300).filter(|n| n % 3 == 0).map(|n| json!({"_id": id(n), "_rev": "2-b"})).collect();
    let written = post(&couch, "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!(written.json(), json!([]));
    let wanted =
        |revs: &[&str]| -> Value { (0..1_300).map(|n| (id(n), json!(revs))).collect::<serde_json::Map<_, _>>().into() };
    for revs in [&["2-b", "3-c", "1-é\"", "3-c"][..], &["2-b"], &[]] {
        let (mut missing, mut diffs) = (json!({}), json!({}));
        for n in 0..1_300 {
            let is_there = n % 3 == 0;
            let mut left: Vec<&str> = revs.iter().copied().filter(|rev| !(is_there && *rev == "2-b")).collect();
            left.dedup();
            let repeated = left.len() > 1 && left[0] == *left.last().unwrap();
            left.truncate(left.len() - usize::from(repeated));
            let mut seen = std::collections::HashSet::new();
            left.retain(|rev| seen.insert(*rev));
            if left.is_empty() {
                continue;
            }
            missing[id(n)] = json!(left);
            diffs[id(n)] = json!({"missing": left});
            if is_there {
                diffs[id(n)]["possible_ancestors"] = json!(["2-b"]);
            }
        }
        let found = post(&couch, "/db/_revs_diff", wanted(revs)).await;
        assert_eq!((found.status.as_u16(), found.json()), (200, diffs), "{revs:?}");
        let found = post(&couch, "/db/_missing_revs", wanted(revs)).await;
        assert_eq!((found.status.as_u16(), found.json()), (200, json!({"missing_revs": missing})), "{revs:?}");
    }
    // An error anywhere refuses the whole request, and nothing is done.
    let mut wrong = wanted(&["2-b"]);
    wrong[id(1_299)] = json!(["2-b", "x"]);
    for path in ["/db/_revs_diff", "/db/_missing_revs", "/db/_purge"] {
        post(&couch, path, wrong.clone()).await.refused(400, "bad_request", "Invalid rev format");
    }
    assert_eq!(couch.get("/db").await.json()["doc_count"], json!(434));
    let purged = post(&couch, "/db/_purge", wanted(&["2-b"])).await;
    let expected: serde_json::Map<String, Value> =
        (0..1_300).map(|n| (id(n), if n % 3 == 0 { json!(["2-b"]) } else { json!([]) })).collect();
    assert_eq!((purged.status.as_u16(), &purged.json()["purged"]), (201, &json!(expected)));
    assert_eq!(couch.get("/db").await.json()["doc_count"], json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_of_keys_are_answered_in_their_order() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/a", json!({})).await;
    couch.put("/db/_design/d", json!({})).await;
    // Three kinds of keys, several pages of them.
    let keys: Vec<Value> = (0..2_000).flat_map(|n| [json!("a"), json!(n), json!("_design/d")]).collect();
    let listed = async |path: &str, keys: &[Value]| {
        let answer = post(&couch, path, json!({"keys": keys})).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let rows = answer.json()["rows"].clone();
        rows.as_array().unwrap().iter().map(|row| row["key"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed("/db/_all_docs", &keys).await, keys);
    let mut backwards = keys.clone();
    backwards.reverse();
    assert_eq!(listed("/db/_all_docs?descending=true", &keys).await, backwards);
    assert_eq!(listed("/db/_all_docs?descending=true&skip=1&limit=3000", &keys).await, backwards[1..3_001]);
    assert_eq!(listed("/db/_all_docs?skip=6000", &keys).await, [] as [Value; 0]);
    assert_eq!(listed("/db/_all_docs?skip=5999&limit=7", &keys).await, keys[5_999..]);
    // Keys outside of the namespace have no row, but count.
    assert_eq!(listed("/db/_design_docs", &keys).await, vec![json!("_design/d"); 2_000]);
    assert_eq!(listed("/db/_design_docs?limit=4", &keys).await, vec![json!("_design/d"); 1]);
    assert_eq!(listed("/db/_design_docs", &keys[..2]).await, [] as [Value; 0]);
    assert_eq!(listed("/db/_all_docs", &[]).await, [] as [Value; 0]);
}
