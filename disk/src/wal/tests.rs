use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kv_api::{Direction, Error, error};
use parking_lot::MutexGuard;

use super::flusher::*;
use super::*;
use crate::on_disk::OnDisk;
use occ::KeyRange;
use occ::Random;
use occ::store::{MapSnapshot, Snapshot};

type Rows = BTreeMap<Bytes, Bytes>;

/// A map in a file, which each sync writes in full. It fails while there is a file `full` beside it.
#[derive(Debug)]
struct Tree {
    folder: PathBuf,
    rows: Mutex<Arc<Rows>>,
    /// Ranges to compact, taken by a test.
    asked: Mutex<Vec<KeyRange>>,
}

impl Tree {
    fn rows(&self) -> MutexGuard<'_, Arc<Rows>> {
        self.rows.lock()
    }
}

impl DiskStore for Tree {
    const ENGINE: &'static str = "tree";
    const DURABILITIES: &'static [Durability] = &[Durability::Disk, Durability::Process];

    fn open(folder: &Path, _: u64, _: Durability) -> Result<Self> {
        let mut rows = Rows::new();
        if let Ok(bytes) = fs::read(folder.join("tree")) {
            Run::batch_of(&[Arc::new(Run::decode(bytes.into())?)], 1)?.apply_to(&mut rows);
        }
        Ok(Tree { folder: folder.to_owned(), rows: Mutex::new(Arc::new(rows)), asked: Mutex::default() })
    }

    fn hidden_bytes(snapshot: &MapSnapshot, batch: &Batch) -> u64 {
        let clears = batch.clears();
        snapshot.0.iter().filter(|(key, _)| clears.contains(key)).map(|(_, value)| value.len() as u64).sum()
    }
}

/// Waits for something that happens without a batch.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let (never, nothing) = (Condvar::new(), Mutex::new(()));
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        never.wait_for(&mut nothing.lock(), Duration::from_millis(10));
    }
    panic!("{what}");
}

/// A dropped database is a small batch. It is flushed because it frees much space.
#[test]
fn a_clear_of_much_is_flushed_when_no_batch_comes() {
    let folder = tempfile::tempdir().unwrap();
    let store = WalStore::<Tree>::open(folder.path(), 96 << 20, Durability::Disk).unwrap();
    let rows = |store: &WalStore<Tree>| store.inner.state.lock().active_bytes;
    commit(&store, set(1, 1, IDLE_HIDDEN_BYTES as usize)).unwrap();
    eventually("a large batch is flushed", || rows(&store) == 0);
    let clear = |version: i64, n: u64| {
        let mut batch = Batch::new(version);
        batch.clear_range(KeyRange { begin: key(n), end: key(n + 1) });
        commit(&store, batch).unwrap();
    };
    clear(2, 2);
    eventually("the flusher rests", || store.inner.state.lock().is_resting);
    assert!(rows(&store) > 0, "a small batch stays in the log");
    clear(3, 1);
    eventually("a clear of much is flushed", || rows(&store) == 0);
    assert!(store.below().snapshot().unwrap().get(&key(1)).unwrap().is_none());
}

/// The store below compacts everything removed before the request, so a small batch is flushed first.
#[test]
fn what_is_in_the_log_is_compacted_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    store.compact(b"0", b"1");
    assert!(store.is_compacting(b"0", b"1"));
    eventually("the store below is asked", || !store.below().asked.lock().is_empty());
    assert!(store.below().snapshot().unwrap().get(&key(1)).unwrap().is_some(), "after the flush");
    assert!(store.is_compacting(b"0", b"1"));
    assert_eq!(store.below().asked.lock().drain(..).collect::<Vec<_>>(), [KeyRange::copied(b"0", b"1")]);
    assert!(!store.is_compacting(b"0", b"1"));
}

/// A request is passed on after everything written before it is flushed: writers that never pause do not delay it.
#[test]
fn a_request_to_compact_is_passed_on_while_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    let flushes = store.inner.flushes.load(Ordering::Acquire);
    store.compact(b"0", b"1");
    let mut version = 2;
    eventually("the store below is asked", || {
        commit(&store, set(version, 1, 100)).unwrap();
        version += 1;
        !store.below().asked.lock().is_empty()
    });
    assert!(store.inner.flushes.load(Ordering::Acquire) <= flushes + 2, "and there are no flushes without need");
}

/// The log's files are as long as the largest flush. They shrink, and the store works after a crash.
#[test]
fn the_log_shrinks_when_no_batch_comes() {
    let folder = tempfile::tempdir().unwrap();
    let store = WalStore::<Tree>::open(folder.path(), 96 << 20, Durability::Disk).unwrap();
    for version in 1..5 {
        commit(&store, set(version, version as u64, 20 << 20)).unwrap();
    }
    commit(&store, set(5, 5, 100)).unwrap();
    let length = || ["log.0", "log.1"].map(|name| fs::metadata(folder.path().join(name)).unwrap().len());
    eventually("the log is short", || length().iter().sum::<u64>() < 3 << 20);
    commit(&store, set(6, 6, 100)).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    copy(folder.path(), crashed.path());
    let store = open(crashed.path()).unwrap();
    assert_eq!(rows(&store.snapshot().unwrap(), Direction::Forward).len(), 6);
}

impl Store for Tree {
    type Snapshot = MapSnapshot;

    fn snapshot(&self) -> Result<MapSnapshot> {
        Ok(MapSnapshot(self.rows().clone()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        if let Ok(why) = fs::read_to_string(self.folder.join("full")) {
            let error = Error::new(STORAGE_QUOTA_EXCEEDED).with_context(format!("the tree is full{why}"));
            return Err(ApplyError::NothingApplied(error));
        }
        batch.apply_to(Arc::make_mut(&mut self.rows()));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let rows = self.rows().clone();
        let batch = Batch::of_rows(1, Rows::clone(&rows));
        fs::write(self.folder.join("tree.new"), RunBuilder::of(&batch, 0)?.bytes).unwrap();
        fs::rename(self.folder.join("tree.new"), self.folder.join("tree")).unwrap();
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.asked.lock().push(KeyRange::copied(begin, end));
    }

    fn is_compacting(&self, _: &[u8], _: &[u8]) -> bool {
        !self.asked.lock().is_empty()
    }
}

fn open(folder: &Path) -> Result<WalStore<Tree>> {
    WalStore::open(folder, 1, Durability::Disk)
}

/// Commits a batch, synced and with the record of its version, as the commit pipeline does.
fn commit(store: &WalStore<Tree>, batch: Batch) -> Result<(), ApplyError> {
    store.apply(versioned(batch))?;
    store.sync().map_err(ApplyError::Unknown)
}

fn versioned(mut batch: Batch) -> Batch {
    let mark = [&[0, 1], batch.version().to_be_bytes().as_slice()].concat();
    batch.set(Bytes::from_static(b"\xff/occ/version"), mark.into());
    batch
}

fn rows(snapshot: &impl Snapshot, direction: Direction) -> Vec<(Bytes, Bytes)> {
    snapshot.range(b"", b"\xff", direction).map(Result::unwrap).collect()
}

fn key(n: u64) -> Bytes {
    Bytes::from(format!("{n:03}"))
}

/// A batch that sets one row.
fn set(version: i64, n: u64, bytes: usize) -> Batch {
    Batch::of_rows(version, [(key(n), vec![n as u8; bytes].into())])
}

fn batch(version: i64, random: &Random) -> Batch {
    let below = |bound: u64| random.next() % bound;
    let mut batch = Batch::new(version);
    for _ in 0..1 + below(12) {
        match below(12) {
            0 => batch.clear_range(KeyRange { begin: key(below(100)), end: key(100 + below(100)) }),
            1 | 2 => {
                let begin = below(200);
                batch.clear_range(KeyRange { begin: key(begin), end: key(begin + 1 + below(5)) });
            }
            3..6 => batch.clear(key(below(200))),
            _ => {
                let n = below(200);
                batch.set(key(n), vec![n as u8; below(800) as usize].into());
            }
        }
    }
    batch
}

fn copy(folder: &Path, to: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        // The tree's other name may be gone by now.
        let _ = fs::copy(entry.path(), to.join(entry.file_name()));
    }
}

/// The next records would overwrite zeros behind large records.
#[test]
fn small_records_have_room_ahead_and_large_ones_write_none() {
    let folder = tempfile::tempdir().unwrap();
    let store = WalStore::<Tree>::open(folder.path(), 96 << 20, Durability::Disk).unwrap();
    let length = || fs::metadata(folder.path().join("log.0")).unwrap().len();
    commit(&store, set(1, 1, 1 << 20)).unwrap();
    assert!((1 << 20..(1 << 20) + 1_000).contains(&length()), "{}", length());
    commit(&store, set(2, 2, 100)).unwrap();
    assert!((2 << 20..(2 << 20) + 2_000).contains(&length()), "{}", length());
}

/// Rows of one batch share most of their keys, and the log has that once.
#[test]
fn a_record_is_shorter_than_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let store = WalStore::<Tree>::open(folder.path(), 96 << 20, Durability::Disk).unwrap();
    let rows = (0..2_000).map(|n| (Bytes::from(format!("a long key that a document's rows share/{n:04}")), key(n)));
    commit(&store, Batch::of_rows(1, rows)).unwrap();
    let run = store.inner.state.lock().runs[0].size();
    let written = fs::read(folder.path().join("log.0")).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
    assert!(written * 4 < run, "{written} of {run} bytes");
    let expected = rows_of(&store);
    drop(store);
    assert_eq!(rows_of(&open(folder.path()).unwrap()), expected);
}

fn rows_of(store: &WalStore<Tree>) -> Vec<(Bytes, Bytes)> {
    rows(&store.snapshot().unwrap(), Direction::Forward)
}

/// A snapshot answers as a map of its version does, whatever is flushed, frozen, merged and written later. So does the
/// store after a crash, after a close, and in a copy of the files of one moment.
#[test]
fn it_is_a_map_at_each_version_through_flushes_crashes_and_closes() {
    for seed in 0..12 {
        let random = Random::new(seed);
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path()).unwrap();
        let mut model = Rows::new();
        let mut snapshots: Vec<(WalSnapshot<MapSnapshot>, Rows)> = Vec::new();
        for version in 1..250 {
            let batch = batch(version, &random);
            batch.clone().apply_to(&mut model);
            commit(&store, batch).unwrap();
            snapshots.push((store.snapshot().unwrap(), model.clone()));
            match random.next() % 24 {
                0 => store.inner.freeze(),
                1 => {
                    drop(store);
                    store = open(folder.path()).unwrap();
                }
                2 => {
                    store.close().unwrap();
                    drop(store);
                    assert!(
                        ["log.0", "log.1"].iter().all(|log| folder.path().join(log).metadata().unwrap().len() == 0)
                    );
                    store = open(folder.path()).unwrap();
                }
                3 => {
                    let other = tempfile::tempdir().unwrap();
                    // No flush during the copy, which takes one file after the other.
                    let log = store.inner.log.lock();
                    while store.inner.state.lock().frozen > 0 {
                        std::thread::yield_now();
                    }
                    copy(folder.path(), other.path());
                    drop(log);
                    let copied = rows(&open(other.path()).unwrap().snapshot().unwrap(), Direction::Forward);
                    assert!(copied.into_iter().eq(model.clone()), "seed {seed}, version {version}");
                }
                4 if snapshots.len() > 1 => {
                    snapshots.remove((random.next() % snapshots.len() as u64) as usize);
                }
                _ => {}
            }
            if let Some(snapshot) = store.refreshed(&snapshots[snapshots.len() - 1].0) {
                snapshots.push((snapshot, model.clone()));
            }
            let (snapshot, rows_then) = &snapshots[(random.next() % snapshots.len() as u64) as usize];
            let forward = rows(snapshot, Direction::Forward);
            assert!(forward.iter().cloned().eq(rows_then.clone()), "seed {seed}, version {version}");
            let backward = rows(snapshot, Direction::Reverse);
            assert!(backward.iter().rev().eq(forward.iter()), "seed {seed}, version {version}");
            let (begin, end) = (key(random.next() % 100), key(100 + random.next() % 100));
            let part = snapshot.range(&begin, &end, Direction::Reverse).map(Result::unwrap);
            let expected = rows_then.range(begin.clone()..end.clone()).rev();
            let expected: Vec<_> = expected.map(|(key, value)| (key.clone(), value.clone())).collect();
            assert!(part.eq(expected.iter().cloned()), "seed {seed}, version {version}");
            for n in 0..200 {
                assert_eq!(snapshot.get(&key(n)).unwrap(), rows_then.get(&key(n)).cloned(), "seed {seed}, key {n}");
            }
        }
    }
}

#[test]
fn runs_that_are_below_are_neither_searched_nor_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store: OnDisk<WalStore<Tree>> = OnDisk::open(folder.path(), 1, Durability::Disk).unwrap();
    store.apply(set(1, 1, 10)).unwrap();
    let snapshot = store.snapshot().unwrap();
    let run = Arc::downgrade(&snapshot.runs[0]);
    store.store().inner.freeze();
    while store.store().inner.state.lock().frozen > 0 {
        std::thread::yield_now();
    }
    // The flusher may still hold the state, and `refreshed` does not wait for it.
    let refreshed = (0..1_000_000).find_map(|_| {
        std::thread::yield_now();
        store.refreshed(&snapshot)
    });
    let refreshed = refreshed.unwrap();
    assert_eq!(refreshed.runs.len(), 0);
    assert_eq!(rows(&refreshed, Direction::Forward), rows(&snapshot, Direction::Forward));
    drop(snapshot);
    assert!(run.upgrade().is_none());
    assert!(store.refreshed(&refreshed).is_none(), "there is no better one");
}

/// A snapshot must not get a batch that is not synced yet.
#[test]
fn a_view_is_refreshed_at_its_own_version_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    commit(&store, set(1, 1, 10)).unwrap();
    let snapshot = store.snapshot().unwrap();
    assert!(store.refreshed(&snapshot).is_none(), "nothing was flushed");
    store.inner.freeze();
    while store.inner.state.lock().frozen > 0 {
        std::thread::yield_now();
    }
    store.apply(set(2, 2, 10)).unwrap();
    assert!(store.refreshed(&snapshot).is_none());
    assert!(store.refreshed(&store.snapshot().unwrap()).is_none(), "it is new");
}

#[test]
fn what_was_frozen_and_never_got_below_is_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    fs::write(folder.path().join("full"), "").unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    store.inner.freeze();
    // The flush may have failed by now. Then no commit is accepted.
    let second = commit(&store, set(2, 2, 100)).is_ok();
    drop(store);
    fs::remove_file(folder.path().join("full")).unwrap();
    let found = rows(&open(folder.path()).unwrap().snapshot().unwrap(), Direction::Forward);
    assert_eq!(found.len(), 1 + usize::from(second));
}

/// Runs that are being flushed count too. Without the thread, each flush here takes as long as it likes.
#[test]
fn runs_take_at_most_three_times_the_memory_of_a_flush() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    store.stop_flusher();
    let (flush_bytes, mut version) = (store.inner.flush_bytes, 0);
    for turn in 0..6 {
        loop {
            let state = store.inner.state.lock();
            let held: usize = state.runs.iter().map(|run| run.size()).sum();
            assert!(held < STALL_FACTOR * flush_bytes + 2_000, "{held} bytes in turn {turn}");
            if !store.inner.has_room(&state) {
                let expected = if state.frozen > 0 { STALL_FACTOR } else { 1 };
                assert!(held >= expected * flush_bytes * 9 / 10, "only {held} bytes in turn {turn}");
                break;
            }
            drop(state);
            version += 1;
            commit(&store, set(version, version as u64 % 900, 1_000)).unwrap();
        }
        if turn > 0 {
            store.inner.flush().unwrap();
        }
        store.inner.freeze();
    }
}

/// Each run here has rows that are as large as parts of attachments.
#[test]
fn bulky_runs_take_at_most_half_the_memory_of_a_flush() {
    let folder = tempfile::tempdir().unwrap();
    let store: WalStore<Tree> = WalStore::open(folder.path(), CACHE_PART * MAX_FLUSH_BYTES, Durability::Disk).unwrap();
    store.stop_flusher();
    let (bulky_bytes, mut version) = (store.inner.flush_bytes / BULKY_PART, 0);
    for turn in 0..3 {
        while store.inner.has_room(&store.inner.state.lock()) {
            version += 1;
            let rows = (0..20).map(|n| (key(n), vec![n as u8; 90_000].into()));
            commit(&store, Batch::of_rows(version, rows)).unwrap();
        }
        let held: usize = store.inner.state.lock().runs.iter().map(|run| run.size()).sum();
        let most = if turn > 0 { 2 * bulky_bytes } else { bulky_bytes };
        assert!((most..most + 2_000_000).contains(&held), "{held} bytes in turn {turn}");
        if turn > 0 {
            store.inner.flush().unwrap();
        }
        store.inner.freeze();
    }
}

#[test]
fn a_flush_that_fails_fails_commits_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    fs::write(folder.path().join("full"), "").unwrap();
    let mut version = 0;
    let error = loop {
        match commit(&store, set(version + 1, version as u64, 1000)) {
            Ok(()) => version += 1,
            Err(ApplyError::NothingApplied(error)) => break error,
            Err(ApplyError::Unknown(error)) => panic!("{error}"),
        }
        assert!(version < 200, "memory is not bounded");
    };
    assert!(error.to_string().contains("the tree is full"), "{error}");
    assert_eq!(rows(&store.snapshot().unwrap(), Direction::Forward).len(), version as usize);
    assert!(store.close().is_err());
    fs::remove_file(folder.path().join("full")).unwrap();
    // Instead of its thread, which the close has ended.
    store.inner.flush().unwrap();
    commit(&store, set(version + 1, version as u64, 1000)).unwrap();
    assert_eq!(rows(&store.snapshot().unwrap(), Direction::Forward).len(), version as usize + 1);
    drop(store);
    let found = rows(&open(folder.path()).unwrap().snapshot().unwrap(), Direction::Forward);
    assert_eq!(found.len(), version as usize + 1);
}

/// For later failures a store may only say that it failed before.
#[test]
fn the_first_failure_is_the_one_that_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    store.stop_flusher();
    for why in [", and this is why", " still"] {
        fs::write(folder.path().join("full"), why).unwrap();
        store.inner.freeze();
        store.inner.flush().unwrap_err();
    }
    let Err(ApplyError::NothingApplied(error)) = commit(&store, set(2, 2, 100)) else { panic!("it is full") };
    assert!(error.to_string().contains("this is why"), "{error}");
}

/// Three records. A crash may have cut off the last one.
#[test]
fn damage_amid_the_log_is_refused_and_a_torn_end_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    let log = folder.path().join("log.0");
    let mut ends = Vec::new();
    for version in 1..4 {
        commit(&store, set(version, version as u64, 20)).unwrap();
        let record = fs::read(&log).unwrap();
        ends.push(record.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    }
    let whole = fs::read(&log).unwrap()[..ends[2]].to_vec();
    drop(store);
    let opened = |bytes: &[u8]| {
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("log.0"), bytes).unwrap();
        fs::write(other.path().join("log.1"), &whole[..log::FILE_HEAD]).unwrap();
        let opened = open(other.path()).map(|store| rows(&store.snapshot().unwrap(), Direction::Forward).len());
        if opened.is_err() {
            assert_eq!(fs::read(other.path().join("log.0")).unwrap(), bytes, "and left as it is");
        }
        opened
    };
    assert_eq!(opened(&whole).unwrap(), 3);
    for length in 0..whole.len() {
        let kept = ends.iter().filter(|end| **end <= length).count();
        assert_eq!(opened(&whole[..length]).unwrap(), kept, "cut at {length}");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 16;
        match ends.iter().filter(|end| **end <= at).count() {
            0 if at < log::FILE_HEAD => assert_eq!(opened(&bytes).unwrap(), 3, "at {at}"),
            0 | 1 => assert_eq!(opened(&bytes).unwrap_err().code(), error::FILE_CORRUPT, "at {at}"),
            _ => assert_eq!(opened(&bytes).unwrap(), 2, "at {at}"),
        }
    }
}

#[test]
fn a_log_without_its_heads_is_refused_and_one_that_was_never_begun_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    (1..4).for_each(|version| commit(&store, set(version, version as u64, 20)).unwrap());
    let mut bytes = fs::read(folder.path().join("log.0")).unwrap();
    drop(store);
    bytes[0] ^= 1;
    // The bytes of the other file, and what the opening says.
    for (log, other, expected) in [
        (&bytes[..], &b""[..], Err(error::FILE_CORRUPT)),
        (&bytes, &bytes[..log::FILE_HEAD], Err(error::FILE_CORRUPT)),
        (&bytes[..log::FILE_HEAD], b"", Ok(0)),
        (b"", b"", Ok(0)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("log.0"), log).unwrap();
        fs::write(folder.path().join("log.1"), other).unwrap();
        let opened = open(folder.path()).map(|store| rows(&store.snapshot().unwrap(), Direction::Forward).len());
        assert_eq!(opened.map_err(|error| error.code()), expected);
        if expected.is_err() {
            assert_eq!(fs::read(folder.path().join("log.0")).unwrap(), log, "and left as it is");
        }
    }
}

/// A loss of power may leave this, in the middle of the first record of the next round.
#[test]
fn damage_to_what_is_below_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    (1..4).for_each(|version| commit(&store, set(version, version as u64, 20)).unwrap());
    store.inner.freeze();
    while store.inner.state.lock().frozen > 0 {
        std::thread::yield_now();
    }
    commit(&store, set(4, 4, 20)).unwrap();
    drop(store);
    let log = folder.path().join("log.0");
    let bytes = fs::read(&log).unwrap();
    for at in 0..bytes.iter().rposition(|byte| *byte != 0).unwrap() {
        let other = tempfile::tempdir().unwrap();
        copy(folder.path(), other.path());
        let mut bytes = bytes.clone();
        bytes[at..at + 2].fill(255);
        fs::write(other.path().join("log.0"), bytes).unwrap();
        let found = rows(&open(other.path()).unwrap().snapshot().unwrap(), Direction::Forward);
        assert_eq!(found.len(), 4, "at {at}");
    }
}

#[test]
fn a_log_that_does_not_continue_the_data_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    store.inner.freeze();
    while store.inner.state.lock().frozen > 0 {
        std::thread::yield_now();
    }
    commit(&store, set(2, 2, 100)).unwrap();
    drop(store);
    let tree = fs::read(folder.path().join("tree")).unwrap();
    // Two records are in two files: without the first, and without what is below.
    fs::remove_file(folder.path().join("tree")).unwrap();
    fs::write(folder.path().join("log.0"), "").unwrap();
    assert_eq!(open(folder.path()).unwrap_err().code(), error::FILE_CORRUPT);
    fs::write(folder.path().join("tree"), tree).unwrap();
    assert_eq!(rows(&open(folder.path()).unwrap().snapshot().unwrap(), Direction::Forward).len(), 2);
}

/// A flush makes the store below rewrite much more than the flush.
#[test]
fn a_few_small_writes_stay_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    let mut state = store.inner.state.lock();
    while !store.inner.changed.wait_for(&mut state, IDLE_FLUSH * 3 / 2).timed_out() {}
    drop(state);
    assert_eq!(store.inner.flushes.load(Ordering::Acquire), 0);
    let mut version = 1;
    while store.inner.state.lock().active_bytes < store.inner.idle_bytes {
        version += 1;
        commit(&store, set(version, 1, 1_000)).unwrap();
    }
    while store.inner.flushes.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
}

/// Its log is the only durable copy of the runs that cannot be flushed.
#[test]
fn a_store_on_a_full_disk_is_opened_to_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    (1..40).for_each(|version| commit(&store, set(version, version as u64 % 30, 20)).unwrap());
    let found = |store: &WalStore<Tree>| rows(&store.snapshot().unwrap(), Direction::Forward);
    let expected = found(&store);
    drop(store);
    fs::write(folder.path().join("full"), "").unwrap();
    for round in 0..2 {
        let store = open(folder.path()).unwrap();
        assert_eq!(found(&store), expected, "round {round}");
        let refused = commit(&store, set(40, 40, 20));
        assert!(matches!(refused, Err(ApplyError::NothingApplied(error)) if error.code() == STORAGE_QUOTA_EXCEEDED));
        assert_eq!(found(&store), expected, "round {round}");
    }
    let store = open(folder.path()).unwrap();
    fs::remove_file(folder.path().join("full")).unwrap();
    commit(&store, set(40, 40, 20)).unwrap();
    drop(store);
    assert_eq!(found(&open(folder.path()).unwrap()).len(), expected.len() + 1);
}

#[test]
fn without_a_log_a_close_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store: WalStore<Tree> = WalStore::open(folder.path(), 1, Durability::Process).unwrap();
    commit(&store, set(1, 1, 100)).unwrap();
    store.close().unwrap();
    drop(store);
    assert!(!folder.path().join("log.0").exists());
    assert_eq!(rows(&open(folder.path()).unwrap().snapshot().unwrap(), Direction::Forward).len(), 1);
}

/// Who follows gets what is durable, each record once, over flushes; and begins again where records were dropped.
#[test]
fn who_follows_the_log_gets_each_durable_record_once() {
    let (folder, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(folder.path()).unwrap();
    for version in 1..=3 {
        commit(&store, set(version, 7, 50)).unwrap();
    }
    copy(folder.path(), copied.path());
    let mut replay = follow::Replay::<Tree>::open(copied.path()).unwrap();
    let tail = store.follow(1 << 20).unwrap();
    let cut = tail.take(|| 11).unwrap();
    let versions = |cut: &follow::Cut| cut.records.iter().map(LogRecord::version).collect::<Vec<_>>();
    assert_eq!((cut.ms, cut.version, versions(&cut)), (11, 3, vec![1, 2, 3]));
    cut.records.iter().for_each(|record| replay.apply(record).unwrap());
    let random = Random::new(7);
    for version in 4..40 {
        let mut next = batch(version, &random);
        next.set(Bytes::from_static(b"v"), Bytes::from_static(b"a value"));
        let next = versioned(next);
        store.apply(next).unwrap();
        assert_eq!(versions(&tail.take(|| 0).unwrap()), Vec::<i64>::new(), "it is not durable yet");
        store.sync().unwrap();
        if version % 5 == 0 {
            store.inner.freeze();
            while store.inner.state.lock().frozen > 0 {
                std::thread::yield_now();
            }
        }
        let cut = tail.take(|| 0).unwrap();
        assert_eq!((cut.version, versions(&cut)), (version, vec![version]));
        let bytes: Vec<u8> = cut.records.iter().flat_map(|record| record.bytes().to_vec()).collect();
        let read = follow::records(&bytes.clone().into()).unwrap();
        assert_eq!((read.len(), read[0].previous()), (1, version - 1));
        assert!(follow::records(&bytes[..bytes.len() - 1].to_vec().into()).is_err());
        replay.apply(&read[0]).unwrap();
        replay.apply(&read[0]).unwrap();
    }
    let expected = rows_of(&store);
    assert_eq!(replay.finish().unwrap(), 39);
    let replayed = follow::Replay::<Tree>::open(copied.path()).unwrap();
    assert_eq!(replayed.version(), 39);
    drop(replayed);
    let below = Tree::open(copied.path(), 0, Durability::Disk).unwrap();
    assert_eq!(rows(&below.snapshot().unwrap(), Direction::Forward), expected);

    // More than may wait.
    let tail = store.follow(1_000).unwrap();
    commit(&store, set(40, 1, 600)).unwrap();
    commit(&store, set(41, 1, 600)).unwrap();
    assert!(tail.take(|| 0).is_err() && tail.take(|| 0).is_err());
    let again = store.follow(1_000).unwrap();
    let cut = again.take(|| 0).unwrap();
    assert_eq!(cut.version, 41);
    let mut replay = follow::Replay::<Tree>::open(copied.path()).unwrap();
    commit(&store, set(42, 1, 10)).unwrap();
    let gap = &again.take(|| 0).unwrap().records[0];
    assert_eq!(replay.apply(gap).unwrap_err().code(), error::FILE_CORRUPT, "41 is missing");
    // One tail.
    let other = store.follow(1_000).unwrap();
    assert!(again.take(|| 0).is_err() && other.take(|| 0).is_ok());
    drop(other);
    commit(&store, set(43, 1, 2_000)).unwrap();
}
