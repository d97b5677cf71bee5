//! LiveSync's own clients are stopped, and deleted files are forgotten.

use std::sync::Arc;
use std::time::Duration;

use chunks::store::{DocumentStore, Edit};
use chunks::vault::Vault;
use chunks::{ChunkStore, CollectOptions, Error, TimedEnvironment};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::fixtures::{ALL, Fixture, PASSPHRASE};
use crate::interruption::content;
use crate::support::{World, set_grace, texts};

crate::scenarios!(
    clients_are_stopped_before_the_first_chunk_goes_and_let_in_again,
    a_vault_that_was_never_migrated_is_not_collected,
    deleted_files_are_forgotten_once_they_are_old,
    a_deleted_file_with_an_edit_beside_it_is_kept,
);

const VERSION: &str = "obsydian_livesync_version";
/// Approximate time at which the deleted file of the vaults was deleted.
const DELETED_MS: u64 = 1_795_365_600_000;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
const EAGER: CollectOptions = CollectOptions { dry_run: false, unused_percent: 0 };

/// A clock that stands still.
#[derive(Debug)]
struct At(u64);

impl model::Environment for At {
    fn now_ms(&self) -> u64 {
        self.0
    }
    fn random(&self, bytes: &mut [u8]) {
        model::SystemEnvironment.random(bytes);
    }
}

impl TimedEnvironment for At {
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

async fn version(store: &dyn DocumentStore) -> Option<Value> {
    let leaf = store.leaves(&[VERSION.to_owned()], false).await.unwrap().remove(0).into_iter().next();
    leaf.filter(|leaf| !leaf.deleted).map(|leaf| Value::Object(leaf.body))
}

async fn clients_are_stopped_before_the_first_chunk_goes_and_let_in_again(world: World) {
    let store = Fixture::Plain.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone());
    let before = content(&*store).await;
    chunks.migrate(true, |_, _| ()).await.unwrap();
    assert_eq!(version(&*store).await, Some(json!({"version": 12, "type": "versioninfo"})));
    for _ in 0..2 {
        chunks.migrate(false, |_, _| ()).await.unwrap();
        // Later than any client's: the client says "Remote database is newer or corrupted", and replicates
        // nothing.
        assert_eq!(version(&*store).await, Some(json!({"version": 1_000_012, "type": "versioninfo"})));
    }
    // A client in the middle of a replication meets it before the first tombstone.
    let rows = store.changes(None, 10_000).await.unwrap().rows;
    let place = |is: &dyn Fn(&chunks::store::Change) -> bool| rows.iter().position(is).unwrap();
    assert!(place(&|row| row.id == VERSION) < place(&|row| row.deleted && row.id.starts_with("h:")));
    chunks.migrate_back(false, |_, _| ()).await.unwrap();
    assert_eq!(version(&*store).await, Some(json!({"version": 12, "type": "versioninfo"})));
    assert_eq!(content(&*store).await, before);

    // No client has been there.
    let store = world.database("bare").await;
    let own = texts("own", 1).remove(0);
    let body = json!({"type": "leaf", "data": own.1.data}).as_object().unwrap().clone();
    store.write(vec![Edit { id: own.0, rev: None, deleted: false, body }]).await.unwrap().remove(0).unwrap();
    let chunks = ChunkStore::new(store.clone());
    chunks.migrate(false, |_, _| ()).await.unwrap();
    assert_eq!(version(&*store).await, Some(json!({"version": 1_000_000, "type": "versioninfo"})));
    chunks.migrate_back(false, |_, _| ()).await.unwrap();
    assert_eq!(version(&*store).await, None);
}

async fn a_vault_that_was_never_migrated_is_not_collected(world: World) {
    let store = Fixture::Plain.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone());
    let before = content(&*store).await;
    let refused = chunks.collect(EAGER, |_| ()).await.unwrap_err();
    assert!(matches!(refused, Error::NotMigrated) && refused.to_string().contains("never migrated"), "{refused}");
    assert_eq!(content(&*store).await, before);
    // Settings alone do not count as a migration.
    chunks.prepare(360).await.unwrap();
    assert!(matches!(chunks.collect(EAGER, |_| ()).await, Err(Error::NotMigrated)));
}

async fn deleted_files_are_forgotten_once_they_are_old(world: World) {
    for (number, fixture) in ALL.into_iter().enumerate() {
        let store = fixture.load(&world, &format!("vault{number}")).await;
        let before = content(&*store).await;
        let at = |now: u64| ChunkStore::with_environment(store.clone(), Arc::new(At(now)));
        let forget = async |chunks: ChunkStore, dry_run: bool| {
            let forgotten = Vault::new(chunks).forget(30 * DAY_MS, dry_run).await.unwrap();
            (forgotten.files, forgotten.kept, forgotten.problems.len())
        };
        let young = at(DELETED_MS + 29 * DAY_MS).unlock(PASSPHRASE).await.unwrap();
        assert_eq!(forget(young, false).await, (0, 1, 0));
        let old = DELETED_MS + 31 * DAY_MS;
        if fixture != Fixture::Plain {
            assert_eq!(forget(at(old), false).await, (0, 0, 1), "nobody can say when it was");
        }
        let chunks = at(old).unlock(PASSPHRASE).await.unwrap();
        assert_eq!(forget(chunks.clone(), true).await, (1, 0, 0));
        assert_eq!(content(&*store).await, before);
        assert_eq!(forget(chunks.clone(), false).await, (1, 0, 0));
        assert_eq!(forget(chunks.clone(), false).await, (0, 0, 0));
        assert_eq!(content(&*store).await.len(), before.len() - 1);
        chunks.migrate(false, |_, _| ()).await.unwrap();
        set_grace(&*store, DAY_MS).await;
        // Three more than before: the chunks that only this file refers to.
        assert_eq!(chunks.collect(EAGER, |_| ()).await.unwrap().condemned, 16);
    }
}

async fn a_deleted_file_with_an_edit_beside_it_is_kept(world: World) {
    let store = world.database("vault").await;
    let file = |deleted: bool, mtime: u64| json!({"path": "a.md", "children": [], "ctime": 1, "mtime": mtime, "size": 0, "type": "plain", "deleted": deleted});
    for (id, rev, body) in [
        ("a.md", "1-bb", file(true, 1)),
        ("a.md", "1-aa", file(false, 1)),
        ("b.md", "1-aa", file(true, 0)),
        ("c.md", "1-bb", file(true, 1)),
        ("c.md", "1-aa", file(true, 2)),
        ("d.md", "1-aa", file(false, 1)),
    ] {
        let body = body.as_object().unwrap().clone();
        let leaf = chunks::store::Leaf { rev: rev.into(), deleted: false, body, ancestors: Vec::new() };
        store.graft(vec![(id.into(), leaf)]).await.unwrap();
    }
    let vault = Vault::new(ChunkStore::new(store.clone()));
    let forgotten = vault.forget(DAY_MS, false).await.unwrap();
    let messages: Vec<String> = forgotten.problems.iter().map(ToString::to_string).collect();
    assert_eq!((forgotten.files, forgotten.kept), (1, 0), "{messages:?}");
    assert!(messages.iter().any(|line| line.contains("a.md") && line.contains("not deleted")), "{messages:?}");
    assert!(messages.iter().any(|line| line.contains("b.md") && line.contains("does not say when")), "{messages:?}");
    let live = store.live(&["a.md", "b.md", "c.md", "d.md"].map(str::to_owned)).await.unwrap();
    assert_eq!(live, [true, true, false, true]);
}
