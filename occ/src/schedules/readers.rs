//! Readers beside committers. What they see is synced, whole, and does not change. Versions that are too old
//! are refused, and their snapshots dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kv_api::{Database, RangeRequest, Read, Transaction, error};
use shuttle::future::block_on;

use super::explore;
use super::history::World;
use super::store::{Failure, Map};
use crate::faults::Fault;
use crate::sync::thread;

fn rows(tx: &impl Transaction) -> Map {
    let batch = block_on(tx.get_range(&RangeRequest::keys("", "\u{7f}"), Read::Snapshot)).unwrap();
    batch.rows.into_iter().map(|row| (row.key, row.value)).collect()
}

/// Law 4: a crash right after a read takes back nothing that was read, and no version that was returned.
pub(super) fn reading(fault: Option<Fault>) {
    let world = World::new(Failure::Nothing, fault);
    let writers = [("1", ["a", "b"]), ("2", ["b", "c"])].map(|(name, keys)| {
        let world = world.clone();
        thread::spawn(move || assert_eq!(world.edit(name, &[], &keys), 0))
    });
    let mut last = 0;
    for _ in 0..2 {
        let tx = world.db.begin().unwrap();
        let version = block_on(tx.get_read_version()).unwrap();
        assert!(world.disk.first_at_risk().is_none_or(|at_risk| at_risk > version), "a read version at risk");
        assert!(version >= last, "read versions go back");
        last = version;
        let seen = rows(&tx);
        let (synced, first, second) = (world.disk.synced(), seen.get(b"a".as_slice()), seen.get(b"c".as_slice()));
        assert!(seen.keys().all(|key| synced.contains_key(key)), "{seen:?} was read, {synced:?} is synced");
        let b = seen.get(b"b".as_slice());
        assert!(
            first.is_none() && second.is_none() || b.is_some_and(|b| Some(b) == first || Some(b) == second),
            "{seen:?}"
        );
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(rows(&tx), seen, "a snapshot changed");
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    world.check(false);
}

#[test]
fn nothing_is_read_that_a_crash_could_take_back() {
    explore(&[], || reading(None));
}

/// Time passes for a reader. It sees one state or fails with 1007, and its commit is right or refused.
#[test]
fn a_slow_reader_sees_one_state_or_is_too_old() {
    static CODES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    explore(&[], || {
        let world = World::sound();
        assert_eq!(world.edit("0", &[], &["a", "b"]), 0);
        let slow = {
            let world = world.clone();
            thread::spawn(move || {
                let tx = world.db.begin().unwrap();
                world.edit_in(&tx, "slow", &["a", "b"], &["c"])
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || ["1", "2"].map(|name| assert_eq!(world.edit(name, &[], &["a", "b"]), 0)))
        };
        world.clock.advance(Duration::from_secs(4));
        world.clock.advance(Duration::from_secs(4));
        let code = slow.join().unwrap();
        writer.join().unwrap();
        let known = [0, error::NOT_COMMITTED, error::TRANSACTION_TOO_OLD];
        let at = known.iter().position(|known| *known == code).expect("another code");
        CODES[at].fetch_add(1, Ordering::Relaxed);
        world.check(false);
    });
    let codes = CODES.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{codes:?} schedules end with 0, 1020, 1007");
    assert!(codes.iter().all(|count| *count > 0), "{codes:?}");
}

/// After the window has passed, only the head is held: neither the window nor a transaction that gets 1007
/// keeps another snapshot.
#[test]
fn views_are_let_go() {
    explore(&[], || {
        let world = World::sound();
        let slow = world.db.begin().unwrap();
        let readers = ["1", "2"].map(|name| {
            let (world, slow) = (world.clone(), slow.clone());
            thread::spawn(move || {
                block_on(slow.get(b"a", Read::Snapshot)).unwrap();
                assert_eq!(world.edit(name, &["a"], &[name]), 0);
            })
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        world.clock.advance(Duration::from_secs(6));
        assert_eq!(block_on(slow.get(b"a", Read::Snapshot)).unwrap_err().code(), error::TRANSACTION_TOO_OLD);
        assert_eq!(world.edit("3", &[], &["a"]), 0);
        assert_eq!(world.disk.living_snapshots(), 2, "the head, and the one that was read until its commit");
        world.clock.advance(Duration::from_secs(6));
        block_on(world.db.begin().unwrap().get_read_version()).unwrap();
        assert_eq!(world.disk.living_snapshots(), 1, "the head");
        drop(slow);
        world.check(false);
    });
}
