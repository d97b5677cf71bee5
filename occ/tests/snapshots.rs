//! How long snapshots of the store are kept. A store cannot free the rows that they show.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use kv_api::{ConflictRange, Database, Transaction};
use occ::{ManualClock, OccBuilder, OccDatabase};
use support::*;

type Tx = <Db as Database>::Transaction;

/// Commits this many bytes, in rows of 100,000.
fn write(db: &Db, bytes: usize) -> i64 {
    let tx = db.begin().unwrap();
    (0..bytes / 100_000).for_each(|row| tx.set(format!("row {row}").as_bytes(), &[0; 100_000]));
    assert_eq!(commit(&tx), 0);
    tx.get_committed_version().unwrap()
}

#[test]
fn an_idle_transaction_holds_its_snapshot_for_as_long_as_it_may_read() {
    let (db, clock, control) = open();
    put(&db, &[("a", "1")]);
    let idle = db.begin().unwrap();
    assert_eq!(get(&idle, "a").as_deref(), Some("1"));
    put(&db, &[("a", "2")]);
    clock.advance(Duration::from_secs(4));
    assert_eq!(get(&idle, "a").as_deref(), Some("1"));
    clock.advance(Duration::from_secs(2));
    assert_eq!(now(&db, "a").as_deref(), Some("2"), "somebody reads, nobody commits");
    assert_eq!(control.living_snapshots(), 1, "the newest");
    assert_eq!(code(try_get(&idle, "a")), 1007);

    // The first transaction that notices may be the idle one itself.
    let idle = db.begin().unwrap();
    assert_eq!(get(&idle, "a").as_deref(), Some("2"));
    put(&db, &[("a", "3")]);
    clock.advance(Duration::from_secs(6));
    assert_eq!(control.living_snapshots(), 2);
    assert_eq!(code(try_get(&idle, "a")), 1007);
    assert_eq!(control.living_snapshots(), 1);
}

/// The window is bounded by bytes too, not only by time.
#[test]
fn the_snapshots_of_the_window_are_bounded_by_bytes() {
    let (db, _, control) = open();
    let versions: Vec<i64> = (0..30).map(|_| write(&db, 9_000_000)).collect();
    assert!(control.living_snapshots() <= 3, "{} snapshots of 9 MB each", control.living_snapshots());
    let at = |version| {
        let tx = db.begin().unwrap();
        tx.set_read_version(version);
        code(try_get(&tx, "row 0"))
    };
    assert_eq!((at(versions[28]), at(versions[20])), (0, 1007));
}

#[test]
fn what_a_transaction_reads_is_kept_until_it_ends() {
    let ends: [fn(&Tx); 3] =
        [|tx| tx.cancel(), |tx| tx.reset(), |tx| assert_eq!(commit(tx), 0, "a commit of reads and a blind write")];
    for end in ends {
        let (db, _, control) = open();
        put(&db, &[("a", "1")]);
        let reader = db.begin().unwrap();
        assert_eq!(get(&reader, "a").as_deref(), Some("1"));
        for _ in 0..10 {
            write(&db, 9_000_000);
        }
        assert_eq!(get(&reader, "a").as_deref(), Some("1"), "however much was written since");
        reader.set(b"b", b"");
        let living = control.living_snapshots();
        end(&reader);
        write(&db, 9_000_000);
        write(&db, 9_000_000);
        assert_eq!(control.living_snapshots(), living - 1);
    }
}

/// A disk is too slow for so many bytes within the window.
#[test]
fn a_transaction_that_very_much_was_written_over_is_too_old() {
    let (db, _, control) = open();
    put(&db, &[("a", "1")]);
    let reader = db.begin().unwrap();
    assert_eq!(get(&reader, "a").as_deref(), Some("1"));
    for _ in 0..40 {
        write(&db, 9_000_000);
    }
    assert_eq!(code(try_get(&reader, "a")), 1007);
    assert!(control.living_snapshots() <= 3);
}

/// As after a recovery of FoundationDB, earlier reads cannot be checked for conflicts any more.
#[test]
fn versions_from_before_a_reopen_are_too_old() {
    let (db, clock, control) = open();
    put(&db, &[("a", "1")]);
    let before = block_on(db.begin().unwrap().get_read_version()).unwrap();
    put(&db, &[("a", "2")]);
    db.close().unwrap();
    drop(db);

    clock.advance(Duration::from_millis(10));
    let reopen = |clock: &ManualClock| -> OccDatabase<TestStore> {
        OccBuilder::new().clock(clock.clone()).open(TestStore(control.clone())).unwrap()
    };
    let db = reopen(&clock);
    let reader = db.begin().unwrap();
    reader.set_read_version(before);
    assert_eq!(code(try_get(&reader, "a")), 1007);
    let by_hand = db.begin().unwrap();
    by_hand.set_read_version(before);
    by_hand.add_conflict_range(b"a", b"b", ConflictRange::Read);
    by_hand.set(b"c", b"");
    assert_eq!(commit(&by_hand), 1007);
    let blind = db.begin().unwrap();
    blind.set_read_version(before);
    blind.set(b"c", b"");
    assert_eq!(commit(&blind), 0, "a blind write has read nothing");
}

/// Dropping a snapshot may remove files, and the store holds the lock of their folder.
#[test]
fn the_store_is_dropped_after_its_snapshots() {
    let (db, _, control) = open();
    put(&db, &[("a", "1")]);
    put(&db, &[("a", "2")]);
    control.snapshots_at_drop.store(usize::MAX, Ordering::SeqCst);
    drop(db);
    assert_eq!(control.snapshots_at_drop.load(Ordering::SeqCst), 0);
}
