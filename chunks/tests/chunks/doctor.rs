//! The doctor: vaults that LiveSync wrote, and what can be wrong with them.

use chunks::store::{DocumentStore, Edit, IdRange, Leaf};
use chunks::{CensusOptions, ChunkStore, Diagnosis};
use serde_json::{Value, json};

use crate::fixtures::{ALL, Fixture, PASSPHRASE};
use crate::interruption::{content, edit};
use crate::support::World;

crate::scenarios!(
    vaults_of_livesync_are_described_and_not_changed,
    passes_of_little_memory_find_the_same,
    missing_chunks_are_named_with_the_files_that_need_them,
    a_device_is_behind_by_what_changed_since_it_connected,
    a_milestone_that_cannot_be_read_is_not_taken_for_none,
    a_conflict_is_named_and_so_is_a_past_that_was_not_kept,
    aggregated_chunks_are_not_missing,
);

const MILESTONE: &str = "_local/obsydian_livesync_milestone";

async fn doctor(chunks: &ChunkStore) -> Diagnosis {
    chunks.doctor(CensusOptions::default(), |_| ()).await.unwrap()
}

#[track_caller]
fn assert_advice(diagnosis: &Diagnosis, wanted: &str) {
    let advice = diagnosis.advice();
    assert!(advice.iter().any(|one| one.contains(wanted)), "no {wanted:?} in {advice:#?}");
}

async fn vaults_of_livesync_are_described_and_not_changed(world: World) {
    for (number, fixture) in ALL.into_iter().enumerate() {
        let store = fixture.load(&world, &format!("vault{number}")).await;
        let before = content(&*store).await;
        let locked = ChunkStore::new(store.clone());
        let found = doctor(&locked).await;
        let is_closed = fixture == Fixture::Obfuscated;
        assert_eq!(found.census.files.unread.count, if is_closed { 27 } else { 0 });
        assert_eq!(found.unreferenced().map(|amount| amount.count), if is_closed { None } else { Some(13) });
        if is_closed {
            assert_advice(&found, "27 lists of chunks cannot be read");
            assert_advice(&found, "--passphrase-file");
            assert_eq!(found.to_json()["chunks"]["unreferenced"], Value::Null);
        }
        let unlocked = locked.unlock(PASSPHRASE).await.unwrap();
        let found = doctor(&unlocked).await;
        let census = &found.census;
        assert_eq!((census.files.count, census.files.marked_deleted, census.files.unread.count), (26, 1, 0));
        assert_eq!((census.referenced.count, census.unreferenced.count, census.missing_chunks), (347, 13, 0));
        assert_eq!(census.encrypted, if fixture == Fixture::Plain { 0 } else { 360 });
        assert_eq!((census.passes, census.damaged.count, census.named_chunks), (1, 0, 347));
        let milestone = found.milestone.as_ref().unwrap().as_ref().unwrap();
        assert_eq!((milestone.devices.len(), milestone.differences.len(), milestone.locked), (2, 0, false));
        assert_eq!(milestone.devices.iter().filter(|device| device.accepted).count(), 1);
        assert_eq!(milestone.encrypted, Some(fixture != Fixture::Plain));
        let told = found.to_json();
        assert_eq!(told["chunks"]["unreferenced"]["count"], 13);
        assert_eq!(told["milestone"]["devices"][1]["name"], "headless-vault");
        assert_eq!(told["files"]["count"], 26);
        assert_eq!(content(&*store).await, before);
    }
}

async fn passes_of_little_memory_find_the_same(world: World) {
    let store = Fixture::Plain.load(&world, "vault").await;
    delete_chunks(&*store, 3).await;
    let chunks = ChunkStore::new(store);
    let wanted = doctor(&chunks).await.census;
    for most_ids in [200, 17, 1] {
        let found = chunks.census(CensusOptions { most_ids }, |_| ()).await.unwrap();
        assert!(found.passes > 1, "{} passes", found.passes);
        let (passes, more) = (found.passes, found.more_missing);
        if !more {
            assert_eq!(chunks::Census { passes: wanted.passes, ..found }, wanted, "in {passes} passes");
        } else {
            assert_eq!((found.referenced, found.unreferenced), (wanted.referenced, wanted.unreferenced));
        }
    }
}

/// Deletes chunks that files name. Returns their ids.
async fn delete_chunks(store: &dyn DocumentStore, count: usize) -> Vec<String> {
    let file = store.leaves(&["notizen/übung – größer 日本語.md".to_owned()], false).await.unwrap().remove(0).remove(0);
    let chunks: Vec<String> = file.body["children"].as_array().unwrap().iter().take(count).map(text).collect();
    for (id, rev) in chunks.iter().zip(store.revs(&chunks).await.unwrap()) {
        store.write(vec![Edit::delete(id, rev.unwrap())]).await.unwrap().remove(0).unwrap();
    }
    chunks
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

async fn missing_chunks_are_named_with_the_files_that_need_them(world: World) {
    let store = Fixture::Plain.load(&world, "vault").await;
    let gone = delete_chunks(&*store, 2).await;
    // A chunk inside its file is nowhere else.
    let young = json!({"path": "young.md", "children": ["h:young"], "size": 1, "type": "plain", "mtime": 1, "ctime": 1,
        "eden": {"h:young": {"data": "y", "epoch": 1}}});
    store.write(vec![edit("young.md", young)]).await.unwrap().remove(0).unwrap();
    let found = doctor(&ChunkStore::new(store.clone())).await;
    assert_eq!((found.census.missing_chunks, found.census.broken.count), (gone.len() as u64, 1));
    let broken = &found.census.broken.first[0];
    assert_eq!((broken.path.as_str(), broken.missing), ("Notizen/Übung – größer 日本語.md", gone.len() as u64));
    assert!(broken.chunks.iter().all(|chunk| gone.contains(chunk)));
    assert_eq!(found.census.files.chunk_tombstones, gone.len() as u64);
    assert_advice(&found, "1 file cannot be read whole");
    assert_eq!(found.to_json()["missing"]["files"]["named"][0]["file"], "Notizen/Übung – größer 日本語.md");

    // A document under the id of a chunk that has no data is damage, and not a missing chunk.
    store.write(vec![edit(&gone[0], json!({"type": "leaf"}))]).await.unwrap().remove(0).unwrap();
    let found = doctor(&ChunkStore::new(store)).await;
    assert_eq!(
        (found.census.missing_chunks, found.census.damaged.first.clone()),
        (gone.len() as u64 - 1, vec![gone[0].clone()])
    );
}

async fn a_device_is_behind_by_what_changed_since_it_connected(world: World) {
    let store = Fixture::Plain.load_without_local(&world, "vault").await;
    let none = doctor(&ChunkStore::new(store.clone())).await;
    assert!(matches!(none.milestone, Ok(None)));
    assert_advice(&none, "no list of devices");
    let mut seq = None;
    loop {
        let page = store.changes(seq.as_deref(), 100).await.unwrap();
        seq = Some(page.last_seq);
        if !page.more {
            break;
        }
    }
    let device = |progress: &str| json!({"device_name": "phone", "progress": progress, "last_connected": 1});
    let milestone = json!({
        "type": "milestoneinfo", "accepted_nodes": ["here", "never", "elsewhere"],
        "node_info": {"here": device(&seq.unwrap()), "elsewhere": device("no sequence")},
        "tweak_values": {"PREFERRED": {"customChunkSize": 0}, "here": {"customChunkSize": 50}},
    });
    world.put_local("vault", MILESTONE, milestone.as_object().unwrap().clone()).await;
    let found = doctor(&ChunkStore::new(store.clone())).await;
    assert_eq!(found.behind.get("here").map(|behind| behind.documents), Some(0));
    for number in 0..3 {
        let file = json!({"path": "n.md", "children": [], "size": 0, "type": "plain", "mtime": 1, "ctime": 1});
        store.write(vec![edit(&format!("n{number}.md"), file)]).await.unwrap().remove(0).unwrap();
    }
    let found = doctor(&ChunkStore::new(store)).await;
    assert_eq!(found.behind.get("here").map(|behind| (behind.documents, behind.more)), Some((3, false)));
    assert_eq!(found.behind.len(), 1, "nothing is said of a sequence that is none: {:?}", found.behind);
    assert_advice(&found, "not set up alike: customChunkSize");
    assert_advice(&found, "unknown what these devices have seen: never");
    assert_advice(&found, "for more than 30 days");
}

async fn a_milestone_that_cannot_be_read_is_not_taken_for_none(world: World) {
    let store = world.database("vault").await;
    assert_advice(&doctor(&ChunkStore::new(store.clone())).await, "no vault in this database");
    let body = json!({"type": "milestoneinfo", "accepted_nodes": 7});
    world.put_local("vault", MILESTONE, body.as_object().unwrap().clone()).await;
    let found = doctor(&ChunkStore::new(store)).await;
    assert!(found.milestone.is_err());
    assert_advice(&found, "accepted_nodes");
    assert_eq!(found.to_json()["milestone"]["state"], "damaged");
}

async fn a_conflict_is_named_and_so_is_a_past_that_was_not_kept(world: World) {
    let store = Fixture::Plain.load(&world, "vault").await;
    let id = "welcome.md".to_owned();
    let first = store.leaves(std::slice::from_ref(&id), false).await.unwrap().remove(0).remove(0);
    // Another device wrote its own first revision: no past to know.
    let fork = Leaf { rev: "1-00000000000000000000000000000000".into(), ..first.clone() };
    store.graft(vec![(id.clone(), fork)]).await.unwrap();
    let found = doctor(&ChunkStore::new(store.clone())).await;
    assert_eq!(
        (found.census.files.conflicts.first.clone(), found.census.files.unknown_past.count),
        (vec!["Welcome.md".to_owned()], 0)
    );
    assert_advice(&found, "1 file is in conflict");

    // Two edits of one revision, which is replaced by both.
    let tiny = "tiny.md".to_owned();
    let first = store.leaves(std::slice::from_ref(&tiny), false).await.unwrap().remove(0).remove(0);
    for hash in ["a", "b"] {
        let rev = format!("2-{}", hash.repeat(32));
        let leaf = Leaf { rev, ancestors: vec![first.rev.clone()], ..first.clone() };
        store.graft(vec![(tiny.clone(), leaf)]).await.unwrap();
    }
    let found = doctor(&ChunkStore::new(store)).await;
    assert_eq!(
        (found.census.files.conflicts.count, found.census.files.unknown_past.first.clone()),
        (2, vec!["Tiny.md".to_owned()])
    );
    assert_advice(&found, "For 1 of them the database has not kept the revisions");
}

async fn aggregated_chunks_are_not_missing(world: World) {
    let store = Fixture::Plain.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone());
    chunks.migrate(false, |_, _| ()).await.unwrap();
    assert!(store.list(&IdRange::prefix("h:")).await.unwrap().rows.is_empty());
    let found = doctor(&chunks).await;
    assert_eq!((found.census.aggregated.count, found.census.missing_chunks), (360, 0));
    assert_eq!(found.census.files.chunk_tombstones, 360);
    assert_advice(&found, "aggregated form");
}
