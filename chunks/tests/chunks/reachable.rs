//! What a collection of chunks with documents of their own would remove, against a model: histories from a seed, in
//! which devices edit, fork, restore old versions, delete, mark as deleted and resolve conflicts.
//!
//! The model knows every revision. It has LiveSync's own rule, by pairs of branches: a chunk that this rule keeps must
//! never be removed, and a chunk that no revision of a file in conflict and no live leaf names always.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use chunks::store::{Body, Changes, DocumentStore, Edit, Figures, IdRange, Leaf, ListingPage, StoreResult, Written};
use chunks::{CensusOptions, ChunkStore, Error, WouldCollect};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::fixtures::{Fixture, PASSPHRASE};
use crate::interruption::{content, edit};
use crate::support::{World, last_seq};

crate::scenarios!(
    no_chunk_would_go_that_any_side_of_a_conflict_needs,
    what_a_conflict_needs_and_the_database_has_not_kept_holds_everything_back,
    a_collection_without_the_past_of_conflicts_is_seen_to_lose_chunks,
    vaults_of_livesync_are_counted_and_not_changed,
    a_device_of_which_too_little_is_known_holds_everything_back,
    a_vault_of_which_too_little_is_known_is_refused,
);

const MILESTONE: &str = "_local/obsydian_livesync_milestone";
const FILES: usize = 5;
/// Fewer than are named one by one.
const CHUNKS: usize = 60;
const STEPS: usize = 60;
const SEEDS: u64 = 6;

/// A revision in the model.
struct Revision {
    parent: Option<String>,
    names: BTreeSet<String>,
    deleted: bool,
}

/// A file's revisions.
#[derive(Default)]
struct File(BTreeMap<String, Revision>);

impl File {
    fn live(&self) -> Vec<String> {
        let parents: BTreeSet<&String> = self.0.values().filter_map(|revision| revision.parent.as_ref()).collect();
        let is_live = |(rev, revision): &(&String, &Revision)| !revision.deleted && !parents.contains(rev);
        self.0.iter().filter(is_live).map(|(rev, _)| rev.clone()).collect()
    }

    /// A revision and those before it, newest first.
    fn line(&self, rev: &str) -> Vec<String> {
        let mut line = vec![rev.to_owned()];
        while let Some(parent) = line.last().and_then(|rev| self.0[rev].parent.clone()) {
            line.push(parent);
        }
        line
    }

    fn named_by<'a>(&self, revs: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
        revs.into_iter().flat_map(|rev| self.0[rev].names.iter().cloned()).collect()
    }

    /// What LiveSync's rule keeps: by each pair of live leaves, the revisions of both sides back to the nearest shared
    /// one.
    fn kept(&self) -> BTreeSet<String> {
        let live = self.live();
        let mut kept = self.named_by(&live);
        for (number, one) in live.iter().enumerate() {
            for other in &live[number + 1..] {
                let (one, other) = (self.line(one), self.line(other));
                let since = |line: &[String], of: &[String]| -> Vec<String> {
                    let shared = line.iter().position(|rev| of.contains(rev));
                    line[..shared.map_or(line.len(), |place| place + 1)].to_vec()
                };
                kept.extend(self.named_by(&since(&one, &other)));
                kept.extend(self.named_by(&since(&other, &one)));
            }
        }
        kept
    }

    /// What may be kept.
    fn most(&self) -> BTreeSet<String> {
        let live = self.live();
        if live.len() > 1 { self.named_by(self.0.keys()) } else { self.named_by(&live) }
    }

    /// Whether its conflict needs replaced revisions.
    fn has_past(&self) -> bool {
        let live = self.live();
        live.len() > 1 && live.iter().any(|rev| self.0[rev].parent.is_some())
    }
}

struct Play {
    dice: StdRng,
    store: Arc<dyn DocumentStore>,
    files: Vec<File>,
    written: BTreeSet<String>,
    count: u64,
}

impl Play {
    fn roll(&mut self, sides: usize) -> usize {
        self.dice.random_range(0..sides)
    }

    /// Writes a revision over `parent`, as a replication brings it.
    async fn revise(
        &mut self,
        file: usize,
        parent: Option<String>,
        names: BTreeSet<String>,
        deleted: bool,
        marked: bool,
    ) {
        for chunk in names.iter().filter(|chunk| !self.written.contains(*chunk)).cloned().collect::<Vec<_>>() {
            let body = json!({"type": "leaf", "data": chunk});
            self.store.write(vec![edit(&chunk, body)]).await.unwrap().remove(0).unwrap();
            self.written.insert(chunk);
        }
        self.count += 1;
        let ancestors = parent.as_ref().map(|parent| self.files[file].line(parent)).unwrap_or_default();
        let rev = format!("{}-{:032x}", ancestors.len() + 1, self.count * 0x9e37_79b9);
        let body = match deleted {
            true => Body::new(),
            false => {
                let mut body = json!({"path": format!("f{file}.md"), "children": names, "type": "plain", "size": 1,
                    "ctime": 1, "mtime": self.count, "eden": {}});
                if marked {
                    body["deleted"] = json!(true);
                }
                body.as_object().unwrap().clone()
            }
        };
        let leaf = Leaf { rev: rev.clone(), deleted, body, ancestors };
        self.store.graft(vec![(format!("{}f{file}.md", ["", "i:", "ix:", "ps:", ""][file]), leaf)]).await.unwrap();
        self.files[file].0.insert(rev, Revision { parent, names, deleted });
    }

    async fn step(&mut self) {
        let file = self.roll(FILES);
        let live = self.files[file].live();
        let all: Vec<String> = self.files[file].0.keys().cloned().collect();
        let wanted = 1 + self.roll(4);
        let mut names: BTreeSet<String> = (0..wanted).map(|_| format!("h:{}", self.roll(CHUNKS))).collect();
        let any = (!live.is_empty()).then(|| live[self.roll(live.len())].clone());
        match (self.roll(10), any) {
            // A device that was away brings an edit of an old revision, or a file that it made itself.
            (0 | 1, Some(_)) => {
                let parent = (self.roll(8) > 0).then(|| all[self.roll(all.len())].clone());
                self.revise(file, parent, names, false, false).await;
            }
            // It restores what an old revision had.
            (2, Some(leaf)) => {
                let old = &all[self.roll(all.len())];
                names = self.files[file].0[old].names.clone();
                self.revise(file, Some(leaf), names, false, false).await;
            }
            (3, Some(leaf)) => self.revise(file, Some(leaf), BTreeSet::new(), true, false).await,
            (4, Some(leaf)) => {
                names = self.files[file].0[&leaf].names.clone();
                self.revise(file, Some(leaf), names, false, true).await;
            }
            // Somebody resolves the conflict.
            (5 | 6, Some(kept)) => {
                for leaf in live.into_iter().filter(|leaf| *leaf != kept) {
                    self.revise(file, Some(leaf), BTreeSet::new(), true, false).await;
                }
            }
            (_, Some(leaf)) => self.revise(file, Some(leaf), names, false, false).await,
            // Over a tombstone, if there is one.
            (_, None) => {
                let parent = all.into_iter().max_by_key(|rev| rev.split('-').next().unwrap().parse::<u64>().unwrap());
                self.revise(file, parent, names, false, false).await;
            }
        }
    }
}

async fn milestone(world: &World, name: &str, device: Value) {
    let body = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device}});
    world.put_local(name, MILESTONE, body.as_object().unwrap().clone()).await;
}

/// A device that has just connected.
async fn connected(store: &dyn DocumentStore) -> Value {
    json!({"device_name": "phone", "progress": last_seq(store).await, "last_connected": 1})
}

async fn look(store: &Arc<dyn DocumentStore>) -> Result<WouldCollect, Error> {
    ChunkStore::new(store.clone())
        .would_collect(CensusOptions { most_ids: 25, ..CensusOptions::default() }, |_| ())
        .await
}

/// What a database says of replaced revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replaced {
    /// It has kept none.
    Gone,
    /// It has kept all.
    Kept,
    /// It has kept all, and says of each that it was not a file: a planted fault.
    Hidden,
}

/// A store with the planted fault.
#[derive(Debug)]
struct Hiding(Arc<dyn DocumentStore>);

#[async_trait]
impl DocumentStore for Hiding {
    async fn leaves(&self, ids: &[String], with_ancestors: bool) -> StoreResult<Vec<Vec<Leaf>>> {
        self.0.leaves(ids, with_ancestors).await
    }
    async fn revisions(&self, wanted: &[(String, String)]) -> StoreResult<Vec<Option<Body>>> {
        assert_eq!(wanted.len(), 1, "each may have megabytes");
        Ok(vec![Some(Body::new()); wanted.len()])
    }
    async fn local(&self, id: &str) -> StoreResult<Option<Body>> {
        self.0.local(id).await
    }
    async fn revs(&self, ids: &[String]) -> StoreResult<Vec<Option<String>>> {
        self.0.revs(ids).await
    }
    async fn write(&self, edits: Vec<Edit>) -> StoreResult<Vec<Written>> {
        self.0.write(edits).await
    }
    async fn graft(&self, leaves: Vec<(String, Leaf)>) -> StoreResult<()> {
        self.0.graft(leaves).await
    }
    async fn list(&self, range: &IdRange) -> StoreResult<ListingPage> {
        self.0.list(range).await
    }
    async fn changes(&self, since: Option<&str>, limit: usize) -> StoreResult<Changes> {
        self.0.changes(since, limit).await
    }
    async fn had(&self, sequence: &str) -> StoreResult<bool> {
        self.0.had(sequence).await
    }
    async fn figures(&self) -> StoreResult<Figures> {
        self.0.figures().await
    }
    async fn takes(&self, bytes: usize) -> StoreResult<bool> {
        self.0.takes(bytes).await
    }
}

/// What plays showed.
#[derive(Debug, Default)]
struct Shown {
    /// Number of chunks that could go, at each look.
    removable: usize,
    /// Number of conflicts with a past, at each look.
    conflicts: usize,
    /// Chunks that could go and that somebody needs, with seed and step.
    lost: Vec<String>,
}

/// Plays histories, and compares what a collection would do with the model.
async fn play_all(world: &World, replaced: Replaced) -> Shown {
    let mut shown = Shown::default();
    for seed in 0..SEEDS {
        play(world, seed, replaced, &mut shown).await;
    }
    let Shown { removable, conflicts, .. } = shown;
    assert!(removable > 50 && conflicts > 20, "{removable} chunks, {conflicts} conflicts: too few to prove anything");
    shown
}

async fn play(world: &World, seed: u64, replaced: Replaced, shown: &mut Shown) {
    println!("seed {seed}");
    let name = format!("vault{seed}");
    let store = world.database(&name).await;
    let is_kept = replaced != Replaced::Gone;
    if is_kept {
        world.keep_replaced(&name).await;
    }
    let looked_at: Arc<dyn DocumentStore> = match replaced {
        Replaced::Hidden => Arc::new(Hiding(store.clone())),
        Replaced::Gone | Replaced::Kept => store.clone(),
    };
    let files = (0..FILES).map(|_| File::default()).collect();
    let dice = StdRng::seed_from_u64(seed);
    let mut play = Play { dice, store, files, written: BTreeSet::new(), count: 0 };
    for step in 0..STEPS {
        play.step().await;
        if step % 6 != 5 {
            continue;
        }
        milestone(world, &name, connected(&*looked_at).await).await;
        let found = look(&looked_at).await.unwrap();
        let unreferenced: BTreeSet<String> = found.census.unreferenced_named.first.iter().cloned().collect();
        let is_known = found.census.is_known();
        let named = if is_known { found.census.unreferenced.count } else { 0 };
        assert_eq!(unreferenced.len() as u64, named, "seed {seed}, step {step}");
        assert_eq!(found.to_json()["unreferenced"].is_null(), !is_known, "seed {seed}, step {step}");
        let union = |sets: Vec<BTreeSet<String>>| sets.into_iter().flatten().collect::<BTreeSet<String>>();
        let with_past: BTreeSet<usize> = (0..FILES).filter(|&file| play.files[file].has_past()).collect();
        let live = union(play.files.iter().map(|file| file.named_by(&file.live())).collect());
        let (needed, most) = match is_kept {
            true => {
                (union(play.files.iter().map(File::kept).collect()), union(play.files.iter().map(File::most).collect()))
            }
            false => (live.clone(), live.clone()),
        };
        let lost = unreferenced.intersection(&needed);
        shown.lost.extend(lost.map(|chunk| format!("{chunk} (seed {seed}, step {step})")));
        let missed: Vec<&String> =
            play.written.difference(&most).filter(|chunk| !unreferenced.contains(*chunk)).collect();
        assert!(missed.is_empty() || !is_known, "seed {seed}, step {step}: {missed:?} are not needed by anybody");
        let unknown = if is_kept { 0 } else { with_past.len() };
        assert_eq!(found.census.files.unknown_past.count as usize, unknown, "seed {seed}, step {step}");
        assert_eq!(found.holds.is_empty(), unknown == 0, "seed {seed}, step {step}: {:?}", found.holds);
        shown.removable += unreferenced.len();
        shown.conflicts += with_past.len();
    }
}

async fn no_chunk_would_go_that_any_side_of_a_conflict_needs(world: World) {
    let shown = play_all(&world, Replaced::Kept).await;
    assert!(shown.lost.is_empty(), "{:?} are needed", shown.lost);
}

async fn what_a_conflict_needs_and_the_database_has_not_kept_holds_everything_back(world: World) {
    let shown = play_all(&world, Replaced::Gone).await;
    assert!(shown.lost.is_empty(), "{:?} are needed", shown.lost);
}

async fn a_collection_without_the_past_of_conflicts_is_seen_to_lose_chunks(world: World) {
    let shown = play_all(&world, Replaced::Hidden).await;
    assert!(!shown.lost.is_empty(), "the model does not notice");
}

async fn vaults_of_livesync_are_counted_and_not_changed(world: World) {
    for (number, fixture) in [Fixture::Plain, Fixture::Encrypted].into_iter().enumerate() {
        let name = format!("vault{number}");
        let store = fixture.load(&world, &name).await;
        // The devices were at another database, wherever this one is now.
        let held = look(&store).await.unwrap();
        assert!(matches!(&held.holds[..], [hold] if hold.contains("have seen: headless-vault (")), "{:?}", held.holds);
        assert_eq!(held.silent.len(), 2);
        two_devices(&world, &name, &*store).await;
        let before = content(&*store).await;
        let found = look(&store).await.unwrap();
        assert_eq!((found.census.referenced.count, found.census.unreferenced.count), (347, 13));
        assert_eq!(
            (found.holds.as_slice(), found.devices.len()),
            (&[][..], 2),
            "both devices must have sent what they have"
        );
        assert_eq!(found.to_json()["unreferenced"]["named"].as_array().unwrap().len(), 13);
        assert_eq!(content(&*store).await, before);

        // A chunk that files need and nobody can read.
        let winner = store.leaves(&["welcome.md".to_owned()], false).await.unwrap().remove(0).remove(0);
        let chunk = winner.body["children"][0].as_str().unwrap().to_owned();
        let good = store.leaves(std::slice::from_ref(&chunk), false).await.unwrap().remove(0).remove(0);
        let body = json!({"type": "leaf"}).as_object().unwrap().clone();
        let bad = Leaf { rev: format!("2-{}", "f".repeat(32)), deleted: false, body, ancestors: Vec::new() };
        store.graft(vec![(chunk.clone(), bad)]).await.unwrap();
        let found = look(&store).await.unwrap();
        assert!(matches!(&found.holds[..], [hold] if hold.starts_with("1 chunks that files need are damaged")));
        let told = found.to_json();
        assert_eq!((&told["damaged"]["named"], &told["damaged_and_needed"]), (&json!([chunk]), &json!(1)));
        assert!(good.rev.starts_with("1-"), "it stands beside: {}", good.rev);
    }
    // With the passphrase there is a figure, and a server is not trusted with the rest.
    let store = Fixture::Obfuscated.load(&world, "closed").await;
    // What was met decides, and not what the devices agreed on.
    two_devices(&world, "closed", &*store).await;
    let refused = look(&store).await.unwrap_err();
    assert!(matches!(&refused, Error::Unread { files: 27, first } if first.contains("passphrase")), "{refused:?}");
    let unlocked = ChunkStore::new(store).unlock(PASSPHRASE).await.unwrap();
    let found = unlocked.would_collect(CensusOptions::default(), |_| ()).await.unwrap();
    assert_eq!(found.census.unreferenced.count, 13);
    assert!(
        matches!(&found.holds[..], [hold] if hold.starts_with("27 lists of chunks are encrypted")),
        "{:?}",
        found.holds
    );
}

/// Two devices that have just connected, and agreed on nothing.
async fn two_devices(world: &World, name: &str, store: &dyn DocumentStore) {
    let device = connected(store).await;
    let body = json!({"type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": device, "b": device}});
    world.put_local(name, MILESTONE, body.as_object().unwrap().clone()).await;
}

async fn a_device_of_which_too_little_is_known_holds_everything_back(world: World) {
    let store = Fixture::Plain.load_without_local(&world, "vault").await;
    let last = last_seq(&*store).await;
    let digits = last.rsplit('-').next().unwrap();
    let (ahead, elsewhere) = (format!("00{}", "f".repeat(24)), format!("01{}", &digits[2..]));
    for progress in ["undefined", "1-x", "", "9-g1AAAACbeJzLYWBgYMpgTmHgz8tPSTV0", &ahead, &elsewhere] {
        milestone(&world, "vault", json!({"device_name": "notes", "progress": progress})).await;
        let held = look(&store).await.unwrap();
        assert!(
            matches!(&held.holds[..], [hold] if hold == "it is unknown what these devices have seen: notes (a)"),
            "{progress}: {:?}",
            held.holds
        );
        assert_eq!(held.to_json()["devices"][0]["progress_is_known"], false);
    }
    milestone(&world, "vault", connected(&*store).await).await;
    assert_eq!(look(&store).await.unwrap().holds, Vec::<String>::new());
    // Plugins before 0.25.36 leave no progress, and some of them only their settings.
    let body = json!({
        "type": "milestoneinfo", "accepted_nodes": ["a"], "node_info": {"a": connected(&*store).await},
        "node_chunk_info": {"c": {"min": 0}}, "tweak_values": {"PREFERRED": {}, "d": {}}, "locked": true,
    });
    world.put_local("vault", MILESTONE, body.as_object().unwrap().clone()).await;
    let held = look(&store).await.unwrap();
    assert!(
        matches!(&held.holds[..], [silent, locked] if silent.ends_with("have seen: (c), (d)")
            && locked.ends_with("cannot send what they have: (c), (d)")),
        "{:?}",
        held.holds
    );
}

async fn a_vault_of_which_too_little_is_known_is_refused(world: World) {
    let store = Fixture::Plain.load_without_local(&world, "vault").await;
    let refused = look(&store).await.unwrap_err().to_string();
    assert!(refused.contains("no \"_local/obsydian_livesync_milestone\""), "{refused}");
    let damaged = json!({"type": "milestoneinfo", "accepted_nodes": "a"});
    world.put_local("vault", MILESTONE, damaged.as_object().unwrap().clone()).await;
    let refused = look(&store).await.unwrap_err().to_string();
    assert!(refused.contains("is damaged") && refused.contains("nothing is collected"), "{refused}");

    let store = Fixture::Plain.load_without_local(&world, "silent").await;
    milestone(&world, "silent", json!({"device_name": "phone", "progress": ""})).await;
    let held = look(&store).await.unwrap();
    assert!(
        matches!(&held.holds[..], [hold] if hold.contains("these devices have seen: phone (a)")),
        "{:?}",
        held.holds
    );

    // One list that cannot be read.
    let odd = json!({"path": "odd.md", "children": ["h:1", 7], "type": "plain", "size": 1});
    store.write(vec![edit("odd.md", odd)]).await.unwrap().remove(0).unwrap();
    let refused = look(&store).await.unwrap_err();
    assert!(matches!(&refused, Error::Unread { files: 1, first } if first.contains("odd.md")), "{refused:?}");
    let rev = store.revs(&["odd.md".to_owned()]).await.unwrap().remove(0).unwrap();
    store.write(vec![Edit::delete("odd.md", rev)]).await.unwrap().remove(0).unwrap();
    assert!(look(&store).await.is_ok());

    // A file without its chunk: a device that has the chunk may send it any time.
    let torn = json!({"path": "torn.md", "children": ["h:gone"], "type": "plain", "size": 1});
    store.write(vec![edit("torn.md", torn)]).await.unwrap().remove(0).unwrap();
    let held = look(&store).await.unwrap();
    assert!(held.holds.iter().any(|hold| hold.contains("1 chunks are missing")), "{:?}", held.holds);

    let store = Fixture::Plain.load(&world, "aggregated").await;
    ChunkStore::new(store.clone()).migrate(false, |_, _| ()).await.unwrap();
    let refused = look(&store).await.unwrap_err().to_string();
    assert!(refused.contains("aggregated chunks"), "{refused}");
}
