//! Concurrent committers: one serial order, handing over the lead, dropped and cancelled commits, and the close.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use kv_api::{Database, Transaction, error};
use shuttle::future::block_on;

use super::explore;
use super::history::World;
use super::store::Failure;
use crate::faults::Fault;
use crate::sync::thread;

/// Transactions that read what others write. An order explains those that commit.
pub(super) fn rivals(fault: Option<Fault>) {
    let world = World::new(Failure::Nothing, fault);
    let edits: [(&str, &[&str], &[&str]); 4] =
        [("1", &["a"], &["b"]), ("2", &["b"], &["a"]), ("3", &["a", "b"], &["a"]), ("4", &[], &["b"])];
    let threads = edits.map(|(name, reads, writes)| {
        let world = world.clone();
        thread::spawn(move || world.edit(name, reads, writes))
    });
    let codes = threads.map(|thread| thread.join().unwrap());
    assert!(codes.iter().all(|code| [0, error::NOT_COMMITTED].contains(code)), "{codes:?}");
    assert_eq!(codes[3], 0, "a blind write never conflicts");
    world.check(false);
}

#[test]
fn rivals_have_one_order() {
    explore(&[], || rivals(None));
}

/// Blind writers, each several times. Commits queue and share batches, and the lead goes to the committer
/// thread and is given up again.
pub(super) fn crowd(fault: Option<Fault>) -> World {
    let world = World::new(Failure::Nothing, fault);
    let threads = [["1", "2"], ["3", "4"], ["5", "6"]].map(|names| {
        let world = world.clone();
        thread::spawn(move || names.map(|name| assert_eq!(world.edit(name, &[], &[name]), 0)))
    });
    assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
    world.check(false);
    world
}

#[test]
fn a_crowd_is_carried_by_the_committer_thread() {
    static CARRIED: AtomicUsize = AtomicUsize::new(0);
    static SHARED: AtomicUsize = AtomicUsize::new(0);
    explore(&[], || {
        let world = crowd(None);
        CARRIED.fetch_add(world.disk.carried(), Ordering::Relaxed);
        SHARED.fetch_add(world.committed() - world.disk.batches(), Ordering::Relaxed);
    });
    let (carried, shared) = (CARRIED.load(Ordering::Relaxed), SHARED.load(Ordering::Relaxed));
    println!("{carried} batches on the committer thread, {shared} commits in the batch of another");
    assert!(carried > 0 && shared > 0);
}

/// A commit is started and its future dropped. The commits behind it and in its batch still get their answers.
#[test]
fn a_dropped_commit_strands_nobody() {
    explore(&[], || {
        let world = World::sound();
        let dropper = {
            let world = world.clone();
            thread::spawn(move || {
                let tx = world.db.begin().unwrap();
                tx.set(b"dropped", b"");
                let mut commit = Box::pin(tx.commit());
                let _ = commit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            })
        };
        let writers = ["1", "2"].map(|name| {
            let world = world.clone();
            thread::spawn(move || world.edit(name, &[], &[name]))
        });
        dropper.join().unwrap();
        assert_eq!(writers.map(|writer| writer.join().unwrap()), [0, 0]);
        assert_eq!(world.edit("3", &[], &["3"]), 0);
        world.disk.check();
        assert!(world.disk.synced().contains_key(b"dropped".as_slice()), "what was begun is carried");
    });
}

#[test]
fn a_commit_is_cancelled_or_done() {
    static CANCELLED: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicBool = AtomicBool::new(false);
    explore(&[], || {
        let world = World::sound();
        let tx = world.db.begin().unwrap();
        let other = {
            let world = world.clone();
            thread::spawn(move || assert_eq!(world.edit("other", &[], &["other"]), 0))
        };
        let committer = {
            let (world, tx) = (world.clone(), tx.clone());
            thread::spawn(move || world.edit_in(&tx, "tx", &[], &["tx"]))
        };
        tx.cancel();
        let code = committer.join().unwrap();
        other.join().unwrap();
        if code == 0 { &DONE } else { &CANCELLED }.store(true, Ordering::Relaxed);
        assert!([0, error::TRANSACTION_CANCELLED].contains(&code), "{code}");
        world.check(true);
    });
    assert!(CANCELLED.load(Ordering::Relaxed) && DONE.load(Ordering::Relaxed));
}

/// A close between commits. Each commit is on the disk or answered that it is not, the store is closed once and
/// not called after, and every committer is answered.
#[test]
fn a_close_among_commits_answers_everybody() {
    static DONE: AtomicUsize = AtomicUsize::new(0);
    static SHUT: AtomicUsize = AtomicUsize::new(0);
    explore(&[], || {
        let world = World::sound();
        let writers = ["1", "2", "3"].map(|name| {
            let world = world.clone();
            thread::spawn(move || world.edit(name, &[], &[name]))
        });
        let closers = [(), ()].map(|()| {
            let world = world.clone();
            thread::spawn(move || world.db.close().unwrap())
        });
        for code in writers.map(|writer| writer.join().unwrap()) {
            assert!([0, error::SHUTDOWN_IN_PROGRESS].contains(&code), "{code}");
            if code == 0 { &DONE } else { &SHUT }.fetch_add(1, Ordering::Relaxed);
        }
        closers.into_iter().for_each(|closer| closer.join().unwrap());
        assert_eq!(world.disk.closes(), 1);
        assert_eq!(world.edit("late", &[], &["late"]), error::SHUTDOWN_IN_PROGRESS);
        world.check(false);
    });
    assert!(DONE.load(Ordering::Relaxed) > 0 && SHUT.load(Ordering::Relaxed) > 0);
}

/// The last handle is dropped during commits. Only their transactions keep the database open.
#[test]
fn the_last_transaction_closes_the_database() {
    explore(&[], || {
        let world = World::sound();
        let disk = world.disk.clone();
        let commits = ["1", "2"].map(|name| {
            let tx = world.db.begin().unwrap();
            tx.set(name.as_bytes(), b"");
            thread::spawn(move || block_on(tx.commit()))
        });
        drop(world);
        commits.into_iter().for_each(|commit| commit.join().unwrap().unwrap());
        assert_eq!((disk.closes(), disk.synced().len()), (1, 2));
        disk.check();
    });
}
