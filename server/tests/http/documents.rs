//! Single documents: reading, writing, tags, copies, local documents.

use serde_json::{Value, json};

use crate::support::Couch;

#[tokio::test(flavor = "multi_thread")]
async fn a_document_lives_and_dies() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let made = couch.json("PUT", "/db/x", json!({"a": 1})).await;
    let first = made.json()["rev"].as_str().unwrap().to_owned();
    assert_eq!(made.status, 201);
    assert_eq!(made.json(), json!({"ok": true, "id": "x", "rev": first}));
    assert_eq!(made.header("etag"), format!("\"{first}\""));
    assert_eq!(made.header("location"), format!("{}/db/x", couch.base));

    couch.json("PUT", "/db/x", json!({"a": 2})).await.refused(409, "conflict", "Document update conflict.");
    let second = couch.put("/db/x", json!({"_rev": first, "a": 2})).await;
    let third = couch.put(&format!("/db/x?rev={second}"), json!({"a": 3})).await;
    let fourth = couch.request("PUT", "/db/x").header("if-match", format!("\"{third}\"")).body(r#"{"a":4}"#);
    let fourth = couch.send(fourth).await.json()["rev"].as_str().unwrap().to_owned();
    assert!(fourth.starts_with("4-"));
    couch.json("PUT", &format!("/db/x?rev={third}"), json!({"_rev": fourth})).await.refused(
        400,
        "bad_request",
        "Document rev from request body and query string have different values",
    );
    let other = couch.request("PUT", "/db/x").header("if-match", &third).body(format!(r#"{{"_rev":"{fourth}"}}"#));
    couch.send(other).await.refused(400, "bad_request", "Document rev and etag have different values");
    assert_eq!(couch.get("/db/x").await.json(), json!({"_id": "x", "_rev": fourth, "a": 4}));

    couch.call("DELETE", "/db/x").await.refused(409, "conflict", "Document update conflict.");
    couch.call("DELETE", &format!("/db/x?rev={third}")).await.refused(409, "conflict", "Document update conflict.");
    let gone = couch.call("DELETE", &format!("/db/x?rev={fourth}")).await;
    assert_eq!((gone.status.as_u16(), &gone.json()["id"]), (200, &json!("x")));
    couch.get("/db/x").await.refused(404, "not_found", "deleted");
    couch.get("/db/y").await.refused(404, "not_found", "missing");
    couch.call("DELETE", "/db/x").await.refused(404, "not_found", "deleted");
    couch.call("DELETE", "/db/y?rev=1-abc").await.refused(404, "not_found", "missing");
    let tombstone = gone.json()["rev"].as_str().unwrap().to_owned();
    let read = couch.get(&format!("/db/x?rev={tombstone}")).await.json();
    assert_eq!(read, json!({"_id": "x", "_rev": tombstone, "_deleted": true}));
    assert!(couch.put("/db/x", json!({"back": true})).await.starts_with("6-"));
    let put_away = couch.json("PUT", "/db/z", json!({"_deleted": true})).await;
    assert_eq!(put_away.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_spare_what_the_client_has() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let rev = couch.put("/db/x", json!({"a": 1})).await;
    for tag in [format!("\"{rev}\""), format!("W/\"{rev}\""), format!("\"1-other\", \"{rev}\"")] {
        let answer = couch.send(couch.request("GET", "/db/x").header("if-none-match", &tag)).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (304, ""), "{tag}");
        assert_eq!(answer.header("etag"), format!("\"{rev}\""));
    }
    let other = couch.send(couch.request("GET", "/db/x").header("if-none-match", "\"1-other\"")).await;
    assert_eq!(other.status, 200);
    // An answer that can change while the revision stays has no tag.
    assert!(couch.get("/db/x?revs_info=true").await.headers.get("etag").is_none());
    assert!(couch.get("/db/x?revs=true").await.headers.get("etag").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_get_without_a_body() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/x", json!({"a": 1})).await;
    for path in
        ["/", "/db", "/db/x", "/db/_all_docs", "/db/_changes", "/_up", "/_session", "/db/none", "/db/_revs_limit"]
    {
        let (get, head) = (couch.get(path).await, couch.call("HEAD", path).await);
        assert_eq!((head.status, head.text.as_str()), (get.status, ""), "{path}");
        for name in ["content-type", "content-length", "etag"] {
            assert_eq!(head.header(name), get.header(name), "{name} of {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_without_an_id_gets_one() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let made = couch.json("POST", "/db", json!({"a": 1})).await;
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!((made.status.as_u16(), id.len()), (201, 32));
    assert_eq!(made.header("location"), format!("{}/db/{id}", couch.base));
    assert_eq!(couch.json("POST", "/db", json!({"_id": "mine"})).await.json()["id"], "mine");
    let batch = couch.json("POST", "/db?batch=ok", json!({"_id": "batch"})).await;
    assert_eq!((batch.status.as_u16(), batch.json()), (202, json!({"ok": true, "id": "batch"})));
    assert_eq!(couch.get("/db/batch").await.status, 200);
    assert_eq!(couch.json("PUT", "/db/batch2?batch=ok", json!({})).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_may_hold_almost_anything() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for (path, id) in [
        ("a%2Fb", "a/b"),
        ("_design/d", "_design/d"),
        ("_design%2Fe", "_design/e"),
        ("%C3%A4%20%25%22", "ä %\""),
        ("a+b", "a b"),
        ("a%2Bb", "a+b"),
        ("%F0%9F%9B%8B", "🛋"),
    ] {
        let made = couch.json("PUT", &format!("/db/{path}"), json!({"v": path})).await;
        assert_eq!(made.json()["id"], id, "{}", made.text);
        assert_eq!(couch.get(&format!("/db/{path}")).await.json()["_id"], id);
    }
    let deep = couch.get("/db/_all_docs").await.json();
    assert_eq!(deep["total_rows"], 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_a_new_document() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let first = couch.put("/db/x", json!({"v": 1})).await;
    let copy = async |to: &str, query: &str| {
        couch.send(couch.request("COPY", &format!("/db/x{query}")).header("destination", to)).await
    };
    let made = copy("y%2Fz", "").await;
    assert_eq!((made.status.as_u16(), &made.json()["id"]), (201, &json!("y/z")));
    assert_eq!(made.header("location"), format!("{}/db/y%2Fz", couch.base));
    let target = made.json()["rev"].as_str().unwrap().to_owned();
    couch.put("/db/x", json!({"_rev": first, "v": 2})).await;
    copy("y%2Fz", "").await.refused(409, "conflict", "Document update conflict.");
    assert_eq!(copy(&format!("y%2Fz?rev={target}"), "").await.status, 201);
    assert_eq!(couch.get("/db/y%2Fz").await.json()["v"], 2);
    couch.call("COPY", "/db/x").await.refused(400, "bad_request", "Destination header is mandatory for COPY.");
    let url = copy("http://example.com/db/z", "").await;
    url.refused(400, "bad_request", "Destination URL must be relative.");
    couch.send(couch.request("COPY", "/db/none").header("destination", "q")).await.refused(404, "not_found", "missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn local_documents_count_their_revisions_and_stay_here() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let made = couch.json("PUT", "/db/_local/check%2Fpoint", json!({"seq": 1})).await;
    assert_eq!((made.status.as_u16(), &made.json()["rev"]), (201, &json!("0-1")));
    assert_eq!(made.json()["id"], "_local/check/point");
    let next = couch.json("PUT", "/db/_local%2Fcheck%2Fpoint", json!({"_rev": "0-1", "seq": 2})).await;
    assert_eq!(next.json()["rev"], "0-2");
    let read = couch.get("/db/_local/check%2Fpoint").await;
    assert_eq!(read.json(), json!({"_id": "_local/check/point", "_rev": "0-2", "seq": 2}));
    assert_eq!(couch.get("/db").await.json()["doc_count"], 0);
    assert_eq!(couch.get("/db/_changes").await.json()["results"], json!([]));
    let listed = couch.get("/db/_local_docs?include_docs=true").await.json();
    assert_eq!((&listed["rows"][0]["value"]["rev"], &listed["rows"][0]["doc"]["seq"]), (&json!("0-2"), &json!(2)));
    assert_eq!(couch.call("DELETE", "/db/_local/check%2Fpoint?rev=0-2").await.status, 200);
    couch.get("/db/_local/check%2Fpoint").await.refused(404, "not_found", "missing");
    couch.call("DELETE", "/db/_local/check%2Fpoint").await.refused(404, "not_found", "missing");
    let docs = json!([{"_id": "_local/a", "v": 1}, {"_id": "b"}, {"_id": "_local/c", "_rev": "0-4"}]);
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"docs": docs})).await.json();
    let revs: Vec<&str> = bulk.as_array().unwrap().iter().map(|row| row["rev"].as_str().unwrap()).collect();
    assert_eq!(revs, ["0-1", "1-967a00dff5e02add41819138abb3284d", "0-5"]);
    assert_eq!(couch.get("/db/_local/a").await.json()["v"], 1);
    assert_eq!(couch.json("POST", "/db", json!({"_id": "_local/a"})).await.json()["rev"], "0-1");
    assert_eq!(couch.get("/db").await.json()["doc_count"], 1);
    couch.get("/db/_local").await.refused(400, "bad_request", "Invalid _local document id.");
    couch.get("/db/_local/x/y").await.refused(400, "bad_request", "_local documents do not accept attachments.");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_query_may_name_the_revision_of_a_replicated_edit() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let made = couch.json("PUT", "/db/x?new_edits=false&rev=3-abc", json!({"v": 1})).await;
    assert_eq!((made.status.as_u16(), &made.json()["rev"]), (201, &json!("3-abc")));
    let parts = "--b\r\nContent-Type: application/json\r\n\r\n{\"v\":2}\r\n--b--";
    let path = "/db/y?new_edits=false&rev=3-abc";
    let made = couch.request("PUT", path).header("content-type", "multipart/related; boundary=b").body(parts);
    assert_eq!(couch.send(made).await.json()["rev"], "3-abc");
    let reason = "When `new_edits: false`, the document needs `_rev` or `_revisions` specified";
    couch.json("PUT", "/db/z?new_edits=false", json!({})).await.refused(400, "bad_request", reason);
    // Local documents too, although their revisions mean nothing, and even after a deletion.
    for body in [json!({"v": 1}), json!({"_deleted": true})] {
        couch.json("PUT", "/db/_local/z?new_edits=false", body.clone()).await.refused(400, "bad_request", reason);
        let mut doc = body;
        doc["_id"] = json!("_local/z");
        let bulk = json!({"new_edits": false, "docs": [{"_id": "other", "_rev": "1-abc"}, doc]});
        couch.json("POST", "/db/_bulk_docs", bulk).await.refused(400, "bad_request", reason);
    }
    for path in ["/db/other", "/db/_local/z"] {
        assert_eq!(couch.get(path).await.status, 404, "{path}");
    }
    for (query, body) in
        [("&rev=0-3", json!({})), ("", json!({"_rev": "0-3"})), ("", json!({"_revisions": {"start": 0, "ids": ["3"]}}))]
    {
        let made = couch.json("PUT", &format!("/db/_local/z?new_edits=false{query}"), body).await;
        assert_eq!((made.status.as_u16(), &made.json()["rev"]), (201, &json!("0-4")), "{}", made.text);
    }
}

/// The revision of a local document starts again after a deletion, so a cache cannot rely on it.
#[tokio::test(flavor = "multi_thread")]
async fn equal_revisions_of_local_documents_have_different_tags() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let path = "/db/_local/checkpoint";
    let put = async |seq: u32| couch.json("PUT", path, json!({"seq": seq})).await.header("etag").to_owned();
    let read = async |tag: &str| couch.send(couch.request("GET", path).header("if-none-match", tag)).await;
    let first = put(1).await;
    assert_eq!((couch.get(path).await.header("etag"), read(&first).await.status.as_u16()), (first.as_str(), 304));
    assert_eq!(couch.call("DELETE", path).await.status, 200);
    let second = put(2).await;
    let answer = read(&first).await;
    assert_eq!((answer.status.as_u16(), answer.header("etag")), (200, second.as_str()));
    assert_eq!(answer.json(), json!({"_id": "_local/checkpoint", "_rev": "0-1", "seq": 2}));
}

#[tokio::test(flavor = "multi_thread")]
async fn special_members_of_local_documents_are_those_of_others() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let put = async |body: Value| couch.json("PUT", "/db/_local/x", body).await;
    for (body, error, reason) in [
        (json!({"_id": 1}), "illegal_docid", "Document id must be a string"),
        (json!({"_rev": "1"}), "bad_request", "Invalid rev format"),
        (json!({"_rev": "1-a"}), "bad_request", "Invalid rev format"),
        (json!({"_deleted": "yes"}), "doc_validation", "Bad special document member: _deleted"),
        (json!({"_revisions": 1}), "doc_validation", "Bad special document member: _revisions"),
        (json!({"_revisions": {"start": 0, "ids": 1}}), "doc_validation", "_revisions.ids isn't a array."),
        (json!({"_revisions": {"start": 0}}), "doc_validation", "_revisions.ids isn't a array."),
        (json!({"_revisions": {"start": 0, "ids": ["1", 1]}}), "doc_validation", "RevId isn't a string"),
        (json!({"_revisions": {"start": 0, "ids": ["zz"]}}), "bad_request", "Invalid rev format"),
        (json!({"_attachments": []}), "doc_validation", "Bad special document member: _attachments"),
        (json!({"_odd": 1}), "doc_validation", "Bad special document member: _odd"),
    ] {
        put(body).await.refused(400, error, reason);
    }
    assert_eq!(put(json!({"_deleted": true})).await.json(), json!({"ok": true, "id": "_local/x", "rev": "0-0"}));
    assert_eq!(put(json!({"_conflicts": [], "_local_seq": 1, "_replication_id": "r", "a": 1})).await.status, 201);
    let stored = json!({"_id": "_local/x", "_rev": "0-1", "_replication_id": "r", "a": 1});
    assert_eq!(couch.get("/db/_local/x").await.json(), stored);
    // A replicator starts again after a 404, and gives up after a 400.
    for rev in ["0-1", "0-2", "1-a", "0-", "99999999999999999999-1"] {
        couch.get(&format!("/db/_local/x?rev={rev}")).await.refused(404, "not_found", "missing");
    }
    for rev in ["2", "", "x", "-1", "a-1"] {
        for method in ["GET", "DELETE"] {
            let answer = couch.call(method, &format!("/db/_local/x?rev={rev}")).await;
            answer.refused(400, "bad_request", "Invalid rev format");
        }
    }
    couch.json("PUT", "/db/_local/x?rev=0-1", json!({"_rev": "0-2"})).await.refused(
        400,
        "bad_request",
        "Document rev from request body and query string have different values",
    );
    // As CouchDB's replicator sends it.
    let sent = json!({"_rev": "0-1", "_revisions": {"start": 0, "ids": ["1"]}, "a": 2});
    assert_eq!(put(sent).await.json()["rev"], "0-2");
    assert_eq!(couch.get("/db/_local/x").await.json(), json!({"_id": "_local/x", "_rev": "0-2", "a": 2}));
    let sent = json!({"_rev": "0-5", "_revisions": {"start": 0, "ids": ["7", "6"]}});
    assert_eq!(put(sent).await.json()["rev"], "0-8", "the history precedes");
    assert_eq!(couch.call("DELETE", "/db/_local/x?rev=1-a").await.json()["rev"], "0-0");
    let batch = couch.json("PUT", "/db/_local/x?batch=ok", json!({})).await;
    assert_eq!((batch.status.as_u16(), batch.json()), (202, json!({"ok": true, "id": "_local/x"})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_revisions_and_conflicts_on_request() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs = json!([
        {"_id": "x", "_rev": "1-aaaa", "from": "a"},
        {"_id": "x", "_rev": "2-bbbb", "_revisions": {"start": 2, "ids": ["bbbb", "aaaa"]}, "from": "b"},
        {"_id": "x", "_rev": "2-cccc", "_revisions": {"start": 2, "ids": ["cccc", "aaaa"]}, "from": "c"},
        {"_id": "x", "_rev": "2-dddd", "_revisions": {"start": 2, "ids": ["dddd", "aaaa"]}, "_deleted": true},
    ]);
    let written = couch.json("POST", "/db/_bulk_docs", json!({"docs": docs, "new_edits": false})).await;
    assert_eq!((written.status.as_u16(), written.json()), (201, json!([])));
    let read = couch.get("/db/x?meta=true&revs=true&local_seq=true").await.json();
    assert_eq!((&read["_rev"], &read["from"]), (&json!("2-cccc"), &json!("c")));
    assert_eq!(read["_revisions"], json!({"start": 2, "ids": ["cccc", "aaaa"]}));
    assert_eq!(read["_conflicts"], json!(["2-bbbb"]));
    assert_eq!(read["_deleted_conflicts"], json!(["2-dddd"]));
    assert_eq!(read["_revs_info"][1], json!({"rev": "1-aaaa", "status": "missing"}));
    assert_eq!(read["_local_seq"].as_str().unwrap().len(), 26);
    couch.get("/db/x?rev=1-aaaa").await.refused(404, "not_found", "missing");
    assert_eq!(couch.get("/db/x?rev=2-bbbb").await.json()["from"], "b");

    let open =
        |revs: &str| couch.request("GET", &format!("/db/x?open_revs={revs}")).header("accept", "application/json");
    let all = couch.send(open("all")).await.json();
    assert_eq!(all.as_array().unwrap().len(), 3);
    let some = couch.send(open("%5B%222-bbbb%22,%223-zzzz%22%5D")).await.json();
    assert_eq!((&some[0]["ok"]["from"], &some[1]), (&json!("b"), &json!({"missing": "3-zzzz"})));
    let mixed = couch.send(couch.request("GET", "/db/x?open_revs=all").header("accept", "multipart/mixed")).await;
    let boundary = mixed.header("content-type").split('"').nth(1).unwrap().to_owned();
    assert_eq!(mixed.text.matches(&format!("--{boundary}")).count(), 4);
    assert!(mixed.text.ends_with(&format!("--{boundary}--")) && mixed.text.contains("\"from\":\"b\""));
    couch.get("/db/none?open_revs=all").await.refused(404, "not_found", "missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replicator_brings_documents_of_megabytes() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let many: Vec<String> = (0..60_000).map(|n| format!("{n:0100}")).collect();
    let doc = json!({"_id": "many", "_rev": "1-abc", "many": many});
    let body = json!({"new_edits": false, "docs": [doc]});
    assert_eq!(couch.json("POST", "/db/_bulk_docs", body).await.json(), json!([]));
    assert_eq!(couch.get("/db/many").await.json()["many"][59_999], many[59_999]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_without_a_hash_is_one_as_in_couchdb() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let put = async |body: Value| couch.json("PUT", "/db/x?new_edits=false", body).await;
    put(json!({"_rev": "0-abc"})).await.refused(400, "bad_request", "Invalid rev format");
    assert_eq!(put(json!({"_rev": "1-", "v": 1})).await.status, 201);
    assert_eq!(couch.get("/db/x").await.json(), json!({"_id": "x", "_rev": "1-", "v": 1}));
    assert_eq!(couch.get("/db/x?rev=1-").await.json()["v"], 1);
    // It loses against every other revision, and can be an ancestor.
    let docs = json!([{"_id": "x", "_rev": "1-a", "v": 2}, {"_id": "y", "_revisions": {"start": 2, "ids": ["b", ""]}}]);
    couch.json("POST", "/db/_bulk_docs", json!({"docs": docs, "new_edits": false})).await;
    assert_eq!(couch.get("/db/x?conflicts=true").await.json()["_conflicts"], json!(["1-"]));
    let next = couch.put("/db/x?rev=1-", json!({"v": 3})).await;
    let ids = couch.get("/db/x?revs=true").await.json()["_revisions"]["ids"].clone();
    assert_eq!(ids, json!([next[2..], ""]));
    assert_eq!(couch.get("/db/y?revs=true").await.json()["_revisions"], json!({"start": 2, "ids": ["b", ""]}));
    let missing = couch.json("POST", "/db/_revs_diff", json!({"x": ["1-", "2-"], "z": ["1-"]})).await.json();
    assert_eq!(missing["x"]["missing"], json!(["2-"]));
    assert_eq!(missing["z"]["missing"], json!(["1-"]));
    assert_eq!(couch.get("/db/y?rev=1-").await.status, 404);
    let report = couch.get("/db/_couch_layer/check").await;
    assert_eq!((report.status.as_u16(), &report.json()["problems"]), (200, &json!([])), "{}", report.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latest_of_a_revision_that_is_not_there_is_the_winner() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let rev = couch.put("/db/x", json!({"v": 1})).await;
    let found = couch.get("/db/x?rev=1-abc&latest=true&revs=true").await.json();
    assert_eq!((&found["_rev"], &found["_revisions"]["start"]), (&json!(rev), &json!(1)));
    couch.get("/db/x?rev=1-abc").await.refused(404, "not_found", "missing");
    couch.get("/db/none?rev=1-abc&latest=true").await.refused(404, "not_found", "missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_404_before_it_is_501() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for path in [
        // This id is never valid.
        "/db/%ff",
        "/db/_design/%ff",
        "/db/_local/%ff",
        "/db/_unknown",
        "/db/_design/",
        // Functions and attachments of missing documents.
        "/db/_design/none/_view/x",
        "/db/_design/none/_show/x/y",
        "/db/_design/none/file",
        "/db/_design%2Fnone/file",
        "/db/none/file",
        "/db/_local%2Fnone/file",
    ] {
        let answer = couch.get(path).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["reason"]), (404, &json!("missing")), "{path}");
    }
    couch.get("/none/%ff").await.refused(404, "not_found", "Database does not exist.");
    for id in ["_design/here", "here"] {
        couch.put(&format!("/db/{id}"), json!({})).await;
    }
    assert_eq!(couch.get("/db/_design/here/_show/x").await.status, 501);
    let gone = couch.put("/db/_design/gone", json!({})).await;
    couch.call("DELETE", &format!("/db/_design/gone?rev={gone}")).await;
    couch.get("/db/_design/gone/_view/x").await.refused(404, "not_found", "deleted");
    // Writes report what is wrong with the id.
    assert_eq!(couch.json("PUT", "/db/%ff", json!({})).await.status, 400);
}
