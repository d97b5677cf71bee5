//! Pushing into vaults that LiveSync encrypted.

use std::sync::Arc;

use chunks::store::{DocumentStore, IdRange};
use chunks::vault::{PushOptions, Vault};
use chunks::{ChunkStore, Error};
use serde_json::Value;

use super::{Bench, content, told};
use crate::fixtures::{Fixture, PASSPHRASE};
use crate::support::World;

crate::scenarios!(
    what_is_pushed_into_an_encrypted_vault_is_encrypted,
    nothing_is_pushed_in_clear_into_an_encrypted_vault,
);

/// A word that is in new files, and one that is in their names.
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
        assert_eq!((pushed.written, pushed.deleted, pushed.unchanged), (3, 1, 24), "{}", told(&pushed.problems));
        assert!(told(&pushed.notes).contains("LiveSync's clients"), "{}", told(&pushed.notes));

        let found = documents(&*bench.store).await;
        let files = found.iter().filter(|(id, _)| id.starts_with("f:")).count();
        assert_eq!(files, if fixture == Fixture::Obfuscated { 29 } else { 0 }, "an edit has the id that LiveSync gave");
        let own = found.iter().filter(|(id, _)| !["idx:", "dat:", "chunks:"].iter().any(|ours| id.starts_with(ours)));
        assert_eq!(own.count(), documents_before + 2);
        for (id, text) in &found {
            assert!(!text.contains(SECRETS[0]) && !text.contains("bWFybWFsYWRl"), "{id}: {text}");
            assert!(fixture == Fixture::Encrypted || !text.contains(SECRETS[1]), "{id}: {text}");
            assert!(!text.contains("\"h:") || text.contains("\"h:+"), "{id}: {text}");
        }
        // In either form all of it comes back.
        for _ in 0..2 {
            let into = tempfile::tempdir().unwrap();
            let pulled = bench.pull(into.path()).await;
            assert_eq!((pulled.written, pulled.deleted), (27, 2), "{}", told(&pulled.problems));
            assert_eq!(content(into.path()), content(bench.root()));
            let verified = bench.vault.verify(|_| ()).await.unwrap();
            assert_eq!((verified.files, verified.problems.len()), (29, 0), "{}", told(&verified.problems));
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
        // Where nobody says that it is encrypted, its documents do; aggregated or not.
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
