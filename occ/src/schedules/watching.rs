//! Watches beside commits. A change after what was seen completes the watch, whenever the watch was armed.

use std::sync::atomic::{AtomicUsize, Ordering};

use kv_api::{Database, Read, Transaction, error};
use shuttle::future::block_on;

use super::explore;
use super::history::World;
use super::store::Failure;
use crate::faults::Fault;
use crate::sync::thread;

/// A watch of `key` by a transaction that commits. Unless it saw `1`, it must complete.
fn wait_for_a_change(world: &World, writes: bool) -> bool {
    let tx = world.db.begin().unwrap();
    let watch = tx.watch(b"key");
    if writes {
        tx.set(b"other", b"");
    }
    let seen = block_on(tx.get(b"key", Read::Snapshot)).unwrap();
    let waits = seen.is_none();
    let code = block_on(tx.commit()).map_or_else(|error| error.code(), |()| 0);
    if writes && code == error::NOT_COMMITTED {
        assert_eq!(block_on(watch).unwrap_err().code(), code);
    } else if waits {
        assert_eq!(code, 0);
        block_on(watch).unwrap();
    }
    waits
}

/// Readers and a writer wait for a key that a third changes.
pub(super) fn waiting(fault: Option<Fault>) -> usize {
    let world = World::new(Failure::Nothing, fault);
    let watchers = [false, false, true].map(|writes| {
        let world = world.clone();
        thread::spawn(move || usize::from(wait_for_a_change(&world, writes)))
    });
    assert_eq!(world.edit("1", &[], &["key"]), 0);
    let waited = watchers.map(|watcher| watcher.join().unwrap());
    world.db.assert_no_watches();
    waited.iter().sum()
}

#[test]
fn a_change_wakes_whoever_did_not_see_it() {
    static WAITED: AtomicUsize = AtomicUsize::new(0);
    explore(&[], || {
        WAITED.fetch_add(waiting(None), Ordering::Relaxed);
    });
    assert!(WAITED.load(Ordering::Relaxed) > 0);
}

/// Watches are dropped, cancelled or closed during commits of their key. Each ends, and none is left.
#[test]
fn watches_end_with_whoever_holds_them() {
    explore(&[], || {
        let world = World::sound();
        let dropped = world.db.begin().unwrap();
        drop(dropped.watch(b"key"));
        let cancelled = world.db.begin().unwrap();
        let watch = cancelled.watch(b"key");
        let canceller = thread::spawn(move || cancelled.cancel());
        let dropper = thread::spawn(move || {
            let code = block_on(dropped.commit()).map_or_else(|error| error.code(), |()| 0);
            assert!([0, error::SHUTDOWN_IN_PROGRESS].contains(&code), "{code}");
        });
        let (armed, closer) = (world.clone(), world.clone());
        let armed = thread::spawn(move || {
            let Ok(tx) = armed.db.begin() else { return };
            let watch = tx.watch(b"key");
            let outcome = block_on(tx.commit()).and_then(|()| block_on(watch));
            let code = outcome.map_or_else(|error| error.code(), |()| 0);
            assert!([0, error::SHUTDOWN_IN_PROGRESS].contains(&code), "{code}");
        });
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.edit("1", &[], &["key"]))
        };
        assert_eq!(block_on(watch).unwrap_err().code(), error::TRANSACTION_CANCELLED);
        canceller.join().unwrap();
        closer.db.close().unwrap();
        dropper.join().unwrap();
        armed.join().unwrap();
        assert!([0, error::SHUTDOWN_IN_PROGRESS].contains(&writer.join().unwrap()));
        world.db.assert_no_watches();
        world.check(false);
    });
}
