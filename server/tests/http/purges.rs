//! `_purge`, `_purged_infos` and `_purged_infos_limit`, with the answers measured on CouchDB 3.5.2.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Couch, wait_for};

/// A document with the leaves `3-d` and `3-c` and the tombstone `2-e`.
async fn conflicted(couch: &Couch, id: &str) {
    let doc = |start: u64, ids: &[&str], deleted: bool| json!({"_id": id, "_revisions": {"start": start, "ids": ids}, "n": start, "_deleted": deleted});
    let docs = [doc(3, &["d", "b", "a"], false), doc(3, &["c", "b", "a"], false), doc(2, &["e", "a"], true)];
    let written = couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!((written.status.as_u16(), written.json()), (201, json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn leaves_are_purged() {
    let couch = Couch::start().await;
    couch.database("db").await;
    assert_eq!(couch.get("/db").await.json()["purge_seq"], json!("0"));
    conflicted(&couch, "a").await;
    couch.put("/db/b", json!({})).await;
    let since = couch.get("/db/_changes").await.json()["last_seq"].clone();
    let body = json!({"a": ["3-d", "2-b"], "b": [], "nobody": ["1-x"]});
    let purged = couch.json("POST", "/db/_purge", body).await;
    assert_eq!(purged.status.as_u16(), 201);
    assert_eq!(purged.text.trim_end(), r#"{"purge_seq":null,"purged":{"a":["3-d"],"b":[],"nobody":[]}}"#);
    let read = couch.get("/db/a?conflicts=true&deleted_conflicts=true").await.json();
    assert_eq!(
        (&read["_rev"], &read["_conflicts"], &read["_deleted_conflicts"]),
        (&json!("3-c"), &json!(null), &json!(["2-e"]))
    );
    let changes = couch.get(&format!("/db/_changes?since={}", since.as_str().unwrap())).await.json();
    let rows = changes["results"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["id"], &rows[0]["changes"]), (1, &json!("a"), &json!([{"rev": "3-c"}])));
    assert_eq!(couch.get("/db").await.json()["purge_seq"], json!("3"));

    // The whole document: no trace is left.
    let purged = couch.json("POST", "/db/_purge", json!({"a": ["3-c", "2-e"]})).await;
    assert_eq!(purged.json()["purged"], json!({"a": ["2-e", "3-c"]}));
    couch.get("/db/a").await.refused(404, "not_found", "missing");
    couch.get("/db/a?rev=3-c").await.refused(404, "not_found", "missing");
    let changes = couch.get("/db/_changes").await.json();
    assert_eq!((&changes["results"][0]["id"], &changes["results"][1]), (&json!("b"), &json!(null)));
    assert_eq!(couch.get("/db/_all_docs").await.json()["total_rows"], json!(1));
    let info = couch.get("/db").await.json();
    assert_eq!((&info["doc_count"], &info["doc_del_count"], &info["purge_seq"]), (&json!(1), &json!(0), &json!("4")));
    assert!(couch.put("/db/a", json!({})).await.starts_with("1-"));

    // Without a document nothing changes. The same purge twice is one entry.
    assert_eq!(couch.json("POST", "/db/_purge", json!({})).await.json()["purged"], json!({}));
    assert_eq!(couch.get("/db").await.json()["purge_seq"], json!("4"));
    couch.json("POST", "/db/_purge", json!({"nobody": ["1-x"]})).await;
    assert_eq!(couch.get("/db").await.json()["purge_seq"], json!("5"));
    let infos = json!({"purged_infos": [
        {"id": "a", "revs": ["2-b", "3-d"]},
        {"id": "b", "revs": []},
        {"id": "nobody", "revs": ["1-x"]},
        {"id": "a", "revs": ["2-e", "3-c"]},
    ]});
    assert_eq!(couch.get("/db/_purged_infos").await.json(), infos);
    assert_eq!(couch.get("/db/_couch_layer/check").await.json()["problem_count"], json!(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_purges_are_refused() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for (body, reason) in [
        ("[]", "Request body must be a JSON object"),
        (r#"{"a": "1-x"}"#, "Invalid list of revisions"),
        (r#"{"a": {}}"#, "Invalid list of revisions"),
        (r#"{"a": ["x"]}"#, "Invalid rev format"),
        (r#"{"a": [1]}"#, "Invalid rev format"),
    ] {
        couch.raw("POST", "/db/_purge", body).await.refused(400, "bad_request", reason);
    }
    let untyped = couch.send(couch.request("POST", "/db/_purge").body("{}")).await;
    untyped.refused(415, "bad_content_type", "Content-Type must be application/json");
    couch.get("/db/_purge").await.refused(405, "method_not_allowed", "Only POST allowed");
    couch.json("POST", "/db/_purged_infos", json!({})).await.refused(405, "method_not_allowed", "Only GET allowed");
    for body in [json!({}), json!({"a": ["1-x"]})] {
        couch.json("POST", "/none/_purge", body).await.refused(404, "not_found", "Database does not exist.");
    }
    // Any id is accepted.
    let ids = json!({"_design/d": [], "_local/x": ["1-x"], "": [], "_odd": [], "x".repeat(3_000): ["1-x"]});
    let purged = couch.json("POST", "/db/_purge", ids.clone()).await;
    assert_eq!(purged.status.as_u16(), 201);
    assert_eq!(purged.json()["purged"].as_object().unwrap().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_purges_remembered_is_set() {
    let couch = Couch::start().await;
    couch.database("db").await;
    assert_eq!(couch.get("/db/_purged_infos_limit").await.text.trim_end(), "1000");
    for wrong in ["0", "-1", "1.5", "\"5\"", "{}"] {
        let refused = couch.raw("PUT", "/db/_purged_infos_limit", wrong).await;
        refused.refused(400, "bad_request", "`purged_infos_limit` must be positive integer");
    }
    assert_eq!(couch.raw("PUT", "/db/_purged_infos_limit", "2").await.text.trim_end(), r#"{"ok":true}"#);
    assert_eq!(couch.get("/db/_purged_infos_limit").await.text.trim_end(), "2");
    for id in ["a", "b", "c"] {
        couch.json("POST", "/db/_purge", json!({id: ["1-x"]})).await;
    }
    let infos = couch.get("/db/_purged_infos").await.json();
    let ids: Vec<&str> =
        infos["purged_infos"].as_array().unwrap().iter().map(|info| info["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["b", "c"]);
    let refused = couch.json("DELETE", "/db/_purged_infos_limit", json!({})).await;
    assert_eq!(refused.status.as_u16(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_document_is_said_in_its_place() {
    use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};

    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let couch = Couch::over(engine.clone(), server::http::Options::default()).await;
    couch.database("db").await;
    let (a, b) = (couch.put("/db/a", json!({})).await, couch.put("/db/b", json!({})).await);
    let transaction = engine.begin().unwrap();
    let range = RangeRequest::prefix(&[0x15, 4, 0x14, 0x15, 4, 2, b'a']);
    let row = transaction.get_all(range, Read::Serializable).await.unwrap().remove(0);
    transaction.set(&row.key, &row.value[..3]);
    transaction.commit().await.unwrap();
    let purged = couch.json("POST", "/db/_purge", json!({"a": [a], "b": [&b]})).await;
    assert_eq!(purged.status.as_u16(), 500);
    let purged = purged.json()["purged"].clone();
    assert!(purged["a"]["error"].is_string() && purged["a"]["reason"].is_string(), "{purged}");
    assert_eq!(purged["b"], json!([b]));
}

#[tokio::test(flavor = "multi_thread")]
async fn old_tombstones_are_purged_by_a_command_beside_the_server() {
    use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};

    let engine = server::engine::open(&"mem:".parse().unwrap(), server::engine::IfMissing::Create).unwrap();
    let couch = Couch::over(engine.clone(), server::http::Options::default()).await;
    couch.database("db").await;
    let deleted = async |id: &str| {
        let rev = couch.put(&format!("/db/{id}"), json!({})).await;
        assert_eq!(couch.call("DELETE", &format!("/db/{id}?rev={rev}")).await.status.as_u16(), 200);
    };
    for id in ["bad", "old", "_design/old"] {
        deleted(id).await;
    }
    couch.put("/db/live", json!({})).await;
    let seq = couch.get("/db").await.json()["update_seq"].as_str().unwrap().to_owned();
    deleted("new").await;
    let transaction = engine.begin().unwrap();
    let range = RangeRequest::prefix(&[0x15, 4, 0x14, 0x15, 4, 2, b'b', b'a', b'd']);
    let row = transaction.get_all(range, Read::Serializable).await.unwrap().remove(0);
    transaction.set(&row.key, &row.value[..3]);
    transaction.commit().await.unwrap();

    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    command.env_clear().args(["purge", "db", "--url", &couch.base, "--deleted-before-seq", &seq]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "purged: 2\n", "{err}");
    assert!(!output.status.success() && err.contains("\"bad\"") && err.contains("1 documents"), "{err}");
    let rows = couch.get("/db/_changes").await.json();
    let ids: Vec<&str> = rows["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["bad", "live", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_says_how_long_its_tombstones_are_kept() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let set = |body: Value| couch.json("PUT", "/db/_auto_purge", body);
    assert_eq!(couch.get("/db/_auto_purge").await.json(), json!({}));
    assert_eq!(couch.raw("PUT", "/db/_purged_infos_limit", "7").await.status, 200);
    let answer = set(json!({"deleted_document_ttl": "3_mon"})).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (201, json!({"ok": true})));
    for (wrong, reason) in [
        (json!({"deleted_document_ttl": "3 months"}), "deleted_document_ttl must be a valid string"),
        (json!({"deleted_document_ttl": 3}), "deleted_document_ttl must be a valid string"),
        (
            json!({"deleted_document_ttl": format!("{}1_d", "0".repeat(200))}),
            "deleted_document_ttl must be a valid string",
        ),
        (json!({"ttl": "3_mon"}), "invalid auto purge property"),
        (json!(["3_mon"]), "Request body must be a JSON object"),
    ] {
        set(wrong).await.refused(400, "bad_request", reason);
    }
    assert_eq!(couch.get("/db/_auto_purge").await.json(), json!({"deleted_document_ttl": "3_mon"}));
    set(json!({"deleted_document_ttl": "infinity"})).await;
    assert_eq!(couch.get("/db/_auto_purge").await.json(), json!({"deleted_document_ttl": "infinity"}));
    assert_eq!(set(json!({})).await.status, 201);
    assert_eq!(couch.get("/db/_auto_purge").await.json(), json!({}));
    assert_eq!(couch.get("/db/_purged_infos_limit").await.text.trim_end(), "7", "it is kept beside");
    assert_eq!(couch.json("PUT", "/none/_auto_purge", json!({})).await.status, 404);
}

async fn deleted(couch: &Couch, path: &str) {
    let rev = couch.put(path, json!({})).await;
    assert_eq!(couch.call("DELETE", &format!("{path}?rev={rev}")).await.status, 200);
}

async fn configure(couch: &Couch, path: &str, value: &str) {
    assert_eq!(couch.json("PUT", &format!("/_node/_local/_config/{path}"), json!(value)).await.status, 200);
}

/// The number of tombstones in a database.
async fn tombstones(couch: &Couch, db: &str) -> Value {
    couch.get(&format!("/{db}")).await.json()["doc_del_count"].clone()
}

async fn until_purged(couch: &Couch, db: &str, left: usize) {
    wait_for(&format!("{left} tombstones in {db}"), async || (tombstones(couch, db).await == left).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_tombstones_are_purged_where_a_database_says_so() {
    let couch = Couch::start().await;
    for db in ["soon", "kept", "usual"] {
        couch.database(db).await;
        deleted(&couch, &format!("/{db}/gone")).await;
        couch.put(&format!("/{db}/live"), json!({})).await;
    }
    // A document with a live leaf and a tombstone.
    let docs = json!([{"_id": "both", "_rev": "1-a"}, {"_id": "both", "_rev": "2-b", "_deleted": true}]);
    let bulk = json!({"new_edits": false, "docs": docs});
    assert_eq!(couch.json("POST", "/soon/_bulk_docs", bulk).await.json(), json!([]));
    couch.json("PUT", "/soon/_auto_purge", json!({"deleted_document_ttl": "1_sec"})).await;
    couch.json("PUT", "/kept/_auto_purge", json!({"deleted_document_ttl": "infinity"})).await;
    let section = "couch_auto_purge_plugin";
    configure(&couch, &format!("{section}/repeat"), "1_sec").await;
    configure(&couch, &format!("{section}/dry_run"), "true").await;
    configure(&couch, "couch_scanner_plugins/couch_auto_purge_plugin", "true").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(tombstones(&couch, "soon").await, 1, "they are only counted");
    configure(&couch, &format!("{section}/dry_run"), "false").await;
    until_purged(&couch, "soon", 0).await;
    assert_eq!((tombstones(&couch, "kept").await, tombstones(&couch, "usual").await), (json!(1), json!(1)));
    couch.get("/soon/gone").await.refused(404, "not_found", "missing");
    let both = couch.get("/soon/both?deleted_conflicts=true").await.json();
    assert_eq!((&both["_rev"], &both["_deleted_conflicts"]), (&json!("1-a"), &json!(["2-b"])));
    assert_eq!(couch.get("/soon").await.json()["doc_count"], 2);
    configure(&couch, &format!("{section}/deleted_document_ttl"), "1_sec").await;
    until_purged(&couch, "usual", 0).await;
    assert_eq!(tombstones(&couch, "kept").await, 1, "the database's own setting counts");
    // Later deletions are purged too.
    deleted(&couch, "/usual/later").await;
    until_purged(&couch, "usual", 0).await;
    let jobs = couch.layer.jobs();
    assert_eq!(jobs.list("auto_purge").await.unwrap().len(), 1);
    configure(&couch, "couch_scanner_plugins/couch_auto_purge_plugin", "false").await;
    wait_for("the job ends", async || jobs.list("auto_purge").await.unwrap().is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_of_vaults_stay() {
    let couch = Couch::start().await;
    let vaults = ["settings", "former", "index", "data", "livesync"];
    for db in vaults.into_iter().chain(["other"]) {
        couch.database(db).await;
        deleted(&couch, &format!("/{db}/gone")).await;
        couch.json("PUT", &format!("/{db}/_auto_purge"), json!({"deleted_document_ttl": "1_sec"})).await;
    }
    couch.put("/settings/chunks:settings", json!({})).await;
    deleted(&couch, "/former/chunks:settings").await;
    couch.put("/index/idx:3f", json!({})).await;
    couch.put("/data/dat:3f-001", json!({})).await;
    assert_eq!(couch.json("PUT", "/livesync/_local/obsydian_livesync_milestone", json!({})).await.status, 201);
    configure(&couch, "couch_auto_purge_plugin/repeat", "1_sec").await;
    configure(&couch, "couch_scanner_plugins/couch_auto_purge_plugin", "true").await;
    // Databases are looked at in the order of their names.
    until_purged(&couch, "other", 0).await;
    deleted(&couch, "/other/later").await;
    until_purged(&couch, "other", 0).await;
    for db in vaults {
        assert_eq!(tombstones(&couch, db).await, if db == "former" { 2 } else { 1 }, "{db}");
    }
}

const ASKED: &str = "_couch_layer/purge_tombstones";

#[tokio::test(flavor = "multi_thread")]
async fn old_tombstones_are_purged_when_an_administrator_asks() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for number in 0..5 {
        deleted(&couch, &format!("/db/gone{number}")).await;
    }
    couch.put("/db/live", json!({})).await;
    let docs = json!([{"_id": "both", "_rev": "1-a"}, {"_id": "both", "_rev": "2-b", "_deleted": true}]);
    couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!(couch.raw("PUT", "/db/_purged_infos_limit", "4").await.status, 200);
    let path = format!("/db/{ASKED}");
    let ask = |body: Value| couch.json("POST", &path, body);
    // No time is known. The request notes it, so that the clock can be checked before the next one.
    let refused = ask(json!({"older": "1s"})).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]), (412, &json!("precondition_failed")));
    assert!(refused.text.contains("no recent time is known"), "{}", refused.text);
    let nothing = json!({"dry_run": true, "old": 0, "most": 2, "purged": 0, "failed": 0, "left": 0});
    assert_eq!(ask(json!({"older": "90d", "dry_run": true})).await.json(), nothing);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    deleted(&couch, "/db/later").await;
    let found = ask(json!({"older": "1s", "dry_run": true})).await;
    assert_eq!(found.json(), json!({"dry_run": true, "old": 5, "most": 2, "purged": 0, "failed": 0, "left": 5}));
    assert_eq!(tombstones(&couch, "db").await, 6);
    // A round purges at most half of the purges that the database remembers.
    for (old, purged) in [(5, 2), (3, 2), (1, 1), (0, 0)] {
        let round = ask(json!({"older": "1s"})).await.json();
        let told =
            json!({"dry_run": false, "old": old, "most": 2, "purged": purged, "failed": 0, "left": old - purged});
        assert_eq!(round, told);
    }
    couch.get("/db/later").await.refused(404, "not_found", "deleted");
    assert_eq!(couch.get("/db/both?deleted_conflicts=true").await.json()["_deleted_conflicts"], json!(["2-b"]));
    let purged = couch.get("/db/_purged_infos").await.json();
    assert!(!purged.to_string().contains("both"), "{purged}");

    for (body, reason) in [
        (json!({}), "`older` must be a time, for example 90d"),
        (json!({"older": "90"}), "`older` must be a time, for example 90d"),
        (json!({"older": "0s"}), "`older` must be a time, for example 90d"),
        (json!({"older": 90}), "`older` must be a time, for example 90d"),
        (json!({"older": "90d", "dry_run": 1}), "`dry_run` must be true or false"),
        (json!({"older": "90d", "dryrun": true}), "only `older` and `dry_run` may be given"),
    ] {
        ask(body).await.refused(400, "bad_request", reason);
    }
    assert_eq!(couch.json("POST", &format!("/none/{ASKED}"), json!({"older": "90d"})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_of_vaults_stay_also_if_only_tombstones_are_left_of_them() {
    let couch = Couch::start().await;
    for (db, path, is_live) in [
        ("chunks", "h:3f", true),
        ("gone", "h:3f", false),
        ("index", "idx:3f", false),
        ("data", "dat:3f-001", false),
        ("settings", "chunks:settings", false),
        ("livesync", "_local/obsydian_livesync_milestone", true),
    ] {
        couch.database(db).await;
        deleted(&couch, &format!("/{db}/first")).await;
        match is_live {
            true => drop(couch.json("PUT", &format!("/{db}/{path}"), json!({})).await),
            false => deleted(&couch, &format!("/{db}/{path}")).await,
        }
        let before = tombstones(&couch, db).await;
        let asked = format!("/{db}/{ASKED}");
        let ask = || couch.json("POST", &asked, json!({"older": "1s"}));
        ask().await;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let reason = "old tombstones of a vault are not purged: a device that was away needs them";
        ask().await.refused(412, "precondition_failed", reason);
        assert_eq!(tombstones(&couch, db).await, before, "{db}");
    }
}
