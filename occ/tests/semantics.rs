//! What a transaction sees, and with which others it conflicts.

mod support;

use std::time::Duration;

use kv_api::{ConflictRange, Database, KeySelector, MutationType, RangeRequest, Read, Transaction, TransactionOption};
use support::*;

const S: Read = Read::Serializable;

/// Whether a transaction that runs `read` and then writes elsewhere conflicts with a commit of `write` in between.
fn conflicts(rows: &[(&str, &str)], read: impl Fn(&dyn Fn() -> Tx, &Tx), write: impl Fn(&Tx)) -> bool {
    let (db, _clock, _) = open();
    put(&db, rows);
    let reader = db.begin().unwrap();
    read(&|| db.begin().unwrap(), &reader);
    let writer = db.begin().unwrap();
    write(&writer);
    assert_eq!(commit(&writer), 0);
    reader.set(b"elsewhere", b"");
    match commit(&reader) {
        0 => false,
        1020 => true,
        other => panic!("{other}"),
    }
}

type Tx = <Db as Database>::Transaction;

#[test]
fn own_writes_are_seen_in_gets_and_ranges_both_ways() {
    let (db, _, _) = open();
    put(&db, &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    let tx = db.begin().unwrap();
    tx.set(b"bb", b"new");
    tx.clear(b"a");
    tx.clear_range(b"c", b"d");
    tx.atomic_op(MutationType::ByteMax, b"d", b"9");
    tx.atomic_op(MutationType::AppendIfFits, b"e", b"x");
    tx.atomic_op(MutationType::AppendIfFits, b"c", b"over a clear");
    tx.clear(b"c");
    assert_eq!(rows(&tx, RangeRequest::keys("", "\u{7f}")), "b=2 bb=new d=9 e=x");
    assert_eq!(rows(&tx, RangeRequest::keys("", "\u{7f}").reverse()), "e=x d=9 bb=new b=2");
    assert_eq!(rows(&tx, RangeRequest::keys("", "\u{7f}").reverse().limit(1)), "e=x");
    assert_eq!(block_on(tx.get_key(&KeySelector::first_greater_than("b").plus(1), S)).unwrap(), "d");
    assert_eq!(block_on(tx.get_key(&KeySelector::last_less_than("d"), S)).unwrap(), "bb");
    assert_eq!(block_on(tx.get_key(&KeySelector::last_less_than("b"), S)).unwrap(), "");
    assert_eq!(block_on(tx.get_key(&KeySelector::first_greater_than("e"), S)).unwrap(), b"\xff"[..]);
    assert_eq!(commit(&tx), 0);
    assert_eq!(rows(&db.begin().unwrap(), RangeRequest::keys("", "\u{7f}")), "b=2 bb=new d=9 e=x");
}

#[test]
fn a_read_key_that_changes_conflicts() {
    assert!(conflicts(&[], |_, tx| drop(get(tx, "a")), |tx| tx.set(b"a", b"")));
    assert!(!conflicts(&[], |_, tx| drop(get(tx, "a")), |tx| tx.set(b"a\0", b"")));
    assert!(conflicts(&[], |_, tx| drop(get(tx, "b")), |tx| tx.clear_range(b"a", b"c")));
    assert!(!conflicts(&[], |_, tx| drop(block_on(tx.get(b"a", Read::Snapshot))), |tx| tx.set(b"a", b"")));
}

#[test]
fn a_key_set_independently_adds_no_conflict_and_a_dependent_one_does() {
    let write = |tx: &Tx| tx.set(b"a", b"");
    assert!(!conflicts(&[], |_, tx| (tx.set(b"a", b"1"), drop(get(tx, "a"))).1, write));
    assert!(!conflicts(&[], |_, tx| (tx.clear(b"a"), drop(get(tx, "a"))).1, write));
    assert!(conflicts(&[], |_, tx| (tx.atomic_op(MutationType::Add, b"a", b"1"), drop(get(tx, "a"))).1, write));
    assert!(!conflicts(&[], |_, tx| tx.atomic_op(MutationType::Add, b"a", b"1"), write));
    let around = |_: &dyn Fn() -> Tx, tx: &Tx| {
        tx.set(b"b", b"");
        tx.clear_range(b"c", b"d");
        rows(tx, RangeRequest::keys("a", "e"));
    };
    for (key, conflict) in
        [("a", true), ("b", false), ("b\0", true), ("c", false), ("cz", false), ("d", true), ("e", false)]
    {
        assert_eq!(conflicts(&[], around, |tx| tx.set(key.as_bytes(), b"")), conflict, "{key:?}");
    }
}

#[test]
fn a_stopped_range_conflicts_only_over_what_it_returned() {
    let data = [("a", ""), ("b", ""), ("c", ""), ("d", "")];
    let first_two = |_: &dyn Fn() -> Tx, tx: &Tx| drop(rows(tx, RangeRequest::keys("a", "z").limit(2)));
    let last_two = |_: &dyn Fn() -> Tx, tx: &Tx| drop(rows(tx, RangeRequest::keys("a", "z").limit(2).reverse()));
    let by_bytes =
        |_: &dyn Fn() -> Tx, tx: &Tx| drop(block_on(tx.get_range(&RangeRequest::keys("a", "z").target_bytes(2), S)));
    for (key, forward, reverse) in
        [("aa", true, false), ("b", true, false), ("bb", false, false), ("c", false, true), ("x", false, true)]
    {
        assert_eq!(conflicts(&data, first_two, |tx| tx.set(key.as_bytes(), b"")), forward, "{key}");
        assert_eq!(conflicts(&data, last_two, |tx| tx.set(key.as_bytes(), b"")), reverse, "{key}");
        assert_eq!(conflicts(&data, by_bytes, |tx| tx.set(key.as_bytes(), b"")), forward, "{key}");
    }
}

#[test]
fn selectors_conflict_over_the_span_they_walked() {
    let data = [("a", ""), ("c", ""), ("e", ""), ("g", "")];
    let forward = |_: &dyn Fn() -> Tx, tx: &Tx| {
        assert_eq!(block_on(tx.get_key(&KeySelector::first_greater_than("a").plus(1), S)).unwrap(), "e");
    };
    let backward = |_: &dyn Fn() -> Tx, tx: &Tx| {
        assert_eq!(block_on(tx.get_key(&KeySelector::last_less_than("g").plus(-1), S)).unwrap(), "c");
    };
    for (key, walked_forward, walked_backward) in [
        ("a", false, false),
        ("b", true, false),
        ("c", true, true),
        ("d", true, true),
        ("e", true, true),
        ("f", false, true),
        ("g", false, false),
    ] {
        assert_eq!(conflicts(&data, forward, |tx| tx.set(key.as_bytes(), b"x")), walked_forward, "{key}");
        assert_eq!(conflicts(&data, backward, |tx| tx.set(key.as_bytes(), b"x")), walked_backward, "{key}");
    }
}

#[test]
fn blind_writes_and_read_only_transactions_never_conflict() {
    let (db, clock, _) = open();
    let (one, two, reader) = (db.begin().unwrap(), db.begin().unwrap(), db.begin().unwrap());
    get(&reader, "a");
    one.set(b"a", b"1");
    two.set(b"a", b"2");
    assert_eq!((commit(&one), commit(&two), commit(&reader)), (0, 0, 0));
    assert_eq!(now(&db, "a").as_deref(), Some("2"));
    assert_eq!(reader.get_committed_version().unwrap(), -1);
    assert!(two.get_committed_version().unwrap() > one.get_committed_version().unwrap());
    // Nor do they age.
    let (reader, blind, aged) = (db.begin().unwrap(), db.begin().unwrap(), db.begin().unwrap());
    block_on(blind.get_read_version()).unwrap();
    get(&reader, "a");
    get(&aged, "a");
    clock.advance(Duration::from_secs(6));
    blind.set(b"b", b"");
    aged.set(b"b", b"");
    assert_eq!((commit(&reader), commit(&blind), commit(&aged)), (0, 0, 1007));
}

#[test]
fn write_skew_is_refused() {
    let (db, _, _) = open();
    let (one, two) = (db.begin().unwrap(), db.begin().unwrap());
    get(&one, "a");
    get(&two, "b");
    one.set(b"b", b"");
    two.set(b"a", b"");
    assert_eq!((commit(&one), commit(&two)), (0, 1020));
}

#[test]
fn conflict_ranges_by_hand() {
    let (db, _, _) = open();
    let (one, two, three) = (db.begin().unwrap(), db.begin().unwrap(), db.begin().unwrap());
    for tx in [&one, &two, &three] {
        block_on(tx.get_read_version()).unwrap();
    }
    one.add_conflict_range(b"a", b"c", ConflictRange::Write);
    two.add_conflict_range(b"b", b"b\0", ConflictRange::Read);
    two.set(b"z", b"");
    three.add_conflict_range(b"c", b"d", ConflictRange::Read);
    three.set(b"z", b"");
    assert_eq!((commit(&one), commit(&two), commit(&three)), (0, 1020, 0));
    assert!(one.get_committed_version().unwrap() > 0, "a write conflict range alone is a write");

    let (hidden, reader) = (db.begin().unwrap(), db.begin().unwrap());
    get(&reader, "a");
    reader.set(b"z", b"");
    hidden.set_option(TransactionOption::NextWriteNoWriteConflictRange);
    hidden.set(b"a", b"");
    assert_eq!((commit(&hidden), commit(&reader)), (0, 0));
}

#[test]
fn read_versions() {
    let (db, clock, _) = open();
    put(&db, &[("a", "1")]);
    let early = block_on(db.begin().unwrap().get_read_version()).unwrap();
    clock.advance(Duration::from_secs(1));
    put(&db, &[("a", "2")]);
    let late = block_on(db.begin().unwrap().get_read_version()).unwrap();
    assert!(late >= early + 1_000_000);
    let at = |version: i64| {
        let tx = db.begin().unwrap();
        tx.set_read_version(version);
        try_get(&tx, "a").map_err(|error| error.code())
    };
    assert_eq!(at(early), Ok(Some("1".into())));
    assert_eq!(at(late), Ok(Some("2".into())));
    assert_eq!(at(late + 1_000_000), Err(1009));
    assert_eq!(at(0), Err(2011));
    clock.advance(Duration::from_millis(4_500));
    assert_eq!(at(early), Err(1007));
    assert_eq!(at(late), Ok(Some("2".into())));
    let tx = db.begin().unwrap();
    block_on(tx.get_read_version()).unwrap();
    tx.set_read_version(late);
    assert_eq!(code(try_get(&tx, "a")), 2010);
    // A transaction ages with time, whether or not anything is written.
    let tx = db.begin().unwrap();
    assert!(try_get(&tx, "a").is_ok());
    clock.advance(Duration::from_millis(5_001));
    assert_eq!(code(try_get(&tx, "a")), 1007);
}
