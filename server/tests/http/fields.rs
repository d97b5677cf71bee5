//! `fields`: documents with only some of their members.

use serde_json::json;

use crate::support::Couch;

#[tokio::test(flavor = "multi_thread")]
async fn documents_give_the_fields_that_are_asked_for() {
    let couch = Couch::start().await;
    for format in ["exploded", "packed"] {
        assert_eq!(couch.call("PUT", &format!("/{format}?format={format}")).await.status.as_u16(), 201);
        let doc = json!({"a": {"b": 1, "c": [1, 2]}, "d.e": 5, "f": {"g": null}, "comma,": 1});
        let rev = couch.put(&format!("/{format}/doc"), doc).await;
        let get = async |query: &str| couch.get(&format!("/{format}/doc?{query}")).await;
        for (query, expected) in [
            ("fields=a.b,f", json!({"a": {"b": 1}, "f": {"g": null}})),
            ("fields=a.c.1,none", json!({"a": {"c": {"1": 2}}})),
            ("fields=_id,_rev,d%5C.e", json!({"_id": "doc", "_rev": rev, "d.e": 5})),
            ("fields=%5B%22comma,%22%5D", json!({"comma,": 1})),
            ("fields=a.b,_revisions&revs=true", json!({"a": {"b": 1}, "_revisions": {"start": 1, "ids": [&rev[2..]]}})),
            (&*format!("fields=a.b&rev={rev}"), json!({"a": {"b": 1}})),
        ] {
            assert_eq!(get(query).await.json(), expected, "{query} of {format}");
        }
        let answer = get("fields=a.b").await;
        assert_eq!(answer.header("etag"), format!("\"{rev}\""));
        let cached =
            couch.request("GET", &format!("/{format}/doc?fields=a.b")).header("if-none-match", format!("\"{rev}\""));
        assert_eq!(couch.send(cached).await.status.as_u16(), 304);
        couch.get(&format!("/{format}/none?fields=a")).await.refused(404, "not_found", "missing");
        assert_eq!(get("fields=a..b").await.status.as_u16(), 400);

        let rows = couch.get(&format!("/{format}/_all_docs?include_docs=true&fields=_id,a.b")).await.json();
        assert_eq!(rows["rows"][0]["doc"], json!({"_id": "doc", "a": {"b": 1}}));
        let posted = json!({"include_docs": true, "fields": ["f"], "keys": ["doc", "none"]});
        let rows = couch.json("POST", &format!("/{format}/_all_docs"), posted).await.json();
        assert_eq!(
            (&rows["rows"][0]["doc"], &rows["rows"][1]["error"]),
            (&json!({"f": {"g": null}}), &json!("not_found"))
        );
        let rows = couch.get(&format!("/{format}/_changes?include_docs=true&fields=a.c")).await.json();
        assert_eq!(rows["results"][0]["doc"], json!({"a": {"c": [1, 2]}}));
        assert_eq!(rows["results"][0]["changes"], json!([{"rev": rev}]));
        let rows = couch.get(&format!("/{format}/_changes?fields=a.c")).await.json();
        assert_eq!(rows["results"][0]["doc"], json!(null));
    }
}
