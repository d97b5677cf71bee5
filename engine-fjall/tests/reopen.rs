//! What was acknowledged is there when the folder is opened again.

use engine_fjall::{FjallDatabase, FjallOptions};
use futures_executor::block_on;
use kv_api::{Database, Durability, RangeRequest, Read, Transaction, TransactionExt, error};
use occ::ManualClock;

fn write(database: &FjallDatabase, from: u32, to: u32) {
    let tx = database.begin().unwrap();
    for n in from..to {
        tx.set(&n.to_be_bytes(), b"value");
    }
    block_on(tx.commit()).unwrap();
}

fn count(database: &FjallDatabase) -> usize {
    let all = RangeRequest::keys("", "\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}");
    block_on(database.begin().unwrap().get_all(all, Read::Snapshot)).unwrap().len()
}

#[test]
fn a_closed_database_comes_back_whole() {
    for durability in [Durability::Disk, Durability::OperatingSystem] {
        let folder = tempfile::tempdir().unwrap();
        let options = FjallOptions::new().durability(durability);
        let database = FjallDatabase::open(folder.path(), options.clone()).unwrap();
        write(&database, 0, 100);
        let version = block_on(database.begin().unwrap().get_read_version()).unwrap();
        write(&database, 100, 200);
        database.close().unwrap();
        assert_eq!(database.begin().unwrap_err().code(), error::SHUTDOWN_IN_PROGRESS);
        drop(database);

        let database = FjallDatabase::open(folder.path(), options).unwrap();
        assert_eq!(count(&database), 200);
        let later = block_on(database.begin().unwrap().get_read_version()).unwrap();
        assert!(later > version, "versions go on: {version}, then {later}");
    }
}

#[test]
fn a_range_is_cleared_whole() {
    let folder = tempfile::tempdir().unwrap();
    let database = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap();
    write(&database, 0, 10_000);
    let tx = database.begin().unwrap();
    tx.clear_range(&100u32.to_be_bytes(), &9_900u32.to_be_bytes());
    block_on(tx.commit()).unwrap();
    assert_eq!(count(&database), 200);
}

#[test]
fn a_folder_has_one_owner_and_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let database = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap();
    let second = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap_err();
    assert_eq!(second.code(), error::LOCK_FILE_FAILURE, "{second}");
    drop(database);
    std::fs::write(folder.path().join("couch-layer.json"), r#"{"engine":"sled","format":1}"#).unwrap();
    let other = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap_err();
    assert_eq!(other.code(), error::UNSUPPORTED_OPERATION, "{other}");
}

#[test]
fn a_damaged_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let database = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap();
    write(&database, 0, 10_000);
    drop(database);
    let file = folder.path().join("data/0.jnl");
    let whole = std::fs::read(&file).unwrap();
    for damaged in [&whole[..whole.len() / 3], b"something else", b""] {
        std::fs::write(&file, damaged).unwrap();
        let error = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap_err();
        assert_eq!(error.code(), error::FILE_CORRUPT, "{error}");
    }
    std::fs::write(&file, whole).unwrap();
    assert_eq!(count(&FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap()), 10_000);
}

#[test]
fn a_folder_can_be_opened_and_removed_as_soon_as_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("database");
    for round in 0..5 {
        // So small that tables are written and merged while it is closed.
        let database = FjallDatabase::open(&path, FjallOptions::new().cache_bytes(512 << 10)).unwrap();
        for from in 0..20 {
            write(&database, from * 500, from * 500 + 500);
        }
        drop(database);
        let database = FjallDatabase::open(&path, FjallOptions::new()).unwrap();
        assert_eq!(count(&database), 10_000, "round {round}");
        drop(database);
        std::fs::remove_dir_all(&path).unwrap();
        assert!(!path.exists());
    }
}

#[test]
fn a_transaction_that_outlives_its_database_reads_on_and_holds_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let database = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap();
    write(&database, 0, 100);
    let tx = database.begin().unwrap();
    block_on(tx.get_read_version()).unwrap();
    drop(database);
    assert!(block_on(tx.get(&7u32.to_be_bytes(), Read::Snapshot)).unwrap().is_some());
    let second = FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap_err();
    assert_eq!(second.code(), error::LOCK_FILE_FAILURE, "{second}");
    drop(tx);
    assert_eq!(count(&FjallDatabase::open(folder.path(), FjallOptions::new()).unwrap()), 100);
}

#[test]
fn versions_go_on_whatever_the_durability_and_the_clock() {
    for durability in [Durability::Disk, Durability::OperatingSystem] {
        let folder = tempfile::tempdir().unwrap();
        let mut last = 0;
        for _ in 0..3 {
            // A clock that begins anew with each process.
            let options = FjallOptions::new().durability(durability).clock(ManualClock::new());
            let database = FjallDatabase::open(folder.path(), options).unwrap();
            let tx = database.begin().unwrap();
            tx.set(b"key", b"value");
            block_on(tx.commit()).unwrap();
            let version = tx.get_committed_version().unwrap();
            assert!(version > last, "{durability:?}: {last}, then {version}");
            last = version;
        }
    }
}
