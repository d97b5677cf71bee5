//! What was acknowledged is there when the folder is opened again.

use engine_redb::{RedbDatabase, RedbOptions};
use futures_executor::block_on;
use kv_api::{Database, Durability, RangeRequest, Read, Transaction, TransactionExt, error};
use occ::ManualClock;

fn write(database: &RedbDatabase, from: u32, to: u32) {
    let tx = database.begin().unwrap();
    for n in from..to {
        tx.set(&n.to_be_bytes(), b"value");
    }
    block_on(tx.commit()).unwrap();
}

fn count(database: &RedbDatabase) -> usize {
    let all = RangeRequest::keys("", "\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}");
    block_on(database.begin().unwrap().get_all(all, Read::Snapshot)).unwrap().len()
}

#[test]
fn a_closed_database_comes_back_whole() {
    for durability in [Durability::Disk, Durability::Process] {
        let folder = tempfile::tempdir().unwrap();
        let options = RedbOptions::new().durability(durability);
        let database = RedbDatabase::open(folder.path(), options.clone()).unwrap();
        write(&database, 0, 100);
        let version = block_on(database.begin().unwrap().get_read_version()).unwrap();
        write(&database, 100, 200);
        database.close().unwrap();
        assert_eq!(database.begin().unwrap_err().code(), error::SHUTDOWN_IN_PROGRESS);
        drop(database);

        let database = RedbDatabase::open(folder.path(), options).unwrap();
        assert_eq!(count(&database), 200);
        let later = block_on(database.begin().unwrap().get_read_version()).unwrap();
        assert!(later > version, "versions go on: {version}, then {later}");
    }
}

#[test]
fn a_range_is_cleared_whole() {
    let folder = tempfile::tempdir().unwrap();
    let database = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap();
    write(&database, 0, 10_000);
    let tx = database.begin().unwrap();
    tx.clear_range(&100u32.to_be_bytes(), &9_900u32.to_be_bytes());
    block_on(tx.commit()).unwrap();
    assert_eq!(count(&database), 200);
}

#[test]
fn a_folder_has_one_owner_and_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let database = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap();
    let second = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap_err();
    assert_eq!(second.code(), error::LOCK_FILE_FAILURE, "{second}");
    drop(database);
    std::fs::write(folder.path().join("couch-layer.json"), r#"{"engine":"sled","format":1}"#).unwrap();
    let other = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap_err();
    assert_eq!(other.code(), error::UNSUPPORTED_OPERATION, "{other}");
}

#[test]
fn a_damaged_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let database = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap();
    write(&database, 0, 10_000);
    drop(database);
    let file = folder.path().join("data.redb");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 3]).unwrap();
    let error = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap_err();
    assert_eq!(error.code(), error::FILE_CORRUPT, "{error}");
    std::fs::write(&file, b"something else").unwrap();
    let error = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap_err();
    assert_eq!(error.code(), error::FILE_CORRUPT, "{error}");
}

#[test]
fn a_row_that_changes_under_an_open_database_is_an_error_when_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let value = [b"a value like no other, ".as_slice(); 4].concat();
    let database = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap();
    // Many rows between this one and what the opening reads and so has in its cache.
    write(&database, 0, 10_000);
    let tx = database.begin().unwrap();
    tx.set(b"\0", &value);
    block_on(tx.commit()).unwrap();
    drop((tx, database));

    let database = RedbDatabase::open(folder.path(), RedbOptions::new()).unwrap();
    let file = folder.path().join("data.redb");
    let mut bytes = std::fs::read(&file).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - value.len()).filter(|&at| bytes[at..at + value.len()] == value).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| bytes[at + 40] ^= 1);
    std::fs::write(&file, bytes).unwrap();
    let tx = database.begin().unwrap();
    let code = |outcome: kv_api::Result<()>| outcome.unwrap_err().code();
    assert_eq!(code(block_on(tx.get(b"\0", Read::Snapshot)).map(drop)), error::FILE_CORRUPT);
    let all = RangeRequest::keys("", "\u{7f}");
    assert_eq!(code(block_on(tx.get_all(all, Read::Snapshot)).map(drop)), error::FILE_CORRUPT);
}

#[test]
fn versions_go_on_whatever_the_durability_and_the_clock() {
    for durability in [Durability::Disk, Durability::Process] {
        let folder = tempfile::tempdir().unwrap();
        let mut last = 0;
        for _ in 0..3 {
            // A clock that begins anew with each process.
            let options = RedbOptions::new().durability(durability).clock(ManualClock::new());
            let database = RedbDatabase::open(folder.path(), options).unwrap();
            let tx = database.begin().unwrap();
            tx.set(b"key", b"value");
            block_on(tx.commit()).unwrap();
            let version = tx.get_committed_version().unwrap();
            assert!(version > last, "{durability:?}: {last}, then {version}");
            last = version;
        }
    }
}
