//! `GET /{db}/_conflicts`.

use serde_json::{Value, json};

use crate::support::Couch;

#[tokio::test(flavor = "multi_thread")]
async fn documents_with_conflicts_are_listed() {
    let couch = Couch::start().await;
    couch.database("db").await;
    let leaf =
        |id: &str, hash: &str, deleted: bool| json!({"_id": id, "_rev": format!("1-{hash}"), "_deleted": deleted});
    let docs: Vec<Value> = vec![
        leaf("a", "aa", false),
        leaf("a", "ab", false),
        leaf("b", "ba", false),
        leaf("c", "ca", false),
        leaf("c", "cb", true),
        leaf("d", "da", false),
        leaf("d", "db", false),
        leaf("d", "dc", true),
    ];
    let bulk = couch.json("POST", "/db/_bulk_docs", json!({"new_edits": false, "docs": docs})).await;
    assert_eq!((bulk.status.as_u16(), bulk.json()), (201, json!([])));
    let all = couch.get("/db/_conflicts").await.json();
    let found = |answer: &Value| -> Vec<(Value, Value)> {
        answer["results"].as_array().unwrap().iter().map(|row| (row["id"].clone(), row["revs"].clone())).collect()
    };
    let (a, d) = ((json!("a"), json!(["1-ab", "1-aa"])), (json!("d"), json!(["1-db", "1-da"])));
    assert_eq!((found(&all), &all["more"]), (vec![a.clone(), d.clone()], &json!(false)));
    assert_eq!(all["last_seq"], couch.get("/db").await.json()["update_seq"]);
    let first = couch.get("/db/_conflicts?limit=1").await.json();
    assert_eq!((found(&first), &first["more"]), (vec![a], &json!(true)));
    let since = first["last_seq"].as_str().unwrap();
    let rest = couch.get(&format!("/db/_conflicts?limit=1&since={since}")).await.json();
    assert_eq!(found(&rest), [d]);
    let reason = "`since` is not a sequence of this server";
    couch.get("/db/_conflicts?since=xyz").await.refused(400, "bad_request", reason);
    couch.get("/none/_conflicts").await.refused(404, "not_found", "Database does not exist.");
}
