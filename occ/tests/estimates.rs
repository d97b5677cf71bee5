//! Estimates of sizes: accurate enough, and without a walk over large ranges.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kv_api::{Database, Transaction};
use occ::OccBuilder;
use support::*;

const ROWS: usize = 24_000;

fn key(n: usize) -> String {
    format!("k{n:06}")
}

fn fill(db: &Db) {
    for first in (0..ROWS).step_by(6_000) {
        let tx = db.begin().unwrap();
        (first..first + 6_000).for_each(|n| tx.set(key(n).as_bytes(), &[b'v'; 993]));
        block_on(tx.commit()).unwrap();
    }
}

/// The estimate, and the number of rows read for it.
fn estimate(db: &Db, control: &Control, begin: &str, end: &str) -> (u64, usize) {
    let before = control.scanned.load(Ordering::Relaxed);
    let tx = db.begin().unwrap();
    let bytes = block_on(tx.get_estimated_range_size(begin.as_bytes(), end.as_bytes())).unwrap();
    (bytes, control.scanned.load(Ordering::Relaxed) - before)
}

#[test]
fn a_large_range_is_not_walked_and_a_small_one_is_counted() {
    let (db, _, control) = open();
    fill(&db);
    let (whole, scanned) = estimate(&db, &control, "k", "l");
    assert!((18_000_000..30_000_000).contains(&whole), "{whole}");
    assert!(scanned <= 1_001, "{scanned} rows were read");
    assert_eq!(estimate(&db, &control, &key(100), &key(300)).0, 200_000);
    let (system, scanned) = estimate(&db, &control, "l", "\u{7f}");
    assert_eq!((system, scanned), (0, 0));
}

#[test]
fn a_store_that_is_opened_again_still_knows() {
    let (db, clock, control) = open();
    fill(&db);
    let before = estimate(&db, &control, "k", "l").0;
    drop(db);
    let db = OccBuilder::new().clock(clock).seed(2).open(TestStore(Arc::clone(&control))).unwrap();
    let (after, scanned) = estimate(&db, &control, "k", "l");
    assert_eq!(after, before);
    assert!(scanned <= 1_001, "{scanned} rows were read");
    let tx = db.begin().unwrap();
    tx.clear_range(key(0).as_bytes(), key(ROWS / 2).as_bytes());
    block_on(tx.commit()).unwrap();
    let half = estimate(&db, &control, "k", "l").0;
    assert!((8_000_000..16_000_000).contains(&half), "{half}");
}

#[test]
fn a_refused_batch_leaves_the_estimate_as_it_was() {
    let (db, _, control) = open();
    fill(&db);
    let before = estimate(&db, &control, "k", "l").0;
    control.refuse_apply.store(true, Ordering::Relaxed);
    let tx = db.begin().unwrap();
    tx.clear_range(b"k", b"l");
    assert_eq!(commit(&tx), 1510);
    assert_eq!(estimate(&db, &control, "k", "l").0, before);
}
