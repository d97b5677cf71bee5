//! Interactive edits: what wins, what conflicts, what is counted.

use kv_api::Database;
use model::{ChangesRequest, GetOptions, NotFound};

use crate::support::*;

pub(crate) async fn a_document_is_written_read_changed_and_deleted<D: Database>(engine: D) {
    let documents = database(engine).await;
    let first = documents.put(edit("a", r#"{"key":1}"#)).await.unwrap();
    assert_eq!(first, rev("1-c77eb5d5af83163c996ea42b61a9f0d8"));
    let read = get(&documents, "a").await;
    assert_eq!((read.rev, read.body.as_str()), (first.clone(), r#"{"key":1}"#));

    let second = documents.put(edit("a", r#"{"key":2}"#).over(first.clone())).await.unwrap();
    assert_eq!(second.position(), 2);
    assert_eq!(get(&documents, "a").await.body.as_str(), r#"{"key":2}"#);
    let stale = documents.put(edit("a", "{}").over(first)).await.unwrap_err();
    assert_eq!((stale.status(), stale.error()), (409, "conflict"));

    let third = documents.put(edit("a", "{}").over(second).deleting()).await.unwrap();
    let gone = documents.get("a", &GetOptions::default()).await.unwrap_err();
    assert_eq!(*gone.kind(), model::ErrorKind::NotFound(NotFound::Deleted));
    let never = documents.get("b", &GetOptions::default()).await.unwrap_err();
    assert_eq!(*never.kind(), model::ErrorKind::NotFound(NotFound::Missing));

    let changes = documents.changes(&ChangesRequest::default()).await.unwrap();
    assert_eq!(changes.rows.len(), 1);
    assert_eq!((changes.rows[0].deleted, &changes.rows[0].revs), (true, &vec![third]));
    let info = documents.info().await.unwrap();
    assert_eq!((info.doc_count, info.doc_del_count, info.sizes.external), (0, 1, 0));
    assert_eq!(changes.last_seq, info.update_seq);
    assert_sound(&documents).await;
}
