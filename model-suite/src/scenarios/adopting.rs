//! Stores whose versions went back, as after a restore into another cluster.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::chaos::{Chaos, Fault};
use kv_api::{AnyDatabase, Database, Read, Transaction};
use model::{
    Change, ChangesRequest, CreateOptions, Documents, Edits, Emit, Error, ErrorKind, Layer, LayerOptions, RustView,
    Seq, Since, ViewGroup, ViewRequest,
};

use super::feed::soon;
use crate::stage::*;

/// A version far below those of any engine.
const LOW: u64 = 1_000;

/// The rows of `engine` in a store whose versions are low.
fn restored(engine: AnyDatabase) -> Chaos<AnyDatabase> {
    Chaos::with_versions(engine, Arc::new(AtomicU64::new(LOW)))
}

async fn opened<D: Database>(engine: D) -> Result<Layer<D>, ErrorKind> {
    Layer::open(engine, LayerOptions::default()).await.map_err(|error| error.kind().clone())
}

async fn adopt<D: Database>(engine: D) -> model::Result<u64> {
    let adopted = Layer::adopt(engine, LayerOptions::default()).await?;
    assert_eq!(adopted.unreadable, [""; 0]);
    Ok(adopted.databases)
}

fn went_back<T: std::fmt::Debug>(outcome: Result<T, ErrorKind>) {
    let found = outcome.expect_err("a store that is refused");
    assert!(matches!(found, ErrorKind::WentBack { newest, .. } if newest > LOW), "{found:?}");
}

async fn after<D: Database>(documents: &Documents<D>, since: Seq) -> Vec<String> {
    let request = ChangesRequest { since: Since::Seq(since), ..ChangesRequest::default() };
    feed(documents, request).await.into_iter().map(|change| change.id).collect()
}

fn by_id() -> ViewGroup {
    let view = RustView::new("all", |document: &model::JsonText, emit: &mut Emit| {
        let id = document.get("_id").and_then(|id| id.as_str().map(|id| format!("{id:?}"))).expect("an id");
        emit.row(json(&id), json("null"));
        Ok(())
    });
    ViewGroup::of_closures("group", 1, vec![view])
}

async fn viewed<D: Database>(documents: &Documents<D>) -> Vec<String> {
    let page = documents.query_view(&by_id(), "all", &ViewRequest::default()).await.expect("a page");
    page.rows.iter().map(|row| row.id.clone()).collect()
}

/// The ids that a consumer sees.
async fn consumed<D: Database>(documents: &Documents<D>) -> Vec<String> {
    let seen = parking_lot::Mutex::default();
    let consumer = documents.feed().consumer("c");
    let effect = async |_: Edits<D>, rows: Vec<Change>| {
        *seen.lock() = rows.into_iter().map(|row| row.id).collect();
        Ok::<_, Error>(())
    };
    consumer.consume(100, effect).await.expect("rows");
    seen.into_inner()
}

pub(crate) async fn a_store_whose_versions_went_back_is_refused_and_adopted(stage: Stage) {
    let layer = stage.layer().await;
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    for id in ["a", "b"] {
        documents.put(edit(id, "{}")).await.unwrap();
    }
    layer.create_database("dropped", CreateOptions::default()).await.unwrap();
    layer.delete_database("dropped").await.unwrap();
    layer.create_database("empty", CreateOptions::default()).await.unwrap();
    assert_eq!((consumed(&documents).await, viewed(&documents).await), (strings(&["a", "b"]), strings(&["a", "b"])));
    let since = documents.last_seq().await.unwrap();
    let events = layer.database_events(Seq::ZERO).await.unwrap();

    let other = restored(stage.engine());
    went_back(opened(other.clone()).await);
    assert_eq!(adopt(other.clone()).await.unwrap(), 2);
    // An adopted store may be backed up and restored before anybody writes to it.
    assert_eq!(adopt(other.clone()).await.unwrap(), 2);
    let there = opened(other.clone()).await.unwrap();
    let adopted = there.database("db").await.unwrap();
    let info = adopted.info().await.unwrap();
    assert!(info.incarnation >= 4, "twice, and never the next one: {}", info.incarnation);
    assert_eq!(info.doc_count, 2);
    assert!(info.update_seq.seq > since);
    assert_eq!(after(&adopted, since).await, [""; 0]);
    assert_sound(&adopted).await;

    let mut watcher = adopted.watch_changes(info.update_seq.seq);
    let mut waiting = pin!(watcher.changed());
    assert!(poll_once(waiting.as_mut()).is_none(), "it waits");
    let a = get(&adopted, "a").await.rev;
    adopted.put(edit("c", "{}")).await.unwrap();
    adopted.put(edit("a", r#"{"n":1}"#).over(a)).await.unwrap();
    soon(waiting).await.unwrap();
    assert_eq!(after(&adopted, since).await, ["c", "a"], "new changes come after old ones");
    assert_eq!(after(&adopted, Seq::ZERO).await, ["b", "c", "a"]);
    assert_eq!(consumed(&adopted).await, ["c", "a"]);
    assert_eq!(viewed(&adopted).await, ["a", "b", "c"]);
    for incarnation in [0, 1] {
        let ahead = Seq::from_bytes([vec![incarnation], vec![0xff; Seq::LEN - 1]].concat().try_into().unwrap());
        assert_eq!(after(&adopted, ahead).await, ["c", "a"], "a sequence of a lost store");
    }
    assert_sound(&adopted).await;
    let names = |events: model::DatabaseEvents| -> Vec<String> {
        events.events.into_iter().map(|event| format!("{:?} {}", event.kind, event.name)).collect()
    };
    let renewed = names(there.database_events(events.last_seq).await.unwrap());
    assert_eq!(renewed, ["Deleted dropped", "Created db", "Created empty", "Updated db"]);

    // It can be used like any other store.
    went_back(opened(Chaos::with_versions(stage.engine(), Arc::new(AtomicU64::new(1)))).await);
    there.delete_database("empty").await.unwrap();
    opened(other).await.unwrap();
}

pub(crate) async fn an_adoption_that_ended_midway_is_continued(stage: Stage) {
    let layer = stage.layer().await;
    let names = ["a", "b", "c"];
    for name in names {
        layer.create_database(name, CreateOptions::default()).await.unwrap().put(edit("x", "{}")).await.unwrap();
    }
    let other = restored(stage.engine());
    // The second database fails.
    let faults = [None, Some(Fault::TooLarge)];
    adopt(Chaos::scripted(other.clone(), faults)).await.unwrap_err();
    went_back(opened(other.clone()).await);
    // The result of each commit is unknown at first.
    let faults = [Some(Fault::UnknownCommitted), Some(Fault::UnknownNotCommitted), Some(Fault::UnknownCommitted)];
    assert_eq!(adopt(Chaos::scripted(other.clone(), faults)).await.unwrap(), 3);
    let layer = opened(other).await.unwrap();
    for (name, incarnation) in names.into_iter().zip([4, 2, 2]) {
        assert!(layer.database(name).await.unwrap().info().await.unwrap().incarnation >= incarnation, "{name}");
    }
}

pub(crate) async fn a_server_that_runs_while_its_store_goes_back_notices(stage: Stage) {
    let documents = stage.documents().await;
    documents.put(edit("a", "{}")).await.unwrap();
    let now = stage.engine().begin().unwrap().get_read_version().await.unwrap();
    let versions = Arc::new(AtomicU64::new(u64::try_from(now).unwrap()));
    let running = opened(Chaos::with_versions(stage.engine(), versions.clone())).await.unwrap();
    let running = running.database("db").await.unwrap();
    assert_eq!(after(&running, Seq::ZERO).await, ["a"]);
    versions.store(LOW, Ordering::SeqCst);
    went_back(running.changes(&ChangesRequest::default()).await.map_err(|error| error.kind().clone()));
    went_back(running.info().await.map_err(|error| error.kind().clone()));
    went_back(running.last_seq().await.map_err(|error| error.kind().clone()));
    let mut watcher = running.watch_changes(Seq::ZERO);
    went_back(soon(watcher.changed()).await.map_err(|error| error.kind().clone()));
}

pub(crate) async fn only_a_store_of_ours_is_adopted(stage: Stage) {
    let refused = adopt(stage.engine()).await.unwrap_err();
    assert_eq!(refused.status(), 400, "an empty one");
    let transaction = stage.engine().begin().unwrap();
    assert_eq!(transaction.get(&[0x14], Read::Snapshot).await.unwrap(), None, "nothing was written");
    transaction.set(b"another", b"program");
    transaction.commit().await.unwrap();
    assert_eq!(*adopt(stage.engine()).await.unwrap_err().kind(), ErrorKind::NotOurs);
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}
