//! A push or a pull is interrupted at every single operation of the store, and repeated.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use chunks::ChunkStore;
use chunks::store::{DocumentStore, IdRange};
use chunks::vault::Vault;

use super::{Bench, content, dice, messages, noise, text};
use crate::interruption::Ending;
use crate::support::World;

/// Maximum number of operations, above which the test is considered endless.
const MOST_OPERATIONS: i64 = 200;

fn fill(bench: &Bench) {
    let mut dice = dice(5);
    for number in 0..30 {
        bench.write(&format!("notes/{number}.md"), text(&mut dice, 1_000));
    }
    bench.write("image.png", noise(&mut dice, 400_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_gone_on_with() {
    let world = World::in_process().await;
    let bench = Bench::new(&world, "whole").await;
    fill(&bench);
    bench.push().await;
    let files = |store: Arc<dyn DocumentStore>| async move {
        let range = IdRange { start: "i".into(), end: "o".into(), limit: 1_000, bodies: true };
        store.list(&range).await.unwrap().rows.into_iter().filter(|row| !row.id.starts_with("idx:")).collect::<Vec<_>>()
    };
    let whole = files(bench.store.clone()).await;
    assert_eq!(whole.len(), 31);
    for left in 0..MOST_OPERATIONS {
        let store = world.database(&format!("after-{left}")).await;
        let ending = Ending { inner: store.clone(), left: AtomicI64::new(left).into() };
        let cut_off = Vault::new(ChunkStore::new(Arc::new(ending)));
        let outcome = cut_off.push(bench.root(), Default::default(), |_| ()).await;
        let vault = Vault::new(ChunkStore::new(store.clone()));
        // All files can be read: none names a missing chunk.
        let verified = vault.verify(|_| ()).await.unwrap();
        assert!(verified.problems.is_empty(), "after {left}: {}", messages(&verified.problems));
        let pushed = vault.push(bench.root(), Default::default(), |_| ()).await.unwrap();
        assert_eq!(pushed.written + pushed.unchanged, 31);
        assert_eq!(files(store).await, whole, "interrupted after {left} operations");
        assert_eq!(vault.verify(|_| ()).await.unwrap().files, 31);
        if outcome.is_ok() {
            assert!(left > 8, "it was never interrupted");
            return;
        }
    }
    panic!("it does not come to an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_is_gone_on_with() {
    let world = World::in_process().await;
    let bench = Bench::new(&world, "vault").await;
    fill(&bench);
    bench.push().await;
    for left in 0..MOST_OPERATIONS {
        let into = tempfile::tempdir().unwrap();
        let ending = Ending { inner: bench.store.clone(), left: AtomicI64::new(left).into() };
        let cut_off = Vault::new(ChunkStore::new(Arc::new(ending)));
        let outcome = cut_off.pull(into.path(), Default::default(), |_| ()).await;
        // All files there are complete.
        let whole = content(bench.root());
        assert!(content(into.path()).iter().all(|(path, content)| whole.get(path) == Some(content)));
        let pulled = bench.pull(into.path()).await;
        assert_eq!(pulled.written + pulled.equal, 31, "{}", messages(&pulled.problems));
        assert_eq!(content(into.path()), whole);
        if outcome.is_ok() {
            assert!(left > 4, "it was never interrupted");
            return;
        }
    }
    panic!("it does not come to an end");
}

/// A partial file, left by the end of a process, is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_file_is_replaced() {
    let world = World::in_process().await;
    let bench = Bench::new(&world, "vault").await;
    bench.write("notes/a.md", "whole");
    bench.push().await;
    let into = tempfile::tempdir().unwrap();
    bench.pull(into.path()).await;
    // The draft's name is made from the file's path.
    let hash = twox_hash::XxHash64::oneshot(0, b"notes/a.md");
    let draft = format!("notes/.{hash:016x}.couch-layer-part");
    std::fs::remove_file(into.path().join("notes/a.md")).unwrap();
    super::write(into.path(), &draft, b"who");
    assert_eq!(bench.pull(into.path()).await.written, 1);
    assert_eq!(content(into.path()), content(bench.root()));
}
