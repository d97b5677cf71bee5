//! Databases in a store.

use bytes::Bytes;
use kv_api::{Database, RangeRequest, Read, STORED_FORMAT, Transaction, TransactionExt};
use model::{ChangesRequest, CreateOptions, ErrorKind, GetOptions, Layer, LayerOptions, NameRange, WriteMode};

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
