//! Flushes and compactions that fail.

use std::collections::HashSet;
use std::path::PathBuf;

use super::*;

/// The tables' folder is renamed for a while, which acts as a disk error.
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
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 1);
    store.apply(second).unwrap();
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 2);
    drop(store);
    assert_eq!(rows(&open(folder.path()).snapshot().unwrap()).len(), 2);
}

/// Files of tables.
fn files(data: &Path) -> usize {
    fs::read_dir(data.join("tables")).unwrap().count()
}

/// A folder has the name of the next manifest.
fn block_next_manifest(data: &Path, ahead: u64) -> PathBuf {
    let (version, _) = manifest::current(data).unwrap();
    let next = data.join(format!("v{}", version + ahead));
    fs::create_dir(&next).unwrap();
    next
}

/// The next manifest has another name, since a later sync of this one would prove nothing.
#[test]
fn a_flush_whose_manifest_fails_leaves_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    compacted(&store);
    let before = files(&data);
    for ahead in 1..4 {
        block_next_manifest(&data, ahead);
        let error = store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap_err();
        assert!(matches!(error, ApplyError::NothingApplied(_)), "{error:?}");
        assert_eq!(files(&data), before);
        assert_eq!(rows(&store.snapshot().unwrap()), [("a".into(), "1".into())]);
    }
    store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap();
    assert_eq!(rows(&store.snapshot().unwrap()), [("a".into(), "2".into())]);
}

/// The name of the newest manifest cannot be synced. The disk may have it, so its tables stay until another manifest is
/// written, which has another name.
#[test]
fn tables_that_the_disk_may_list_stay_until_the_next_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    compacted(&store);
    let (before, (version, _)) = (files(&data), manifest::current(&data).unwrap());
    store.shared.fail_next_sync();
    let error = store.apply(Batch::of_rows(2, [set("a", "2")])).unwrap_err();
    assert!(matches!(error, ApplyError::NothingApplied(_)), "{error:?}");
    assert_eq!(rows(&store.snapshot().unwrap()), [("a".into(), "1".into())]);
    assert_eq!(files(&data), before + 1);
    assert_eq!(manifest::list(&data).unwrap().0, version + 1, "this may be on the disk");
    assert!(data.join(format!("v{version}")).exists(), "and so may this");

    store.apply(Batch::of_rows(2, [set("a", "3")])).unwrap();
    assert!(manifest::list(&data).unwrap().0 > version + 2, "the former tables were listed again first");
    assert!((version..version + 2).all(|older| !data.join(format!("v{older}")).exists()));
    compacted(&store);
    assert_eq!(files(&data), store.shared.tables().iter().count(), "what failed left nothing");
    drop(store);
    assert_eq!(rows(&open(folder.path()).snapshot().unwrap()), [("a".into(), "3".into())]);
}

/// An unreadable table fails only its compaction, which is retried.
#[test]
fn a_compaction_that_fails_changes_nothing_and_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, away) = (folder.path().join("data/tables"), folder.path().join("away"));
    let store = open(folder.path());
    store.compactor.stop();
    for version in 1..5 {
        store.apply(Batch::of_rows(version, [set("a", &version.to_string()), set("b", "2")])).unwrap();
    }
    drop(store);
    let store = open(folder.path());
    store.compactor.stop();
    let step = crate::pick::pick(&store.shared.tables(), SIZES, &Effort::Usual, &HashSet::new()).step().unwrap();
    fs::rename(&tables, &away).unwrap();
    store.shared.compact(&store.shared.tables(), &step).unwrap_err();
    fs::rename(&away, &tables).unwrap();
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 2);
    drop(step);
    drop(store);
    let store = open(folder.path());
    compacted(&store);
    assert_eq!(store.shared.tables().iter().count(), 1);
    assert_eq!(rows(&store.snapshot().unwrap()), [("a".into(), "4".into()), ("b".into(), "2".into())]);
}

/// A flush drops tables that a compaction is merging: the compaction must not bring their rows back.
#[test]
fn a_compaction_whose_tables_were_dropped_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    for version in 1..5 {
        store.apply(Batch::of_rows(version, [set("b", "1"), set("c", "1")])).unwrap();
    }
    let (tables, step) = (
        store.shared.tables(),
        crate::pick::pick(&store.shared.tables(), SIZES, &Effort::Usual, &HashSet::new()).step().unwrap(),
    );
    let mut clear = Batch::new(5);
    clear.clear_range(KeyRange { begin: "a".into(), end: "d".into() });
    store.apply(clear).unwrap();
    assert_eq!(store.shared.tables().iter().count(), 0, "and no tombstone is left");
    assert!(!store.shared.compact(&tables, &step).unwrap(), "it is not counted");
    assert_eq!(rows(&store.snapshot().unwrap()), []);
    drop((tables, step));
    drop(store);
    assert_eq!(rows(&open(folder.path()).snapshot().unwrap()), []);
    assert_eq!(files(&folder.path().join("data")), 0);
}

/// A flush that clears relies on its tables: a compaction that ends meanwhile waits for it.
#[test]
fn a_compaction_waits_for_a_flush_that_clears() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    for version in 1..5 {
        store.apply(Batch::of_rows(version, [set("a", "1"), set("b", "1")])).unwrap();
    }
    let (tables, step) = (
        store.shared.tables(),
        crate::pick::pick(&store.shared.tables(), SIZES, &Effort::Usual, &HashSet::new()).step().unwrap(),
    );
    std::thread::scope(|scope| {
        let compaction = store.shared.while_clearing(|| {
            let compaction = scope.spawn(|| assert!(store.shared.compact(&tables, &step).unwrap(), "it is counted"));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(store.shared.tables().iter().count(), 4);
            compaction
        });
        compaction.join().unwrap();
    });
    assert_eq!(store.shared.tables().iter().count(), 1);
}

/// A flush that panics changes nothing, and does not stop compactions.
#[test]
fn a_panic_ends_a_flush_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.apply(Batch::of_rows(1, [set("a", "1")])).unwrap();
    let panicked = caught("a flush", || store.shared.while_clearing(|| -> Result<()> { panic!("a test") }));
    assert_eq!(panicked.unwrap_err().code(), error::FILE_CORRUPT);
    for version in 2..8 {
        store.apply(Batch::of_rows(version, [set("a", "2")])).unwrap();
    }
    compacted(&store);
    assert!(store.shared.tables().flushes() < 4);
}

/// The state is locked while a manifest is synced, and clients ask what is being compacted.
#[test]
fn what_is_compacting_is_told_while_a_manifest_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (told, answer) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        store.shared.while_publishing(|| {
            scope.spawn(|| told.send(store.is_compacting(b"a", b"b")));
            assert!(!answer.recv_timeout(std::time::Duration::from_secs(60)).unwrap());
        });
    });
}
