//! A store that went back: restored from a backup, or opened from a snapshot. Whoever read the lost store goes on with this
//! one and misses nothing: a replica that was behind, one that was ahead, consumers, a view.

use std::collections::BTreeSet;
use std::sync::Arc;

use backup::{ShipOptions, Shipper};
use engine_lsm::{LsmDatabase, LsmOptions, LsmStore};
use kv_api::{AnyDatabase, Database};
use model::{
    Change, Documents, Edits, Emit, Environment, Error, Layer, LayerOptions, RevId, RustView, ViewGroup, ViewRequest,
    WriteMode,
};
use peer::{FeedRequest, Local, Peer, ReadOptions};

use crate::engine;
use crate::stage::{edit, json, new_repository, quiet};

/// Replicates once, as a client does that has read everything until `since`. Returns where it is then, and the ids that it
/// got.
async fn pull(from: &dyn Peer, to: &dyn Peer, since: Option<String>) -> (String, BTreeSet<String>) {
    let request = FeedRequest { since, limit: 1_000, all_leaves: true, ..FeedRequest::default() };
    let page = from.changes(&request).await.unwrap();
    assert!(!page.more);
    let revs = |revs: Vec<String>| revs.iter().map(|rev| RevId::parse(rev).unwrap()).collect::<Vec<_>>();
    let wanted = page.rows.into_iter().map(|row| (row.id, revs(row.revs))).collect();
    let mut got = BTreeSet::new();
    for diff in to.revs_diff(wanted).await.unwrap() {
        for rev in diff.missing {
            let wanted = [model::BulkGet { id: diff.id.clone(), rev: Some(rev) }];
            let options = ReadOptions { ancestors: true, ..ReadOptions::default() };
            for leaf in from.read(&wanted, options).await.unwrap().remove(0).unwrap() {
                to.write(vec![leaf.into_edit()], WriteMode::Replicated).await.unwrap().remove(0).unwrap();
                got.insert(diff.id.clone());
            }
        }
    }
    (page.last_seq, got)
}

/// The leaves of all documents.
async fn leaves(peer: &dyn Peer) -> BTreeSet<(String, Vec<String>)> {
    let request = FeedRequest { limit: 1_000, all_leaves: true, ..FeedRequest::default() };
    let rows = peer.changes(&request).await.unwrap().rows.into_iter();
    rows.map(|mut row| {
        row.revs.sort();
        (row.id, row.revs)
    })
    .collect()
}

async fn changed_after(peer: &dyn Peer, since: &str) -> BTreeSet<String> {
    let request = FeedRequest { since: Some(since.to_owned()), limit: 1_000, ..FeedRequest::default() };
    peer.changes(&request).await.unwrap().rows.into_iter().map(|row| row.id).collect()
}

async fn viewed<D: Database>(documents: &Documents<D>) -> Vec<String> {
    let view = RustView::new("all", |document: &model::JsonText, emit: &mut Emit| {
        let id = document.get("_id").map(|id| id.text().to_owned()).expect("an id");
        emit.row(json(&id), json("null"));
        Ok(())
    });
    let group = ViewGroup::of_closures("group", 1, vec![view]);
    let page = documents.query_view(&group, "all", &ViewRequest::default()).await.unwrap();
    page.rows.iter().map(|row| row.id.clone()).collect()
}

/// The ids that the database's own consumer sees next.
async fn consumed<D: Database>(documents: &Documents<D>) -> BTreeSet<String> {
    let seen = std::sync::Mutex::new(BTreeSet::new());
    let effect = async |_: Edits<D>, rows: Vec<Change>| {
        seen.lock().unwrap().extend(rows.into_iter().map(|row| row.id));
        Ok::<_, Error>(())
    };
    documents.feed().consumer("c").consume(1_000, effect).await.unwrap();
    seen.into_inner().unwrap()
}

async fn open(engine: AnyDatabase) -> Layer<AnyDatabase> {
    Layer::open(engine, LayerOptions::default()).await.unwrap()
}

async fn change(documents: &Documents<AnyDatabase>, id: &str, text: &str) {
    let mut changed = edit(id, text);
    changed.rev = documents.get(id, &Default::default()).await.ok().map(|found| found.rev);
    documents.put(changed).await.unwrap();
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// `copy` is made of the store, which then goes on and is lost. `back` opens what was copied.
async fn nobody_misses_anything<C>(
    store: AnyDatabase,
    copy: impl AsyncFnOnce(AnyDatabase) -> C,
    back: impl AsyncFnOnce(C) -> AnyDatabase,
) {
    let layer = open(store.clone()).await;
    let lost = layer.create_database("db", Default::default()).await.unwrap();
    let clients = open(engine("mem", std::path::Path::new(""))).await;
    let replica = async |name: &str| Local::new(clients.create_database(name, Default::default()).await.unwrap());
    let (behind, ahead) = (replica("behind").await, replica("ahead").await);
    let source = Local::new(lost.clone());
    for id in ["a", "b"] {
        change(&lost, id, "{}").await;
    }
    let (seen_behind, _) = pull(&source, &behind, None).await;
    assert_eq!((consumed(&lost).await, viewed(&lost).await.len()), (set(&["a", "b"]), 2));
    change(&lost, "c", "{}").await;
    change(&lost, "a", r#"{"n":2}"#).await;

    let copied = copy(store.clone()).await;

    // What the copy does not have.
    change(&lost, "d", "{}").await;
    change(&lost, "b", r#"{"lost":true}"#).await;
    let (seen_ahead, _) = pull(&source, &ahead, None).await;
    change(&ahead_documents(&clients).await, "own", "{}").await;
    let last_of_lost = lost.last_seq().await.unwrap();
    drop((source, lost, layer, store));

    let layer = open(back(copied).await).await;
    let here = layer.database("db").await.unwrap();
    let source = Local::new(here.clone());
    assert!(here.info().await.unwrap().update_seq.seq > last_of_lost, "every old sequence lies below all new ones");
    assert_eq!(here.check(|_| {}).await.unwrap().problem_count, 0);
    assert_eq!(viewed(&here).await, ["a", "b", "c"]);
    change(&here, "e", "{}").await;
    change(&here, "b", r#"{"here":true}"#).await;

    // The database's consumer had "a" and "b". A restore begins it anew.
    assert!(consumed(&here).await.is_superset(&set(&["a", "b", "c", "e"])));
    assert_eq!(consumed(&here).await, set(&[]), "once");
    // One elsewhere knows the last sequence of the lost store.
    assert!(changed_after(&source, &seen_ahead).await.is_superset(&set(&["b", "e"])));
    assert_eq!(viewed(&here).await, ["a", "b", "c", "e"]);

    let (seen, got) = pull(&source, &behind, Some(seen_behind)).await;
    assert_eq!(got, set(&["a", "b", "c", "e"]));
    assert_eq!(leaves(&behind).await, leaves(&source).await);
    let (_, got) = pull(&source, &ahead, Some(seen_ahead)).await;
    assert_eq!(got, set(&["b", "e"]), "no document is sent again");
    // It still has what was lost, and brings it back.
    let (_, got) = pull(&ahead, &source, None).await;
    assert_eq!(got, set(&["b", "d", "own"]));
    assert_eq!(leaves(&ahead).await, leaves(&source).await);
    let (_, got) = pull(&source, &behind, Some(seen)).await;
    assert_eq!(got, set(&["b", "d", "own"]));
    assert_eq!(leaves(&behind).await, leaves(&source).await);
    assert_eq!(here.check(|_| {}).await.unwrap().problem_count, 0);
}

async fn ahead_documents(clients: &Layer<AnyDatabase>) -> Documents<AnyDatabase> {
    clients.database("ahead").await.unwrap()
}

/// Backs a store up, and restores it into another one.
async fn restored(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let repository = &new_repository(&folder.path().join("repository")).await;
    let options = &LayerOptions::default();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let copy = async |store| {
        repository.back_up(store, options, &[], &mut quiet).await.unwrap();
    };
    let back = async |()| {
        let target = engine(name, &to);
        repository.restore(target.clone(), options, &Default::default(), &mut quiet).await.unwrap();
        target
    };
    nobody_misses_anything(engine(name, &from), copy, back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_misses_anything_after_a_restore_into_memory() {
    restored("mem").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_misses_anything_after_a_restore_into_lsm() {
    restored("lsm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_misses_anything_after_a_restore_into_sled() {
    restored("sled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_misses_anything_after_a_snapshot_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let copied = &folder.path().join("copied");
    let copy = async |store: AnyDatabase| store.snapshot(copied).unwrap();
    let back = async |()| {
        let refused = LsmDatabase::open(copied, LsmOptions::new()).unwrap_err().to_string();
        assert!(refused.contains("is a snapshot"), "{refused}");
        let opened = LsmDatabase::open(copied, LsmOptions::new().copy()).unwrap();
        let adopted = Layer::adopt(opened.clone(), LayerOptions::default()).await.unwrap();
        assert_eq!((adopted.databases, adopted.unreadable.len()), (1, 0));
        disk::folder::take_into_use(copied).unwrap();
        drop(opened);
        engine("lsm", copied)
    };
    nobody_misses_anything(engine("lsm", &folder.path().join("from")), copy, back).await;
}

/// Ships a store, and restores it as it was before it went on.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_misses_anything_after_a_shipped_store_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = LsmDatabase::open(folder.path().join("from"), LsmOptions::new()).unwrap();
    let repository = &new_repository(&folder.path().join("repository")).await;
    let copied = &folder.path().join("copied");
    let followed = shipped.clone();
    let copy = async move |_| {
        let shipper = Shipper::new(repository.clone(), Arc::new(followed), "store", ShipOptions::default());
        shipper.ship_log().await.unwrap();
        assert!(shipper.ship_tables().await.unwrap());
        let until = shipper.shipped().until_ms;
        // A time that the log's next segment does not have.
        while model::SystemEnvironment.now_ms() <= until {
            tokio::task::yield_now().await;
        }
        (shipper, until)
    };
    let back = async |(shipper, until): (Shipper, u64)| {
        shipper.ship_log().await.unwrap();
        drop(shipper);
        let restored = repository.restore_shipped::<LsmStore>(copied, Some(until), &mut |_| {}).await.unwrap();
        assert_eq!(restored.ms, until);
        assert!(restored.next_ms.is_some(), "what the store wrote later is there too");
        let refused = LsmDatabase::open(copied, LsmOptions::new()).unwrap_err().to_string();
        assert!(refused.contains("is a snapshot"), "{refused}");
        let opened = LsmDatabase::open(copied, LsmOptions::new().copy()).unwrap();
        Layer::adopt(opened.clone(), LayerOptions::default()).await.unwrap();
        disk::folder::take_into_use(copied).unwrap();
        drop(opened);
        engine("lsm", copied)
    };
    nobody_misses_anything(AnyDatabase::new(shipped), copy, back).await;
}

#[tokio::test]
async fn engines_without_snapshots_say_so_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mem", "sled"] {
        let store = engine(name, &folder.path().join(name));
        let copied = folder.path().join("copied");
        let refused = store.snapshot(&copied).unwrap_err();
        assert_eq!(refused.code(), 2108);
        assert!(refused.to_string().contains("make a backup"), "{refused}");
        assert!(!copied.exists());
    }
}
