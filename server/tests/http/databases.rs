//! Endpoints of the server and of databases.

use kv_api::AnyDatabase;
use serde_json::json;
use server::http::Options;

use crate::support::Couch;

#[tokio::test(flavor = "multi_thread")]
async fn the_root_says_who_it_is() {
    let couch = Couch::start().await;
    let answer = couch.get("/").await;
    let json = answer.json();
    assert_eq!((answer.status.as_u16(), &json["couchdb"]), (200, &json!("Welcome")));
    assert!(json["version"].as_str().unwrap().starts_with("3."));
    assert_eq!(json["vendor"]["name"], "couch-layer");
    assert_eq!(json["uuid"].as_str().unwrap().len(), 32);
    let version = answer.json()["version"].as_str().unwrap().to_owned();
    // couchdb-python reads each part with `int()`, and LiveSync the header with `/CouchDB(\/([0-9.]+))?/`.
    assert_eq!(version.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3, "{version}");
    assert!(answer.header("server").starts_with(&format!("CouchDB/{version} (couch-layer/")));
    assert_eq!(answer.header("cache-control"), "must-revalidate");
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(couch.get("/_up").await.json()["status"], "ok");
    assert_eq!(couch.get("/_active_tasks").await.json(), json!([]));
    assert_eq!(couch.get("/favicon.ico").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_are_the_clients_where_they_are_plain() {
    let couch = Couch::start().await;
    let id = async |sent: &str| {
        let answer = couch.send(couch.request("GET", "/").header("x-couch-request-id", sent)).await;
        answer.header("x-couch-request-id").to_owned()
    };
    assert_eq!(id("abc-123_X").await, "abc-123_X");
    assert_eq!(id("a b").await.len(), 10);
    assert_eq!(id(&"x".repeat(37)).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn uuids_come_in_the_number_asked_for() {
    let couch = Couch::start().await;
    let answer = couch.get("/_uuids?count=3").await;
    assert_eq!(answer.json()["uuids"].as_array().unwrap().len(), 3);
    assert_eq!(answer.header("cache-control"), "no-cache");
    couch.get("/_uuids?count=1001").await.refused(400, "bad_request", "count parameter too large");
    couch.get("/_uuids?count=-1").await.refused(400, "bad_request", "count must be a positive integer");
    couch.get("/_uuids?count=x").await.refused(400, "bad_request", "count must be a positive integer");
    couch.call("POST", "/_uuids").await.refused(405, "method_not_allowed", "Only GET,HEAD allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_is_created_described_listed_and_dropped() {
    let couch = Couch::start().await;
    let made = couch.call("PUT", "/a%2Fb+c").await;
    // A plus is a space, which names may not contain.
    assert_eq!(made.status, 400);
    let made = couch.call("PUT", "/a%2Fb/").await;
    assert_eq!((made.status.as_u16(), made.json()), (201, json!({"ok": true})));
    assert_eq!(made.header("location"), format!("{}/a%2Fb", couch.base));
    couch.call("PUT", "/a%2Fb").await.refused(
        412,
        "file_exists",
        "The database could not be created, the file already exists.",
    );
    couch.database("zoo").await;
    couch.put("/zoo/x", json!({"n": 1})).await;
    couch.put("/zoo/y", json!({"_deleted": true})).await;

    let info = couch.get("/zoo").await.json();
    assert_eq!((&info["db_name"], &info["doc_count"], &info["doc_del_count"]), (&json!("zoo"), &json!(1), &json!(1)));
    assert_eq!(info["update_seq"].as_str().unwrap().len(), "0-".len() + 26);
    assert_eq!(info["compact_running"], false);
    assert!(info["instance_start_time"].is_string() && info["sizes"]["external"].is_u64());
    assert_eq!(couch.call("HEAD", "/zoo").await.status, 200);
    assert_eq!(couch.call("HEAD", "/none").await.status, 404);

    assert_eq!(couch.get("/_all_dbs").await.json(), json!(["a/b", "zoo"]));
    assert_eq!(couch.get("/_all_dbs?descending=true&limit=1").await.json(), json!(["zoo"]));
    assert_eq!(couch.get("/_all_dbs?startkey=%22b%22").await.json(), json!(["zoo"]));
    assert_eq!(couch.get("/_all_dbs?endkey=%22zoo%22&inclusive_end=false").await.json(), json!(["a/b"]));
    let no_list = couch.json("POST", "/_dbs_info", json!({"keys": "zoo"})).await;
    no_list.refused(400, "bad_request", "`keys` member must be an array.");
    let infos = couch.json("POST", "/_dbs_info", json!({"keys": ["zoo", "none"]})).await.json();
    assert_eq!((&infos[0]["info"]["doc_count"], &infos[1]), (&json!(1), &json!({"key": "none", "error": "not_found"})));
    assert_eq!(couch.get("/_dbs_info").await.json().as_array().unwrap().len(), 2);

    let rev = "You tried to DELETE a database with a ?=rev parameter. Did you mean to DELETE a document instead?";
    couch.call("DELETE", "/zoo?rev=1-a").await.refused(400, "bad_request", rev);
    assert_eq!(couch.call("DELETE", "/zoo").await.json(), json!({"ok": true}));
    couch.call("DELETE", "/zoo").await.refused(404, "not_found", "Database does not exist.");
    couch.get("/zoo/x").await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test]
async fn the_number_of_databases_in_one_request_is_set() {
    let couch = Couch::start().await;
    let keys: Vec<String> = (0..101).map(|n| format!("db-{n}")).collect();
    let ask = async |count: usize| couch.json("POST", "/_dbs_info", json!({"keys": keys[..count]})).await;
    assert_eq!(ask(100).await.json().as_array().unwrap().len(), 100);
    ask(101).await.refused(400, "bad_request", "too_many_keys");
    let key = "/_node/_local/_config/chttpd/max_db_number_for_dbs_info_req";
    assert_eq!(couch.json("PUT", key, json!("1")).await.status, 200);
    assert_eq!(ask(1).await.status, 200);
    ask(2).await.refused(400, "bad_request", "too_many_keys");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_process_drops_and_creates_is_found() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/x", json!({"from": "first"})).await;
    assert_eq!(couch.get("/db/x").await.json()["from"], "first");
    // Not through this server, which then has a stale handle.
    couch.layer.delete_database("db").await.unwrap();
    couch.get("/db/x").await.refused(404, "not_found", "Database does not exist.");
    couch.layer.create_database("db", model::CreateOptions::default()).await.unwrap();
    couch.get("/db/x").await.refused(404, "not_found", "missing");
    couch.put("/db/x", json!({"from": "second"})).await;
    couch.layer.delete_database("db").await.unwrap();
    couch.layer.create_database("db", model::CreateOptions::default()).await.unwrap();
    for path in ["/db/x", "/db/_changes", "/db/_all_docs", "/db", "/db/_local/x"] {
        let answer = couch.get(path).await;
        assert!(!answer.text.contains("Database does not exist") && !answer.text.contains("second"), "{path}");
        couch.layer.delete_database("db").await.unwrap();
        couch.layer.create_database("db", model::CreateOptions::default()).await.unwrap();
    }
    // A write notices by itself, and the missing database takes precedence over errors of the write.
    couch.put("/db/x", json!({"from": "third"})).await;
    couch.layer.delete_database("db").await.unwrap();
    couch.layer.create_database("db", model::CreateOptions::default()).await.unwrap();
    couch.put("/db/x", json!({"from": "fourth"})).await;
    assert_eq!(couch.get("/db/x").await.json()["from"], "fourth");
    couch.layer.delete_database("db").await.unwrap();
    let answer = couch.send(couch.request("PUT", "/db/x").body("{")).await;
    answer.refused(404, "not_found", "Database does not exist.");
    couch.call("PUT", "/db/x").await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_write_reaches_the_database_that_there_is_and_none_that_was() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let docs = |count: usize| -> Vec<_> { (0..count).map(|n| json!({"_id": n.to_string()})).collect() };
    let local = json!([{"_id": "_local/x"}]);
    for count in [1, 20, 500] {
        assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs(count)})).await.status, 201);
        // Not through this server, which then has a stale handle.
        couch.layer.delete_database("db").await.unwrap();
        for asked in [
            json!({"docs": docs(count)}),
            json!({"docs": []}),
            json!({"docs": local}),
            json!({"docs": docs(1), "all_or_nothing": true}),
            json!({}),
        ] {
            let answer = couch.json("POST", "/db/_bulk_docs", asked.clone()).await;
            answer.refused(404, "not_found", "Database does not exist.");
            couch.layer.create_database("db", model::CreateOptions::default()).await.unwrap();
            assert_eq!(couch.json("POST", "/db/_bulk_docs", json!({"docs": docs(count)})).await.status, 201);
            couch.layer.delete_database("db").await.unwrap();
        }
        couch.layer.create_database("db", model::CreateOptions::default()).await.unwrap();
        let answer = couch.json("POST", "/db/_bulk_docs", json!({"docs": docs(count)})).await;
        assert!(answer.json().as_array().unwrap().iter().all(|row| row["ok"] == true), "{}", answer.text);
        couch.call("DELETE", "/db").await;
        couch.database("db").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_is_created_in_the_format_asked_for() {
    let couch = Couch::start().await;
    for (name, query, format) in
        [("one", "?format=exploded", "exploded"), ("two", "?format=packed", "packed"), ("three", "", "packed")]
    {
        assert_eq!(couch.call("PUT", &format!("/{name}{query}")).await.status, 201);
        assert_eq!(couch.get(&format!("/{name}/_couch_layer/format")).await.json()["format"], format);
        couch.put(&format!("/{name}/x"), json!({"a": [1, {"b": null}]})).await;
        assert_eq!(couch.get(&format!("/{name}/x")).await.json()["a"], json!([1, {"b": null}]));
    }
    assert_eq!(couch.call("PUT", "/other?format=zip").await.status, 400);
    assert_eq!(couch.call("PUT", "/other?q=0").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_kept() {
    let couch = Couch::start().await;
    couch.database("db").await;
    assert_eq!(couch.get("/db/_revs_limit").await.json(), json!(1000));
    assert_eq!(couch.raw("PUT", "/db/_revs_limit", "7").await.json(), json!({"ok": true}));
    assert_eq!(couch.get("/db/_revs_limit").await.json(), json!(7));
    for wrong in ["0", "4001", "-1", "\"x\"", "1.5"] {
        assert_eq!(couch.raw("PUT", "/db/_revs_limit", wrong).await.status, 400, "{wrong}");
    }
    let default = json!({"members": {"roles": ["_admin"]}, "admins": {"roles": ["_admin"]}});
    assert_eq!(couch.get("/db/_security").await.json(), default);
    let security = json!({"admins": {"names": ["a"], "roles": []}, "more": 1});
    assert_eq!(couch.json("PUT", "/db/_security", security.clone()).await.json(), json!({"ok": true}));
    assert_eq!(couch.get("/db/_security").await.json(), security);
    for wrong in [json!([]), json!({"members": {"names": "a"}}), json!({"admins": {"roles": [1]}})] {
        assert_eq!(couch.json("PUT", "/db/_security", wrong.clone()).await.status, 400, "{wrong}");
    }
    let large = json!({"note": "x".repeat(1 << 20)});
    couch.json("PUT", "/db/_security", large).await.refused(413, "too_large", "the request entity is too large");
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_answers_truthfully() {
    let couch = Couch::start().await;
    couch.database("db").await;
    assert_eq!(couch.json("POST", "/db/_compact", json!({})).await.status, 202);
    assert_eq!(couch.call("POST", "/db/_view_cleanup").await.status, 202);
    let committed = couch.json("POST", "/db/_ensure_full_commit", json!({})).await;
    assert_eq!(committed.status, 201);
    assert_eq!(committed.json()["instance_start_time"], couch.get("/db").await.json()["instance_start_time"]);
    couch.json("POST", "/none/_compact", json!({})).await.refused(404, "not_found", "Database does not exist.");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named() {
    let couch = Couch::start().await;
    couch.database("db").await;
    couch.put("/db/_design/d", json!({})).await;
    for (method, path, word) in [
        ("GET", "/db/_design/d/_show/s", "deprecated"),
        ("GET", "/db/_design/d/_list/l/v", "deprecated"),
        ("GET", "/db/_design/d/_rewrite/x", "deprecated"),
        ("GET", "/db/_shards", "shards"),
        ("GET", "/db/_shards/x", "shards"),
        ("POST", "/db/_sync_shards", "shards"),
    ] {
        let answer = couch.json(method, path, json!({})).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]), (501, &json!("not_implemented")), "{path}");
        assert!(answer.json()["reason"].as_str().unwrap().contains(word), "{path}: {}", answer.text);
    }
    let temporary = json!({"map": "function (doc) { emit(doc._id); }"});
    let reason = "Temporary views are not supported in CouchDB";
    couch.json("POST", "/db/_temp_view", temporary.clone()).await.refused(410, "gone", reason);
    couch.json("POST", "/none/_temp_view", temporary).await.refused(404, "not_found", "Database does not exist.");
    let form = couch.request("POST", "/db/x").header("content-type", "multipart/form-data; boundary=b").body("--b--");
    couch.send(form).await.refused(501, "not_implemented", "forms with attachments are not implemented by couch-layer");
    let reason = "Content-Type must be multipart/form-data";
    couch.json("POST", "/db/x", json!({})).await.refused(415, "bad_content_type", reason);
}

/// CouchDB's parameters for copies, shards or views, which have no meaning here.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_mean_nothing_here_are_taken_all_the_same() {
    let couch = Couch::start().await;
    assert_eq!(couch.call("PUT", "/db?q=3&n=2&partitioned=false").await.status, 201);
    let cluster = couch.get("/db").await.json()["cluster"].clone();
    assert_eq!(cluster, json!({"q": 1, "n": 1, "w": 1, "r": 1}));
    for id in ["x", "y", "z"] {
        couch.put(&format!("/db/{id}?w=2"), json!({})).await;
    }
    // Every change has its sequence, whatever the interval.
    let rows = couch.get("/db/_changes?seq_interval=2").await.json()["results"].clone();
    assert_eq!(rows.as_array().unwrap().iter().filter(|row| row["seq"].is_string()).count(), 3);
    couch.get("/db/_changes?seq_interval=0").await.refused(400, "bad_request", "invalid_seq_interval");
    let plain = couch.get("/db/_all_docs").await.json();
    let views = "sorted=false&stable=true&stale=ok&update=lazy&reduce=false&group=false&group_level=0";
    assert_eq!(couch.get(&format!("/db/_all_docs?{views}")).await.json(), plain);
    // A copy and an edit of an attachment are answered when they are on disk.
    let copied = couch.send(couch.request("COPY", "/db/x?batch=ok").header("destination", "copy")).await;
    assert_eq!((copied.status.as_u16(), copied.json()["rev"].is_string()), (201, true));
    let attached = couch.send(couch.request("PUT", "/db/a/f?batch=ok").body("text")).await;
    assert_eq!((attached.status.as_u16(), attached.json()["rev"].is_string()), (201, true));
    let rev = attached.json()["rev"].as_str().unwrap().to_owned();
    // Only `rev` names the revision of an attachment to read.
    let read = couch.send(couch.request("GET", "/db/a/f").header("if-match", "\"1-other\"")).await;
    assert_eq!((read.status.as_u16(), read.text.as_str()), (200, "text"));
    let removed = couch.call("DELETE", &format!("/db/a/f?batch=ok&rev={rev}")).await;
    assert_eq!((removed.status.as_u16(), removed.json()["rev"].is_string()), (200, true));
    let rev = removed.json()["rev"].as_str().unwrap().to_owned();
    let deleted = couch.call("DELETE", &format!("/db/a?batch=ok&rev={rev}")).await;
    assert_eq!((deleted.status.as_u16(), deleted.json()["rev"].is_string()), (200, true));
    couch.get("/db/a").await.refused(404, "not_found", "deleted");
    // Local documents are not copied.
    couch.put("/db/_local/x", json!({})).await;
    let copied = couch.send(couch.request("COPY", "/db/_local/x").header("destination", "copy")).await;
    copied.refused(405, "method_not_allowed", "Only DELETE,GET,HEAD,PUT allowed");
}

#[tokio::test]
async fn up_says_whether_the_store_can_be_read() {
    let engine = engine_mem::MemDatabase::new();
    let couch = Couch::over(AnyDatabase::new(engine.clone()), Options::default()).await;
    let answer = couch.get("/_up").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"status": "ok", "seeds": {}})));
    engine.close().unwrap();
    let reason = "the store cannot be read; the server's log has the details";
    couch.get("/_up").await.refused(503, "service unavailable", reason);
    assert_eq!(couch.call("HEAD", "/_up").await.status, 503);
    assert_eq!(couch.get("/").await.status, 200, "the process lives");
}
