//! A year of a vault whose chunks a server collects each day, with a clock of its own: five devices, of which two are
//! often away for weeks, edit, rename, delete, undo and restore old versions.
//!
//! Each day it is seen that no file is unreadable on any device or on the server, and that the documents of the vault
//! have at most twice the bytes of what its files need. The trash is measured: nothing is removed from it.
//!
//! `CHUNKS_YEARS` is the number of years, each with a seed of its own; without it, some months are played.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chunks::store::DocumentStore;
use chunks::{CensusOptions, VaultCollectOptions, VaultCollected, collect_vault};
use model::{Environment, SystemEnvironment};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use crate::devices::{Device, MILESTONE, empty_trash, id_of, live_leaves, lost, named};
use crate::support::{World, last_seq};

const DAY_MS: u64 = 24 * 3_600 * 1_000;
const DAYS: u64 = 50;
/// Days between condemning a chunk and deleting it.
const GRACE: u64 = 14;
const FILES: usize = 40;
const DEVICES: usize = 5;
/// The devices from this one on are often away.
const AWAY: usize = 3;
/// Versions of a file that people remember.
const REMEMBERED: usize = 12;

/// The time, which the play sets.
#[derive(Debug)]
struct Clock(AtomicU64);

impl Environment for Clock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

/// The text of a chunk: some hundred bytes.
fn text(chunk: &str) -> String {
    let lines = 10 + chunk.bytes().map(usize::from).sum::<usize>() % 40;
    format!("text of {chunk}\n").repeat(lines)
}

/// What a play showed.
#[derive(Debug, Default)]
struct Shown {
    /// Files that were unreadable, each with the place and the day.
    lost: Vec<String>,
    /// Undone edits and restored versions whose chunks the device did not write.
    undone: u64,
    /// Conflicts that a device resolved.
    resolved: u64,
    /// Longest time that a device was away, in days.
    away: u64,
    /// Chunks that were deleted into the trash, and those that came back.
    deleted: u64,
    revived: u64,
    held: u64,
    /// The bytes of all documents in percent of those that files need: the most of any day.
    percent: u64,
    /// The bytes of the trash in percent of those that files need, at the end.
    trash_percent: u64,
}

struct Play<'w> {
    world: &'w World,
    name: String,
    dice: StdRng,
    day: u64,
    server: Arc<dyn DocumentStore>,
    devices: Vec<Device>,
    /// The day on which each device connects again.
    back: [u64; DEVICES],
    /// What each device left in the list of devices.
    infos: Map<String, Value>,
    /// Old versions of each file.
    versions: BTreeMap<usize, Vec<Vec<String>>>,
    next: u64,
    shown: Shown,
}

impl Play<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        self.dice.random_range(0..sides)
    }

    fn new_chunk(&mut self) -> String {
        self.next += 1;
        format!("h:{}x{}", self.name, self.next)
    }

    /// Somebody works at a device.
    async fn edit(&mut self, at: usize) {
        let file = self.roll(FILES);
        let id = id_of(file);
        let mut chunks = live_leaves(&*self.devices[at].store, &id).await.first().map(named).unwrap_or_default();
        match self.roll(40) {
            0 if !chunks.is_empty() => {
                let to = (file + 1 + self.roll(FILES - 1)) % FILES;
                self.devices[at].write(&id_of(to), &chunks, false, text).await;
                self.devices[at].write(&id, &[], true, text).await;
            }
            1 => drop(self.devices[at].write(&id, &chunks, true, text).await),
            2..=9 => {
                let Some(count) = self.versions.get(&file).map(Vec::len) else { return };
                let back = self.roll(count);
                let old = self.versions[&file][back].clone();
                let written = self.devices[at].write(&id, &old, false, text).await;
                self.shown.undone += u64::from(written == 0);
            }
            _ => {
                if chunks.is_empty() {
                    for _ in 0..8 + self.roll(9) {
                        chunks.push(self.new_chunk());
                    }
                }
                for _ in 0..=self.roll(2) {
                    let place = self.roll(chunks.len());
                    chunks[place] = self.new_chunk();
                }
                self.devices[at].write(&id, &chunks, false, text).await;
                let versions = self.versions.entry(file).or_default();
                versions.push(chunks);
                if versions.len() > REMEMBERED {
                    versions.remove(0);
                }
            }
        }
    }

    /// A device notes where the database is, as LiveSync does before it replicates, and replicates.
    async fn connect(&mut self, at: usize, now_ms: u64) {
        let progress = last_seq(&*self.server).await;
        let info = json!({"device_name": format!("device {at}"), "progress": progress, "last_connected": now_ms});
        self.infos.insert(format!("device{at}"), info);
        let accepted: Vec<&String> = self.infos.keys().collect();
        let body = json!({"type": "milestoneinfo", "accepted_nodes": accepted, "node_info": self.infos});
        self.world.put_local(&self.name, MILESTONE, body.as_object().unwrap().clone()).await;
        let (server, pull_first) = (self.server.clone(), self.roll(2) == 0);
        self.devices[at].sync(&*server, pull_first).await;
        // Mostly somebody resolves the conflicts at once.
        if self.roll(4) > 0 && self.devices[at].resolve(FILES).await {
            self.shown.resolved += 1;
            self.devices[at].sync(&*server, pull_first).await;
        }
    }

    async fn collect(&mut self) -> VaultCollected {
        let options = VaultCollectOptions {
            grace_ms: GRACE * DAY_MS,
            census: CensusOptions { most_named: 10_000, ..CensusOptions::default() },
        };
        collect_vault(&self.world.documents(&self.name).await, options, |_| ()).await.unwrap()
    }

    async fn look(&mut self) {
        let places = self.devices.iter().map(|device| &device.store).chain([&self.server]);
        for (place, store) in places.enumerate() {
            let lost = lost(&**store, FILES).await;
            self.shown.lost.extend(lost.into_iter().map(|what| format!("{what} (day {}, in {place})", self.day)));
        }
    }

    async fn day(&mut self, now_ms: u64, without_trash: bool) {
        for at in 0..DEVICES {
            for _ in 0..self.roll(3) {
                self.edit(at).await;
            }
            if self.day >= self.back[at] {
                self.connect(at, now_ms).await;
                if at >= AWAY && self.roll(3) == 0 {
                    let away = 5 + self.roll(41) as u64;
                    self.back[at] = self.day + away;
                    self.shown.away = self.shown.away.max(away);
                }
            }
        }
        let before = self.shown.deleted;
        let done = self.collect().await;
        self.shown.held += u64::from(!done.found.holds.is_empty());
        self.shown.deleted += done.deleted.count;
        if without_trash && self.shown.deleted > before {
            empty_trash(self.world, &self.name).await;
        }
        self.look().await;
        let census = &done.found.census;
        let needed = census.referenced.bytes + census.files.bytes;
        self.shown.percent = self.shown.percent.max((needed + census.unreferenced.bytes) * 100 / needed.max(1));
        self.shown.trash_percent = done.trash.deleted.bytes * 100 / needed.max(1);
        if self.day.is_multiple_of(30) {
            let (spare, trash) = (census.unreferenced.bytes, done.trash.deleted.bytes);
            println!("day {}: files need {needed} bytes, other chunks have {spare}, the trash has {trash}", self.day);
        }
    }
}

async fn play(seed: u64, days: u64, without_trash: bool) -> Shown {
    println!("seed {seed}, {days} days");
    let clock = Arc::new(Clock(AtomicU64::new(1_700_000_000_000)));
    let world = World::in_process_at(clock.clone()).await;
    let name = format!("year{seed}");
    let server = world.database(&name).await;
    world.keep_replaced(&name).await;
    let mut devices = Vec::new();
    for at in 0..DEVICES {
        devices.push(Device::new(&world, &format!("{name}-device{at}")).await);
    }
    let mut play = Play {
        world: &world,
        name: name.clone(),
        dice: StdRng::seed_from_u64(seed),
        day: 0,
        server,
        devices,
        back: [0; DEVICES],
        infos: Map::new(),
        versions: BTreeMap::new(),
        next: 0,
        shown: Shown::default(),
    };
    // The vault as it is when the collection is switched on.
    for file in 0..FILES {
        let mut chunks = Vec::new();
        for _ in 0..12 {
            chunks.push(play.new_chunk());
        }
        play.devices[0].write(&id_of(file), &chunks, false, text).await;
        play.versions.entry(file).or_default().push(chunks);
    }
    while play.day < days {
        play.day += 1;
        let now_ms = clock.0.fetch_add(DAY_MS, Ordering::Relaxed);
        play.day(now_ms, without_trash).await;
    }
    // All come home.
    for _ in 0..2 {
        for at in 0..DEVICES {
            let server = play.server.clone();
            play.devices[at].sync(&*server, true).await;
        }
    }
    play.look().await;
    let trash = chunks::Trash::read(&world.documents(&name).await).await.unwrap();
    play.shown.revived = play.shown.deleted.saturating_sub(trash.deleted.count);
    let report = world.documents(&name).await.check(|_| {}).await.unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    println!("{:?}", Shown { lost: play.shown.lost.iter().take(3).cloned().collect(), ..play.shown });
    play.shown
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_is_unreadable_in_a_year_of_collections_and_the_documents_stay_small() {
    let years: Option<u64> = std::env::var("CHUNKS_YEARS").ok().map(|years| years.parse().expect("a number"));
    for seed in 0..years.unwrap_or(1) {
        let shown = play(seed, years.map_or(DAYS, |_| 365), false).await;
        assert!(shown.lost.is_empty(), "seed {seed}: {:#?}", shown.lost);
        assert!(shown.percent <= 200, "seed {seed}: {shown:?}");
        let enough = shown.deleted > 50 && shown.revived > 3 && shown.undone > 20 && shown.away > 14;
        assert!(enough && shown.resolved > 0, "seed {seed}: too little to prove anything: {shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_year_without_a_trash_is_seen_to_lose_text() {
    let shown = play(0, DAYS, true).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
}
