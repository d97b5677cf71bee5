//! Acknowledged commits survive a reopening of the folder.

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, Durability, RangeRequest, Read, Transaction, TransactionExt, error};
use occ::ManualClock;

fn write(database: &LsmDatabase, from: u32, to: u32) {
    let tx = database.begin().unwrap();
    for n in from..to {
        tx.set(&n.to_be_bytes(), b"value");
    }
    block_on(tx.commit()).unwrap();
}

fn count(database: &LsmDatabase) -> usize {
    let all = RangeRequest::keys("", "\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}");
    block_on(database.begin().unwrap().get_all(all, Read::Snapshot)).unwrap().len()
}

#[test]
fn a_closed_database_comes_back_whole() {
    for durability in [Durability::Disk, Durability::Process] {
        let folder = tempfile::tempdir().unwrap();
        let options = LsmOptions::new().durability(durability);
        let database = LsmDatabase::open(folder.path(), options.clone()).unwrap();
        write(&database, 0, 100);
        let version = block_on(database.begin().unwrap().get_read_version()).unwrap();
        write(&database, 100, 200);
        database.close().unwrap();
        assert_eq!(database.begin().unwrap_err().code(), error::SHUTDOWN_IN_PROGRESS);
        drop(database);

        let database = LsmDatabase::open(folder.path(), options).unwrap();
        assert_eq!(count(&database), 200);
        let later = block_on(database.begin().unwrap().get_read_version()).unwrap();
        assert!(later > version, "versions go on: {version}, then {later}");
    }
}

#[test]
fn a_range_is_cleared_whole() {
    let folder = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
    write(&database, 0, 10_000);
    let tx = database.begin().unwrap();
    tx.clear_range(&100u32.to_be_bytes(), &9_900u32.to_be_bytes());
    block_on(tx.commit()).unwrap();
    assert_eq!(count(&database), 200);
}

#[test]
fn a_folder_has_one_owner_and_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
    let second = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap_err();
    assert_eq!(second.code(), error::LOCK_FILE_FAILURE, "{second}");
    drop(database);
    std::fs::write(folder.path().join("couch-layer.json"), r#"{"engine":"sled","format":1}"#).unwrap();
    let other = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap_err();
    assert_eq!(other.code(), error::UNSUPPORTED_OPERATION, "{other}");
}

#[test]
fn versions_go_on_whatever_the_durability_and_the_clock() {
    for durability in [Durability::Disk, Durability::Process] {
        let folder = tempfile::tempdir().unwrap();
        let mut last = 0;
        for _ in 0..3 {
            // A clock that starts at zero in each process.
            let options = LsmOptions::new().durability(durability).clock(ManualClock::new());
            let database = LsmDatabase::open(folder.path(), options).unwrap();
            let tx = database.begin().unwrap();
            tx.set(b"key", b"value");
            block_on(tx.commit()).unwrap();
            let version = tx.get_committed_version().unwrap();
            assert!(version > last, "{durability:?}: {last}, then {version}");
            last = version;
        }
    }
}
