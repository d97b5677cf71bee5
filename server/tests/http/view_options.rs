//! Options of views in a design document, and which index they lead to.
//!
//! Source: "View Options", "Raw collation" in CouchDB's `api/ddoc/views.rst`; `ddoc_to_mrst` of
//! `couch_mrview_util.erl`.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

async fn ask(couch: &Couch, view: &str) -> Answer {
    couch.get(&format!("/db/_design/{view}")).await
}

async fn rows(couch: &Couch, view: &str) -> Vec<Value> {
    let answer = ask(couch, view).await;
    assert_eq!(answer.status, 200, "{view}: {}", answer.text);
    answer.json()["rows"].as_array().unwrap().clone()
}

async fn keys(couch: &Couch, view: &str) -> Vec<String> {
    rows(couch, view).await.iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
}

async fn index(couch: &Couch, design: &str) -> Value {
    couch.get(&format!("/db/_design/{design}/_info")).await.json()["view_index"].clone()
}

/// Writes a design document, or deletes it if there are no fields.
async fn rewrite(couch: &Couch, design: &str, fields: Option<Value>) {
    let path = format!("/db/_design/{design}");
    let rev = couch.get(&path).await.json()["_rev"].clone();
    let mut doc = fields.clone().unwrap_or_else(|| json!({"_deleted": true}));
    doc["_rev"] = rev;
    couch.put(&path, doc).await;
}

const IDS: &str = "function (doc) { emit(doc._id, doc._local_seq === undefined ? null : doc._local_seq); }";

#[tokio::test(flavor = "multi_thread")]
async fn design_documents_are_mapped_where_they_are_asked_for() {
    let views = json!({"v": {"map": IDS, "reduce": "_count"}});
    let couch = Couch::with_docs(json!([
        {"_id": "a"},
        {"_id": "z"},
        {"_id": "_design/all", "options": {"include_design": true}, "views": views},
        {"_id": "_design/no", "options": {"include_design": false}, "views": views},
        {"_id": "_design/plain", "views": views},
    ]))
    .await;
    let designs = ["_design/all", "_design/no", "_design/plain"];
    let with_designs = |designs: &[&'static str]| [designs, &["a", "z"]].concat();
    assert_eq!(keys(&couch, "all/_view/v?reduce=false").await, with_designs(&designs));
    assert_eq!(rows(&couch, "all/_view/v").await[0]["value"], 5);
    for plain in ["no", "plain"] {
        assert_eq!(keys(&couch, &format!("{plain}/_view/v?reduce=false")).await, ["a", "z"], "{plain}");
    }
    assert_eq!(index(&couch, "no").await["signature"], index(&couch, "plain").await["signature"]);
    assert_ne!(index(&couch, "all").await["signature"], index(&couch, "plain").await["signature"]);
    // They are followed like any other document.
    couch.put("/db/_design/new", json!({"language": "none"})).await;
    rewrite(&couch, "no", None).await;
    let designs = ["_design/all", "_design/new", "_design/plain"];
    assert_eq!(keys(&couch, "all/_view/v?reduce=false").await, with_designs(&designs));
    let included = rows(&couch, "all/_view/v?reduce=false&include_docs=true&key=%22_design/new%22").await;
    assert_eq!(included[0]["doc"]["language"], "none");
    // The option changes, and so do the mapped documents.
    rewrite(&couch, "all", Some(json!({"views": views}))).await;
    assert_eq!(keys(&couch, "all/_view/v?reduce=false").await, ["a", "z"]);
    rewrite(&couch, "all", Some(json!({"options": {"include_design": true}, "views": views}))).await;
    assert_eq!(keys(&couch, "all/_view/v?reduce=false").await, with_designs(&designs));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_have_local_sequences_where_they_are_asked_for() {
    let views = json!({"v": {"map": IDS}});
    let couch = Couch::with_docs(json!([
        {"_id": "a"},
        {"_id": "z"},
        {"_id": "_design/seq", "options": {"local_seq": true}, "views": views},
        {"_id": "_design/both", "options": {"local_seq": true, "include_design": true}, "views": views},
        {"_id": "_design/no", "options": {"local_seq": false}, "views": views},
    ]))
    .await;
    let sequence = async |id: &str| couch.get(&format!("/db/{id}?local_seq=true")).await.json()["_local_seq"].clone();
    let first = sequence("a").await;
    assert!(!first.is_null());
    let found = rows(&couch, "seq/_view/v").await;
    assert_eq!(found[0], json!({"id": "a", "key": "a", "value": first}));
    assert_eq!(found[1]["value"], sequence("z").await);
    assert_eq!(found.len(), 2);
    let both = rows(&couch, "both/_view/v").await;
    assert_eq!((both.len(), &both[0]["id"]), (5, &json!("_design/both")));
    assert_eq!(both[0]["value"], sequence("_design/both").await);
    assert_eq!(rows(&couch, "no/_view/v").await[0]["value"], Value::Null);
    // The sequence is that of the last change.
    let rev = couch.get("/db/a").await.json()["_rev"].clone();
    couch.put("/db/a", json!({"_rev": rev, "n": 1})).await;
    assert_eq!(rows(&couch, "seq/_view/v").await[0]["value"], sequence("a").await);
    assert_ne!(sequence("a").await, first);
    let feed = couch.get("/db/_changes").await.json();
    let of_a = feed["results"].as_array().unwrap().iter().find(|row| row["id"] == "a").unwrap();
    let digits = of_a["seq"].as_str().unwrap().split_once('-').unwrap().1;
    assert_eq!(digits, sequence("a").await);
}

/// CouchDB compares keys of such a view as Erlang's terms.
#[tokio::test(flavor = "multi_thread")]
async fn views_in_raw_collation_are_in_erlangs_order_and_the_others_in_icus() {
    let map = "function (doc) { emit(doc.key); }";
    let raw = json!({
        // It is an option of a view: here it has no meaning, as in CouchDB.
        "options": {"collation": "raw"},
        "views": {
            "raw": {"map": map, "options": {"collation": "raw"}, "reduce": "_count"},
            "icu": {"map": map, "options": {"collation": "icu"}},
            "odd": {"map": map, "options": {"collation": ["raw"]}},
            "plain": {"map": map},
        },
    });
    // In the order of CouchDB's manual ("View Collation").
    let rising = [
        json!(1),
        json!(2.5),
        json!(false),
        json!(null),
        json!(true),
        json!({"a": "a"}),
        json!([]),
        json!(["B"]),
        json!(["a"]),
        json!(["a", 1]),
        json!("B"),
        json!("a"),
        json!("aa"),
        json!("\u{e9}"),
    ];
    let docs: Vec<Value> = rising.iter().map(|key| json!({ "key": key })).collect();
    let couch = Couch::with_docs(docs).await;
    couch.put("/db/_design/d", raw.clone()).await;
    let raw_keys = async |query: &str| {
        let rows = ask(&couch, &format!("d/_view/raw?reduce=false&{query}")).await.json();
        rows["rows"].as_array().unwrap().iter().map(|row| row["key"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(raw_keys("").await, rising);
    assert_eq!(raw_keys("descending=true").await, rising.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(raw_keys(r#"startkey="B"&endkey="a""#).await, ["B", "a"]);
    assert_eq!(raw_keys(r#"startkey={}&endkey=["a"]&inclusive_end=false"#).await, rising[5..8]);
    assert_eq!(raw_keys(r#"keys=["aa",1.0]"#).await, [json!("aa"), json!(1)]);
    assert_eq!(raw_keys("startkey=true&skip=1&limit=2").await, rising[5..7]);
    let reversed = "No rows can match your key range, reverse your start_key and end_key or set descending=true";
    ask(&couch, r#"d/_view/raw?startkey="a"&endkey="B""#).await.refused(400, "query_parse_error", reversed);
    let grouped = ask(&couch, r#"d/_view/raw?group_level=1&startkey=["B"]&endkey=["a",{}]"#).await.json();
    assert_eq!(grouped["rows"], json!([{"key": ["B"], "value": 1}, {"key": ["a"], "value": 2}]));
    assert_eq!(ask(&couch, "d/_view/raw").await.json()["rows"][0]["value"], 14);
    // The others are in the order of ICU.
    for view in ["icu", "odd", "plain"] {
        let query = format!(r#"d/_view/{view}?startkey="a"&endkey="z""#);
        assert_eq!(keys(&couch, &query).await, ["a", "aa", "B", "\u{e9}"], "{view}");
    }
    // The document replicates, and a cleanup knows its index.
    let stored = couch.get("/db/_design/d").await.json();
    assert_eq!((&stored["views"], &stored["options"]), (&raw["views"], &raw["options"]));
    let answer = couch.json("POST", "/_replicate", json!({"source": "db", "target": "copy", "create_target": true}));
    assert_eq!(answer.await.json()["ok"], true);
    assert_eq!(couch.get("/copy/_design/d").await.json(), stored);
    assert_eq!(couch.json("POST", "/db/_view_cleanup", json!({})).await.status, 202);
    assert_eq!(raw_keys("update=false").await, rising);
    // A check maps the documents again.
    assert_eq!(couch.get("/db/_couch_layer/check").await.json()["problems"], json!([]));
}

/// CouchDB sends the rows of each shard as they come, and those of one shard come sorted, behind their count. Only
/// `skip` is forgotten there (`handle_non_sorted` of `fabric_view_map.erl`).
#[tokio::test(flavor = "multi_thread")]
async fn unsorted_rows_are_those_of_one_shard() {
    let couch = Couch::with_docs(json!([
        {"_id": "1", "key": "B"}, {"_id": "2", "key": "a"}, {"_id": "3", "key": 7},
        {"_id": "_design/d", "views": {"v": {"map": "function (doc) { emit(doc.key, 1); }", "reduce": "_sum"}}},
    ]))
    .await;
    for query in ["reduce=false", "reduce=false&limit=0", "reduce=false&skip=1&limit=1&descending=true", "group=true"] {
        let sorted = ask(&couch, &format!("d/_view/v?{query}")).await;
        let unsorted = ask(&couch, &format!("d/_view/v?{query}&sorted=false")).await;
        assert_eq!((unsorted.status, unsorted.text), (sorted.status, sorted.text), "{query}");
    }
    let posted = couch.json("POST", "/db/_design/d/_view/v", json!({"reduce": false, "sorted": false})).await.json();
    assert_eq!(
        (&posted["total_rows"], &posted["offset"], &posted["rows"][0]["key"]),
        (&json!(3), &json!(0), &json!(7))
    );
    assert_eq!(ask(&couch, "d/_view/v?sorted=never").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_design_documents_have_one_index() {
    let fields = json!({"views": {"v": {"map": "function (doc) { emit(doc._id, 1); }", "reduce": "_sum"}}});
    let couch = Couch::with_docs(json!([{"_id": "a"}, {"_id": "b"}])).await;
    for name in ["one", "two"] {
        couch.put(&format!("/db/_design/{name}"), fields.clone()).await;
    }
    let other = json!({"views": {"v": {"map": "function (doc) { emit(doc._id, 2); }", "reduce": "_sum"}}});
    couch.put("/db/_design/other", other).await;
    let before = index(&couch, "two").await;
    assert_eq!(before["signature"], index(&couch, "one").await["signature"]);
    assert_ne!(before["signature"], index(&couch, "other").await["signature"]);
    // Rows built for the one serve the other.
    let stale = async |name: &str| rows(&couch, &format!("{name}/_view/v?update=false&reduce=false")).await.len();
    assert_eq!((stale("one").await, stale("two").await), (0, 0));
    assert_eq!(rows(&couch, "one/_view/v").await[0]["value"], 2);
    assert_eq!((stale("one").await, stale("two").await, stale("other").await), (2, 2, 0));
    let (one, two) = (index(&couch, "one").await, index(&couch, "two").await);
    assert_eq!(one, two);
    assert_ne!(two["update_seq"], before["update_seq"]);
    couch.put("/db/c", json!({})).await;
    assert_eq!(rows(&couch, "two/_view/v").await[0]["value"], 3);
    assert_eq!((stale("one").await, stale("two").await), (3, 3));
    // It is removed with the last of them.
    let clean_up = async || assert_eq!(couch.json("POST", "/db/_view_cleanup", json!({})).await.status, 202);
    rewrite(&couch, "one", None).await;
    clean_up().await;
    assert_eq!(ask(&couch, "one/_view/v").await.status, 404);
    assert_eq!(stale("two").await, 3);
    rewrite(&couch, "two", None).await;
    clean_up().await;
    couch.put("/db/_design/two", fields).await;
    assert_eq!(index(&couch, "two").await["signature"], two["signature"]);
    assert_eq!(stale("two").await, 0);
    assert_eq!(rows(&couch, "two/_view/v").await[0]["value"], 3);
    assert_eq!(couch.get("/db/_couch_layer/check").await.json()["problems"], json!([]));
}

/// Source: `validate_ddoc_fields` of CouchDB's `couch_mrview.erl`.
#[tokio::test(flavor = "multi_thread")]
async fn options_of_the_wrong_types_are_refused() {
    let couch = Couch::with_docs(json!([])).await;
    let put = |options: Value| couch.json("PUT", "/db/_design/d", json!({"options": options, "views": {}}));
    for wrong in [json!(null), json!("raw"), json!([]), json!(true)] {
        put(wrong).await.refused(400, "invalid_design_doc", "`options` field must have object type");
    }
    for flag in ["include_design", "local_seq", "partitioned"] {
        for wrong in [json!(null), json!("true"), json!(1), json!({})] {
            let reason = format!("`options.{flag}` field must have boolean type");
            put(json!({flag: wrong})).await.refused(400, "invalid_design_doc", &reason);
        }
    }
    let reason = "partitioned option cannot be true in a non-partitioned database.";
    put(json!({"partitioned": true})).await.refused(400, "invalid_design_doc", reason);
    let bulk = json!({"docs": [{"_id": "_design/d", "options": 1}, {"_id": "a", "options": 1}]});
    let answer = couch.json("POST", "/db/_bulk_docs", bulk).await.json();
    assert_eq!((&answer[0]["error"], &answer[1]["ok"]), (&json!("invalid_design_doc"), &json!(true)), "{answer}");
    assert_eq!(couch.get("/db/_design/d").await.status, 404);
    // Unknown fields are not checked.
    let taken = json!({"include_design": true, "local_seq": false, "collation": 1, "option1": "function(doc, req) {}"});
    assert_eq!(put(taken).await.status, 201);
    // A replication writes them as they are.
    let docs = json!([{"_id": "_design/e", "_rev": "1-a", "options": 1, "views": {"v": {"map": IDS}}}]);
    let sent = couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!(sent.json(), json!([]));
    assert_eq!(keys(&couch, "e/_view/v").await, ["a"]);
}

/// CouchDB checks these fields when a design document is written.
#[tokio::test(flavor = "multi_thread")]
async fn design_documents_that_cannot_be_run_are_refused() {
    let couch = Couch::with_docs(json!([])).await;
    let put = |design: Value| couch.json("PUT", "/db/_design/d", design);
    for (design, reason) in [
        (json!({"language": 1}), "`language` field must have string type"),
        (json!({"filters": []}), "`filters` field must have object type"),
        (json!({"filters": {"a": "x", "b": 1}}), "`filters.b` field must have string or object type"),
        (json!({"rewrites": {}}), "`rewrites` field must have array or string type"),
        (json!({"validate_doc_update": null}), "`validate_doc_update` field must have string type"),
        (json!({"views": []}), "`views` field must have object type"),
        (json!({"views": {"v": "x"}}), "`views.v` field must have object type"),
        (json!({"views": {"v": {"map": 1}}}), "`views.v.map` field must have string type"),
        (json!({"views": {"v": {"map": IDS, "reduce": null}}}), "`views.v.reduce` field must have string type"),
        (json!({"views": {"v": {"map": IDS, "options": 1}}}), "`views.v.options` field must have object type"),
        (json!({"views": {"lib": {}, "v": {}}}), "View `v` must contain map function"),
        (json!({"views": {"v": {"map": IDS, "reduce": "_none"}}}), "`_none` is not a supported reduce function."),
        (json!({"views": {"v": {"map": IDS, "reduce": "_top_0"}}}), "rank value must be between 1 and 100"),
    ] {
        put(design).await.refused(400, "invalid_design_doc", reason);
    }
    for (view, function) in [
        (json!({"map": "function (doc) {"}), "map"),
        (json!({"map": "function f(doc) {}"}), "map"),
        (json!({"map": IDS, "reduce": " _sum"}), "reduce"),
    ] {
        let answer = put(json!({"views": {"a/b": view}})).await;
        let reason = format!("Compilation of the {function} function in the 'a/b' view failed: ");
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (400, &json!("compilation_error")));
        assert!(answer.json()["reason"].as_str().unwrap().starts_with(&reason), "{}", answer.text);
    }
    // These are never run, or only on request.
    for (n, taken) in [
        json!({"language": "erlang", "views": {"v": {"map": "fun(Doc) -> ok end."}}}),
        json!({"language": "query", "views": {"v": {"map": {"fields": {}}, "reduce": "_count"}}}),
        json!({"filters": {"f": "nothing at all"}, "updates": {"u": {}}, "shows": {"s": "("}}),
        json!({"views": {"v": {"map": IDS, "reduce": "_sum\n"}, "lib": {"l": 1}}}),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(couch.json("PUT", &format!("/db/_design/{n}"), taken).await.status, 201, "{n}");
    }
}

/// Earlier versions stored such names. A replication may bring them too.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_reduce_may_have_spaces_around_it_or_be_empty() {
    let couch = Couch::with_docs(json!([{"_id": "a"}, {"_id": "b"}])).await;
    let views = json!({"count": {"map": IDS, "reduce": " _count "}, "top": {"map": IDS, "reduce": "_top_1\n"},
        "none": {"map": IDS, "reduce": ""}, "blank": {"map": IDS, "reduce": " "}, "other": {"map": IDS}});
    for view in ["count", "none", "blank"] {
        let written = couch.json("PUT", "/db/_design/d", json!({"views": {"v": views[view]}})).await;
        assert_eq!(written.json()["error"], "compilation_error", "{view}: what is written now is refused");
    }
    let docs = json!([{"_id": "_design/d", "_rev": "1-a", "views": views}]);
    couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!(rows(&couch, "d/_view/count").await[0]["value"], 2);
    assert_eq!(rows(&couch, "d/_view/top").await[0]["key"], json!(null));
    for view in ["none", "blank", "other"] {
        assert_eq!(keys(&couch, &format!("d/_view/{view}")).await, ["a", "b"], "{view}");
    }
}
