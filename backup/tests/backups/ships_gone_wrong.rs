//! Ships of which something is damaged or missing, whose clock was wrong, or that another shipper took over.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use backup::{Protection, Repository, ShipOptions, Shipper};
use engine_lsm::{LsmDatabase, LsmOptions};
use kv_api::Database;

use crate::ships::{Shifted, Stage, lsm};

const EACH: ShipOptions = ShipOptions { backlog: 1 << 20, base_after: 1, base_after_ms: 1, keep_ms: 1_000_000 };

async fn step(stage: &Stage, shipper: &Shipper) {
    stage.write(20);
    shipper.ship_log().await.unwrap();
    while !shipper.ship_tables().await.unwrap() {}
}

pub(crate) fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

async fn shifted(stage: &Stage, ms: u64) -> (Arc<Shifted>, Repository) {
    let clock = Arc::new(Shifted(stage.clock.clone(), AtomicU64::new(ms)));
    let repository = Repository::open(stage.place.clone(), &Protection::None, clock.clone()).await.unwrap();
    (clock, repository)
}

#[tokio::test]
async fn a_fenced_shipper_never_takes_the_place_back() {
    for way in ["missed", "clock", "idle"] {
        let stage = Stage::new().await;
        let (clock, repository) = shifted(&stage, 1_000_000).await;
        let one = Shipper::new(repository.clone(), Arc::new(stage.database.clone()), "store", EACH);
        step(&stage, &one).await;
        let copy = stage.root.path().join("copy");
        stage.database.snapshot(&copy).unwrap();
        let copied = LsmDatabase::open(&copy, LsmOptions::new().copy()).unwrap();
        let followed = if way == "missed" { stage.database.clone() } else { copied.clone() };
        let other = Shipper::new(repository, Arc::new(followed), "store", EACH);
        other.ship_log().await.unwrap();
        other.ship_tables().await.unwrap();
        let before = stage.files("");
        if way == "clock" {
            clock.1.store(900_000, Ordering::Relaxed);
        }
        let outcomes = match way {
            "idle" => 20,
            _ => 1,
        };
        let mut failed = None;
        for _ in 0..outcomes {
            failed = one.ship_log().await.err();
        }
        let failed = failed.unwrap().to_string();
        assert!(failed.contains("another server ships to this place by now"), "{way}: {failed}");
        assert!(one.is_fenced() && !other.is_fenced(), "{way}");
        assert_eq!(stage.files(""), before, "{way}: it writes nothing any more");
    }
}

#[tokio::test]
async fn a_damaged_base_or_table_is_stepped_over() {
    for of in ["base", "tables"] {
        let stage = Stage::new().await;
        let shipper = stage.shipper(EACH);
        step(&stage, &shipper).await;
        let old = stage.files(of);
        step(&stage, &shipper).await;
        step(&stage, &shipper).await;
        for damaged in stage.files(of).iter().filter(|file| !old.contains(file)) {
            flip(damaged);
        }
        let (restored, found) = stage.restored(None).await;
        assert_eq!(found, 60, "the log continues from the older one");
        assert!(!restored.stepped_over.is_empty() && restored.ended_by.is_none(), "{restored:?}");
    }
}

#[tokio::test]
async fn a_damaged_base_is_named_by_a_list_and_goes_when_it_is_too_old() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(EACH);
    step(&stage, &shipper).await;
    // A base of the same segment would be written again.
    while stage.files("base").len() < 2 {
        step(&stage, &shipper).await;
    }
    let damaged = stage.files("base").remove(0);
    flip(&damaged);
    step(&stage, &shipper).await;
    let span = stage.repository.shipped().await.unwrap().unwrap();
    assert!(damaged.ends_with(&span.damaged[0].0), "{span:?}");
    let shipper = stage.shipper(ShipOptions { keep_ms: 30, ..EACH });
    for _ in 0..10 {
        step(&stage, &shipper).await;
    }
    assert!(!damaged.exists());
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
    assert_eq!(stage.restored(None).await.1, stage.write(1) - 1);
}

#[tokio::test]
async fn a_low_clock_removes_nothing_and_is_refused_if_it_is_hours_behind() {
    let stage = Stage::new().await;
    let (_, later) = shifted(&stage, 3_000_000).await;
    let shipper = Shipper::new(later, Arc::new(stage.database.clone()), "store", EACH);
    step(&stage, &shipper).await;
    step(&stage, &shipper).await;
    let kept = stage.files("base");
    // Less than an hour behind. Its own bases become too old soon.
    let low = stage.shipper(ShipOptions { keep_ms: 30, ..EACH });
    for _ in 0..10 {
        step(&stage, &low).await;
    }
    assert!(kept.iter().all(|file| file.exists()), "the base before the first that is too late stays");
    let (restored, found) = stage.restored(None).await;
    assert_eq!(found, 240);
    assert!(restored.earlier_ms > Some(3_000_000), "{restored:?}");
    // Hours behind.
    let (_, far) = shifted(&stage, 10_000_000).await;
    let shipper = Shipper::new(far, Arc::new(stage.database.clone()), "store", EACH);
    step(&stage, &shipper).await;
    let before = stage.files("");
    let refused = stage.shipper(EACH).ship_log().await.unwrap_err().to_string();
    assert!(refused.contains("behind the last segment"), "{refused}");
    assert_eq!(stage.files(""), before);
}

#[tokio::test]
async fn a_segment_that_is_missing_before_a_beginning_is_found() {
    let stage = Stage::new().await;
    for _ in 0..2 {
        let shipper = stage.shipper(ShipOptions::default());
        for _ in 0..3 {
            stage.write(3);
            shipper.ship_log().await.unwrap();
        }
        shipper.ship_tables().await.unwrap();
    }
    assert_eq!(stage.repository.verify(&mut |_| {}).await.unwrap().problems, []);
    let missing = stage.files("log").remove(2);
    std::fs::remove_file(&missing).unwrap();
    let problems = stage.repository.verify(&mut |_| {}).await.unwrap().problems;
    assert!(problems.iter().any(|(file, _)| missing.ends_with(file)), "{problems:?}");
}

#[tokio::test]
async fn a_part_of_a_segment_is_written_again_or_ends_a_restore() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions::default());
    stage.write(5);
    shipper.ship_log().await.unwrap();
    shipper.ship_tables().await.unwrap();
    let part = stage.root.path().join("place/ship/log/000000000002");
    std::fs::write(&part, "part").unwrap();
    stage.write(5);
    shipper.ship_log().await.unwrap();
    assert!(!shipper.is_fenced());
    assert_eq!(stage.restored(None).await.1, 10);
    flip(&part);
    let (restored, found) = stage.restored(None).await;
    assert_eq!(found, 5);
    assert!(part.ends_with(restored.ended_by.unwrap().0));
}

#[tokio::test]
async fn a_restore_says_that_writes_were_lost_to_a_slow_place() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions { backlog: 10_000, ..ShipOptions::default() });
    stage.write(5);
    shipper.ship_log().await.unwrap();
    shipper.ship_tables().await.unwrap();
    let at = stage.clock.tick();
    assert!(!stage.restored(Some(at)).await.0.gap, "nothing comes after it");
    // Beyond the backlog, and flushed: the next segment begins behind it.
    stage.write(400);
    shipper.ship_log().await.unwrap();
    let (restored, found) = stage.restored(Some(at)).await;
    assert_eq!(found, 5);
    assert!(restored.gap && restored.next_ms > Some(at), "{restored:?}");
}

#[tokio::test]
async fn a_table_that_rotted_in_the_store_is_not_shipped() {
    let mut stage = Stage::new().await;
    stage.write(40);
    stage.database.close().unwrap();
    stage.database = lsm(&stage.root.path().join("another"));
    let store = stage.root.path().join("store");
    stage.database = lsm(&store);
    let tables = crate::stage::files(&store.join("data/tables"));
    tables.iter().for_each(|table| flip(table));
    assert!(!tables.is_empty());
    let shipper = stage.shipper(ShipOptions::default());
    shipper.ship_log().await.unwrap();
    let refused = shipper.ship_tables().await.unwrap_err().to_string();
    assert!(refused.contains("not as it was written"), "{refused}");
    assert!(stage.files("tables").is_empty() && stage.files("base").is_empty());
}

/// While it is verified, a place gets a new base, with new tables.
#[tokio::test]
async fn a_place_is_verified_while_it_is_shipped_to() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions { keep_ms: 30, ..EACH });
    step(&stage, &shipper).await;
    let newest = || stage.files("base").into_iter().next_back();
    let (before, tables) = (newest(), stage.files("tables"));
    let mut has_shipped = false;
    let mut progress = |file: &str| {
        if file.starts_with("ship/") && !std::mem::replace(&mut has_shipped, true) {
            while newest() == before || stage.files("tables") == tables {
                stage.write(20);
                futures_executor::block_on(async {
                    shipper.ship_log().await.unwrap();
                    while !shipper.ship_tables().await.unwrap() {}
                });
            }
        }
    };
    let verified = stage.repository.verify(&mut progress).await.unwrap();
    assert_eq!(verified.problems, []);
    assert!(has_shipped);
}

#[tokio::test]
async fn links_that_wait_for_a_segment_are_made_anew() {
    let stage = Stage::new().await;
    let shipper = stage.shipper(ShipOptions::default());
    stage.write(1);
    shipper.ship_log().await.unwrap();
    // Tables that no segment completes.
    let tables = stage.root.path().join("store/data/tables");
    while !tables.exists() || crate::stage::files(&tables).is_empty() {
        stage.write(50);
    }
    assert!(!shipper.ship_tables().await.unwrap());
    let links = stage.root.path().join("store/.couch-layer-links-of-shipped-tables/data/tables");
    let linked = crate::stage::files(&links);
    let has_new = || crate::stage::files(&tables).iter().any(|table| !links.join(table.file_name().unwrap()).exists());
    while !has_new() {
        stage.write(50);
    }
    assert!(!shipper.ship_tables().await.unwrap());
    assert_eq!(crate::stage::files(&links), linked);
    stage.clock.pass(300_001);
    assert!(!shipper.ship_tables().await.unwrap());
    assert_ne!(crate::stage::files(&links), linked);
}

/// A folder that answers late keeps nothing else of the runtime from going on: here is only one thread.
#[cfg(unix)]
#[tokio::test]
async fn a_slow_folder_lets_others_go_on() {
    use backup::{Folder, Place};
    use std::sync::atomic::AtomicBool;
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let folder = Folder::new(root.path());
    let went_on = Arc::new(AtomicBool::new(false));
    // Who reads the pipe waits for this. After a while it is written anyway, so that a failed test ends.
    let writer = std::thread::spawn({
        let went_on = went_on.clone();
        move || {
            for _ in 0..1_000 {
                if went_on.load(Ordering::Acquire) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let in_time = went_on.load(Ordering::Acquire);
            std::fs::write(pipe, "late").unwrap();
            in_time
        }
    });
    let other = async { went_on.store(true, Ordering::Release) };
    let (read, ()) = tokio::join!(biased; folder.read("pipe"), other);
    assert_eq!(&read.unwrap()[..], b"late");
    assert!(writer.join().unwrap(), "reading kept the runtime's thread");
}
