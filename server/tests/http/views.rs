//! Views of design documents in JavaScript, as CouchDB 3.5 has them. The examples are those of CouchDB's guide to
//! views.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

async fn view(couch: &Couch, query: &str) -> Value {
    let answer = couch.get(&format!("/db/_design/d/_view/{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.text);
    answer.json()
}

async fn refused(couch: &Couch, query: &str) -> Answer {
    couch.get(&format!("/db/_design/d/_view/{query}")).await
}

/// Writes a document like a replication, which does not validate it.
async fn replicate(couch: &Couch, doc: Value) {
    let sent = couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": [doc]})).await;
    assert_eq!((sent.status.as_u16(), sent.json()), (201, json!([])));
}

fn members(answer: &Value, names: [&str; 2]) -> Vec<Value> {
    let rows = answer["rows"].as_array().unwrap();
    rows.iter().map(|row| json!([row[names[0]], row[names[1]]])).collect()
}

fn blog() -> Vec<Value> {
    vec![
        json!({"_id": "biking", "title": "Biking", "body": "My biggest hobby", "date": "2009/01/30 18:04:11"}),
        json!({"_id": "bought-a-cat", "title": "Bought a Cat", "body": "I went", "date": "2009/02/17 21:13:39"}),
        json!({"_id": "hello-world", "title": "Hello World", "body": "Well hello", "date": "2009/01/15 15:52:20"}),
        json!({"_id": "_design/d", "views": {"by_date": {
            "map": "function(doc) { if (doc.date && doc.title) { emit(doc.date, doc.title); } }"
        }}}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guides_blog_is_listed_by_date() {
    let couch = Couch::with_docs(blog()).await;
    let all = couch.get("/db/_design/d/_view/by_date").await;
    let expected = "{\"total_rows\":3,\"offset\":0,\"rows\":[\r\n\
        {\"id\":\"hello-world\",\"key\":\"2009/01/15 15:52:20\",\"value\":\"Hello World\"},\r\n\
        {\"id\":\"biking\",\"key\":\"2009/01/30 18:04:11\",\"value\":\"Biking\"},\r\n\
        {\"id\":\"bought-a-cat\",\"key\":\"2009/02/17 21:13:39\",\"value\":\"Bought a Cat\"}\r\n]}\n";
    assert_eq!(all.text, expected);
    let one = view(&couch, "by_date?key=%222009/01/30%2018:04:11%22").await;
    assert_eq!((one["offset"].clone(), members(&one, ["id", "value"])), (json!(1), vec![json!(["biking", "Biking"])]));
    let range = view(&couch, "by_date?startkey=%222010%22&endkey=%222009/02%22&descending=true").await;
    assert_eq!(members(&range, ["id", "value"]), [json!(["bought-a-cat", "Bought a Cat"])]);
    let docs = view(&couch, "by_date?include_docs=true&limit=1&skip=1&update_seq=true").await;
    assert_eq!(docs["rows"][0]["doc"]["body"], "My biggest hobby");
    assert_eq!(docs["update_seq"], couch.get("/db").await.json()["update_seq"]);
    // A document just written has a row, and a deleted one does not.
    couch.put("/db/new", json!({"title": "New", "date": "2010"})).await;
    let rev = couch.get("/db/biking").await.json()["_rev"].as_str().unwrap().to_owned();
    couch.call("DELETE", &format!("/db/biking?rev={rev}")).await;
    let stale = view(&couch, "by_date?update=false").await;
    assert_eq!(stale["total_rows"], 3);
    let now = view(&couch, "by_date").await;
    assert_eq!(members(&now, ["id", "key"])[0][0], "hello-world");
    assert_eq!((now["total_rows"].clone(), now["rows"][2]["id"].clone()), (json!(3), json!("new")));
    assert!(couch.get("/db/_couch_layer/check").await.json()["problems"].as_array().unwrap().is_empty());
}

fn letters() -> Vec<Value> {
    let keys = [["a", "b", "c"], ["a", "b", "e"], ["a", "c", "m"], ["b", "a", "c"], ["b", "a", "g"]];
    let mut docs: Vec<Value> =
        keys.iter().enumerate().map(|(n, key)| json!({"_id": n.to_string(), "k": key, "n": n})).collect();
    let map = "function (doc) { emit(doc.k, doc.n); }";
    docs.push(json!({"_id": "_design/d", "views": {
        "lib": {"twice": "exports.twice = function (n) { return 2 * n; };"},
        "map": {"map": map},
        "count": {"map": map, "reduce": "_count"},
        "sum": {"map": map, "reduce": "_sum"},
        "stats": {"map": map, "reduce": "_stats"},
        "own": {"map": map, "reduce": "function (keys, values, rereduce) { return sum(values); }"},
        "long": {"map": map, "reduce": "function (keys, values) { return new Array(20000).join('x'); }"},
        "throws": {"map": map, "reduce": "function () { throw 'no'; }"},
        "required": {"map": "function (doc) { emit(require('views/lib/twice').twice(doc.n), {_id: '0'}); }"},
        "distinct": {"map": map, "reduce": "_approx_count_distinct"},
        "top": {"map": map, "reduce": "_top_2"},
        "bottom": {"map": map, "reduce": "_bottom_100"},
        "first": {"map": map, "reduce": "_first"},
        "last": {"map": map, "reduce": "_last"},
    }}));
    docs
}

#[tokio::test(flavor = "multi_thread")]
async fn reductions_are_those_of_the_guide() {
    let couch = Couch::with_docs(letters()).await;
    for name in ["count", "own"] {
        let value = |number: u64, sum: u64| if name == "count" { number } else { sum };
        let all = couch.get(&format!("/db/_design/d/_view/{name}")).await;
        assert_eq!(all.text, format!("{{\"rows\":[\r\n{{\"key\":null,\"value\":{}}}\r\n]}}\n", value(5, 10)));
        let one = view(&couch, &format!("{name}?group_level=1")).await;
        let expected = [json!([["a"], value(3, 3)]), json!([["b"], value(2, 7)])];
        assert_eq!(members(&one, ["key", "value"]), expected);
        let two = view(&couch, &format!("{name}?group_level=2&descending=true&limit=2")).await;
        let expected = [json!([["b", "a"], value(2, 7)]), json!([["a", "c"], value(1, 2)])];
        assert_eq!(members(&two, ["key", "value"]), expected);
        assert_eq!(view(&couch, &format!("{name}?group=true")).await["rows"].as_array().unwrap().len(), 5);
        let range = view(&couch, &format!("{name}?startkey=[%22a%22,%22c%22]&endkey=[%22b%22,{{}}]")).await;
        assert_eq!(range["rows"][0]["value"], value(3, 9));
        let none = view(&couch, &format!("{name}?startkey=[%22c%22]")).await;
        assert_eq!(none["rows"], json!([]));
        let keys = json!({"keys": [["b", "a", "g"], ["none"], ["a", "b", "c"]], "group": true});
        let keyed = couch.json("POST", &format!("/db/_design/d/_view/{name}"), keys).await.json();
        let expected = [json!([["b", "a", "g"], value(1, 4)]), json!([["a", "b", "c"], value(1, 0)])];
        assert_eq!(members(&keyed, ["key", "value"]), expected);
    }
    let stats = view(&couch, "stats").await;
    assert_eq!(stats["rows"][0]["value"], json!({"sum": 10, "count": 5, "min": 0, "max": 4, "sumsqr": 30}));
    for (name, all, of_a) in [
        ("distinct", json!(5), json!(3)),
        ("top", json!([4, 3]), json!([2, 1])),
        ("bottom", json!([0, 1, 2, 3, 4]), json!([0, 1, 2])),
        ("first", json!(0), json!(0)),
        ("last", json!(4), json!(2)),
    ] {
        assert_eq!(view(&couch, name).await["rows"][0]["value"], all, "{name}");
        let down = view(&couch, &format!("{name}?group_level=1&descending=true")).await;
        assert_eq!(down["rows"][1], json!({"key": ["a"], "value": of_a}), "{name}");
    }
    let mapped = view(&couch, "sum?reduce=false").await;
    assert_eq!((mapped["total_rows"].clone(), mapped["rows"].as_array().unwrap().len()), (json!(5), 5));
    let long = view(&couch, "long").await;
    assert_eq!(
        (long["rows"][0]["error"].clone(), &long["rows"][0]["key"]),
        (json!("reduce_overflow_error"), &json!(null))
    );
    assert_eq!(view(&couch, "throws").await["rows"], json!([{"key": null, "value": null}]));
    let required = view(&couch, "required?key=8&include_docs=true").await;
    assert_eq!((&required["rows"][0]["id"], &required["rows"][0]["doc"]["_id"]), (&json!("4"), &json!("0")));
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_that_mean_nothing_are_refused() {
    let couch = Couch::with_docs(letters()).await;
    for (query, reason) in [
        ("map?reduce=true", "Reduce is invalid for map-only views."),
        ("map?group=true", "Invalid use of grouping on a map view."),
        ("map?group_level=2", "Invalid use of grouping on a map view."),
        ("count?include_docs=true", "`include_docs` is invalid for reduce"),
        ("count?keys=[1,2]", "Multi-key fetches for reduce views must use `group=true`"),
        ("map?keys=[1,2]&key=2", "`keys` is incompatible with `key`, `start_key` and `end_key`"),
        ("map?keys=null", "`keys` must be an array of strings."),
        ("count?conflicts=false", "`conflicts` is invalid for reduce views."),
        ("count?group=false&group_level=1", "Can't specify group=false and group_level>0 at the same time"),
        ("map?stable=TRUE", "Invalid value for `stable`."),
        ("map?limit=99999999999999999999", "Limit is too large, must not exceed 576460752303423487"),
        ("map?partition=a", "`partition` parameter is not supported in this design doc"),
        // In CouchDB's order.
        ("map?partition=a&group=true&keys=[1,2]&key=2&reduce=true", "Reduce is invalid for map-only views."),
        (
            "map?startkey=2&endkey=1",
            "No rows can match your key range, reverse your start_key and end_key or set descending=true",
        ),
        ("map?update=often", "Invalid value for `update`."),
    ] {
        refused(&couch, query).await.refused(400, "query_parse_error", reason);
    }
    refused(&couch, "none").await.refused(404, "not_found", "missing_named_view");
    couch.get("/db/_design/none/_view/x").await.refused(404, "not_found", "missing");
    let map = "function (doc) { emit(doc.k, doc.n); }";
    let views = json!({"unknown": {"map": map, "reduce": "_median"}, "rank": {"map": map, "reduce": "_top_101"}});
    replicate(&couch, json!({"_id": "_design/r", "_rev": "1-a", "views": views})).await;
    let reason = "`_median` is not a supported reduce function.";
    couch.get("/db/_design/r/_view/unknown").await.refused(400, "bad_request", reason);
    couch.get("/db/_design/r/_view/rank").await.refused(400, "bad_request", "rank value must be between 1 and 100");
    for path in ["map", "map/queries"] {
        let path = format!("/db/_design/d/_view/{path}");
        let asked = couch.json("POST", &path, json!({"queries": {}})).await;
        asked.refused(400, "bad_request", "`queries` member must be an array.");
    }
    let reason = "The `queries` parameter is no longer supported at this endpoint";
    couch.json("POST", "/db/_design/d/_view/map", json!({"queries": []})).await.refused(400, "bad_request", reason);
    couch.put("/db/_design/e", json!({"language": "erlang", "views": {"v": {"map": "x"}}})).await;
    couch.get("/db/_design/e/_view/v").await.refused(500, "unknown_query_language", "erlang");
    let several = json!({"queries": [{"key": ["b", "a", "g"]}, {"limit": 1, "descending": true}]});
    let several = couch.json("POST", "/db/_design/d/_view/map/queries?keys=[1,2]&group=true", several).await.json();
    let rows = |at: usize| members(&several["results"][at], ["id", "value"]);
    assert_eq!((rows(0), rows(1)), (vec![json!(["4", 4])], vec![json!(["4", 4])]));
}

/// What CouchDB answers, as measured.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_ranges_of_their_own() {
    let couch = Couch::with_docs(letters()).await;
    for (n, key) in ["ab", "a\u{0}b", "c"].iter().enumerate() {
        couch.put(&format!("/db/x{n}"), json!({"k": key, "n": n})).await;
    }
    let ask = async |query: &str| view(&couch, query).await;
    // Both keys collate equally; the group has the requested key, and the order is that of the request.
    let groups = ask("count?keys=[%22c%22,%22ab%22]&group=true&descending=true").await;
    assert_eq!(members(&groups, ["key", "value"]), [json!(["c", 1]), json!(["ab", 2])]);
    let rows = ask("map?keys=[%22c%22,%22ab%22]&descending=true").await;
    assert_eq!(members(&rows, ["id", "value"]), [json!(["x1", 1]), json!(["x0", 0]), json!(["x2", 2])]);
    let rows = ask("map?keys=[%22ab%22,%22c%22]&startkey_docid=x1&endkey_docid=x1").await;
    assert_eq!(members(&rows, ["id", "value"]), [json!(["x1", 1])]);
    assert_eq!(ask("map?keys=[%22ab%22,%22c%22]&inclusive_end=false").await["rows"], json!([]));
    assert_eq!(ask("map?keys=[]&startkey=7").await["offset"], 0);
    // Skipped rows count, even if there are fewer.
    for (query, offset) in [
        ("map?skip=2", 2),
        ("map?skip=100", 8),
        ("map?keys=[%22c%22,%22ab%22]&skip=1", 3),
        ("map?keys=[%22none%22,%22c%22]&limit=0", 2),
        ("map?keys=[%22none%22,%22nothing%22]", 3),
    ] {
        assert_eq!(ask(query).await["offset"], offset, "{query}");
    }
    assert_eq!(ask("count?group=true&group_level=0").await["rows"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_see_conflicts_and_links_are_ids() {
    let couch = Couch::with_docs(json!([{"_id": "b"}, {"_id": "_design/d", "views": {
        "conflicts": {"map": "doc => emit(doc._conflicts, doc._deleted_conflicts)"},
        "links": {"map": "doc => emit(null, {_id: 7})"},
    }}]))
    .await;
    for doc in [
        json!({"_id": "a", "_rev": "1-a"}),
        json!({"_id": "a", "_rev": "1-b"}),
        json!({"_id": "a", "_rev": "2-c", "_deleted": true}),
    ] {
        replicate(&couch, doc).await;
    }
    let rows = view(&couch, "conflicts").await;
    assert_eq!(members(&rows, ["key", "value"]), [json!([null, null]), json!([["1-a"], ["2-c"]])]);
    let purged = couch.json("POST", "/db/_purge", json!({"a": ["1-a"]})).await;
    assert_eq!(purged.status, 201, "{}", purged.text);
    assert_eq!(members(&view(&couch, "conflicts").await, ["key", "value"])[0], json!([null, ["2-c"]]));
    let links = view(&couch, "links?include_docs=true").await;
    assert_eq!(members(&links, ["id", "doc"]), [json!(["a", null]), json!(["b", null])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_fail_harm_no_others() {
    let couch = Couch::with_docs(vec![
        json!({"_id": "good", "n": 1}),
        json!({"_id": "bad", "n": 2, "fails": true}),
        json!({"_id": "_design/d", "views": {
            "some": {"map": "function (doc) { if (doc.fails) { throw new Error('on purpose'); } emit(doc.n); }"},
            "all": {"map": "function (doc) { emit(doc.n, null); }"},
        }}),
    ])
    .await;
    let broken = json!({"_id": "_design/broken", "_rev": "1-a", "views": {"v": {"map": "function (doc) {"}}});
    replicate(&couch, broken).await;
    assert_eq!(members(&view(&couch, "some").await, ["id", "value"]), [json!(["good", null])]);
    assert_eq!(view(&couch, "all").await["total_rows"], 2);
    let info = couch.get("/db/_design/d/_info").await.json();
    let errors = info["view_index"]["errors"].as_array().unwrap();
    assert_eq!((errors.len(), &errors[0]["id"], &errors[0]["error"]), (1, &json!("bad"), &json!("map_error")));
    assert!(errors[0]["reason"].as_str().unwrap().contains("on purpose"), "{errors:?}");
    assert_eq!((info["name"].clone(), info["view_index"]["language"].clone()), (json!("d"), json!("javascript")));
    let broken = couch.get("/db/_design/broken/_view/v").await;
    assert_eq!((broken.status.as_u16(), broken.json()["error"].clone()), (500, json!("unknown_error")));
}

/// CouchDB has rows of such documents, so an answer without them says that they are missing.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_the_documents_that_its_view_leaves_out() {
    let deep = "function (doc) { if (doc.deep) { var f = function () { f(); }; f(); } emit(doc.n, null); }";
    let greedy = "function (doc) { for (var i = 0; i < doc.n; i++) emit(i, new Array(1000).join('x')); }";
    let throws = "function (doc) { if (doc.fails) { throw new Error('on purpose'); } emit(doc.n); }";
    let couch = Couch::with_docs(vec![
        json!({"_id": "deep", "n": 1, "deep": true}),
        json!({"_id": "greedy", "n": 4_000}),
        json!({"_id": "fails", "n": 1, "fails": true}),
        json!({"_id": "_design/d", "views": {
            "deep": {"map": deep}, "greedy": {"map": greedy, "reduce": "_count"}, "throws": {"map": throws},
        }}),
    ])
    .await;
    let errors = |answer: &Value| members(&json!({ "rows": answer["errors"] }), ["from", "reason"]);
    let answer = view(&couch, "deep").await;
    assert_eq!(answer["total_rows"], 2);
    let [Value::Array(one)] = &errors(&answer)[..] else { panic!("{answer}") };
    assert_eq!(one[0], "deep");
    assert!(one[1].as_str().unwrap().contains("views/deep/map: "), "{one:?}");
    let too_much = json!(["greedy", "The document emits too much, at most about 3000000 bytes fit."]);
    for (query, rows) in [("greedy", json!(2)), ("greedy?group=true&limit=0", json!(0))] {
        let answer = view(&couch, query).await;
        assert_eq!(errors(&answer), std::slice::from_ref(&too_much), "{answer}");
        if query == "greedy" {
            assert_eq!(answer["rows"][0]["value"], rows, "the rows of other documents");
        }
    }
    let answer = view(&couch, "throws").await;
    assert_eq!((&answer["total_rows"], answer.get("errors")), (&json!(2), None), "as in CouchDB");

    for n in 0..11 {
        couch.put(&format!("/db/deeper{n:02}"), json!({"n": 1, "deep": true})).await;
    }
    let answer = couch.get("/db/_design/d/_view/deep?page_size=1").await.json();
    let names: Vec<_> = errors(&answer).iter().map(|one| one[0].as_str().unwrap().to_owned()).collect();
    assert_eq!((names.len(), &names[0][..], &names[10][..]), (11, "deep", "_design/d/_view/deep"), "{answer}");
    let both =
        couch.json("POST", "/db/_design/d/_view/deep/queries", json!({"queries": [{}, {"key": 7}]})).await.json();
    assert!((0..2).all(|at| errors(&both["results"][at]).len() == 11), "{both}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_says_up_to_which_purge_it_is_right() {
    let couch = Couch::with_docs(blog()).await;
    let all = view(&couch, "by_date").await["total_rows"].as_u64().unwrap();
    let seq = async || couch.get("/db/_design/d/_info").await.json()["view_index"]["purge_seq"].clone();
    assert_eq!(seq().await, json!(0));
    let row = view(&couch, "by_date").await["rows"][0]["id"].as_str().unwrap().to_owned();
    let rev = couch.get(&format!("/db/{row}")).await.json()["_rev"].clone();
    let purged = couch.json("POST", "/db/_purge", json!({ &row: [rev] })).await;
    assert_eq!(purged.status, 201, "{}", purged.text);
    assert_eq!(view(&couch, "by_date").await["total_rows"], all - 1);
    assert_eq!(seq().await, json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleanup_removes_what_no_design_document_has() {
    let couch = Couch::with_docs(blog()).await;
    let signature = async || {
        let info = couch.get("/db/_design/d/_info").await.json();
        (info["view_index"]["signature"].clone(), info["view_index"]["update_seq"].clone())
    };
    view(&couch, "by_date").await;
    let (before, seq) = signature().await;
    let mut design = couch.get("/db/_design/d").await.json();
    let first = design["views"].clone();
    design["views"]["more"] = json!({"map": "function (doc) { emit(1); }"});
    couch.put("/db/_design/d", design).await;
    assert_ne!(signature().await.0, before);
    view(&couch, "more").await;
    let cleaned = couch.json("POST", "/db/_view_cleanup", json!({})).await;
    assert_eq!((cleaned.status.as_u16(), cleaned.json()), (202, json!({"ok": true})));
    assert_eq!(couch.json("POST", "/db/_compact/d", json!({})).await.status, 202);
    assert_eq!(view(&couch, "more?update=false").await["total_rows"], 3);
    // The earlier functions again: their rows are gone.
    let mut design = couch.get("/db/_design/d").await.json();
    design["views"] = first;
    couch.put("/db/_design/d", design).await;
    let (again, none) = signature().await;
    assert_eq!(again, before);
    assert_ne!(none, seq);
    assert_eq!(view(&couch, "by_date?update=false").await["rows"], json!([]));
    assert_eq!(view(&couch, "by_date").await["total_rows"], 3);
}

/// More documents than a request processes by itself: a job does the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_is_far_behind_is_brought_up_to_date() {
    let couch = Couch::with_docs(vec![json!({"_id": "_design/d", "views": {
        "tens": {"map": "function (doc) { emit([doc.n % 10, doc.n], doc.n); }", "reduce": "_sum"}
    }})])
    .await;
    for part in 0..4u64 {
        let docs: Vec<Value> = (0..900).map(|n| json!({"_id": format!("{part}-{n}"), "n": part * 900 + n})).collect();
        let answer = couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
    }
    let grouped = view(&couch, "tens?group_level=1").await;
    let sum = |tens: u64| (0..360).map(|n| 10 * n + tens).sum::<u64>();
    let expected: Vec<Value> = (0..10).map(|tens| json!([[tens], sum(tens)])).collect();
    assert_eq!(members(&grouped, ["key", "value"]), expected);
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([]));
}

/// Source: `start_update` of CouchDB's `couch_mrview_updater.erl`.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_is_an_active_task_with_couchdbs_members() {
    let slow = "function (doc) { for (var i = 0; i < 30000; i++) {} emit(doc._id); }";
    let couch = Couch::with_docs(vec![json!({"_id": "_design/d", "views": {"v": {"map": slow}}})]).await;
    for part in 0..6 {
        let docs: Vec<Value> = (0..1_000).map(|n| json!({"_id": format!("{part}-{n}")})).collect();
        assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await.status, 201);
    }
    // A request processes the first changes by itself.
    let task = async {
        loop {
            let tasks = couch.get("/_active_tasks").await.json();
            if let Some(task) = tasks.get(0).filter(|task| task.get("changes_done").is_some()) {
                return task.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let task = tokio::time::timeout(std::time::Duration::from_secs(120), task);
    let (answer, task) = tokio::join!(view(&couch, "v?limit=1"), task);
    let task = task.expect("a task");
    assert_eq!(answer["total_rows"], 6_000);
    let mut members: Vec<&str> = task.as_object().unwrap().keys().map(String::as_str).collect();
    members.sort_unstable();
    // CouchDB's, and the server that runs it.
    let (first, last) = (
        ["changes_done", "database", "design_document", "node", "pid", "process_status"],
        ["progress", "server", "started_on", "total_changes", "type", "updated_on"],
    );
    assert_eq!(members, [first, last].concat());
    assert_eq!(
        (&task["type"], &task["database"], &task["design_document"]),
        (&json!("indexer"), &json!("db"), &json!("_design/d"))
    );
    let number = |name: &str| task[name].as_u64().unwrap();
    assert!(number("changes_done") < number("total_changes"), "{task}");
    assert_eq!(number("progress"), 100 * number("changes_done") / number("total_changes"));
    assert!(number("started_on") <= number("updated_on"), "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_offset_is_that_of_the_first_row_behind_many_missing_keys() {
    let couch = Couch::with_docs(blog()).await;
    let mut keys: Vec<String> = (0..2_500).map(|n| format!("none {n}")).collect();
    keys.push("2009/02/17 21:13:39".to_owned());
    let ask = |keys: &[String]| couch.json("POST", "/db/_design/d/_view/by_date", json!({ "keys": keys }));
    let found = ask(&keys).await.json();
    assert_eq!((&found["offset"], &found["rows"][0]["id"]), (&json!(2), &json!("bought-a-cat")), "{found}");
    let none = ask(&keys[..2_500]).await.json();
    assert_eq!((&none["total_rows"], &none["rows"]), (&json!(3), &json!([])), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_view_are_led_to_by_bookmarks() {
    let couch = Couch::with_docs(letters()).await;
    for (query, columns) in [
        ("map?skip=1&descending=true", ["id", "value"]),
        ("count?group_level=2&endkey=[%22b%22,%22z%22]", ["key", "value"]),
        ("sum?group=true&descending=true&limit=4", ["key", "value"]),
    ] {
        let expected = members(&view(&couch, query).await, columns);
        let (name, _) = query.split_once('?').unwrap();
        let (mut found, mut pages) = (Vec::new(), Vec::new());
        let mut page = view(&couch, &format!("{query}&page_size=2")).await;
        loop {
            found.extend(members(&page, columns));
            let next = page["next"].as_str().map(str::to_owned);
            pages.push(page);
            match next {
                Some(next) => page = view(&couch, &format!("{name}?bookmark={next}")).await,
                None => break,
            }
        }
        assert_eq!(found, expected, "{query}");
        assert!(pages[0].get("first").is_none() && pages[0].get("previous").is_none());
        let rows = |page: &Value| page["rows"].clone();
        for link in ["first", "previous"] {
            let word = pages[1][link].as_str().unwrap();
            assert_eq!(
                rows(&view(&couch, &format!("{name}?bookmark={word}")).await),
                rows(&pages[0]),
                "{query} {link}"
            );
        }
    }
    let word = view(&couch, "map?page_size=2").await["next"].as_str().unwrap().to_owned();
    let refuse = async |query: String| refused(&couch, &query).await.status.as_u16();
    assert_eq!(refuse(format!("count?bookmark={word}")).await, 400, "of another view");
    assert_eq!(refuse(format!("map?bookmark={word}&limit=1")).await, 400);
    assert_eq!(refuse("map?page_size=2501".to_owned()).await, 400);
    let posted = couch.json("POST", "/db/_design/d/_view/map", json!({"page_size": 2})).await;
    assert_eq!(posted.status, 400);
    let queries = json!({"queries": [{"page_size": 1, "key": ["b", "a", "g"]}, {"bookmark": word}]});
    let answer = couch.json("POST", "/db/_design/d/_view/map/queries", queries).await.json();
    assert_eq!(members(&answer["results"][1], ["id", "value"]), [json!(["2", 2]), json!(["3", 3])]);
}
