//! CouchDB's manual on queries as a test: each parameter of `_view`, and the examples with their documented answers.
//!
//! Source: `api/ddoc/views.rst`, `ddocs/views/joins.rst`, `ddocs/views/collation.rst`, `ddocs/mango.rst` and
//! `api/database/find.rst` in CouchDB's `src/docs/src`.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

async fn with(docs: Value) -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    let answer = couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    couch
}

async fn ask(couch: &Couch, query: &str) -> Answer {
    couch.get(&format!("/db/_design/d/_view/{query}")).await
}

async fn rows(couch: &Couch, query: &str) -> Vec<Value> {
    let answer = ask(couch, query).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.text);
    answer.json()["rows"].as_array().unwrap().clone()
}

async fn ids(couch: &Couch, query: &str) -> String {
    rows(couch, query).await.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
}

const BY_KEY: &str = "function (doc) { emit(doc.key, doc.value); }";

/// Rows of `map` and `sum`: a1 a2 (key "a"), b1, c1.
async fn letters() -> Couch {
    with(json!([
        {"_id": "a1", "key": "a", "value": 1}, {"_id": "a2", "key": "a", "value": 2},
        {"_id": "b1", "key": "b", "value": 4}, {"_id": "c1", "key": "c", "value": 8},
        {"_id": "_design/d", "views": {"map": {"map": BY_KEY}, "sum": {"map": BY_KEY, "reduce": "_sum"}}},
    ]))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_parameter_chooses_the_rows_that_the_manual_says() {
    let couch = letters().await;
    for (query, expected) in [
        ("map", "a1 a2 b1 c1"),
        ("map?descending=true", "c1 b1 a2 a1"),
        ("map?key=\"a\"", "a1 a2"),
        ("map?keys=[\"c\",\"none\",\"a\"]", "c1 a1 a2"),
        ("map?keys=[\"a\"]", "a1 a2"),
        ("map?keys=[]", ""),
        ("map?startkey=\"b\"", "b1 c1"),
        ("map?start_key=\"b\"", "b1 c1"),
        ("map?endkey=\"a\"", "a1 a2"),
        ("map?end_key=\"a\"", "a1 a2"),
        ("map?endkey=\"b\"&inclusive_end=false", "a1 a2"),
        ("map?startkey=\"a\"&startkey_docid=a2", "a2 b1 c1"),
        ("map?start_key=\"a\"&start_key_doc_id=a2", "a2 b1 c1"),
        ("map?endkey=\"a\"&endkey_docid=a1", "a1"),
        ("map?end_key=\"a\"&end_key_doc_id=a1", "a1"),
        ("map?startkey_docid=c1&endkey_docid=a1", "a1 a2 b1 c1"),
        ("map?startkey=\"b\"&endkey=\"a\"&descending=true", "b1 a2 a1"),
        ("map?limit=2", "a1 a2"),
        ("map?limit=0", ""),
        ("map?skip=3", "c1"),
        ("map?skip=1&limit=2&descending=true", "b1 a2"),
        ("map?sorted=true", "a1 a2 b1 c1"),
        ("map?stable=true", "a1 a2 b1 c1"),
        ("sum?reduce=false", "a1 a2 b1 c1"),
    ] {
        assert_eq!(ids(&couch, query).await, expected, "{query}");
    }
    for (query, expected) in [
        ("sum", json!([{"key": null, "value": 15}])),
        ("sum?reduce=true", json!([{"key": null, "value": 15}])),
        ("sum?group=true", json!([{"key": "a", "value": 3}, {"key": "b", "value": 4}, {"key": "c", "value": 8}])),
        ("sum?group_level=1&skip=1&limit=1", json!([{"key": "b", "value": 4}])),
        // The examples of "Using key, keys, start_key and end_key".
        ("sum?key=\"a\"", json!([{"key": null, "value": 3}])),
        ("sum?keys=[\"a\"]", json!([{"key": null, "value": 3}])),
        ("sum?keys=[\"a\",\"c\"]&group=true", json!([{"key": "a", "value": 3}, {"key": "c", "value": 8}])),
        ("sum?key=\"a\"&endkey=\"b\"", json!([{"key": null, "value": 7}])),
        ("sum?endkey=\"b\"&key=\"a\"", json!([{"key": null, "value": 3}])),
        ("sum?endkey=\"b\"&keys=[\"a\"]", json!([{"key": null, "value": 3}])),
    ] {
        assert_eq!(Value::Array(rows(&couch, query).await), expected, "{query}");
    }
    // A body says the same as the URL.
    let posted = couch.json("POST", "/db/_design/d/_view/sum", json!({"keys": ["a"]})).await.json();
    assert_eq!(posted["rows"], json!([{"key": null, "value": 3}]));
    let group = "Multi-key fetches for reduce views must use `group=true`";
    let range = "`keys` is incompatible with `key`, `start_key` and `end_key`";
    let reversed = "No rows can match your key range, reverse your start_key and end_key or set descending=";
    for (query, reason) in [
        ("sum?keys=[\"a\",\"b\"]", group.to_owned()),
        ("sum?endkey=\"b\"&keys=[\"a\",\"b\"]", group.to_owned()),
        ("sum?endkey=\"b\"&keys=[\"a\",\"b\"]&group=true", range.to_owned()),
        ("map?startkey=\"egg\"&endkey=\"carrots\"", format!("{reversed}true")),
        ("map?descending=true&startkey=\"carrots\"&endkey=\"egg\"", format!("{reversed}false")),
        ("map?stale=often", "Invalid value for `stale`.".to_owned()),
        ("map?stable=often", "Invalid value for `stable`.".to_owned()),
    ] {
        ask(&couch, query).await.refused(400, "query_parse_error", &reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_as_fresh_as_the_parameters_say() {
    for query in ["map?update=false", "map?stale=ok"] {
        let couch = letters().await;
        assert_eq!(ids(&couch, query).await, "", "{query}: the view was never built");
        assert_eq!(ids(&couch, "map?update=true").await, "a1 a2 b1 c1");
        couch.put("/db/d1", json!({"key": "d"})).await;
        assert_eq!(ids(&couch, query).await, "a1 a2 b1 c1", "{query}");
    }
    for query in ["map?update=lazy", "map?stale=update_after"] {
        let couch = letters().await;
        assert_eq!(ids(&couch, query).await, "", "{query}");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ids(&couch, "map?update=false").await != "a1 a2 b1 c1" {
            assert!(std::time::Instant::now() < end, "{query} did not update the view");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    let couch = letters().await;
    let seq = couch.get("/db").await.json()["update_seq"].clone();
    assert_eq!(ask(&couch, "map?update_seq=true").await.json()["update_seq"], seq);
    assert!(ask(&couch, "map").await.json().get("update_seq").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn included_documents_have_what_the_parameters_ask_for() {
    let couch = letters().await;
    let attached =
        json!({"_id": "z", "key": "z", "_attachments": {"t": {"content_type": "text/plain", "data": "aGk="}}});
    couch.put("/db/z", attached).await;
    let leaves = json!([{"_id": "y", "_rev": "1-b", "key": "y"}, {"_id": "y", "_rev": "1-a", "key": "y"}]);
    couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": leaves})).await;
    let doc = async |query: &str| rows(&couch, query).await[0]["doc"].clone();
    assert_eq!(doc("map?key=\"y\"&conflicts=true").await, Value::Null, "without documents conflicts mean nothing");
    assert!(doc("map?key=\"y\"&include_docs=true").await.get("_conflicts").is_none());
    assert_eq!(doc("map?key=\"y\"&include_docs=true&conflicts=true").await["_conflicts"], json!(["1-a"]));
    assert_eq!(doc("map?key=\"z\"&attachments=true").await, Value::Null);
    let stub = &doc("map?key=\"z\"&include_docs=true").await["_attachments"]["t"];
    assert_eq!((&stub["stub"], &stub["data"]), (&json!(true), &Value::Null));
    let whole = &doc("map?key=\"z\"&include_docs=true&attachments=true").await["_attachments"]["t"];
    assert_eq!((&whole["data"], &whole["stub"]), (&json!("aGk="), &Value::Null));
    let encoded = &doc("map?key=\"z\"&include_docs=true&att_encoding_info=true").await["_attachments"]["t"];
    assert_eq!(encoded["stub"], true, "{encoded}");
}

#[tokio::test(flavor = "multi_thread")]
async fn linked_documents_are_those_of_the_manual() {
    let map = "function (doc) { if (doc.value) { emit([doc.value, 0], null); if (doc.ancestors) { \
               for (var i in doc.ancestors) { emit([doc.value, Number(i) + 1], {_id: doc.ancestors[i]}); } } } }";
    let couch = with(json!([
        {"_id": "11111"},
        {"_id": "22222", "ancestors": ["11111"], "value": "hello"},
        {"_id": "33333", "ancestors": ["22222", "11111"], "value": "world"},
        {"_id": "_design/d", "views": {
            "chain": {"map": map},
            "at": {"map": "function (doc) { if (doc.link) { emit(doc.link._rev, doc.link); } }"},
        }},
    ]))
    .await;
    let found: Vec<Value> = rows(&couch, "chain?include_docs=true").await;
    let found: Vec<Value> = found.iter().map(|row| json!([row["id"], row["key"], row["doc"]["_id"]])).collect();
    assert_eq!(
        Value::Array(found),
        json!([
            ["22222", ["hello", 0], "22222"],
            ["22222", ["hello", 1], "11111"],
            ["33333", ["world", 0], "33333"],
            ["33333", ["world", 1], "22222"],
            ["33333", ["world", 2], "11111"],
        ])
    );
    // "To force a specific revision of a linked document to be used, emit a `_rev` property as well as `_id`."
    let first = couch.get("/db/11111").await.json()["_rev"].as_str().unwrap().to_owned();
    couch.put("/db/link", json!({"link": {"_id": "11111", "_rev": first}})).await;
    couch.put("/db/gone", json!({"link": {"_id": "11111", "_rev": "9-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}})).await;
    let found = rows(&couch, "at?include_docs=true").await;
    assert_eq!((&found[0]["doc"]["_rev"], &found[1]["id"]), (&json!(first), &json!("gone")));
    assert_eq!(found[1].get("doc"), Some(&Value::Null), "{}", found[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_sorted_as_the_manual_lists_them() {
    // "Sorting Returned Rows" and "Collation Specification", from low to high.
    let keys = json!([
        null, false, true, 0, 1, 2, 3.0, 4, 10, 42, "10", "a", "A", "aa", "b", "B", "ba", "bb", "hello", "Hello",
        "привет", [], [1, 2, 3], [2, 3], [3], ["a"], ["b"], ["b", "c"], ["b", "c", "a"], ["b", "d"], ["b", "d", "e"],
        {}, {"a": 1}, {"a": 2}, {"b": 1}, {"b": 2}, {"b": 2, "c": 2}, {"foo": "bar"},
    ]);
    let mut shuffled = keys.as_array().unwrap().clone();
    shuffled.reverse();
    shuffled.rotate_left(11);
    let map = "function (doc) { doc.keys.forEach(function (key) { emit(key, null); }); }";
    let couch =
        with(json!([{"_id": "dummy-doc", "keys": shuffled}, {"_id": "_design/d", "views": {"s": {"map": map}}}])).await;
    let key_list =
        async |query: &str| rows(&couch, query).await.iter().map(|row| row["key"].clone()).collect::<Vec<_>>();
    let numbers_alike = |keys: Vec<Value>| Value::Array(keys).to_string().replace("3.0", "3");
    let mut expected = keys.as_array().unwrap().clone();
    assert_eq!(numbers_alike(key_list("s").await), numbers_alike(expected.clone()));
    expected.reverse();
    assert_eq!(numbers_alike(key_list("s?descending=true").await), numbers_alike(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_of_the_manual_find_what_it_says() {
    let couch = with(json!([
        {"_id": "176694", "year": 2011, "title": "The Tragedy of Man", "director": "M. Jankovics", "genre": ["Horror"]},
        {"_id": "780504", "year": 2011, "title": "Drive", "director": "N. W. Refn", "genre": ["Horror", "Comedy"]},
        {"_id": "900000", "year": 2014, "title": "Later", "genre": ["Comedy", "Short"], "cameras": {"secondary": 1}},
        {"_id": "100000", "year": 2003, "director": "Lars von Trier", "imdb": {"rating": 8}},
        {"_id": "100001", "year": 1977, "title": "Star Wars", "director": "George Lucas", "status": "archived"},
        {"_id": "100002", "year": 1901}, {"_id": "100003", "year": 1903},
    ]))
    .await;
    let made = couch.json("POST", "/db/_index", json!({"index": {"fields": ["year"]}, "name": "years"})).await.json();
    assert_eq!((&made["result"], &made["name"]), (&json!("created"), &json!("years")));
    let find = async |body: Value| couch.json("POST", "/db/_find", body).await.json();
    let example = json!({
        "selector": {"year": {"$gt": 2010}}, "fields": ["_id", "year", "title"], "sort": [{"year": "asc"}],
        "limit": 2, "skip": 0, "execution_stats": true,
    });
    let found = find(example).await;
    assert_eq!(
        found["docs"],
        json!([
            {"_id": "176694", "year": 2011, "title": "The Tragedy of Man"},
            {"_id": "780504", "year": 2011, "title": "Drive"},
        ])
    );
    assert_eq!(found["execution_stats"]["results_returned"], 2);
    for (selector, expected) in [
        (json!({"director": "Lars von Trier"}), &["100000"][..]),
        (json!({"director": {"$eq": "Lars von Trier"}}), &["100000"]),
        (json!({"imdb": {"rating": 8}}), &["100000"]),
        (json!({"imdb.rating": 8}), &["100000"]),
        (json!({"imdb": {"rating": {"$eq": 8}}}), &["100000"]),
        (json!({"director": "Lars von Trier", "year": 2003}), &["100000"]),
        (json!({"$and": [{"director": {"$eq": "Lars von Trier"}}, {"year": {"$eq": 2003}}]}), &["100000"]),
        (json!({"$and": [{"_id": {"$gt": null}}, {"year": {"$in": [2014, 2015]}}]}), &["900000"]),
        (json!({"year": 1977, "$or": [{"director": "George Lucas"}, {"director": "S. S."}]}), &["100001"]),
        (json!({"year": {"$gte": 1900, "$lte": 1903}, "$not": {"year": 1901}}), &["100003"]),
        (json!({"year": {"$gte": 1900, "$lte": 1910}, "$nor": [{"year": 1901}, {"year": 1905}]}), &["100003"]),
        (json!({"_id": {"$gt": null}, "genre": {"$all": ["Comedy", "Short"]}}), &["900000"]),
        (json!({"_id": {"$gt": null}, "genre": {"$elemMatch": {"$eq": "Horror"}}}), &["176694", "780504"]),
        (json!({"_id": {"$gt": null}, "genre": {"$allMatch": {"$eq": "Horror"}}}), &["176694"]),
        (json!({"_id": {"$gt": null}, "cameras": {"$keyMapMatch": {"$eq": "secondary"}}}), &["900000"]),
        // The field must exist: of these documents only one has a status.
        (json!({"status": {"$ne": "archived"}}), &[]),
    ] {
        let found = find(json!({ "selector": selector })).await;
        let mut ids: Vec<&str> =
            found["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, expected, "{selector}");
    }
    let asked = json!({"selector": {"year": {"$gt": 2010}}, "fields": ["year"], "limit": 2});
    let explained = couch.json("POST", "/db/_explain", asked).await.json();
    assert_eq!(explained["index"]["def"], json!({"fields": [{"year": "asc"}]}));
    assert_eq!(explained["mrargs"]["start_key"], json!([2010]));
    assert_eq!(explained["mrargs"]["end_key"], json!(["<MAX>"]));
    assert_eq!(explained["covering"], true);
    let other = &explained["index_candidates"][0];
    assert_eq!((&other["index"]["name"], &other["analysis"]["ranking"]), (&json!("_all_docs"), &json!(1)));
    assert_eq!(other["analysis"]["reasons"], json!([{"name": "unfavored_type"}]));
}
