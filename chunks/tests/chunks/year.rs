//! A year of a vault whose chunks a server collects each day, with a clock of its own: five devices, of which two are
//! often away for weeks, edit, rename, delete, undo and restore old versions. Sometimes a device notes that it has
//! connected, and its replication is cut off: it has sent nothing, and comes back after some days.
//!
//! Each day it is seen that no file is unreadable on any device or on the server, and how large the documents of the
//! vault and its trash are beside what files need. Each rule of the trash is broken by turns, and text is lost.
//!
//! `CHUNKS_YEARS` is the number of years, each with a seed of its own; without it, some weeks are played, with shorter
//! times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chunks::{CensusOptions, VaultCollectOptions, VaultCollected, collect_vault};
use model::{Environment, SystemEnvironment};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use crate::devices::{Device, MILESTONE, Replica, empty_trash, id_of, live_leaves, lost, named};
use crate::support::{World, last_seq};

const DAY_MS: u64 = 24 * 3_600 * 1_000;
const DAYS: u64 = 50;
const FILES: usize = 40;
const DEVICES: usize = 5;
/// The devices from this one on are often away.
const AWAY: usize = 3;
/// The device that joins late.
const LATE: usize = 2;
/// The day after which the last device is refused, if one is: it has the vault by then.
const REFUSED_AFTER: u64 = 10;
/// Versions of a file that people remember.
const REMEMBERED: usize = 12;

/// The times of a play, in days.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Between condemning a chunk and deleting it.
    grace: u64,
    /// Between all devices' passing of a deletion and the end of the text.
    trash: u64,
    /// Longest time that a device is away.
    away: u64,
    /// Longest time between a replication that was cut off and the next one. The rule holds if it is below `trash`.
    cut: u64,
}

const SHORT: Times = Times { grace: 5, trash: 6, away: 16, cut: 5 };
const LONG: Times = Times { grace: 14, trash: 14, away: 45, cut: 12 };

/// What is wrong in a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Everything in the trash is purged at once, tombstones and all.
    NoTrash,
    /// Text ends as soon as all devices have connected.
    NoTime,
    /// Devices that are away are taken for ones that connected.
    NoPassing,
    /// Devices fetch chunks on demand, and do not say so.
    Untold,
    /// Devices fetch chunks on demand. That is not wrong, but ends nothing.
    OnDemand,
    /// LiveSync refuses to replicate on the last device after some days. It still notes that it has connected, and its
    /// settings say why.
    Refused,
    /// The same, and nothing says so.
    RefusedUntold,
    /// A device joins late, and fetches everything first. That is not wrong, but a change of the list.
    Late,
}

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
    /// Chunks whose text left the trash for good.
    emptied: u64,
    /// Replications that were cut off.
    cut: u64,
    /// The bytes of all documents in percent of those that files need: the most of any day.
    percent: u64,
    /// The same with the trash.
    whole_percent: u64,
    /// Days on which that was above 200 percent.
    above_twice: u64,
    /// The bytes of the trash in percent of those that files need, at the end.
    trash_percent: u64,
}

struct Play<'w> {
    world: &'w World,
    name: String,
    times: Times,
    fault: Fault,
    dice: StdRng,
    day: u64,
    server: Replica,
    devices: Vec<Device>,
    /// The day on which each device connects again.
    back: [u64; DEVICES],
    /// Whether the last replication of each device was cut off.
    was_cut: [bool; DEVICES],
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

    /// A device notes where the database is, as LiveSync does before it replicates.
    async fn note(&mut self, at: usize, now_ms: u64) {
        let progress = last_seq(&*self.server).await;
        let info = json!({"device_name": format!("device {at}"), "progress": progress, "last_connected": now_ms});
        self.infos.insert(format!("device{at}"), info);
        if self.fault == Fault::NoPassing {
            self.infos.values_mut().for_each(|info| info["progress"] = progress.clone().into());
        }
        let accepted: Vec<&String> = self.infos.keys().collect();
        let settings = json!({"readChunksOnline": self.fault == Fault::OnDemand, "customChunkSize": 0});
        let mut tweaks: Map<String, Value> = self.infos.keys().map(|id| (id.clone(), settings.clone())).collect();
        if self.fault == Fault::Refused
            && let Some(refused) = tweaks.get_mut(&format!("device{}", DEVICES - 1))
        {
            refused["customChunkSize"] = json!(100);
        }
        tweaks.insert("PREFERRED".into(), settings);
        let body = json!({"type": "milestoneinfo", "accepted_nodes": accepted, "node_info": self.infos,
            "tweak_values": tweaks});
        self.world.put_local(&self.name, MILESTONE, body.as_object().unwrap().clone()).await;
    }

    /// Whether a device has not joined yet.
    fn is_out(&self, at: usize) -> bool {
        self.fault == Fault::Late && at == LATE && !self.infos.contains_key(&format!("device{at}"))
    }

    /// A device connects and replicates, or is cut off. Returns whether it was.
    async fn connect(&mut self, at: usize, now_ms: u64) -> bool {
        let joins = self.is_out(at);
        self.note(at, now_ms).await;
        if joins {
            let server = self.server.clone();
            self.devices[at].sync(&server, true).await;
            return false;
        }
        let refuses = matches!(self.fault, Fault::Refused | Fault::RefusedUntold) && self.day > REFUSED_AFTER;
        if refuses && at == DEVICES - 1 {
            self.was_cut[at] = true;
            return true;
        }
        let (server, pull_first) = (self.server.clone(), self.roll(2) == 0);
        self.was_cut[at] = !self.was_cut[at] && self.roll(6) == 0;
        if self.was_cut[at] {
            if pull_first {
                self.devices[at].pull(&server).await;
            }
            self.shown.cut += 1;
            return true;
        }
        self.devices[at].sync(&server, pull_first).await;
        // Mostly somebody resolves the conflicts at once.
        if self.roll(4) > 0 && self.devices[at].resolve(FILES).await {
            self.shown.resolved += 1;
            self.devices[at].sync(&server, pull_first).await;
        }
        false
    }

    async fn collect(&mut self) -> VaultCollected {
        let trash = if self.fault == Fault::NoTime { 0 } else { self.times.trash };
        let options = VaultCollectOptions {
            grace_ms: self.times.grace * DAY_MS,
            trash_ms: Some(trash * DAY_MS),
            census: CensusOptions { most_named: 10_000, ..CensusOptions::default() },
        };
        collect_vault(&self.world.documents(&self.name).await, options, |_| ()).await.unwrap()
    }

    async fn look(&mut self) {
        let places = self.devices.iter().map(|device| (device.on_demand, &device.store));
        for (place, (on_demand, store)) in places.chain([(false, &self.server)]).enumerate() {
            // Such a device asks the server. One that was cut off may have pulled the deletion of a chunk that it names
            // in a file which it could not send; it gets the chunk back when it does.
            if on_demand || self.was_cut.get(place) == Some(&true) {
                continue;
            }
            let lost = lost(&**store, FILES).await;
            self.shown.lost.extend(lost.into_iter().map(|what| format!("{what} (day {}, in {place})", self.day)));
        }
    }

    async fn day(&mut self, now_ms: u64) {
        for at in 0..DEVICES {
            if self.is_out(at) && self.day < self.back[at] {
                continue;
            }
            let edits = if self.is_out(at) { 0 } else { self.roll(3) };
            for _ in 0..edits {
                self.edit(at).await;
            }
            if self.day >= self.back[at] {
                let Times { away, cut, .. } = self.times;
                if self.connect(at, now_ms).await {
                    self.back[at] = self.day + 1 + self.roll(cut as usize) as u64;
                } else if at >= AWAY && self.roll(3) == 0 {
                    let away = 5 + self.roll(away as usize - 4) as u64;
                    self.back[at] = self.day + away;
                    self.shown.away = self.shown.away.max(away);
                }
            }
        }
        let before = self.shown.deleted;
        let done = self.collect().await;
        self.shown.held += u64::from(!done.found.holds.is_empty());
        self.shown.deleted += done.deleted.count;
        self.shown.emptied += done.emptied.documents;
        if self.fault == Fault::NoTrash && self.shown.deleted > before {
            empty_trash(self.world, &self.name).await;
        }
        self.look().await;
        let census = &done.found.census;
        let needed = census.referenced.bytes + census.files.bytes;
        self.shown.percent = self.shown.percent.max((needed + census.unreferenced.bytes) * 100 / needed.max(1));
        let (spare, trash) = (census.unreferenced.bytes, done.trash.deleted.bytes);
        let whole_percent = (needed + spare + trash) * 100 / needed.max(1);
        self.shown.whole_percent = self.shown.whole_percent.max(whole_percent);
        self.shown.above_twice += u64::from(whole_percent > 200);
        self.shown.trash_percent = trash * 100 / needed.max(1);
        if self.day.is_multiple_of(30) {
            println!(
                "day {}: files need {needed} bytes, other chunks have {spare}, the trash has {trash}; there are {} \
                 tombstones of chunks",
                self.day, census.files.chunk_tombstones
            );
        }
    }
}

/// Plays some days. A play with a fault ends when something is lost.
async fn play(seed: u64, days: u64, times: Times, fault: Fault) -> Shown {
    println!("seed {seed}, {days} days, {times:?}, fault: {fault:?}");
    let clock = Arc::new(Clock(AtomicU64::new(1_700_000_000_000)));
    let world = World::in_process_at(clock.clone()).await;
    let name = format!("{}{seed}", format!("{fault:?}").to_lowercase());
    let server = Replica::new(&world, &name).await;
    world.keep_replaced(&name).await;
    let mut devices = Vec::new();
    for at in 0..DEVICES {
        let mut device = Device::new(&world, &format!("{name}-device{at}")).await;
        device.on_demand = matches!(fault, Fault::Untold | Fault::OnDemand);
        devices.push(device);
    }
    let mut play = Play {
        world: &world,
        name: name.clone(),
        times,
        fault,
        dice: StdRng::seed_from_u64(seed),
        day: 0,
        server,
        devices,
        back: [0; DEVICES],
        was_cut: [false; DEVICES],
        infos: Map::new(),
        versions: BTreeMap::new(),
        next: 0,
        shown: Shown::default(),
    };
    if fault == Fault::Late {
        play.back[LATE] = days / 3;
    }
    // The vault as it is when the collection is switched on.
    for file in 0..FILES {
        let mut chunks = Vec::new();
        for _ in 0..12 {
            chunks.push(play.new_chunk());
        }
        play.devices[0].write(&id_of(file), &chunks, false, text).await;
        play.versions.entry(file).or_default().push(chunks);
    }
    while play.day < days && play.shown.lost.is_empty() {
        play.day += 1;
        let now_ms = clock.0.fetch_add(DAY_MS, Ordering::Relaxed);
        play.day(now_ms).await;
    }
    // All come home.
    for _ in 0..2 {
        for at in 0..DEVICES {
            let server = play.server.clone();
            play.devices[at].sync(&server, true).await;
        }
    }
    play.look().await;
    let trash = chunks::Trash::read(&world.documents(&name).await).await.unwrap();
    play.shown.revived = play.shown.deleted.saturating_sub(trash.deleted.count + play.shown.emptied);
    let report = world.documents(&name).await.check(|_| {}).await.unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    println!("{:?}", Shown { lost: play.shown.lost.iter().take(3).cloned().collect(), ..play.shown });
    play.shown
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_is_unreadable_in_a_year_of_collections_and_the_vault_stays_small() {
    let years: Option<u64> = std::env::var("CHUNKS_YEARS").ok().map(|years| years.parse().expect("a number"));
    for seed in 0..years.unwrap_or(1) {
        let shown = match years {
            None => play(seed, DAYS, SHORT, Fault::None).await,
            Some(_) => play(seed, 365, LONG, Fault::None).await,
        };
        assert!(shown.lost.is_empty(), "seed {seed}: {:#?}", shown.lost);
        assert!(shown.percent <= 200 && shown.whole_percent <= 300, "seed {seed}: {shown:?}");
        let enough = shown.deleted > 50 && shown.revived > 3 && shown.undone > 20 && shown.away > 10;
        let enough = enough && shown.emptied > 20 && shown.cut > 5 && shown.resolved > 0;
        assert!(enough, "seed {seed}: too little to prove anything: {shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_year_without_a_trash_is_seen_to_lose_text() {
    let shown = play(0, DAYS, SHORT, Fault::NoTrash).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trash_that_ends_when_all_have_connected_is_seen_to_lose_text() {
    let shown = play(0, DAYS, SHORT, Fault::NoTime).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trash_that_ends_while_devices_are_away_is_seen_to_lose_text() {
    let shown = play(0, DAYS, SHORT, Fault::NoPassing).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
}

/// They keep what they have, and so name it at any time.
#[tokio::test(flavor = "multi_thread")]
async fn a_trash_ends_for_no_device_that_keeps_deleted_chunks() {
    let shown = play(0, DAYS, SHORT, Fault::Untold).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
    let shown = play(0, DAYS, SHORT, Fault::OnDemand).await;
    assert!(shown.lost.is_empty() && shown.emptied == 0 && shown.deleted > 50, "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_joins_late_finds_all_text() {
    let shown = play(0, DAYS, SHORT, Fault::Late).await;
    assert!(shown.lost.is_empty() && shown.emptied > 20 && shown.deleted > 50, "{shown:?}");
}

/// It notes that it has connected, and has neither what was deleted nor sent what it wrote.
#[tokio::test(flavor = "multi_thread")]
async fn a_trash_ends_for_no_device_that_is_refused() {
    let shown = play(0, DAYS, SHORT, Fault::RefusedUntold).await;
    assert!(!shown.lost.is_empty(), "the play does not notice: {shown:?}");
    let shown = play(0, DAYS, SHORT, Fault::Refused).await;
    assert!(shown.lost.is_empty() && shown.emptied == 0 && shown.deleted > 50, "{shown:?}");
}
