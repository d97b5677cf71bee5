//! `_all_docs`, `_design_docs` and `_local_docs`.

use serde_json::{Value, json};

use crate::support::Couch;

fn keys(answer: &Value) -> Vec<&str> {
    answer["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect()
}

async fn couch_with(ids: &[&str]) -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    for id in ids {
        couch.put(&format!("/db/{id}"), json!({"is": id})).await;
    }
    couch
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_are_listed_in_the_order_of_bytes() {
    let couch = couch_with(&["a", "B", "b", "c", "%C3%A4", "_design/x"]).await;
    let list = async |query: &str| couch.get(&format!("/db/_all_docs?{query}")).await.json();
    let all = list("").await;
    assert_eq!(keys(&all), ["B", "_design/x", "a", "b", "c", "ä"]);
    assert_eq!((&all["total_rows"], &all["offset"]), (&json!(6), &json!(0)));
    assert_eq!(all["rows"][0]["id"], "B");
    assert!(all["rows"][0]["value"]["rev"].as_str().unwrap().starts_with("1-"));
    assert_eq!(keys(&list("startkey=%22a%22&endkey=%22b%22").await), ["a", "b"]);
    assert_eq!(keys(&list("start_key=%22a%22&end_key=%22b%22&inclusive_end=false").await), ["a"]);
    assert_eq!(keys(&list("startkey=%22b%22&endkey=%22a%22&descending=true").await), ["b", "a"]);
    assert_eq!(keys(&list("startkey=%22b%22&endkey=%22a%22&descending=true&inclusive_end=false").await), ["b"]);
    assert_eq!(keys(&list("key=%22b%22").await), ["b"]);
    assert_eq!(keys(&list("limit=2&skip=1").await), ["_design/x", "a"]);
    assert_eq!(list("limit=2&skip=1").await["offset"], 1);
    assert_eq!(keys(&list("descending=true&limit=1").await), ["ä"]);
    assert_eq!(list("limit=0").await["rows"], json!([]));
    assert_eq!(list("startkey=%22z%22&endkey=%22a%22").await["rows"], json!([]));
    // Values that are not strings sort before all ids, as in CouchDB, even objects.
    assert_eq!(keys(&list("startkey=%7B%7D").await).len(), 6);
    assert_eq!(keys(&list("endkey=null&startkey=%22c%22&descending=true").await).len(), 5);
    assert_eq!(list("endkey=%7B%7D").await["rows"], json!([]));
    assert_eq!(list("update_seq=true&limit=0").await["update_seq"], couch.get("/db").await.json()["update_seq"]);
    let docs = list("include_docs=true&key=%22b%22").await;
    assert_eq!(docs["rows"][0]["doc"]["is"], "b");
    let designs = couch.get("/db/_design_docs").await.json();
    assert_eq!(keys(&designs), ["_design/x"]);
    let posted = couch.json("POST", "/db/_all_docs", json!({"startkey": "b", "limit": 1})).await.json();
    assert_eq!(keys(&posted), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_answered_one_by_one_in_their_order() {
    let couch = couch_with(&["a", "b", "c"]).await;
    let rev = couch.get("/db/b").await.json()["_rev"].as_str().unwrap().to_owned();
    let gone = couch.call("DELETE", &format!("/db/b?rev={rev}")).await.json()["rev"].clone();
    let body = json!({"keys": ["c", "none", "b", 7, "c", "a"]});
    let rows = couch.json("POST", "/db/_all_docs?include_docs=true", body.clone()).await.json();
    let rows = rows["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!((&rows[0]["doc"]["is"], &rows[4]["id"], &rows[5]["id"]), (&json!("c"), &json!("c"), &json!("a")));
    assert_eq!(rows[1], json!({"key": "none", "error": "not_found"}));
    let deleted = json!({"id": "b", "key": "b", "value": {"rev": gone, "deleted": true}, "doc": null});
    assert_eq!(rows[2], deleted);
    assert_eq!(rows[3], json!({"key": 7, "error": "not_found"}));
    let part = couch.json("POST", "/db/_all_docs?skip=1&limit=2&descending=true", body).await.json();
    let part: Vec<&Value> = part["rows"].as_array().unwrap().iter().map(|row| &row["key"]).collect();
    assert_eq!(part, ["c", "7"].map(|key| if key == "7" { json!(7) } else { json!(key) }).iter().collect::<Vec<_>>());
    let by_query = couch.get("/db/_all_docs?keys=%5B%22a%22%5D").await.json();
    assert_eq!(keys(&by_query), ["a"]);
    // Local documents are found by their keys.
    couch.put("/db/_local/l", json!({"n": 1})).await;
    let body = json!({"keys": ["_local/l", "a", "_local/none", 7, "_local/l"], "include_docs": true});
    let found = couch.json("POST", "/db/_all_docs", body).await.json();
    let doc = json!({"_id": "_local/l", "_rev": "0-1", "n": 1});
    let local = json!({"id": "_local/l", "key": "_local/l", "value": {"rev": "0-1"}, "doc": doc});
    assert_eq!((&found["rows"][0], &found["rows"][4]), (&local, &local));
    assert_eq!((&found["rows"][1]["id"], &found["total_rows"]), (&json!("a"), &json!(2)));
    assert_eq!(found["rows"][2], json!({"key": "_local/none", "error": "not_found"}));
    let found = couch.get("/db/_all_docs?keys=%5B%22_local/l%22%5D").await.json();
    assert_eq!((&found["rows"][0]["id"], &found["total_rows"]), (&json!("_local/l"), &json!(2)));
    let none = couch.json("POST", "/db/_all_docs", json!({"keys": []})).await.json();
    assert_eq!((&none["rows"], &none["total_rows"]), (&json!([]), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_listings_are_sent_page_by_page() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let ids: Vec<String> = (0..5000).map(|n| format!("{n:05}")).collect();
    for some in ids.chunks(1000) {
        let docs: Vec<Value> = some.iter().map(|id| json!({"_id": id, "pad": "x".repeat(100)})).collect();
        couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    }
    for query in ["", "?include_docs=true"] {
        let answer = couch.get(&format!("/db/_all_docs{query}")).await;
        assert_eq!(answer.header("transfer-encoding"), "chunked");
        assert_eq!(keys(&answer.json()), ids);
    }
    // The length of the answer to a GET is unknown.
    let head = couch.call("HEAD", "/db/_all_docs").await;
    assert_eq!((head.status.as_u16(), head.headers.get("content-length")), (200, None));
    let keyed = couch.json("POST", "/db/_all_docs?include_docs=true", json!({"keys": ids})).await.json();
    assert_eq!(keys(&keyed), ids);
    assert_eq!(keyed["rows"][4999]["doc"]["_id"], "04999");
    let middle = couch.get("/db/_all_docs?skip=2500&limit=2400").await.json();
    assert_eq!(keys(&middle), ids[2500..4900]);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_listings_come_in_one_answer() {
    let couch = couch_with(&["a", "b"]).await;
    let body = json!({"queries": [{"key": "a"}, {"keys": ["b", "x"]}, {"limit": 0}]});
    let answer = couch.json("POST", "/db/_all_docs/queries", body).await.json();
    let results = answer["results"].as_array().unwrap();
    assert_eq!((keys(&results[0]), keys(&results[1]), keys(&results[2]).len()), (vec!["a"], vec!["b", "x"], 0));
    let empty = couch.raw("POST", "/db/_all_docs/queries", r#"{"queries":[]}"#).await.json();
    assert_eq!(empty, json!({"results": []}));
    couch.json("POST", "/db/_all_docs/queries", json!({})).await.refused(
        400,
        "bad_request",
        "POST body must include `queries` parameter.",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_says_how_many_rows_are_before_it() {
    let couch = couch_with(&["a", "b", "c", "d", "_design/x", "_design/y"]).await;
    let offset = async |query: &str| couch.get(&format!("/db/{query}")).await.json()["offset"].clone();
    assert_eq!(offset("_all_docs").await, 0);
    assert_eq!(offset("_all_docs?startkey=%22b%22").await, 3);
    assert_eq!(offset("_all_docs?startkey=%22b%22&skip=1&limit=1").await, 4);
    assert_eq!(offset("_all_docs?key=%22d%22").await, 5);
    assert_eq!(offset("_all_docs?startkey=%22c%22&descending=true").await, 1);
    assert_eq!(offset("_all_docs?startkey=%22z%22").await, 6);
    assert_eq!(offset("_all_docs?startkey=%7B%7D").await, 0);
    assert_eq!(offset("_all_docs?startkey=%22a%22&skip=100").await, 6);
    assert_eq!(offset("_all_docs?keys=%5B%22a%22%5D").await, Value::Null);
    assert_eq!(offset("_design_docs").await, 0);
    assert_eq!(offset("_design_docs?startkey=%22_design/y%22").await, 1);
    assert_eq!(offset("_local_docs").await, Value::Null);
    let designs = couch.get("/db/_design_docs").await.json();
    assert_eq!((&designs["total_rows"], keys(&designs)), (&json!(2), vec!["_design/x", "_design/y"]));
    let designs = couch.json("POST", "/db/_design_docs", json!({"keys": ["_design/x", "a"]})).await.json();
    assert_eq!(designs["total_rows"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_offset_of_a_far_row_is_an_estimate() {
    let couch = Couch::start().await;
    couch.database("db").await;
    // The store samples one row in 128 KiB by chance. With ids of 2,000 bytes a half is more than four standard
    // deviations.
    let id = |n: u64| format!("{n:02000}");
    for some in (0..8_000).collect::<Vec<_>>().chunks(2000) {
        let docs: Vec<Value> = some.iter().map(|n| json!({"_id": id(*n)})).collect();
        assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.status, 201);
    }
    let offset = async |start: u64, descending: bool| {
        let path = format!("/db/_all_docs?startkey=%22{}%22&limit=1&descending={descending}", id(start));
        couch.get(&path).await.json()["offset"].as_u64().unwrap()
    };
    for start in [90, 900, 4000, 7999] {
        for (found, exact) in [(offset(start, false).await, start), (offset(start, true).await, 7999 - start)] {
            let slack = if exact <= 100 { 0 } else { exact / 2 };
            assert!(found.abs_diff(exact) <= slack && found <= 8_000, "{start}: {found}, not {exact}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_may_stand_where_keys_would() {
    let couch = couch_with(&["a", "b", "c", "d"]).await;
    let list = async |query: &str| couch.get(&format!("/db/_all_docs?{query}")).await.json();
    assert_eq!(keys(&list("startkey_docid=b&endkey_docid=c").await), ["b", "c"]);
    assert_eq!(keys(&list("start_key_doc_id=b&end_key_doc_id=d&inclusive_end=false").await), ["b", "c"]);
    assert_eq!(keys(&list("startkey_docid=c&descending=true&limit=2").await), ["c", "b"]);
    // A key takes precedence over an id.
    assert_eq!(keys(&list("startkey=%22c%22&startkey_docid=a").await), ["c", "d"]);
    let posted = couch.json("POST", "/db/_all_docs", json!({"startkey_docid": "d"})).await.json();
    assert_eq!(keys(&posted), ["d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_go_with_no_range() {
    let couch = couch_with(&["a", "b"]).await;
    let reason = "`keys` is incompatible with `key`, `start_key` and `end_key`";
    for query in ["key=%22a%22", "startkey=%22a%22", "endkey=%22a%22", "startkey=null"] {
        let answer = couch.json("POST", &format!("/db/_all_docs?{query}"), json!({"keys": ["a", "b"]})).await;
        answer.refused(400, "query_parse_error", reason);
        let queries = json!({"queries": [{"keys": ["a", "b"], "endkey": "x"}]});
        couch.json("POST", "/db/_all_docs/queries", queries).await.refused(400, "query_parse_error", reason);
    }
    // As in CouchDB, empty keys, and keys that are the one key, are allowed with it.
    for body in [json!({"keys": [], "key": "a"}), json!({"keys": ["a"], "key": "a"})] {
        assert_eq!(couch.json("POST", "/db/_all_docs", body.clone()).await.status, 200, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_listing_are_led_to_by_bookmarks() {
    let couch = couch_with(&["a", "b", "c", "d", "e", "_design/x"]).await;
    let get = async |path: &str| couch.get(path).await.json();
    for query in ["skip=1", "descending=true&endkey=%22b%22", "limit=4&include_docs=true", "startkey=%22c%22"] {
        let all = get(&format!("/db/_all_docs?{query}")).await;
        let mut page = get(&format!("/db/_all_docs?{query}&page_size=2")).await;
        let (mut found, mut offset) = (Vec::new(), all["offset"].as_u64().unwrap());
        let first = page["rows"].clone();
        loop {
            assert_eq!(page["offset"], offset, "{query}");
            let rows = page["rows"].as_array().unwrap().clone();
            assert!(rows.len() <= 2, "{query}");
            offset += rows.len() as u64;
            found.extend(rows);
            let Some(next) = page["next"].as_str() else { break };
            page = get(&format!("/db/_all_docs?bookmark={next}")).await;
            assert_eq!(
                get(&format!("/db/_all_docs?bookmark={}", page["first"].as_str().unwrap())).await["rows"],
                first
            );
        }
        assert_eq!(json!(found), all["rows"], "{query}");
    }
    let page = get("/db/_all_docs?page_size=2").await;
    let word = page["next"].as_str().unwrap();
    couch.put("/db/AA", json!({})).await;
    assert_eq!(keys(&get(&format!("/db/_all_docs?bookmark={word}")).await), ["b", "c"], "nothing has shifted");
    for query in [&format!("bookmark={word}&limit=1"), "page_size=5001", "page_size=2&skip=3", "bookmark=x"] {
        assert_eq!(couch.get(&format!("/db/_all_docs?{query}")).await.status, 400, "{query}");
    }
    assert_eq!(couch.get(&format!("/db/_design_docs?bookmark={word}")).await.status, 400, "of another listing");
    assert_eq!(couch.get("/db/_local_docs?page_size=2").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_databases_are_led_to_by_bookmarks() {
    let couch = Couch::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        couch.database(name).await;
    }
    for (query, expected) in [("", "abcde"), ("&skip=1&limit=3", "bcd"), ("&descending=true&endkey=%22b%22", "edcb")] {
        let mut page = couch.get(&format!("/_dbs_info?page_size=2{query}")).await.json();
        let mut found = String::new();
        loop {
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= 2 && items.iter().all(|item| item["info"]["doc_count"] == 0), "{page}");
            items.iter().for_each(|item| found.push_str(item["key"].as_str().unwrap()));
            let Some(next) = page["next"].as_str() else { break };
            page = couch.get(&format!("/_dbs_info?bookmark={next}")).await.json();
        }
        assert_eq!(found, expected, "{query}");
    }
}
