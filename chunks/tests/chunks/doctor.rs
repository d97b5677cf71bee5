//! The doctor: vaults that LiveSync wrote, and what can be wrong with them.

use chunks::store::{DocumentStore, Edit, IdRange, Leaf};
use chunks::{CensusOptions, ChunkStore, CollectOptions, Diagnosis};
use serde_json::{Value, json};

use crate::fixtures::{ALL, Fixture, PASSPHRASE};
use crate::interruption::{content, edit};
use crate::support::{World, last_seq};

crate::scenarios!(
    vaults_of_livesync_are_described_and_not_changed,
    passes_of_little_memory_find_the_same,
    missing_chunks_are_named_with_the_files_that_need_them,
    hidden_files_without_content_are_read_where_paths_are_obfuscated,
    what_is_encrypted_inside_a_file_is_unknown_and_not_missing,
    a_chunk_inside_a_file_is_needed_in_its_own_document_too,
    a_damaged_winner_is_found_beside_a_good_leaf,
    a_way_to_remove_chunks_is_named_only_when_all_is_well,
    texts_are_cut,
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
        let found = chunks.census(CensusOptions { most_ids, ..CensusOptions::default() }, |_| ()).await.unwrap();
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
    let young = file("young.md", &["h:young"], json!({"h:young": {"data": "y", "epoch": 1}}));
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

fn file(path: &str, children: &[&str], eden: Value) -> Value {
    json!({"path": path, "children": children, "size": 1, "type": "plain", "mtime": 1, "ctime": 1, "eden": eden})
}

async fn put(store: &dyn DocumentStore, id: &str, body: Value) {
    store.write(vec![edit(id, body)]).await.unwrap().remove(0).unwrap();
}

async fn hidden_files_without_content_are_read_where_paths_are_obfuscated(world: World) {
    let store = Fixture::Obfuscated.load(&world, "vault").await;
    let chunks = ChunkStore::new(store.clone()).unlock(PASSPHRASE).await.unwrap();
    for (prefix, deleted) in [("i:", true), ("i:", false), ("ix:", true), ("ps:", true)] {
        let body = json!({"path": format!("{prefix}.obsidian/snippets/x.css"), "children": [], "size": 0,
            "deleted": deleted, "type": "newnote", "eden": {}});
        put(&*store, &format!("{prefix}f:{deleted}ab"), body).await;
    }
    let found = doctor(&chunks).await;
    let files = &found.census.files;
    assert_eq!((files.unread.count, files.of_livesync, files.marked_deleted), (0, 1, 4), "{:?}", files.unread);
    assert_eq!((files.sealed, found.unreferenced().unwrap().count), (27, 13));
    chunks.migrate(false, |_, _| ()).await.unwrap();
    let options = CollectOptions { dry_run: true, ..CollectOptions::default() };
    let collected = chunks.collect(options, |_| ()).await.unwrap();
    assert_eq!((collected.files, collected.referenced), (31, 347));
}

async fn what_is_encrypted_inside_a_file_is_unknown_and_not_missing(world: World) {
    for (number, name) in ["h:++encrypted-hkdf", "h:++encrypted"].into_iter().enumerate() {
        let store = Fixture::Encrypted.load(&world, &format!("vault{number}")).await;
        let sealed = json!({name: {"data": "%=x", "epoch": 999_999}});
        put(&*store, "young.md", file("young.md", &["h:+young"], sealed)).await;
        let found = doctor(&ChunkStore::new(store.clone())).await;
        let census = &found.census;
        assert_eq!((census.files.unread.count, census.missing_chunks, census.broken.count), (1, 0, 0), "{name}");
        assert!(census.files.unread.first[0].what.contains("cannot be read to the end"), "{name}");
        assert!(found.unreferenced().is_none() && census.unreferenced_named.first.is_empty(), "{name}");
        assert!(!found.advice().iter().any(|advice| advice.contains("backup")), "{:?}", found.advice());
        let refused = ChunkStore::new(store.clone()).would_collect(CensusOptions::default(), |_| ()).await.unwrap_err();
        assert!(refused.to_string().contains("cannot be read to the end"), "{refused}");
        // References are in clear, so the collection of aggregated chunks goes on.
        ChunkStore::new(store.clone()).migrate(false, |_, _| ()).await.unwrap();
        assert!(ChunkStore::new(store).collect(CollectOptions::default(), |_| ()).await.is_ok());
    }
}

async fn a_chunk_inside_a_file_is_needed_in_its_own_document_too(world: World) {
    let store = world.database("vault").await;
    put(&*store, "h:both", json!({"type": "leaf", "data": "b"})).await;
    let eden = json!({"h:both": {"data": "b"}, "h:inside": {"data": "i"}, "h:hollow": {"epoch": 1}});
    put(&*store, "a.md", file("a.md", &["h:both", "h:inside", "h:hollow"], eden)).await;
    let census = doctor(&ChunkStore::new(store)).await.census;
    assert_eq!((census.referenced.count, census.unreferenced.count, census.named_chunks), (1, 0, 3));
    assert_eq!((census.missing_chunks, census.broken.first[0].chunks.clone()), (1, vec!["h:hollow".to_owned()]));
}

async fn a_damaged_winner_is_found_beside_a_good_leaf(world: World) {
    let store = world.database("vault").await;
    let leaf = |rev: &str, body: Value| Leaf {
        rev: rev.replace('x', &"0".repeat(32)),
        deleted: false,
        body: body.as_object().unwrap().clone(),
        ancestors: Vec::new(),
    };
    for (id, good, bad) in [("h:shown", "1-x", "2-x"), ("h:behind", "2-x", "1-x")] {
        store.graft(vec![(id.into(), leaf(good, json!({"type": "leaf", "data": "a"})))]).await.unwrap();
        store.graft(vec![(id.into(), leaf(bad, json!({"type": "leaf"})))]).await.unwrap();
    }
    put(&*store, "a.md", file("a.md", &["h:shown", "h:behind"], json!({}))).await;
    put(&*store, "dat:3f-001-9c0de1b2", json!({"chunks": "none"})).await;
    for most_ids in [10, 1] {
        let census = ChunkStore::new(store.clone())
            .census(CensusOptions { most_ids, ..CensusOptions::default() }, |_| ())
            .await
            .unwrap();
        // Data documents are read in each pass, and counted once.
        assert_eq!((census.damaged.count, census.damaged_needed), (2, 1), "{:?}", census.damaged.first);
        assert!(census.damaged.first.contains(&"h:shown".to_owned()), "{:?}", census.damaged.first);
        assert_eq!(census.passes > 1, most_ids == 1);
    }
}

async fn a_way_to_remove_chunks_is_named_only_when_all_is_well(world: World) {
    let way = "`couch-layer vault collect` removes them";
    for trouble in ["", "locked", "silent", "settings", "unread", "missing", "conflict", "past", "damaged", "milestone"]
    {
        let name = format!("vault-{trouble}");
        let store = world.database(&name).await;
        put(&*store, "h:old", json!({"type": "leaf", "data": "no file names this at present"})).await;
        put(&*store, "h:new", json!({"type": "leaf", "data": "n"})).await;
        put(&*store, "a.md", file("a.md", &["h:new"], json!({}))).await;
        match trouble {
            "unread" => put(&*store, "b.md", json!({"path": "b.md", "type": "plain", "children": 7})).await,
            "missing" => put(&*store, "b.md", file("b.md", &["h:gone"], json!({}))).await,
            "damaged" => put(&*store, "h:none", json!({"type": "leaf"})).await,
            "conflict" | "past" => {
                let ancestors = if trouble == "past" { vec![format!("1-{}", "9".repeat(32))] } else { Vec::new() };
                for hash in ["a", "b"] {
                    let rev = format!("{}-{}", ancestors.len() + 1, hash.repeat(32));
                    let body = file("c.md", &["h:new"], json!({})).as_object().unwrap().clone();
                    let leaf = Leaf { rev, deleted: false, body, ancestors: ancestors.clone() };
                    store.graft(vec![("c.md".to_owned(), leaf)]).await.unwrap();
                }
            }
            _ => {}
        }
        let progress = if trouble == "silent" { "undefined".to_owned() } else { last_seq(&*store).await };
        let device = json!({"device_name": "notes", "progress": progress, "last_connected": 9_007_199_254_740_991_u64});
        let other = if trouble == "settings" { 50 } else { 0 };
        let milestone = json!({
            "type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device, "b": device},
            "locked": trouble == "locked",
            "tweak_values": {"PREFERRED": {"customChunkSize": 0}, "a": {"customChunkSize": other}},
        });
        if trouble != "milestone" {
            world.put_local(&name, MILESTONE, milestone.as_object().unwrap().clone()).await;
        }
        let found = doctor(&ChunkStore::new(store)).await;
        let advice = found.advice();
        assert_eq!(advice.iter().any(|one| one.contains(way)), trouble.is_empty(), "{trouble}: {advice:#?}");
        assert!(!advice.iter().any(|one| one.contains("delete")), "{trouble}: {advice:#?}");
        let wanted = match trouble {
            "" => {
                "named by no file at present. `couch-layer vault collect` removes them. LiveSync's own garbage collection \
                   can, too; first all devices must have synchronised, be idle, and have a current plugin"
            }
            "locked" => "while the vault is locked: notes (b).",
            "silent" => "unknown what these devices have seen: notes (a), notes (b).",
            "past" => "Nothing may be collected before these are merged",
            "unread" => "nothing may be collected",
            _ => "Let them be until nothing else is advised here",
        };
        assert_advice(&found, wanted);
        let is_known = !["unread", "past"].contains(&trouble);
        assert_eq!(found.unreferenced().is_some(), is_known, "{trouble}");
        assert_eq!(found.to_json()["chunks"]["unreferenced"].is_null(), !is_known, "{trouble}");
    }
}

async fn texts_are_cut(world: World) {
    let store = world.database("vault").await;
    let long = "ü".repeat(3_000);
    put(&*store, "long.md", file(&long, &[&format!("h:{long}")], json!({}))).await;
    let device = json!({"device_name": long, "plugin_version": long, "progress": long});
    let milestone = json!({"type": "milestoneinfo", "accepted_nodes": [], "node_info": {"a": device},
        "tweak_values": {"PREFERRED": {"hashAlg": 1}, "a": {"hashAlg": long, (&*long): [long]}, "b": {(&*long): 7}}});
    world.put_local("vault", MILESTONE, milestone.as_object().unwrap().clone()).await;
    let told = doctor(&ChunkStore::new(store)).await.to_json();
    let cut = format!("{}…", "ü".repeat(200));
    assert_eq!(told["missing"]["files"]["named"][0]["file"], cut);
    assert_eq!(told["milestone"]["devices"][0]["name"], cut);
    assert_eq!(told["milestone"]["differences"][0]["values"]["a"], cut);
    assert!(told.to_string().len() < 10_000, "{told}");
}

async fn a_device_is_behind_by_what_changed_since_it_connected(world: World) {
    let store = Fixture::Plain.load_without_local(&world, "vault").await;
    let none = doctor(&ChunkStore::new(store.clone())).await;
    assert!(matches!(none.milestone, Ok(None)));
    assert_advice(&none, "no list of devices");
    let seq = last_seq(&*store).await;
    let device = |progress: &str| json!({"device_name": "phone", "progress": progress, "last_connected": 1});
    let milestone = json!({
        "type": "milestoneinfo", "accepted_nodes": ["here", "never", "elsewhere"],
        "node_info": {"here": device(&seq), "elsewhere": device("no sequence")},
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
    assert_advice(&found, "unknown what these devices have seen: phone (elsewhere), (never).");
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
    assert!(found.unreferenced().is_none() && found.census.unreferenced_named.first.is_empty());
    assert!(found.census.unreferenced.count > 0, "there are some, which may be needed");
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
