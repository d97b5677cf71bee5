//! The store without the write-ahead log before it.

mod damage;
mod failures;
mod space;
mod young;

use std::collections::BTreeMap;

use kv_api::error;
use occ::KeyRange;
use occ::store::Snapshot;

use super::*;
use crate::maker::TABLE_BYTES;
use crate::pick::{Effort, Sizes};

/// On a large disk.
const SIZES: Sizes = Sizes { table: TABLE_BYTES, room: u64::MAX };

fn open(folder: &Path) -> LsmStore {
    LsmStore::open(folder, 1 << 20, Durability::Disk).unwrap()
}

fn set(key: &str, value: &str) -> (Bytes, Bytes) {
    (key.to_owned().into(), value.to_owned().into())
}

fn rows(snapshot: &LsmSnapshot) -> Vec<(Bytes, Bytes)> {
    snapshot.range(b"", b"\xff", Direction::Forward).map(Result::unwrap).collect()
}

/// Waits until nothing is left to compact.
fn compacted(store: &LsmStore) {
    store.shared.settle(Effort::Quiet);
}

/// A compaction replaces the tables of the newest snapshot, and deletes the old files when no snapshot has them.
#[test]
fn a_range_that_was_begun_reads_on_when_its_tables_are_compacted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for version in 1..4 {
        store.apply(Batch::of_rows(version, [set("a", "1"), set(&format!("b{version}"), "2")])).unwrap();
    }
    compacted(&store);
    drop(store);
    // After a reopening, no table's file is open.
    let store = open(folder.path());
    let snapshot = store.snapshot().unwrap();
    let range = snapshot.range(b"", b"\xff", Direction::Forward);
    store.apply(Batch::of_rows(4, [set("a", "5"), set("b4", "6")])).unwrap();
    compacted(&store);
    drop(snapshot);
    assert_eq!(range.map(Result::unwrap).count(), 4);
}

/// A snapshot of an earlier flush has its own rows, even if the same key was read from another snapshot, or was absent
/// there.
#[test]
fn rows_that_are_remembered_are_those_of_their_flush() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let large = "x".repeat(2 << 10);
    let get = |snapshot: &LsmSnapshot, key: &str| snapshot.get(key.as_bytes()).unwrap();
    store.apply(Batch::of_rows(1, [set("a", "1"), set("large", &large)])).unwrap();
    let first = store.snapshot().unwrap();
    // Twice each: the second time from memory. More keys than places.
    for _ in 0..2 {
        assert_eq!((get(&first, "a"), get(&first, "b")), (Some("1".into()), None));
        assert_eq!(get(&first, "large"), Some(large.clone().into()));
        (0..500).for_each(|n| assert_eq!(get(&first, &format!("none {n}")), None));
    }
    let mut batch = Batch::of_rows(2, [set("b", "2")]);
    batch.clear("a".into());
    store.apply(batch).unwrap();
    let second = store.snapshot().unwrap();
    compacted(&store);
    for snapshot in [&second, &store.snapshot().unwrap(), &second] {
        assert_eq!((get(snapshot, "a"), get(snapshot, "b")), (None, Some("2".into())));
        assert_eq!((get(&first, "a"), get(&first, "b")), (Some("1".into()), None));
    }
}

/// Bytes in the engine's cache.
fn cached(store: &LsmStore) -> u64 {
    store.shared.tables().iter().next().unwrap().table.cache.size()
}

/// A batch with rows of this size, which do not compress.
fn noise(version: i64, prefix: &str, rows: usize, bytes: usize) -> Batch {
    let mut random = Random(version as u64);
    let value = |_| (0..bytes.div_ceil(4)).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
    let values: Vec<Vec<u8>> = (0..rows).map(value).collect();
    let rows = values.into_iter().enumerate().map(|(n, value)| (format!("{prefix}{n:05}").into(), value.into()));
    Batch::of_rows(version, rows)
}

/// Parts of attachments are read past the cache: by ranges and one by one, as they were flushed and when they are
/// compacted. Small rows fill it.
#[test]
fn large_rows_take_no_room_in_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let store = LsmStore::open(folder.path(), 64 << 20, Durability::Disk).unwrap();
    let read = |prefix: &str, expected: usize| {
        let snapshot = store.snapshot().unwrap();
        let end = format!("{prefix}~");
        let keys: Vec<Bytes> = snapshot
            .range(prefix.as_bytes(), end.as_bytes(), Direction::Forward)
            .map(|row| row.map(|(key, _)| key).unwrap())
            .collect();
        assert_eq!(keys.len(), expected);
        assert!(keys.iter().all(|key| snapshot.get(key).unwrap().is_some()));
        assert!(snapshot.range(prefix.as_bytes(), end.as_bytes(), Direction::Reverse).map(Result::unwrap).count() > 0);
    };
    store.apply(noise(1, "large", 60, 90_000)).unwrap();
    read("large", 60);
    for version in 2..6 {
        store.apply(noise(version, &format!("large{version}"), 20, 90_000)).unwrap();
    }
    compacted(&store);
    read("large", 140);
    assert!(cached(&store) < 100_000, "{} bytes of large rows", cached(&store));

    store.apply(noise(6, "small", 1_000, 1_000)).unwrap();
    read("small", 1_000);
    assert!(cached(&store) > 900_000, "only {} bytes of small rows", cached(&store));
}

/// The second handle of a table of large rows keeps the file open only while someone reads it.
#[cfg(target_os = "linux")]
#[test]
fn deleted_tables_of_large_rows_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let open_and_deleted = || {
        let files =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let ours = files.filter(|path| path.starts_with(folder.path()));
        ours.filter(|path| path.to_string_lossy().ends_with(" (deleted)")).count()
    };
    for version in 1..4 {
        store.apply(noise(version, "large", 10, 90_000)).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    assert_eq!(rows(&snapshot).len(), 10);
    let mut range = snapshot.range(b"", b"\xff", Direction::Forward);
    range.next();
    store.apply(noise(4, "large", 10, 90_000)).unwrap();
    compacted(&store);
    drop(snapshot);
    assert_eq!(range.by_ref().map(Result::unwrap).count(), 9, "its tables stay until it ends");
    drop(range);
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 10);
    assert_eq!(open_and_deleted(), 0);
}

/// A kill may leave many flushed tables. The opening makes room before the first flush, the replay of the log.
#[test]
fn a_store_with_very_many_flushes_goes_on_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    for version in 1..20 {
        store.apply(Batch::of_rows(version, [set("a", "1"), set("b", "2")])).unwrap();
    }
    drop(store);
    let store = open(folder.path());
    store.apply(Batch::of_rows(20, [set("a", "3")])).unwrap();
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 2);
}

/// Pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn key(&mut self) -> Bytes {
        // Keys of NULs only are stored as other keys.
        [b"".as_slice(), &[0], &[0, 0], &[0, 1]]
            .get(self.below(40) as usize)
            .map_or_else(|| self.usual_key(), |key| Bytes::copy_from_slice(key))
    }

    /// Half of the keys have a long prefix that few others share.
    fn usual_key(&mut self) -> Bytes {
        match self.below(2) {
            0 => format!("{:03}", self.below(200)).into(),
            _ => format!("a prefix {0:09}/{0:09}/{1}", self.below(30), self.below(4)).into(),
        }
    }

    fn change(&mut self, batch: &mut Batch) {
        match self.below(20) {
            0 => {
                let (one, other) = (self.key(), self.key());
                let begin = one.clone().min(other.clone());
                batch.clear_range(KeyRange { begin, end: [&*one.max(other), b"!"].concat().into() });
            }
            1..=4 => batch.clear(self.key()),
            5 => batch.set(self.key(), vec![9; 5_000].into()),
            _ => batch.set(self.key(), vec![7; self.below(60) as usize].into()),
        }
    }
}

type Model = BTreeMap<Bytes, Bytes>;

fn assert_same(snapshot: &LsmSnapshot, model: &Model, random: &mut Random, context: &str) {
    let all: Vec<_> = snapshot.range(b"", b"\xff", Direction::Forward).map(Result::unwrap).collect();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(model), "{context}");
    for _ in 0..10 {
        let (one, other) = (random.key(), random.key());
        assert_eq!(snapshot.get(&one).unwrap().as_ref(), model.get(&one), "{context}, {one:?}");
        // A range of rows with a common prefix, like a document's, or any range.
        let (begin, end) = match random.below(2) {
            0 => (one.slice(..one.len().min(24)), [&one[..one.len().min(24)], b"\xff"].concat()),
            _ => (one.clone().min(other.clone()), [&*one.max(other), b"\0"].concat()),
        };
        let expected: Vec<_> = model.range(begin.clone()..Bytes::from(end.clone())).collect();
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found: Vec<_> = snapshot.range(&begin, &end, direction).map(Result::unwrap).collect();
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert!(
                found.iter().map(|(key, value)| (key, value)).eq(expected.iter().copied()),
                "{context}, {begin:?}.."
            );
        }
    }
}

/// Compares with a map: batches, snapshots that are held over later flushes and compactions, and reopened stores.
#[test]
fn views_have_the_rows_of_their_batches_whatever_is_compacted() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        let mut model = Model::new();
        let mut held: Vec<(LsmSnapshot, Model)> = Vec::new();
        for version in 1..60 {
            let mut batch = Batch::new(version);
            (0..random.below(40)).for_each(|_| random.change(&mut batch));
            batch.clone().apply_to(&mut model);
            store.apply(batch).unwrap();
            let snapshot = store.snapshot().unwrap();
            assert_same(&snapshot, &model, &mut random, &format!("seed {seed}, batch {version}"));
            match random.below(12) {
                0..=3 => held.push((snapshot, model.clone())),
                4 => {
                    held.clear();
                    drop((snapshot, store));
                    store = open(folder.path());
                }
                _ => {}
            }
            for (snapshot, model) in &held {
                assert_same(snapshot, model, &mut random, &format!("seed {seed}, held at batch {version}"));
            }
        }
        held.clear();
        compacted(&store);
        let listed = store.shared.tables().iter().count();
        assert_eq!(fs::read_dir(folder.path().join("data/tables")).unwrap().count(), listed, "no file is left");
        assert!(listed < 8, "{listed} tables are not compacted");
    }
}

#[test]
fn an_opening_removes_what_a_kill_left_of_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    let left = ["current.new", ".tmpAbCdEf"].map(|name| folder.path().join("data").join(name));
    left.iter().for_each(|file| fs::write(file, "half").unwrap());
    assert_eq!(rows(&open(folder.path()).snapshot().unwrap()).len(), 1);
    assert!(!left.iter().any(|file| file.exists()));
}

/// File managers, appliances and network file systems put their files everywhere.
#[test]
fn what_is_not_of_the_engine_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    let data = folder.path().join("data");
    let names = [".nfs000001", ".fuse_hidden01", "Thumbs.db", "desktop.ini", ".DS_Store", "._7", "+7", "007", "7.bak"];
    let tables = names.map(|name| data.join("tables").join(name));
    let others = ["vacation.txt", ".tmp-notes", ".tmp12345é", "v07"].map(|name| data.join(name));
    let files: Vec<_> = tables.into_iter().chain(others).collect();
    files.iter().for_each(|file| fs::write(file, "of somebody else").unwrap());
    let folders = [data.join("tables/@eaDir"), data.join("tables/1000"), data.join("lost+found"), data.join("v1000")];
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let ours = [data.join("tables/900"), data.join("v900")];
    ours.iter().for_each(|file| fs::write(file, "what a kill left").unwrap());
    for version in 2..4 {
        let store = open(folder.path());
        store.apply(Batch::of_rows(version, [set(&format!("b{version}"), "1")])).unwrap();
        assert_eq!(rows(&store.snapshot().unwrap()).len(), version as usize);
    }
    for file in files {
        assert_eq!(fs::read_to_string(&file).unwrap(), "of somebody else", "{}", file.display());
    }
    assert!(folders.iter().all(|folder| folder.is_dir()));
    assert!(!ours.iter().any(|file| file.exists()));
}

/// Changes each byte of each file, in a folder with tables on two levels.
#[test]
fn a_byte_that_changed_is_refused_or_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for version in 1..7 {
        let rows = (0..8).map(|n| set(&format!("{}", (version * 5 + n) % 20), &format!("{version}")));
        store.apply(Batch::of_rows(version, rows)).unwrap();
        compacted(&store);
    }
    let whole = rows(&store.snapshot().unwrap());
    drop(store);
    let mut files = vec![];
    for name in ["data", "data/tables"] {
        let entries = fs::read_dir(folder.path().join(name)).unwrap().map(Result::unwrap);
        files.extend(entries.map(|entry| entry.path()).filter(|path| path.is_file()));
    }
    assert!(files.len() >= 5, "{files:?}");
    let (mut refused, mut harmless) = (0, 0);
    for file in files {
        let bytes = fs::read(&file).unwrap();
        let damaged = (0..bytes.len()).map(|at| {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            damaged
        });
        let cut = (0..bytes.len()).step_by(7).map(|at| bytes[..at].to_vec());
        for (trial, damaged) in damaged.chain(cut).enumerate() {
            fs::write(&file, damaged).unwrap();
            let context = format!("trial {trial} of {}, {} bytes", file.display(), bytes.len());
            let read = LsmStore::open(folder.path(), 1 << 20, Durability::Disk).and_then(|store| {
                let snapshot = store.snapshot()?;
                let rows: Result<Vec<_>> = snapshot.range(b"", b"\xff", Direction::Forward).collect();
                whole.iter().try_for_each(|(key, _)| snapshot.get(key).map(drop))?;
                rows
            });
            match read {
                Ok(found) => {
                    assert_eq!(found, whole, "{context}");
                    harmless += 1;
                }
                Err(error) => {
                    assert_eq!(error.code(), error::FILE_CORRUPT, "{context}: {error}");
                    refused += 1;
                }
            }
            fs::write(&file, &bytes).unwrap();
        }
    }
    println!("{refused} refused, {harmless} harmless");
    assert!(refused > 1_000 && rows(&open(folder.path()).snapshot().unwrap()) == whole);
}
