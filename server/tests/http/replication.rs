//! The steps of CouchDB's replication protocol, one after the other.

use serde_json::{Value, json};

use crate::support::Couch;

/// Replicates once, according to `https://docs.couchdb.org/en/stable/replication/protocol.html`. Returns the number of
/// revisions sent.
async fn replicate(couch: &Couch, source: &str, target: &str) -> usize {
    let log = format!("_local/from-{source}");
    let known = couch.get(&format!("/{target}/{log}")).await.json();
    let since = known["last_seq"].as_str().unwrap_or("0").to_owned();
    let changes = couch.get(&format!("/{source}/_changes?style=all_docs&since={since}")).await.json();
    let rows = changes["results"].as_array().unwrap();
    let asked: serde_json::Map<String, Value> = rows
        .iter()
        .map(|row| {
            let revs = row["changes"].as_array().unwrap().iter().map(|change| change["rev"].clone());
            (row["id"].as_str().unwrap().to_owned(), revs.collect())
        })
        .collect();
    let diff = couch.json("POST", &format!("/{target}/_revs_diff"), asked.into()).await.json();
    let wanted: Vec<Value> = diff
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(id, diff)| diff["missing"].as_array().unwrap().iter().map(move |rev| json!({"id": id, "rev": rev})))
        .collect();
    let sent = wanted.len();
    let path = format!("/{source}/_bulk_get?revs=true&latest=true");
    let found = couch.json("POST", &path, json!({"docs": wanted})).await.json();
    let docs: Vec<Value> =
        found["results"].as_array().unwrap().iter().map(|result| result["docs"][0]["ok"].clone()).collect();
    assert!(docs.iter().all(Value::is_object), "{found}");
    let written = couch.json("POST", &format!("/{target}/_bulk_docs"), json!({"docs": docs, "new_edits": false})).await;
    assert_eq!((written.status.as_u16(), written.json()), (201, json!([])));
    assert_eq!(couch.json("POST", &format!("/{target}/_ensure_full_commit"), json!({})).await.status, 201);
    let mut checkpoint = json!({"last_seq": changes["last_seq"]});
    if let Some(rev) = known.get("_rev") {
        checkpoint["_rev"] = rev.clone();
    }
    assert_eq!(couch.json("PUT", &format!("/{target}/{log}"), checkpoint).await.status, 201);
    sent
}

/// Every document of a database, with all metadata of its revisions.
async fn state(couch: &Couch, db: &str) -> Vec<Value> {
    let changes = couch.get(&format!("/{db}/_changes?style=all_docs")).await.json();
    let mut state = Vec::new();
    for row in changes["results"].as_array().unwrap() {
        let id = row["id"].as_str().unwrap();
        let request = couch.request("GET", &format!("/{db}/{id}?open_revs=all&revs=true"));
        state.push(couch.send(request.header("accept", "application/json")).await.json());
    }
    state.sort_by_key(|leaves| leaves[0]["ok"]["_id"].to_string());
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn two_databases_become_the_same() {
    let couch = Couch::start().await;
    couch.database("left").await;
    couch.database("right").await;
    let mut revs = Vec::new();
    for n in 0..300 {
        revs.push(couch.put(&format!("/left/doc{n:03}"), json!({"n": n})).await);
    }
    for n in (0..300).step_by(3) {
        couch.put(&format!("/left/doc{n:03}"), json!({"_rev": revs[n], "n": -1})).await;
    }
    for n in (1..300).step_by(30) {
        couch.call("DELETE", &format!("/left/doc{n:03}?rev={}", revs[n])).await;
    }
    assert_eq!(replicate(&couch, "left", "right").await, 300);
    assert_eq!(replicate(&couch, "left", "right").await, 0);
    assert_eq!(state(&couch, "left").await, state(&couch, "right").await);
    let counts = |info: Value| (info["doc_count"].clone(), info["doc_del_count"].clone());
    assert_eq!(counts(couch.get("/left").await.json()), (json!(290), json!(10)));
    assert_eq!(counts(couch.get("/right").await.json()), (json!(290), json!(10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_has_the_same_winner_on_both_sides() {
    let couch = Couch::start().await;
    couch.database("left").await;
    couch.database("right").await;
    let rev = couch.put("/left/x", json!({"v": 0})).await;
    replicate(&couch, "left", "right").await;
    couch.put("/left/x", json!({"_rev": rev, "v": "left"})).await;
    couch.put("/right/x", json!({"_rev": rev, "v": "right"})).await;
    assert_eq!(replicate(&couch, "left", "right").await, 1);
    assert_eq!(replicate(&couch, "right", "left").await, 1);
    let left = couch.get("/left/x?conflicts=true").await.json();
    assert_eq!(left, couch.get("/right/x?conflicts=true").await.json());
    assert_eq!(left["_conflicts"].as_array().unwrap().len(), 1);
    // The loser is deleted, which ends the conflict on both sides.
    let loser = left["_conflicts"][0].as_str().unwrap();
    assert_eq!(couch.call("DELETE", &format!("/left/x?rev={loser}")).await.status, 200);
    replicate(&couch, "left", "right").await;
    for side in ["left", "right"] {
        let read = couch.get(&format!("/{side}/x?conflicts=true")).await.json();
        assert_eq!((&read["_rev"], read.get("_conflicts")), (&left["_rev"], None));
    }
    assert_eq!(state(&couch, "left").await, state(&couch, "right").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_edit_made_twice_is_one_revision() {
    let couch = Couch::start().await;
    couch.database("left").await;
    couch.database("right").await;
    for side in ["left", "right"] {
        assert_eq!(couch.put(&format!("/{side}/x"), json!({"key": 1})).await, "1-c77eb5d5af83163c996ea42b61a9f0d8");
    }
    assert_eq!(replicate(&couch, "left", "right").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_answers_stand_in_the_order_of_the_request() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/taken", json!({})).await;
    let docs = json!([{"_id": "a"}, {"_id": "taken"}, {"v": 1}, {"_id": "a"}, {"_id": "b", "_rev": "1-ff"}]);
    let answer = couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await;
    assert_eq!(answer.status, 201);
    let rows = answer.json();
    let conflict = |id: &str| json!({"id": id, "error": "conflict", "reason": "Document update conflict."});
    assert_eq!((&rows[0]["ok"], &rows[0]["id"]), (&json!(true), &json!("a")));
    assert_eq!((&rows[1], &rows[3], &rows[4]), (&conflict("taken"), &conflict("a"), &conflict("b")));
    assert_eq!(rows[2]["id"].as_str().unwrap().len(), 32);
    assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": []})).await.json(), json!([]));
    let docs = json!([{"_id": "c"}, {"_id": "d"}]);
    let all = couch.json("POST", "/db/_bulk_docs", json!({"docs": docs, "all_or_nothing": true})).await;
    assert_eq!((all.status.as_u16(), &all.json()[1]["error"]), (417, &json!("not_implemented")));
    assert_eq!(couch.get("/db/c").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_get_answers_for_each_entry() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let first = couch.put("/db/x", json!({"v": 1})).await;
    let second = couch.put("/db/x", json!({"_rev": first, "v": 2})).await;
    let body = json!({"docs": [
        {"id": "x", "rev": second}, {"id": "x", "rev": first}, {"id": "none", "rev": "1-abc"}, {"id": "none"},
        {"id": "x"}, {"rev": "1-abc"}, {"id": "x", "rev": "zzz"}, {"id": "_bad"}, 3
    ]});
    let results = couch.json("POST", "/db/_bulk_get", body.clone()).await.json()["results"].clone();
    let doc = |n: usize| results[n]["docs"][0].clone();
    let missing =
        |id: &str, rev: &str| json!({"error": {"id": id, "rev": rev, "error": "not_found", "reason": "missing"}});
    assert_eq!((&doc(0)["ok"]["v"], &doc(4)["ok"]["v"]), (&json!(2), &json!(2)));
    assert_eq!(
        (doc(1), doc(2), doc(3)),
        (missing("x", &first), missing("none", "1-abc"), missing("none", "undefined"))
    );
    assert_eq!(doc(5)["error"]["reason"], "document id missed");
    assert_eq!(doc(6)["error"]["reason"], "Invalid rev format");
    assert_eq!(doc(7)["error"]["error"], "illegal_docid");
    assert_eq!(doc(8)["error"]["reason"], "document must be a JSON object");
    // The newest leaf instead of the requested ancestor.
    let latest = couch.json("POST", "/db/_bulk_get?latest=true&revs=true", body).await.json();
    let latest = &latest["results"][1]["docs"][0]["ok"];
    assert_eq!((latest["_rev"].as_str(), &latest["_revisions"]["start"]), (Some(second.as_str()), &json!(2)));
    // More than a page of them.
    let many: Vec<Value> = (0..1000).map(|_| json!({"id": "x"})).collect();
    let many = couch.json("POST", "/db/_bulk_get", json!({"docs": many})).await;
    assert_eq!(many.header("transfer-encoding"), "chunked");
    assert_eq!(many.json()["results"].as_array().unwrap().len(), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_name_what_is_missing_and_where_it_may_hang() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let rev = couch.put("/db/x", json!({})).await;
    let asked = json!({"x": [rev, "2-new"], "y": ["1-new"], "z": []});
    let diff = couch.json("POST", "/db/_revs_diff", asked.clone()).await.json();
    let expected = json!({"x": {"missing": ["2-new"], "possible_ancestors": [rev]}, "y": {"missing": ["1-new"]}});
    assert_eq!(diff, expected);
    let missing = couch.json("POST", "/db/_missing_revs", asked).await.json();
    assert_eq!(missing, json!({"missing_revs": {"x": ["2-new"], "y": ["1-new"]}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_last_write_wins_replicas_agree_and_an_ordinary_one_keeps_both() {
    let couch = Couch::start().await;
    let refused = couch.call("PUT", "/one?conflicts=first").await;
    refused.refused(400, "bad_request", "The `conflicts` value should be last-write-wins, or left out.");
    for name in ["one", "two"] {
        assert_eq!(couch.call("PUT", &format!("/{name}?conflicts=last-write-wins")).await.status, 201);
        assert_eq!(couch.get(&format!("/{name}")).await.json()["props"], json!({"conflicts": "last-write-wins"}));
    }
    couch.database("ordinary").await;
    assert_eq!(couch.get("/ordinary").await.json()["props"], json!({}));
    let write = async |db: &str, start: u64, ids: &[&str], deleted: bool| {
        let revisions = json!({"start": start, "ids": ids});
        let docs = json!([{"_id": "a", "_revisions": revisions, "_deleted": deleted, "in": db}]);
        let written = couch.json("POST", &format!("/{db}/_bulk_docs"), json!({"new_edits": false, "docs": docs})).await;
        assert_eq!((written.status.as_u16(), written.json()), (201, json!([])));
    };
    write("one", 2, &["b", "a"], false).await;
    write("two", 3, &["d", "c", "a"], true).await;
    assert_eq!(replicate(&couch, "one", "ordinary").await, 1);
    assert_eq!(replicate(&couch, "one", "two").await, 0, "the greater one is there");
    assert_eq!(replicate(&couch, "two", "one").await, 1);
    let both = state(&couch, "one").await;
    assert_eq!((both.len(), both[0].as_array().unwrap().len()), (1, 1));
    assert_eq!((&both[0][0]["ok"]["_rev"], &both[0][0]["ok"]["_deleted"]), (&json!("3-d"), &json!(true)));
    assert_eq!(state(&couch, "two").await, both);
    couch.get("/one/a").await.refused(404, "not_found", "deleted");

    // In the ordinary database the live leaf wins, and is kept beside later writes.
    assert_eq!(replicate(&couch, "two", "ordinary").await, 1);
    let read = couch.get("/ordinary/a?deleted_conflicts=true").await.json();
    assert_eq!((&read["_rev"], &read["_deleted_conflicts"]), (&json!("2-b"), &json!(["3-d"])));
    assert_eq!(replicate(&couch, "ordinary", "one").await, 0);
    let fourth = couch.put("/one/a", json!({"n": 4})).await;
    assert!(fourth.starts_with("4-"));
    for target in ["two", "ordinary"] {
        assert_eq!(replicate(&couch, "one", target).await, 1);
        assert_eq!(couch.get(&format!("/{target}/a")).await.json()["_rev"], json!(fourth));
    }
    let read = couch.get("/ordinary/a?conflicts=true").await.json();
    assert_eq!(read["_conflicts"], json!(["2-b"]));
    let read = couch.get("/two/a?conflicts=true&deleted_conflicts=true").await.json();
    assert_eq!((read.get("_conflicts"), read.get("_deleted_conflicts")), (None, None));
}
