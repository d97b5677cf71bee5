//! The store without the write-ahead log before it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kv_api::error;
use occ::KeyRange;
use occ::store::View;

use super::*;

fn open(folder: &Path) -> LsmStore {
    LsmStore::open(folder, 1 << 20, Durability::Disk).unwrap()
}

fn set(key: &str, value: &str) -> (Bytes, Bytes) {
    (key.to_owned().into(), value.to_owned().into())
}

fn rows(view: &LsmView) -> Vec<(Bytes, Bytes)> {
    view.range(b"", b"\xff", Direction::Forward).map(Result::unwrap).collect()
}

/// Waits until nothing is left to compact.
fn compacted(store: &LsmStore) {
    while !store.shared.is_idle() {
        std::thread::yield_now();
    }
}

/// A compaction replaces the tables of the newest snapshot, and deletes the old files when no view has them.
#[test]
fn a_range_that_was_begun_reads_on_when_its_tables_are_compacted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for version in 1..4 {
        store.apply(Batch::of_rows(version, [set("a", "1"), set(&format!("b{version}"), "2")])).unwrap();
    }
    compacted(&store);
    drop(store);
    // After opening again, no file of a table is open.
    let store = open(folder.path());
    let view = store.view().unwrap();
    let range = view.range(b"", b"\xff", Direction::Forward);
    store.apply(Batch::of_rows(4, [set("a", "5"), set("b4", "6")])).unwrap();
    compacted(&store);
    drop(view);
    assert_eq!(range.map(Result::unwrap).count(), 4);
}

/// Bytes in the engine's cache.
fn cached(store: &LsmStore) -> u64 {
    let version = store.shared.tree().current_version();
    version.iter_tables().next().unwrap().cache.size()
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
        let view = store.view().unwrap();
        let end = format!("{prefix}~");
        let keys: Vec<Bytes> = view
            .range(prefix.as_bytes(), end.as_bytes(), Direction::Forward)
            .map(|row| row.map(|(key, _)| key).unwrap())
            .collect();
        assert_eq!(keys.len(), expected);
        assert!(keys.iter().all(|key| view.get(key).unwrap().is_some()));
        assert!(view.range(prefix.as_bytes(), end.as_bytes(), Direction::Reverse).map(Result::unwrap).count() > 0);
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

/// The second handle of a table of large rows opens no file for longer than anybody reads it.
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
    let view = store.view().unwrap();
    assert_eq!(rows(&view).len(), 10);
    let mut range = view.range(b"", b"\xff", Direction::Forward);
    range.next();
    store.apply(noise(4, "large", 10, 90_000)).unwrap();
    compacted(&store);
    drop(view);
    assert_eq!(range.by_ref().map(Result::unwrap).count(), 9, "its tables stay until it ends");
    drop(range);
    assert_eq!(rows(&store.view().unwrap()).len(), 10);
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
    assert_eq!(rows(&store.view().unwrap()).len(), 2);
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

fn assert_same(view: &LsmView, model: &Model, random: &mut Random, context: &str) {
    let all: Vec<_> = view.range(b"", b"\xff", Direction::Forward).map(Result::unwrap).collect();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(model), "{context}");
    for _ in 0..10 {
        let (one, other) = (random.key(), random.key());
        assert_eq!(view.get(&one).unwrap().as_ref(), model.get(&one), "{context}, {one:?}");
        // A range of rows with a common prefix, like a document's, or any range.
        let (begin, end) = match random.below(2) {
            0 => (one.slice(..one.len().min(24)), [&one[..one.len().min(24)], b"\xff"].concat()),
            _ => (one.clone().min(other.clone()), [&*one.max(other), b"\0"].concat()),
        };
        let expected: Vec<_> = model.range(begin.clone()..Bytes::from(end.clone())).collect();
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut found: Vec<_> = view.range(&begin, &end, direction).map(Result::unwrap).collect();
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

/// Compares with a map: batches, views that are held over later flushes and compactions, and reopened stores.
#[test]
fn views_have_the_rows_of_their_batches_whatever_is_compacted() {
    for seed in 0..6 {
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        let mut model = Model::new();
        let mut held: Vec<(LsmView, Model)> = Vec::new();
        for version in 1..60 {
            let mut batch = Batch::new(version);
            (0..random.below(40)).for_each(|_| random.change(&mut batch));
            batch.clone().apply_to(&mut model);
            store.apply(batch).unwrap();
            let view = store.view().unwrap();
            assert_same(&view, &model, &mut random, &format!("seed {seed}, batch {version}"));
            match random.below(12) {
                0..=3 => held.push((view, model.clone())),
                4 => {
                    held.clear();
                    drop((view, store));
                    store = open(folder.path());
                }
                _ => {}
            }
            for (view, model) in &held {
                assert_same(view, model, &mut random, &format!("seed {seed}, held at batch {version}"));
            }
        }
        held.clear();
        compacted(&store);
        let version = store.shared.tree().current_version();
        let listed = version.iter_tables().count();
        assert_eq!(fs::read_dir(folder.path().join("data/tables")).unwrap().count(), listed, "no file is left");
        assert!(listed < 8, "{listed} tables are not compacted");
    }
}

/// The tables' folder is renamed for a while, which looks like a disk error.
#[test]
fn a_flush_that_fails_changes_nothing_and_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, away) = (folder.path().join("data/tables"), folder.path().join("away"));
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    let second = Batch::of_rows(2, [set("a", "2"), set("b", "3")]);
    fs::rename(&tables, &away).unwrap();
    for _ in 0..3 {
        let error = store.apply(second.clone()).unwrap_err();
        assert!(matches!(error, ApplyError::NothingApplied(_)), "{error:?}");
    }
    fs::rename(&away, &tables).unwrap();
    assert_eq!(rows(&store.view().unwrap()).len(), 1);
    store.apply(second).unwrap();
    assert_eq!(rows(&store.view().unwrap()).len(), 2);
    drop(store);
    assert_eq!(rows(&open(folder.path()).view().unwrap()).len(), 2);
}

/// The manifest cannot be written, because its name is a dangling link. The next flush uses another name, and
/// succeeds.
#[cfg(unix)]
#[test]
fn a_flush_whose_manifest_fails_leaves_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    compacted(&store);
    let files = || fs::read_dir(data.join("tables")).unwrap().count();
    let before = files();
    let (version, _) = manifest::current(&data).unwrap();
    let next = data.join(format!("v{}", version + 1));
    for _ in 0..3 {
        std::os::unix::fs::symlink("nowhere/at all", &next).unwrap();
        let error = store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap_err();
        assert!(matches!(error, ApplyError::NothingApplied(_)), "{error:?}");
        assert_eq!(files(), before);
        assert!(next.symlink_metadata().is_err(), "a later sync of this name would say nothing");
    }
    store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap();
    assert_eq!(rows(&store.view().unwrap()), [("a".into(), "2".into())]);
}

/// The manifest can be neither written nor removed, because a folder has its name. The result of a later sync
/// would be unknown, so nothing is written until the folder is gone. Then the store continues without being opened
/// again.
#[test]
fn a_manifest_that_cannot_be_removed_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    compacted(&store);
    let next = data.join(format!("v{}", manifest::current(&data).unwrap().0 + 1));
    fs::create_dir(&next).unwrap();
    let second = Batch::of_rows(2, [set("a", "2")]);
    let first = store.apply(second.clone()).unwrap_err();
    let again = store.apply(second.clone()).unwrap_err();
    let (ApplyError::NothingApplied(first), ApplyError::NothingApplied(again)) = (first, again) else { panic!() };
    assert_eq!(first.to_string(), again.to_string(), "the first one has the cause");
    assert_eq!(rows(&store.view().unwrap()), [("a".into(), "1".into())]);
    fs::remove_dir(&next).unwrap();
    store.apply(second).unwrap();
    assert_eq!(rows(&store.view().unwrap()), [("a".into(), "2".into())]);
    drop(store);
    assert_eq!(rows(&open(folder.path()).view().unwrap()), [("a".into(), "2".into())]);
}

/// A manifest is renamed, and the sync of its name fails. So the disk may have it, and memory does not.
fn leave_a_newer_manifest(data: &Path) -> PathBuf {
    let (version, _) = manifest::current(data).unwrap();
    let next = data.join(format!("v{}", version + 1));
    fs::write(&next, "newer").unwrap();
    let mut current = fs::read(data.join("current")).unwrap();
    current[..8].copy_from_slice(&(version + 1).to_le_bytes());
    fs::write(data.join("current"), current).unwrap();
    next
}

/// While a flush writes its table, a compaction renames `current` and fails to sync it. The next manifest has the
/// same number, and must not overwrite the one that `current` names.
#[test]
fn no_manifest_is_written_over_one_that_the_disk_may_have() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    compacted(&store);
    let shared = &store.shared;
    // For a while `current` cannot be written back.
    fs::create_dir(data.join("current.new")).unwrap();
    let outcome = shared.guarded(Writer::Flush, || {
        let mut table = shared.tree().ingestion().unwrap();
        table.write(keys::stored(b"a").as_ref(), b"2".as_slice()).unwrap();
        let compaction = shared.guarded(Writer::Compaction, || -> Result<()> {
            shared.turns().take(Writer::Compaction)?;
            leave_a_newer_manifest(&data);
            Err(corrupt("the first"))
        });
        assert!(matches!(compaction, Err(ApplyError::NothingApplied(_))), "{compaction:?}");
        shared.publish(Collector::default().finish(), || table.finish().map_err(|failure| kv_error(&failure, "")))
    });
    let Err(ApplyError::NothingApplied(error)) = outcome else { panic!("{outcome:?}") };
    assert!(error.to_string().contains("the first"), "{error}");
    let (version, _) = manifest::current(&data).unwrap();
    assert_eq!(fs::read(data.join(format!("v{version}"))).unwrap(), b"newer");
    // The newer manifest may list its tables.
    assert_eq!(fs::read_dir(data.join("tables")).unwrap().count(), 2);

    fs::remove_dir(data.join("current.new")).unwrap();
    store.apply(Batch::of_rows(2, [set("a", "3")])).unwrap();
    assert_eq!(rows(&store.view().unwrap()), [("a".into(), "3".into())]);
    manifest::check(&data).unwrap();
    compacted(&store);
    assert_eq!(fs::read_dir(data.join("tables")).unwrap().count(), 2, "what failed left nothing");
    drop(store);
    assert_eq!(rows(&open(folder.path()).view().unwrap()), [("a".into(), "3".into())]);
}

/// During a compaction a flush leaves a newer manifest. The compaction must not overwrite it. A closing store does
/// not wait for the compaction.
#[test]
fn a_compaction_waits_until_the_disk_is_brought_back() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    compacted(&store);
    let turns = store.shared.turns();
    turns.take(Writer::Compaction).unwrap();
    let filter = CompactionTurns(turns.clone());
    let all_pass = filter.pass_all();
    turns.take(Writer::Flush).unwrap();
    let next = leave_a_newer_manifest(&data);
    fs::create_dir(data.join("current.new")).unwrap();
    let version = store.shared.tree().current_version().id();
    turns.give_after(Writer::Flush, &corrupt("a test"), version);
    let compaction = std::thread::spawn(move || all_pass.finish());
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!compaction.is_finished() && next.exists());
    turns.stop();
    assert!(compaction.join().is_err(), "it writes nothing");
    assert_eq!(manifest::current(&data).unwrap().0, version + 1);
    fs::remove_dir(data.join("current.new")).unwrap();
    turns.take(Writer::Flush).unwrap();
    assert_eq!(manifest::check(&data).unwrap(), version);
    assert!(!next.exists());
}

/// A compaction fails. Between its table numbers are those of tables that were flushed and compacted away
/// meanwhile.
#[test]
fn a_failure_deletes_no_table_that_a_view_has() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut held = None;
    let failed = store.shared.guarded(Writer::Flush, || -> Result<()> {
        store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
        let view = store.view().unwrap();
        for version in 2..6 {
            store.apply(Batch::of_rows(version, [set("a", "2"), set("b", "2")])).unwrap();
        }
        compacted(&store);
        held = Some(view);
        Err(corrupt("a test"))
    });
    assert!(failed.is_err());
    assert_eq!(rows(&held.unwrap()), [("a".into(), "1".into())]);
}

/// After a panic `lsm-tree` never compacts the affected tables again, so a flush would wait for room for ever.
#[test]
fn a_panic_ends_writing_until_the_folder_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    let outcome = store.shared.guarded(Writer::Compaction, || -> Result<()> {
        let _poisoned = store.shared.tree().get_version_history_lock();
        panic!("a test");
    });
    assert!(matches!(outcome, Err(ApplyError::Unknown(_))), "{outcome:?}");
    let error = store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap_err();
    let ApplyError::NothingApplied(error) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("open it again"), "{error}");
    assert_eq!(rows(&store.view().unwrap()).len(), 1);
    drop(store);
    let store = open(folder.path());
    store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap();
    assert_eq!(rows(&store.view().unwrap()), [("a".into(), "2".into())]);
}

#[test]
fn an_opening_removes_what_a_kill_left_of_a_manifest() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    let left = ["current.new", ".tmpAbCdEf"].map(|name| folder.path().join("data").join(name));
    left.iter().for_each(|file| fs::write(file, "half").unwrap());
    assert_eq!(rows(&open(folder.path()).view().unwrap()).len(), 1);
    assert!(!left.iter().any(|file| file.exists()));
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
    let whole = rows(&store.view().unwrap());
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
                let view = store.view()?;
                let rows: Result<Vec<_>> = view.range(b"", b"\xff", Direction::Forward).collect();
                whole.iter().try_for_each(|(key, _)| view.get(key).map(drop))?;
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
    assert!(refused > 1_000 && rows(&open(folder.path()).view().unwrap()) == whole);
}
