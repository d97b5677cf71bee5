//! Damage of a document's rows affects only that document, and names it.

use kv_api::{Database, KeyValue, RangeRequest, Read, Transaction, TransactionExt};
use model::{
    AllDocsEntry, AllDocsRequest, BulkGet, ChangesRequest, Documents, Edit, Error, ErrorKind, GetOptions, RevId, Style,
    WriteMode,
};

use crate::stage::*;

pub(crate) const REVISIONS: u8 = 4;
pub(crate) const CHANGES: u8 = 5;
pub(crate) const DOCS: u8 = 6;
pub(crate) const ALL_DOCS: u8 = 7;

/// The rows of a subspace in the only database, which has number 0.
pub(crate) async fn rows<D: Database>(engine: &D, subspace: u8, id: &str) -> Vec<KeyValue> {
    let mut prefix = vec![0x15, 4, 0x14, 0x15, subspace];
    if !id.is_empty() {
        prefix.push(2);
        prefix.extend_from_slice(id.as_bytes());
        prefix.push(0);
    }
    engine.begin().unwrap().get_all(RangeRequest::prefix(&prefix), Read::Snapshot).await.unwrap()
}

/// Sets rows, bypassing the layer, or clears those without a value.
pub(crate) async fn put<D: Database>(engine: &D, rows: &[(&[u8], Option<&[u8]>)]) {
    let transaction = engine.begin().unwrap();
    for (key, value) in rows {
        match value {
            Some(value) => transaction.set(key, value),
            None => transaction.clear(key),
        }
    }
    transaction.commit().await.unwrap();
}

/// Cuts the first row of a document in a subspace.
async fn truncate<D: Database>(engine: &D, subspace: u8, id: &str, length: usize) {
    let row = rows(engine, subspace, id).await.remove(0);
    put(engine, &[(&row.key, Some(&row.value[..length]))]).await;
}

fn assert_names(error: &Error, id: &str) {
    assert!(error.reason().contains(&format!("{id:?}")), "{error} does not name {id}");
    assert_eq!(error.status(), 500);
}

/// Sound documents around a damaged one.
async fn fill<D: Database>(documents: &Documents<D>) -> Vec<RevId> {
    let edits: Vec<Edit> = ["a", "bad", "c"].iter().map(|id| edit(id, "{}")).collect();
    let made = documents.write(edits, WriteMode::Interactive).await.unwrap();
    let over = |(id, made): (&str, model::EditResult)| edit(id, r#"{"n":1,"m":2}"#).over(made.unwrap());
    let edits: Vec<Edit> = ["a", "bad", "c"].into_iter().zip(made).map(over).collect();
    let made = documents.write(edits, WriteMode::Interactive).await.unwrap();
    merge(documents, replicated("bad", "1-0", r#"{"loses":true}"#)).await;
    made.into_iter().map(Result::unwrap).collect()
}

pub(crate) async fn a_damaged_revision_stops_no_other_document(stage: Stage) {
    let documents = stage.documents().await;
    let made = fill(&documents).await;
    truncate(&stage.engine(), REVISIONS, "bad", 2).await;
    let damaged = rows(&stage.engine(), REVISIONS, "bad").await;

    let next = |n: usize, id: &str| edit(id, r#"{"n":2}"#).over(made[n].clone());
    let edits = vec![next(0, "a"), edit("bad", "{}").over(rev("1-0")), next(2, "c")];
    let results = documents.write(edits, WriteMode::Interactive).await.unwrap();
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    assert_names(results[1].as_ref().unwrap_err(), "bad");
    let merges = ["a", "bad", "c"].map(|id| replicated(id, "5-x", "{}")).to_vec();
    let results = documents.write(merges, WriteMode::Replicated).await.unwrap();
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    assert_names(results[1].as_ref().unwrap_err(), "bad");
    assert_eq!(rows(&stage.engine(), REVISIONS, "bad").await, damaged, "what cannot be read is kept");

    let wanted = ["a", "bad", "c"].map(|id| (id.to_owned(), vec![rev("5-x"), rev("9-z")])).to_vec();
    let missing: Vec<usize> =
        documents.revs_diff(wanted).await.unwrap().into_iter().map(|diff| diff.missing.len()).collect();
    assert_eq!(missing, [1, 2, 1], "of a damaged document nothing is known");

    let three = Some(["a", "bad", "c"].into_iter().collect());
    for request in [
        ChangesRequest { style: Style::AllDocs, ..Default::default() },
        ChangesRequest { style: Style::AllDocs, doc_ids: three, ..Default::default() },
        ChangesRequest { include_docs: true, conflicts: true, ..Default::default() },
    ] {
        let rows = feed(&documents, request).await;
        assert_eq!(rows.len(), 3);
        for row in rows {
            match row.error {
                Some(error) => {
                    assert_names(&error, "bad");
                    assert_eq!((row.id.as_str(), row.revs, row.doc), ("bad", vec![made[1].clone()], None));
                }
                None => assert_ne!(row.id, "bad"),
            }
        }
    }
    let request = AllDocsRequest { include_docs: true, conflicts: true, ..Default::default() };
    let keys = Some(["a", "bad", "c"].map(str::to_owned).into());
    for request in [request.clone(), AllDocsRequest { keys, ..request }] {
        let rows = list(&documents, request).await;
        let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids, ["a", "bad", "c"]);
        let AllDocsEntry::Damaged { error } = &rows[1].entry else { panic!("{:?}", rows[1]) };
        assert_names(error, "bad");
        assert!(matches!(rows[0].entry, AllDocsEntry::Live { doc: Some(_), .. }));
    }
    let all = ["a", "bad", "c"].map(|id| BulkGet { id: id.to_owned(), rev: None }).to_vec();
    let found = documents.get_many(all, &GetOptions::default()).await.unwrap();
    assert!(found[0].1.is_ok() && found[2].1.is_ok());
    assert_names(found[1].1.as_ref().unwrap_err(), "bad");
}

pub(crate) async fn damage_anywhere_else_stops_no_other_document_either(stage: Stage) {
    let documents = stage.documents().await;
    let made = fill(&documents).await;
    let with_docs = AllDocsRequest { include_docs: true, ..Default::default() };
    for (subspace, length) in [(ALL_DOCS, 1), (DOCS, 3)] {
        let before = rows(&stage.engine(), subspace, "bad").await;
        // The winner's body is last: its metadata and two leaves.
        let row = &before[if subspace == DOCS { before.len() - 3 } else { 0 }];
        put(&stage.engine(), &[(&row.key, Some(&row.value[..length]))]).await;
        let rows = list(&documents, with_docs.clone()).await;
        let AllDocsEntry::Damaged { error } = &rows[1].entry else { panic!("{:?}", rows[1]) };
        assert_names(error, "bad");
        assert_eq!(rows.len(), 3);
        if subspace == DOCS {
            let rows = feed(&documents, ChangesRequest { include_docs: true, ..Default::default() }).await;
            assert_eq!(rows.iter().filter(|row| row.doc.is_some()).count(), 2);
            assert_names(rows.iter().find_map(|row| row.error.as_ref()).unwrap(), "bad");
            assert_names(&documents.get("bad", &GetOptions::default()).await.unwrap_err(), "bad");
        }
        put(&stage.engine(), &[(&row.key, Some(&row.value))]).await;
        assert_sound(&documents).await;
    }
    // A row of the feed, cut after the id and before it.
    let change = rows(&stage.engine(), CHANGES, "").await.remove(2);
    let id = change.value.windows(3).position(|part| part == b"bad").unwrap();
    put(&stage.engine(), &[(&change.key, Some(&change.value[..id + 5]))]).await;
    let leaves = [made[1].clone(), rev("1-0")];
    let later = [&[0x15, 9], &change.value[2..]].concat();
    for value in [&change.value[..id + 5], &later] {
        put(&stage.engine(), &[(&change.key, Some(value))]).await;
        for (style, revs) in [(Style::MainOnly, &leaves[..1]), (Style::AllDocs, &leaves[..])] {
            let rows = feed(&documents, ChangesRequest { style, include_docs: true, ..Default::default() }).await;
            assert_eq!((rows.len(), rows[2].id.as_str(), &rows[2].revs[..]), (3, "bad", revs));
            assert_names(rows[2].error.as_ref().unwrap(), "bad");
            assert!(rows[2].doc.is_none() && !rows[2].deleted);
        }
    }
    // If the winner's row cannot be read either, no revision is known: the feed stops before the change.
    let winner = rows(&stage.engine(), REVISIONS, "bad").await.remove(1);
    put(&stage.engine(), &[(&winner.key, Some(&winner.value[..2]))]).await;
    let error = documents.changes(&ChangesRequest::default()).await.unwrap_err();
    assert!(error.reason().contains("cannot be read"), "{error}");
    put(&stage.engine(), &[(&winner.key, Some(&winner.value))]).await;
    put(&stage.engine(), &[(&change.key, Some(&change.value[..id]))]).await;
    let error = documents.changes(&ChangesRequest::default()).await.unwrap_err();
    assert!(error.reason().contains("cannot be read"), "{error}");
}

pub(crate) async fn what_a_later_version_wrote_is_named_and_left_alone(stage: Stage) {
    let documents = stage.documents().await;
    let made = fill(&documents).await;
    let row = rows(&stage.engine(), REVISIONS, "a").await.remove(0);
    for rest in [&b""[..], b"\xff\xff", &row.value[2..]] {
        let value = [&[0x15, 9], rest].concat();
        put(&stage.engine(), &[(&row.key, Some(&value))]).await;
        for (edit, mode) in [
            (edit("a", "{}").over(made[0].clone()), WriteMode::Interactive),
            (edit("a", "{}"), WriteMode::Interactive),
            (edit("a", "{}").over(made[0].clone()).deleting(), WriteMode::Interactive),
            (replicated("a", "5-x", "{}"), WriteMode::Replicated),
        ] {
            let error = documents.write(vec![edit], mode).await.unwrap().remove(0).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::UnknownFormat(what) if what.contains("format 9")), "{error}");
            assert_names(&error, "a");
        }
        assert_eq!(rows(&stage.engine(), REVISIONS, "a").await[0].value, value);
    }
    let metadata = rows(&stage.engine(), DOCS, "c").await.remove(0);
    put(&stage.engine(), &[(&metadata.key, Some(&[0x15, 9, 0xff]))]).await;
    let error = documents.get("c", &GetOptions::default()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnknownFormat(_)), "{error}");
    assert_names(&error, "c");
}
