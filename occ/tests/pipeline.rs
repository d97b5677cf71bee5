//! The commit pipeline: shared syncs, failures of the store, and dropped futures.

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use kv_api::{Database, Error, MutationType, Read, Result, Transaction, TransactionOption};
use occ::store::{Batch, Snapshot, Store};
use occ::{ManualClock, OccBuilder, OccDatabase, last_version};
use support::*;

type Tx = <Db as Database>::Transaction;

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn writer(db: &Db, key: &str) -> Tx {
    let tx = db.begin().unwrap();
    tx.set(key.as_bytes(), b"");
    tx
}

/// Runs `queued` while another commit is blocked in its sync.
fn behind_a_slow_sync(db: &Db, control: &Control, queued: impl FnOnce()) {
    std::thread::scope(|scope| {
        let gate = control.sync_gate.lock().unwrap();
        let before = control.applies.load(Ordering::SeqCst);
        let slow = scope.spawn(|| commit(&writer(db, "slow")));
        while control.applies.load(Ordering::SeqCst) == before {
            std::thread::yield_now();
        }
        queued();
        drop(gate);
        assert_eq!(slow.join().unwrap(), 0);
    });
}

#[test]
fn commits_that_queue_share_one_sync() {
    let (db, _, control) = open();
    let mut waiting = Vec::new();
    behind_a_slow_sync(&db, &control, || {
        for at in 0..50 {
            let mut commit = Box::pin(writer(&db, &format!("{at:02}")).commit());
            assert!(poll_once(&mut commit).is_pending());
            waiting.push(commit);
        }
    });
    for commit in waiting {
        block_on(commit).unwrap();
    }
    assert_eq!(control.syncs.load(Ordering::SeqCst), 2, "one for the slow commit, one for the fifty behind it");
    assert_eq!(now(&db, "49").as_deref(), Some(""));
}

/// Tasks of one executor: while its thread syncs for one of them, no other task can queue its commit.
#[test]
fn commits_of_tasks_of_one_thread_share_one_sync() {
    let (db, _, control) = open();
    let task = |at: usize| {
        let db = &db;
        async move {
            for round in 0..3 {
                writer(db, &format!("{round}/{at:02}")).commit().await.unwrap();
            }
        }
    };
    block_on(join_all((0..20).map(task)));
    assert_eq!(control.syncs.load(Ordering::SeqCst), 3, "one for each round of twenty");
}

#[test]
fn a_commit_that_lets_others_go_first_waits_for_nobody() {
    let (db, _, control) = open();
    let [dropped, left, last] = ["dropped", "left", "last"].map(|key| writer(&db, key));
    let mut gone = Box::pin(dropped.commit());
    assert!(poll_once(&mut gone).is_pending());
    drop(gone);
    while !TestSnapshot::has(&control, "dropped") {
        std::thread::yield_now();
    }
    let mut left = Box::pin(left.commit());
    assert!(poll_once(&mut left).is_pending());
    assert_eq!(commit(&last), 0);
    assert!(TestSnapshot::has(&control, "left"), "who comes next carries what nobody polls");
    let closed = writer(&db, "closed");
    let mut closed = Box::pin(closed.commit());
    assert!(poll_once(&mut closed).is_pending());
    db.close().unwrap();
    assert!(TestSnapshot::has(&control, "closed"));
    block_on(left).unwrap();
    block_on(closed).unwrap();
}

#[test]
fn a_commit_without_rivals_ends_in_its_second_poll() {
    let (db, _, control) = open();
    let tx = writer(&db, "a");
    let mut committing = Box::pin(tx.commit());
    assert!(poll_once(&mut committing).is_pending(), "others go first");
    assert!(poll_once(&mut committing).is_ready());
    assert_eq!(control.gets.load(Ordering::SeqCst), 2, "the opening reads two marks; a set reads nothing");
    let tx = db.begin().unwrap();
    tx.atomic_op(MutationType::Add, b"a", b"\x01");
    assert_eq!(commit(&tx), 0);
    assert_eq!(control.gets.load(Ordering::SeqCst), 3, "an atomic operation reads its own key");
}

#[test]
fn nothing_is_read_before_it_is_synced() {
    let (db, _, control) = open();
    behind_a_slow_sync(&db, &control, || {
        assert_eq!(now(&db, "slow"), None);
        let tx = db.begin().unwrap();
        let early = block_on(tx.get_read_version()).unwrap();
        let later = block_on(db.begin().unwrap().get_read_version()).unwrap();
        assert!(later >= early);
    });
    assert_eq!(now(&db, "slow").as_deref(), Some(""));
}

/// The watch is armed after the batch has looked for watches of its keys, and before the batch can be read.
#[test]
fn a_watch_that_is_armed_while_its_key_is_being_synced_is_woken() {
    let (db, _, control) = open();
    let mut watch = None;
    behind_a_slow_sync(&db, &control, || {
        let tx = db.begin().unwrap();
        watch = Some(Box::pin(tx.watch(b"slow")));
        assert_eq!(commit(&tx), 0);
        assert!(watch.as_mut().is_some_and(|watch| poll_once(watch).is_pending()));
    });
    assert!(watch.as_mut().is_some_and(|watch| poll_once(watch).is_ready()));
}

#[test]
fn a_commit_that_cannot_begin_answers_for_its_stamp_and_its_watches() {
    let (db, _, _) = open();
    let (wrong, late) = (writer(&db, "a"), writer(&db, "b"));
    wrong.set(b"\xff", b"");
    let stamp = wrong.get_versionstamp();
    assert_eq!([commit(&wrong), code(block_on(stamp))], [2004, 2004]);
    let (stamp, watch) = (late.get_versionstamp(), late.watch(b"w"));
    db.close().unwrap();
    assert_eq!([commit(&late), code(block_on(stamp)), code(block_on(watch))], [1043; 3]);
}

#[test]
fn a_dropped_commit_strands_nobody() {
    let (db, _, control) = open();
    let (mut kept, mut unpolled) = (Vec::new(), None);
    behind_a_slow_sync(&db, &control, || {
        for at in 0..20 {
            let mut commit = Box::pin(writer(&db, &format!("{at:02}")).commit());
            assert!(poll_once(&mut commit).is_pending());
            if at % 2 == 0 {
                kept.push(commit);
            }
        }
        unpolled = Some(writer(&db, "never").commit());
    });
    drop(unpolled);
    kept.into_iter().for_each(|commit| block_on(commit).unwrap());
    assert_eq!(commit(&writer(&db, "after")), 0);
    assert_eq!(now(&db, "19").as_deref(), Some(""), "what was queued is carried, whoever waits for it");
    assert_eq!(now(&db, "never"), None);
}

#[test]
fn a_commit_that_is_dropped_before_its_first_poll_cancels_what_waits_for_it() {
    let (db, _, _) = open();
    for tx in [writer(&db, "a"), db.begin().unwrap()] {
        let (stamp, watch) = (tx.get_versionstamp(), tx.watch(b"w"));
        drop(tx.commit());
        let outcomes = [poll_once(&mut Box::pin(stamp)).map(|stamp| stamp.map(drop)), poll_once(&mut Box::pin(watch))];
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Poll::Ready(Err(error)) if error.code() == 1025)));
        assert_eq!(code(block_on(tx.get(b"a", Read::Snapshot))), 2017);
        tx.reset();
        assert_eq!(try_get(&tx, "a").unwrap(), None, "nothing was committed");
    }
}

/// Commits of more bytes than the queue takes.
#[test]
fn a_full_queue_refuses_commits_until_there_is_room() {
    let (db, _, control) = open();
    let value = vec![0; 100_000];
    let large = |name: u32| {
        let tx = db.begin().unwrap();
        (0..78_u32).for_each(|row| tx.set([name.to_be_bytes(), row.to_be_bytes()].concat(), &value));
        tx
    };
    let (mut waiting, mut refused) = (Vec::new(), Vec::new());
    behind_a_slow_sync(&db, &control, || {
        for name in 0..40 {
            let tx = large(name);
            let watch = tx.watch(b"w");
            let mut commit = Box::pin(tx.commit());
            match poll_once(&mut commit) {
                Poll::Pending => waiting.push(commit),
                Poll::Ready(outcome) => {
                    assert_eq!(code(block_on(watch)), 1042);
                    refused.push((tx, outcome.unwrap_err()));
                }
            }
        }
    });
    assert_eq!((waiting.len(), refused.len()), (8, 32), "64 MB of the 320");
    for commit in waiting {
        block_on(commit).unwrap();
    }
    for (tx, error) in refused {
        assert!(error.code() == 1042 && error.is_retryable_not_committed(), "{error}");
        tx.reset();
        tx.set(b"again", b"");
        assert_eq!(commit(&tx), 0, "there is room again");
    }
}

#[test]
fn very_many_watches_of_one_key_are_woken_and_leave_nothing() {
    let (db, _, _) = open();
    let most = db.limits().watches;
    for round in 0..2 {
        let tx = db.begin().unwrap();
        let watches: Vec<_> = (0..most).map(|_| tx.watch(b"a")).collect();
        assert_eq!(code(block_on(tx.watch(b"a"))), 1032);
        assert_eq!(commit(&tx), 0);
        put(&db, &[("a", &round.to_string())]);
        watches.into_iter().for_each(|watch| assert_eq!(code(block_on(watch)), 0));
    }
}

#[test]
fn a_cancelled_or_misused_commit_is_answered_at_once() {
    let (db, clock, control) = open();
    behind_a_slow_sync(&db, &control, || {
        let (cancelled, misused, reset, late) =
            (writer(&db, "1"), writer(&db, "2"), writer(&db, "3"), writer(&db, "4"));
        late.set_option(TransactionOption::Timeout(Duration::from_millis(20)));
        let mut commits: Vec<_> = [&cancelled, &misused, &reset, &late].map(|tx| Box::pin(tx.commit())).into();
        assert!(commits.iter_mut().all(|commit| poll_once(commit).is_pending()));
        cancelled.cancel();
        assert_eq!(code(block_on(misused.get(b"a", Read::Snapshot))), 2017);
        reset.reset();
        clock.advance(Duration::from_millis(20));
        let codes: Vec<i32> = commits.into_iter().map(|commit| code(block_on(commit))).collect();
        assert_eq!(codes, [1025, 2017, 1025, 1031]);
        assert_eq!(try_get(&reset, "1").unwrap(), None, "after a reset it can be used again");
    });
    assert_eq!(commit(&writer(&db, "after")), 0);
}

#[test]
fn a_failed_sync_is_unknown_to_its_batch_and_closes_the_database() {
    let (db, _, control) = open();
    put(&db, &[("a", "1")]);
    let (watcher, reader) = (db.begin().unwrap(), db.begin().unwrap());
    let watch = watcher.watch(b"w");
    assert_eq!(commit(&watcher), 0);
    assert_eq!(get(&reader, "a").as_deref(), Some("1"));
    control.fail_sync.store(true, Ordering::SeqCst);
    let lost = writer(&db, "lost");
    let stamp = lost.get_versionstamp();
    let error = block_on(lost.commit()).unwrap_err();
    assert!(error.is_maybe_committed() && error.to_string().contains("told to fail"), "{error}");
    assert_eq!(code(block_on(stamp)), 1021);
    let error = block_on(watch).unwrap_err();
    assert_eq!(error.code(), 1510);
    assert!(error.to_string().contains("open it again"), "{error}");
    assert_eq!(db.begin().unwrap_err().code(), 1510);
    assert_eq!(code(try_get(&reader, "a")), 1510);
    reader.set(b"z", b"");
    assert_eq!(commit(&reader), 1510);
    assert_eq!(db.close().unwrap_err().code(), 1510);
}

#[test]
fn those_behind_a_failed_sync_are_certainly_not_committed() {
    let (db, _, control) = open();
    let mut waiting = None;
    std::thread::scope(|scope| {
        let gate = control.sync_gate.lock().unwrap();
        let slow = scope.spawn(|| commit(&writer(&db, "slow")));
        while control.applies.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let mut commit = Box::pin(writer(&db, "behind").commit());
        assert!(poll_once(&mut commit).is_pending());
        waiting = Some(commit);
        control.fail_sync.store(true, Ordering::SeqCst);
        drop(gate);
        assert_eq!(slow.join().unwrap(), 1021);
    });
    let error = block_on(waiting.unwrap()).unwrap_err();
    assert!(!error.is_maybe_committed(), "{error}");
    assert_eq!(error.code(), 1510);
}

#[test]
fn a_refused_batch_fails_for_sure_and_the_database_goes_on() {
    let (db, _, control) = open();
    control.refuse_apply.store(true, Ordering::SeqCst);
    assert_eq!(commit(&writer(&db, "a")), 1510);
    control.refuse_apply.store(false, Ordering::SeqCst);
    assert_eq!(now(&db, "a"), None);
    assert_eq!(commit(&writer(&db, "a")), 0);
}

#[test]
fn a_failed_apply_and_a_panic_in_the_store_close_the_database() {
    for panics in [false, true] {
        let (db, _, control) = open();
        if panics { &control.panic_in_apply } else { &control.fail_apply }.store(true, Ordering::SeqCst);
        assert_eq!(commit(&writer(&db, "a")), 1021);
        assert_eq!(db.begin().unwrap_err().code(), if panics { 4100 } else { 1510 });
    }
}

#[test]
fn closing_ends_everything_and_keeps_the_version() {
    let (db, _, control) = open();
    let (tx, watcher) = (writer(&db, "a"), db.begin().unwrap());
    assert_eq!(commit(&tx), 0);
    let committed = tx.get_committed_version().unwrap();
    let watch = watcher.watch(b"w");
    assert_eq!(commit(&watcher), 0);
    let open_one = writer(&db, "b");
    db.close().unwrap();
    db.close().unwrap();
    assert_eq!(control.closes.load(Ordering::SeqCst), 1);
    assert_eq!(code(block_on(watch)), 1043);
    assert_eq!(commit(&open_one), 1043);
    assert_eq!(db.begin().unwrap_err().code(), 1043);
    drop((db, tx, watcher, open_one));
    assert_eq!(control.closes.load(Ordering::SeqCst), 1);

    // The same store, with a clock that was set back to its origin.
    let db: OccDatabase<TestStore> =
        OccBuilder::new().clock(occ::ManualClock::new()).open(TestStore(control.clone())).unwrap();
    assert!(block_on(db.begin().unwrap().get_read_version()).unwrap() > committed);
    assert_eq!(occ::last_version(&occ::store::Store::snapshot(db.store()).unwrap()).unwrap(), committed);
    let tx = writer(&db, "b");
    assert_eq!(commit(&tx), 0);
    assert!(tx.get_committed_version().unwrap() > committed);
    drop((db, tx));
    assert_eq!(control.closes.load(Ordering::SeqCst), 2, "the last handle closes");
}

#[test]
fn a_damaged_version_mark_is_refused() {
    for (mark, expected) in [(b"\0\x01\0".to_vec(), 1522), (b"\0\x02\0\0\0\0\0\0\0\x01".to_vec(), 2108)] {
        let store = TestStore::default();
        Arc::make_mut(&mut store.0.head.lock().unwrap()).insert(b"\xff/occ/version".as_slice().into(), mark.into());
        assert_eq!(code(OccBuilder::new().open(store)), expected);
    }
}

/// The last handle belongs to a task that is dropped by the thread that commits for it.
#[test]
fn the_last_handle_may_be_dropped_inside_a_round() {
    struct Owner(std::sync::Mutex<Option<(Db, Tx)>>, AtomicBool);

    impl Wake for Owner {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
            self.1.store(true, Ordering::SeqCst);
        }
    }

    let (db, _, control) = open();
    let owner = Arc::new(Owner(std::sync::Mutex::new(None), AtomicBool::new(false)));
    let tx = writer(&db, "queued");
    let mut queued = Box::pin(tx.commit());
    behind_a_slow_sync(&db, &control, || {
        let waker = Waker::from(owner.clone());
        assert!(pin!(&mut queued).poll(&mut Context::from_waker(&waker)).is_pending());
        // From here on the committer thread wakes and drops the last owner except this test's `db`.
        *owner.0.lock().unwrap() = Some((db.clone(), tx));
    });
    drop(db);
    while !owner.1.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(queued);
    while control.closes.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert!(TestSnapshot::has(&control, "queued"));
}

trait Has {
    fn has(control: &Arc<Control>, key: &str) -> bool;
}

impl Has for TestSnapshot {
    fn has(control: &Arc<Control>, key: &str) -> bool {
        let snapshot: Result<TestSnapshot> = occ::store::Store::snapshot(&TestStore(control.clone()));
        snapshot.and_then(|snapshot| snapshot.get(key.as_bytes())).is_ok_and(|value| value.is_some())
    }
}

/// Write skew, attempted by threads: of several transactions that read each other's keys, at most one may commit.
#[test]
fn threads_cannot_skew_their_writes() {
    let (db, _, _) = open();
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for side in 0..4usize {
            let (db, taken) = (&db, &taken);
            scope.spawn(move || {
                for pair in 0..200 {
                    let (mine, others) = (format!("{pair}/{side}"), (0..4).filter(move |other| *other != side));
                    let tx = db.begin().unwrap();
                    let any = others.map(|other| get(&tx, &format!("{pair}/{other}"))).any(|other| other.is_some());
                    if !any {
                        tx.set(mine.as_bytes(), b"");
                        if block_on(tx.commit()).is_ok() {
                            taken.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
    let (all, tx) = (taken.load(Ordering::SeqCst), db.begin().unwrap());
    let rows = rows(&tx, kv_api::RangeRequest::keys("", "\u{7f}"));
    let pairs: std::collections::BTreeSet<&str> = rows.split(' ').filter_map(|row| row.split('/').next()).collect();
    assert_eq!((rows.split(' ').count(), pairs.len()), (all, all), "two of one pair were taken");
    assert!(all > 150, "{all}");
}

/// Transfers between accounts, while readers compute the sum.
#[test]
fn transfers_keep_the_sum() {
    use kv_api::{DatabaseExt, RangeRequest, TransactionExt};
    let (db, _, _) = {
        let store = TestStore::default();
        let control = store.0.clone();
        (OccBuilder::new().seed(3).open(store).unwrap(), (), control)
    };
    let accounts: Vec<String> = (0..5).map(|at| format!("account{at}")).collect();
    put(&db, &accounts.iter().map(|account| (account.as_str(), "100")).collect::<Vec<_>>());
    let sum = |tx: Tx| async move {
        let rows = tx.get_all(RangeRequest::prefix(b"account"), Read::Serializable).await?;
        Ok::<i64, Error>(rows.iter().map(|row| String::from_utf8_lossy(&row.value).parse::<i64>().unwrap()).sum())
    };
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (db, accounts) = (&db, &accounts);
            scope.spawn(move || {
                for step in 0..100usize {
                    if thread == 0 {
                        assert_eq!(block_on(db.run(|tx, _| sum(tx))).unwrap(), 500);
                        continue;
                    }
                    let (from, to) = (accounts[(step + thread) % 5].clone(), accounts[(step * thread + 1) % 5].clone());
                    if from == to {
                        continue;
                    }
                    let transfer = |tx: Tx, _| {
                        let (from, to) = (from.clone(), to.clone());
                        async move {
                            let (a, b) = (
                                tx.get(from.as_bytes(), Read::Serializable),
                                tx.get(to.as_bytes(), Read::Serializable),
                            );
                            let amount = |value: Option<bytes::Bytes>| {
                                String::from_utf8_lossy(&value.unwrap()).parse::<i64>().unwrap()
                            };
                            let (a, b) = (amount(a.await?), amount(b.await?));
                            tx.set(from.as_bytes(), (a - 7).to_string().as_bytes());
                            tx.set(to.as_bytes(), (b + 7).to_string().as_bytes());
                            Ok::<_, Error>(())
                        }
                    };
                    block_on(db.run(transfer)).unwrap();
                }
            });
        }
    });
    assert_eq!(block_on(db.run(|tx, _| sum(tx))).unwrap(), 500);
}

#[test]
fn a_transaction_reads_the_view_that_the_store_refreshed() {
    let (db, _, control) = open();
    put(&db, &[("a", "old")]);
    let earlier = db.begin().unwrap();
    assert_eq!(get(&earlier, "a").as_deref(), Some("old"));
    let rows = Map::from([("a".into(), "new".into())]);
    *control.refreshed.lock().unwrap() = Some(Arc::new(rows));
    for _ in 0..2 {
        assert_eq!(get(&db.begin().unwrap(), "a").as_deref(), Some("new"));
    }
    assert_eq!(get(&earlier, "a").as_deref(), Some("new"), "who has begun lets go of the old one too");
}

/// An atomic operation whose key cannot be read fails its own transaction. The others of its batch commit.
#[test]
fn a_failed_read_in_a_batch_answers_everybody() {
    let (db, _, control) = open();
    put(&db, &[("counter", "\u{1}")]);
    let (mut commits, mut stamps, mut watches) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..5 {
        let tx = writer(&db, &format!("{at:02}"));
        if at == 2 {
            tx.clear(b"03");
            tx.atomic_op(MutationType::Add, b"counter", b"\x01");
        }
        stamps.push(tx.get_versionstamp());
        watches.push(Box::pin(tx.watch(b"watched")));
        let mut commit = Box::pin(tx.commit());
        assert!(poll_once(&mut commit).is_pending());
        commits.push(commit);
    }
    let reader = db.begin().unwrap();
    assert_eq!(get(&reader, "02"), None);
    reader.set(b"reader", b"");
    control.fail_get.store(true, Ordering::SeqCst);
    let codes: Vec<_> = commits.iter_mut().map(|commit| poll_once(commit).map(code)).collect();
    assert_eq!(codes, [0, 0, 1510, 0, 0].map(Poll::Ready));
    assert_eq!(stamps.into_iter().map(|stamp| code(block_on(stamp))).collect::<Vec<_>>(), [0, 0, 1510, 0, 0]);
    control.fail_get.store(false, Ordering::SeqCst);
    assert_eq!(control.applies.load(Ordering::SeqCst), 2, "they shared a batch");
    assert_eq!([now(&db, "02"), now(&db, "03")], [None, Some(String::new())]);
    assert_eq!(now(&db, "counter").as_deref(), Some("\u{1}"));
    assert_eq!(code(block_on(watches.remove(2))), 1510);
    assert_eq!(commit(&reader), 0, "what was not committed conflicts with nobody");
    put(&db, &[("watched", "")]);
    watches.into_iter().for_each(|watch| assert_eq!(code(block_on(watch)), 0));
}

/// A database that follows another one has the other one's versions in its store. Its reads go on with the clock.
#[test]
fn a_standby_takes_batches_and_refuses_writes() {
    let (source, _, _) = open();
    let store = TestStore::default();
    let (clock, control) = (ManualClock::new(), store.0.clone());
    clock.advance(Duration::from_secs(200));
    let db = OccBuilder::new().clock(clock.clone()).seed(1).standby().open(store).unwrap();
    let batch = |version: i64, value: &'static str| {
        Batch::of_rows(version, [(Bytes::from_static(b"k"), Bytes::from_static(value.as_bytes()))])
    };
    let version = |tx: &Tx| block_on(tx.get_read_version()).unwrap();
    let first = db.begin().unwrap();
    let before = version(&first);
    // Older than what was read here, and newer: the source's clock is behind this one, or ahead.
    for (at, value) in [(100, "behind"), (101, "again"), (900_000_000, "ahead"), (900_000_001, "once more")] {
        let (last, mut watch) = (db.begin().unwrap(), None);
        let seen = version(&last);
        let watching = db.begin().unwrap();
        watch.replace(Box::pin(watching.watch(b"k")));
        block_on(watching.commit()).unwrap();
        db.replay(batch(at, value)).unwrap();
        assert!(watch.as_mut().is_some_and(|watch| poll_once(watch).is_ready()), "{value}");
        assert_eq!(last_version(&db.store().snapshot().unwrap()).unwrap(), at);
        let next = db.begin().unwrap();
        assert!(version(&next) > seen && version(&next) >= at);
        assert_eq!(get(&next, "k").as_deref(), Some(value));
        assert_eq!(commit(&writer(&db, "own")), 2023);
    }
    assert_eq!(version(&first), before);
    assert_eq!(code(block_on(first.get(b"k", Read::Snapshot))), 1007, "the source's clock is minutes ahead");
    assert_eq!(control.syncs.load(Ordering::SeqCst), 4);
    // Nothing was applied: the next attempt may succeed.
    control.refuse_apply.store(true, Ordering::SeqCst);
    assert_eq!(code(db.replay(batch(900_000_002, "late"))), 1510);
    control.refuse_apply.store(false, Ordering::SeqCst);
    db.replay(batch(900_000_002, "late")).unwrap();
    assert_eq!(now(&db, "k").as_deref(), Some("late"));
    assert_eq!(code(source.replay(batch(900_000_003, "no"))), 2000);
    control.panic_in_apply.store(true, Ordering::SeqCst);
    assert_eq!(code(db.replay(batch(900_000_003, "never"))), 1021);
    assert!(db.begin().is_err(), "it is closed");
    assert!(db.check_open().is_err(), "its store may have rows that are not durable");
}
