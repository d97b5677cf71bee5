//! Snapshots hold exactly what was acknowledged at one moment, while writers, flushes and compactions go on.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, DatabaseExt, Durability, RangeRequest, Read, Transaction, TransactionExt, error};

const COUNTER: &[u8] = b"counter";

/// Small, so that there are many flushes.
fn options() -> LsmOptions {
    LsmOptions::new().cache_bytes(128 << 10)
}

fn opened(copy: &Path) -> LsmDatabase {
    let refused = LsmDatabase::open(copy, options()).unwrap_err();
    assert_eq!(refused.code(), error::CLIENT_INVALID_OPERATION, "{refused}");
    LsmDatabase::open(copy, options().copy()).unwrap()
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

/// Counts, and leaves a row with the number: so the rows of any moment are those of 1 to the counter. Some rows are removed
/// again, which is in the value of the counter too.
async fn count(database: &LsmDatabase, filler: &[u8]) -> u64 {
    database
        .run(|transaction, _| async move {
            let old = transaction.get(COUNTER, Read::Serializable).await?;
            let next = old.map_or(0, |old| number(&old)) + 1;
            transaction.set(COUNTER, &next.to_be_bytes()[..]);
            transaction.set([b"row/", &next.to_be_bytes()[..]].concat(), filler.to_vec());
            if next.is_multiple_of(7) {
                transaction.clear_range(&row(next - 3), &row(next - 2));
            }
            Ok::<_, kv_api::Error>(next)
        })
        .await
        .unwrap()
}

fn row(number: u64) -> Vec<u8> {
    [b"row/", &number.to_be_bytes()[..]].concat()
}

/// The counter, after all rows were compared with it.
fn counted(database: &LsmDatabase) -> u64 {
    block_on(async {
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

#[test]
fn a_snapshot_is_exactly_what_was_acknowledged_at_one_moment() {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let root = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(root.path().join("store"), options()).unwrap();
    let (acknowledged, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let fillers: Vec<Vec<u8>> = (0..3).map(|_| (0..random.usize(0..3_000)).map(|_| random.u8(..)).collect()).collect();
    let copies = std::thread::scope(|scope| {
        for filler in &fillers {
            let (database, acknowledged, is_over) = (database.clone(), &acknowledged, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    let done = block_on(count(&database, filler));
                    acknowledged.fetch_max(done, Ordering::AcqRel);
                }
            });
        }
        let mut copies = Vec::new();
        for at in 0..12 {
            // Not a time: so many commits further.
            let until = acknowledged.load(Ordering::Acquire) + random.u64(0..150);
            while acknowledged.load(Ordering::Acquire) < until {
                std::thread::yield_now();
            }
            if random.bool() {
                database.compact(b"row/", b"row0");
            }
            let copy = root.path().join(format!("copy{at}"));
            let before = acknowledged.load(Ordering::Acquire);
            database.snapshot(&copy).unwrap();
            // What begins after this is in no earlier copy. A commit may be durable, and its writer not know of it yet.
            let after = acknowledged.load(Ordering::Acquire) + fillers.len() as u64;
            copies.push((copy, before, after));
        }
        is_over.store(true, Ordering::Release);
        copies
    });
    let last = counted(&database);
    database.close().unwrap();
    drop(database);
    let mut least = 0;
    for (at, (copy, before, after)) in copies.into_iter().enumerate() {
        let opened = opened(&copy);
        let found = counted(&opened);
        assert!((before..=after).contains(&found), "{before} <= {found} <= {after}");
        assert!(found >= least, "a later copy has no less");
        least = found;
        // It is a store of its own: what is written there, or compacted, is in no other.
        block_on(count(&opened, b"own"));
        opened.compact(b"row/", b"row0");
        if at % 3 == 0 {
            let again = root.path().join(format!("again{at}"));
            opened.snapshot(&again).unwrap();
            opened.close().unwrap();
            assert_eq!(counted(&self::opened(&again)), found + 1, "a copy of a copy");
        }
    }
    assert_eq!(counted(&LsmDatabase::open(root.path().join("store"), options()).unwrap()), last);
}

/// A process that is killed while it copies leaves a folder that nobody opens.
#[test]
fn a_snapshot_without_its_mark_is_opened_by_nobody() {
    let root = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(root.path().join("store"), options()).unwrap();
    block_on(count(&database, b"x"));
    let copy = root.path().join("copy");
    database.snapshot(&copy).unwrap();
    std::fs::remove_file(copy.join("couch-layer.json")).unwrap();
    for options in [options(), options().copy()] {
        assert_eq!(LsmDatabase::open(&copy, options).unwrap_err().code(), error::CLIENT_INVALID_OPERATION);
    }
}

/// The copy's log is all that it has of the last commits: without it the copy is refused, as a store would be.
#[test]
fn a_snapshot_that_lost_its_log_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(root.path().join("store"), options()).unwrap();
    block_on(count(&database, b"x"));
    let copy = root.path().join("copy");
    database.snapshot(&copy).unwrap();
    for log in ["log.0", "log.1"] {
        let _ = std::fs::remove_file(copy.join(log));
    }
    assert_eq!(LsmDatabase::open(&copy, options().copy()).unwrap_err().code(), error::FILE_CORRUPT);
}

#[test]
fn a_snapshot_writes_into_nothing_that_exists() {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    let database = LsmDatabase::open(&store, options()).unwrap();
    let refused = |folder: &Path| database.snapshot(folder).unwrap_err();
    let (file, folder) = (root.path().join("file"), root.path().join("folder"));
    std::fs::write(&file, "text").unwrap();
    std::fs::create_dir(&folder).unwrap();
    for existing in [&file, &folder, &store] {
        let refused = refused(existing);
        assert_eq!(refused.code(), error::CLIENT_INVALID_OPERATION);
        assert!(refused.to_string().contains("exists"), "{refused}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path().join("nowhere"), &link).unwrap();
        assert!(refused(&link).to_string().contains("exists"), "a link that leads nowhere");
        let copy = root.path().join("copy");
        database.snapshot(&copy).unwrap();
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o700);
        // By another name of the folder, too.
        std::os::unix::fs::symlink(&store, root.path().join("other")).unwrap();
        assert!(refused(&root.path().join("other/copy")).to_string().contains("inside"));
    }
    assert!(refused(&store.join("data/copy")).to_string().contains("inside"));
    assert_eq!(refused(&root.path().join("none/copy")).code(), error::FILE_NOT_FOUND);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let names = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("partial")), "nothing is left");
    assert!(!root.path().join("none").exists() && !store.join("data/copy").exists());
}

#[test]
fn a_store_without_a_log_has_no_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let without = options().durability(Durability::Process);
    let database = LsmDatabase::open(root.path().join("store"), without).unwrap();
    block_on(count(&database, b"x"));
    let copy = root.path().join("copy");
    assert_eq!(database.snapshot(&copy).unwrap_err().code(), error::UNSUPPORTED_OPERATION);
    assert!(!copy.exists(), "nothing is left");
    database.close().unwrap();
    assert_eq!(database.snapshot(&copy).unwrap_err().code(), error::SHUTDOWN_IN_PROGRESS);
}
