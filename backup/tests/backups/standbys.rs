//! Standbys that follow what is shipped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backup::{
    Error, Followed, Follower, Protection, Repository, ShipOptions, Shipper, StandbyFolder, promote_standby,
    replace_standby, standby_folder,
};
use bytes::Bytes;
use engine_lsm::{LsmDatabase, LsmOptions, LsmStore};
use kv_api::{Database, Direction, Read, Transaction, error};
use occ::store::{Snapshot, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::breaking::{Breaking, Faults};
use crate::ships::{COUNTER, Shaky, Stage, Ticks, breaking, count, counted, lsm, open};
use crate::ships_gone_wrong::flip;

/// A standby that is open.
struct Standby {
    database: LsmDatabase,
    follower: Follower,
    folder: PathBuf,
    repository: Repository,
}

impl Standby {
    /// Opens the standby of a folder. Restores it if it is not there.
    async fn open(repository: &Repository, folder: &Path) -> backup::Result<Standby> {
        if standby_folder(folder)? == StandbyFolder::Missing {
            repository.restore_standby::<LsmStore>(folder, 0, &mut |_| {}).await?;
            replace_standby::<LsmStore>(folder)?;
        }
        assert_eq!(standby_folder(folder)?, StandbyFolder::Follows);
        let options = LsmOptions::new().cache_bytes(128 << 10).standby();
        let database = LsmDatabase::open(folder, options).unwrap();
        let follower = Follower::new(repository.clone(), Arc::new(database.clone()), folder).await?;
        Ok(Standby { database, follower, folder: folder.to_owned(), repository: repository.clone() })
    }

    /// Closes the store, as a server that stops.
    fn close(self) -> PathBuf {
        self.database.close().unwrap();
        self.folder
    }

    /// Restores anew.
    async fn anew(self, from: u64) -> backup::Result<Standby> {
        let restored = self.repository.restore_standby::<LsmStore>(&self.folder, from, &mut |_| {}).await;
        let repository = self.repository.clone();
        let folder = self.close();
        if restored.is_ok() {
            replace_standby::<LsmStore>(&folder)?;
        }
        Standby::open(&repository, &folder).await
    }

    /// Follows until nothing newer is there. Fails if it must be restored, from a segment on, and why.
    async fn catch_up(&mut self) -> Result<(), (u64, String)> {
        loop {
            match self.follower.follow().await.unwrap() {
                Followed::Applied => {
                    counted(&self.database);
                }
                Followed::UpToDate if self.follower.has_everything().await.unwrap() => return Ok(()),
                Followed::UpToDate => {}
                Followed::Broken { from, reason } => return Err((from, reason)),
            }
        }
    }
}

/// All rows, those of the engine too.
fn rows(database: &LsmDatabase) -> Vec<(Bytes, Bytes)> {
    let snapshot = database.store().snapshot().unwrap();
    snapshot.range(b"", b"\xff\xff", Direction::Forward).collect::<kv_api::Result<_>>().unwrap()
}

/// A shipper whose process is killed or whose disk is full at any operation, and its place.
async fn shipper_of(
    random: &mut StdRng,
    place: &Arc<Shaky>,
    whole: &Repository,
    database: &LsmDatabase,
    clock: &Arc<Ticks>,
    options: ShipOptions,
    faults: &Arc<Faults>,
) -> (Option<Arc<Breaking>>, Shipper) {
    let breaking = breaking(random, place.clone(), place.root(), faults);
    let (broken, repository) = match Repository::open(breaking.clone(), &Protection::None, clock.clone()).await {
        Ok(repository) => (Some(breaking), repository),
        Err(_) => (None, whole.clone()),
    };
    (broken, Shipper::new(repository, Arc::new(database.clone()), "store", options))
}

/// Writes, ships, and kills of the store, the shipper and the standby, in random order. The standby has the rows of one
/// moment always, and all rows of the source whenever everything is shipped.
async fn random_round(seed: u64, faults: &Arc<Faults>) {
    let mut random = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().unwrap();
    let clock = Arc::new(Ticks::default());
    let place = Shaky::new(&root.path().join("place"), random.random());
    let repository = open(place.clone(), clock.clone()).await;
    let options = ShipOptions {
        backlog: random.random_range(5_000..200_000),
        base_after: random.random_range(20_000..200_000),
        base_after_ms: random.random_range(100..3_000),
        keep_ms: random.random_range(100..6_000),
    };
    let filler: Vec<u8> = (0..3_000).map(|_| random.random()).collect();
    let folder = root.path().join("standby");
    let (mut standby, mut times_anew): (Option<Standby>, u32) = (None, 0);
    let mut database = lsm(&root.path().join("store"));
    let (mut broken, mut shipper) =
        shipper_of(&mut random, &place, &repository, &database, &clock, options, faults).await;
    for _ in 0..random.random_range(100..300) {
        if broken.as_ref().is_some_and(|broken| broken.is_killed()) {
            drop(shipper);
            (broken, shipper) = shipper_of(&mut random, &place, &repository, &database, &clock, options, faults).await;
        }
        match random.random_range(0..20) {
            0 => {
                // The store ends, with or without its last segment.
                if random.random() {
                    let _ = shipper.ship_log().await;
                }
                drop(shipper);
                database.close().unwrap();
                drop(database);
                database = lsm(&root.path().join("store"));
                (broken, shipper) =
                    shipper_of(&mut random, &place, &repository, &database, &clock, options, faults).await;
            }
            1 => database.compact(b"row/", b"row0"),
            2 => place.fails.store([0, 0, 5][random.random_range(0..3)], Ordering::Relaxed),
            3 => clock.pass(random.random_range(0..500)),
            4 => {
                if let Some(closed) = standby.take().map(Standby::close) {
                    assert_eq!(standby_folder(&closed).unwrap(), StandbyFolder::Follows);
                }
            }
            5..9 => drop(shipper.ship_log().await),
            9..11 => drop(shipper.ship_tables().await),
            11..14 => {
                let Some(open) = &mut standby else {
                    // Some are killed while they restore, or while they follow.
                    let breaking = breaking(&mut random, place.clone(), &root.path().join("place"), faults);
                    if let Ok(broken) = Repository::open(breaking, &Protection::None, clock.clone()).await {
                        standby = Standby::open(&broken, &folder).await.ok();
                    }
                    continue;
                };
                match open.follower.follow().await {
                    Ok(Followed::Broken { from, .. }) if place.fails.load(Ordering::Relaxed) == 0 => {
                        times_anew += 1;
                        standby = standby.take().unwrap().anew(from).await.ok();
                    }
                    Ok(_) => {}
                    // As if it was killed.
                    Err(Error::Io { .. }) => drop(standby.take().map(Standby::close)),
                    Err(error) => panic!("{error}"),
                }
                if let Some(open) = &standby {
                    counted(&open.database);
                }
            }
            _ => (0..random.random_range(1..6)).for_each(|_| {
                count(&database, &filler);
            }),
        }
    }
    place.fails.store(0, Ordering::Relaxed);
    drop(shipper);
    let shipper = Shipper::new(repository.clone(), Arc::new(database.clone()), "store", options);
    shipper.ship_log().await.unwrap();
    while !shipper.ship_tables().await.unwrap() {
        count(&database, &filler);
        clock.pass(5_000);
        shipper.ship_log().await.unwrap();
    }
    shipper.ship_log().await.unwrap();
    drop(standby.map(Standby::close));
    let mut open = Standby::open(&repository, &folder).await.unwrap();
    if let Err((from, _)) = open.catch_up().await {
        open = open.anew(from).await.unwrap();
        open.catch_up().await.unwrap();
    }
    assert_eq!(rows(&open.database), rows(&database));
    println!("restored anew {times_anew} times");
    open.close();
    database.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_has_the_rows_of_its_source() {
    let faults = Arc::new(Faults::default());
    faults.rounds(10, async |seed, _| random_round(seed, &faults).await).await;
}

async fn shipped(stage: &Stage, options: ShipOptions) -> Shipper {
    stage.write(20);
    let shipper = stage.shipper(options);
    shipper.ship_log().await.unwrap();
    assert!(shipper.ship_tables().await.unwrap());
    shipper
}

#[tokio::test]
async fn a_standby_reads_watches_and_refuses_writes() {
    let stage = Stage::new().await;
    let shipper = shipped(&stage, ShipOptions::default()).await;
    let folder = stage.root.path().join("standby");
    let mut standby = Standby::open(&stage.repository, &folder).await.unwrap();
    assert_eq!(counted(&standby.database), 20);
    let transaction = standby.database.begin().unwrap();
    let old = counter(&transaction).await;
    let watching = standby.database.begin().unwrap();
    let watch = watching.watch(COUNTER);
    watching.commit().await.unwrap();
    stage.write(5);
    shipper.ship_log().await.unwrap();
    standby.catch_up().await.unwrap();
    watch.await.unwrap();
    assert_eq!(counted(&standby.database), 25);
    assert_eq!(counter(&transaction).await, old, "a transaction stays where it began");
    assert_eq!(standby.follower.follow().await.unwrap(), Followed::UpToDate);

    drop((transaction, watching));
    let before = rows(&standby.database);
    let transaction = standby.database.begin().unwrap();
    transaction.set(b"own", b"row");
    assert_eq!(transaction.commit().await.unwrap_err().code(), error::TRANSACTION_READ_ONLY);
    assert_eq!(rows(&standby.database), before);
    drop(transaction);
    let folder = standby.close();
    assert!(LsmDatabase::open(&folder, LsmOptions::new()).unwrap_err().to_string().contains("is a snapshot"));

    // It goes on where it was, over a segment of which it has a part.
    stage.write(5);
    shipper.ship_log().await.unwrap();
    let note = std::fs::read(folder.join("standby.json")).unwrap();
    let mut standby = Standby::open(&stage.repository, &folder).await.unwrap();
    standby.catch_up().await.unwrap();
    let folder = standby.close();
    std::fs::write(folder.join("standby.json"), note).unwrap();
    let mut standby = Standby::open(&stage.repository, &folder).await.unwrap();
    standby.catch_up().await.unwrap();
    assert_eq!(rows(&standby.database), rows(&stage.database));
    assert!(stage.database.replay(occ::store::Batch::new(1)).is_err(), "a store that takes writes follows nobody");
}

async fn counter(transaction: &impl Transaction) -> Option<Bytes> {
    transaction.get(COUNTER, Read::Snapshot).await.unwrap()
}

#[tokio::test]
async fn what_is_missing_or_damaged_is_never_applied() {
    let stage = Stage::new().await;
    let options = ShipOptions { base_after: 30_000, ..ShipOptions::default() };
    let shipper = shipped(&stage, options).await;
    let folder = stage.root.path().join("standby");
    let mut standby = Standby::open(&stage.repository, &folder).await.unwrap();
    for is_damaged in [true, false] {
        for _ in 0..2 {
            stage.write(5);
            shipper.ship_log().await.unwrap();
        }
        let segments = stage.files("log");
        let file = &segments[segments.len() - 2];
        match is_damaged {
            true => flip(file),
            false => std::fs::remove_file(file).unwrap(),
        }
        let before = rows(&standby.database);
        let (from, reason) = standby.catch_up().await.unwrap_err();
        assert!(reason.contains(if is_damaged { "is damaged" } else { "is missing" }), "{reason}");
        assert_eq!(rows(&standby.database), before, "it stays as it was");
        let refused = stage.repository.restore_standby::<LsmStore>(&folder, from, &mut |_| {}).await.unwrap_err();
        assert!(refused.to_string().contains("no tables were shipped since"), "{refused}");
        stage.write(60);
        shipper.ship_log().await.unwrap();
        while !shipper.ship_tables().await.unwrap() {}
        standby = standby.anew(from).await.unwrap();
        standby.catch_up().await.unwrap();
        assert_eq!(rows(&standby.database), rows(&stage.database));
    }
}

#[tokio::test]
async fn a_place_that_is_away_is_not_an_idle_one() {
    let stage = Stage::new().await;
    let _shipper = shipped(&stage, ShipOptions::default()).await;
    let mut standby = Standby::open(&stage.repository, &stage.root.path().join("standby")).await.unwrap();
    standby.catch_up().await.unwrap();
    let (place, away) = (stage.root.path().join("place"), stage.root.path().join("away"));
    std::fs::rename(&place, &away).unwrap();
    let gone = |error: Error| error.to_string().contains("is it mounted?");
    assert!(gone(standby.follower.has_everything().await.unwrap_err()));
    while !standby.follower.follow().await.is_err_and(gone) {}
    std::fs::rename(&away, &place).unwrap();
    standby.catch_up().await.unwrap();
}

#[tokio::test]
async fn a_promoted_standby_follows_no_more() {
    let stage = Stage::new().await;
    let _shipper = shipped(&stage, ShipOptions::default()).await;
    let folder = stage.root.path().join("standby");
    assert_eq!(standby_folder(&folder).unwrap(), StandbyFolder::Missing);
    let standby = Standby::open(&stage.repository, &folder).await.unwrap();
    let refused = replace_standby::<LsmStore>(&folder).unwrap_err();
    assert!(refused.to_string().contains("open in another process"), "{refused}");
    promote_standby(&folder).unwrap();
    standby.close();
    assert_eq!(standby_folder(&folder).unwrap(), StandbyFolder::Promoted);
    assert!(replace_standby::<LsmStore>(&folder).is_err());
    disk::folder::take_into_use(&folder).unwrap();
    assert_eq!(standby_folder(&folder).unwrap(), StandbyFolder::Promoted);
    assert_eq!(counted(&lsm(&folder)), 20);
    // Not a store that never followed.
    let refused = standby_folder(&stage.root.path().join("store")).unwrap_err().to_string();
    assert!(refused.contains("has a store of its own"), "{refused}");
    assert!(promote_standby(&stage.root.path().join("store")).is_err());
}

/// A kill between the renames, or before what was replaced is removed.
#[tokio::test]
async fn an_interrupted_replacement_is_finished() {
    let stage = Stage::new().await;
    let _shipper = shipped(&stage, ShipOptions::default()).await;
    let folder = stage.root.path().join("standby");
    let beside = |ending: &str| folder.with_extension(ending);
    Standby::open(&stage.repository, &folder).await.unwrap().close();
    stage.repository.restore_standby::<LsmStore>(&folder, 0, &mut |_| {}).await.unwrap();
    std::fs::rename(&folder, beside("standby-old")).unwrap();
    assert_eq!(standby_folder(&folder).unwrap(), StandbyFolder::Follows);
    assert!(!beside("standby-old").exists() && !beside("standby-new").exists());
    // Parts of folders whose removal was interrupted.
    for left in ["standby-new", "standby-old", "standby-removed"] {
        std::fs::create_dir(beside(left)).unwrap();
        std::fs::write(beside(left).join("a-table"), "").unwrap();
    }
    stage.repository.restore_standby::<LsmStore>(&folder, 0, &mut |_| {}).await.unwrap();
    replace_standby::<LsmStore>(&folder).unwrap();
    assert_eq!(standby_folder(&folder).unwrap(), StandbyFolder::Follows);
    assert!(["standby-new", "standby-old", "standby-removed"].iter().all(|left| !beside(left).exists()));
}

#[tokio::test]
async fn a_standby_follows_one_store_in_one_place() {
    let (stage, other) = (Stage::new().await, Stage::new().await);
    let _shipper = shipped(&stage, ShipOptions::default()).await;
    let name = "another";
    let shipper =
        Shipper::new(other.repository.clone(), Arc::new(other.database.clone()), name, ShipOptions::default());
    shipper.ship_log().await.unwrap();
    let mut standby = Standby::open(&stage.repository, &stage.root.path().join("standby")).await.unwrap();
    standby.catch_up().await.unwrap();
    // A place that lost what was applied.
    let newest = stage.files("log").pop().unwrap();
    std::fs::rename(&newest, stage.root.path().join("lost")).unwrap();
    while !standby.follower.follow().await.is_err_and(|error| error.to_string().contains("is it mounted?")) {}
    let folder = standby.close();
    let database = LsmDatabase::open(&folder, LsmOptions::new().standby()).unwrap();
    let refused = Follower::new(other.repository.clone(), Arc::new(database), &folder).await.unwrap_err().to_string();
    assert!(refused.contains("and this standby follows"), "{refused}");
}

/// After a failed sync the store may have rows that the disk lacks.
#[tokio::test]
async fn a_standby_whose_store_has_failed_notes_nothing() {
    let stage = Stage::new().await;
    let shipper = shipped(&stage, ShipOptions::default()).await;
    let folder = stage.root.path().join("standby");
    let mut standby = Standby::open(&stage.repository, &folder).await.unwrap();
    standby.catch_up().await.unwrap();
    stage.write(10);
    shipper.ship_log().await.unwrap();
    let note = std::fs::read(folder.join("standby.json")).unwrap();
    standby.database.close().unwrap();
    assert!(standby.follower.follow().await.is_err());
    assert_eq!(std::fs::read(folder.join("standby.json")).unwrap(), note);
}
