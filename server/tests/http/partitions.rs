//! Partitioned databases, as CouchDB's `partition_*_test.exs` try them.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

const FORM: &str = "Doc id must be of form partition:id";

/// A server with the partitioned database `db`, which has a hundred documents in the partitions `foo` (even numbers)
/// and `bar` (odd ones).
pub(crate) async fn with_partitions() -> Couch {
    let couch = Couch::start().await;
    assert_eq!(couch.call("PUT", "/db?partitioned=true").await.status, 201);
    let docs: Vec<Value> = (1..=100).map(document).collect();
    let written = couch.json("POST", "/db/_bulk_docs", json!({ "docs": docs })).await;
    assert_eq!(written.status, 201, "{}", written.text);
    couch
}

fn document(number: u32) -> Value {
    let partition = if number.is_multiple_of(2) { "foo" } else { "bar" };
    let group = if number.is_multiple_of(3) { "one" } else { "two" };
    json!({"_id": format!("{partition}:{number}"), "value": number, "some": "field", "group": group})
}

/// The ids of a listing's rows, of those of a view, or of the documents that a search found.
pub(crate) fn ids(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    let json = answer.json();
    let id = |row: &Value| row.get("id").or(row.get("_id")).and_then(Value::as_str).unwrap().to_owned();
    json.get("rows").or(json.get("docs")).and_then(Value::as_array).unwrap().iter().map(id).collect()
}

pub(crate) fn in_partition(name: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{name}:{number}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_documents_name_their_partitions() {
    let couch = Couch::start().await;
    couch.call("PUT", "/other?partitioned=tru").await.refused(400, "bad_request", "Invalid `partitioned` parameter");
    let system = "Cannot partition a system database";
    for name in ["_global_changes", "x%2F_users"] {
        couch.call("PUT", &format!("/{name}?partitioned=true")).await.refused(400, "bad_request", system);
    }
    assert_eq!(couch.call("PUT", "/db?partitioned=true").await.status, 201);
    assert_eq!(couch.get("/db").await.json()["props"], json!({"partitioned": true}));
    let empty = "Document id must not be empty";
    let reserved = "Only reserved document ids may start with underscore.";
    for (id, error, reason) in [
        ("x", "illegal_docid", FORM),
        ("_bad:x", "illegal_docid", reserved),
        ("bad:", "illegal_docid", empty),
        ("bad:_x", "illegal_docid", reserved),
        (":x", "illegal_partition", "Partition must not be empty"),
    ] {
        couch.json("PUT", &format!("/db/{id}"), json!({})).await.refused(400, error, reason);
        couch.json("POST", "/db", json!({ "_id": id })).await.refused(400, error, reason);
        for new_edits in [true, false] {
            let docs = json!([{"_id": "good:x", "_rev": "1-a"}, {"_id": id, "_rev": "1-a"}]);
            let bulk = json!({"docs": docs, "new_edits": new_edits});
            couch.json("POST", "/db/_bulk_docs", bulk).await.refused(400, error, reason);
        }
    }
    // A made-up id has no partition.
    couch.json("POST", "/db", json!({})).await.refused(400, "illegal_docid", FORM);
    couch.json("PUT", "/db/x/file", json!(1)).await.refused(400, "illegal_docid", FORM);
    assert_eq!(couch.get("/db").await.json()["doc_count"], json!(0));

    for path in ["/db/x", "/db/x/file", "/db/x?open_revs=all", "/db/x?rev=1-a"] {
        couch.get(path).await.refused(400, "illegal_docid", FORM);
    }
    couch.json("POST", "/db/_purge", json!({"x": ["1-a"]})).await.refused(400, "illegal_docid", FORM);
    let found = couch.json("POST", "/db/_bulk_get", json!({"docs": [{"id": "x"}]})).await.json();
    let error = json!({"id": "x", "rev": null, "error": "illegal_docid", "reason": FORM});
    assert_eq!(found["results"][0]["docs"][0]["error"], error);
    couch.get("/db/a:b").await.refused(404, "not_found", "missing");

    let rev = couch.put("/db/a:b:c", json!({"n": 1})).await;
    couch.put("/db/_design/d", json!({})).await;
    couch.put("/db/_local/l", json!({})).await;
    assert_eq!(couch.get("/db/a:b:c").await.json()["n"], json!(1));
    assert_eq!(couch.json("PUT", &format!("/db/a:b:c/file?rev={rev}"), json!(1)).await.status, 201);
    assert_eq!(couch.get("/db/a:b:c/file").await.text, "1");
}

/// Handles of databases are kept between requests: knowledge about a database must not be used for the next database of
/// its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_same_name_is_partitioned_or_not_by_itself() {
    let couch = Couch::start().await;
    for partitioned in [true, false, true, false] {
        assert_eq!(couch.call("PUT", &format!("/db?partitioned={partitioned}")).await.status, 201);
        let id = if partitioned { "a:b" } else { "a" };
        let expected = if partitioned { 400 } else { 201 };
        let found = couch.json("POST", "/db/_bulk_get", json!({"docs": [{"id": "a"}]})).await;
        assert_eq!(found.text.contains("illegal_docid"), partitioned, "{}", found.text);
        let status = if partitioned { 200 } else { 400 };
        assert_eq!(couch.get("/db/_partition/a").await.status, status);
        assert_eq!(couch.get("/db/_all_docs?partition=a").await.status, status);
        assert_eq!(couch.get("/db/a").await.status, if partitioned { 400 } else { 404 });
        assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, expected);
        couch.json("PUT", &format!("/db/{id}"), json!({})).await;
        assert_eq!(couch.call("DELETE", "/db").await.status, 200);
        assert_eq!(couch.call("PUT", &format!("/db?partitioned={}", !partitioned)).await.status, 201);
        assert_eq!(couch.json("PUT", "/db/a", json!({})).await.status, if partitioned { 201 } else { 400 });
        assert_eq!(couch.call("DELETE", "/db").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_counted() {
    let couch = with_partitions().await;
    let info = |partition: &'static str| {
        let couch = &couch;
        async move { couch.get(&format!("/db/_partition/{partition}")).await.json() }
    };
    let empty = json!({"db_name": "db", "partition": "fo", "doc_count": 0, "doc_del_count": 0,
        "sizes": {"active": 0, "external": 0}});
    assert_eq!(info("fo").await, empty);
    let before = info("foo").await;
    assert_eq!((&before["doc_count"], &before["doc_del_count"]), (&json!(50), &json!(0)));
    let size = |info: &Value, name: &str| info["sizes"][name].as_u64().unwrap();
    assert!(size(&before, "external") > 0 && size(&before, "active") > size(&before, "external"));
    let both = size(&before, "external") + size(&info("bar").await, "external");
    assert_eq!(couch.get("/db").await.json()["sizes"]["external"], json!(both));

    let rev = couch.get("/db/foo:2").await.json()["_rev"].as_str().unwrap().to_owned();
    assert_eq!(couch.call("DELETE", &format!("/db/foo:2?rev={rev}")).await.status, 200);
    // A losing leaf is not a document.
    let loser = json!({"new_edits": false, "docs": [{"_id": "foo:4", "_rev": "1-0"}]});
    assert_eq!(couch.json("POST", "/db/_bulk_docs", loser).await.status, 201);
    let after = info("foo").await;
    assert_eq!((&after["doc_count"], &after["doc_del_count"]), (&json!(49), &json!(1)));
    assert!(size(&after, "external") < size(&before, "external"));

    couch.call("PUT", "/db/_partition/foo").await.refused(405, "method_not_allowed", "Only GET,HEAD allowed");
    couch.get("/db/_partition").await.refused(400, "bad_request", "invalid_partition_req");
    let underscore = "Partition must not start with an underscore";
    couch.get("/db/_partition/_find").await.refused(400, "illegal_partition", underscore);
    couch.json("POST", "/db/_partition/_find", json!({})).await.refused(400, "illegal_partition", underscore);
    couch.get("/db/_partition/a:b").await.refused(400, "illegal_partition", "Partition must not contain a colon");
    couch.get("/db/_partition/foo/foo:2").await.refused(404, "not_found", "missing");
    couch.database("plain").await;
    for path in ["/plain/_partition/foo", "/plain/_partition/foo/_all_docs", "/plain/_partition/foo/x"] {
        couch.get(path).await.refused(400, "bad_request", "database is not partitioned");
    }
    couch.get("/none/_partition/foo").await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_partition_are_listed() {
    let couch = with_partitions().await;
    // Neighbours in the order of ids.
    for id in ["fo:1", "foo!:1", "foo0:1", "foo::1", "fooo:1"] {
        couch.put(&format!("/db/{id}"), json!({})).await;
    }
    let path = "/db/_partition/foo/_all_docs";
    let mut expected = in_partition("foo", (2..=100).step_by(2));
    expected.push("foo::1".to_owned());
    expected.sort();
    let all = couch.get(path).await;
    assert_eq!(ids(&all), expected);
    assert_eq!((&all.json()["total_rows"], &all.json()["offset"]), (&json!(51), &json!(0)));
    let first = couch.get(&format!("{path}?limit=5")).await;
    assert_eq!(ids(&first), in_partition("foo", [10, 100, 12, 14, 16]));
    assert_eq!((&first.json()["total_rows"], &first.json()["offset"]), (&json!(51), &json!(0)));
    let last = couch.get(&format!("{path}?descending=true&limit=5&skip=1")).await;
    assert_eq!(ids(&last), in_partition("foo", [98, 96, 94, 92, 90]));
    let skipped = couch.get(&format!("{path}?skip=5&limit=5&include_docs=true")).await;
    assert_eq!(ids(&skipped), in_partition("foo", [18, 2, 20, 22, 24]));
    assert_eq!((&skipped.json()["rows"][0]["doc"]["value"], &skipped.json()["offset"]), (&json!(18), &json!(5)));
    let range = couch.get(&format!(r#"{path}?start_key="foo:12"&end_key="foo:2""#)).await;
    assert_eq!(ids(&range), in_partition("foo", [12, 14, 16, 18, 2]));
    assert_eq!(range.json()["offset"], json!(2));
    assert_eq!(ids(&couch.get(&format!(r#"{path}?key="foo:22""#)).await), ["foo:22"]);
    assert!(ids(&couch.get(&format!(r#"{path}?key="bar:21""#)).await).is_empty());
    assert!(ids(&couch.get(&format!(r#"{path}?end_key="bar:21""#)).await).is_empty());
    let keys = couch.json("POST", path, json!({"keys": ["foo:2", "foo:4"]})).await;
    assert_eq!(ids(&keys), ["foo:2", "foo:4"]);
    let several =
        couch.json("POST", &format!("{path}/queries"), json!({"queries": [{"limit": 1}, {"skip": 50}]})).await;
    let several = several.json();
    let ids_of = |at: usize| several["results"][at]["rows"].as_array().unwrap().iter().map(|row| row["id"].clone());
    assert_eq!(
        (ids_of(0).collect::<Vec<_>>(), ids_of(1).collect::<Vec<_>>()),
        (vec![json!("foo:10")], vec![json!("foo::1")])
    );

    assert_eq!(ids(&couch.get("/db/_all_docs?partition=foo&limit=1").await), ["foo:10"]);
    let conflict = "Conflicting value for `partition` in query string";
    couch.get(&format!("{path}?partition=bar")).await.refused(400, "bad_request", conflict);
    let underscore = "Partition must not start with an underscore";
    couch.get("/db/_partition/_bar/_all_docs").await.refused(400, "illegal_partition", underscore);

    let (mut paged, mut next) = (Vec::new(), Some(format!("{path}?page_size=20")));
    while let Some(page) = next {
        let page = couch.get(&page).await;
        paged.extend(ids(&page));
        next = page.json()["next"].as_str().map(|word| format!("{path}?bookmark={word}"));
        if let Some(next) = &next {
            let elsewhere = next.replace("/foo/", "/bar/");
            assert_eq!(couch.get(&elsewhere).await.status, 400, "a bookmark of another partition");
        }
    }
    assert_eq!(paged, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replication_creates_a_partitioned_target_and_fills_it() {
    let couch = Couch::start().await;
    couch.database("plain").await;
    couch.put("/plain/a:1", json!({"n": 1})).await;
    couch.put("/plain/x", json!({})).await;
    couch.put("/plain/_design/d", json!({})).await;
    let asked = json!({"source": "plain", "target": "db", "create_target": true,
        "create_target_params": {"partitioned": "true"}});
    let done = couch.json("POST", "/_replicate", asked).await;
    let counts = &done.json()["history"][0];
    assert_eq!((&counts["docs_written"], &counts["doc_write_failures"]), (&json!(2), &json!(1)), "{}", done.text);
    assert_eq!(couch.get("/db").await.json()["props"], json!({"partitioned": true}));
    assert_eq!(ids(&couch.get("/db/_all_docs").await), ["_design/d", "a:1"]);
    assert_eq!(couch.get("/db/_partition/a").await.json()["doc_count"], json!(1));
}
