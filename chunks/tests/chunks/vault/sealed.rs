//! Pushing into vaults that LiveSync encrypted.

use std::sync::Arc;

use chunks::store::{Body, DocumentStore, Edit, IdRange};
use chunks::vault::{PushOptions, Vault};
use chunks::{Chunk, ChunkStore, Error};
use serde_json::{Value, json};

use super::{Bench, content, messages};
use crate::fixtures::{Fixture, PASSPHRASE};
use crate::support::World;

crate::scenarios!(
    what_is_pushed_into_an_encrypted_vault_is_encrypted,
    nothing_is_pushed_in_clear_into_an_encrypted_vault,
    nothing_is_pushed_in_clear_where_chunks_tell_nothing,
    nothing_is_pushed_with_a_passphrase_that_nothing_proves,
);

/// A word in new files, and one in their names.
const SECRETS: [&str; 2] = ["marmalade", "Zanzibar"];

async fn unlocked(store: Arc<dyn DocumentStore>) -> Bench {
    let mut bench = Bench::over(store.clone());
    bench.vault = Vault::new(ChunkStore::new(store).unlock(PASSPHRASE).await.unwrap());
    bench
}

/// All documents, as text.
async fn documents(store: &dyn DocumentStore) -> Vec<(String, String)> {
    let all = IdRange { start: String::new(), end: "\u{10ffff}".into(), limit: 10_000, bodies: true };
    let rows = store.list(&all).await.unwrap().rows;
    rows.into_iter().map(|row| (row.id, Value::Object(row.body.unwrap()).to_string())).collect()
}

async fn what_is_pushed_into_an_encrypted_vault_is_encrypted(world: World) {
    for (number, fixture) in [Fixture::Encrypted, Fixture::Obfuscated].into_iter().enumerate() {
        let bench = unlocked(fixture.load(&world, &format!("vault{number}")).await).await;
        assert_eq!(bench.pull(bench.root()).await.written, 26);
        assert_eq!(bench.push().await.unchanged, 26);
        let documents_before = documents(&*bench.store).await.len();
        bench.write("Tiny.md", "edited: marmalade\n");
        bench.write("Zanzibar/New.md", "new: marmalade\n".repeat(100));
        bench.write("_Zanzibar.bin", [b"\xff\xfe\x00marmalade".as_slice(), &[7; 3_000]].concat());
        bench.remove("CRLF.md");
        let pushed = bench.push_with(PushOptions { delete: true, ..Default::default() }).await;
        assert_eq!((pushed.written, pushed.deleted, pushed.unchanged), (3, 1, 24), "{}", messages(&pushed.problems));
        assert!(messages(&pushed.notes).contains("LiveSync's clients"), "{}", messages(&pushed.notes));

        let found = documents(&*bench.store).await;
        let files = found.iter().filter(|(id, _)| id.starts_with("f:")).count();
        assert_eq!(files, if fixture == Fixture::Obfuscated { 29 } else { 0 }, "an edit has the id that LiveSync gave");
        let own = found.iter().filter(|(id, _)| !["idx:", "dat:", "chunks:"].iter().any(|ours| id.starts_with(ours)));
        assert_eq!(own.count(), documents_before + 2);
        for (id, text) in &found {
            assert!(!text.contains(SECRETS[0]) && !text.contains("bWFybWFsYWRl"), "{id}: {text}");
            assert!(fixture == Fixture::Encrypted || !text.contains(SECRETS[1]), "{id}: {text}");
            let quoted = format!("\"{id}\" {text}");
            let is_encrypted = |(at, _): (usize, &str)| quoted[at..].starts_with("\"h:+");
            assert!(quoted.match_indices("\"h:").all(is_encrypted), "{quoted}");
        }
        // Everything is restored, in both forms.
        for _ in 0..2 {
            let into = tempfile::tempdir().unwrap();
            let pulled = bench.pull(into.path()).await;
            assert_eq!((pulled.written, pulled.deleted), (27, 2), "{}", messages(&pulled.problems));
            assert_eq!(content(into.path()), content(bench.root()));
            let verified = bench.vault.verify(|_| ()).await.unwrap();
            assert_eq!((verified.files, verified.problems.len()), (29, 0), "{}", messages(&verified.problems));
            let back = bench.vault.chunks().migrate_back(false, |_, _| ()).await.unwrap();
            assert!(back.left.is_empty(), "{:?}", back.left);
        }
        for (id, text) in documents(&*bench.store).await.iter().filter(|(id, _)| id.starts_with("h:")) {
            assert!(id.starts_with("h:+") && text.contains(r#""e_":true,"data":"%="#) || text.contains("\"%="), "{id}");
        }
    }
}

async fn nothing_is_pushed_in_clear_into_an_encrypted_vault(world: World) {
    for (number, fixture) in [Fixture::Encrypted, Fixture::Obfuscated].into_iter().enumerate() {
        let with = fixture.load(&world, &format!("with{number}")).await;
        // Without a setting the documents show that it is encrypted, whether they are aggregated or not.
        let without = fixture.load_without_local(&world, &format!("without{number}")).await;
        for (store, migrates) in [(&with, false), (&with, true), (&without, false), (&without, true)] {
            if migrates {
                ChunkStore::new(store.clone()).migrate(false, |_, _| ()).await.unwrap();
            }
            let before = documents(&**store).await;
            let bench = Bench::over(store.clone());
            bench.write("New.md", "new: marmalade\n");
            let refused = bench.vault.push(bench.root(), PushOptions::default(), |_| ()).await.unwrap_err();
            assert!(matches!(&refused, Error::Passphrase(what) if what.contains("encrypted")), "{refused:?}");
            assert_eq!(documents(&**store).await, before);
        }
    }
    let bench = unlocked(Fixture::Plain.load(&world, "plain").await).await;
    bench.write("New.md", "new\n");
    let refused = bench.vault.push(bench.root(), PushOptions::default(), |_| ()).await.unwrap_err().to_string();
    assert!(refused.contains("not encrypted"), "{refused}");
}

/// Replaces the bodies of the live documents with a prefix, or deletes them.
async fn change_all(store: &dyn DocumentStore, prefix: &str, body: Option<&Body>) {
    let rows = store.list(&IdRange::prefix(prefix).limit(10_000)).await.unwrap().rows;
    assert!(!rows.is_empty());
    let edits = rows.into_iter().map(|row| match body {
        Some(body) => Edit { id: row.id, rev: Some(row.rev), deleted: false, body: body.clone() },
        None => Edit::delete(row.id, row.rev),
    });
    assert!(store.write(edits.collect()).await.unwrap().iter().all(Result::is_ok));
}

async fn put(store: &dyn DocumentStore, id: &str, body: Value) {
    let edit = Edit { id: id.into(), rev: None, deleted: false, body: body.as_object().unwrap().clone() };
    store.write(vec![edit]).await.unwrap().remove(0).unwrap();
}

/// Checks that a push of a new file is refused, and writes nothing.
async fn assert_refused(vault: Vault, why: &str) {
    let store = vault.chunks().store().clone();
    let before = documents(&*store).await;
    let mut bench = Bench::over(store.clone());
    bench.vault = vault;
    bench.write("New.md", "new: marmalade\n");
    let refused = bench.vault.push(bench.root(), PushOptions::default(), |_| ()).await.unwrap_err();
    assert!(matches!(&refused, Error::Passphrase(what) if what.contains(why)), "{refused:?}");
    assert_eq!(documents(&*store).await, before);
}

async fn nothing_is_pushed_in_clear_where_chunks_tell_nothing(world: World) {
    let migrated = async |name: &str| {
        let store = Fixture::Encrypted.load_without_local(&world, name).await;
        ChunkStore::new(store.clone()).migrate(false, |_, _| ()).await.unwrap();
        store
    };
    let damaged = json!({"chunks": 7}).as_object().unwrap().clone();
    let store = migrated("damaged").await;
    change_all(&*store, "dat:", Some(&damaged)).await;
    assert_refused(Vault::new(ChunkStore::new(store)), "encrypted").await;

    let store = migrated("absent").await;
    change_all(&*store, "dat:", None).await;
    assert_refused(Vault::new(ChunkStore::new(store)), "encrypted").await;

    let store = migrated("alien").await;
    put(&*store, "dat:", json!({"whatever": 1})).await;
    assert_refused(Vault::new(ChunkStore::new(store)), "encrypted").await;

    // Chunks whose files have not arrived yet, the first of them in clear.
    let store = world.database("chunks").await;
    let chunks = ChunkStore::new(store.clone());
    chunks.put([("h:plain".to_owned(), Chunk::plain("a"))]).await.unwrap();
    put(&*store, "dat:ffff-001-9c0de1b2", json!({"chunks": {"h:+a": "*%=x"}})).await;
    assert_refused(Vault::new(chunks), "encrypted").await;

    // There is only a damaged file, so it stays unknown whether the vault is encrypted.
    let store = world.database("alone").await;
    let chunks = ChunkStore::new(store.clone());
    chunks.put([("h:plain".to_owned(), Chunk::plain("a"))]).await.unwrap();
    change_all(&*store, "dat:", Some(&damaged)).await;
    assert_refused(Vault::new(chunks), "encrypted").await;
}

async fn nothing_is_pushed_with_a_passphrase_that_nothing_proves(world: World) {
    let migrated = async |name: &str| {
        let store = Fixture::Encrypted.load(&world, name).await;
        ChunkStore::new(store.clone()).migrate(false, |_, _| ()).await.unwrap();
        store
    };
    // The first referenced chunks are missing; others prove it.
    let store = migrated("some").await;
    let children: Vec<String> = (0..9).map(|number| format!("h:+missing{number}")).collect();
    put(&*store, "!first.md", json!({"path": "!first.md", "type": "plain", "children": children})).await;
    let refused = ChunkStore::new(store.clone()).unlock("correct donkey").await.unwrap_err().to_string();
    assert!(refused.contains("the passphrase is wrong"), "{refused}");
    ChunkStore::new(store).unlock(PASSPHRASE).await.unwrap();

    // All are missing: files can be listed, but nothing is written.
    let store = migrated("none").await;
    change_all(&*store, "dat:", None).await;
    for passphrase in ["correct donkey", PASSPHRASE] {
        let chunks = ChunkStore::new(store.clone()).unlock(passphrase).await.unwrap();
        assert_refused(Vault::new(chunks), "proves").await;
    }
    // Without any file, any passphrase is accepted as the first one.
    let all = IdRange { start: String::new(), end: "\u{10ffff}".into(), limit: 10_000, bodies: true };
    let rows = store.list(&all).await.unwrap().rows.into_iter();
    let files = rows.filter(|row| row.body.as_ref().unwrap().contains_key("children"));
    let edits = files.map(|row| Edit::delete(row.id, row.rev)).collect();
    assert!(store.write(edits).await.unwrap().iter().all(Result::is_ok));
    let bench = unlocked(store).await;
    bench.write("New.md", "new: marmalade\n");
    assert_eq!(bench.push().await.written, 1);
}
