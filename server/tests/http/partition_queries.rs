//! Searches and views of partitions, as CouchDB's `partition_mango_test.exs` and `partition_view*_test.exs` try them.

use serde_json::{Value, json};

use crate::partitions::{ids, in_partition, with_partitions};
use crate::support::{Answer, Couch};

async fn index(couch: &Couch, fields: Value, partitioned: Option<bool>) {
    let mut body = json!({"index": {"fields": fields}});
    if let Some(partitioned) = partitioned {
        body["partitioned"] = json!(partitioned);
    }
    let made = couch.json("POST", "/db/_index", body).await;
    assert_eq!((made.status.as_u16(), &made.json()["result"]), (200, &json!("created")), "{}", made.text);
}

async fn find(couch: &Couch, partition: &str, query: Value) -> Answer {
    let path = if partition.is_empty() { "/db/_find".to_owned() } else { format!("/db/_partition/{partition}/_find") };
    couch.json("POST", &path, query).await
}

async fn explain(couch: &Couch, partition: &str, query: Value) -> Value {
    let path =
        if partition.is_empty() { "/db/_explain".to_owned() } else { format!("/db/_partition/{partition}/_explain") };
    let answer = couch.json("POST", &path, query).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// The same searches by id and by an index, which both read only the partition.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_in_a_partition_reads_that_partition() {
    let couch = with_partitions().await;
    for id in ["fo:1", "foo!:1", "fooo:1"] {
        couch.put(&format!("/db/{id}"), json!({"value": 10, "some": "field"})).await;
    }
    for indexed in [false, true] {
        if indexed {
            index(&couch, json!(["value"]), None).await;
            index(&couch, json!(["some"]), Some(true)).await;
        }
        let examined = |answer: &Answer| answer.json()["execution_stats"]["total_docs_examined"].as_u64().unwrap();
        for (partition, expected) in [("foo", [6, 8, 10, 12, 14]), ("bar", [7, 9, 11, 13, 15])] {
            let query = json!({"selector": {"value": {"$gte": 6, "$lt": 16}}, "execution_stats": true});
            let found = find(&couch, partition, query).await;
            let mut sorted = ids(&found);
            sorted.sort_by_key(|id| id[4..].parse::<u32>().unwrap());
            assert_eq!(sorted, in_partition(partition, expected));
            assert_eq!(examined(&found), if indexed { 5 } else { 50 });
        }
        let query = json!({"selector": {"some": "field"}, "limit": 20, "skip": 40});
        let found = ids(&find(&couch, "foo", query).await);
        assert!(found.len() == 10 && found.iter().all(|id| id.starts_with("foo:")), "{found:?}");
        let by_id = |selector: Value| find(&couch, "foo", json!({"selector": {"_id": selector}, "limit": 3}));
        assert_eq!(ids(&by_id(json!({"$gt": "foo:"})).await), in_partition("foo", [10, 100, 12]));
        assert_eq!(ids(&by_id(json!({"$gt": "bar:"})).await), in_partition("foo", [10, 100, 12]));
        assert_eq!(ids(&by_id(json!({"$in": ["bar:1", "foo:2", "x"]})).await), ["foo:2"]);
        assert!(ids(&by_id(json!("bar:1")).await).is_empty());
        assert!(ids(&by_id(json!({"$gt": "fop"})).await).is_empty());
        let highest = json!({"selector": {"_id": {"$gt": null}}, "sort": [{"_id": "desc"}], "limit": 2});
        assert_eq!(ids(&find(&couch, "foo", highest).await), in_partition("foo", [98, 96]));
        assert!(ids(&find(&couch, "none", json!({"selector": {"value": {"$gt": 0}}})).await).is_empty());

        // Page by page.
        let (mut pages, mut bookmark) = (Vec::new(), json!(""));
        loop {
            let query = json!({"selector": {"value": {"$gt": 90}}, "limit": 2, "bookmark": bookmark});
            let page = find(&couch, "foo", query).await;
            if ids(&page).is_empty() {
                break;
            }
            pages.extend(ids(&page));
            bookmark = page.json()["bookmark"].clone();
        }
        pages.sort_by_key(|id| id[4..].parse::<u32>().unwrap());
        assert_eq!(pages, in_partition("foo", (92..=100).step_by(2)));
    }
    let sorted = json!({"selector": {"value": {"$gt": 0}}, "sort": [{"value": "desc"}], "limit": 3});
    assert_eq!(ids(&find(&couch, "foo", sorted).await), in_partition("foo", [100, 98, 96]));

    // The rows follow their documents.
    let rev = couch.get("/db/foo:2").await.json()["_rev"].as_str().unwrap().to_owned();
    couch.put("/db/foo:2", json!({"_rev": rev, "value": 1000})).await;
    let query = json!({"selector": {"value": {"$gt": 99}}, "sort": ["value"]});
    assert_eq!(ids(&find(&couch, "foo", query).await), in_partition("foo", [100, 2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_takes_the_indexes_of_its_scope() {
    let couch = with_partitions().await;
    let query = json!({"selector": {"some": "field"}, "limit": 100});
    let sorted = json!({"selector": {"some": "field"}, "sort": ["some"]});
    let unsorted = |scope: &str| format!("No {scope} index exists for this sort, try indexing by the sort fields.");
    find(&couch, "foo", sorted.clone()).await.refused(400, "no_usable_index", &unsorted("partitioned"));
    find(&couch, "", sorted.clone()).await.refused(400, "no_usable_index", &unsorted("global"));
    for (partitioned, scope, other) in [(None, "foo", ""), (Some(false), "", "foo")] {
        index(&couch, json!(["some"]), partitioned).await;
        let listed = couch.get("/db/_index").await.json();
        let last = listed["indexes"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(last["partitioned"], json!(partitioned.is_none()));
        let chosen = explain(&couch, scope, query.clone()).await;
        assert_eq!(chosen["index"]["def"], json!({"fields": [{"some": "asc"}]}));
        assert_eq!(
            (&chosen["index"]["partitioned"], &chosen["partitioned"]),
            (&json!(partitioned.is_none()), &json!(true))
        );
        let passed = explain(&couch, other, query.clone()).await;
        assert_eq!(passed["index"]["name"], json!("_all_docs"));
        assert_eq!(passed["index_candidates"][0]["analysis"]["reasons"][0]["name"], json!("scope_mismatch"));
        assert_eq!(ids(&find(&couch, "foo", query.clone()).await).len(), 50);
        assert_eq!(ids(&find(&couch, "", query.clone()).await).len(), 100);
        assert_eq!(find(&couch, scope, sorted.clone()).await.status, 200);
        let design = last["ddoc"].as_str().unwrap();
        assert_eq!(couch.call("DELETE", &format!("/db/{design}?rev={}", rev(&couch, design).await)).await.status, 200);
    }
    let explained = explain(&couch, "foo", query.clone()).await;
    assert_eq!((&explained["mrargs"]["partition"], &explained["opts"]["partition"]), (&json!("foo"), &json!("foo")));
    assert_eq!(explain(&couch, "", query).await["mrargs"]["partition"], json!(null));

    let mismatch = json!({"selector": {}, "partition": "bar"});
    let reason = "`partition` in the URL and in the body have different values";
    find(&couch, "foo", mismatch).await.refused(400, "bad_partition", reason);
    let in_body = json!({"selector": {}, "partition": "bar", "limit": 1});
    assert_eq!(ids(&find(&couch, "", in_body).await), ["bar:1"]);
    couch.database("plain").await;
    for what in ["_find", "_explain"] {
        let path = format!("/plain/_partition/foo/{what}");
        couch.json("POST", &path, json!({"selector": {}})).await.refused(
            400,
            "bad_request",
            "database is not partitioned",
        );
    }
    // The option of the design document may change.
    let design = |partitioned: bool| {
        json!({"language": "query", "options": {"partitioned": partitioned},
        "views": {"n": {"map": {"fields": {"group": "asc"}}, "options": {"def": {"fields": ["group"]}}}}})
    };
    let rev = couch.put("/db/_design/changing", design(true)).await;
    let by_group = json!({"selector": {"group": "one"}, "sort": ["group"], "limit": 100});
    assert_eq!(ids(&find(&couch, "foo", by_group.clone()).await).len(), 16);
    let mut other = design(false);
    other["_rev"] = json!(rev);
    couch.put("/db/_design/changing", other).await;
    find(&couch, "foo", by_group.clone()).await.refused(400, "no_usable_index", &unsorted("partitioned"));
    assert_eq!(ids(&find(&couch, "", by_group).await).len(), 33);
    let sound = couch.get("/db/_couch_layer/check").await;
    assert_eq!(sound.json()["problems"], json!([]), "{}", sound.text);
}

async fn rev(couch: &Couch, id: &str) -> String {
    couch.get(&format!("/db/{id}")).await.json()["_rev"].as_str().unwrap().to_owned()
}

/// Names that are longer than keys of indexes and views: rows of several partitions have one cut key.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_with_long_names_stay_apart() {
    let couch = Couch::start().await;
    assert_eq!(couch.call("PUT", "/db?partitioned=true").await.status, 201);
    let names = ["a", "b"].map(|end| format!("{}{end}", "p".repeat(2_010)));
    let doc = |partition: &String, number: u32| json!({"_id": format!("{partition}:{number}"), "n": 10 - number});
    let docs: Vec<Value> = names.iter().flat_map(|name| (1..=4).map(|number| doc(name, number))).collect();
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await.status, 201);
    index(&couch, json!(["n"]), None).await;
    let query = json!({"selector": {"n": {"$gt": 7}}, "sort": ["n"]});
    for name in &names {
        assert_eq!(ids(&find(&couch, name, query.clone()).await), in_partition(name, [2, 1]));
        assert_eq!(ids(&couch.get(&format!("/db/_partition/{name}/_all_docs")).await), in_partition(name, 1..=4));
        assert_eq!(couch.get(&format!("/db/_partition/{name}")).await.json()["doc_count"], json!(4));
    }
    if cfg!(feature = "javascript") {
        let view = json!({"map": "doc => emit(doc.n, 1)", "reduce": "_sum"});
        couch.put("/db/_design/d", json!({"views": {"v": view}})).await;
        for name in &names {
            let path = format!("/db/_partition/{name}/_design/d/_view/v");
            let rows = couch.get(&format!("{path}?reduce=false")).await;
            assert_eq!(ids(&rows), in_partition(name, [4, 3, 2, 1]));
            assert_eq!((&rows.json()["total_rows"], &rows.json()["offset"]), (&json!(4), &json!(0)));
            let some = couch.get(&format!("{path}?reduce=false&startkey=7&endkey=8")).await;
            assert_eq!((ids(&some), &some.json()["offset"]), (in_partition(name, [3, 2]), &json!(1)));
            assert_eq!(couch.get(&path).await.json()["rows"], json!([{"key": null, "value": 4}]));
            let groups = couch.get(&format!("{path}?group=true&startkey=8")).await.json()["rows"].clone();
            assert_eq!(groups, json!([{"key": 8, "value": 1}, {"key": 9, "value": 1}]));
        }
    }
}

#[cfg(feature = "javascript")]
mod views {
    use super::*;

    const BY_VALUE: &str = "function (doc) { if (doc.some) { emit(doc.value, doc.some); } }";
    const BY_GROUP: &str = "function (doc) { if (doc.group) { emit([doc.some, doc.group], 1); } }";

    async fn with_views() -> Couch {
        let couch = with_partitions().await;
        for (name, map, reduce, options) in [
            ("map", BY_VALUE, None, json!({})),
            ("yes", BY_VALUE, None, json!({"partitioned": true})),
            ("no", BY_VALUE, None, json!({"partitioned": false})),
            ("group", BY_GROUP, Some("_count"), json!({})),
            ("designs", BY_VALUE, None, json!({"include_design": true})),
        ] {
            let mut view = json!({ "map": map });
            if let Some(reduce) = reduce {
                view["reduce"] = json!(reduce);
            }
            let design = json!({"views": {"some": view}, "options": options, "some": "field", "value": 2});
            couch.put(&format!("/db/_design/{name}"), design).await;
        }
        couch
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_view_is_asked_in_a_partition() {
        let couch = with_views().await;
        for design in ["map", "yes", "designs"] {
            let rows = couch.get(&format!("/db/_partition/foo/_design/{design}/_view/some")).await;
            assert_eq!(ids(&rows), in_partition("foo", (2..=100).step_by(2)));
            assert_eq!((&rows.json()["total_rows"], &rows.json()["offset"]), (&json!(50), &json!(0)));
            let rows = couch.get(&format!("/db/_partition/bar/_design/{design}/_view/some")).await;
            assert_eq!(ids(&rows), in_partition("bar", (1..=99).step_by(2)));
            let needed = "`partition` parameter is mandatory for queries to this view.";
            couch.get(&format!("/db/_design/{design}/_view/some")).await.refused(400, "query_parse_error", needed);
            assert_eq!(couch.get(&format!("/db/_design/{design}/_info")).await.status, 200);
        }
        assert_eq!(ids(&couch.get("/db/_design/no/_view/some").await).len(), 100);
        let global = "`partition` parameter is not supported in this design doc";
        couch.get("/db/_partition/foo/_design/no/_view/some").await.refused(400, "query_parse_error", global);

        let path = "/db/_partition/foo/_design/map/_view/some";
        let asked = |query: &str| {
            let (couch, path) = (&couch, format!("{path}?{query}"));
            async move { couch.get(&path).await }
        };
        assert!(ids(&asked(r#"start_key="foo:12""#).await).is_empty());
        let range = asked("start_key=12&end_key=20").await;
        assert_eq!((ids(&range), &range.json()["offset"]), (in_partition("foo", (12..=20).step_by(2)), &json!(5)));
        assert_eq!(ids(&asked("start_key=12&end_key=20&inclusive_end=false").await).len(), 4);
        assert_eq!(ids(&asked("limit=2&skip=5").await), in_partition("foo", [12, 14]));
        let down = asked("descending=true&limit=2&skip=1").await;
        assert_eq!((ids(&down), &down.json()["offset"]), (in_partition("foo", [98, 96]), &json!(1)));
        assert_eq!(ids(&asked("descending=true&start_key=7").await), in_partition("foo", [6, 4, 2]));
        assert_eq!(ids(&asked("key=22").await), ["foo:22"]);
        assert!(ids(&asked("key=23").await).is_empty());
        let keys = couch.json("POST", path, json!({"keys": [6, 2, 3]})).await;
        assert_eq!(ids(&keys), in_partition("foo", [6, 2]));
        let several =
            couch.json("POST", &format!("{path}/queries"), json!({"queries": [{"key": 2}, {"key": 3}]})).await;
        let several = several.json();
        let rows = |one: &Value| one["rows"].as_array().unwrap().len();
        assert_eq!(several["results"].as_array().unwrap().iter().map(rows).sum::<usize>(), 1);
        asked("partition=bar").await.refused(400, "bad_request", "Conflicting value for `partition` in query string");
        let included = asked("key=2&include_docs=true").await.json()["rows"][0]["doc"]["value"].clone();
        assert_eq!(included, json!(2));
        couch.get("/db/_partition/foo/_design/none/_view/some").await.refused(404, "not_found", "missing");
        couch.get("/db/_partition/foo/_design/map/_view/none").await.refused(404, "not_found", "missing_named_view");
        let pages = "page_size=20";
        let (mut paged, mut next) = (Vec::new(), Some(pages.to_owned()));
        while let Some(query) = next {
            let page = asked(&query).await;
            paged.extend(ids(&page));
            next = page.json()["next"].as_str().map(|word| format!("bookmark={word}"));
        }
        assert_eq!(paged, in_partition("foo", (2..=100).step_by(2)));

        let rev = super::rev(&couch, "foo:2").await;
        couch.put("/db/foo:2", json!({"_rev": rev, "value": 4, "some": "field"})).await;
        assert_eq!((ids(&asked("key=4").await).len(), ids(&asked("key=2").await).len()), (2, 0));
        let rev = super::rev(&couch, "foo:2").await;
        assert_eq!(couch.json("POST", "/db/_purge", json!({"foo:2": [rev]})).await.status, 201);
        assert_eq!(ids(&asked("key=4").await), ["foo:4"]);
        assert_eq!(couch.call("POST", "/db/_view_cleanup").await.status, 202);
        let sound = couch.get("/db/_couch_layer/check").await;
        assert_eq!(sound.json()["problems"], json!([]), "{}", sound.text);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_view_is_reduced_in_a_partition() {
        let couch = with_views().await;
        let rows = |query: &'static str| {
            let couch = &couch;
            async move {
                let answer = couch.get(&format!("/db/_partition/foo/_design/group/_view/some?{query}")).await;
                assert_eq!(answer.status, 200, "{}", answer.text);
                answer.json()["rows"].clone()
            }
        };
        let groups = json!([{"key": ["field", "one"], "value": 16}, {"key": ["field", "two"], "value": 34}]);
        assert_eq!(rows("").await, json!([{"key": null, "value": 50}]));
        assert_eq!(rows("group_level=1").await, json!([{"key": ["field"], "value": 50}]));
        assert_eq!(rows("group_level=2").await, groups);
        assert_eq!(rows("group=true").await, groups);
        assert_eq!(rows("group=true&descending=true&limit=1").await, json!([groups[1]]));
        assert_eq!(rows(r#"group=true&startkey=["field","p"]"#).await, json!([groups[1]]));
        assert_eq!(rows(r#"group=true&key=["field","one"]"#).await, json!([groups[0]]));
        let between =
            r#"reduce=false&startkey=["field","one"]&endkey=["field","one"]&startkey_docid=foo:12&endkey_docid=foo:30"#;
        let between: Vec<_> = rows(between).await.as_array().unwrap().iter().map(|row| row["id"].clone()).collect();
        assert_eq!(between, ["foo:12", "foo:18", "foo:24", "foo:30"]);
        let refused = couch.get("/db/_partition/foo/_design/group/_view/some?include_docs=true").await;
        refused.refused(400, "query_parse_error", "`include_docs` is invalid for reduce");
    }

    /// More rows than a node of the lowest level covers: sums come from the tree, and end with the partition.
    #[tokio::test(flavor = "multi_thread")]
    async fn sums_end_where_the_partition_does() {
        let couch = Couch::start().await;
        assert_eq!(couch.call("PUT", "/db?partitioned=true").await.status, 201);
        for partition in ["a", "b", "b!", "c"] {
            let docs: Vec<Value> = (0..700).map(|n| json!({"_id": format!("{partition}:{n}"), "n": n})).collect();
            assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await.status, 201);
        }
        let view = json!({"map": "doc => emit([doc.n % 2, doc.n], doc.n)", "reduce": "_stats"});
        couch.put("/db/_design/d", json!({"views": {"v": view}})).await;
        for partition in ["a", "b", "b!", "c"] {
            let path = format!("/db/_partition/{partition}/_design/d/_view/v");
            let stats = couch.get(&path).await.json()["rows"][0]["value"].clone();
            assert_eq!((&stats["sum"], &stats["count"]), (&json!(244_650), &json!(700)), "{partition}");
            let groups = couch.get(&format!("{path}?group_level=1")).await.json()["rows"].clone();
            assert_eq!((&groups[0]["value"]["sum"], &groups[1]["value"]["sum"]), (&json!(122_150), &json!(122_500)));
            assert_eq!(groups.as_array().unwrap().len(), 2);
            let part = couch.get(&format!("{path}?startkey=[0,100]&endkey=[1,99]")).await.json();
            assert_eq!(
                (&part["rows"][0]["value"]["count"], &part["rows"][0]["value"]["min"]),
                (&json!(350), &json!(1))
            );
            let rows = couch.get(&format!("{path}?reduce=false&descending=true&limit=1")).await.json();
            assert_eq!(
                (&rows["total_rows"], &rows["offset"], &rows["rows"][0]["key"]),
                (&json!(700), &json!(0), &json!([1, 699]))
            );
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_design_document_says_of_partitions_is_checked() {
        let couch = Couch::start().await;
        couch.database("plain").await;
        assert_eq!(couch.call("PUT", "/db?partitioned=true").await.status, 201);
        let design = json!({"views": {}, "options": {"partitioned": true}});
        let reason = "partitioned option cannot be true in a non-partitioned database.";
        couch.json("PUT", "/plain/_design/d", design.clone()).await.refused(400, "invalid_design_doc", reason);
        couch.put("/db/_design/d", design).await;
        let index = json!({"index": {"fields": ["a"]}, "partitioned": true});
        couch.json("POST", "/plain/_index", index).await.refused(400, "bad_request", reason);
    }
}
