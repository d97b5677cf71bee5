//! Collections of a vault that LiveSync writes, beside devices that are offline, return, undo, rename, restore old
//! versions, and join late.

use std::collections::BTreeMap;

use chunks::store::{Body, DocumentStore, Edit, Leaf, PeerStore};
use chunks::{CensusOptions, Error, VaultCollectOptions, VaultCollected, collect_vault};
use conformance::chaos::{Chaos, Fault};
use conformance::interleave::interleave;
use engine_mem::MemDatabase;
use kv_api::AnyDatabase;
use model::{ConflictPolicy, CreateOptions, Documents, JsonText, Layer, LayerOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::devices::{Device, MILESTONE, Replica, empty_trash, file, id_of, live_leaves, lost, named};
use crate::fixtures::Fixture;
use crate::support::{World, last_seq};

crate::on_every_engine!(no_device_ever_loses_a_chunk_to_a_collection on mem lsm);
crate::on_every_engine!(a_collection_without_a_trash_is_seen_to_lose_chunks on mem);
crate::scenarios!(
    a_device_that_was_away_undoes_what_was_collected,
    the_trash_waits_for_every_device,
    a_device_that_may_be_refused_or_joins_on_demand_holds_the_trash,
    what_a_conflict_needs_stays_in_the_trash,
    a_device_that_joins_late_writes_what_left_the_trash,
    a_device_that_joins_with_files_sends_their_text_after_a_repair,
    a_vault_of_livesync_gets_its_space_back,
    what_cannot_be_known_holds_everything_back,
);

const FILES: usize = 5;
const DEVICES: usize = 4;
const STEPS: usize = 120;
const SEEDS: u64 = 6;

fn options() -> VaultCollectOptions {
    VaultCollectOptions {
        grace_ms: 0,
        trash_ms: Some(0),
        census: CensusOptions { most_named: 10_000, ..CensusOptions::default() },
    }
}

/// Two devices have connected just now.
async fn connected(world: &World, name: &str, store: &dyn DocumentStore) {
    let device = json!({"device_name": "phone", "progress": last_seq(store).await, "last_connected": 1});
    let body = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device}});
    world.put_local(name, MILESTONE, body.as_object().unwrap().clone()).await;
}

/// Devices, each with the sequence at which it connected, and whether it fetches chunks on demand.
async fn devices(world: &World, name: &str, devices: &[(&str, &str, Option<bool>)]) {
    let (mut infos, mut tweaks) = (Body::new(), Body::new());
    tweaks.insert("PREFERRED".into(), json!({"readChunksOnline": false}));
    for (id, progress, on_demand) in devices {
        infos.insert((*id).into(), json!({"device_name": "notes", "progress": progress}));
        tweaks.insert((*id).into(), on_demand.map_or(json!({}), |is| json!({"readChunksOnline": is})));
    }
    let body = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": infos, "tweak_values": tweaks});
    world.put_local(name, MILESTONE, body.as_object().unwrap().clone()).await;
}

/// The text of a chunk.
fn text(chunk: &str) -> String {
    format!("text of {chunk}")
}

async fn collect(world: &World, name: &str) -> Result<VaultCollected, Error> {
    let documents: Documents<AnyDatabase> = world.documents(name).await;
    connected(world, name, &*world.opened(name).await).await;
    collect_vault(&documents, options(), |_| ()).await
}

/// What plays showed.
#[derive(Debug, Default)]
struct Shown {
    deleted: u64,
    revived: u64,
    undone: usize,
    held: usize,
    purged: u64,
    lost: Vec<String>,
}

struct Play<'w> {
    world: &'w World,
    name: String,
    dice: StdRng,
    server: Replica,
    devices: Vec<Device>,
    /// Old versions of each file, which people remember.
    versions: BTreeMap<usize, Vec<Vec<String>>>,
    next: usize,
    shown: Shown,
}

impl Play<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        self.dice.random_range(0..sides)
    }

    async fn step(&mut self, purge: bool) {
        let (device, file) = (self.roll(self.devices.len()), self.roll(FILES));
        let id = id_of(file);
        let now = live_leaves(&*self.devices[device].store, &id).await;
        let current = now.first().map(named).unwrap_or_default();
        match self.roll(16) {
            // An edit: most of the chunks stay.
            0..=3 => {
                let mut chunks = current;
                chunks.truncate(self.roll(4));
                for _ in 0..=self.roll(2) {
                    self.next += 1;
                    chunks.push(format!("h:{}x{}", self.name, self.next));
                }
                self.devices[device].write(&id, &chunks, false, text).await;
                self.versions.entry(file).or_default().push(chunks);
            }
            // Somebody undoes, or restores an old version: of this file or of another one.
            4..=6 => {
                let of = if self.roll(4) == 0 { self.roll(FILES) } else { file };
                let Some(count) = self.versions.get(&of).map(Vec::len) else { return };
                let back = self.roll(count);
                let old = self.versions[&of][back].clone();
                let written = self.devices[device].write(&id, &old, false, text).await;
                self.shown.undone += usize::from(written == 0);
            }
            7 => drop(self.devices[device].write(&id, &current, true, text).await),
            // A rename: another file has the chunks, and this one ends.
            8 if !now.is_empty() => {
                let to = self.roll(FILES);
                if to != file {
                    self.devices[device].write(&id_of(to), &current, false, text).await;
                    self.devices[device].write(&id, &[], true, text).await;
                }
            }
            // The first devices are seldom away, the last one for long.
            9..=12 => {
                if self.roll(DEVICES) >= device {
                    let (server, pull_first) = (self.server.clone(), self.roll(2) == 0);
                    self.devices[device].sync(&server, pull_first).await;
                    // Mostly somebody resolves the conflicts at once.
                    if self.roll(4) > 0 {
                        self.devices[device].resolve(FILES).await;
                        self.devices[device].sync(&server, pull_first).await;
                    }
                }
            }
            _ => {
                let done = collect(self.world, &self.name).await.unwrap();
                self.shown.held += usize::from(!done.found.holds.is_empty());
                self.shown.deleted += done.deleted.count;
                if purge {
                    self.shown.purged += empty_trash(self.world, &self.name).await;
                }
            }
        }
    }
}

async fn play(world: &World, seed: u64, purge: bool) -> Shown {
    println!("seed {seed}");
    let name = format!("vault{seed}");
    let server = Replica::new(world, &name).await;
    world.keep_replaced(&name).await;
    let mut devices = Vec::new();
    for number in 0..DEVICES - 1 {
        devices.push(Device::new(world, &format!("device{seed}-{number}")).await);
    }
    let dice = StdRng::seed_from_u64(seed);
    let (versions, shown) = (BTreeMap::new(), Shown::default());
    let mut play = Play { world, name: name.clone(), dice, server, devices, versions, next: 0, shown };
    for step in 0..STEPS {
        if step == STEPS / 2 {
            // One joins late.
            let mut device = Device::new(world, &format!("device{seed}-late")).await;
            device.sync(&play.server, true).await;
            play.devices.push(device);
        }
        play.step(purge).await;
        let lost = lost(&*play.server, FILES).await;
        play.shown.lost.extend(lost.into_iter().map(|what| format!("{what} (seed {seed}, step {step})")));
    }
    // All come home, and everybody has everything.
    for _ in 0..2 {
        for at in 0..DEVICES {
            let server = play.server.clone();
            play.devices[at].sync(&server, at % 2 == 0).await;
        }
    }
    let stores = [&play.server].into_iter().chain(play.devices.iter().map(|device| &device.store));
    for (number, store) in stores.enumerate() {
        let lost = lost(&**store, FILES).await;
        play.shown.lost.extend(lost.into_iter().map(|what| format!("{what} (seed {seed}, at the end, in {number})")));
    }
    let left = world.documents(&name).await.trash(None, 10_000).await.unwrap();
    let in_trash = left.documents.iter().filter(|one| one.trashed.is_some()).count() as u64;
    play.shown.revived = play.shown.deleted - play.shown.purged - in_trash;
    let report = world.documents(&name).await.check(|_| {}).await.unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    play.shown
}

async fn play_all(world: &World, purge: bool) -> Shown {
    let mut all = Shown::default();
    for seed in 0..SEEDS {
        let shown = play(world, seed, purge).await;
        all.deleted += shown.deleted;
        all.revived += shown.revived;
        all.undone += shown.undone;
        all.held += shown.held;
        all.purged += shown.purged;
        all.lost.extend(shown.lost);
    }
    let Shown { deleted, revived, undone, held, purged, lost } = &all;
    println!(
        "{deleted} deleted, {revived} revived, {purged} purged, {undone} undone, {held} held, {} lost",
        lost.len()
    );
    all
}

async fn no_device_ever_loses_a_chunk_to_a_collection(world: World) {
    let shown = play_all(&world, false).await;
    assert!(shown.lost.is_empty(), "{:#?}", shown.lost);
    assert!(shown.deleted > 50 && shown.revived > 10 && shown.undone > 20, "too little to prove anything: {shown:?}");
}

async fn a_collection_without_a_trash_is_seen_to_lose_chunks(world: World) {
    let shown = play_all(&world, true).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
}

/// Two first runs at once: each has made its census before a file names a chunk again. The one that begins last finds
/// the chunk condemned by the other.
#[tokio::test]
async fn two_first_runs_at_once_delete_nothing() {
    let engine = MemDatabase::new();
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let store = PeerStore::local(documents.clone());
    let edit = |id: &str, body: Body| Edit { id: id.into(), rev: None, deleted: false, body };
    let chunk = json!({"type": "leaf", "data": "text"}).as_object().unwrap().clone();
    let edits = vec![edit("h:1", chunk), edit("f0.md", file("f0.md", &[], false))];
    store.write(edits).await.unwrap().into_iter().for_each(|written| drop(written.unwrap()));
    let device = json!({"device_name": "phone", "progress": last_seq(&store).await, "last_connected": 1});
    let milestone = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device}});
    documents.put_local(MILESTONE, None, JsonText::from_serde(&milestone).unwrap()).await.unwrap();

    async fn run(engine: Chaos<MemDatabase>) -> VaultCollected {
        let layer = Layer::open(engine, LayerOptions::default()).await.unwrap();
        collect_vault(&layer.database("db").await.unwrap(), options(), |_| ()).await.unwrap()
    }
    // The first commit of each run is its beginning, after its census.
    let name = async || {
        let named = edit("f1.md", file("f1.md", &["h:1".to_owned()], false));
        store.write(vec![named]).await.unwrap().remove(0).unwrap();
    };
    let first = async || {
        let (first, was_held) = interleave(engine.clone(), 0, run, name).await;
        assert!(was_held && first.condemned == 1, "{first:?}");
    };
    let (second, was_held) = interleave(engine.clone(), 0, run, first).await;
    assert!(was_held, "{second:?}");
    assert_eq!((second.deleted.count, second.condemned, second.trash.condemned), (0, 0, 1));
    assert_eq!(live_leaves(&store, "h:1").await.len(), 1, "a file names it");
    // The next run sees the file.
    let third = collect_vault(&documents, options(), |_| ()).await.unwrap();
    assert_eq!((third.deleted.count, third.trash.condemned), (0, 0));
}

/// A vault of one file, and of this many chunks that it does not name.
async fn spare(engine: &MemDatabase, chunks: usize) -> Documents<MemDatabase> {
    let layer = Layer::open(engine.clone(), LayerOptions::default()).await.unwrap();
    let documents = layer.create_database("db", CreateOptions::default()).await.unwrap();
    let store = PeerStore::local(documents.clone());
    let edit = |id: String, body: Body| Edit { id, rev: None, deleted: false, body };
    let chunk = json!({"type": "leaf", "data": "text"}).as_object().unwrap().clone();
    let mut edits: Vec<Edit> = (0..chunks).map(|number| edit(format!("h:{number:03}"), chunk.clone())).collect();
    edits.push(edit("f.md".into(), file("f.md", &[], false)));
    store.write(edits).await.unwrap().into_iter().for_each(|written| drop(written.unwrap()));
    let device = json!({"device_name": "phone", "progress": last_seq(&store).await, "last_connected": 1});
    let milestone = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device}});
    documents.put_local(MILESTONE, None, JsonText::from_serde(&milestone).unwrap()).await.unwrap();
    documents
}

/// The devices of a vault have connected just now, and pull all chunks.
async fn all_connected(documents: &Documents<MemDatabase>, store: &PeerStore) {
    let settings = json!({"readChunksOnline": false});
    let milestone = json!({"type": "milestoneinfo", "accepted_nodes": ["a"],
        "node_info": {"a": {"progress": last_seq(store).await}}, "tweak_values": {"PREFERRED": settings, "a": settings}});
    documents.put_local(MILESTONE, None, JsonText::from_serde(&milestone).unwrap()).await.unwrap();
}

/// A device on no list sends a chunk again between the census of a run and the end of its text, and the file that names
/// it afterwards.
#[tokio::test]
async fn a_text_that_is_sent_again_beside_a_run_is_there() {
    let engine = MemDatabase::new();
    let documents = spare(&engine, 1).await;
    let (store, chunk) = (PeerStore::local(documents.clone()), "h:000".to_owned());
    for deleted in [0, 1] {
        assert_eq!(collect_vault(&documents, options(), |_| ()).await.unwrap().deleted.count, deleted);
    }
    let first = store.leaves(std::slice::from_ref(&chunk), true).await.unwrap().remove(0).remove(0).ancestors.remove(0);
    let mut leaf = Leaf { rev: first.clone(), deleted: false, body: Body::new(), ancestors: Vec::new() };
    leaf.body = json!({"type": "leaf", "data": "text"}).as_object().unwrap().clone();
    let run = async |engine| {
        let layer = Layer::open(engine, LayerOptions::default()).await.unwrap();
        collect_vault(&layer.database("db").await.unwrap(), options(), |_| ()).await.unwrap()
    };
    // Commits of a run: its beginning, what all devices have passed, and the end of the text.
    for held in [1, 2] {
        all_connected(&documents, &store).await;
        assert_eq!(collect_vault(&documents, options(), |_| ()).await.unwrap().emptied.passed, 1);
        let send = async || {
            let asked = vec![(chunk.clone(), vec![first.parse().unwrap()])];
            assert_eq!(documents.revs_diff(asked).await.unwrap().len(), 1, "the device is asked for it");
            store.graft(vec![(chunk.clone(), leaf.clone())]).await.unwrap();
        };
        let (done, was_held) = interleave(engine.clone(), held, run, send).await;
        assert!(was_held && done.failed.is_none(), "{done:?}");
        assert_eq!((done.emptied.documents, done.trash.deleted.count), (0, 0), "commit {held}");
        let id = format!("g{held}.md");
        let named = file(&id, std::slice::from_ref(&chunk), false);
        let rev = store.write(vec![Edit { id: id.clone(), rev: None, deleted: false, body: named }]).await.unwrap();
        assert_eq!(live_leaves(&store, &chunk).await.len(), 1, "commit {held}");
        // The file goes again, and the chunk into the trash.
        store.write(vec![Edit::delete(&id, rev[0].clone().unwrap())]).await.unwrap().remove(0).unwrap();
        for deleted in [0, 1] {
            all_connected(&documents, &store).await;
            assert_eq!(collect_vault(&documents, options(), |_| ()).await.unwrap().deleted.count, deleted);
        }
    }
}

/// A database that does not know which revisions were before a tombstone could not ask a device for an ended text.
#[tokio::test]
async fn a_database_that_forgets_revisions_holds_the_trash() {
    for conflicts in [ConflictPolicy::LastWriteWins, ConflictPolicy::KeepAll] {
        let layer = Layer::open(MemDatabase::new(), LayerOptions::default()).await.unwrap();
        let documents = layer.create_database("db", CreateOptions { conflicts, ..Default::default() }).await.unwrap();
        let store = PeerStore::local(documents.clone());
        let chunk = json!({"type": "leaf", "data": "text"}).as_object().unwrap().clone();
        let edit = |id: &str, body| Edit { id: id.into(), rev: None, deleted: false, body };
        let edits = vec![edit("h:1", chunk), edit("f.md", file("f.md", &[], false))];
        store.write(edits).await.unwrap().into_iter().for_each(|written| drop(written.unwrap()));
        documents.set_revs_limit(9).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..4 {
            all_connected(&documents, &store).await;
            let done = collect_vault(&documents, options(), |_| ()).await.unwrap();
            assert!(done.found.holds.is_empty(), "{:?}", done.found.holds);
            held.push((done.trash.deleted.count, done.emptied.passed, done.found.trash_holds));
        }
        assert_eq!(
            held.iter().map(|(trash, passed, _)| (*trash, *passed)).collect::<Vec<_>>(),
            [(0, 0), (1, 0), (1, 0), (1, 0)]
        );
        let is_last = conflicts == ConflictPolicy::LastWriteWins;
        let (hold, limit) = (&held[3].2, "`_revs_limit` is 9");
        assert_eq!(
            (hold[0].contains("the last write wins"), hold.len()),
            (is_last, 1 + usize::from(is_last)),
            "{hold:?}"
        );
        assert!(hold[hold.len() - 1].contains(limit), "{hold:?}");
        documents.set_revs_limit(10).await.unwrap();
        for ended in [0, u64::from(!is_last)] {
            all_connected(&documents, &store).await;
            let done = collect_vault(&documents, options(), |_| ()).await.unwrap();
            assert_eq!((done.emptied.documents, done.found.trash_holds.len()), (ended, usize::from(is_last)));
        }
    }
}

#[tokio::test]
async fn what_a_run_did_before_a_full_disk_is_told() {
    let engine = MemDatabase::new();
    let documents = spare(&engine, 101).await;
    let run = async |faults: Vec<Option<Fault>>| {
        let layer = Layer::open(Chaos::scripted(engine.clone(), faults), LayerOptions::default()).await.unwrap();
        collect_vault(&layer.database("db").await.unwrap(), options(), |_| ()).await
    };
    let full =
        |failed: &Option<Error>| matches!(failed, Some(Error::Setting(what)) if what.contains("the disk is full"));
    // Its commits: the beginning, and a hundred chunks each.
    let first = run(vec![None, None, Some(Fault::Full)]).await.unwrap();
    assert!(full(&first.failed), "{:?}", first.failed);
    assert_eq!((first.condemned, first.trash.condemned), (100, 100));
    let begun = run(vec![Some(Fault::Full); 3]).await.unwrap();
    assert!(full(&begun.failed) && begun.deleted.count == 0, "{:?}", begun.failed);
    let second = run(vec![None, None, Some(Fault::Full)]).await.unwrap();
    assert!(full(&second.failed), "{:?}", second.failed);
    assert_eq!((second.deleted.count, second.condemned, second.trash.deleted.count), (100, 0, 100));
    let third = run(Vec::new()).await.unwrap();
    assert!(third.failed.is_none());
    assert_eq!((third.condemned, third.trash.condemned, third.trash.deleted.count), (1, 1, 100));
    let name =
        |id: &str| Edit { id: id.into(), rev: None, deleted: false, body: file(id, &["h:000".to_owned()], false) };
    let store = PeerStore::local(documents.clone());
    store.write(vec![name("g.md")]).await.unwrap().remove(0).unwrap();
    assert_eq!(live_leaves(&store, "h:000").await.len(), 1);
    // What is due leaves the trash on a full disk, too; nothing more is deleted.
    all_connected(&documents, &store).await;
    let passed = run(vec![Some(Fault::Full); 20]).await.unwrap();
    assert!(full(&passed.failed) && passed.emptied.passed == 99, "{passed:?}");
    let ended = run(vec![Some(Fault::Full); 20]).await.unwrap();
    assert!(full(&ended.failed), "{:?}", ended.failed);
    assert_eq!((ended.emptied.documents, ended.trash.deleted.count, ended.trash.condemned), (99, 0, 1));
}

#[tokio::test]
async fn a_run_takes_no_more_ids_than_its_memory_holds() {
    let documents = spare(&MemDatabase::new(), 30).await;
    let mut options = options();
    options.census.most_named_bytes = 700;
    let done = collect_vault(&documents, options, |_| ()).await.unwrap();
    assert_eq!((done.condemned, done.more), (10, true));
    assert_eq!(done.found.census.unreferenced.count, 30);
}

/// The loss that the trash prevents, step by step.
async fn a_device_that_was_away_undoes_what_was_collected(world: World) {
    for (name, purge) in [("kept", false), ("purged", true)] {
        let server = Replica::new(&world, name).await;
        let mut desk = Device::new(&world, &format!("{name}-desk")).await;
        let mut phone = Device::new(&world, &format!("{name}-phone")).await;
        let (old, new) = (vec!["h:old".to_owned()], vec!["h:new".to_owned()]);
        desk.write("f0.md", &old, false, text).await;
        desk.sync(&server, true).await;
        phone.sync(&server, true).await;
        desk.write("f0.md", &new, false, text).await;
        desk.sync(&server, true).await;
        phone.sync(&server, true).await;

        // The phone goes away, and undoes: it has the chunk.
        assert!(phone.has("h:old").await);
        phone.write("f0.md", &old, false, text).await;
        for (condemned, deleted) in [(1, 0), (0, 1), (0, 0)] {
            let done = collect(&world, name).await.unwrap();
            assert_eq!((done.condemned, done.deleted.count, done.left.count), (condemned, deleted, 0), "{name}");
        }
        if purge {
            assert_eq!(empty_trash(&world, name).await, 1);
        }
        desk.sync(&server, true).await;
        phone.sync(&server, true).await;
        desk.sync(&server, true).await;
        let all = [lost(&*server, FILES).await, lost(&*desk.store, FILES).await];
        assert_eq!(all.iter().all(Vec::is_empty), !purge, "{name}: {all:?}");
        if !purge {
            let text = live_leaves(&*desk.store, "h:old").await[0].body["data"].clone();
            assert_eq!(text, json!("text of h:old"));
            assert!(phone.has("h:old").await);
        }
    }
}

/// A vault with a file that no longer names its first chunk, `h:old`.
async fn with_replaced_chunk(world: &World) -> Replica {
    let server = Replica::new(world, "vault").await;
    let mut desk = Device::new(world, "desk").await;
    desk.write("f0.md", &["h:old".to_owned()], false, text).await;
    desk.write("f0.md", &["h:new".to_owned()], false, text).await;
    desk.sync(&server, false).await;
    server
}

async fn the_trash_waits_for_every_device(world: World) {
    let server = with_replaced_chunk(&world).await;
    let early = last_seq(&*server).await;
    assert_eq!(collect(&world, "vault").await.unwrap().condemned, 1);
    assert_eq!(collect(&world, "vault").await.unwrap().deleted.count, 1);
    let late = last_seq(&*server).await;
    let run = async |a: (&str, Option<bool>), b: (&str, Option<bool>)| {
        devices(&world, "vault", &[("a", a.0, a.1), ("b", b.0, b.1)]).await;
        collect_vault(&world.documents("vault").await, options(), |_| ()).await.unwrap()
    };
    // A device that keeps what was deleted may name it at any time, and so may one that has not said what it does.
    for unsure in [Some(true), None] {
        let held = run((&late, Some(false)), (&late, unsure)).await;
        let [hold] = &held.found.trash_holds[..] else { panic!("{:?}", held.found.trash_holds) };
        assert!(hold.contains(": notes (b). Switch off") && held.found.holds.is_empty(), "{hold}");
        assert_eq!((held.trash.deleted.count, held.emptied.passed), (1, 0));
    }
    let waits = run((&late, Some(false)), (&early, Some(false))).await;
    assert_eq!((waits.emptied.waiting, waits.emptied.passed, waits.found.trash_holds.len()), (1, 0, 0));
    assert_eq!(waits.to_json()["collected"]["waits_for"], "notes (b)");
    let passed = run((&late, Some(false)), (&late, Some(false))).await;
    assert_eq!((passed.emptied.passed, passed.has_written()), (1, false));
    assert_eq!(passed.to_json()["collected"]["passed"], 1);
    // Without a time no text leaves the trash, whatever was noted.
    let forever = VaultCollectOptions { trash_ms: None, ..options() };
    for _ in 0..2 {
        let kept = collect_vault(&world.documents("vault").await, forever, |_| ()).await.unwrap();
        assert_eq!((kept.emptied.documents, kept.emptied.passed, kept.trash.deleted.count), (0, 1, 1));
    }
    // What holds everything back holds the trash too. The device has the whole time when it is known again.
    let silent = run((&late, Some(false)), ("undefined", Some(false))).await;
    assert_eq!((silent.found.holds.len(), silent.trash.deleted.count), (1, 1));
    let known = run((&late, Some(false)), (&late, Some(false))).await;
    assert_eq!((known.emptied.documents, known.emptied.passed), (0, 1));
    // A device that did not fetch deletions meanwhile begins anew, and so does the period.
    let held = run((&late, Some(false)), (&late, Some(true))).await;
    assert_eq!((held.trash.deleted.count, held.emptied.passed), (1, 0));
    assert_eq!(held.to_json()["collected"]["waits_for"], json!(null));
    assert_eq!(run((&late, Some(false)), (&late, Some(false))).await.emptied.passed, 1);
    // One that joins has the whole time, and so has one that comes back after it was taken out of the list.
    let all = ["a", "b", "c"].map(|id| (id, late.as_str(), Some(false)));
    for listed in [&all[..], &all[..1], &all[..2]] {
        devices(&world, "vault", listed).await;
        let other = collect_vault(&world.documents("vault").await, options(), |_| ()).await.unwrap();
        assert_eq!((other.emptied.documents, other.emptied.passed), (0, 1), "{listed:?}");
    }
    let ended = run((&late, Some(false)), (&late, Some(false))).await;
    let told = ended.to_json();
    assert_eq!(told["collected"]["emptied"], json!({"count": 1, "bytes": waits.trash.deleted.bytes}));
    assert_eq!((ended.trash.deleted.count, ended.has_written()), (0, true));
    assert_eq!(told["collected"]["waits_for"], json!(null));
}

/// LiveSync notes that a device has connected, and then may refuse it. One that joins on demand is not in the list yet.
async fn a_device_that_may_be_refused_or_joins_on_demand_holds_the_trash(world: World) {
    let server = with_replaced_chunk(&world).await;
    assert_eq!(collect(&world, "vault").await.unwrap().condemned, 1);
    assert_eq!(collect(&world, "vault").await.unwrap().deleted.count, 1);
    let device = json!({"device_name": "notes", "progress": last_seq(&*server).await});
    let (form, settings) = (json!({"min": 0, "max": 2_400}), json!({"readChunksOnline": false, "customChunkSize": 0}));
    let good = json!({
        "type": "milestoneinfo", "accepted_nodes": ["a", "b"], "node_info": {"a": device, "b": device},
        "node_chunk_info": {"a": form, "b": form}, "tweak_values": {"PREFERRED": settings, "a": settings, "b": settings},
    });
    let run = async |milestone: &serde_json::Value| {
        world.put_local("vault", MILESTONE, milestone.as_object().unwrap().clone()).await;
        collect_vault(&world.documents("vault").await, options(), |_| ()).await.unwrap()
    };
    for (place, value, wanted) in [
        ("/tweak_values/b/customChunkSize", json!(100), "these settings differ: customChunkSize."),
        ("/node_chunk_info/b/min", json!(2_401), "no form of chunks in common"),
        ("/tweak_values/PREFERRED/readChunksOnline", json!(true), "a device which joins"),
        ("/tweak_values/PREFERRED/readChunksOnline", json!(null), "a device which joins"),
    ] {
        let passed = run(&good).await;
        assert_eq!((passed.emptied.passed, passed.found.trash_holds.len()), (1, 0), "{:?}", passed.found.trash_holds);
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap() = value;
        let held = run(&bad).await;
        assert!(matches!(&held.found.trash_holds[..], [hold] if hold.contains(wanted)), "{:?}", held.found.trash_holds);
        assert_eq!((held.found.holds.len(), held.trash.deleted.count), (0, 1));
    }
    assert_eq!(run(&good).await.emptied.passed, 1, "the time begins anew");
    assert_eq!(run(&good).await.emptied.documents, 1);
}

/// A conflict needs what a replaced revision names, though no live leaf does.
async fn what_a_conflict_needs_stays_in_the_trash(world: World) {
    let server = Replica::new(&world, "vault").await;
    world.keep_replaced("vault").await;
    let (mut desk, mut phone) = (Device::new(&world, "desk").await, Device::new(&world, "phone").await);
    desk.write("f0.md", &["h:old".to_owned()], false, text).await;
    desk.sync(&server, true).await;
    phone.sync(&server, true).await;
    desk.write("f0.md", &["h:desk".to_owned()], false, text).await;
    desk.sync(&server, true).await;
    assert_eq!(collect(&world, "vault").await.unwrap().condemned, 1);
    assert_eq!(collect(&world, "vault").await.unwrap().deleted.count, 1);
    let run = async || {
        devices(&world, "vault", &[("a", &last_seq(&*server).await, Some(false))]).await;
        let done = collect_vault(&world.documents("vault").await, options(), |_| ()).await.unwrap();
        assert_eq!((done.found.holds.len(), done.found.trash_holds.len()), (0, 0), "{:?}", done.found);
        done
    };
    assert_eq!(run().await.emptied.passed, 1);
    phone.write("f0.md", &["h:phone".to_owned()], false, text).await;
    phone.sync(&server, false).await;
    for _ in 0..2 {
        let kept = run().await;
        assert_eq!((kept.found.census.files.conflicts.count, kept.found.census.missing_chunks), (1, 0));
        assert_eq!((kept.emptied.documents, kept.trash.deleted.count), (0, 1));
    }
    assert!(phone.resolve(FILES).await);
    phone.sync(&server, false).await;
    // With what only the other side named.
    let ended = run().await;
    assert_eq!((ended.emptied.documents, ended.found.census.files.conflicts.count), (1, 0));
}

/// A device that knows of a collected chunk, which is in the server's trash.
async fn collected(world: &World, name: &str) -> (Replica, Device) {
    let server = Replica::new(world, name).await;
    let mut desk = Device::new(world, &format!("{name}-desk")).await;
    for chunk in ["h:old", "h:new"] {
        desk.write("f0.md", &[chunk.to_owned()], false, text).await;
        desk.sync(&server, true).await;
    }
    assert_eq!(collect(world, name).await.unwrap().condemned, 1);
    assert_eq!(collect(world, name).await.unwrap().deleted.count, 1);
    desk.sync(&server, true).await;
    (server, desk)
}

/// Lets the text of that chunk leave the trash.
async fn end_text(world: &World, name: &str, server: &dyn DocumentStore) {
    devices(world, name, &[("a", &last_seq(server).await, Some(false))]).await;
    for ended in [0, 1] {
        let done = collect_vault(&world.documents(name).await, options(), |_| ()).await.unwrap();
        assert_eq!(done.emptied.documents, ended);
    }
}

/// Why the tombstone stays when the text ends: devices that have it take no older revision, and one that joins late would
/// write just that. One that fetches on demand does, as it has no tombstones of chunks.
async fn a_device_that_joins_late_writes_what_left_the_trash(world: World) {
    for (name, purge, on_demand) in [("ended", false, false), ("demand", false, true), ("purged", true, false)] {
        let (server, mut desk) = collected(&world, name).await;
        if purge {
            assert_eq!(empty_trash(&world, name).await, 1);
        } else {
            end_text(&world, name, &*server).await;
        }
        let mut late = Device::new(&world, &format!("{name}-late")).await;
        late.on_demand = on_demand;
        late.sync(&server, true).await;
        assert_eq!(late.write("f1.md", &["h:old".to_owned()], false, text).await, 1);
        late.sync(&server, true).await;
        desk.sync(&server, true).await;
        assert_eq!(lost(&*server, FILES).await.len(), 0, "{name}");
        assert_eq!(lost(&*desk.store, FILES).await.is_empty(), !purge, "{name}");
    }
}

/// A limit: such a device writes chunks before it pulls, and the tombstone that it pulls ends its own. It sends the text
/// when it is told to verify its files, and writes it again.
async fn a_device_that_joins_with_files_sends_their_text_after_a_repair(world: World) {
    let (server, _) = collected(&world, "vault").await;
    end_text(&world, "vault", &*server).await;
    let mut late = Device::new(&world, "late").await;
    let old = ["h:old".to_owned()];
    assert_eq!(late.write("f1.md", &old, false, text).await, 1);
    late.sync(&server, true).await;
    assert_eq!(lost(&*server, FILES).await.len(), 1);
    assert_eq!(late.write("f1.md", &old, false, text).await, 1);
    late.sync(&server, true).await;
    assert_eq!(lost(&*server, FILES).await.len(), 0);
}

async fn a_vault_of_livesync_gets_its_space_back(world: World) {
    for (number, fixture) in [Fixture::Plain, Fixture::Encrypted].into_iter().enumerate() {
        let name = format!("vault{number}");
        let store = fixture.load(&world, &name).await;
        let before = store.figures().await.unwrap();
        let first = collect(&world, &name).await.unwrap();
        assert_eq!(
            (first.condemned, first.deleted.count, first.trash.condemned, first.trash.deleted.count),
            (13, 0, 13, 0)
        );
        let second = collect(&world, &name).await.unwrap();
        assert_eq!(
            (second.condemned, second.deleted.count, second.trash.condemned, second.trash.deleted.count),
            (0, 13, 0, 13)
        );
        let third = collect(&world, &name).await.unwrap();
        assert_eq!((third.trash.deleted.count, third.found.census.unreferenced.count), (13, 0));
        let after = store.figures().await.unwrap();
        assert_eq!((before.documents - after.documents, after.deleted - before.deleted), (13, 13));
        assert_eq!(first.found.census.referenced, third.found.census.referenced);
        let told = third.to_json();
        assert_eq!(
            (&told["collected"]["trash"]["deleted"], &told["unreferenced"]["count"]),
            (&json!({"count": 13, "bytes": second.deleted.bytes}), &json!(0))
        );
    }
}

async fn what_cannot_be_known_holds_everything_back(world: World) {
    // Paths that nobody here can read, and lists with them.
    let store = Fixture::Obfuscated.load(&world, "closed").await;
    let before = store.figures().await.unwrap().documents;
    let refused = collect(&world, "closed").await.unwrap_err();
    assert!(matches!(refused, Error::Unread { files: 27, .. }), "{refused:?}");
    assert_eq!(store.figures().await.unwrap().documents, before);
    assert_eq!(world.documents("closed").await.last_collection().await.unwrap(), 0, "its edits pay nothing");

    // A device obfuscates paths, and has not brought a file yet.
    let store = Fixture::Plain.load(&world, "closing").await;
    let device = json!({"device_name": "phone", "progress": last_seq(&*store).await});
    let tweaks = json!({"PREFERRED": {"usePathObfuscation": false}, "b": {"usePathObfuscation": true}});
    let milestone = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device, "b": device},
                           "tweak_values": tweaks});
    world.put_local("closing", MILESTONE, milestone.as_object().unwrap().clone()).await;
    let refused = collect_vault(&world.documents("closing").await, options(), |_| ()).await.unwrap_err();
    assert!(matches!(&refused, Error::Setting(what) if what.contains("obfuscates paths")), "{refused:?}");

    // Chunks are condemned, and then one list becomes unreadable.
    let store = Fixture::Plain.load(&world, "vault").await;
    assert_eq!(collect(&world, "vault").await.unwrap().condemned, 13);
    let bad = json!({"path": "torn.md", "children": "h:1", "type": "plain"}).as_object().unwrap().clone();
    let edit = Edit { id: "torn.md".into(), rev: None, deleted: false, body: bad };
    let rev = store.write(vec![edit]).await.unwrap().remove(0).unwrap();
    let before = store.figures().await.unwrap().documents;
    assert!(matches!(collect(&world, "vault").await.unwrap_err(), Error::Unread { files: 1, .. }));
    // A list that names what is not there holds back too: a device may have it.
    let body = file("torn.md", &["h:never".to_owned()], false);
    let edit = Edit { id: "torn.md".into(), rev: Some(rev), deleted: false, body };
    let rev = store.write(vec![edit]).await.unwrap().remove(0).unwrap();
    let held = collect(&world, "vault").await.unwrap();
    assert!(held.found.holds[0].starts_with("1 chunks are missing"), "{:?}", held.found.holds);
    assert_eq!((held.deleted.count, held.trash.condemned), (0, 13));
    assert_eq!(store.figures().await.unwrap().documents, before);
    store.write(vec![Edit::delete("torn.md", rev)]).await.unwrap().remove(0).unwrap();
    assert_eq!(collect(&world, "vault").await.unwrap().deleted.count, 13);
}
