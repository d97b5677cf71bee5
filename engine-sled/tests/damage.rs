//! Damaged files. The only test of its binary, since the panic hook belongs to the whole process.

use std::fs;
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine_sled::{SledDatabase, SledOptions};
use futures_executor::block_on;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};

fn open(path: &Path) -> kv_api::Result<SledDatabase> {
    SledDatabase::open(path, SledOptions::new().cache_bytes(16 << 20))
}

fn put(db: &SledDatabase, key: &str, value: &[u8]) {
    let tx = db.begin().unwrap();
    tx.set(key.as_bytes(), value);
    block_on(tx.commit()).unwrap();
}

fn rows(db: &SledDatabase) -> Vec<(String, usize)> {
    let tx = db.begin().unwrap();
    let rows = block_on(tx.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot)).unwrap();
    rows.into_iter().map(|row| (String::from_utf8_lossy(&row.key).into_owned(), row.value.len())).collect()
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

/// Bytes flipped and tails cut off, one at a time: an error or the whole data, never a panic, never a
/// word from the panic hook, never a part of the data passed off as all.
#[test]
fn damage_is_an_error_and_never_a_panic_or_a_rollback() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = open(&path).unwrap();
    for at in 0..60usize {
        put(&db, &format!("{at:03}"), &vec![at as u8; 500]);
    }
    let expected = rows(&db);
    drop(db);
    drop(open(&path).unwrap());
    let length = fs::read(path.join("data/db")).unwrap().len();
    let used = fs::read(path.join("data/db")).unwrap().iter().rposition(|&byte| byte != 0).unwrap();

    // The application's own hook counts, and is still there afterwards.
    let printed = Arc::new(AtomicUsize::new(0));
    let counter = printed.clone();
    panic::set_hook(Box::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    let mut refused = 0;
    for trial in 0..24usize {
        let damaged = folder.path().join(format!("damaged{trial}"));
        copy(&path, &damaged);
        let file = damaged.join("data/db");
        let mut bytes = fs::read(&file).unwrap();
        let at = used * (trial + 1) / 25;
        if trial % 6 == 5 {
            bytes.truncate(length * trial / 25)
        } else {
            bytes[at] ^= 0x55
        }
        fs::write(&file, bytes).unwrap();
        match open(&damaged) {
            Err(error) => {
                assert!(error.context().is_some_and(|context| context.len() > 20), "{error}");
                refused += 1;
            }
            Ok(db) => {
                let tx = db.begin().unwrap();
                match block_on(tx.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot)) {
                    Ok(found) => assert_eq!(found.len(), expected.len(), "flip at {at} lost rows in silence"),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    let at_opening = printed.load(Ordering::SeqCst);
    let _ = panic::catch_unwind(|| panic!("the hook is the application's"));
    assert_eq!(printed.load(Ordering::SeqCst), at_opening + 1);
    drop(panic::take_hook());
    assert!(refused > 0, "no damage was noticed");
    assert_eq!(at_opening, 0, "the panic hook was called");
}
