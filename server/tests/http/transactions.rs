//! `POST /_transact`.

use serde_json::{Value, json};

use crate::support::{Answer, Couch};

async fn transact(couch: &Couch, edits: Value) -> Answer {
    couch.json("POST", "/_transact", json!({"edits": edits})).await
}

async fn ids(couch: &Couch, db: &str) -> Vec<String> {
    let changes = couch.get(&format!("/{db}/_changes")).await.json();
    changes["results"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_several_databases_are_written_together() {
    let couch = Couch::start().await;
    couch.database("accounts").await;
    couch.database("ledger").await;
    let anna = couch.put("/accounts/anna", json!({"balance": 5})).await;
    let old = couch.put("/accounts/old", json!({})).await;
    let made = transact(
        &couch,
        json!([
            {"db": "accounts", "doc": {"_id": "zoe", "balance": 2}},
            {"db": "ledger", "doc": {"from": "anna", "to": "zoe", "_attachments": {
                "receipt": {"content_type": "text/plain", "data": "Zm9y"},
            }}},
            {"db": "accounts", "doc": {"_id": "anna", "_rev": anna, "balance": 3}},
            {"db": "accounts", "doc": {"_id": "old", "_rev": old, "_deleted": true}},
        ]),
    )
    .await;
    assert_eq!(made.status.as_u16(), 201, "{}", made.text);
    let made = made.json();
    let databases: Vec<&str> = made.as_array().unwrap().iter().map(|edit| edit["db"].as_str().unwrap()).collect();
    assert_eq!(databases, ["accounts", "ledger", "accounts", "accounts"]);
    assert!(made.as_array().unwrap().iter().all(|edit| edit["ok"] == json!(true)));
    assert_eq!(ids(&couch, "accounts").await, ["zoe", "anna", "old"], "in the order of the edits");
    let found = couch.get("/accounts/anna").await.json();
    assert_eq!(found, json!({"_id": "anna", "_rev": made[2]["rev"], "balance": 3}));
    couch.get("/accounts/old").await.refused(404, "not_found", "deleted");
    let entry = made[1]["id"].as_str().unwrap();
    assert_eq!(couch.get(&format!("/ledger/{entry}/receipt")).await.text, "for");
    assert_eq!(transact(&couch, json!([])).await.json(), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_edit_refuses_all_and_is_named() {
    let couch = Couch::start().await;
    couch.database("one").await;
    couch.database("other").await;
    let first = couch.put("/one/a", json!({"n": 1})).await;
    couch.put("/one/a", json!({"_rev": first, "n": 2})).await;
    let before = (couch.contents("one").await, couch.contents("other").await);
    let refused = transact(
        &couch,
        json!([
            {"db": "other", "doc": {"_id": "new"}},
            {"db": "one", "doc": {"_id": "a", "_rev": first, "n": 3}},
            {"db": "one", "doc": {"_id": "b"}},
            {"db": "other", "doc": {"_id": "ghost", "_rev": "4-c"}},
        ]),
    )
    .await;
    let conflict = "Document update conflict.";
    refused.refused(
        409,
        "conflict",
        r#""a" in one: Document update conflict.; "ghost" in other: Document update conflict."#,
    );
    let named = json!([
        {"edit": 1, "db": "one", "id": "a", "error": "conflict", "reason": conflict},
        {"edit": 3, "db": "other", "id": "ghost", "error": "conflict", "reason": conflict},
    ]);
    assert_eq!(refused.json()["edits"], named);

    for (edits, status, named) in [
        (json!([{"db": "one", "doc": {"_id": "b"}}, {"db": "none", "doc": {"_id": "c"}}]), 404, json!([1])),
        (json!([{"db": "one", "doc": {"_id": "b"}}, {"db": "one", "doc": {"_id": "b"}}]), 400, json!([1])),
        (json!([{"db": "one", "doc": {"_id": "_local/b"}}, {"db": "one", "doc": {"_id": "b"}}]), 400, json!([0])),
    ] {
        let refused = transact(&couch, edits).await;
        assert_eq!(refused.status.as_u16(), status, "{}", refused.text);
        let edits = refused.json();
        let edits: Vec<&Value> = edits["edits"].as_array().unwrap().iter().map(|edit| &edit["edit"]).collect();
        assert_eq!(json!(edits), named);
    }
    for (body, reason) in [
        (json!({}), "POST body must include an array `edits`."),
        (json!({"edits": {}}), "POST body must include an array `edits`."),
        (json!({"edits": [{"doc": {}}]}), "An edit must name its database in `db`."),
        (json!({"edits": [{"db": "one"}]}), "An edit must have a document in `doc`."),
        (json!({"edits": [{"db": "one", "doc": 1}]}), "Document must be a JSON object"),
    ] {
        couch.json("POST", "/_transact", body).await.refused(400, "bad_request", reason);
    }
    assert_eq!((couch.contents("one").await, couch.contents("other").await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_needs_what_each_of_its_edits_needs() {
    let couch = Couch::with_administrator().await;
    let admin = |method: &str, path: &str| couch.request(method, path).basic_auth("adm", Some("pass word"));
    couch.send(admin("PUT", "/open")).await;
    couch.send(admin("PUT", "/closed")).await;
    let open = json!({"admins": {"names": [], "roles": []}, "members": {"names": [], "roles": []}});
    couch.send(admin("PUT", "/open/_security").body(open.to_string())).await;
    let edit = |db: &str, id: &str| json!({"db": db, "doc": {"_id": id}});
    let allowed = transact(&couch, json!([edit("open", "a")])).await;
    assert_eq!(allowed.status.as_u16(), 201, "{}", allowed.text);
    for refused in [edit("closed", "b"), edit("open", "_design/b"), edit("_users", "b")] {
        let answer = transact(&couch, json!([edit("open", "c"), refused])).await;
        assert_eq!(answer.status.as_u16(), 401, "{}", answer.text);
    }
    let listed = couch.send(admin("GET", "/open/_all_docs")).await.json();
    assert_eq!(listed["total_rows"], json!(1));
    let body = json!({"edits": [edit("open", "d"), edit("closed", "d")]});
    let posted = admin("POST", "/_transact").header("content-type", "application/json").body(body.to_string());
    let made = couch.send(posted).await;
    assert_eq!(made.status.as_u16(), 201, "{}", made.text);
}
