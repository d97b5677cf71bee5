//! A store that fails under several committers. Every answer is true, and no committer waits forever.

use std::sync::atomic::{AtomicUsize, Ordering};

use kv_api::{Database, MutationType, Transaction, error};

use super::explore;
use super::history::World;
use super::store::Failure;
use crate::sync::thread;

/// Three threads commit twice each while something fails. Returns their answers.
fn codes_of(world: &World) -> Vec<i32> {
    let threads = [["1", "2"], ["3", "4"], ["5", "6"]].map(|names| {
        let world = world.clone();
        thread::spawn(move || names.map(|name| world.edit(name, &["all"], &[name])))
    });
    threads.map(|thread| thread.join().unwrap()).concat()
}

#[test]
fn a_refused_batch_fails_alone() {
    static REFUSED_WITH_OTHERS: AtomicUsize = AtomicUsize::new(0);
    explore(&[], || {
        let world = World::new(Failure::Refused(2), None);
        let codes = codes_of(&world);
        let refused = codes.iter().filter(|code| **code == error::IO_ERROR).count();
        assert!(codes.iter().all(|code| [0, error::IO_ERROR].contains(code)), "{codes:?}");
        assert!(refused > 0, "{codes:?}");
        REFUSED_WITH_OTHERS.fetch_add(usize::from(refused > 1), Ordering::Relaxed);
        assert_eq!(world.edit("after", &["1", "2"], &["after"]), 0);
        world.check(false);
    });
    assert!(REFUSED_WITH_OTHERS.load(Ordering::Relaxed) > 0, "a batch of several was refused");
}

/// A commit whose atomic operation cannot read its key, among others.
#[test]
fn a_failed_read_fails_its_commit_alone() {
    explore(&[], || {
        let world = World::new(Failure::Get(b"damaged"), None);
        let adder = {
            let world = world.clone();
            thread::spawn(move || {
                ["7", "8"].map(|name| {
                    let tx = world.db.begin().unwrap();
                    tx.atomic_op(MutationType::Add, b"damaged", b"\x01");
                    world.edit_in(&tx, name, &[], &[name])
                })
            })
        };
        assert_eq!(codes_of(&world), [0; 6]);
        assert_eq!(adder.join().unwrap(), [error::IO_ERROR; 2]);
        world.check(false);
    });
}

/// Commits of the failed batch are answered "unknown". Later ones fail as not committed, and the database is
/// closed.
fn breaks(failure: Failure) {
    let world = World::new(failure, None);
    let codes = codes_of(&world);
    let allowed = [0, error::IO_ERROR, error::COMMIT_UNKNOWN_RESULT];
    assert!(codes.iter().all(|code| allowed.contains(code)), "{codes:?}");
    assert!(codes.contains(&error::COMMIT_UNKNOWN_RESULT), "{codes:?}");
    assert_eq!(world.db.begin().unwrap_err().code(), error::IO_ERROR);
    assert_eq!(world.db.close().unwrap_err().code(), error::IO_ERROR);
    assert_eq!(world.disk.closes(), 0, "a store that failed is left alone");
    world.check(true);
}

#[test]
fn a_failed_apply_breaks_the_database() {
    explore(&[], || breaks(Failure::Lost { apply: 2, applied: true }));
    explore(&[], || breaks(Failure::Lost { apply: 1, applied: false }));
}

#[test]
fn a_failed_sync_breaks_the_database() {
    explore(&[], || breaks(Failure::Sync(1)));
    explore(&[], || breaks(Failure::Sync(2)));
}
