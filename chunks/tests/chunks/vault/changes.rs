//! Concurrent writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use chunks::store::{DocumentStore, Edit, Leaf, StoreResult};
use serde_json::{Value, json};

use super::{Bench, messages};
use crate::support::World;
use crate::watched::{BeforeWrite, Watched};

crate::scenarios!(
    conflicting_revisions_are_left_and_named,
    an_edit_meanwhile_is_written_over_and_named,
    the_same_edit_meanwhile_is_enough,
    a_deletion_meanwhile_is_undone_and_named,
    two_who_push_at_once_lose_nothing,
);

async fn conflicting_revisions_are_left_and_named(world: World) {
    let bench = Bench::new(&world, "vault").await;
    bench.write("a.md", "mine");
    bench.push().await;
    let leaf = |rev: &str, size: u64| Leaf {
        rev: rev.into(),
        deleted: false,
        body: json!({"path": "a.md", "children": [], "size": size, "type": "plain"}).as_object().unwrap().clone(),
        ancestors: Vec::new(),
    };
    let other = format!("1-{}", "0".repeat(32));
    bench.store.graft(vec![("a.md".into(), leaf(&other, 0))]).await.unwrap();
    let unchanged = bench.push().await;
    assert_eq!(messages(&unchanged.notes), "a.md: has a conflicting revision, which is left\n");
    bench.write("a.md", "mine, again");
    let pushed = bench.push().await;
    assert_eq!((pushed.written, pushed.problems.len()), (1, 0));
    assert_eq!(messages(&pushed.notes), "a.md: has a conflicting revision, which is left\n");
    let leaves = bench.store.leaves(&["a.md".to_owned()], false).await.unwrap().pop().unwrap();
    assert_eq!((leaves.len(), &leaves[1].rev, leaves[1].deleted), (2, &other, false));
    assert!(leaves[0].rev.starts_with("2-"));
    let into = tempfile::tempdir().unwrap();
    let pulled = bench.pull(into.path()).await;
    assert_eq!(messages(&pulled.notes), "a.md: has 1 conflicting revisions; the winner is written\n");
    assert_eq!(bench.vault.verify(|_| ()).await.unwrap().files, 2);
    let mut conflicts = 0;
    bench.vault.files(|file| conflicts += file.conflicts).await.unwrap();
    assert_eq!(conflicts, 1);
}

/// Another client that writes `a.md` just before each write.
#[derive(Debug)]
struct Meddler {
    /// Number of its writes.
    times: AtomicU32,
    /// Body that it writes; null deletes the file.
    body: Value,
}

#[async_trait]
impl BeforeWrite for Meddler {
    async fn before_write(&self, inner: &dyn DocumentStore, edits: &[Edit]) -> StoreResult<()> {
        let left = self.times.load(Ordering::Relaxed);
        if left == 0 || edits.iter().all(|edit| edit.id != "a.md") {
            return Ok(());
        }
        self.times.store(left - 1, Ordering::Relaxed);
        let leaves = inner.leaves(&["a.md".to_owned()], false).await?.pop().unwrap();
        let rev = leaves.first().filter(|leaf| !leaf.deleted).map(|leaf| leaf.rev.clone());
        let meddling = match self.body.as_object() {
            None => Edit::delete("a.md", rev.unwrap()),
            Some(body) => Edit { id: "a.md".into(), rev, deleted: false, body: body.clone() },
        };
        assert!(inner.write(vec![meddling]).await?[0].is_ok());
        Ok(())
    }
}

/// A vault with `a.md`, whose content is `before`. Then another client interferes with a push of `after`.
async fn meddle(world: &World, times: u32, body: Value) -> (Bench, chunks::vault::Pushed) {
    let bench = Bench::new(world, "vault").await;
    bench.write("a.md", "before");
    bench.write("b.md", "beside it");
    bench.push().await;
    let watch = Meddler { times: times.into(), body };
    let mut meddled = Bench::over(Arc::new(Watched { inner: bench.store.clone(), watch }));
    meddled.folder = bench.folder;
    meddled.write("a.md", "from-a\n");
    meddled.write("b.md", "beside it, and more");
    let pushed = meddled.push().await;
    (meddled, pushed)
}

fn body(children: Value, size: u64) -> Value {
    json!({"path": "a.md", "children": children, "size": size, "type": "plain", "mtime": 5, "ctime": 5, "eden": {}})
}

async fn an_edit_meanwhile_is_written_over_and_named(world: World) {
    let (bench, pushed) = meddle(&world, 3, body(json!([]), 0)).await;
    assert_eq!((pushed.written, pushed.problems.len()), (2, 0), "{}", messages(&pushed.problems));
    assert_eq!(pushed.notes.len(), 3);
    assert!(
        messages(&pushed.notes).contains("a.md: was changed in the database meanwhile; this push goes on top of 2-")
    );
    let leaves = bench.store.leaves(&["a.md".to_owned()], true).await.unwrap().pop().unwrap();
    // Each edit is in the history of the current one.
    assert_eq!((leaves.len(), leaves[0].ancestors.len()), (1, 4));
    assert_eq!(leaves[0].body["children"], json!(["h:1ecijke328qp3"]));
    // A client that is always faster wins, and that is reported.
    let world = World::in_process().await;
    let (_, pushed) = meddle(&world, 1_000, body(json!([]), 0)).await;
    assert_eq!(pushed.written, 1);
    assert!(messages(&pushed.problems).contains("a.md: gave up after 24 attempts"), "{}", messages(&pushed.problems));
}

async fn the_same_edit_meanwhile_is_enough(world: World) {
    let (bench, pushed) = meddle(&world, 1, body(json!(["h:1ecijke328qp3"]), 7)).await;
    assert_eq!((pushed.written, pushed.unchanged, pushed.problems.len(), pushed.notes.len()), (1, 1, 0, 0));
    assert!(bench.rev("a.md").await.starts_with("2-"));
}

async fn a_deletion_meanwhile_is_undone_and_named(world: World) {
    let (bench, pushed) = meddle(&world, 1, Value::Null).await;
    assert_eq!((pushed.written, pushed.problems.len()), (2, 0));
    assert!(messages(&pushed.notes).contains("was deleted in the database meanwhile"), "{}", messages(&pushed.notes));
    assert_eq!(bench.document("a.md").await["size"], json!(7));
}

async fn two_who_push_at_once_lose_nothing(world: World) {
    let store = world.database("vault").await;
    let (one, other) = (Bench::over(store.clone()), Bench::over(store));
    for number in 0..60 {
        one.write(&format!("one/{number}.md"), format!("of one: {number}").repeat(100));
        other.write(&format!("other/{number}.md"), format!("of other: {number}").repeat(100));
        for bench in [&one, &other] {
            bench.write(&format!("both/{number}.md"), format!("of both: {number}").repeat(100));
        }
    }
    let (first, second) = tokio::join!(one.push(), other.push());
    assert!(first.problems.is_empty() && second.problems.is_empty());
    let into = tempfile::tempdir().unwrap();
    let pulled = one.pull(into.path()).await;
    assert_eq!((pulled.written, pulled.problems.len()), (180, 0), "{}", messages(&pulled.problems));
    let mut expected = super::content(one.root());
    expected.extend(super::content(other.root()));
    assert_eq!(super::content(into.path()), expected);
}
