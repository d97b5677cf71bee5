//! Answers for documents with damaged rows.

use kv_api::{Database, RangeRequest, Read, Transaction};
use serde_json::{Value, json};

use crate::support::Couch;

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_document_has_an_error_row_and_its_neighbours_are_served() {
    let couch = Couch::start().await;
    couch.database("db").await;
    for id in ["a", "bad", "c"] {
        couch.put(&format!("/db/{id}"), json!({"n": 1})).await;
    }
    // A second branch, so that the whole tree is read, and a cut row of the first one.
    let second = json!({"new_edits": false, "docs": [{"_id": "bad", "_rev": "1-0"}]});
    couch.json("POST", "/db/_bulk_docs", second).await;
    let revisions = RangeRequest::prefix(b"\x15\x04\x14\x15\x04\x02bad\0");
    let transaction = couch.layer.engine().begin().unwrap();
    for row in transaction.get_range(&revisions, Read::Snapshot).await.unwrap().rows {
        transaction.set(&row.key, &row.value[..1]);
    }
    transaction.commit().await.unwrap();

    let error_of = |rows: &Value, key: &str| {
        let rows = rows.as_array().unwrap().clone();
        assert_eq!(rows.len(), 3, "{rows:?}");
        for row in rows.iter().filter(|row| row[key] != "bad") {
            assert!(row["error"].is_null() && row["doc"]["n"] == 1, "{row}");
        }
        rows.into_iter().find(|row| row[key] == "bad").unwrap()
    };
    let names_it = |error: &Value| {
        assert_eq!(error["error"], "internal_server_error", "{error}");
        assert!(error["reason"].as_str().unwrap().contains("\"bad\""), "{error}");
    };
    let listed = couch.get("/db/_all_docs?include_docs=true&conflicts=true").await.json();
    let row = error_of(&listed["rows"], "key");
    names_it(&row);
    assert!(row["value"].is_null(), "{row}");
    let fed = couch.get("/db/_changes?style=all_docs&include_docs=true").await.json();
    let row = error_of(&fed["results"], "id");
    names_it(&row);
    assert_eq!((row["changes"].as_array().unwrap().len(), &row["doc"]), (1, &Value::Null));
    let selected = json!({"selector": {"n": 1}});
    let path = "/db/_changes?filter=_selector&style=all_docs&include_docs=true";
    names_it(&error_of(&couch.json("POST", path, selected).await.json()["results"], "id"));

    let found = couch.json("POST", "/db/_find", json!({"selector": {"n": 1}, "conflicts": true})).await.json();
    assert_eq!((found["docs"].as_array().unwrap().len(), &found["docs"][1]["_id"]), (2, &json!("c")));
    assert!(found["warning"].as_str().unwrap().ends_with("\n1 documents cannot be read and were left out."), "{found}");

    let docs: Vec<Value> = ["a", "bad", "c"].map(|id| json!({"id": id})).to_vec();
    let got = couch.json("POST", "/db/_bulk_get", json!({"docs": docs})).await.json();
    names_it(&got["results"][1]["docs"][0]["error"]);
    assert_eq!(
        (&got["results"][0]["docs"][0]["ok"]["n"], &got["results"][2]["docs"][0]["ok"]["n"]),
        (&json!(1), &json!(1))
    );

    let wanted = json!({"a": ["1-x"], "bad": ["1-0"], "c": ["1-x"]});
    let diff = couch.json("POST", "/db/_revs_diff", wanted).await;
    assert_eq!((diff.status.as_u16(), &diff.json()["bad"]["missing"]), (200, &json!(["1-0"])));
    let docs: Vec<Value> = ["a", "bad", "c"].map(|id| json!({"_id": id, "_rev": "3-x"})).to_vec();
    let edits = json!({"new_edits": false, "docs": docs});
    let written = couch.json("POST", "/db/_bulk_docs", edits).await.json();
    assert_eq!(written.as_array().unwrap().len(), 1, "only failures are answered: {written}");
    names_it(&written[0]);
    for id in ["a", "c"] {
        assert_eq!(couch.get(&format!("/db/{id}")).await.json()["_rev"], "3-x");
    }
}
