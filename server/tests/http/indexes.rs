//! `_index`, and `_find` and `_explain` over indexes, as CouchDB 3.5 has them.

use conformance::random::Random;
use serde_json::{Value, json};

use crate::support::{Answer, Couch};

/// A server whose database has these documents.
async fn with_docs(docs: Vec<Value>) -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    bulk(&couch, "db", docs).await;
    couch
}

async fn bulk(couch: &Couch, db: &str, docs: Vec<Value>) {
    let answer = couch.json("POST", &format!("/{db}/_bulk_docs"), json!({ "docs": docs })).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
}

async fn ok(couch: &Couch, method: &str, path: &str, body: Value) -> Value {
    let answer = couch.json(method, path, body.clone()).await;
    assert_eq!(answer.status, 200, "{method} {path} {body}: {}", answer.text);
    answer.json()
}

async fn index(couch: &Couch, ddoc: &str, name: &str, def: Value) -> Value {
    ok(couch, "POST", "/db/_index", json!({"index": def, "ddoc": ddoc, "name": name})).await
}

async fn find(couch: &Couch, body: Value) -> Value {
    ok(couch, "POST", "/db/_find", body).await
}

async fn refused(couch: &Couch, path: &str, body: Value) -> Answer {
    couch.json("POST", path, body).await
}

fn ids(answer: &Value) -> Vec<String> {
    answer["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()).collect()
}

fn numbers(count: usize) -> Vec<Value> {
    (0..count).map(|n| json!({"_id": format!("{n:03}"), "n": n, "tens": n / 10, "odd": n % 2 == 1})).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_made_listed_and_deleted() {
    let couch = with_docs(vec![]).await;
    // The names are CouchDB's own.
    let made = ok(&couch, "POST", "/db/_index", json!({"index": {"fields": ["foo"]}, "name": "foo-index"})).await;
    let id = "_design/74644dcd981a77aa2a982e4eb0956fbad86c5a3f";
    assert_eq!(made, json!({"result": "created", "id": id, "name": "foo-index"}));
    let again = ok(&couch, "POST", "/db/_index", json!({"index": {"fields": ["foo"]}, "name": "foo-index"})).await;
    assert_eq!(again["result"], "exists");
    let design = couch.get(&format!("/db/{id}")).await.json();
    assert_eq!(
        (&design["language"], &design["views"]),
        (
            &json!("query"),
            &json!({"foo-index": {
                "map": {"fields": {"foo": "asc"}, "partial_filter_selector": {}},
                "reduce": "_count",
                "options": {"def": {"fields": ["foo"]}},
            }})
        )
    );
    let partial = json!({"fields": [{"a.b": "desc"}], "partial_filter_selector": {"x": 1}});
    assert_eq!(index(&couch, "two", "partial", partial).await["id"], "_design/two");
    assert_eq!(index(&couch, "_design/two", "whole", json!({"fields": ["y"]})).await["id"], "_design/two");

    let all = ok(&couch, "GET", "/db/_index", json!({})).await;
    let special = json!({"ddoc": null, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}});
    let listed = |ddoc: &str, name: &str, def: Value| json!({"ddoc": ddoc, "name": name, "type": "json", "partitioned": false, "def": def});
    let expected = [
        special,
        listed(id, "foo-index", json!({"fields": [{"foo": "asc"}]})),
        listed(
            "_design/two",
            "partial",
            json!({"fields": [{"a.b": "desc"}], "partial_filter_selector": {"x": {"$eq": 1}}}),
        ),
        listed("_design/two", "whole", json!({"fields": [{"y": "asc"}]})),
    ];
    assert_eq!(all, json!({"total_rows": 4, "indexes": expected}));
    let some = ok(&couch, "GET", "/db/_index?limit=2&skip=1", json!({})).await;
    assert_eq!(some, json!({"total_rows": 4, "indexes": expected[1..3]}));
    assert_eq!(ok(&couch, "GET", "/db/_index?limit=99999999999999999999", json!({})).await, all);
    for query in ["limit=0", "limit=x", "skip=-1"] {
        let said = "Index parameter ranges: limit > 1, skip > 0";
        couch.get(&format!("/db/_index?{query}")).await.refused(400, "invalid_list_index_params", said);
    }

    // Another definition replaces the first.
    assert_eq!(index(&couch, "two", "whole", json!({"fields": ["z"]})).await["result"], "created");
    assert_eq!(ok(&couch, "DELETE", "/db/_index/_design/two/json/partial", json!({})).await, json!({"ok": true}));
    let left = couch.get("/db/_design/two").await.json();
    assert_eq!(left["views"].as_object().unwrap().keys().collect::<Vec<_>>(), ["whole"]);
    assert_eq!(ok(&couch, "DELETE", "/db/_index/two/json/whole", json!({})).await, json!({"ok": true}));
    assert_eq!(couch.get("/db/_design/two").await.json()["reason"], "deleted");
    for path in ["two/json/whole", "two/text/whole", "none/json/x", "x"] {
        couch.call("DELETE", &format!("/db/_index/{path}")).await.refused(404, "not_found", "missing");
    }
    assert_eq!(ok(&couch, "GET", "/db/_index", json!({})).await["total_rows"], 2);

    // All indexes of some design documents.
    index(&couch, "a", "1", json!({"fields": ["x"]})).await;
    index(&couch, "a", "2", json!({"fields": ["y"]})).await;
    let deleted = json!({"docids": ["_design/a", "none", id]});
    assert_eq!(
        ok(&couch, "POST", "/db/_index/_bulk_delete", deleted).await,
        json!({
            "success": [{"id": id, "ok": true}, {"id": "_design/a", "ok": true}],
            "fail": [{"id": "_design/none", "error": "not_found"}],
        })
    );
    assert_eq!(ok(&couch, "GET", "/db/_index", json!({})).await["total_rows"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_index_is_named() {
    let couch = with_docs(vec![]).await;
    for (body, status, error, reason) in [
        (json!({}), 400, "missing_required_key", "Missing required key: index"),
        (json!({"index": {"fields": [1]}}), 400, "invalid_sort_field", "Invalid sort field: 1"),
        (json!({"index": {}, "type": "text"}), 503, "required index service unavailable", "text"),
        (
            json!({"index": {"fields": ["a"]}, "partitioned": true}),
            400,
            "bad_request",
            "partitioned option cannot be true in a non-partitioned database.",
        ),
    ] {
        refused(&couch, "/db/_index", body).await.refused(status, error, reason);
    }
    couch.put("/db/_design/js", json!({"language": "javascript"})).await;
    let asked = json!({"index": {"fields": ["a"]}, "ddoc": "js"});
    let said = "Existing design doc has an invalid language: \"javascript\"";
    refused(&couch, "/db/_index", asked).await.refused(400, "invalid_ddoc_lang", said);
    refused(&couch, "/db/_index/_bulk_delete", json!({"docids": 1})).await.refused(
        400,
        "invalid_bulk_docs",
        "Bulk Delete requires an array of non-null docids. Docids: 1",
    );
    // As many as a database may have.
    let view = |n: usize| json!({"map": {"fields": {format!("f{n}"): "asc"}}, "reduce": "_count", "options": {}});
    let views: serde_json::Map<String, Value> = (0..64).map(|n| (format!("i{n}"), view(n))).collect();
    couch.put("/db/_design/many", json!({"language": "query", "views": views})).await;
    assert_eq!(ok(&couch, "GET", "/db/_index", json!({})).await["total_rows"], 65);
    let asked = json!({"index": {"fields": ["a"]}, "ddoc": "more"});
    refused(&couch, "/db/_index", asked).await.refused(400, "invalid_index", "A database has at most 64 indexes.");
    // One of them may be replaced.
    assert_eq!(index(&couch, "many", "i1", json!({"fields": ["other"]})).await["result"], "created");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_make_and_delete_indexes() {
    let couch = Couch::with_administrator().await;
    let admin = |method: &str, path: &str, body: Value| {
        let request = couch.request(method, path).basic_auth("adm", Some("pass word"));
        couch.send(request.header("content-type", "application/json").body(body.to_string()))
    };
    assert_eq!(admin("PUT", "/db", json!({})).await.status, 201);
    let open = json!({"admins": {"names": [], "roles": []}, "members": {"names": [], "roles": []}});
    assert_eq!(admin("PUT", "/db/_security", open).await.status, 200);
    let asked = json!({"index": {"fields": ["a"]}, "ddoc": "d", "name": "i"});
    let said = "You are not a db or server admin.";
    refused(&couch, "/db/_index", asked.clone()).await.refused(401, "unauthorized", said);
    assert_eq!(admin("POST", "/db/_index", asked.clone()).await.status, 200);
    couch.call("DELETE", "/db/_index/d/json/i").await.refused(401, "unauthorized", said);
    let deleted = ok(&couch, "POST", "/db/_index/_bulk_delete", json!({"docids": ["d"]})).await;
    assert_eq!(deleted["fail"], json!([{"id": "_design/d", "error": "unauthorized"}]));
    // An existing index is not written, so everybody may request it.
    assert_eq!(ok(&couch, "POST", "/db/_index", asked).await["result"], "exists");
    assert_eq!(ok(&couch, "GET", "/db/_index", json!({})).await["total_rows"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_answers_with_what_was_just_written() {
    let couch = with_docs(numbers(20)).await;
    index(&couch, "d", "n", json!({"fields": ["n"]})).await;
    let high = json!({"selector": {"n": {"$gte": 18}}, "sort": ["n"]});
    assert_eq!(ids(&find(&couch, high.clone()).await), ["018", "019"]);
    let rev = couch.put("/db/new", json!({"n": 18.5})).await;
    assert_eq!(ids(&find(&couch, high.clone()).await), ["018", "new", "019"]);
    let rev = couch.put(&format!("/db/new?rev={rev}"), json!({"n": 100})).await;
    assert_eq!(ids(&find(&couch, high.clone()).await), ["018", "019", "new"]);
    // Without the field the document is not in the index.
    let rev = couch.put(&format!("/db/new?rev={rev}"), json!({})).await;
    assert_eq!(ids(&find(&couch, high.clone()).await), ["018", "019"]);
    couch.put(&format!("/db/new?rev={rev}"), json!({"n": 30})).await;
    let rev = couch.get("/db/019").await.json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(couch.call("DELETE", &format!("/db/019?rev={rev}")).await.status, 200);
    assert_eq!(ids(&find(&couch, high).await), ["018", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_reads_the_rows_of_its_range_and_no_others() {
    let couch = with_docs(numbers(200)).await;
    index(&couch, "d", "tens", json!({"fields": ["tens", "n"]})).await;
    let stats = |body: Value| {
        let (couch, mut body) = (&couch, body);
        body["execution_stats"] = json!(true);
        async move {
            let answer = find(couch, body).await;
            let stats = &answer["execution_stats"];
            let count = |name: &str| stats[name].as_u64().unwrap();
            let counts = [count("total_keys_examined"), count("total_docs_examined"), count("results_returned")];
            (counts, answer)
        }
    };
    let (counts, answer) = stats(json!({"selector": {"tens": 3, "n": {"$gt": 33}}})).await;
    assert_eq!((counts, answer.get("warning")), ([6, 6, 6], None));
    let (counts, answer) = stats(json!({"selector": {"tens": {"$gt": 3}, "n": {"$gt": 0}}, "limit": 5})).await;
    assert_eq!((counts, ids(&answer)), ([5, 5, 5], ["040", "041", "042", "043", "044"].map(str::to_owned).to_vec()));
    let (counts, answer) =
        stats(json!({"selector": {"tens": {"$lte": 3}}, "sort": [{"tens": "desc"}, {"n": "desc"}], "limit": 3})).await;
    assert_eq!((counts, ids(&answer)), ([3, 3, 3], ["039", "038", "037"].map(str::to_owned).to_vec()));
    // A query that the rows can answer reads no document.
    let (counts, answer) = stats(json!({"selector": {"tens": 3, "n": 33}, "fields": ["n", "_id"]})).await;
    assert_eq!((counts, &answer["docs"]), ([1, 0, 1], &json!([{"n": 33, "_id": "033"}])));
    // The selector checks what the index cannot.
    let (counts, answer) = stats(json!({"selector": {"tens": 3, "n": {"$exists": true}, "odd": true}})).await;
    assert_eq!((counts, answer["docs"].as_array().unwrap().len()), ([10, 10, 5], 5));
    // Impossible ranges are not searched.
    let answer = find(&couch, json!({"selector": {"tens": {"$gt": 3, "$lt": 3}, "n": 1}})).await;
    assert_eq!(answer, json!({"docs": []}));
    let (_, answer) = stats(json!({"selector": {"tens": {"$gt": -1}, "n": {"$gt": -1}, "odd": "x"}})).await;
    let many = "The number of documents examined is high in proportion to the number of results returned. \
                Consider adding a more specific index to improve this.";
    assert_eq!((&answer["warning"], &answer["bookmark"]), (&json!(many), &json!("nil")));
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_indexes_are_used_by_those_who_name_them() {
    let couch = with_docs(numbers(20)).await;
    index(&couch, "d", "odd", json!({"fields": ["n"], "partial_filter_selector": {"odd": true}})).await;
    let no_index = "No matching index found, create an index to optimize query time.";
    let mut asked = json!({"selector": {"n": {"$lt": 4}}});
    let answer = find(&couch, asked.clone()).await;
    assert_eq!((ids(&answer).len(), &answer["warning"]), (4, &json!(no_index)));
    asked["use_index"] = json!(["d", "odd"]);
    let answer = find(&couch, asked.clone()).await;
    assert_eq!((ids(&answer), answer.get("warning")), (vec!["001".to_owned(), "003".into()], None));
    asked["use_index"] = json!("e");
    asked["sort"] = json!(["n"]);
    let said = "No index exists for this sort, try indexing by the sort fields.";
    refused(&couch, "/db/_find", asked).await.refused(400, "no_usable_index", said);
}

/// All pages of a query.
async fn paged(couch: &Couch, body: &Value, limit: u64) -> Vec<Value> {
    let mut found = Vec::new();
    let mut body = body.clone();
    body["limit"] = json!(limit);
    loop {
        let page = find(couch, body.clone()).await;
        let docs = page["docs"].as_array().unwrap();
        if docs.is_empty() {
            return found;
        }
        found.extend(docs.iter().cloned());
        body["bookmark"] = page["bookmark"].clone();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_values_are_sorted_by_all_of_them_page_after_page() {
    // These keys are cut, many of them to the same bytes.
    let long = |n: u64| format!("{}{:02}", "x".repeat(1_500), n % 40);
    let docs = (0..60).map(|n| {
        let value = if n % 3 == 0 { json!(n) } else { json!(long(n * 7)) };
        json!({"_id": format!("{n:02}"), "v": value})
    });
    let couch = with_docs(docs.collect()).await;
    index(&couch, "d", "v", json!({"fields": ["v"]})).await;
    for direction in ["asc", "desc"] {
        for fields in [json!([]), json!(["_id", "v"])] {
            let asked = json!({"selector": {"v": {"$gt": 5}}, "sort": [{"v": direction}], "fields": fields});
            let mut whole_query = asked.clone();
            whole_query["limit"] = json!(1_000);
            let whole = find(&couch, whole_query).await;
            let docs = whole["docs"].as_array().unwrap();
            assert_eq!(docs.len(), 58);
            let key = |doc: &Value| (doc["v"].as_u64(), doc["v"].as_str().map(str::to_owned), doc["_id"].clone());
            // Numbers sort before strings.
            let order = |a: &Value, b: &Value| {
                let (a, b) = (key(a), key(b));
                (a.0.is_none(), a.0, a.1, a.2.to_string()) <= (b.0.is_none(), b.0, b.1, b.2.to_string())
            };
            let is_sorted = docs.is_sorted_by(|a, b| if direction == "asc" { order(a, b) } else { order(b, a) });
            assert!(is_sorted, "{direction} {:?}", ids(&whole));
            for limit in [9, 57] {
                assert_eq!(&paged(&couch, &asked, limit).await, docs, "{direction} {limit}");
            }
        }
    }
    // Without an order the documents are found too.
    let found = paged(&couch, &json!({"selector": {"v": {"$gt": 5}}, "fields": ["_id"]}), 7).await;
    assert_eq!(found.len(), 58);
    let value = long(7);
    assert_eq!(find(&couch, json!({"selector": {"v": value}})).await["docs"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bookmark_goes_on_in_the_index_where_it_began() {
    let couch = with_docs(numbers(30)).await;
    index(&couch, "d", "n", json!({"fields": ["n"]})).await;
    let asked = json!({"selector": {"n": {"$gte": 0}}, "limit": 10});
    let first = find(&couch, asked.clone()).await;
    // A better index is created, but the search continues in the old one.
    index(&couch, "a", "n", json!({"fields": ["n"]})).await;
    let mut next = asked.clone();
    next["bookmark"] = first["bookmark"].clone();
    assert_eq!(ids(&find(&couch, next.clone()).await), (10..20).map(|n| format!("{n:03}")).collect::<Vec<_>>());
    // The first page found a usable index, so the next pages need not.
    next["allow_fallback"] = json!(false);
    assert_eq!(ids(&find(&couch, next.clone()).await)[0], "010");
    // Bookmarks of a deleted index are refused.
    ok(&couch, "DELETE", "/db/_index/d/json/n", json!({})).await;
    let word = format!("Invalid bookmark value: {}", first["bookmark"]);
    let answer = refused(&couch, "/db/_find", next).await.json();
    assert_eq!(answer["error"], "invalid_bookmark");
    assert!(word.starts_with(answer["reason"].as_str().unwrap().trim_end_matches('.')), "{answer}");
    // A search by id continues by id.
    let plain = with_docs(numbers(30)).await;
    let first = find(&plain, asked.clone()).await;
    index(&plain, "d", "n", json!({"fields": ["n"]})).await;
    let mut next = asked;
    next["bookmark"] = first["bookmark"].clone();
    let second = find(&plain, next).await;
    assert_eq!(ids(&second), (10..20).map(|n| format!("{n:03}")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_over_an_index_is_explained() {
    let couch = with_docs(vec![]).await;
    index(&couch, "y", "year", json!({"fields": ["year"]})).await;
    index(&couch, "z", "both", json!({"fields": ["year", "title"]})).await;
    let asked = json!({
        "selector": {"year": {"$gt": 2010}}, "fields": ["_id", "_rev", "year", "title"], "sort": [{"year": "asc"}],
        "limit": 2, "skip": 0,
    });
    let explained = ok(&couch, "POST", "/db/_explain", asked.clone()).await;
    let listed = |ddoc: &str, name: &str, fields: Value| json!({"ddoc": ddoc, "name": name, "type": "json", "partitioned": false, "def": {"fields": fields}});
    let special = json!({"ddoc": null, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}});
    assert_eq!(
        explained,
        json!({
            "dbname": "db",
            "index": listed("_design/y", "year", json!([{"year": "asc"}])),
            "partitioned": false,
            "selector": {"year": {"$gt": 2010}},
            "opts": {
                "use_index": [], "bookmark": "nil", "limit": 2, "skip": 0, "sort": {"year": "asc"},
                "fields": ["_id", "_rev", "year", "title"], "partition": "", "r": 1, "conflicts": false,
                "stale": false, "update": true, "stable": false, "execution_stats": false, "allow_fallback": true,
            },
            "limit": 2,
            "skip": 0,
            "fields": ["_id", "_rev", "year", "title"],
            "index_candidates": [
                {
                    "index": listed("_design/z", "both", json!([{"year": "asc"}, {"title": "asc"}])),
                    "analysis": {"usable": false, "reasons": [{"name": "field_mismatch"}], "ranking": 1, "covering": false},
                },
                {
                    "index": special,
                    "analysis": {"usable": false, "reasons": [{"name": "field_mismatch"}], "ranking": 1, "covering": null},
                },
            ],
            "selector_hints": [{"type": "json", "indexable_fields": ["year"], "unindexable_fields": []}],
            "mrargs": {
                "include_docs": true, "view_type": "map", "reduce": false, "partition": null, "start_key": [2010],
                "end_key": ["<MAX>"], "direction": "fwd", "stable": false, "update": true, "conflicts": "undefined",
            },
            "covering": false,
        })
    );
    let mut covered = asked;
    covered["fields"] = json!(["_id", "year"]);
    covered["sort"] = json!([{"year": "desc"}]);
    let explained = ok(&couch, "POST", "/db/_explain", covered).await;
    let arguments = &explained["mrargs"];
    assert_eq!((&explained["covering"], &arguments["include_docs"]), (&json!(true), &json!(false)));
    assert_eq!((&arguments["start_key"], &arguments["end_key"]), (&json!(["<MAX>"]), &json!([2010])));
}

#[tokio::test(flavor = "multi_thread")]
async fn random_queries_find_the_same_with_indexes_and_without() {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed: u64 = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let random = &mut Random::new(seed);
    let values = [
        json!(null),
        json!(true),
        json!(1),
        json!(2),
        json!(2.5),
        json!("a"),
        json!("é"),
        json!("x".repeat(1_400)),
        json!([1]),
        json!({"b": 1}),
    ];
    let docs: Vec<Value> = (0..120)
        .map(|n| {
            let mut doc = json!({"_id": format!("{n:03}")});
            for field in ["a", "b", "c"] {
                if random.below(5) > 0 {
                    doc[field] = random.pick(&values).clone();
                }
            }
            doc
        })
        .collect();
    let couch = with_docs(docs.clone()).await;
    couch.database("plain").await;
    bulk(&couch, "plain", docs).await;
    for (name, def) in [
        ("a", json!({"fields": ["a"]})),
        ("ab", json!({"fields": ["a", "b"]})),
        ("cb", json!({"fields": ["c", "b"]})),
        ("nested", json!({"fields": ["a.b"]})),
    ] {
        index(&couch, "d", name, def).await;
    }
    let (mut by_index, mut found) = (0, 0);
    for _ in 0..60 {
        let mut selector = json!({});
        for _ in 0..1 + random.below(3) {
            let operator = *random.pick(&["$eq", "$gt", "$gte", "$lt", "$lte", "$ne", "$exists", "$in"]);
            let argument = match operator {
                "$exists" => json!(random.below(4) > 0),
                "$in" => json!([random.pick(&values), random.pick(&values)]),
                _ => random.pick(&values).clone(),
            };
            selector[*random.pick(&["a", "b", "c", "a.b"])] = json!({ operator: argument });
        }
        let asked = json!({"selector": selector, "limit": 1_000});
        let explained = ok(&couch, "POST", "/db/_explain", asked.clone()).await;
        by_index += usize::from(explained["index"]["type"] == "json");
        let answer = find(&couch, asked.clone()).await;
        let mut ours = ids(&answer);
        ours.sort();
        let theirs = ids(&ok(&couch, "POST", "/plain/_find", asked.clone()).await);
        assert_eq!(ours, theirs, "SEED={seed}: {asked}");
        let mut pages: Vec<String> =
            paged(&couch, &asked, 9).await.iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()).collect();
        pages.sort();
        assert_eq!(pages, ours, "SEED={seed}: {asked}");
        found += ours.len();
    }
    assert!(by_index > 15 && found > 100, "SEED={seed}: {by_index} by an index, {found} found");
}
