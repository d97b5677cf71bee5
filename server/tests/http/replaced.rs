//! Replaced revisions, in databases that keep their bodies.

use serde_json::{Value, json};

use crate::support::{Couch, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn replaced_revisions_are_read_where_they_are_kept() {
    let couch = Couch::start().await;
    assert_eq!(couch.call("PUT", "/db?keep_replaced=5").await.status, 201);
    assert_eq!(couch.get("/db/_keep_replaced").await.json(), json!(5));
    assert_eq!(couch.get("/db").await.json()["props"]["keep_replaced"], json!(5));
    let edit = async |body: Value| couch.put("/db/a", body).await;
    let files = json!({"f": {"content_type": "text/plain", "data": "Zmlyc3Q="}});
    let first = edit(json!({"n": 1, "_attachments": files})).await;
    let second = edit(json!({"n": 2, "_rev": first})).await;
    let dead = couch.call("DELETE", &format!("/db/a?rev={second}")).await.json()["rev"].as_str().unwrap().to_owned();
    let last = edit(json!({"n": 4})).await;

    let found = couch.get(&format!("/db/a?rev={first}&revs=true")).await;
    assert_eq!(
        (found.status.as_u16(), &found.json()["n"], &found.json()["_revisions"]["start"]),
        (200, &json!(1), &json!(1))
    );
    assert_eq!(couch.get(&format!("/db/a/f?rev={first}")).await.text, "first");
    assert_eq!(couch.get(&format!("/db/a?rev={dead}")).await.json()["_deleted"], json!(true));
    let infos = couch.get("/db/a?revs_info=true").await.json()["_revs_info"].clone();
    let statuses: Vec<&str> = infos.as_array().unwrap().iter().map(|info| info["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["available", "deleted", "available", "available"]);
    let revs = json!([second, "2-11111111111111111111111111111111"]).to_string();
    let opened = couch.call("GET", &format!("/db/a?open_revs={}", revs.replace('"', "%22"))).await;
    assert!(opened.text.contains(r#""n":2"#) && opened.text.contains("missing"), "{}", opened.text);
    let got = couch.json("POST", "/db/_bulk_get", json!({"docs": [{"id": "a", "rev": second}]})).await.json();
    assert_eq!(got["results"][0]["docs"][0]["ok"]["n"], json!(2));
    assert_eq!(couch.json("PUT", "/db/a", json!({"_rev": second})).await.status, 409);
    let changes = couch.get("/db/_changes?style=all_docs").await.json();
    assert_eq!(changes["results"][0]["changes"], json!([{"rev": last}]), "leaves only");

    // A compaction removes them.
    assert_eq!(couch.json("POST", "/db/_compact", json!({})).await.status, 202);
    wait_for("it is compacted", async || (couch.get("/db").await.json()["compact_running"] == false).then_some(()))
        .await;
    assert_eq!(couch.get(&format!("/db/a?rev={first}")).await.status, 404);
    assert_eq!(couch.get(&format!("/db/a/f?rev={first}")).await.status, 404);
    assert_eq!(couch.get(&format!("/db/a?rev={last}")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_of_replaced_revisions_is_set() {
    let couch = Couch::start().await;
    couch.database("db").await;
    assert_eq!(couch.get("/db/_keep_replaced").await.json(), json!(0));
    assert_eq!(couch.get("/db").await.json()["props"], json!({}));
    for (value, expected) in [("\"2w\"", json!("14d")), ("7", json!(7)), ("\"9\"", json!(9)), ("0", json!(0))] {
        assert_eq!(couch.raw("PUT", "/db/_keep_replaced", value).await.json(), json!({"ok": true}));
        assert_eq!(couch.get("/db/_keep_replaced").await.json(), expected);
    }
    for wrong in ["4001", "-1", "\"x\"", "1.5", "null", "{}"] {
        assert_eq!(couch.raw("PUT", "/db/_keep_replaced", wrong).await.status, 400, "{wrong}");
    }
    assert_eq!(couch.call("PUT", "/other?keep_replaced=soon").await.status, 400);
    assert_eq!(couch.call("PUT", "/other?keep_replaced=0").await.status, 201);
    assert_eq!(couch.get("/other/_keep_replaced").await.json(), json!(0));

    // Switched off, nothing can be read.
    couch.raw("PUT", "/db/_keep_replaced", "\"30d\"").await;
    let first = couch.put("/db/a", json!({})).await;
    couch.put("/db/a", json!({"_rev": first, "n": 2})).await;
    assert_eq!(couch.get(&format!("/db/a?rev={first}")).await.status, 200);
    couch.raw("PUT", "/db/_keep_replaced", "0").await;
    assert_eq!(couch.get(&format!("/db/a?rev={first}")).await.status, 404);
}
