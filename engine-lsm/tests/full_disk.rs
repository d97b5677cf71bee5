//! On a full disk deletions, purges and drops go on, and their space comes back. Uses a small tmpfs. Skipped if this
//! user cannot mount one.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use model::{CreateOptions, Documents, Edit, Error, JsonText, Layer, LayerOptions, Purge, RevId};

struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"]).arg(path).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).output();
    }
}

/// An incompressible document of 30 KB.
fn document(n: u64) -> Edit {
    let mut seed = n;
    let noise: String = (0..30_000)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // From `#` to `[`: no quotation mark and no backslash.
            char::from(b'#' + ((seed >> 33) % 57) as u8)
        })
        .collect();
    Edit::new(format!("doc-{n:06}"), JsonText::parse(format!(r#"{{"noise":"{noise}"}}"#).as_bytes()).unwrap())
}

fn is_full(error: &Error) -> bool {
    assert!(error.reason().contains("the disk is full"), "{}", error.reason());
    error.status() == 507
}

/// Writes documents until the disk is full. Returns their revisions.
fn fill(documents: &Documents<LsmDatabase>, from: u64) -> Vec<(String, RevId)> {
    let mut written = Vec::new();
    for n in from.. {
        match block_on(documents.put(document(n))) {
            Ok(rev) => written.push((format!("doc-{n:06}"), rev)),
            Err(error) => {
                assert!(is_full(&error));
                return written;
            }
        }
        assert!(written.len() < 5_000, "the disk does not fill up");
    }
    written
}

/// Writes documents as room comes back, until there are `wanted`.
fn fill_again(documents: &Documents<LsmDatabase>, from: u64, wanted: usize) -> Vec<(String, RevId)> {
    // What a small part of the rows hides comes back after a minute or more without a write.
    let until = Instant::now() + Duration::from_secs(600);
    let mut written = Vec::new();
    while written.len() < wanted {
        assert!(Instant::now() < until, "after {} documents no more room came back", written.len());
        std::thread::sleep(Duration::from_millis(100));
        written.extend(fill(documents, from + written.len() as u64));
    }
    written
}

fn open(folder: &Path) -> Layer<LsmDatabase> {
    let database = LsmDatabase::open(folder.join("data"), LsmOptions::new().cache_bytes(1 << 20)).unwrap();
    block_on(Layer::open(database, LayerOptions::default())).unwrap()
}

fn delete(documents: &Documents<LsmDatabase>, id: &str, rev: &RevId) {
    let deletion = Edit::new(id, JsonText::empty_object()).over(rev.clone()).deleting();
    block_on(documents.put(deletion)).unwrap();
}

#[test]
fn a_full_disk_takes_what_frees_space() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        return println!("skipped: this user cannot mount a small disk");
    };
    let layer = open(folder.path());
    let create = |name: &str| block_on(layer.create_database(name, CreateOptions::default()));
    let db = create("db").unwrap();

    let mut written = fill(&db, 0);
    assert!(written.len() > 200, "{} documents fit", written.len());

    // Every deletion is accepted, not only the first few.
    let few = written.split_off(written.len() - 10);
    for (id, rev) in &written {
        delete(&db, id, rev);
    }
    let until = Instant::now() + Duration::from_secs(120);
    while let Err(error) = block_on(db.put(document(1_000_000))) {
        assert!(is_full(&error) && Instant::now() < until, "no room came back: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }

    fill(&db, 2_000_000);
    let (last, few) = few.split_last().unwrap();
    for (id, rev) in few {
        let purged = block_on(db.purge(&[Purge::new(id.clone(), vec![rev.clone()])])).unwrap();
        assert_eq!(purged[0].as_ref().unwrap(), std::slice::from_ref(rev));
    }

    assert!(block_on(db.get(&last.0, &model::GetOptions::default())).is_ok());
    block_on(layer.delete_database("db")).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    let again = loop {
        match create("db") {
            Ok(again) => break again,
            Err(error) => assert!(is_full(&error) && Instant::now() < until, "no room came back: {error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    fill_again(&again, 0, 200);
}

/// A merge writes the remaining rows before its inputs are removed, so it may not be larger than the kept room.
#[test]
fn the_room_of_some_documents_comes_back_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        return println!("skipped: this user cannot mount a small disk");
    };
    let layer = open(folder.path());
    let db = block_on(layer.create_database("db", CreateOptions::default())).unwrap();
    let mut live = fill(&db, 0);
    assert!(live.len() > 200, "{} documents fit", live.len());
    // Less than a twentieth of all, next to each other.
    live.drain(100..140).for_each(|(id, rev)| delete(&db, &id, &rev));
    live.extend(fill_again(&db, 500_000, 20));
    for round in 1..4 {
        let (mut number, before) = (0, live.len());
        live.retain(|(id, rev)| {
            number += 1;
            if number % 4 > 0 {
                return true;
            }
            delete(&db, id, rev);
            false
        });
        // At least half of the room: the rest is not hidden enough to be merged.
        live.extend(fill_again(&db, round * 1_000_000, (before - live.len()) / 2));
    }
}

/// A killed server's folder: its log has documents that no table has. On a disk without a free byte they are read, and
/// nothing is written.
#[test]
fn a_killed_store_is_read_on_a_disk_without_a_free_byte() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        return println!("skipped: this user cannot mount a small disk");
    };
    let killed = tempfile::tempdir().unwrap();
    let layer = open(killed.path());
    let db = block_on(layer.create_database("db", CreateOptions::default())).unwrap();
    // More than a flush, and then less.
    let count = 40;
    (0..count).for_each(|n| drop(block_on(db.put(document(n))).unwrap()));
    // As the disk would have it after a kill. Nothing is written meanwhile, but a compaction may remove tables.
    let copy = || Command::new("cp").arg("-r").arg(killed.path().join("data")).arg(folder.path()).output().unwrap();
    while !copy().status.success() {
        std::fs::remove_dir_all(folder.path().join("data")).unwrap();
    }
    let ballast = Command::new("dd").args(["if=/dev/zero", "bs=4k"]).arg(of(&folder.path().join("ballast"))).output();
    assert!(!ballast.unwrap().status.success() && std::fs::write(folder.path().join("more"), "more").is_err());

    let layer = open(folder.path());
    let db = block_on(layer.database("db")).unwrap();
    for n in 0..count {
        let read = block_on(db.get(&document(n).id, &model::GetOptions::default())).unwrap();
        assert_eq!(read.body.get("noise").map(|noise| noise.as_str().unwrap().len()), Some(30_000));
    }
    assert_eq!(block_on(db.info()).unwrap().doc_count, count);
    assert!(is_full(&block_on(db.put(document(count))).unwrap_err()));

    // It is written to when there is room again, after the flush that failed.
    std::fs::remove_file(folder.path().join("ballast")).unwrap();
    fill_again(&db, count, 1);
}

fn of(file: &Path) -> String {
    format!("of={}", file.display())
}
