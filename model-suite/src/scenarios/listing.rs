//! Listings by id.

use kv_api::Database;
use model::{AllDocsEntry, AllDocsRequest, AllDocsRow, Documents, Edit, WriteMode};

use crate::stage::*;

async fn all<D: Database>(documents: &Documents<D>, request: AllDocsRequest) -> Vec<AllDocsRow> {
    let (mut rows, mut next) = (Vec::new(), Some(request));
    while let Some(request) = next.take() {
        let batch = documents.all_docs(&request).await.unwrap();
        rows.extend(batch.rows);
        next = batch.next;
    }
    rows
}

async fn ids<D: Database>(documents: &Documents<D>, request: AllDocsRequest) -> String {
    all(documents, request).await.into_iter().map(|row| row.id).collect::<Vec<_>>().join(" ")
}

pub(crate) async fn listings_keep_to_ranges_limits_and_skips(stage: Stage) {
    let documents = stage.documents().await;
    for id in ["a", "b", "c", "d", "e", "é", "_design/x"] {
        documents.put(edit(id, "{}")).await.unwrap();
    }
    let gone = documents.put(edit("bb", "{}")).await.unwrap();
    documents.put(edit("bb", "{}").over(gone).deleting()).await.unwrap();
    merge(&documents, replicated("b", "1-lost", "{}").deleting()).await;

    let request = AllDocsRequest::default;
    let some = |id: &str| Some(id.to_owned());
    for (request, expected) in [
        (request(), "_design/x a b c d e é"),
        (AllDocsRequest { descending: true, ..request() }, "é e d c b a _design/x"),
        (AllDocsRequest { start: some("b"), end: some("d"), ..request() }, "b c d"),
        (AllDocsRequest { start: some("b"), end: some("d"), inclusive_end: false, ..request() }, "b c"),
        (AllDocsRequest { start: some("b"), inclusive_start: false, ..request() }, "c d e é"),
        (AllDocsRequest { start: some("d"), end: some("b"), descending: true, ..request() }, "d c b"),
        (
            AllDocsRequest { start: some("d"), end: some("b"), descending: true, inclusive_end: false, ..request() },
            "d c",
        ),
        (AllDocsRequest { start: some("d"), end: some("b"), ..request() }, ""),
        (AllDocsRequest { start: some("bb"), limit: Some(2), ..request() }, "c d"),
        (AllDocsRequest { skip: 2, limit: Some(3), ..request() }, "b c d"),
        (AllDocsRequest { skip: 5, descending: true, ..request() }, "a _design/x"),
        (AllDocsRequest { skip: 100, ..request() }, ""),
        (AllDocsRequest { limit: Some(0), ..request() }, ""),
    ] {
        assert_eq!(ids(&documents, request.clone()).await, expected, "{request:?}");
    }
    let batch = documents.all_docs(&AllDocsRequest { skip: 2, update_seq: true, ..request() }).await.unwrap();
    assert_eq!((batch.total_rows, batch.offset), (7, Some(2)));
    assert_eq!(batch.update_seq.unwrap(), documents.last_seq().await.unwrap());
    assert_sound(&documents).await;
}

pub(crate) async fn listings_of_given_ids_come_in_the_order_asked_for(stage: Stage) {
    let documents = stage.documents().await;
    let a = documents.put(edit("a", r#"{"n":1}"#)).await.unwrap();
    let b = documents.put(edit("b", "{}")).await.unwrap();
    let dead = documents.put(edit("b", "{}").over(b).deleting()).await.unwrap();
    merge(&documents, replicated("a", "1-0", "{}")).await;
    let keys = ["ghost", "b", "a", "a"].map(str::to_owned).to_vec();
    let request = AllDocsRequest {
        keys: Some(keys.clone().into()),
        include_docs: true,
        conflicts: true,
        ..AllDocsRequest::default()
    };
    let rows = all(&documents, request.clone()).await;
    assert_eq!(rows.iter().map(|row| row.id.clone()).collect::<Vec<_>>(), keys);
    assert_eq!(rows[0].entry, AllDocsEntry::Missing);
    assert_eq!(rows[1].entry, AllDocsEntry::Deleted { rev: dead });
    for row in &rows[2..] {
        let AllDocsEntry::Live { rev: found, doc: Some(doc) } = &row.entry else { panic!("{row:?}") };
        assert_eq!((found, doc.body.as_str()), (&a, r#"{"n":1}"#));
        assert_eq!(doc.conflicts.as_ref().unwrap(), &[rev("1-0")]);
    }
    assert_eq!(ids(&documents, AllDocsRequest { descending: true, ..request.clone() }).await, "a a b ghost");
    assert_eq!(ids(&documents, AllDocsRequest { skip: 1, limit: Some(2), ..request }).await, "b a");
}

pub(crate) async fn long_listings_go_on(stage: Stage) {
    let documents = stage.documents().await;
    let edits: Vec<Edit> = (0..4_500).map(|n| edit(&format!("doc-{n:04}"), r#"{"n":1}"#)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    for descending in [false, true] {
        let request = AllDocsRequest { descending, ..AllDocsRequest::default() };
        let first = documents.all_docs(&request).await.unwrap();
        assert!(first.next.is_some() && first.rows.len() < 4_500);
        for (skip, limit, expected) in [(0, None, 4_500), (1_234, None, 3_266), (100, Some(4_000), 4_000)] {
            let rows = all(&documents, AllDocsRequest { skip, limit, ..request.clone() }).await;
            assert_eq!(rows.len(), expected);
            assert!(rows.is_sorted_by(|a, b| (a.id < b.id) != descending && a.id != b.id));
            let first = if descending { 4_499 - skip } else { skip };
            assert_eq!(rows[0].id, format!("doc-{first:04}"));
        }
    }
    let body = format!(r#"{{"a":"{}"}}"#, "x".repeat(90_000));
    let edits: Vec<Edit> = (0..250).map(|n| edit(&format!("large-{n:03}"), &body)).collect();
    documents.write(edits, WriteMode::Interactive).await.unwrap();
    let request = AllDocsRequest { include_docs: true, start: Some("large".into()), ..AllDocsRequest::default() };
    let first = documents.all_docs(&request).await.unwrap();
    assert!(first.next.is_some(), "bodies bound a batch");
    let rows = all(&documents, request.clone()).await;
    assert_eq!(rows.len(), 250);
    assert!(rows.iter().all(|row| matches!(&row.entry, AllDocsEntry::Live { doc: Some(_), .. })));
    let keys = Some(rows.iter().map(|row| row.id.clone()).collect());
    assert_eq!(all(&documents, AllDocsRequest { keys, start: None, ..request }).await, rows);
}
