//! Databases in a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use conformance::chaos::Chaos;
use kv_api::{AnyDatabase, Counted, Database, RangeRequest, Read, STORED_FORMAT, Transaction, TransactionExt};
use model::{Begun, ChangesRequest, CreateOptions, ErrorKind, GetOptions, Layer, LayerOptions, NameRange, WriteMode};

use crate::stage::*;

pub(crate) async fn databases_are_created_listed_and_dropped(stage: Stage) {
    let layer = stage.layer().await;
    for name in ["b", "a/x", "a", "c", "_users"] {
        let documents = layer.create_database(name, CreateOptions::default()).await.unwrap();
        assert_eq!(documents.name(), name);
        let again = layer.create_database(name, CreateOptions::default()).await.unwrap_err();
        assert_eq!((again.status(), again.error()), (412, "file_exists"));
    }
    for (name, error) in [("A", "illegal_database_name"), (&*"a".repeat(239), "database_name_too_long")] {
        assert_eq!(layer.create_database(name, CreateOptions::default()).await.unwrap_err().error(), error);
        assert_eq!(layer.database(name).await.unwrap_err().status(), 404);
    }
    assert_eq!(layer.database(&"a".repeat(20_000)).await.unwrap_err().status(), 404);
    let names = async |range: NameRange| layer.database_names(&range).await.unwrap().join(" ");
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(names(NameRange::default()).await, "_users a a/x b c");
    assert_eq!(names(NameRange { descending: true, limit: Some(2), ..Default::default() }).await, "c b");
    assert_eq!(names(NameRange { start: some("a"), end: some("b"), ..Default::default() }).await, "a a/x b");
    assert_eq!(names(NameRange { start: some("b"), end: some("a"), ..Default::default() }).await, "");
    let up_to = NameRange { end: some("b"), exclusive_end: true, ..Default::default() };
    assert_eq!(names(up_to.clone()).await, "_users a a/x");
    assert_eq!(names(NameRange { descending: true, ..up_to }).await, "c");
    let backwards = NameRange { start: some("b"), end: some("a"), descending: true, skip: 1, ..Default::default() };
    assert_eq!(names(backwards).await, "a/x a");

    let documents = layer.database("b").await.unwrap();
    documents.put(edit("x", r#"{"n":1}"#)).await.unwrap();
    documents.put_local("_local/x", None, json("{}")).await.unwrap();
    layer.delete_database("b").await.unwrap();
    assert_eq!(layer.delete_database("b").await.unwrap_err().status(), 404);
    assert_eq!(layer.database("b").await.unwrap_err().reason(), "Database does not exist.");
    assert_eq!(names(NameRange::default()).await, "_users a a/x c");
    // No keys are left: the database that was created first has number 0.
    let left = kv_api::RangeRequest::prefix(&[0x15, 4, 0x14]);
    assert_eq!(stage.engine().begin().unwrap().get_all(left, Read::Snapshot).await.unwrap(), []);
}

pub(crate) async fn late_writers_never_reach_a_successor(stage: Stage) {
    let layer = stage.layer().await;
    let old = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let first = old.put(edit("a", "{}")).await.unwrap();
    layer.delete_database("db").await.unwrap();
    let new = layer.create_database("db", CreateOptions::default()).await.unwrap();
    assert_ne!(old.instance_id(), new.instance_id());
    let gone = ErrorKind::NotFound(model::NotFound::Database);
    assert_eq!(*old.put(edit("b", "{}")).await.unwrap_err().kind(), gone);
    assert_eq!(*old.put(edit("a", "{}").over(first)).await.unwrap_err().kind(), gone);
    assert_eq!(*old.write(vec![replicated("a", "1-x", "{}")], WriteMode::Replicated).await.unwrap_err().kind(), gone);
    assert_eq!(*old.put_local("_local/a", None, json("{}")).await.unwrap_err().kind(), gone);
    assert_eq!(*old.set_revs_limit(3).await.unwrap_err().kind(), gone);
    assert_eq!(*old.get("a", &GetOptions::default()).await.unwrap_err().kind(), gone);
    assert_eq!(*old.changes(&ChangesRequest::default()).await.unwrap_err().kind(), gone);
    assert_eq!(*old.info().await.unwrap_err().kind(), gone);
    assert_eq!(*old.check(|_| {}).await.unwrap_err().kind(), gone);
    assert_eq!(new.info().await.unwrap().doc_count, 0);
    assert_sound(&new).await;
}

pub(crate) async fn a_layer_is_marked_and_others_are_refused(stage: Stage) {
    let prefix = Bytes::from_static(b"layer/");
    let open = async |prefix: &Bytes| {
        Layer::open(stage.engine(), LayerOptions { prefix: prefix.clone(), ..LayerOptions::default() }).await
    };
    open(&prefix).await.unwrap().create_database("db", CreateOptions::default()).await.unwrap();
    open(&prefix).await.unwrap().database("db").await.unwrap();
    // A prefix of the same store with another layer.
    let other = open(&Bytes::from_static(b"other/")).await.unwrap();
    assert_eq!(other.database("db").await.unwrap_err().status(), 404);
    // A prefix with other keys, and layers in other formats.
    assert_eq!(*open(&Bytes::new()).await.unwrap_err().kind(), ErrorKind::NotOurs);
    let rows = async || {
        let all = RangeRequest::prefix(b"layer/");
        stage.engine().begin().unwrap().get_all(all, Read::Snapshot).await.unwrap()
    };
    for found in [1, STORED_FORMAT as u8 - 1, STORED_FORMAT as u8 + 1] {
        let transaction = stage.engine().begin().unwrap();
        transaction.set(b"layer/\x14", &[0x15, found]);
        transaction.commit().await.unwrap();
        let before = rows().await;
        let refused = open(&prefix).await.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::Format { found: u64::from(found) });
        let says = format!("written by couch-layer format {found}; this build reads format {STORED_FORMAT}");
        assert!(refused.reason().contains(&says), "{refused}");
        assert_eq!(rows().await, before, "it is left as it is");
    }
}

/// A layer over an engine whose versions are set by the test.
async fn at_versions(
    stage: &Stage,
    versions: &Arc<AtomicU64>,
) -> (Counted<Chaos<AnyDatabase>>, Layer<Counted<Chaos<AnyDatabase>>>) {
    let counted = Counted::new(Chaos::with_versions(stage.engine(), versions.clone()));
    (counted.clone(), layer(counted).await)
}

pub(crate) async fn a_format_that_changes_in_use_is_noticed(stage: Stage) {
    // Beyond the versions of the engine, as if it had been used for years.
    let versions = Arc::new(AtomicU64::new(1 << 50));
    let minutes = |minutes: u64| versions.fetch_add(minutes * 60_000_000, Ordering::SeqCst);
    let (counted, writer) = at_versions(&stage, &versions).await;
    let documents = writer.create_database("db", CreateOptions::default()).await.unwrap();
    let (_, watcher) = at_versions(&stage, &versions).await;
    let seen = watcher.database("db").await.unwrap();
    // A write reads the number once a minute.
    let reads = async |id: &str| {
        counted.take();
        documents.put(edit(id, "{}")).await.unwrap();
        counted.take().iter().map(|counts| counts.reads).collect::<Vec<u64>>()
    };
    let usual = reads("a").await;
    minutes(2);
    let rare = reads("b").await;
    assert_eq!((rare.len(), rare[0]), (1, usual[0] + 1));
    assert_eq!(reads("c").await, usual);

    let transaction = stage.engine().begin().unwrap();
    let later = STORED_FORMAT as u8 + 1;
    transaction.set(b"\x14", &[0x15, later]);
    transaction.commit().await.unwrap();
    // A server looks, and then neither reads nor writes.
    let other = ErrorKind::Format { found: u64::from(later) };
    assert_eq!(*watcher.check_format().await.unwrap_err().kind(), other);
    let all = RangeRequest::keys(Bytes::new(), Bytes::from_static(b"\xff"));
    let rows = async || stage.engine().begin().unwrap().get_all(all.clone(), Read::Snapshot).await.unwrap();
    let before = rows().await;
    assert_eq!(*seen.put(edit("d", "{}")).await.unwrap_err().kind(), other);
    assert_eq!(*seen.get("a", &GetOptions::default()).await.unwrap_err().kind(), other);
    assert_eq!(*seen.in_background().info().await.unwrap_err().kind(), other);
    assert_eq!(*watcher.create_database("e", CreateOptions::default()).await.unwrap_err().kind(), other);
    assert_eq!(*watcher.delete_database("db").await.unwrap_err().kind(), other);
    assert_eq!(rows().await, before);

    // A writer that does not look writes for a minute at most, and not a moment longer, whatever it writes.
    documents.put(edit("d", "{}")).await.unwrap();
    minutes(2);
    let before = rows().await;
    // First in a loop of a program's own, which cannot commit it either.
    let (token, transaction) = (writer.token(), counted.begin().unwrap());
    let Begun::Edits(edits) = writer.edits(&transaction, &token).await.unwrap() else { panic!("it is new") };
    edits.put(&documents, edit("e", "{}")).unwrap();
    assert_eq!(*edits.finish().await.unwrap_err().kind(), other);
    transaction.commit().await.unwrap_err();
    assert_eq!(*documents.put(edit("e", "{}")).await.unwrap_err().kind(), other);
    assert_eq!(*documents.set_revs_limit(5).await.unwrap_err().kind(), other);
    assert_eq!(*writer.create_database("e", CreateOptions::default()).await.unwrap_err().kind(), other);
    assert_eq!(rows().await, before);
}

pub(crate) async fn a_handle_in_the_background_is_of_the_same_store(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let (token, transaction) = (layer.token(), stage.engine().begin().unwrap());
    let Begun::Edits(edits) = layer.edits(&transaction, &token).await.unwrap() else { panic!("it is new") };
    edits.put(&documents.clone().in_background(), edit("a", "{}")).unwrap();
    let another = stage.layer().await.database("db").await.unwrap();
    assert_eq!(edits.put(&another, edit("b", "{}")).unwrap_err().status(), 400, "that of another layer is refused");
    edits.finish().await.unwrap();
    transaction.commit().await.unwrap();
    documents.get("a", &GetOptions::default()).await.unwrap();
}
