//! Clears of very many rows.

use std::path::Path;

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, Durability, RangeRequest, Read, Transaction, TransactionExt};

fn open(path: &Path) -> LsmDatabase {
    // A clear is remembered whatever the durability; without syncs the test is quick.
    let options = LsmOptions::new().cache_bytes(16 << 20).durability(Durability::Process);
    LsmDatabase::open(path, options).unwrap()
}

fn write(db: &LsmDatabase, change: impl FnOnce(&<LsmDatabase as Database>::Transaction)) {
    let tx = db.begin().unwrap();
    change(&tx);
    block_on(tx.commit()).unwrap();
}

fn keys(db: &LsmDatabase, request: RangeRequest) -> Vec<String> {
    let rows = block_on(db.begin().unwrap().get_all(request, Read::Snapshot)).unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(&row.key).into_owned()).collect()
}

#[test]
fn a_large_clear_is_seen_at_once_and_over_a_restart() {
    const ROWS: usize = 12_000;
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path());
    for batch in 0..ROWS / 1_000 {
        write(&db, |tx| {
            for at in 0..1_000 {
                tx.set(format!("m/{:06}", batch * 1_000 + at).as_bytes(), b"row");
            }
        });
    }
    write(&db, |tx| {
        tx.set(b"a", b"before");
        tx.set(b"z", b"behind");
    });
    let earlier = db.begin().unwrap();
    block_on(earlier.get_read_version()).unwrap();
    write(&db, |tx| {
        tx.set(b"m/000005", b"gone with the others");
        tx.clear_range(b"m/", b"m0");
        tx.set(b"m/000007", b"new");
    });
    let all = RangeRequest::keys("", "\u{7f}");
    let left = ["a", "m/000007", "z"];
    assert_eq!(keys(&db, all.clone()), left);
    let mut reversed = keys(&db, all.clone().reverse());
    reversed.reverse();
    assert_eq!(reversed, left);
    assert_eq!(block_on(db.begin().unwrap().get(b"m/000005", Read::Snapshot)).unwrap(), None);
    // Who began before sees every row, whatever is removed meanwhile.
    assert_eq!(block_on(earlier.get_all(all.clone(), Read::Snapshot)).unwrap().len(), ROWS + 2);
    drop(earlier);

    write(&db, |tx| tx.set(b"m/003000", b"new too"));
    write(&db, |tx| tx.clear(b"m/000007"));
    drop(db);
    let db = open(folder.path());
    assert_eq!(keys(&db, all.clone()), ["a", "m/003000", "z"]);
    write(&db, |tx| tx.set(b"m/009000", b"and this"));
    assert_eq!(keys(&db, all), ["a", "m/003000", "m/009000", "z"]);
}
