//! Local documents and settings.

use model::{AllDocsRequest, ChangesRequest};

use crate::stage::*;

pub(crate) async fn local_documents_have_no_history_and_are_in_no_feed(stage: Stage) {
    let documents = stage.documents().await;
    let missing = documents.get_local("_local/a").await.unwrap_err();
    assert_eq!((missing.status(), missing.reason().as_ref()), (404, "missing"));
    assert_eq!(documents.delete_local("_local/a").await.unwrap_err().status(), 404);
    assert_eq!(documents.put_local("_local/a", None, json(r#"{"n":1}"#)).await.unwrap(), 1);
    let long = format!(r#"{{"long":"{}"}}"#, "é".repeat(200_000));
    assert_eq!(documents.put_local("_local/a", Some(1), json(&long)).await.unwrap(), 2);
    let read = documents.get_local("_local/a").await.unwrap();
    assert_eq!((read.id.as_str(), read.rev, read.body.as_str()), ("_local/a", 2, long.as_str()));
    assert_eq!(documents.put_local("_local/a", Some(2), json(r#"{"n":3}"#)).await.unwrap(), 3);
    assert_eq!(documents.get_local("_local/a").await.unwrap().body.as_str(), r#"{"n":3}"#, "no part is left over");

    documents.put_local("_local/b", None, json("{}")).await.unwrap();
    documents.put_local("_local/ab", None, json(&long)).await.unwrap();
    let request = AllDocsRequest::default;
    let some = |id: &str| Some(id.to_owned());
    for (request, expected) in [
        (request(), vec!["_local/a", "_local/ab", "_local/b"]),
        (AllDocsRequest { descending: true, ..request() }, vec!["_local/b", "_local/ab", "_local/a"]),
        (AllDocsRequest { start: some("_local/ab"), limit: Some(1), ..request() }, vec!["_local/ab"]),
        (AllDocsRequest { end: some("_local/ab"), ..request() }, vec!["_local/a", "_local/ab"]),
        (AllDocsRequest { end: some("_local/ab"), inclusive_end: false, ..request() }, vec!["_local/a"]),
        (AllDocsRequest { skip: 1, ..request() }, vec!["_local/ab", "_local/b"]),
    ] {
        let rows = documents.local_docs(&request).await.unwrap().rows;
        assert_eq!(rows.into_iter().map(|row| row.id).collect::<Vec<_>>(), expected, "{request:?}");
    }
    let keys = Some(["_local/x", "_local/b"].map(str::to_owned).into());
    let rows = documents.local_docs(&AllDocsRequest { keys, include_docs: true, ..request() }).await.unwrap().rows;
    assert_eq!((rows[0].rev, rows[1].rev, rows[1].body.clone()), (None, Some(1), Some(json("{}"))));

    documents.delete_local("_local/a").await.unwrap();
    assert_eq!(documents.get_local("_local/a").await.unwrap_err().status(), 404);
    for id in ["a", "_design/a", "_local/"] {
        assert_eq!(documents.put_local(id, None, json("{}")).await.unwrap_err().error(), "illegal_docid", "{id}");
    }
    assert_eq!(documents.put_local("_local/a", None, json("[]")).await.unwrap_err().status(), 400);
    let special = json(r#"{"n":1,"_rev":"0-9"}"#);
    assert_eq!(documents.put_local("_local/a", None, special).await.unwrap_err().error(), "doc_validation");
    assert_eq!(feed(&documents, ChangesRequest::default()).await, [], "they are never in the feed");
    assert_sound(&documents).await;
}

pub(crate) async fn settings_are_kept_and_bad_ones_are_refused(stage: Stage) {
    let documents = stage.documents().await;
    assert_eq!(documents.revs_limit().await.unwrap(), 1_000);
    for refused in [0, 4_001, u32::MAX] {
        assert_eq!(documents.set_revs_limit(refused).await.unwrap_err().status(), 400);
    }
    documents.set_revs_limit(4_000).await.unwrap();
    assert_eq!(documents.revs_limit().await.unwrap(), 4_000);
    let default = documents.security().await.unwrap();
    assert_eq!(default, json(r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#));
    let object = json(&format!(r#"{{"members":{{"names":["{}"]}}}}"#, "x".repeat(150_000)));
    documents.set_security(object.clone()).await.unwrap();
    assert_eq!(documents.security().await.unwrap(), object);
    documents.set_security(json("{}")).await.unwrap();
    assert_eq!(documents.security().await.unwrap(), json("{}"));
    assert_eq!(documents.set_security(json("[]")).await.unwrap_err().status(), 400);
}
