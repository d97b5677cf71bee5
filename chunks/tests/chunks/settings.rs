//! Lost, damaged or dangerous settings: nothing is collected with them.

use std::time::Duration;

use chunks::store::Edit;
use chunks::{ChunkStore, CollectOptions, DEFAULT_GRACE_MS, Error, LEAST_GRACE_MS, Settings};
use serde_json::{Value, json};

use crate::interruption::content;
use crate::support::{World, assert_read, ids, replicate, set_grace, texts};

crate::scenarios!(
    without_settings_nothing_is_collected,
    by_damaged_settings_nothing_is_collected,
    a_grace_that_is_too_short_is_refused
);

const ID: &str = "chunks:settings";
const EVERYTHING: CollectOptions = CollectOptions { dry_run: false, unused_percent: 0 };

/// A store with garbage that the next collection would remove.
async fn doomed(world: &World, name: &str) -> ChunkStore {
    let chunks = world.chunks(name).await;
    chunks.put(texts("rubbish", 30)).await.unwrap();
    set_grace(&**chunks.store(), 1).await;
    assert_eq!(chunks.collect(EVERYTHING, |_| ()).await.unwrap().condemned, 30);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(chunks.collect(CollectOptions { dry_run: true, ..EVERYTHING }, |_| ()).await.unwrap().removed, 30);
    chunks
}

async fn rev(chunks: &ChunkStore) -> String {
    chunks.store().leaves(&[ID.to_owned()], false).await.unwrap().remove(0).remove(0).rev
}

async fn without_settings_nothing_is_collected(world: World) {
    let chunks = doomed(&world, "db").await;
    let edit = Edit::delete(ID, rev(&chunks).await);
    chunks.store().write(vec![edit]).await.unwrap().remove(0).unwrap();
    let before = content(&**chunks.store()).await;
    // Once with the first handle, and once with a handle that has never seen settings.
    for chunks in [&chunks, &ChunkStore::new(chunks.store().clone())] {
        let refused = chunks.collect(EVERYTHING, |_| ()).await.unwrap_err();
        assert!(matches!(&refused, Error::Setting(_)) && refused.to_string().contains("chunks reindex"), "{refused}");
        assert_eq!(content(&**chunks.store()).await, before);
    }
    // A replica where they have not arrived yet.
    let replica = world.chunks("replica").await;
    replicate(&**chunks.store(), &**replica.store()).await;
    assert!(replica.collect(EVERYTHING, |_| ()).await.is_err());
    assert_read(&chunks.get(&ids(&texts("rubbish", 30))).await.unwrap(), &texts("rubbish", 30));
    // New settings are safe: a week, and the marks are younger.
    chunks.reindex(|_, _| ()).await.unwrap();
    assert_eq!(chunks.settings().await.unwrap().unwrap().grace_ms, DEFAULT_GRACE_MS);
    assert_eq!(chunks.collect(EVERYTHING, |_| ()).await.unwrap().removed, 0);
    // An empty database refuses nothing.
    assert_eq!(world.chunks("empty").await.collect(EVERYTHING, |_| ()).await.unwrap().removed, 0);
}

async fn by_damaged_settings_nothing_is_collected(world: World) {
    let good =
        json!({"format": 1, "chunk_prefix_length": 0, "data_doc_size_limit": 900_000, "grace_ms": 2_592_000_000u64});
    for (number, (member, value)) in [
        ("format", Value::Null),
        ("format", json!(3)),
        ("grace_ms", json!("soon")),
        ("grace_ms", json!(-1)),
        ("chunk_prefix_length", json!(17)),
        ("data_doc_size_limit", json!(5)),
    ]
    .into_iter()
    .enumerate()
    {
        let chunks = doomed(&world, &format!("db-{number}")).await;
        let mut damaged = good.clone();
        damaged[member] = value.clone();
        let body = damaged.as_object().unwrap().clone();
        let edit = Edit { id: ID.into(), rev: Some(rev(&chunks).await), deleted: false, body };
        chunks.store().write(vec![edit]).await.unwrap().remove(0).unwrap();
        let before = content(&**chunks.store()).await;
        let refused = chunks.collect(EVERYTHING, |_| ()).await.unwrap_err();
        assert!(matches!(refused, Error::Malformed { .. } | Error::Format { .. }), "{member} {value}: {refused}");
        assert_eq!(content(&**chunks.store()).await, before, "{member} {value}");
        let reindexed = chunks.reindex(|_, _| ()).await;
        if value == json!(3) {
            assert!(matches!(reindexed, Err(Error::Format { .. })), "what a later version wrote is not replaced");
            continue;
        }
        assert_eq!(reindexed.unwrap().replaced, 1, "{member} {value}");
        let settings = chunks.settings().await.unwrap().unwrap();
        let grace_ms = if member == "grace_ms" { DEFAULT_GRACE_MS } else { 2_592_000_000 };
        assert_eq!(settings, Settings { grace_ms, ..Settings::default() }, "{member} {value}");
        assert_eq!(chunks.collect(EVERYTHING, |_| ()).await.unwrap().removed, 0);
    }
}

async fn a_grace_that_is_too_short_is_refused(world: World) {
    let chunks = world.chunks("db").await;
    for grace_ms in [0, 1, LEAST_GRACE_MS - 1] {
        let refused =
            chunks.configure(Settings { grace_ms, ..Settings::default() }, 100).await.unwrap_err().to_string();
        assert!(refused.contains(&grace_ms.to_string()) && refused.contains("3600000"), "{refused}");
    }
    assert_eq!(chunks.settings().await.unwrap(), None);
    chunks.configure(Settings { grace_ms: LEAST_GRACE_MS, ..Settings::default() }, 100).await.unwrap();
}
