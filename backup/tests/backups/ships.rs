//! Stores that are shipped while they are written, and restored as they were at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use backup::{Error, Folder, Place, Protection, Repository, RestoredShip, ShipOptions, Shipper, Stored};
use bytes::Bytes;
use engine_lsm::{LsmDatabase, LsmOptions, LsmStore};
use kv_api::{Database, DatabaseExt, RangeRequest, Read, Transaction, TransactionExt};
use model::{Environment, SystemEnvironment};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::breaking::{Breaking, Fault, Faults, NEVER};
use crate::stage::{Ends, files};

/// A clock that goes on with each look at it, so that times order everything that happens.
#[derive(Debug, Default)]
pub(crate) struct Ticks(AtomicU64);

impl Ticks {
    pub(crate) fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Ticks {
    pub(crate) fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Environment for Ticks {
    fn now_ms(&self) -> u64 {
        self.tick()
    }

    fn random(&self, bytes: &mut [u8]) {
        SystemEnvironment.random(bytes);
    }
}

/// A folder that fails now and then: before it does what it is asked for, or after.
#[derive(Debug)]
pub(crate) struct Shaky {
    root: PathBuf,
    folder: Folder,
    random: Mutex<StdRng>,
    /// One in so many operations fails; none if it is 0.
    pub(crate) fails: AtomicU64,
    is_away: AtomicBool,
}

impl Shaky {
    pub(crate) fn new(root: &Path, seed: u64) -> Arc<Self> {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        let (root, folder) = (root.to_owned(), Folder::new(root));
        Arc::new(Shaky { root, folder, random, fails: AtomicU64::new(0), is_away: AtomicBool::new(false) })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn fail(&self) -> io::Result<()> {
        let fails = self.fails.load(Ordering::Relaxed);
        let is_out = fails > 0 && self.random.lock().unwrap().random_range(0..fails) == 0;
        if is_out || self.is_away.load(Ordering::Relaxed) { Err(io::Error::other("planted")) } else { Ok(()) }
    }
}

#[async_trait]
impl Place for Shaky {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        self.fail()?;
        self.folder.create(path, content).await?;
        self.fail()
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        self.fail()?;
        self.folder.read(path).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        self.fail()?;
        self.folder.read_part(path, at, bytes).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        self.fail()?;
        self.folder.list(path).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        self.fail()?;
        self.folder.delete(path).await?;
        self.fail()
    }
}

pub(crate) async fn open(place: Arc<dyn Place>, clock: Arc<Ticks>) -> Repository {
    Repository::open_or_create(place, &Protection::None, clock).await.unwrap()
}

/// Small, so that there are many flushes.
pub(crate) fn lsm(folder: &Path) -> LsmDatabase {
    LsmDatabase::open(folder, LsmOptions::new().cache_bytes(128 << 10)).unwrap()
}

pub(crate) const COUNTER: &[u8] = b"counter";

fn row(number: u64) -> Vec<u8> {
    [b"row/", &number.to_be_bytes()[..]].concat()
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

/// Counts, and leaves a row with the number: so the rows of any moment follow from the counter. Some rows are removed again.
pub(crate) fn count(database: &LsmDatabase, filler: &[u8]) -> u64 {
    futures_executor::block_on(database.run(|transaction, _| async move {
        let old = transaction.get(COUNTER, Read::Serializable).await?;
        let next = old.map_or(0, |old| number(&old)) + 1;
        transaction.set(COUNTER, &next.to_be_bytes()[..]);
        transaction.set(row(next), filler.to_vec());
        if next.is_multiple_of(7) {
            transaction.clear_range(&row(next - 3), &row(next - 2));
        }
        Ok::<_, kv_api::Error>(next)
    }))
    .unwrap()
}

/// The counter, after all rows were compared with it.
pub(crate) fn counted(database: &LsmDatabase) -> u64 {
    futures_executor::block_on(async {
        let transaction = database.begin().unwrap();
        let counter = transaction.get(COUNTER, Read::Snapshot).await.unwrap().map_or(0, |counter| number(&counter));
        let rows = transaction.get_all(RangeRequest::keys("row/", "row0"), Read::Snapshot).await.unwrap();
        let found: Vec<u64> = rows.iter().map(|row| number(&row.key[4..])).collect();
        let is_removed = |number: u64| (number + 3).is_multiple_of(7) && number + 3 <= counter;
        let expected: Vec<u64> = (1..=counter).filter(|number| !is_removed(*number)).collect();
        assert_eq!(found, expected, "exactly the rows of one moment");
        counter
    })
}

async fn restored(repository: &Repository, folder: &Path, at: Option<u64>) -> backup::Result<(RestoredShip, u64)> {
    let restored = repository.restore_shipped::<LsmStore>(folder, at, &mut |_| {}).await?;
    let opened = LsmDatabase::open(folder, LsmOptions::new().copy()).unwrap();
    let counter = counted(&opened);
    opened.close().unwrap();
    Ok((restored, counter))
}

/// When each number began to be committed, and when that was acknowledged.
type Oracle = Arc<Mutex<Vec<(u64, u64, u64)>>>;

fn write(database: &LsmDatabase, clock: &Ticks, oracle: &Oracle, filler: &[u8]) {
    let begun = clock.tick();
    let number = count(database, filler);
    let acknowledged = clock.tick();
    oracle.lock().unwrap().push((number, begun, acknowledged));
}

fn check(oracle: &Oracle, at: u64, found: u64) {
    for (number, begun, acknowledged) in &*oracle.lock().unwrap() {
        assert!(
            *acknowledged > at || *number <= found,
            "{number} was acknowledged before {at}, but the state is {found}"
        );
        assert!(*begun < at || *number > found, "{number} began after {at}, but the state is {found}");
    }
}

pub(crate) fn seed() -> u64 {
    let seed = crate::random::seed();
    println!("BACKUP_SEED={seed}");
    seed
}

/// The place as a process sees it that a fault hits at any operation.
pub(crate) fn breaking(random: &mut StdRng, place: Arc<dyn Place>, root: &Path, faults: &Arc<Faults>) -> Arc<Breaking> {
    let left = if random.random_range(0..4) == 0 { NEVER } else { random.random_range(0..60) };
    Breaking::new(place, root, Fault::random(random), left, faults)
}

/// Writers write, while a shipper ships to a place that fails, is killed and started again, as is the store. Every restored
/// state was acknowledged at the time that it names.
async fn random_round(seed: u64, faults: &Arc<Faults>) {
    let mut random = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().unwrap();
    let (clock, oracle) = (Arc::new(Ticks::default()), Oracle::default());
    let place = Shaky::new(&root.path().join("place"), random.random());
    let repository = open(place.clone(), clock.clone()).await;
    let options = ShipOptions {
        backlog: random.random_range(10_000..200_000),
        base_after: random.random_range(20_000..200_000),
        base_after_ms: random.random_range(100..3_000),
        keep_ms: random.random_range(500..6_000),
    };
    let filler: Vec<u8> = (0..3_000).map(|_| random.random()).collect();
    for _ in 0..random.random_range(1..4) {
        let database = lsm(&root.path().join("store"));
        let is_over = AtomicBool::new(false);
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for at in 0..2 {
                let (database, clock, oracle, is_over) = (&database, &clock, &oracle, &is_over);
                let (written, filler) = (&written, &filler[..(at + 1) * 1_400]);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Acquire) {
                        write(database, clock, oracle, filler);
                        written.fetch_add(1, Ordering::Release);
                    }
                });
            }
            let _ends = Ends(&is_over);
            futures_executor::block_on(async {
                for _ in 0..random.random_range(1..4) {
                    place.fails.store([0, 5, 20][random.random_range(0..3)], Ordering::Relaxed);
                    let breaking = breaking(&mut random, place.clone(), &root.path().join("place"), faults);
                    let Ok(broken) = Repository::open(breaking.clone(), &Protection::None, clock.clone()).await else {
                        continue;
                    };
                    let shipper = Shipper::new(broken, Arc::new(database.clone()), "store", options);
                    for _ in 0..random.random_range(5..40) {
                        if breaking.is_killed() {
                            break;
                        }
                        // Not a time: so many commits further.
                        let until = written.load(Ordering::Acquire) + random.random_range(0..15);
                        while written.load(Ordering::Acquire) < until {
                            std::thread::yield_now();
                        }
                        let outcome = match random.random_range(0..8) {
                            0 => {
                                database.compact(b"row/", b"row0");
                                Ok(())
                            }
                            1..4 => shipper.ship_tables().await.map(drop),
                            _ => shipper.ship_log().await,
                        };
                        match outcome {
                            Ok(()) => {}
                            Err(Error::Io { .. }) => {
                                assert!(place.fails.load(Ordering::Relaxed) > 0 || breaking.has_happened());
                            }
                            // The writers were faster than the small backlog: the next call tries again.
                            Err(Error::Refused(said)) if said.contains("grew too fast") => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        });
        place.fails.store(0, Ordering::Relaxed);
        if random.random() {
            let shipper = Shipper::new(repository.clone(), Arc::new(database.clone()), "store", options);
            shipper.ship_log().await.unwrap();
            while !shipper.ship_tables().await.unwrap() {}
            let last = counted(&database);
            let (_, found) = restored(&repository, &root.path().join("newest"), None).await.unwrap();
            assert_eq!(found, last, "nothing of what was shipped is missing");
            std::fs::remove_dir_all(root.path().join("newest")).unwrap();
        }
        database.close().unwrap();
    }
    let verified = repository.verify(&mut |_| {}).await.unwrap();
    assert_eq!(verified.problems, []);
    let Some(span) = repository.shipped().await.unwrap() else { return };
    let last = oracle.lock().unwrap().last().unwrap().2;
    let mut states = std::collections::BTreeMap::new();
    for at in 0..8 {
        let wanted = random.random_range(span.from_ms..=last + 10);
        let folder = root.path().join(format!("restored{at}"));
        let (restored, found) = restored(&repository, &folder, Some(wanted)).await.unwrap();
        assert!(restored.base_ms <= restored.ms && restored.ms <= wanted, "{restored:?} at {wanted}");
        check(&oracle, restored.ms, found);
        states.insert(restored.ms, found);
        std::fs::remove_dir_all(folder).unwrap();
    }
    assert!(states.values().is_sorted(), "a later state has no less: {states:?}");
    let early = restored(&repository, &root.path().join("early"), Some(span.from_ms - 1)).await.unwrap_err();
    assert!(early.to_string().contains("nothing was shipped here by then"), "{early}");
    assert!(!root.path().join("early").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_restored_state_was_acknowledged_at_the_time_that_it_names() {
    let faults = Arc::new(Faults::default());
    faults.rounds(10, async |seed, _| random_round(seed, &faults).await).await;
}

/// A store with a few rows that is shipped step by step.
pub(crate) struct Stage {
    pub(crate) root: tempfile::TempDir,
    pub(crate) clock: Arc<Ticks>,
    pub(crate) place: Arc<Shaky>,
    pub(crate) repository: Repository,
    pub(crate) database: LsmDatabase,
}

impl Stage {
    pub(crate) async fn new() -> Stage {
        let root = tempfile::tempdir().unwrap();
        let clock = Arc::new(Ticks::default());
        let place = Shaky::new(&root.path().join("place"), 0);
        let repository = open(place.clone(), clock.clone()).await;
        let database = lsm(&root.path().join("store"));
        Stage { clock, place, repository, database, root }
    }

    pub(crate) fn shipper(&self, options: ShipOptions) -> Shipper {
        Shipper::new(self.repository.clone(), Arc::new(self.database.clone()), "store", options)
    }

    pub(crate) fn write(&self, times: usize) -> u64 {
        (0..times).fold(0, |_, _| count(&self.database, &[7; 1_000]))
    }

    pub(crate) async fn restored(&self, at: Option<u64>) -> (RestoredShip, u64) {
        let folder = self.root.path().join(format!("restored{}", self.clock.tick()));
        restored(&self.repository, &folder, at).await.unwrap()
    }

    pub(crate) fn files(&self, under: &str) -> Vec<PathBuf> {
        let folder = self.root.path().join("place/ship").join(under);
        if folder.exists() { files(&folder) } else { Vec::new() }
    }
}

#[tokio::test]
async fn each_cut_can_be_restored() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions::default());
    let mut states = Vec::new();
    for round in 0..5 {
        let last = stage.write(20);
        shipper.ship_log().await.unwrap();
        states.push((stage.clock.tick(), last));
        if round == 0 {
            assert!(shipper.ship_tables().await.unwrap());
        }
        assert!(!shipper.ship_tables().await.unwrap(), "nothing is due");
    }
    stage.write(5);
    for (at, expected) in states {
        let (restored, found) = stage.restored(Some(at)).await;
        assert_eq!(found, expected);
        assert!(restored.ms < at && restored.next_ms.is_none_or(|next| next > at));
    }
    assert_eq!(stage.restored(None).await.1, 100, "what was not shipped is not there");
    let span = stage.repository.shipped().await.unwrap().unwrap();
    assert_eq!((span.store.as_str(), span.bases), ("store", 1));
}

#[tokio::test]
async fn an_idle_store_ships_nothing_and_is_up_to_date() {
    let stage = Stage::new().await;
    stage.write(3);
    let shipper = stage.shipper(ShipOptions::default());
    shipper.ship_log().await.unwrap();
    assert_eq!(shipper.shipped().until_ms, 0, "no tables yet");
    assert!(shipper.ship_tables().await.unwrap());
    let (before, shipped) = (stage.files(""), shipper.shipped());
    shipper.ship_log().await.unwrap();
    assert!(!shipper.ship_tables().await.unwrap());
    assert_eq!(stage.files(""), before);
    assert!(shipper.shipped().until_ms > shipped.until_ms);
    assert!(!stage.root.path().join("store/.couch-layer-links-of-shipped-tables").exists(), "no links are left");
}

#[tokio::test]
async fn a_later_shipper_takes_over_and_the_earlier_one_stops() {
    let stage = Stage::new().await;
    let (one, other) = (stage.shipper(ShipOptions::default()), stage.shipper(ShipOptions::default()));
    stage.write(20);
    one.ship_log().await.unwrap();
    one.ship_tables().await.unwrap();
    let copy = stage.root.path().join("copy");
    stage.database.snapshot(&copy).unwrap();
    let copied = LsmDatabase::open(&copy, LsmOptions::new().copy()).unwrap();
    let other = {
        drop(other);
        Shipper::new(stage.repository.clone(), Arc::new(copied.clone()), "store", ShipOptions::default())
    };
    let at = stage.clock.tick();
    other.ship_log().await.unwrap();
    let before = stage.files("");
    stage.write(1);
    let refused = one.ship_log().await.unwrap_err().to_string();
    assert!(refused.contains("another server ships to this place"), "{refused}");
    assert!(one.is_fenced() && one.ship_log().await.is_err() && one.ship_tables().await.is_err());
    assert_eq!(stage.files(""), before, "it writes nothing any more");
    assert_eq!(stage.restored(None).await.1, 20, "until the later one has its tables");
    for _ in 0..5 {
        count(&copied, b"other");
    }
    other.ship_log().await.unwrap();
    assert!(other.ship_tables().await.unwrap());
    assert_eq!(stage.restored(None).await.1, 25);
    assert_eq!(stage.restored(Some(at)).await.1, 20);
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
}

#[tokio::test]
async fn a_place_has_the_log_of_one_store() {
    let stage = Stage::new().await;
    stage.write(1);
    stage.shipper(ShipOptions::default()).ship_log().await.unwrap();
    let other = Shipper::new(
        stage.repository.clone(),
        Arc::new(stage.database.clone()),
        "another store",
        ShipOptions::default(),
    );
    let before = stage.files("");
    let refused = other.ship_log().await.unwrap_err().to_string();
    assert!(refused.contains("this place has the log of the store store"), "{refused}");
    assert_eq!(stage.files(""), before);
}

/// A place that replaces files, as an object store without conditional writes.
#[derive(Debug)]
struct Replacing(Folder);

#[async_trait]
impl Place for Replacing {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        self.0.delete(path).await?;
        self.0.create(path, content).await
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        self.0.read(path).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        self.0.read_part(path, at, bytes).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        self.0.list(path).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        self.0.delete(path).await
    }
}

#[tokio::test]
async fn a_place_that_replaces_files_is_refused() {
    let stage = Stage::new().await;
    let place = Arc::new(Replacing(Folder::new(stage.root.path().join("replacing"))));
    let repository = open(place, stage.clock.clone()).await;
    let shipper = Shipper::new(repository, Arc::new(stage.database.clone()), "store", ShipOptions::default());
    for _ in 0..2 {
        let refused = shipper.ship_log().await.unwrap_err().to_string();
        assert!(refused.contains("conditional writes"), "{refused}");
    }
    assert!(!stage.root.path().join("replacing/ship/log").exists());
}

/// The server goes on while the place is away. What waits is bounded: then the ship begins again with the tables.
#[tokio::test]
async fn a_place_that_was_away_gets_the_tables_again() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions { backlog: 30_000, ..ShipOptions::default() });
    stage.write(10);
    shipper.ship_log().await.unwrap();
    shipper.ship_tables().await.unwrap();
    let at = stage.clock.tick();
    for (writes, begun) in [(5, 1), (100, 2)] {
        stage.place.is_away.store(true, Ordering::Relaxed);
        let last = stage.write(writes);
        assert!(matches!(shipper.ship_log().await, Err(Error::Io { .. })));
        stage.write(writes);
        stage.place.is_away.store(false, Ordering::Relaxed);
        shipper.ship_log().await.unwrap();
        shipper.ship_tables().await.unwrap();
        assert_eq!(shipper.shipped().begun, begun);
        assert_eq!(stage.restored(None).await.1, last + writes as u64);
    }
    assert_eq!(stage.restored(Some(at)).await.1, 10);
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
}

/// A folder that is not mounted is an empty one. What went there would be missing from the place.
#[tokio::test]
async fn a_place_that_is_not_mounted_gets_nothing() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions::default());
    stage.write(10);
    shipper.ship_log().await.unwrap();
    shipper.ship_tables().await.unwrap();
    let (place, away) = (stage.root.path().join("place"), stage.root.path().join("away"));
    std::fs::rename(&place, &away).unwrap();
    std::fs::create_dir(&place).unwrap();
    let until_ms = shipper.shipped().until_ms;
    // It looks for another shipper only now and then.
    while shipper.ship_log().await.is_ok() {}
    stage.write(10);
    let failed = shipper.ship_log().await.unwrap_err().to_string();
    assert!(failed.contains("is it mounted?"), "{failed}");
    assert_eq!(files(&place), Vec::<PathBuf>::new());
    std::fs::remove_dir(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    shipper.ship_log().await.unwrap();
    assert!(shipper.shipped().until_ms > until_ms && shipper.shipped().begun == 1);
    assert_eq!(stage.restored(None).await.1, 20);
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
}

#[tokio::test]
async fn a_flipped_bit_is_found_and_named() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut stage = Stage::new().await;
    // All of it is in tables after this, and links that a kill left are gone.
    stage.write(40);
    let store = stage.root.path().join("store");
    stage.database.close().unwrap();
    stage.database = lsm(&stage.root.path().join("another"));
    std::fs::create_dir_all(store.join(".couch-layer-links-of-shipped-tables/data")).unwrap();
    stage.database = lsm(&store);
    assert!(!store.join(".couch-layer-links-of-shipped-tables").exists());
    let shipper = stage.shipper(ShipOptions::default());
    for _ in 0..3 {
        stage.write(40);
        shipper.ship_log().await.unwrap();
        shipper.ship_tables().await.unwrap();
    }
    let verified = stage.repository.verify(&mut |_| {}).await.unwrap();
    assert_eq!((verified.problems, verified.bases), (Vec::new(), 1));
    let all = stage.files("");
    assert!(all.len() >= 6, "{all:?}");
    for file in &all {
        let sound = std::fs::read(file).unwrap();
        for _ in 0..6 {
            let mut flipped = sound.clone();
            let at = random.random_range(0..flipped.len());
            flipped[at] ^= 1 << random.random_range(0..8);
            std::fs::write(file, flipped).unwrap();
            let problems = stage.repository.verify(&mut |_| {}).await.unwrap().problems;
            let is_named = problems.iter().any(|(named, _)| file.ends_with(named));
            assert!(is_named, "byte {at} of {}: {problems:?}", file.display());
        }
        std::fs::write(file, sound).unwrap();
    }
    // A file that is gone is noticed too, if anything comes after it.
    for file in all.iter().filter(|file| !file.ends_with("ship/store")) {
        let is_last_of_log = Some(file) == stage.files("log").last();
        let is_base = stage.files("base").contains(file);
        let gone = std::fs::read(file).unwrap();
        std::fs::remove_file(file).unwrap();
        let problems = stage.repository.verify(&mut |_| {}).await.unwrap().problems;
        assert_eq!(problems.is_empty(), is_last_of_log || is_base, "{}: {problems:?}", file.display());
        let outcome = restored(&stage.repository, &stage.root.path().join("damaged"), None).await;
        let is_whole = outcome.is_ok_and(|(restored, _)| restored.ended_by.is_none());
        assert_eq!(is_whole, is_last_of_log, "{}", file.display());
        let _ = std::fs::remove_dir_all(stage.root.path().join("damaged"));
        std::fs::write(file, gone).unwrap();
    }
}

#[tokio::test]
async fn what_is_too_old_goes_and_each_kept_second_can_be_restored() {
    let stage = Stage::new().await;
    let options = ShipOptions { base_after: 1, keep_ms: 100, ..ShipOptions::default() };
    let shipper = stage.shipper(options);
    let mut states = Vec::new();
    for _ in 0..60 {
        let last = stage.write(20);
        shipper.ship_log().await.unwrap();
        states.push((stage.clock.tick(), last));
        shipper.ship_tables().await.unwrap();
    }
    let span = stage.repository.shipped().await.unwrap().unwrap();
    assert!((2..40).contains(&span.bases), "{span:?}");
    let now = stage.clock.tick();
    assert!(span.from_ms + 100 <= now, "{span:?} at {now}");
    assert!(stage.files("log").len() < 60);
    for (at, expected) in states.into_iter().filter(|(at, _)| *at >= span.from_ms).step_by(7) {
        assert_eq!(stage.restored(Some(at)).await.1, expected);
    }
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
    // Tables that an interrupted base left go with the next one.
    let left = stage.root.path().join("place/ship/tables/9999-0");
    std::fs::write(&left, "left").unwrap();
    stage.write(100);
    shipper.ship_log().await.unwrap();
    while !shipper.ship_tables().await.unwrap() {}
    assert!(!left.exists());
}

/// The clock of a shipper that goes back.
#[derive(Debug)]
pub(crate) struct Shifted(pub(crate) Arc<Ticks>, pub(crate) AtomicU64);

impl Environment for Shifted {
    fn now_ms(&self) -> u64 {
        self.0.tick() + self.1.load(Ordering::Relaxed)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.0.random(bytes);
    }
}

#[tokio::test]
async fn a_clock_that_went_back_begins_the_log_again() {
    let stage = Stage::new().await;
    let clock = Arc::new(Shifted(stage.clock.clone(), AtomicU64::new(1_000_000)));
    let repository = Repository::open(stage.place.clone(), &Protection::None, clock.clone()).await.unwrap();
    let shipper = Shipper::new(repository, Arc::new(stage.database.clone()), "store", ShipOptions::default());
    stage.write(10);
    shipper.ship_log().await.unwrap();
    shipper.ship_tables().await.unwrap();
    stage.write(10);
    // By less than a second: it stands still.
    clock.1.store(999_500, Ordering::Relaxed);
    shipper.ship_log().await.unwrap();
    assert_eq!(shipper.shipped().begun, 1);
    stage.write(10);
    clock.1.store(0, Ordering::Relaxed);
    shipper.ship_log().await.unwrap();
    assert_eq!(shipper.shipped().begun, 2);
    shipper.ship_tables().await.unwrap();
    let at = stage.clock.tick();
    stage.write(10);
    shipper.ship_log().await.unwrap();
    assert_eq!(stage.restored(Some(at)).await.1, 30);
    assert_eq!(stage.restored(Some(at + 100_000)).await.1, 40, "the newest that is not later");
    assert_eq!(stage.restored(None).await.1, 40);
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
}

/// A shipper that is killed at each operation of the place leaves what can be restored, and the next one goes on.
#[tokio::test]
async fn a_killed_shipper_leaves_what_can_be_restored() {
    for operation in 0..40 {
        let stage = Stage::new().await;
        let first = stage.shipper(ShipOptions::default());
        stage.write(15);
        first.ship_log().await.unwrap();
        first.ship_tables().await.unwrap();
        stage.write(15);
        drop(first);
        // The place does not answer any more from this operation on, after or before it did what it was asked for.
        let dying = Arc::new(Dying { folder: stage.place.clone(), left: AtomicU64::new(operation) });
        let repository = open(dying.clone(), stage.clock.clone()).await;
        let killed = Shipper::new(repository, Arc::new(stage.database.clone()), "store", ShipOptions::default());
        let mut is_killed = false;
        for _ in 0..3 {
            is_killed |= killed.ship_log().await.is_err() || killed.ship_tables().await.is_err();
        }
        drop(killed);
        let (restored, found) = stage.restored(None).await;
        assert!([15, 30].contains(&found), "{restored:?} after {operation}");
        let next = stage.shipper(ShipOptions::default());
        stage.write(15);
        next.ship_log().await.unwrap();
        assert!(next.ship_tables().await.unwrap());
        assert_eq!(stage.restored(None).await.1, 45);
        assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
        if !is_killed {
            assert!(operation > 15, "it was killed at {operation} places only");
            return;
        }
    }
}

#[derive(Debug)]
struct Dying {
    folder: Arc<Shaky>,
    left: AtomicU64,
}

impl Dying {
    /// Each operation has two points: before it and after it.
    fn live(&self) -> io::Result<()> {
        let lived = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        lived.map(drop).map_err(|_| io::Error::other("killed"))
    }
}

#[async_trait]
impl Place for Dying {
    async fn create(&self, path: &str, content: Bytes) -> io::Result<()> {
        self.live()?;
        self.folder.create(path, content).await?;
        self.live()
    }

    async fn read(&self, path: &str) -> io::Result<Bytes> {
        match path {
            "repository.json" => {}
            _ => self.live()?,
        }
        self.folder.read(path).await
    }

    async fn read_part(&self, path: &str, at: u64, bytes: usize) -> io::Result<Bytes> {
        self.folder.read_part(path, at, bytes).await
    }

    async fn list(&self, path: &str) -> io::Result<Vec<Stored>> {
        self.live()?;
        self.folder.list(path).await
    }

    async fn delete(&self, path: &str) -> io::Result<()> {
        self.live()?;
        self.folder.delete(path).await?;
        self.live()
    }
}
