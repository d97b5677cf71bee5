//! Storing, uniting and reading chunks.

use std::collections::BTreeSet;
use std::sync::Arc;

use chunks::store::{Body, Edit, IdRange, Leaf, PeerStore};
use chunks::{Chunk, ChunkStore, Error, Settings};
use engine_mem::MemDatabase;
use kv_api::Counted;
use model::{CreateOptions, Layer, LayerOptions};
use serde_json::{Value, json};

use crate::support::{DOCUMENT_LIMIT, World, assert_read, ids, replicate, texts};

crate::scenarios!(
    chunks_are_stored_once_and_read_back,
    the_first_ciphertext_of_a_chunk_stands,
    many_writers_lose_nothing,
    forks_that_come_back_are_united,
    two_that_make_one_data_document_lose_nothing,
    prefixes_grow_and_old_ones_stay,
    damaged_documents_are_named_and_spoil_only_themselves,
    chunks_are_found_without_an_index,
    a_limit_the_server_does_not_take_is_refused,
    writers_give_up_at_the_bound,
);

/// Ids of the live documents with a prefix.
async fn listed(chunks: &ChunkStore, prefix: &str) -> Vec<String> {
    let (mut range, mut ids) = (Some(IdRange::prefix(prefix)), Vec::new());
    while let Some(next) = range {
        let page = chunks.store().list(&next).await.unwrap();
        ids.extend(page.rows.into_iter().map(|row| row.id));
        range = page.rest;
    }
    ids
}

/// Number of surplus live leaves of all documents.
async fn conflicts(chunks: &ChunkStore) -> usize {
    let mut ids = listed(chunks, "idx:").await;
    ids.extend(listed(chunks, "dat:").await);
    let leaves = chunks.store().leaves(&ids, false).await.unwrap();
    leaves.iter().filter(|leaves| leaves.iter().filter(|leaf| !leaf.deleted).count() > 1).count()
}

async fn chunks_are_stored_once_and_read_back(world: World) {
    let chunks = world.chunks("db").await;
    let mut some = texts("note", 300);
    some.push(("h:empty".into(), Chunk::plain("")));
    some.push(("h:binary".into(), Chunk::plain("iVBORw0KGgo=")));
    let first = chunks.put(some.clone()).await.unwrap();
    assert_eq!((first.new, first.known, first.attempts), (302, 0, 2));
    assert_eq!(first.chunk_bytes, some.iter().map(|(_, chunk)| chunk.data.len() as u64).sum::<u64>());
    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
    let mut more = some.clone();
    more.extend(texts("other", 10));
    let second = chunks.put(more.clone()).await.unwrap();
    assert_eq!((second.new, second.known), (10, 302));
    assert_read(&chunks.get(&ids(&more)).await.unwrap(), &more);
    let (receipt, missing) = chunks.ensure([some[0].0.clone(), "h:none".to_owned()]).await.unwrap();
    assert_eq!((receipt.known, missing), (1, vec!["h:none".to_owned()]));
    // Three documents hold all of it.
    assert_eq!(chunks.store().figures().await.unwrap().documents, 3);
    assert_eq!(chunks.get(&["h:none".to_owned()]).await.unwrap()["h:none"], None);
}

async fn the_first_ciphertext_of_a_chunk_stands(world: World) {
    let (one, other) = (world.chunks("one").await, world.chunks("other").await);
    let id = "h:+u3yj679xuo58".to_owned();
    one.put([(id.clone(), Chunk::encrypted("%=one"))]).await.unwrap();
    let late = one.put([(id.clone(), Chunk::encrypted("%=late"))]).await.unwrap();
    assert_eq!((late.new, late.known), (0, 1));
    assert_eq!(one.get(std::slice::from_ref(&id)).await.unwrap()[&id], Some(Chunk::encrypted("%=one")));
    // Separately, each is the first. After uniting, one stays, the same on both sides.
    other.put([(id.clone(), Chunk::encrypted("%=other"))]).await.unwrap();
    replicate(&**one.store(), &**other.store()).await;
    replicate(&**other.store(), &**one.store()).await;
    one.put(texts("more", 3)).await.unwrap();
    other.put(texts("more", 3)).await.unwrap();
    let read = one.get(std::slice::from_ref(&id)).await.unwrap();
    assert_eq!(read, other.get(std::slice::from_ref(&id)).await.unwrap());
    assert!(read[&id].is_some());
}

async fn many_writers_lose_nothing(world: World) {
    let chunks = world.chunks("db").await;
    let common = texts("common", 40);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (chunks, common) = (ChunkStore::new(chunks.store().clone()), common.clone());
        writers.spawn(async move {
            let mut own = texts(&format!("writer {writer}"), 60);
            own.extend(common);
            for batch in own.chunks(20) {
                chunks.put(batch.to_vec()).await.unwrap();
            }
            own
        });
    }
    let all = writers.join_all().await.concat();
    assert_read(&chunks.get(&ids(&all)).await.unwrap(), &all);
    assert_eq!(conflicts(&chunks).await, 0);
}

async fn forks_that_come_back_are_united(world: World) {
    let (one, other) = (world.chunks("one").await, world.chunks("other").await);
    let base = texts("base", 20);
    one.put(base.clone()).await.unwrap();
    replicate(&**one.store(), &**other.store()).await;
    let (left, right) = (texts("left", 30), texts("right", 30));
    one.put(left.clone()).await.unwrap();
    other.put(right.clone()).await.unwrap();
    replicate(&**other.store(), &**one.store()).await;
    assert!(conflicts(&one).await > 0, "both wrote the same index and the same open data document");
    let all = [base, left, right].concat();
    assert_read(&one.get(&ids(&all)).await.unwrap(), &all);
    // The next writer unites it, and knows the chunks of both.
    let again = one.put([all.clone(), texts("last", 1)].concat()).await.unwrap();
    assert_eq!((again.new, again.known), (1, 80));
    assert_eq!(conflicts(&one).await, 0);
    replicate(&**one.store(), &**other.store()).await;
    assert_eq!(conflicts(&other).await, 0);
    assert_read(&other.get(&ids(&all)).await.unwrap(), &all);
}

async fn two_that_make_one_data_document_lose_nothing(world: World) {
    let chunks = world.chunks("db").await;
    chunks.prepare(10).await.unwrap();
    // Another program, which numbers its documents without a nonce.
    let (a, b) = (texts("a", 1).remove(0), texts("b", 1).remove(0));
    let leaf = |rev: &str, body: Value| Leaf {
        rev: rev.into(),
        deleted: false,
        body: body.as_object().unwrap().clone(),
        ancestors: Vec::new(),
    };
    let base64 = |chunk: &Chunk| base64_of(&chunk.data);
    for (rev, (id, chunk)) in [("1-aa", &a), ("1-bb", &b)] {
        let data = leaf(rev, json!({"chunks": {id: base64(chunk)}}));
        let index = leaf(rev, json!({"chunks": {id: "dat:-006"}, "open": "dat:-006"}));
        chunks.store().graft(vec![("dat:-006".into(), data), ("idx:".into(), index)]).await.unwrap();
    }
    let both = vec![a, b];
    assert_read(&chunks.get(&ids(&both)).await.unwrap(), &both);
    let receipt = chunks.put([both.clone(), texts("c", 1)].concat()).await.unwrap();
    assert_eq!((receipt.new, receipt.known), (1, 2));
    assert_eq!((conflicts(&chunks).await, listed(&chunks, "dat:").await), (0, vec!["dat:-006".to_owned()]));
    assert_read(&chunks.get(&ids(&both)).await.unwrap(), &both);
}

fn base64_of(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(text)
}

async fn prefixes_grow_and_old_ones_stay(world: World) {
    let chunks = world.chunks("db").await;
    let stale = ChunkStore::new(chunks.store().clone());
    let mut all = Vec::new();
    for batch in 0..5 {
        let some = texts(&format!("batch {batch}"), 300);
        chunks.put(some.clone()).await.unwrap();
        all.extend(some);
        stale.settings().await.unwrap().filter(|_| batch == 0);
    }
    let settings = chunks.settings().await.unwrap().unwrap();
    assert_eq!(settings.chunk_prefix_length, 1);
    let indexes = listed(&chunks, "idx:").await;
    assert!(indexes.contains(&"idx:".to_owned()) && indexes.len() == 17, "{indexes:?}");
    for leaves in chunks.store().leaves(&indexes, false).await.unwrap() {
        assert!(Value::Object(leaves[0].body.clone()).to_string().len() <= 30_000);
    }
    assert_read(&chunks.get(&ids(&all)).await.unwrap(), &all);
    // A client that has not heard of it also finds everything, and stores nothing twice.
    assert_read(&ChunkStore::new(chunks.store().clone()).get(&ids(&all)).await.unwrap(), &all);
    assert_eq!(stale.put(all.clone()).await.unwrap().new, 0);
    // Even without the settings document nothing is hidden.
    let leaves = chunks.store().leaves(&["chunks:settings".to_owned()], false).await.unwrap();
    chunks.store().write(vec![Edit::delete("chunks:settings", &leaves[0][0].rev)]).await.unwrap();
    let late = ChunkStore::new(chunks.store().clone());
    assert_eq!(late.put(all.clone()).await.unwrap().new, 0);
    assert_eq!(late.settings().await.unwrap().unwrap().chunk_prefix_length, 1);
}

async fn damaged_documents_are_named_and_spoil_only_themselves(world: World) {
    let chunks = world.chunks("db").await;
    let some = texts("note", 20);
    chunks.put(some.clone()).await.unwrap();
    let leaves = chunks.store().leaves(&["idx:".to_owned()], false).await.unwrap();
    let mut damaged: Body = leaves[0][0].body.clone();
    damaged.insert("chunks".into(), json!([1]));
    let edit = Edit { id: "idx:".into(), rev: Some(leaves[0][0].rev.clone()), deleted: false, body: damaged };
    chunks.store().write(vec![edit]).await.unwrap()[0].clone().unwrap();
    let refused = chunks.put(texts("more", 1)).await.unwrap_err();
    assert!(matches!(&refused, Error::Malformed { id, .. } if id == "idx:"), "{refused}");
    // Readers find the chunks nevertheless.
    assert_read(&chunks.get(&ids(&some)).await.unwrap(), &some);
}

async fn chunks_are_found_without_an_index(world: World) {
    let chunks = world.chunks("db").await;
    chunks.prepare(5_000).await.unwrap();
    let some = texts("note", 50);
    chunks.put(some.clone()).await.unwrap();
    let indexes = listed(&chunks, "idx:").await;
    for (id, leaves) in indexes.iter().zip(chunks.store().leaves(&indexes, false).await.unwrap()) {
        chunks.store().write(vec![Edit::delete(id, &leaves[0].rev)]).await.unwrap()[0].clone().unwrap();
    }
    // And a chunk with a document of its own, as LiveSync stores it.
    let own = Edit {
        id: "h:own".into(),
        rev: None,
        deleted: false,
        body: json!({"type": "leaf", "data": "own"}).as_object().unwrap().clone(),
    };
    chunks.store().write(vec![own]).await.unwrap();
    let all = [some, vec![("h:own".to_owned(), Chunk::plain("own"))]].concat();
    assert_read(&chunks.get(&ids(&all)).await.unwrap(), &all);
    let (receipt, missing) = chunks.ensure(ids(&all)).await.unwrap();
    assert_eq!((receipt.new, missing), (50, Vec::new()), "they are in an index again");
    let distinct: BTreeSet<String> = ids(&all).into_iter().collect();
    assert_eq!(distinct.len(), 51);
}

async fn a_limit_the_server_does_not_take_is_refused(world: World) {
    let chunks = world.chunks("db").await;
    let settings = Settings { chunk_prefix_length: 1, ..Settings::default() };
    chunks.configure(settings, 5_000).await.unwrap();
    for (settings, chunks_in_all, wanted) in [
        (Settings { data_doc_size_limit: DOCUMENT_LIMIT + 1, ..settings }, 5_000, "more than the server takes"),
        (Settings { data_doc_size_limit: 1_000, ..settings }, 5_000, "under the minimum of 64000"),
        (Settings { chunk_prefix_length: 4, ..settings }, 5_000, "index and data documents"),
        (Settings { chunk_prefix_length: 0, ..settings }, 100, "only grows"),
    ] {
        let refused = chunks.configure(settings, chunks_in_all).await.unwrap_err().to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
    assert_eq!(chunks.settings().await.unwrap(), Some(settings));
    let huge = Chunk::plain("x".repeat(DOCUMENT_LIMIT));
    let refused = chunks.put([("h:huge".to_owned(), huge)]).await.unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
}

async fn writers_give_up_at_the_bound(world: World) {
    let chunks = world.chunks("db").await.with_attempts(1);
    // The first attempt finds no settings, and there is no second attempt.
    let refused = chunks.put(texts("note", 1)).await.unwrap_err();
    assert!(matches!(refused, Error::Contended { attempts: 1, .. }), "{refused}");
    assert_eq!(chunks.put(texts("note", 1)).await.unwrap().new, 1);
}

/// Each batch of a push touches all data documents, but the next batch does not read them again.
#[tokio::test]
async fn known_chunks_take_one_look_at_each_data_document() {
    let engine = Counted::new(MemDatabase::new());
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let store = Arc::new(PeerStore::local(documents));
    let some: Vec<(String, Chunk)> =
        (0..1_000).map(|n| (format!("h:{n}"), Chunk::plain(format!("{n} ").repeat(500)))).collect();
    ChunkStore::new(store.clone()).put(some.clone()).await.unwrap();

    let chunks = ChunkStore::new(store);
    let mut read = Vec::new();
    for batch in some.chunks(250) {
        engine.take();
        assert_eq!(chunks.put(batch.to_vec()).await.unwrap().known, 250);
        read.push(engine.take().iter().map(|counts| counts.bytes_read).sum::<u64>());
    }
    println!("bytes read by batches of known chunks: {read:?}");
    assert!(read[1..].iter().all(|batch| batch * 5 < read[0]), "{read:?}");
}
