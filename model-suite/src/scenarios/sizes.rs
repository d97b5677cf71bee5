//! Batches are limited in bytes, and are halved if the store is too slow for them.
//!
//! On a [slow](Chaos::slow) store, read versions are too old after a number of bytes. So no scenario needs a clock: a
//! transaction of ten megabytes fails here like one of ten seconds on a real store.

use std::collections::BTreeSet;

use conformance::chaos::{Chaos, Fault};
use kv_api::{AnyDatabase, Counted, Database};
use model::{
    AllDocsEntry, AllDocsRequest, BodyFormat, BulkGet, ChangesRequest, CreateOptions, Documents, Edit, ErrorKind,
    GetOptions, Layer, LayerOptions, OpenRev, OpenRevs, Purge, RevId, WriteMode,
};

use crate::stage::*;

/// The database of `stage`, on a store that allows a transaction at most `window` bytes.
async fn slow(stage: &Stage, window: usize) -> Documents<Chaos<AnyDatabase>> {
    layer(Chaos::slow(stage.engine(), window)).await.database("db").await.unwrap()
}

fn text(bytes: usize) -> String {
    format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes))
}

/// Writes documents of `bytes`, one of them with three live leaves of that size.
async fn fill<D: Database>(documents: &Documents<D>, count: usize, bytes: usize) {
    let body = text(bytes);
    for n in 0..count {
        documents.put(edit(&format!("doc-{n:03}"), &body)).await.unwrap();
    }
    for path in ["1-a", "1-b", "1-c"] {
        merge(documents, replicated("leaves", path, &body)).await;
    }
}

/// Reads the whole database in every way that reads many bodies.
async fn read_all<D: Database>(documents: &Documents<D>, count: usize) {
    let rows = feed(documents, ChangesRequest { include_docs: true, ..Default::default() }).await;
    assert_eq!(rows.iter().filter(|row| row.doc.is_some()).count(), count + 1);
    let listed = |rows: Vec<model::AllDocsRow>| {
        assert!(rows.iter().all(|row| matches!(row.entry, AllDocsEntry::Live { doc: Some(_), .. })));
        rows.into_iter().map(|row| row.id).collect::<Vec<String>>()
    };
    let request = AllDocsRequest { include_docs: true, ..Default::default() };
    let ids = listed(list(documents, request.clone()).await);
    assert_eq!(ids.len(), count + 1);
    let keys = Some(ids.clone().into());
    assert_eq!(listed(list(documents, AllDocsRequest { keys, ..request }).await), ids);

    let all: Vec<BulkGet> = ids.iter().map(|id| BulkGet { id: id.clone(), rev: None }).collect();
    for (id, leaves) in documents.get_many(all, &GetOptions::default()).await.unwrap() {
        assert_eq!(leaves.unwrap().len(), if id == "leaves" { 3 } else { 1 }, "{id}");
    }
    let revs = ["1-a", "1-b", "1-c"].map(rev).to_vec();
    for latest in [false, true] {
        let options = GetOptions { latest, ..GetOptions::default() };
        let opened = documents.open_revs("leaves", &OpenRevs::These(revs.clone()), &options).await.unwrap();
        assert!(opened.len() == 3 && opened.iter().all(|leaf| matches!(leaf, OpenRev::Found(_))), "{latest}");
    }
    assert_sound(documents).await;
}

pub(crate) async fn what_reads_many_bodies_ends_a_batch_at_its_bytes(stage: Stage) {
    let options = LayerOptions { max_document_size: 8_000_000, ..LayerOptions::default() };
    let layer = Layer::open(stage.engine(), options).await.unwrap();
    let packed = CreateOptions { format: Some(BodyFormat::Packed), ..CreateOptions::default() };
    let documents = layer.create_database("db", packed).await.unwrap();
    fill(&documents, 6, 3_000_000).await;
    let six: Vec<BulkGet> = (0..6).map(|n| BulkGet { id: format!("doc-{n:03}"), rev: None }).collect();
    let some = documents.get_some(&six, &GetOptions::default()).await.unwrap();
    assert!((1..=2).contains(&some.len()) && some[0].0 == six[0].id, "{} of 18 MB", some.len());
    // The store has room for a batch and a document more, so nothing is read twice.
    let counted = Counted::new(Chaos::slow(stage.engine(), 9_100_000));
    let documents = self::layer(counted.clone()).await.database("db").await.unwrap();
    counted.take();
    let request = ChangesRequest { include_docs: true, ..Default::default() };
    assert_eq!(feed(&documents, request).await.len(), 7);
    let read: u64 = counted.take().iter().map(|counts| counts.bytes_read).sum();
    assert!(read < 2 * 7 * 3_000_000, "{read} bytes were read for 21 MB");
    read_all(&slow(&stage, 9_100_000).await, 6).await;
}

pub(crate) async fn what_is_too_slow_is_read_by_halves(stage: Stage) {
    fill(&stage.documents().await, 30, 60_000).await;
    // Room for one document, or for the leaves of one.
    read_all(&slow(&stage, 250_000).await, 30).await;
}

pub(crate) async fn a_write_that_is_too_slow_is_done_by_halves(stage: Stage) {
    stage.documents().await;
    let documents = slow(&stage, 300_000).await;
    let body = text(50_000);
    for mode in [WriteMode::Interactive, WriteMode::Replicated] {
        let edits = (0..30).map(|n| match mode {
            WriteMode::Interactive => edit(&format!("doc-{n:02}"), &body),
            WriteMode::Replicated => replicated("leaves", &format!("1-{n:02}"), &body),
        });
        let results = documents.write(edits.collect(), mode).await.unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
    let documents = layer(stage.engine()).await.database("db").await.unwrap();
    assert_eq!((documents.info().await.unwrap().doc_count, lost(&documents, "leaves").await.len()), (31, 29));
    assert_sound(&documents).await;
}

pub(crate) async fn one_edit_that_is_too_large_for_the_store_is_a_document_too_large(stage: Stage) {
    stage.documents().await;
    let chaos = Chaos::scripted(stage.engine(), [Some(Fault::TooLarge), Some(Fault::TooLarge)]);
    let documents = layer(chaos).await.database("db").await.unwrap();
    let too_large = ErrorKind::DocumentTooLarge("a".to_owned());
    assert_eq!(*documents.put(edit("a", "{}")).await.unwrap_err().kind(), too_large);
    let mut results = documents.write(vec![edit("a", "{}")], WriteMode::Interactive).await.unwrap();
    assert_eq!(*results.remove(0).unwrap_err().kind(), too_large);
}

/// Every database exceeds this quota of zero bytes, whatever its store estimates.
pub(crate) async fn a_full_database_takes_deletions_and_purges_alone(stage: Stage) {
    let free = stage.documents().await;
    let rev = free.put(edit("a", "{}")).await.unwrap();
    let other = free.put(edit("b", "{}")).await.unwrap();
    let full = free.clone().limited_to(Some(0));
    assert_eq!((full.info().await.unwrap().quota, free.info().await.unwrap().quota), (Some(0), None));
    let is_full = |error: &model::Error| matches!(error.kind(), ErrorKind::QuotaExceeded { quota: 0, .. });
    let tombstone = |body: &str| edit("a", body).over(rev.clone()).deleting();
    let edits = vec![edit("c", "{}"), tombstone(&text(2_000)), tombstone("{}")];
    let results = full.write(edits, WriteMode::Interactive).await.unwrap();
    assert!(results[..2].iter().all(|result| result.as_ref().is_err_and(is_full)), "{results:?}");
    assert!(results[2].is_ok(), "{results:?}");
    // A tombstone of a document that was never here takes space.
    assert!(full.put(edit("never", "{}").deleting()).await.is_err_and(|error| is_full(&error)));
    let replicated = full.write(vec![replicated("c", "1-a", "{}")], WriteMode::Replicated).await.unwrap();
    assert!(replicated[0].as_ref().is_err_and(is_full), "{replicated:?}");
    assert!(full.put_local("_local/a", None, json("{}")).await.is_err_and(|error| is_full(&error)));
    let purged = full.purge(&[Purge { id: "b".into(), revs: vec![other], uuid: None }]).await.unwrap();
    assert!(purged[0].is_ok(), "{purged:?}");
    assert!(free.put(edit("c", "{}")).await.is_ok());
    assert!(free.limited_to(Some(u64::MAX)).put(edit("d", "{}")).await.is_ok());
}

pub(crate) async fn a_thousand_leaves_of_a_document_are_one_edit(stage: Stage) {
    let counted = Counted::new(stage.engine());
    let documents = database(counted.clone()).await;
    merge(&documents, replicated("a", "2-0000 a", "{}")).await;
    counted.take();
    // Leaves, revisions that prove to be ancestors of others, and known revisions.
    let mut edits: Vec<Edit> =
        (0..1_000).map(|n| replicated("a", &format!("2-{n:04} a"), &format!(r#"{{"n":{n}}}"#))).collect();
    edits.push(replicated("a", "3-x 0500 a", r#"{"n":"x"}"#));
    edits.push(replicated("a", "1-a", "{}"));
    edits.insert(0, replicated("a", "2-0999 a", r#"{"first":1}"#));
    let edits: Vec<Edit> = edits.into_iter().chain([replicated("b", "1-a", "{}")]).collect();
    let brought: Vec<RevId> = edits.iter().map(|edit| edit.rev.clone().unwrap()).collect();
    let results = documents.write(edits, WriteMode::Replicated).await.unwrap();
    assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), brought);
    let commits: u64 = counted.take().iter().map(|counts| counts.commits).sum();
    assert!(commits <= 2, "{commits} commits");
    assert_eq!(feed(&documents, ChangesRequest::default()).await.len(), 2);

    let leaves = documents.open_revs("a", &OpenRevs::All, &GetOptions::default()).await.unwrap();
    let leaves: Vec<_> = leaves
        .into_iter()
        .map(|leaf| match leaf {
            OpenRev::Found(document) => (document.rev, document.body.as_str().to_owned()),
            OpenRev::Missing(rev) => panic!("{rev} is missing"),
        })
        .collect();
    assert_eq!((leaves[0].0.clone(), leaves.len()), (rev("3-x"), 1_000), "2-0500 is its ancestor");
    assert_eq!(leaves[1], (rev("2-0999"), r#"{"first":1}"#.to_owned()), "of two bodies the first");
    assert!(leaves.iter().all(|(leaf, _)| *leaf != rev("2-0500") && *leaf != rev("1-a")));
    assert_sound(&documents).await;
}

pub(crate) async fn a_hundred_thousand_revisions_of_a_document_are_compared(stage: Stage) {
    let documents = stage.documents().await;
    merge(&documents, replicated("a", "3-c b a", "{}")).await;
    merge(&documents, replicated("a", "2-f a", "{}")).await;
    let mut revs: Vec<RevId> = (0..100_000).map(|n| rev(&format!("{}-{n:08x}", 1 + n % 4))).collect();
    let unknown: BTreeSet<RevId> = revs.iter().cloned().collect();
    for known in ["3-c", "2-b", "1-a", "2-f"] {
        revs.push(rev(known));
    }
    revs.extend_from_within(..10);
    let diffs = documents.revs_diff(vec![("a".to_owned(), revs)]).await.unwrap();
    assert_eq!(diffs[0].missing.len(), unknown.len());
    assert_eq!(diffs[0].missing.iter().cloned().collect::<BTreeSet<_>>(), unknown);
    assert_eq!(diffs[0].possible_ancestors, [rev("2-f"), rev("3-c")]);
}
