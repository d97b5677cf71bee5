//! Compares snapshots of the store with copies of a map.

use std::sync::atomic::Ordering;

use kv_api::Direction;
use occ::store::Snapshot;

use super::*;

type Model = BTreeMap<Bytes, Bytes>;

fn check(snapshot: &SledSnapshot, model: &Model, random: &mut fastrand::Rng, context: &str) {
    let key = |random: &mut fastrand::Rng| Bytes::from(format!("{:03}", random.usize(..300)));
    for _ in 0..3 {
        let key = key(random);
        assert_eq!(snapshot.get(&key).unwrap(), model.get(&key).cloned(), "{context}, {key:?}");
    }
    let (one, two) = (key(random), key(random));
    let (begin, end) = (one.clone().min(two.clone()), one.max(two));
    if begin == end {
        return;
    }
    let mut expected: Vec<_> = model.range(begin.clone()..end.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let found: Vec<_> = snapshot.range(&begin, &end, Direction::Forward).map(Result::unwrap).collect();
    assert_eq!(found, expected, "{context}, {begin:?}..{end:?}");
    expected.reverse();
    let found: Vec<_> = snapshot.range(&begin, &end, Direction::Reverse).map(Result::unwrap).collect();
    assert_eq!(found, expected, "{context}, {begin:?}..{end:?} in reverse");
}

fn batch(version: i64, random: &mut fastrand::Rng, model: &mut Model) -> Batch {
    let mut batch = Batch::new(version);
    for _ in 0..=random.usize(..12) {
        let key = Bytes::from(format!("{:03}", random.usize(..300)));
        match random.usize(..10) {
            0 => {
                let end = Bytes::from(format!("{:03}", random.usize(..300)));
                if key < end {
                    batch.clear_range(KeyRange { begin: key, end });
                }
            }
            1..=3 => batch.clear(key),
            _ => batch.set(key, vec![version as u8; random.usize(..600)].into()),
        }
    }
    batch.clone().apply_to(model);
    batch
}

#[test]
fn snapshots_never_change() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..6u64 {
        // In half of the runs nearly every clear becomes pending.
        let bulk = if seed % 2 == 0 { BULK } else { 4 };
        let path = folder.path().join(seed.to_string());
        let store = SledStore::open_with_bulk(&path, 8 << 20, Durability::OperatingSystem, bulk).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model::new();
        let mut snapshots = vec![(store.snapshot().unwrap(), model.clone())];
        for version in 1..150 {
            store.apply(batch(version, &mut random, &mut model)).unwrap();
            snapshots.push((store.snapshot().unwrap(), model.clone()));
            if snapshots.len() > 8 {
                snapshots.remove(random.usize(..8));
            }
            let context = format!("seed {seed}, version {version}");
            snapshots.iter().for_each(|(snapshot, model)| check(snapshot, model, &mut random, &context));
        }
        snapshots.drain(..snapshots.len() - 1).for_each(drop);
        assert_eq!(store.shared.images.len(), 0, "seed {seed}: images outlive the snapshots");
        while store.shared.purge_step() == Step::Removed {}
        let (last, model) = snapshots.pop().unwrap();
        let context = format!("seed {seed}, after the purge");
        (0..20).for_each(|_| check(&last, &model, &mut random, &context));
        (0..20).for_each(|_| check(&store.snapshot().unwrap(), &model, &mut random, &context));
        assert_eq!(store.shared.tree.len(), model.len(), "seed {seed}: rows outlive the purge");
    }
}

/// A reader on another thread holds a snapshot while batches are applied.
#[test]
fn snapshots_hold_while_batches_are_applied() {
    let folder = tempfile::tempdir().unwrap();
    let store = SledStore::open_with_bulk(folder.path(), 8 << 20, Durability::OperatingSystem, 16).unwrap();
    let head = Mutex::new((store.snapshot().unwrap(), Model::new()));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2u64 {
            let (head, done) = (&head, &done);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(1_000 + reader);
                while !done.load(Ordering::Relaxed) {
                    let (snapshot, model) = head.lock().clone();
                    for _ in 0..5 {
                        check(&snapshot, &model, &mut random, "while batches are applied");
                    }
                }
            });
        }
        let (mut random, mut model) = (fastrand::Rng::with_seed(99), Model::new());
        for version in 1..600 {
            store.apply(batch(version, &mut random, &mut model)).unwrap();
            *head.lock() = (store.snapshot().unwrap(), model.clone());
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A store of 40 rows, all cleared by one pending clear and not purged yet.
fn cleared(folder: &Path) -> SledStore {
    cleared_with(folder, Durability::OperatingSystem)
}

fn cleared_with(folder: &Path, durability: Durability) -> SledStore {
    let store = SledStore::open_with_bulk(folder, 8 << 20, durability, 16).unwrap();
    // The test takes the steps.
    store.purger.stop();
    let row = |at: usize| (Bytes::from(format!("m{at:02}")), Bytes::from("old"));
    store.apply(Batch::of_rows(1, (0..40).map(row))).unwrap();
    store.apply(clear_all(2)).unwrap();
    assert!(!store.shared.clears.lock().pending.is_empty());
    store
}

fn set(key: &str, version: i64) -> Batch {
    Batch::of_rows(version, [(Bytes::from(key.to_owned()), Bytes::from("new"))])
}

fn clear_all(version: i64) -> Batch {
    let mut batch = Batch::new(version);
    batch.clear_range(KeyRange::copied(b"m", b"n"));
    batch
}

#[test]
fn commits_go_on_while_rows_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = cleared(folder.path());
    // On this thread: if it had to wait, the test would hang.
    let step = store.shared.purge(store.shared.choose().ok().unwrap(), |gone| {
        store.apply(set("a", 3 + gone as i64)).unwrap();
        {
            let mut batch = Batch::new(4 + gone as i64);
            batch.clear(Bytes::from("m05"));
            store.apply(batch).unwrap();
        }
    });
    assert_eq!(step, Step::Removed);
    assert_eq!(store.shared.tree.len(), 1, "the rows are gone, and the record of them");
    assert_eq!(store.snapshot().unwrap().get(b"a").unwrap().unwrap(), "new");
}

#[test]
fn a_key_that_is_set_amid_a_purge_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = cleared(folder.path());
    std::thread::scope(|scope| {
        let mut setter = None;
        let set = || store.apply(set("m05", 3)).unwrap();
        let amid = |gone| setter = if gone == 0 { Some(scope.spawn(set)) } else { setter.take() };
        let step = store.shared.purge(store.shared.choose().ok().unwrap(), amid);
        assert_eq!(step, Step::Removed);
        setter.unwrap().join().unwrap();
    });
    while store.shared.purge_step() == Step::Removed {}
    assert_eq!(store.snapshot().unwrap().get(b"m05").unwrap().unwrap(), "new");
    assert_eq!(store.shared.tree.len(), 1);
}

#[test]
fn a_choice_that_commits_have_overtaken_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let store = cleared(folder.path());
    let chosen = store.shared.choose().ok().unwrap();
    store.apply(set("m05", 3)).unwrap();
    assert_eq!(store.shared.purge(chosen, |_| panic!("it is no longer all pending")), Step::Removed);

    // Pending again, by a clear that a snapshot does not see yet.
    let chosen = store.shared.choose().ok().unwrap();
    let row = |at: usize| (Bytes::from(format!("m{at:02}")), Bytes::from("newer"));
    store.apply(Batch::of_rows(4, (0..40).map(row))).unwrap();
    let snapshot = store.snapshot().unwrap();
    store.apply(clear_all(5)).unwrap();
    assert_eq!(store.shared.purge(chosen, |_| panic!("a snapshot needs the rows")), Step::Removed);
    assert_eq!(store.shared.purge_step(), Step::TooEarly);
    assert_eq!(snapshot.range(b"m", b"n", Direction::Forward).count(), 40);
    assert_eq!(store.snapshot().unwrap().range(b"m", b"n", Direction::Forward).count(), 0);
    drop(snapshot);
    while store.shared.purge_step() == Step::Removed {}
    assert_eq!(store.shared.tree.len(), 0);
}

const FOLDER: &str = "COUCH_LAYER_PURGE_FOLDER";
const GONE: &str = "COUCH_LAYER_PURGE_GONE";

/// The process of the test below. Does nothing in any other process.
#[test]
fn a_purge_that_is_cut_off() {
    let (Some(folder), Ok(stop)) = (std::env::var_os(FOLDER), std::env::var(GONE)) else { return };
    let store = cleared_with(Path::new(&folder), Durability::Disk);
    store.sync().unwrap();
    let stop: usize = stop.parse().unwrap();
    store.shared.purge(store.shared.choose().ok().unwrap(), |gone| {
        if gone == stop {
            // The removed rows reach the disk, but their record does not.
            store.sync().unwrap();
            std::process::abort();
        }
    });
}

#[test]
fn a_process_that_ends_amid_a_purge_leaves_the_clear_whole() {
    for stop in [0, 1, 17, 39, 40] {
        let folder = tempfile::tempdir().unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::a_purge_that_is_cut_off", "--test-threads=1"])
            .env(FOLDER, folder.path())
            // A core dump, if this user has them enabled, is deleted with the test's folder.
            .current_dir(folder.path())
            .env(GONE, stop.to_string())
            .output()
            .unwrap();
        assert!(!output.status.success() && output.status.code() != Some(101), "{stop}: {output:?}");
        let store = SledStore::open_with_bulk(folder.path(), 8 << 20, Durability::Disk, 16).unwrap();
        store.purger.stop();
        let rows = || store.snapshot().unwrap().range(b"m", b"n", Direction::Forward).count();
        assert_eq!(rows(), 0, "after {stop} rows");
        store.apply(set("m05", 3)).unwrap();
        while store.shared.purge_step() == Step::Removed {}
        assert_eq!((rows(), store.shared.tree.len()), (1, 1), "after {stop} rows");
    }
}
