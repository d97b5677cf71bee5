//! Views that are tried before they are stored.

use serde_json::{Value, json};

use crate::rights::{admin, as_user, with_users};
use crate::support::Couch;

const PATH: &str = "/db/_couch_layer/try_view";

fn asked(map: &str, reduce: Value, documents: u32) -> Value {
    let mut view = json!({"map": map});
    if !reduce.is_null() {
        view["reduce"] = reduce;
    }
    // The other view does not compile; that is not this one's error.
    json!({"design": {"_id": "_design/d", "views": {"v": view, "other": {"map": "nothing at all"}}}, "view": "v",
        "documents": documents})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_tried_on_the_last_documents_and_not_stored() {
    let docs: Vec<Value> = (0..30).map(|n| json!({"_id": format!("d{n:02}"), "n": n})).collect();
    let couch = Couch::with_docs(docs).await;
    couch.put("/db/_design/kept", json!({"views": {"v": {"map": "function (doc) { emit(1) }"}}})).await;
    let rev = couch.put("/db/gone", json!({"n": 99})).await;
    couch.call("DELETE", &format!("/db/gone?rev={rev}")).await;
    let before = couch.contents("db").await;

    let map = "function (doc) { if (doc.n === 7) throw new Error('seven'); emit(-doc.n, doc.n) }";
    let all = couch.json("POST", PATH, asked(map, json!("_sum"), 50)).await;
    assert_eq!(all.status, 200, "{}", all.text);
    let all = all.json();
    assert_eq!((&all["documents"], &all["more"], &all["total_rows"]), (&json!(30), &json!(false), &json!(29)));
    assert_eq!(all["rows"][0], json!({"id": "d29", "key": -29, "value": 29}));
    assert_eq!(all["rows"][28], json!({"id": "d00", "key": 0, "value": 0}));
    assert_eq!(all["reduced"], json!({"value": 435 - 7}));
    assert_eq!(all["errors"].as_array().unwrap().len(), 1);
    assert_eq!(all["errors"][0]["id"], "d07");
    assert!(all["errors"][0]["reason"].as_str().unwrap().contains("seven"), "{}", all["errors"]);

    let some = couch.json("POST", PATH, asked("doc => emit(doc._id)", Value::Null, 3)).await.json();
    assert_eq!((&some["documents"], &some["more"]), (&json!(3), &json!(true)));
    let ids: Vec<&str> = some["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["d27", "d28", "d29"]);
    assert!(some.get("reduced").is_none());
    assert_eq!(couch.contents("db").await, before);
    assert_eq!(couch.get("/db/_design/d").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reduction_that_depends_on_how_rows_are_divided_is_shown() {
    let docs: Vec<Value> = (0..4).map(|n| json!({"_id": format!("d{n}"), "n": n})).collect();
    let couch = Couch::with_docs(docs).await;
    let counted = |reduce: &str| asked("doc => emit(doc.n, 1)", json!(reduce), 50);
    let wrong = couch.json("POST", PATH, counted("function (keys, values) { return values.length }")).await.json();
    assert_eq!((&wrong["reduced"], &wrong["rereduced"]), (&json!({"value": 4}), &json!({"value": 2})));
    let right = "function (keys, values, again) { return again ? sum(values) : values.length }";
    let right = couch.json("POST", PATH, counted(right)).await.json();
    assert_eq!((&right["reduced"], &right["rereduced"]), (&json!({"value": 4}), &json!({"value": 4})));
    let failing = couch.json("POST", PATH, counted("_stats")).await.json();
    assert_eq!(failing["reduced"]["value"]["count"], 4);
    let texts = couch.json("POST", PATH, asked("doc => emit(doc.n, 'x')", json!("_sum"), 50)).await.json();
    assert_eq!(texts["reduced"]["value"]["error"], "builtin_reduce_error", "{texts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_is_bounded_and_refused_as_a_whole_if_it_cannot_begin() {
    let docs: Vec<Value> = (0..100).map(|n| json!({"_id": format!("d{n:03}"), "n": n})).collect();
    let couch = Couch::with_docs(docs).await;
    let much = "doc => { for (let n = 0; n < 100; n++) emit(n, 'x'.repeat(5000)) }";
    let much = couch.json("POST", PATH, asked(much, Value::Null, 100)).await;
    let (length, much) = (much.text.len(), much.json());
    assert!(much["documents"].as_u64().unwrap() < 100 && much["more"] == true, "{}", much["documents"]);
    assert!(length < 2 << 20, "{length} bytes");
    assert!(much["rows"][0]["value"].as_str().unwrap().ends_with("x\u{2026}"));
    let endless = couch.json("POST", PATH, asked("doc => { for (;;) ; }", Value::Null, 2)).await.json();
    assert_eq!((endless["rows"].as_array().unwrap().len(), endless["errors"].as_array().unwrap().len()), (0, 2));

    for (body, status, error) in [
        (asked("function (doc) {", Value::Null, 5), 400, "compilation_error"),
        (asked("doc => emit(1)", json!("_none"), 5), 400, "bad_request"),
        (asked("doc => emit(1)", Value::Null, 0), 400, "bad_request"),
        (asked("doc => emit(1)", Value::Null, 501), 400, "bad_request"),
        (json!({"design": {"views": {}}, "view": "v"}), 404, "not_found"),
        (json!({"design": {"views": []}, "view": "v"}), 404, "not_found"),
        (
            json!({"design": {"language": "erlang", "views": {"v": {"map": "x"}}}, "view": "v"}),
            500,
            "unknown_query_language",
        ),
        (json!({"design": [], "view": "v"}), 400, "bad_request"),
        (json!({"design": {}}), 400, "bad_request"),
    ] {
        let refused = couch.json("POST", PATH, body.clone()).await;
        assert_eq!((refused.status.as_u16(), refused.json()["error"].as_str().unwrap()), (status, error), "{body}");
    }
    let plain = couch.send(couch.request("POST", PATH).header("content-type", "text/plain").body("{}")).await;
    assert_eq!(plain.status, 415, "a form of another site");
    assert_eq!(couch.json("POST", "/none/_couch_layer/try_view", json!({})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_of_a_database_try_views() {
    let couch = with_users(&[("anna", &[]), ("bert", &[])]).await;
    admin(&couch, "PUT", "/db", json!(null)).await;
    let security = json!({"admins": {"names": ["anna"]}, "members": {"names": ["bert"]}});
    assert_eq!(admin(&couch, "PUT", "/db/_security", security).await.status, 200);
    let body = asked("doc => emit(1)", Value::Null, 5);
    assert_eq!(as_user(&couch, "anna", "pw anna", "POST", PATH, body.clone()).await.status, 200);
    assert_eq!(as_user(&couch, "bert", "pw bert", "POST", PATH, body.clone()).await.status, 403);
    assert_eq!(couch.json("POST", PATH, body).await.status, 401);
}
