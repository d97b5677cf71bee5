//! `_find` and `_explain` without an index, as CouchDB 3.5 answers them. `indexes.rs` tests them with indexes.

use conformance::random::Random;
use kv_api::{AnyDatabase, Counted};
use serde_json::{Value, json};
use server::http::Options;

use crate::support::{Answer, Couch};

const NO_INDEX: &str = "No matching index found, create an index to optimize query time.";

async fn find(couch: &Couch, body: Value) -> Answer {
    let answer = couch.json("POST", "/db/_find", body.clone()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer
}

fn ids(answer: &Value) -> Vec<String> {
    answer["docs"].as_array().unwrap().iter().map(|doc| doc["_id"].as_str().unwrap().to_owned()).collect()
}

/// A server whose database has these documents.
async fn with_docs(docs: Vec<Value>) -> Couch {
    let couch = Couch::start().await;
    couch.database("db").await;
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await.status, 201);
    couch
}

fn movies() -> Vec<Value> {
    vec![
        json!({"_id": "metropolis", "year": 1927, "director": "Fritz Lang", "cast": [{"name": "Brigitte Helm"}]}),
        json!({"_id": "sunrise", "year": 1927, "director": "F. W. Murnau", "cast": []}),
        json!({"_id": "faust", "year": 1926, "director": "F. W. Murnau"}),
        json!({"_id": "m", "year": 1931, "director": "Fritz Lang", "imdb": {"rating": 8.3}}),
        json!({"_id": "_design/d", "year": 1927}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_written_as_couchdb_writes_it() {
    let couch = with_docs(movies()).await;
    let answer = find(&couch, json!({"selector": {"year": 1927}, "fields": ["_id", "cast.0.name"]})).await;
    let bookmark = answer.json()["bookmark"].as_str().unwrap().to_owned();
    let docs = "{\"_id\":\"metropolis\",\"cast\":{\"0\":{\"name\":\"Brigitte Helm\"}}},\r\n{\"_id\":\"sunrise\"}";
    let expected =
        format!("{{\"docs\":[\r\n{docs}\r\n],\r\n\"bookmark\": \"{bookmark}\",\r\n\"warning\": \"{NO_INDEX}\"}}\r\n");
    assert_eq!(answer.text, expected);

    // Nothing found, and nothing searched.
    let answer = find(&couch, json!({"selector": {"year": 1}})).await;
    assert_eq!(
        answer.text,
        format!("{{\"docs\":[\r\n],\r\n\"bookmark\": \"nil\",\r\n\"warning\": \"{NO_INDEX}\"}}\r\n")
    );
    for selector in
        [json!({"$or": []}), json!({"$and": []}), json!({"$nor": []}), json!({"_id": {"$gt": "b", "$lt": "a"}})]
    {
        let answer = find(&couch, json!({ "selector": selector })).await;
        assert_eq!(answer.text, "{\"docs\":[\r\n]}\r\n");
    }
    assert_eq!(find(&couch, json!({"selector": {}, "limit": 0})).await.json()["bookmark"], "nil");

    // Searched although the id does not exist: only contradictory bounds avoid the search.
    for selector in [json!({"_id": 7}), json!({"_id": {"$lt": {}}}), json!({"_id": {"$exists": false}})] {
        let answer = find(&couch, json!({ "selector": selector })).await;
        let expected = format!("{{\"docs\":[\r\n],\r\n\"bookmark\": \"nil\",\r\n\"warning\": \"{NO_INDEX}\"}}\r\n");
        assert_eq!(answer.text, expected, "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_found_by_what_they_hold() {
    let couch = with_docs(movies()).await;
    for (selector, expected) in [
        (json!({}), &["faust", "m", "metropolis", "sunrise"][..]),
        (json!({"director": "Fritz Lang", "year": {"$gt": 1930}}), &["m"]),
        (json!({"$or": [{"director": "Fritz Lang"}, {"year": {"$lt": 1927}}]}), &["faust", "m", "metropolis"]),
        (json!({"imdb.rating": {"$gte": 8}}), &["m"]),
        (json!({"cast": {"$elemMatch": {"name": {"$regex": "Helm$"}}}}), &["metropolis"]),
        (json!({"cast": {"$exists": false}}), &["faust", "m"]),
        (json!({"_id": {"$gt": "m", "$lt": "sunrise"}}), &["metropolis"]),
        (json!({"_id": {"$in": ["m", "sunrise", "none"]}}), &["m", "sunrise"]),
        (json!({"_id": {"$gt": null}}), &["faust", "m", "metropolis", "sunrise"]),
        // A search does not find design documents.
        (json!({"_id": {"$beginsWith": "_design/"}}), &[]),
    ] {
        assert_eq!(ids(&find(&couch, json!({ "selector": selector })).await.json()), expected, "{selector}");
    }
    let skipped = find(&couch, json!({"selector": {"year": 1927}, "skip": 1})).await.json();
    assert_eq!(ids(&skipped), ["sunrise"]);
    let rev = couch.get("/db/m").await.json()["_rev"].clone();
    let whole = find(&couch, json!({"selector": {"_id": "m"}})).await.json();
    assert_eq!(
        whole["docs"][0],
        json!({"_id": "m", "_rev": rev, "year": 1931, "director": "Fritz Lang", "imdb": {"rating": 8.3}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bookmarks_go_on_where_the_last_answer_ended() {
    let docs = (0..2_500).map(|n| json!({"_id": format!("{n:05}"), "n": n % 7})).collect();
    let couch = with_docs(docs).await;
    for (sort, selector) in [
        (json!([]), json!({"n": 3})),
        (json!(["_id"]), json!({"n": 3, "_id": {"$gt": "00100", "$lte": "02300"}})),
        (json!([{"_id": "desc"}]), json!({"n": 3, "_id": {"$gt": "00100", "$lte": "02300"}})),
    ] {
        let ask = |limit: u64, bookmark: Value| json!({"selector": selector, "sort": sort, "limit": limit, "bookmark": bookmark});
        let whole = find(&couch, ask(10_000, Value::Null)).await.json();
        let whole_ids = ids(&whole);
        assert!(whole_ids.len() > 300 && whole_ids.is_sorted_by(|a, b| (a < b) == (sort != json!([{"_id": "desc"}]))));
        let (mut bookmark, mut paged) = (Value::Null, Vec::new());
        loop {
            let page = find(&couch, ask(100, bookmark.clone())).await.json();
            let found = ids(&page);
            if found.is_empty() {
                // At the end the bookmark stays the same.
                assert_eq!(page["bookmark"], bookmark);
                break;
            }
            paged.extend(found);
            bookmark = page["bookmark"].clone();
        }
        assert_eq!(paged, whole_ids, "{sort}");
    }
    // A page whose rows are all skipped has a bookmark too.
    let asked = json!({"selector": {"_id": {"$lt": "00003"}}, "skip": 5});
    let bookmark = find(&couch, asked).await.json()["bookmark"].clone();
    let rest = find(&couch, json!({"selector": {"_id": {"$lte": "00003"}}, "bookmark": bookmark})).await.json();
    assert_eq!(ids(&rest), ["00003"]);
    for bookmark in [json!("nil"), json!("x"), json!(7)] {
        let asked = json!({"selector": {}, "bookmark": bookmark});
        couch.json("POST", "/db/_find", asked).await.refused(
            400,
            "invalid_bookmark",
            &format!("Invalid bookmark value: {bookmark}"),
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sorting_needs_an_index() {
    let couch = with_docs(movies()).await;
    for (selector, sort, reasons) in [
        (json!({"year": 1927}), json!(["year"]), "field_mismatch"),
        (json!({}), json!(["_id"]), "field_mismatch"),
        (json!({"_id": {"$gt": null}}), json!(["year"]), "sort_order_mismatch"),
        (json!({"_id": {"$gt": null}}), json!(["_id", "year"]), "sort_order_mismatch"),
    ] {
        let asked = json!({"selector": selector, "sort": sort});
        couch.json("POST", "/db/_find", asked.clone()).await.refused(
            400,
            "no_usable_index",
            "No index exists for this sort, try indexing by the sort fields.",
        );
        let explained = couch.json("POST", "/db/_explain", asked).await;
        assert_eq!(explained.status, 200);
        let explained = explained.json();
        assert_eq!(explained["index"], Value::Null);
        let candidate = &explained["index_candidates"][0];
        assert_eq!(candidate["index"]["name"], "_all_docs");
        assert_eq!(
            candidate["analysis"],
            json!({"usable": false, "reasons": [{"name": reasons}], "ranking": 1, "covering": null})
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_and_figures_are_couchdbs() {
    let docs = (0..30).map(|n| json!({"_id": format!("{n:02}"), "n": n})).collect();
    let couch = with_docs(docs).await;
    let many = "The number of documents examined is high in proportion to the number of results returned. \
                Consider adding a more specific index to improve this.";
    let answer = find(&couch, json!({"selector": {"n": {"$gte": 28}}, "execution_stats": true})).await.json();
    assert_eq!(answer["warning"], json!(format!("{NO_INDEX}\n{many}")));
    let stats = &answer["execution_stats"];
    assert_eq!((&stats["total_keys_examined"], &stats["total_docs_examined"]), (&json!(30), &json!(30)));
    assert_eq!((&stats["total_quorum_docs_examined"], &stats["results_returned"]), (&json!(0), &json!(2)));
    assert!(stats["execution_time_ms"].is_number());
    // Only as many documents are examined as needed.
    let answer =
        find(&couch, json!({"selector": {}, "limit": 3, "skip": 2, "execution_stats": true, "r": 2})).await.json();
    let stats = &answer["execution_stats"];
    assert_eq!((&stats["total_docs_examined"], &stats["total_quorum_docs_examined"]), (&json!(0), &json!(5)));
    assert_eq!(answer["warning"], json!(NO_INDEX));

    for (use_index, said) in [
        (json!("d"), "_design/d was not used because it does not contain a valid index for this query."),
        (json!(["_design/d", "n"]), "_design/d, n was not used because it is not a valid index for this query."),
    ] {
        let asked = json!({"selector": {}, "use_index": use_index});
        assert_eq!(find(&couch, asked.clone()).await.json()["warning"], json!(format!("{said}\n{NO_INDEX}")));
        let mut insisting = asked;
        insisting["allow_fallback"] = json!(false);
        let refused = couch.json("POST", "/db/_find", insisting).await;
        let name = if use_index.is_array() { "_design/d, n" } else { "_design/d" };
        let reason = format!("{name} specified by `use_index` could not be found or it is not suitable.");
        refused.refused(400, "invalid_index", &reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_leaves_are_given_back_where_they_are_asked_for() {
    let couch = with_docs(vec![]).await;
    let docs = json!([{"_id": "a", "_rev": "1-b", "n": 1}, {"_id": "a", "_rev": "1-a", "n": 2}]);
    couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    let selector = json!({"n": 1});
    let found = find(&couch, json!({"selector": selector, "conflicts": true})).await.json();
    assert_eq!(found["docs"], json!([{"_id": "a", "_rev": "1-b", "n": 1, "_conflicts": ["1-a"]}]));
    let found = find(&couch, json!({ "selector": selector })).await.json();
    assert_eq!(found["docs"], json!([{"_id": "a", "_rev": "1-b", "n": 1}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_are_stubs_in_what_is_found_and_can_be_looked_for() {
    let couch = with_docs(vec![json!({"_id": "none"})]).await;
    let attached = json!({"_attachments": {"a.txt": {"content_type": "text/plain", "data": "aGk="}}});
    couch.put("/db/some", attached).await;
    let found = find(&couch, json!({"selector": {"_attachments": {"$exists": true}}})).await.json();
    assert_eq!(ids(&found), ["some"]);
    let stub = &found["docs"][0]["_attachments"]["a.txt"];
    assert_eq!((&stub["stub"], &stub["length"], &stub["data"]), (&json!(true), &json!(2), &Value::Null), "{found}");
    let found = find(&couch, json!({"selector": {"_attachments.a\\.txt.length": 2}, "fields": ["_id"]})).await.json();
    assert_eq!(found["docs"], json!([{"_id": "some"}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_explained() {
    let couch = with_docs(movies()).await;
    let asked = json!({
        "selector": {"_id": {"$gt": "a"}, "year": {"$in": [1927]}}, "sort": [{"_id": "desc"}], "fields": ["year"], "limit": 2,
    });
    let answer = couch.json("POST", "/db/_explain", asked).await;
    assert_eq!(
        answer.json(),
        json!({
            "dbname": "db",
            "index": {"ddoc": null, "name": "_all_docs", "type": "special", "def": {"fields": [{"_id": "asc"}]}},
            "partitioned": false,
            "selector": {"$and": [{"_id": {"$gt": "a"}}, {"year": {"$in": [1927]}}]},
            "opts": {
                "use_index": [], "bookmark": "nil", "limit": 2, "skip": 0, "sort": {"_id": "desc"}, "fields": ["year"],
                "partition": "", "r": 1, "conflicts": false, "stale": false, "update": true, "stable": false,
                "execution_stats": false, "allow_fallback": true,
            },
            "limit": 2,
            "skip": 0,
            "fields": ["year"],
            "index_candidates": [],
            "selector_hints": [{"type": "json", "indexable_fields": ["_id"], "unindexable_fields": ["year"]}],
            "mrargs": {
                "include_docs": true, "view_type": "map", "reduce": false, "partition": null, "start_key": "<MAX>",
                "end_key": "a", "direction": "rev", "stable": false, "update": true, "conflicts": "undefined",
            },
            "covering": false,
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_of_ids_are_shown_as_they_were_asked_for() {
    let couch = with_docs(vec![]).await;
    for (id, start, end) in [
        (json!({"$ne": "a"}), json!(null), json!("<MAX>")),
        (json!({"$lt": "b"}), json!(""), json!("b")),
        (json!({"$exists": true}), json!(""), json!("<MAX>")),
        (json!({"$gt": false}), json!(false), json!("<MAX>")),
        (json!(7), json!(7), json!(7)),
        (json!({"$lte": {}}), json!(""), json!({})),
        (json!({"$beginsWith": "a"}), json!("a"), json!("a\u{ffff}")),
        (json!({"$gt": "b", "$lt": "a"}), json!(null), json!(null)),
    ] {
        let explained = couch.json("POST", "/db/_explain", json!({"selector": {"_id": id}})).await.json();
        let bounds = (&explained["mrargs"]["start_key"], &explained["mrargs"]["end_key"]);
        assert_eq!(bounds, (&start, &end), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_named() {
    let couch = with_docs(vec![]).await;
    for path in ["/db/_find", "/db/_explain"] {
        couch.json("POST", path, json!({})).await.refused(
            400,
            "missing_required_key",
            "Missing required key: selector",
        );
        couch.json("POST", path, json!({"selector": {"": 7}})).await.refused(
            400,
            "invalid_selector",
            "One or more conditions is missing a field name.",
        );
        couch.json("POST", path, json!({"selector": {}, "x": 1})).await.refused(
            400,
            "invalid_key",
            "Invalid key x for this request.",
        );
        let partition = "`partition` parameter is not supported on this db";
        couch.json("POST", path, json!({"selector": {}, "partition": "p"})).await.refused(
            400,
            "query_parse_error",
            partition,
        );
        assert_eq!(couch.raw("POST", path, "[]").await.status, 400);
        assert_eq!(couch.raw("POST", path, "{").await.status, 400);
        assert_eq!(couch.send(couch.request("POST", path).body("{}")).await.status, 415);
        couch.get(path).await.refused(405, "method_not_allowed", "Only POST allowed");
        couch.json("POST", &path.replace("db", "none"), json!({"selector": {}})).await.refused(
            404,
            "not_found",
            "Database does not exist.",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_ends_when_its_client_is_gone() {
    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let counted = Counted::new(engine);
    let couch = Couch::over(AnyDatabase::new(counted.clone()), Options::default()).await;
    couch.database("db").await;
    let docs: Vec<Value> = (0..6_000).map(|n| json!({"_id": format!("{n:05}"), "n": n})).collect();
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await.status, 201);
    // This finds nothing, slowly.
    let conditions: Vec<Value> = (0..60).map(|n| json!({"n": {"$lt": -n}})).collect();
    let asked = json!({"selector": {"$or": conditions, "n": {"$gt": 0}}});

    counted.take();
    let began = std::time::Instant::now();
    assert_eq!(find(&couch, asked.clone()).await.json()["docs"], json!([]));
    let (took, whole) = (began.elapsed(), counted.take().len());
    let request = couch.request("POST", "/db/_find").header("content-type", "application/json");
    let response = request.body(asked.to_string()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    drop(response);
    tokio::time::sleep(took * 2).await;
    let abandoned = counted.take().len();
    assert!(abandoned + 1 < whole, "{abandoned} transactions of {whole}");
}

/// Queries of random members are answered or refused by name, never with an internal error.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_is_answered_or_refused() {
    let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed: u64 = std::env::var("SEED").ok().map_or(since_1970.as_nanos() as u64, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let couch = with_docs(movies()).await;
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut body = json!({"selector": any_selector(&mut random, 3)});
        for _ in 0..random.below(4) {
            let members = [
                "selector",
                "use_index",
                "bookmark",
                "limit",
                "skip",
                "sort",
                "fields",
                "r",
                "conflicts",
                "stale",
                "update",
                "stable",
                "execution_stats",
                "allow_fallback",
                "partition",
            ];
            body[*random.pick(&members)] = any_value(&mut random, 2);
        }
        for path in ["/db/_find", "/db/_explain"] {
            let answer = couch.json("POST", path, body.clone()).await;
            match answer.status.as_u16() {
                200 => {
                    answered += 1;
                    assert!(answer.json().is_object(), "SEED={seed}: {body}");
                }
                400 => {
                    refused += 1;
                    let error = answer.json();
                    assert!(error["error"].is_string() && error["reason"].is_string(), "SEED={seed}: {body}: {error}");
                }
                other => panic!("SEED={seed}: {other} for {body}: {}", answer.text),
            }
        }
    }
    assert!(answered > 50 && refused > 50, "SEED={seed}: {answered} answered, {refused} refused");
}

fn any_value(random: &mut Random, depth: u64) -> Value {
    let scalars = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(2),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(""),
        json!("_id"),
        json!("year"),
        json!("a..b"),
        json!("x/y/z"),
        json!("nil"),
        json!("(("),
        json!("é"),
        json!("desc"),
    ];
    match random.below(if depth == 0 { 4 } else { 7 }) {
        0..4 => random.pick(&scalars).clone(),
        4 => (0..random.below(3)).map(|_| any_value(random, depth - 1)).collect(),
        5 => json!({*random.pick(&["_id", "year", "", "$x"]): any_value(random, depth - 1)}),
        _ => json!({"year": "asc"}),
    }
}

fn any_selector(random: &mut Random, depth: u64) -> Value {
    let operators = [
        "$and",
        "$or",
        "$not",
        "$nor",
        "$all",
        "$elemMatch",
        "$allMatch",
        "$keyMapMatch",
        "$lt",
        "$lte",
        "$eq",
        "$ne",
        "$gte",
        "$gt",
        "$exists",
        "$type",
        "$in",
        "$nin",
        "$size",
        "$mod",
        "$regex",
        "$beginsWith",
        "$text",
        "$where",
    ];
    let fields = ["_id", "year", "cast", "imdb.rating", "cast.0", "director", "", "a..b"];
    let mut selector = json!({});
    for _ in 0..random.below(3) {
        // More fields than operators, and more valid ones than invalid ones.
        let name = match random.below(8) {
            0 | 1 => *random.pick(&operators),
            2 => *random.pick(&fields),
            _ => *random.pick(&fields[..6]),
        };
        selector[name] = match random.below(6) {
            0 => any_value(random, 2),
            1 => json!([any_selector(random, depth.saturating_sub(1))]),
            2 => json!({*random.pick(&operators): any_value(random, 1)}),
            _ if depth > 0 => any_selector(random, depth - 1),
            _ => json!(1927),
        };
    }
    selector
}
