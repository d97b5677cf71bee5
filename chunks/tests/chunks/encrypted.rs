//! Vaults written by LiveSync, some encrypted: unreadable files prevent collections, and with the passphrase every file
//! is restored byte for byte.

use chunks::store::Edit;
use chunks::vault::{PullOptions, Vault};
use chunks::{Chunk, ChunkStore, CollectOptions, Error};
use serde_json::json;

use crate::fixtures::{ALL, Fixture, PASSPHRASE, files};
use crate::interruption::content;
use crate::support::{World, set_grace};

crate::scenarios!(
    a_collection_that_cannot_read_references_collects_nothing,
    a_wrong_passphrase_is_refused_and_changes_nothing,
    a_damaged_entry_stops_a_collection_that_has_the_passphrase,
    a_chunk_that_was_compressed_before_it_was_encrypted_is_read,
    of_two_ciphertexts_none_ends_that_is_not_known_to_be_the_other,
);

crate::on_every_engine!(every_vault_comes_back_to_the_byte);

const EAGER: CollectOptions = CollectOptions { dry_run: false, unused_percent: 0 };

async fn a_collection_that_cannot_read_references_collects_nothing(world: World) {
    let store = Fixture::Obfuscated.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone());
    assert_eq!(chunks.migrate(false, |_, _| ()).await.unwrap().chunks, 360);
    set_grace(&*store, 0).await;
    let before = content(&*store).await;
    for _ in 0..2 {
        let refused = chunks.collect(EAGER, |_| ()).await.unwrap_err();
        assert!(matches!(refused, Error::Unread { files: 27, .. }), "{refused:?}");
        let sentence = refused.to_string();
        assert!(
            sentence.contains("27 files") && sentence.contains("\"f:") && sentence.contains("passphrase"),
            "{sentence}"
        );
    }
    let refused = chunks.reindex(|_, _| ()).await.unwrap_err();
    assert!(matches!(refused, Error::Unread { files: 27, .. }), "{refused:?}");
    assert_eq!(content(&*store).await, before);
    // Without known references it must not report that all chunks exist.
    let verified = chunks.verify(|_| ()).await.unwrap();
    assert_eq!((verified.files, verified.chunks, verified.unread.len()), (0, 0, 27));

    // Without obfuscation the lists are in clear.
    let store = Fixture::Encrypted.load(&world, "clear").await;
    let chunks = ChunkStore::new(store.clone());
    chunks.migrate(false, |_, _| ()).await.unwrap();
    set_grace(&*store, 0).await;
    let collected = chunks.collect(EAGER, |_| ()).await.unwrap();
    assert_eq!((collected.files, collected.referenced, collected.condemned), (27, 347, 13));
}

async fn pulled_equals_the_vault(chunks: &ChunkStore) {
    let into = tempfile::tempdir().unwrap();
    let vault = Vault::new(chunks.clone());
    let pulled = vault.pull(into.path(), PullOptions::default(), |_| ()).await.unwrap();
    assert_eq!((pulled.written, pulled.deleted, pulled.problems.len()), (26, 1, 0), "{:?}", pulled.problems);
    assert_eq!(crate::vault::content(into.path()), files());
    let verified = vault.verify(|_| ()).await.unwrap();
    assert_eq!((verified.files, verified.problems.len()), (27, 0), "{:?}", verified.problems);
    let (mut listed, mut closed) = (Vec::new(), 0);
    vault
        .files(|file| {
            closed += usize::from(file.closed.is_some());
            listed.push(file.path);
        })
        .await
        .unwrap();
    listed.sort();
    let paths: Vec<String> = files().into_keys().map(|path| path.display().to_string()).collect();
    let mut paths = paths;
    paths.sort();
    assert_eq!((listed, closed), (paths, 0));
}

async fn every_vault_comes_back_to_the_byte(world: World) {
    for (number, fixture) in ALL.into_iter().enumerate() {
        let store = fixture.load(&world, &format!("vault{number}")).await;
        let chunks = ChunkStore::new(store.clone()).unlock(PASSPHRASE).await.unwrap();
        let before = content(&*store).await;
        pulled_equals_the_vault(&chunks).await;
        let migrated = chunks.migrate(false, |_, _| ()).await.unwrap();
        assert_eq!((migrated.chunks, migrated.left.len()), (360, 0), "{:?}", migrated.left);
        pulled_equals_the_vault(&chunks).await;
        chunks.migrate_back(false, |_, _| ()).await.unwrap();
        assert_eq!(content(&*store).await, before, "the way back restores each document");

        chunks.migrate(false, |_, _| ()).await.unwrap();
        set_grace(&*store, 0).await;
        let condemned = chunks.collect(EAGER, |_| ()).await.unwrap();
        assert_eq!((condemned.files, condemned.referenced, condemned.condemned), (27, 347, 13));
        let removed = condemned.removed + chunks.collect(EAGER, |_| ()).await.unwrap().removed;
        assert_eq!(removed, 13);
        let verified = chunks.verify(|_| ()).await.unwrap();
        assert_eq!((verified.files, verified.chunks), (27, 347));
        assert!(verified.missing.is_empty() && verified.unread.is_empty());
        pulled_equals_the_vault(&chunks).await;
        assert_eq!(chunks.migrate_back(false, |_, _| ()).await.unwrap().chunks, 347);
        pulled_equals_the_vault(&chunks).await;
        // Everything has the form that LiveSync gave it, except the 13 removed chunks.
        let after = content(&*store).await;
        let gone = before.iter().filter(|(id, _)| !after.contains_key(*id));
        assert_eq!(gone.filter(|(id, _)| id.starts_with("h:")).count(), 13);
        assert!(after.iter().all(|(id, body)| before.get(id) == Some(body)));
    }
}

async fn a_wrong_passphrase_is_refused_and_changes_nothing(world: World) {
    for (number, fixture) in [Fixture::Encrypted, Fixture::Obfuscated].into_iter().enumerate() {
        let store = fixture.load(&world, &format!("vault{number}")).await;
        let before = content(&*store).await;
        let chunks = ChunkStore::new(store.clone());
        let refused = chunks.clone().unlock("correct donkey").await.unwrap_err().to_string();
        assert!(refused.contains("the passphrase is wrong"), "{refused}");
        assert_eq!(content(&*store).await, before);
        // The same when the chunks have no documents of their own.
        chunks.migrate(false, |_, _| ()).await.unwrap();
        let refused = chunks.clone().unlock("").await.unwrap_err().to_string();
        assert!(refused.contains("the passphrase is wrong"), "{refused}");
        chunks.unlock(PASSPHRASE).await.unwrap();
    }
    // A copy of only the documents lacks the salt.
    let store = Fixture::Obfuscated.load_without_local(&world, "export").await;
    let refused = ChunkStore::new(store).unlock(PASSPHRASE).await.unwrap_err().to_string();
    assert!(refused.contains("_local/obsidian_livesync_sync_parameters") && refused.contains("salt"), "{refused}");
}

async fn a_damaged_entry_stops_a_collection_that_has_the_passphrase(world: World) {
    let store = Fixture::Obfuscated.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone()).unlock(PASSPHRASE).await.unwrap();
    chunks.migrate(false, |_, _| ()).await.unwrap();
    set_grace(&*store, 0).await;
    let row = store.list(&chunks::store::IdRange::prefix("f:").with_bodies()).await.unwrap().rows.remove(0);
    let mut body = row.body.unwrap();
    let path = body["path"].as_str().unwrap().replacen('A', "B", 1);
    body.insert("path".into(), path.into());
    let edit = chunks::store::Edit { id: row.id.clone(), rev: Some(row.rev), deleted: false, body };
    store.write(vec![edit]).await.unwrap().remove(0).unwrap();
    let before = content(&*store).await;
    let refused = chunks.collect(EAGER, |_| ()).await.unwrap_err();
    assert!(matches!(&refused, Error::Unread { files: 1, first } if first.contains(&row.id)), "{refused:?}");
    assert_eq!(content(&*store).await, before);
}

async fn a_chunk_that_was_compressed_before_it_was_encrypted_is_read(world: World) {
    let store = Fixture::Encrypted.load(&world, "vault").await;
    let text = format!("Größe: {}", "a line that is written again and again\n".repeat(6));
    // Compressed by fflate, and encrypted with the vault's passphrase and salt.
    let sealed = "%=BwcHBwcHBwcHBwcHCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQmcieyz1beA1YgLGx4Wy6BphBJwquhEnyhdn0FDx9f4vDXbmUr3\
                  qdjdllYYC83qFSvfAv+iQRyb5JNWXpZOj7hsT44XvHUQrBW3INw7kqOR2HwVt5Y=";
    let file = json!({"path": "Compressed.md", "children": ["h:+external"], "type": "plain", "eden": {}, "ctime": 1,
        "mtime": 1, "size": text.len()});
    for (id, body) in [("h:+external", json!({"type": "leaf", "e_": true, "data": sealed})), ("compressed.md", file)] {
        let edit = Edit { id: id.into(), rev: None, deleted: false, body: body.as_object().unwrap().clone() };
        store.write(vec![edit]).await.unwrap().remove(0).unwrap();
    }
    let vault = Vault::new(ChunkStore::new(store).unlock(PASSPHRASE).await.unwrap());
    let into = tempfile::tempdir().unwrap();
    let pulled = vault.pull(into.path(), PullOptions::default(), |_| ()).await.unwrap();
    assert_eq!((pulled.written, pulled.problems.len()), (27, 0), "{:?}", pulled.problems);
    assert_eq!(std::fs::read_to_string(into.path().join("Compressed.md")).unwrap(), text);
    let verified = vault.verify(|_| ()).await.unwrap();
    assert_eq!((verified.files, verified.warnings.len()), (28, 1), "{:?}", verified.problems);
}

async fn of_two_ciphertexts_none_ends_that_is_not_known_to_be_the_other(world: World) {
    let store = Fixture::Encrypted.load(&world, "vault").await;
    let locked = ChunkStore::new(store.clone());
    let unlocked = locked.clone().unlock(PASSPHRASE).await.unwrap();
    // The ids of two chunks are swapped: the aggregated ciphertext and the chunk's own one have different texts.
    let prefix = chunks::store::IdRange::prefix("h:+").limit(2).with_bodies();
    let rows = store.list(&prefix).await.unwrap().rows;
    let [_, other]: [Chunk; 2] =
        [0, 1].map(|place| Chunk::encrypted(rows[place].body.as_ref().unwrap()["data"].as_str().unwrap()));
    let id = rows[0].id.clone();
    locked.put([(id.clone(), other.clone())]).await.unwrap();
    let own = || async { store.live(std::slice::from_ref(&id)).await.unwrap()[0] };
    for chunks in [&locked, &unlocked] {
        let migrated = chunks.migrate(false, |_, _| ()).await.unwrap();
        assert!(matches!(&migrated.left[..], [left] if left.contains(&id)), "{:?}", migrated.left);
        assert!(own().await);
    }
    for chunks in [&locked, &unlocked] {
        let back = chunks.migrate_back(false, |_, _| ()).await.unwrap();
        assert!(back.left.iter().any(|left| left.contains(&id)), "{:?}", back.left);
        let data = store.list(&chunks::store::IdRange::prefix("dat:").with_bodies()).await.unwrap().rows;
        let held = |row: &chunks::store::ListedDocument| {
            row.body.as_ref().unwrap()["chunks"][&id] == format!("*{}", other.data)
        };
        assert!(own().await && data.iter().any(held), "both are there");
    }

    // Two ciphertexts of one text. With the passphrase this can be seen.
    let store = Fixture::Encrypted.load(&world, "twins").await;
    let locked = ChunkStore::new(store.clone());
    let unlocked = locked.clone().unlock(PASSPHRASE).await.unwrap();
    let bench = tempfile::tempdir().unwrap();
    std::fs::write(bench.path().join("Twin.md"), "a text of its own\n").unwrap();
    let push = chunks::vault::PushOptions::default();
    Vault::new(unlocked.clone()).push(bench.path(), push, |_| ()).await.unwrap();
    let file = store.leaves(&["twin.md".to_owned()], false).await.unwrap().remove(0).remove(0);
    let id = file.body["children"][0].as_str().unwrap().to_owned();
    let mut bodies = Vec::new();
    for _ in 0..2 {
        let scratch = Fixture::Encrypted.load(&world, &format!("scratch{}", bodies.len())).await;
        let scratch = ChunkStore::new(scratch).unlock(PASSPHRASE).await.unwrap();
        Vault::new(scratch.clone()).push(bench.path(), push, |_| ()).await.unwrap();
        let chunk = scratch.get(std::slice::from_ref(&id)).await.unwrap().remove(&id).unwrap().unwrap();
        bodies.push(json!({"type": "leaf", "e_": true, "data": chunk.data}));
    }
    assert_ne!(bodies[0], bodies[1]);
    let body = bodies[0].as_object().unwrap().clone();
    let edit = Edit { id: id.clone(), rev: None, deleted: false, body };
    store.write(vec![edit]).await.unwrap().remove(0).unwrap();
    let own = || async { store.live(std::slice::from_ref(&id)).await.unwrap()[0] };
    let migrated = locked.migrate(false, |_, _| ()).await.unwrap();
    assert!(own().await && migrated.left.len() == 1, "{:?}", migrated.left);
    let migrated = unlocked.migrate(false, |_, _| ()).await.unwrap();
    assert!(!own().await && migrated.left.is_empty(), "{:?}", migrated.left);
    assert!(unlocked.verify(|_| ()).await.unwrap().missing.is_empty());
}
