//! Folders of this engine: the events that they survive, and the states that are refused.

use std::fs;
use std::path::Path;

use engine_sled::{SledDatabase, SledOptions};
use futures_executor::block_on;
use kv_api::{Database, Durability, RangeRequest, Read, Transaction, TransactionExt};

fn open(path: &Path) -> kv_api::Result<SledDatabase> {
    SledDatabase::open(path, SledOptions::new().cache_bytes(16 << 20))
}

fn put(db: &SledDatabase, key: &str, value: &[u8]) -> i64 {
    let tx = db.begin().unwrap();
    tx.set(key.as_bytes(), value);
    block_on(tx.commit()).unwrap();
    tx.get_committed_version().unwrap()
}

fn rows(db: &SledDatabase) -> Vec<(String, usize)> {
    let tx = db.begin().unwrap();
    let rows = block_on(tx.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot)).unwrap();
    rows.into_iter().map(|row| (String::from_utf8_lossy(&row.key).into_owned(), row.value.len())).collect()
}

#[test]
fn reopens_with_everything_and_versions_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let mut last = 0;
    for round in 0..4usize {
        let db = open(&path).unwrap();
        assert_eq!(db.durability(), Durability::Disk);
        assert_eq!(rows(&db).len(), round * 20);
        for at in 0..20usize {
            // Large values make sled use blob files.
            let version = put(&db, &format!("{round}/{at:02}"), &vec![7; at * 5_000]);
            assert!(version > last);
            last = version;
        }
        if round % 2 == 0 {
            db.close().unwrap();
            assert_eq!(db.begin().unwrap_err().code(), 1043);
        }
    }
    let db = open(&path).unwrap();
    assert!(rows(&db).iter().enumerate().all(|(at, (_, length))| *length == at % 20 * 5_000));
}

#[test]
fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path()).unwrap();
    let tx = db.begin().unwrap();
    assert_eq!(open(folder.path()).unwrap_err().code(), 1529);
    drop(db);
    assert_eq!(open(folder.path()).unwrap_err().code(), 1529, "a transaction still has it");
    drop(tx);
    open(folder.path()).unwrap();
}

#[test]
fn other_folders_are_refused_untouched() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    assert_eq!(open(folder.path()).unwrap_err().code(), 2000);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    fs::write(folder.path().join("couch-layer.json"), r#"{"engine":"sled","format":99}"#).unwrap();
    let refused = open(folder.path()).unwrap_err();
    assert_eq!(refused.code(), 2108);
    assert!(refused.to_string().contains("format 99"), "{refused}");
}

#[test]
fn a_store_that_came_back_older_is_refused_until_the_user_goes_on_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = open(&path).unwrap();
    put(&db, "a", b"1");
    drop(db);
    // Opening once more waits until sled has released its files.
    drop(open(&path).unwrap());
    let old = folder.path().join("old");
    copy(&path.join("data"), &old);
    let db = open(&path).unwrap();
    put(&db, "a", b"2");
    drop(db);
    drop(open(&path).unwrap());
    fs::remove_dir_all(path.join("data")).unwrap();
    fs::rename(&old, path.join("data")).unwrap();
    let refused = open(&path).unwrap_err();
    assert_eq!(refused.code(), 1522);
    assert!(refused.to_string().contains("older"), "{refused}");
    // The user decides to continue with the older data.
    fs::remove_file(path.join("synced")).unwrap();
    assert_eq!(rows(&open(&path).unwrap()), [("a".to_owned(), 1)]);
}

#[test]
fn what_a_kill_left_unfinished_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    // Killed while the data were created.
    drop(open(folder.path()).unwrap());
    fs::rename(folder.path().join("data"), folder.path().join("data.new")).unwrap();
    fs::write(folder.path().join("data.new").join("conf"), "cut off in the mid").unwrap();
    let db = open(folder.path()).unwrap();
    put(&db, "a", b"1");
    drop(db);
    assert!(!folder.path().join("data.new").exists());
    // Killed while a snapshot of the page table was written.
    drop(open(folder.path()).unwrap());
    fs::write(folder.path().join("data").join("snap.00000000FFFFFFFF.generating"), "cut off").unwrap();
    assert_eq!(rows(&open(folder.path()).unwrap()), [("a".to_owned(), 1)]);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
