//! CouchDB's manual on queries as a test: each parameter of `_view`, and the examples with their documented answers.
//!
//! Source: `api/ddoc/views.rst`, `ddocs/ddocs.rst`, `ddocs/views/joins.rst`, `ddocs/views/nosql.rst`,
//! `ddocs/views/collation.rst`, `ddocs/mango.rst` and `api/database/find.rst` in CouchDB's `src/docs/src`.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

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
    Couch::with_docs(json!([
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
    let couch = Couch::with_docs(json!([
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
    let couch = Couch::with_docs(
        json!([{"_id": "dummy-doc", "keys": shuffled}, {"_id": "_design/d", "views": {"s": {"map": map}}}]),
    )
    .await;
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
    let couch = Couch::with_docs(json!([
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

const LADIES: [(&str, &str, u64); 3] = [
    ("fc2636bf50556346f1ce46b4bc01fe30", "Lena", 5),
    ("1fb2449f9b9d4e466dbfa47ebe675063", "Lisa", 4),
    ("8ede09f6f6aeb35d948485624b28f149", "Sarah", 6),
];

/// "View Cookbook for SQL Jockeys".
#[tokio::test(flavor = "multi_thread")]
async fn the_cookbook_has_what_it_says() {
    let mut docs: Vec<Value> =
        LADIES.iter().map(|(id, name, age)| json!({"_id": id, "name": name, "age": age})).collect();
    let by_age = "function(doc) { if(doc.age && doc.name) { emit(doc.age, doc.name); } }";
    let by_name = "function(doc) { if(doc.name && doc.age) { emit(doc.name, doc.age); } }";
    let by_type = r#"function(doc) {
        if(doc["mime-type"]) {
            // from the start (^) match everything that is not a slash ([^\/]+) until
            // we find a slash (\/). Slashes needs to be escaped with a backslash (\/)
            var prefix = doc["mime-type"].match(/^[^\/]+\//);
            if(prefix) {
              emit(prefix, null);
            }
        }
    }"#;
    let plain_sum =
        "function(keys, values) { var sum = 0; for(var idx in values) { sum = sum + values[idx]; } return sum; }";
    let each_sum = "function(keys, values) { var sum = 0; values.forEach(function(element) { sum = sum + element; }); \
                    return sum; }";
    let own_sum = "function(keys, values) { return sum(values); }";
    docs.extend([
        json!({"_id": "Hugh Laurie", "mime-type": "image/jpg", "description": "some dude"}),
        json!({"_id": "notes", "mime-type": "text/html"}),
        json!({"_id": "_design/d", "views": {
            "name": {"map": by_name}, "age": {"map": by_age}, "by-mime-type": {"map": by_type},
            "plain_sum": {"map": by_name, "reduce": plain_sum}, "each_sum": {"map": by_name, "reduce": each_sum},
            "sum": {"map": by_name, "reduce": own_sum},
        }}),
    ]);
    let couch = Couch::with_docs(Value::Array(docs)).await;
    let whole = async |query: &str| ask(&couch, query).await.json();
    assert_eq!(
        whole("name").await,
        json!({"total_rows": 3, "offset": 0, "rows": [
            {"id": "fc2636bf50556346f1ce46b4bc01fe30", "key": "Lena", "value": 5},
            {"id": "1fb2449f9b9d4e466dbfa47ebe675063", "key": "Lisa", "value": 4},
            {"id": "8ede09f6f6aeb35d948485624b28f149", "key": "Sarah", "value": 6},
        ]})
    );
    assert_eq!(
        whole("age?key=5").await,
        json!({"total_rows": 3, "offset": 1, "rows": [
            {"id": "fc2636bf50556346f1ce46b4bc01fe30", "key": 5, "value": "Lena"},
        ]})
    );
    // The function emits what `match` returned, a list, so the list is the key; the manual asks for its only element.
    assert_eq!(ids(&couch, "by-mime-type?key=[\"image/\"]").await, "Hugh Laurie");
    assert_eq!(ids(&couch, "by-mime-type?key=\"image/\"").await, "");
    for sum in ["plain_sum", "each_sum", "sum"] {
        assert_eq!(whole(sum).await, json!({"rows": [{"key": null, "value": 15}]}), "{sum}");
    }
}

/// "Get Unique Values" of the cookbook.
#[tokio::test(flavor = "multi_thread")]
async fn tags_are_counted_as_the_cookbook_counts_them() {
    let map = |value: &str| {
        let emit = format!("doc.tags.forEach(function(tag) {{ emit(tag, {value}); }});");
        format!("function(doc) {{ if(doc.name && doc.tags) {{ {emit} }} }}")
    };
    let couch = Couch::with_docs(json!([
        {"_id": "da5ea89448a4506925823f4d985aabbd", "name": "Chris", "tags": ["mustache", "music", "couchdb"]},
        {"_id": "53f82b1f0ff49a08ac79a9dff41d7860", "name": "Noah", "tags": ["hypertext", "philosophy", "couchdb"]},
        {"_id": "3525ab874bc4965fa3cda7c549e92d30", "name": "Jan", "tags": ["drums", "bike", "couchdb"]},
        {"_id": "_design/d", "views": {
            "tags": {"map": map("null"), "reduce": "function(keys, values) { return true; }"},
            "count": {"map": map("1"), "reduce": "function(keys, values) { return sum(values); }"},
        }},
    ]))
    .await;
    let all = ask(&couch, "tags?reduce=false").await.json();
    assert_eq!((&all["total_rows"], &all["offset"]), (&json!(9), &json!(0)));
    let row = |row: &Value| format!("{} {}", &row["id"].as_str().unwrap()[..2], row["key"].as_str().unwrap());
    assert_eq!(
        all["rows"].as_array().unwrap().iter().map(row).collect::<Vec<_>>(),
        [
            "35 bike",
            "35 couchdb",
            "53 couchdb",
            "da couchdb",
            "35 drums",
            "53 hypertext",
            "da music",
            "da mustache",
            "53 philosophy",
        ]
    );
    let tags = ["bike", "couchdb", "drums", "hypertext", "music", "mustache", "philosophy"];
    let unique = tags.map(|tag| json!({"key": tag, "value": true}));
    assert_eq!(ask(&couch, "tags?group=true").await.json(), json!({ "rows": unique }));
    let counted = tags.map(|tag| json!({"key": tag, "value": if tag == "couchdb" { 3 } else { 1 }}));
    assert_eq!(ask(&couch, "count?group=true").await.json(), json!({ "rows": counted }));
}

/// "Using View Collation".
#[tokio::test(flavor = "multi_thread")]
async fn posts_and_their_comments_are_joined_by_the_collation() {
    let comment =
        |id: &str, post: &str| json!({"_id": id, "type": "comment", "post": post, "author": format!("of {id}")});
    let map = "function(doc) { if (doc.type == \"post\") { emit([doc._id, 0], null); } \
               else if (doc.type == \"comment\") { emit([doc.post, 1], null); } }";
    let couch = Couch::with_docs(json!([
        {"_id": "myslug", "type": "post", "author": "john", "title": "My blog post", "content": "Bla bla bla …"},
        {"_id": "other_slug", "type": "post"},
        comment("ABCDEF", "myslug"), comment("DEFABC", "myslug"), comment("CDEFAB", "other_slug"),
        {"_id": "_design/d", "views": {"posts": {"map": map}}},
    ]))
    .await;
    let row = |id: &str, slug: &str, place: u64| json!({"id": id, "key": [slug, place], "value": null});
    let expected = [
        row("myslug", "myslug", 0),
        row("ABCDEF", "myslug", 1),
        row("DEFABC", "myslug", 1),
        row("other_slug", "other_slug", 0),
        row("CDEFAB", "other_slug", 1),
    ];
    assert_eq!(ask(&couch, "posts").await.json(), json!({"total_rows": 5, "offset": 0, "rows": expected}));
    let mut one = rows(&couch, "posts?startkey=[\"myslug\"]&endkey=[\"myslug\", 2]&include_docs=true").await;
    for row in &mut one {
        let doc = row.as_object_mut().unwrap().remove("doc").unwrap();
        assert_eq!((&doc["_id"], doc["author"].is_string()), (&row["id"], true));
    }
    assert_eq!(one, expected[..3]);
}

/// "Built-in Reduce Functions": a number counts as a list of one.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_and_lists_are_summed_together() {
    let couch = Couch::with_docs(json!([
        {"_id": "id1", "rows": [["abc", 2], ["ghi", 3]]},
        {"_id": "id2", "rows": [["abc", [3, 5, 7]], ["def", [0, 0, 0, 42]], ["ghi", 1]]},
        {"_id": "_design/d", "views": {"v": {
            "map": "function (doc) { doc.rows.forEach(function (row) { emit(row[0], row[1]); }); }",
            "reduce": "_sum",
        }}},
    ]))
    .await;
    assert_eq!(ask(&couch, "v?reduce=false").await.json()["total_rows"], 5);
    assert_eq!(ask(&couch, "v").await.json(), json!({"rows": [{"key": null, "value": [9, 5, 7, 42]}]}));
    assert_eq!(
        ask(&couch, "v?group=true").await.json(),
        json!({"rows": [
            {"key": "abc", "value": [5, 5, 7]}, {"key": "def", "value": [0, 0, 0, 42]}, {"key": "ghi", "value": 4},
        ]})
    );
}

/// The recipes of `api/ddoc/views.rst`.
#[tokio::test(flavor = "multi_thread")]
async fn recipes_are_found_by_each_way_to_ask() {
    let titles = [
        ("3-tiersalmonspinachandavocadoterrine", "3-tier salmon, spinach and avocado terrine"),
        ("Aberffrawcake", "Aberffraw cake"),
        ("Adukiandorangecasserole-microwave", "Aduki and orange casserole - microwave"),
        ("Aioli-garlicmayonnaise", "Aioli - garlic mayonnaise"),
        ("Alabamapeanutchicken", "Alabama peanut chicken"),
    ];
    let mut docs: Vec<Value> = titles.iter().map(|(id, title)| json!({"_id": id, "title": title})).collect();
    docs.extend([
        json!({"_id": "SpaghettiWithMeatballs", "ingredients": ["spaghetti", "meatballs", "tomato sauce"]}),
        json!({"_id": "_design/d", "views": {
            "by_name": {"map": "function (doc) { (doc.ingredients || []).forEach(function (i) { emit(i, 1); }); }"},
            "by_title": {"map": "function (doc) { if (doc.title) { emit(doc.title, [null, doc.title]); } }"},
        }}),
    ]);
    let couch = Couch::with_docs(Value::Array(docs)).await;
    let row = |key: &str| json!({"id": "SpaghettiWithMeatballs", "key": key, "value": 1});
    let all = json!({"offset": 0, "total_rows": 3, "rows": (["meatballs", "spaghetti", "tomato sauce"].map(row))});
    let some = json!({"offset": 0, "total_rows": 3, "rows": (["meatballs", "spaghetti"].map(row))});
    let path = "/db/_design/d/_view/by_name";
    let keys = json!({"keys": ["meatballs", "spaghetti"]});
    assert_eq!(ask(&couch, "by_name").await.json(), all);
    assert_eq!(ask(&couch, "by_name?keys=[\"meatballs\",\"spaghetti\"]").await.json(), some);
    assert_eq!(couch.json("POST", path, keys.clone()).await.json(), some);
    assert_eq!(couch.json("POST", path, json!({})).await.json(), all);
    let titled = |(id, title): &(&str, &str)| json!({"id": id, "key": title, "value": [null, title]});
    let titled: Vec<Value> = titles.iter().map(titled).collect();
    // The manual has 2667 of them.
    assert_eq!(ask(&couch, "by_title?limit=5").await.json(), json!({"offset": 0, "total_rows": 5, "rows": titled}));
    let three = json!({"offset": 2, "total_rows": 5, "rows": titled[2..]});
    assert_eq!(ask(&couch, "by_title?limit=3&skip=2").await.json(), three);
    let queries = json!({"queries": [keys, {}]});
    let several = couch.json("POST", &format!("{path}/queries"), queries).await;
    assert_eq!(several.json(), json!({"results": [some, all]}));
    let several = json!({"queries": [{"keys": [titles[0].1]}, {"limit": 3, "skip": 2}]});
    let several = couch.json("POST", "/db/_design/d/_view/by_title/queries", several).await.json();
    assert_eq!(several["results"][0]["rows"], json!(titled[..1]));
    assert_eq!(several["results"][1], three);
    // As in CouchDB 3, whose manual still shows one.
    for answer in [ask(&couch, "by_name").await, couch.json("POST", path, json!({})).await] {
        assert_eq!(answer.header("etag"), "");
    }
}
