//! The space of what is deleted comes back.

use std::collections::HashSet;

use super::*;

/// Bytes of all files of tables.
fn bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder.join("data/tables")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// The batch that writes documents `from..to`: a large row and a few small ones each, among other keys. Documents that
/// are `live` older are deleted.
fn documents(random: &mut Random, from: u64, to: u64, live: u64, body: usize) -> Batch {
    let mut batch = Batch::new(to as i64);
    let keys = |n: u64| [format!("body/{n:08}"), format!("feed/{n:08}"), format!("name/{n:08}")].map(Bytes::from);
    for n in from..to {
        let noise: Vec<u8> = (0..body / 4).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
        let [body, feed, name] = keys(n);
        batch.set(body, noise.into());
        batch.set(feed, "a row of the feed".into());
        batch.set(name, "a row by name".into());
        if let Some(old) = n.checked_sub(live) {
            keys(old).into_iter().for_each(|key| batch.clear(key));
        }
    }
    batch.set("counter".into(), to.to_be_bytes().to_vec().into());
    batch
}

/// Writes `total` documents, of which the last `live` stay. Returns the bytes of those.
fn load(store: &LsmStore, live: u64, total: u64, body: usize) -> u64 {
    let mut random = Random(7);
    let step = TABLE_BYTES / body as u64;
    for from in (0..total).step_by(step as usize) {
        store.apply(documents(&mut random, from, from + step, live, body)).unwrap();
    }
    live * (body as u64 + 70)
}

#[test]
fn documents_that_were_deleted_leave_the_folder() {
    for body in [512, 5_000, 60_000] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        let live = 8 * TABLE_BYTES / body as u64;
        let expected = load(&store, live, 12 * live, body);
        store.shared.settle(Effort::Usual);
        let usual = bytes(folder.path());
        assert!(usual < 2 * expected + 4 * TABLE_BYTES, "{usual} bytes, of {expected}, bodies of {body}");
        store.shared.settle(Effort::Quiet);
        let quiet = bytes(folder.path());
        assert!(quiet < expected * 13 / 10, "{quiet} bytes when quiet, of {expected}, bodies of {body}");
        assert!(store.snapshot().unwrap().get(b"body/00000000").unwrap().is_none());
    }
}

/// A few large rows and very many small ones of other keys. The mean row of all tables is small, and what is deleted is
/// not. Also when the store was opened since, and when many small rows are deleted at the same time.
#[test]
fn large_rows_beside_many_small_ones_leave_the_folder() {
    for reopens in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path());
        let mut random = Random(13);
        for version in 1..=8 {
            let mut batch = Batch::new(version);
            for n in (0..80).filter(|n| n % 8 == version as u64 % 8) {
                let noise: Vec<u8> = (0..10_000).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
                batch.set(format!("body/{n:08}").into(), noise.into());
                (0..400).for_each(|row| batch.set(format!("small/{row:04}/{n:04}").into(), "a small row".into()));
            }
            store.apply(batch).unwrap();
        }
        store.shared.settle(Effort::Quiet);
        let before = bytes(folder.path());
        let mut batch = Batch::new(9);
        for n in (0..80).step_by(2) {
            batch.clear_range(KeyRange { begin: format!("body/{n:08}").into(), end: format!("body/{n:08}~").into() });
        }
        (0..5_000).for_each(|n| batch.clear(format!("small/{:04}/{:04}", n % 400, n / 400).into()));
        store.apply(batch).unwrap();
        if reopens {
            store.close().unwrap();
            drop(store);
            store = open(folder.path());
        }
        store.shared.settle(Effort::Quiet);
        let left = bytes(folder.path());
        assert!(left < before * 6 / 10, "{left} of {before} bytes, reopened: {reopens}");
    }
}

/// The rows of a range in the middle of a table, of which there are many.
#[test]
fn what_a_batch_hides_is_looked_up_in_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.apply(noise(1, "part/", 200, 5_000)).unwrap();
    store.shared.settle(Effort::Quiet);
    let mut batch = Batch::new(2);
    for part in (0..200).step_by(2) {
        batch.clear_range(KeyRange { begin: format!("part/{part:05}").into(), end: format!("part/{part:05}~").into() });
    }
    let (snapshot, stored) = (store.snapshot().unwrap(), bytes(folder.path()));
    let hidden = LsmStore::hidden_bytes(&snapshot, &batch);
    assert!(hidden.abs_diff(stored / 2) < stored / 5, "{hidden} of {stored} bytes");
    let mut batch = Batch::new(2);
    batch.clear_range(KeyRange { begin: "part/00010".into(), end: "part/00060".into() });
    let hidden = LsmStore::hidden_bytes(&snapshot, &batch);
    assert!(hidden.abs_diff(stored / 4) < stored / 20, "{hidden} of {stored} bytes");
}

/// Documents by random names, most of which are deleted at random.
#[test]
fn documents_that_were_deleted_at_random_leave_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut random = Random(3);
    let mut names: Vec<u64> = Vec::new();
    for version in 1..40 {
        let mut batch = Batch::new(version);
        for _ in 0..100 {
            let name = random.below(1 << 30);
            let noise: Vec<u8> = (0..500).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
            batch.set(format!("{name:012}").into(), noise.into());
            names.push(name);
        }
        while names.len() > 500 {
            let name = names.swap_remove(random.below(names.len() as u64) as usize);
            batch.clear(format!("{name:012}").into());
        }
        store.apply(batch).unwrap();
    }
    store.shared.settle(Effort::Quiet);
    let (bytes, expected) = (bytes(folder.path()), 500 * 2_020);
    assert!(bytes < expected * 13 / 10, "{bytes} bytes, of {expected}");
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 500);
}

/// A dropped database: its tables go with the flush of the clear, beside those of others. Snapshots keep them as long
/// as they live.
#[test]
fn a_cleared_range_leaves_the_folder_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for version in 1..30 {
        store.apply(noise(version, &format!("db{}/{version}/", version % 3), 100, 5_000)).unwrap();
    }
    store.shared.settle(Effort::Quiet);
    let (before, snapshot) = (bytes(folder.path()), store.snapshot().unwrap());
    let count = rows(&snapshot).len();
    let mut batch = Batch::new(30);
    batch.clear_range(KeyRange { begin: "db1/".into(), end: "db10".into() });
    batch.set("db1/again".into(), "1".into());
    store.apply(batch).unwrap();
    let tombstones: u64 = store.shared.tables().iter().map(|member| member.tombstones()).sum();
    assert!(tombstones < 300, "{tombstones} tombstones for 1,000 rows");
    let left = rows(&store.snapshot().unwrap());
    assert_eq!(left.len(), count - 1_000 + 1);
    assert!(left.iter().all(|(key, _)| !key.starts_with(b"db1/") || *key == "db1/again"));
    assert_eq!(rows(&snapshot).len(), count);
    store.shared.settle(Effort::Quiet);
    drop(snapshot);
    let after = bytes(folder.path());
    assert!(after < before * 3 / 4, "{after} bytes, of {before}");
    drop(store);
    assert_eq!(rows(&open(folder.path()).snapshot().unwrap()), left);
}

/// A request frees the space of a range at once; without one, a quiet store need not.
#[test]
fn space_that_is_asked_for_is_freed_in_its_range() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for version in 1..9 {
        store.apply(noise(version, &format!("db{}/{version}/", version % 2), 200, 5_000)).unwrap();
    }
    store.shared.settle(Effort::Quiet);
    // Too little is hidden for a compaction without a request.
    let mut batch = Batch::new(9);
    (0..4).for_each(|n| batch.clear(format!("db1/3/{:05}", n * 40).into()));
    store.apply(batch).unwrap();
    store.shared.settle(Effort::Quiet);
    let tombstones = || store.shared.tables().iter().map(|member| member.tombstones()).sum::<u64>();
    assert_eq!(tombstones(), 4);
    store.compact(b"db0/", b"db0~");
    store.shared.settle(Effort::Quiet);
    assert!(!store.is_compacting(b"", b"~"));
    assert_eq!(tombstones(), 4, "another range");
    store.compact(b"db0/", b"db1/3/00000");
    store.shared.settle(Effort::Quiet);
    assert_eq!(tombstones(), 4, "a range that ends before them");
    store.compact(b"db1/", b"db1~");
    store.shared.settle(Effort::Quiet);
    assert!(!store.is_compacting(b"", b"~"));
    assert_eq!(tombstones(), 0);
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 1_596);
}

/// Neither new tombstones nor a damaged table keep a request for space waiting forever.
#[test]
fn a_request_for_space_has_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for version in 1..9 {
        store.apply(noise(version, &format!("db/{version}/"), 200, 5_000)).unwrap();
    }
    store.shared.settle(Effort::Quiet);
    store.compactor.stop();
    let next = store.shared.maker.next_flush();
    let mut batch = Batch::new(9);
    batch.clear("db/3/00000".into());
    store.apply(batch).unwrap();
    let tables = store.shared.tables();
    let asked = |before| Effort::Full { first: b"db/"[..].into(), last: b"db0"[..].into(), before };
    let picked = |before, damaged: &HashSet<u64>| crate::pick::pick(&tables, SIZES, &asked(before), damaged).step();
    assert!(picked(next, &HashSet::new()).is_none(), "what was removed after the request");
    let step = picked(next + 1, &HashSet::new()).unwrap();
    let damaged = HashSet::from([step.lower[0][0].number()]);
    assert!(picked(next + 1, &damaged).is_none(), "it would end at the damage again");
}

/// Tables that were moved down, or written by an earlier build, may overlap very much of the level below.
#[test]
fn no_compaction_reads_more_than_a_step() {
    use crate::merge::merge;
    use crate::pick::{most_step, pick_from};

    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    let maker = &store.shared.maker;
    let mut random = Random(5);
    let mut written = |level: usize, every: u64| {
        let mut new = maker.begin(Place { level, base: level });
        for n in (0..24_000).filter(|n| n % every == 0) {
            let noise: Vec<u8> = (0..250).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
            let row = InternalValue::from_components(format!("{n:08}"), noise, level as u64, ValueType::Value);
            new.write(row, 0).unwrap();
        }
        new.finish().unwrap().take()
    };
    let mut tables = Tables::default();
    tables.add(LAST, written(LAST, 1));
    // Each of these overlaps a quarter of the others, which is more than a step.
    tables.add(LAST - 1, written(LAST - 1, 25));
    let mut steps = 0;
    while let Some(step) = pick_from(&tables, SIZES, LAST - 1) {
        let bytes: u64 = step.inputs().map(|member| member.bytes()).sum();
        assert!(bytes <= most_step(TABLE_BYTES), "step {steps} reads {bytes} bytes");
        let inputs: HashSet<u64> = step.inputs().map(|member| member.number()).collect();
        let new = merge(maker, &tables, &step, &std::sync::atomic::AtomicBool::new(false)).unwrap().unwrap();
        tables = tables.filtered(|member| !inputs.contains(&member.number()));
        tables.add(step.to.level, new.take());
        steps += 1;
        assert!(steps < 100);
    }
    assert!(steps > 8, "{steps}");
}

/// `lsm-tree` opens the folder, and has the same rows: tables, levels and the manifest are in its format.
#[test]
fn the_folder_is_one_of_lsm_tree() {
    use lsm_tree::config::CompressionPolicy;
    use lsm_tree::{AbstractTree, CompressionType, Config, Guard, SeqNo, SequenceNumberCounter};
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    load(&store, 300, 2_000, 2_000);
    let expected = rows(&store.snapshot().unwrap());
    store.close().unwrap();
    drop(store);
    let counter = SequenceNumberCounter::default;
    let tree = Config::new(folder.path().join("data"), counter(), counter())
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        .open()
        .unwrap();
    let found: Vec<_> = tree.iter(SeqNo::MAX, None).map(|row| row.into_inner().unwrap()).collect();
    assert!(
        found.iter().map(|(key, value)| (&**key, &**value)).eq(expected.iter().map(|(key, value)| (&**key, &**value)))
    );
    tree.major_compact(u64::MAX, SeqNo::MAX).unwrap();
    drop(tree);
    assert_eq!(rows(&open(folder.path()).snapshot().unwrap()), expected);
}

/// The sizes of ranges add up to the files, also for databases smaller than a table. Deleted rows count while they take
/// space.
#[test]
fn the_bytes_of_ranges_add_up_to_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut random = Random(11);
    // Databases of 1, 2, 4, … documents of 10 KB.
    let end = |database: u32| Bytes::from(format!("{:02}", database + 1));
    let begin = |database: u32| Bytes::from(format!("{database:02}"));
    let sizes = || -> Vec<u64> { (0..9).map(|one| store.disk_bytes(&begin(one), &end(one)).unwrap()).collect() };
    assert_eq!(sizes(), vec![0; 9]);
    for version in 1..=4 {
        let mut batch = Batch::new(version);
        for database in 0..9 {
            for n in (0..1 << database).filter(|n| n % 4 == version as u32 % 4) {
                let noise: Vec<u8> = (0..2_500).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
                batch.set(format!("{database:02}/{n:08}").into(), noise.into());
            }
        }
        store.apply(batch).unwrap();
    }
    let check = |when: &str, sizes: &[u64], expected: &[u64]| {
        let (sum, files) = (sizes.iter().sum::<u64>(), bytes(folder.path()));
        assert!(sum.abs_diff(files) < files / 100, "{when}: {sum} of {files} bytes");
        for (database, (size, expected)) in sizes.iter().zip(expected).enumerate() {
            // Up to one block more or less for each table.
            assert!(
                size.abs_diff(*expected) < expected / 10 + 40_000,
                "{when}: {size} of {expected} bytes of {database}"
            );
        }
    };
    let mut expected: Vec<u64> = (0..9).map(|database| 10_000 << database).collect();
    store.shared.settle(Effort::Usual);
    check("flushed", &sizes(), &expected);
    store.shared.settle(Effort::Quiet);
    check("compacted", &sizes(), &expected);
    // Too few for a compaction without a request.
    let mut batch = Batch::new(9);
    (0..256).step_by(6).for_each(|n| batch.clear(format!("08/{n:08}").into()));
    store.apply(batch).unwrap();
    store.shared.settle(Effort::Usual);
    check("deleted", &sizes(), &expected);
    store.compact(b"08", b"09");
    store.shared.settle(Effort::Quiet);
    expected[8] = (256 - 43) * 10_000;
    check("given back", &sizes(), &expected);
}
