//! States that no writer of this crate leaves in a vault. They must not stop writers or lead to wrong conclusions.

use std::sync::Arc;

use chunks::store::{Body, DocumentStore, Edit, IdRange, Leaf};
use chunks::{Chunk, ChunkStore, CollectOptions, chunk_id};
use serde_json::{Value, json};

use crate::support::{World, assert_read, ids, set_grace, texts};

crate::scenarios!(
    a_chunk_that_its_data_document_lacks_is_stored_again,
    a_repair_mends_what_a_data_document_lacks,
    leaves_that_differ_are_not_ended_by_a_migration,
    the_highest_sequence_is_one_like_any_other,
    a_malformed_leaf_of_an_index_stops_no_writer,
    malformed_settings_beside_good_ones_stop_no_writer,
);

const EAGER: CollectOptions = CollectOptions { dry_run: false, unused_percent: 0 };

fn leaf(rev: &str, body: Value) -> Leaf {
    Leaf { rev: rev.into(), deleted: false, body: body.as_object().unwrap().clone(), ancestors: Vec::new() }
}

async fn graft(store: &dyn DocumentStore, id: &str, rev: &str, body: Value) {
    store.graft(vec![(id.into(), leaf(rev, body))]).await.unwrap();
}

async fn live(store: &dyn DocumentStore, id: &str) -> Vec<Leaf> {
    let leaves = store.leaves(&[id.to_owned()], false).await.unwrap().remove(0);
    leaves.into_iter().filter(|leaf| !leaf.deleted).collect()
}

/// Removes a chunk from the only data document, which stays.
async fn drop_from_data(store: &dyn DocumentStore, chunk: &str) {
    let page = store.list(&IdRange::prefix("dat:").with_bodies()).await.unwrap();
    for row in page.rows {
        let mut body: Body = row.body.unwrap();
        body["chunks"].as_object_mut().unwrap().remove(chunk);
        let edit = Edit { id: row.id, rev: Some(row.rev), deleted: false, body };
        store.write(vec![edit]).await.unwrap().remove(0).unwrap();
    }
}

async fn a_chunk_that_its_data_document_lacks_is_stored_again(world: World) {
    let store = world.database("vault").await;
    let chunks = ChunkStore::new(store.clone());
    let some = texts("some", 3);
    chunks.put(some.clone()).await.unwrap();
    drop_from_data(&*store, &some[0].0).await;
    let receipt = chunks.put(some.clone()).await.unwrap();
    assert_eq!((receipt.new, receipt.known), (1, 2));
    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);

    // A caller without the content gets an error.
    drop_from_data(&*store, &some[1].0).await;
    let (_, missing) = chunks.ensure(ids(&some)).await.unwrap();
    assert_eq!(missing, [some[1].0.clone()]);
}

async fn a_repair_mends_what_a_data_document_lacks(world: World) {
    let (store, other) = (world.database("vault").await, world.database("other").await);
    let (chunks, source) = (ChunkStore::new(store.clone()), ChunkStore::new(other));
    let some = texts("some", 3);
    chunks.put(some.clone()).await.unwrap();
    source.put(some.clone()).await.unwrap();
    let body = json!({"children": ids(&some), "type": "plain", "size": 1});
    chunks.put_file("note.md", None, body.as_object().unwrap().clone(), &Default::default()).await.unwrap();
    drop_from_data(&*store, &some[0].0).await;
    let missing: Vec<String> = chunks.verify(|_| ()).await.unwrap().missing.into_keys().collect();
    assert_eq!(missing, [some[0].0.clone()]);
    let (receipt, still) = chunks.repair(&missing, &source).await.unwrap();
    assert_eq!((receipt.new, still.len()), (1, 0));
    assert!(chunks.verify(|_| ()).await.unwrap().missing.is_empty());
    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
}

async fn leaves_that_differ_are_not_ended_by_a_migration(world: World) {
    let store = world.database("vault").await;
    let chunks = ChunkStore::new(store.clone());
    let (right, wrong) = ("from-a\n", "something else\n");
    let id = chunk_id(right);
    let body = |data: &str| json!({"type": "leaf", "data": data});
    // The winner does not match its id.
    graft(&*store, &id, "1-ffff", body(wrong)).await;
    graft(&*store, &id, "1-0000", body(right)).await;
    // Without the passphrase it cannot be known whether these are equal.
    let secret = |data: &str| json!({"type": "leaf", "e_": true, "data": data});
    graft(&*store, "h:+secret", "1-aa", secret("%=one")).await;
    graft(&*store, "h:+secret", "1-bb", secret("%=two")).await;
    // One leaf is a chunk, and another is not.
    graft(&*store, "h:odd", "1-aa", json!({"type": "leaf", "data": 7})).await;
    graft(&*store, "h:odd", "1-bb", body("odd")).await;
    // These are equal.
    graft(&*store, "h:same", "1-aa", body("same")).await;
    graft(&*store, "h:same", "1-bb", body("same")).await;

    let migrated = chunks.migrate(false, |_, _| ()).await.unwrap();
    assert_eq!((migrated.chunks, migrated.left.len()), (1, 3), "{:?}", migrated.left);
    for left in [id.as_str(), "h:+secret", "h:odd"] {
        assert_eq!(live(&*store, left).await.len(), 2, "{left}");
        assert!(
            migrated.left.iter().any(|line| line.contains(left) && line.contains("revisions")),
            "{:?}",
            migrated.left
        );
    }
    assert!(live(&*store, "h:same").await.is_empty());
    let same = "h:same".to_owned();
    assert_eq!(chunks.get(std::slice::from_ref(&same)).await.unwrap()[&same], Some(Chunk::plain("same")));
}

async fn the_highest_sequence_is_one_like_any_other(world: World) {
    let store = world.database("vault").await;
    let chunks = ChunkStore::new(store.clone());
    let old = texts("old", 1);
    chunks.put(old.clone()).await.unwrap();
    for id in ["dat:-18446744073709551615-9c0de1b2", "dat:-99999999999999999999999-9c0de1b2"] {
        let (hostile, text) = (chunk_id(id), id);
        let value = format!("={}", "A".repeat(40_000));
        let mut idx = live(&*store, "idx:").await.remove(0);
        idx.body["chunks"].as_object_mut().unwrap().insert(hostile.clone(), id.into());
        idx.body.insert("open".into(), id.into());
        store
            .write(vec![Edit { id: "idx:".into(), rev: Some(idx.rev), deleted: false, body: idx.body }])
            .await
            .unwrap()
            .remove(0)
            .unwrap();
        graft(&*store, id, "1-aa", json!({"chunks": {hostile.as_str(): value}})).await;
        let new = texts(text, 20);
        chunks.put(new.clone()).await.unwrap();
        assert_read(&chunks.get(&ids(&new)).await.unwrap(), &new);
    }
    // No file refers to any of it, so all of it is removed. The same documents are repacked in the process.
    let kept = texts("kept", 1);
    let receipt = chunks.put(kept.clone()).await.unwrap();
    let body = json!({"children": ids(&kept), "type": "plain", "size": 1}).as_object().unwrap().clone();
    chunks.put_file("note.md", None, body, &receipt).await.unwrap();
    set_grace(&*store, 0).await;
    for _ in 0..3 {
        chunks.collect(EAGER, |_| ()).await.unwrap();
    }
    assert_read(&chunks.get(&ids(&kept)).await.unwrap(), &kept);
    let rows = store.list(&IdRange::prefix("dat:")).await.unwrap().rows;
    assert_eq!(rows.len(), 1, "{rows:?}");
}

async fn a_malformed_leaf_of_an_index_stops_no_writer(world: World) {
    let store = world.database("vault").await;
    let chunks = ChunkStore::new(store.clone());
    let (old, new) = (texts("old", 3), texts("new", 3));
    chunks.put(old.clone()).await.unwrap();
    for rev in ["1-0000", "9-ffff"] {
        graft(&*store, "idx:", rev, json!({"chunks": 7})).await;
        let receipt = chunks.put([old.clone(), new.clone()].concat()).await.unwrap();
        assert_eq!(receipt.new + receipt.known, 6);
        assert_read(&chunks.get(&ids(&new)).await.unwrap(), &new);
        let malformed = live(&*store, "idx:").await.into_iter().filter(|leaf| leaf.rev == rev).count();
        assert_eq!(malformed, 1, "nobody but `reindex` ends what cannot be read");
    }
    // A collection cannot know what the malformed leaves keep.
    set_grace(&*store, 0).await;
    for _ in 0..2 {
        let collected = chunks.collect(EAGER, |_| ()).await.unwrap();
        assert_eq!((collected.condemned, collected.removed), (0, 0));
        assert!(collected.damaged.iter().any(|line| line.contains("idx:")), "{:?}", collected.damaged);
    }
    assert_read(&chunks.get(&ids(&old)).await.unwrap(), &old);
    assert_eq!(chunks.reindex(|_, _| ()).await.unwrap().replaced, 2);
    assert_eq!(chunks.collect(EAGER, |_| ()).await.unwrap().damaged, Vec::<String>::new());
}

async fn malformed_settings_beside_good_ones_stop_no_writer(world: World) {
    let store: Arc<dyn DocumentStore> = world.database("vault").await;
    let chunks = ChunkStore::new(store.clone());
    chunks.put(texts("old", 1)).await.unwrap();
    let damaged =
        json!({"format": 1, "chunk_prefix_length": 0, "data_doc_size_limit": "x", "grace_ms": 2_592_000_000_u64});
    graft(&*store, "chunks:settings", "9-ffff", damaged).await;
    let new = texts("new", 2_000);
    chunks.put(new.clone()).await.unwrap();
    assert_read(&chunks.get(&ids(&new)).await.unwrap(), &new);
    // The readable parts of the malformed ones count, as in `reindex`.
    assert_eq!(chunks.settings().await.unwrap().unwrap().grace_ms, 2_592_000_000);
}
