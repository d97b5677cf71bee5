//! Flushes and the runs of level 1.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;
use crate::pick::{Picked, pick};
use crate::tables::{MOST_RUNS, Run, YOUNG};

/// Numbers of the tables of the levels below the young ones.
fn older(store: &LsmStore) -> Vec<u64> {
    let tables = store.shared.tables();
    (YOUNG + 1..=LAST).flat_map(|level| tables.level(level).map(|member| member.number()).collect::<Vec<_>>()).collect()
}

/// Number of runs of a level.
fn runs(store: &LsmStore, level: usize) -> usize {
    store.shared.tables().levels()[level].len()
}

/// Four flushes of random keys, and a change in each.
fn four_flushes_with(store: &LsmStore, random: &mut Random, change: impl Fn(&mut Batch)) {
    for _ in 0..4 {
        let rows = (0..50).map(|_| set(&format!("document {:09}", random.below(1 << 30)), "a row"));
        let mut batch = Batch::of_rows(1, rows);
        change(&mut batch);
        store.apply(batch).unwrap();
    }
    store.shared.settle(Effort::Usual);
}

fn four_flushes(store: &LsmStore, random: &mut Random) {
    four_flushes_with(store, random, |_| ());
}

#[test]
fn merged_flushes_wait_before_the_base_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut random = Random(1);
    // There is nothing below the first flushes.
    four_flushes(&store, &mut random);
    assert_eq!((runs(&store, 0), runs(&store, YOUNG)), (0, 0));
    let base = older(&store);
    for waiting in 1..=3 {
        four_flushes(&store, &mut random);
        assert_eq!((runs(&store, 0), runs(&store, YOUNG)), (0, waiting));
        assert_eq!(older(&store), base);
    }
    four_flushes(&store, &mut random);
    assert_eq!((runs(&store, 0), runs(&store, YOUNG)), (0, 0));
    assert_ne!(older(&store), base);
}

/// A run of level 1 removes a key that only an older run there has.
#[test]
fn a_row_that_was_removed_stays_away_while_its_run_waits() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    let mut random = Random(2);
    four_flushes(&store, &mut random);
    four_flushes_with(&store, &mut random, |batch| batch.set("document 5".into(), "a row".into()));
    assert!(store.snapshot().unwrap().get(b"document 5").unwrap().is_some());
    four_flushes_with(&store, &mut random, |batch| batch.clear("document 5".into()));
    assert_eq!((runs(&store, 0), runs(&store, YOUNG)), (0, 2));
    for _ in 0..2 {
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.get(b"document 5").unwrap(), None);
        assert!(rows(&snapshot).iter().all(|(key, _)| *key != "document 5"));
        drop((snapshot, store));
        store = open(folder.path());
    }
}

/// Filters are in memory only.
#[test]
fn young_tables_have_their_filters_again_after_an_opening() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut random = Random(3);
    (0..3).for_each(|_| four_flushes(&store, &mut random));
    store.apply(Batch::of_rows(2, [set("document 000000001", "the last one")])).unwrap();
    let has_filter = |store: &LsmStore| -> Vec<(usize, bool)> {
        let tables = store.shared.tables();
        let of = |level| tables.level(level).map(move |member| (level, member.prefixes.is_some())).collect::<Vec<_>>();
        (0..=LAST).flat_map(of).collect()
    };
    let expected = [(0, true), (1, true), (1, true), (LAST, false)];
    assert_eq!(has_filter(&store), expected);
    let all = rows(&store.snapshot().unwrap());
    drop(store);
    let store = open(folder.path());
    store.shared.settle(Effort::Usual);
    assert_eq!(has_filter(&store), expected);
    let snapshot = store.snapshot().unwrap();
    assert_eq!(rows(&snapshot), all);
    for (key, value) in all {
        let end = [&*key, b"\0"].concat();
        assert_eq!(snapshot.range(&key, &end, Direction::Forward).next().unwrap().unwrap(), (key, value));
    }
}

/// On a full disk flushes do not wait for compactions. What is refused is not lost: it stays in the log.
#[test]
fn flushes_that_cannot_be_compacted_have_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    four_flushes(&store, &mut Random(4));
    store.shared.room.store(0, Ordering::Relaxed);
    let flush = |n: i64| store.apply(Batch::of_rows(n, [set("a", &n.to_string()), set("z", "1")]));
    let (refused, error) = (1..100).find_map(|n| Some((n, flush(n).err()?))).unwrap();
    assert!(matches!(&error, ApplyError::NothingApplied(error) if error.code() == error::STORAGE_QUOTA_EXCEEDED));
    assert_eq!(runs(&store, 0), MOST_RUNS);
    let newest = Some((refused - 1).to_string().into());
    assert_eq!(store.snapshot().unwrap().get(b"a").unwrap(), newest);
    drop(store);
    // There is room again.
    let store = open(folder.path());
    assert_eq!(store.snapshot().unwrap().get(b"a").unwrap(), newest);
    store.apply(Batch::of_rows(refused, [set("a", "again")])).unwrap();
    assert!(runs(&store, 0) < MOST_RUNS);
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 202);
}

/// There is room for some flushes, but not for a table of the base.
#[test]
fn flushes_are_merged_with_one_another_when_nothing_else_fits() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.apply(noise(1, "document ", 500, 1_000)).unwrap();
    store.shared.settle(Effort::Quiet);
    store.shared.room.store(100_000, Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(120);
    for n in 0..200 {
        let mut batch = Batch::of_rows(n, [set("a", &n.to_string()), set("z", "1")]);
        batch.clear(format!("document {n:05}").into());
        // A refused flush is tried again.
        while let Err(error) = store.apply(batch.clone()) {
            assert_eq!(error.into_error().code(), error::STORAGE_QUOTA_EXCEEDED);
            assert!(Instant::now() < until, "flush {n} finds no way");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(runs(&store, 0) <= MOST_RUNS && runs(&store, YOUNG) <= 12, "{} runs wait", runs(&store, YOUNG));
    }
    let check = |store: &LsmStore| {
        let snapshot = store.snapshot().unwrap();
        assert_eq!(snapshot.get(b"a").unwrap(), Some("199".into()));
        assert_eq!(rows(&snapshot).len(), 302);
    };
    check(&store);
    drop(store);
    let store = open(folder.path());
    check(&store);
    compacted(&store);
    check(&store);
}

/// Rows that do not compress, with keys `from`, `from + every`, and so on.
fn written(store: &LsmStore, level: usize, from: usize, every: usize) -> Run {
    let mut random = Random((level * 100 + from) as u64);
    let mut new = store.shared.maker.begin(Place { level, base: LAST });
    for n in (from..2_000).step_by(every) {
        let noise: Vec<u8> = (0..250).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
        let row = InternalValue::from_components(format!("{n:08}"), noise, (9 - level) as u64, ValueType::Value);
        new.write(row, 0).unwrap();
    }
    new.finish().unwrap().take()
}

#[test]
fn a_table_of_the_oldest_run_is_merged_when_its_run_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    let mut tables = Tables::default();
    tables.add(LAST, written(&store, LAST, 0, 1));
    let oldest = written(&store, YOUNG, 0, 2);
    assert!(oldest.len() > 2);
    tables.add(YOUNG, oldest.clone());
    (1..3).for_each(|from| tables.add(YOUNG, written(&store, YOUNG, from, 500)));
    (3..8).for_each(|from| tables.add(0, written(&store, 0, from, 500)));
    let room = oldest.iter().map(|member| member.bytes()).sum::<u64>() + 3 * TABLE_BYTES / 2;
    let step = pick(&tables, Sizes { table: TABLE_BYTES, room }, &Effort::Usual, &HashSet::new()).step().unwrap();
    let upper: Vec<u64> = step.upper.iter().flatten().map(|member| member.number()).collect();
    assert_eq!(upper, [oldest[0].number()]);
    assert!(step.to.level == LAST && !step.lower.is_empty() && step.lower[0].len() < tables.level(LAST).count());
    assert!(step.inputs().map(|member| member.bytes()).sum::<u64>() <= room);
}

/// Young tables above a large level 2 have no level between, where they could be cut.
#[test]
fn no_compaction_of_young_tables_reads_more_than_a_step() {
    use crate::merge::merge;
    use crate::pick::most_step;

    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    let maker = &store.shared.maker;
    let mut random = Random(8);
    let mut written = |level: usize, every: u64| {
        let mut new = maker.begin(Place { level, base: LAST });
        for n in (0..16_000).filter(|n| n % every == 0) {
            let noise: Vec<u8> = (0..250).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
            let row = InternalValue::from_components(format!("{n:08}"), noise, 1, ValueType::Value);
            new.write(row, 0).unwrap();
        }
        new.finish().unwrap().take()
    };
    let mut tables = Tables::default();
    tables.add(YOUNG + 1, written(YOUNG + 1, 1));
    let mut merges = 0;
    for round in 0..30 {
        while tables.flushes() < 8 {
            tables.add(0, written(0, 200));
        }
        let newest = tables.get(b"00000200").unwrap();
        let step = pick(&tables, SIZES, &Effort::Usual, &HashSet::new()).step().unwrap();
        let bytes: u64 = step.inputs().map(|member| member.bytes()).sum();
        assert!(bytes <= most_step(TABLE_BYTES), "step {round} reads {bytes} bytes");
        merges += usize::from(!step.lower.is_empty());
        let inputs: HashSet<u64> = step.inputs().map(|member| member.number()).collect();
        let moved: Run = step.upper.iter().flatten().cloned().collect();
        let new = match step.is_move {
            true => moved,
            false => merge(maker, &tables, &step, &Default::default()).unwrap().unwrap().take(),
        };
        tables = tables.filtered(|member| !inputs.contains(&member.number()));
        tables.add(step.to.level, new);
        assert!(tables.get(b"00000200").unwrap() == newest, "the newest row is read after step {round}");
    }
    assert!(merges > 3, "{merges} merges with the level below");
}

/// In the time of each compaction, eight flushes come, which remove something too.
#[test]
fn a_request_for_space_has_an_end_while_flushes_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // So few rows that a merge of a closed store is not given up.
    for version in 1..5 {
        store.apply(noise(version, "db/", 40, 1_000)).unwrap();
    }
    store.shared.settle(Effort::Quiet);
    store.compactor.stop();
    let mut next = 0;
    let mut flush = || {
        let mut batch = Batch::of_rows(2, [set("a", "1"), set("z", "1")]);
        batch.clear(format!("db/{:05}", next % 40).into());
        store.apply(batch).unwrap();
        next += 1;
    };
    flush();
    let (first, last) = (b"db/"[..].into(), b"db0"[..].into());
    let effort = Effort::Full { first, last, before: store.shared.maker.next_flush() };
    let mut steps = 0;
    loop {
        (0..8).for_each(|_| flush());
        let tables = store.shared.tables();
        match pick(&tables, SIZES, &effort, &HashSet::new()) {
            Picked::Step(step) => assert!(store.shared.compact(&tables, &step).unwrap()),
            Picked::NoRoom => panic!("there is room"),
            Picked::Nothing => break,
        }
        steps += 1;
        assert!(steps < 20, "the request does not end");
    }
    assert!(steps > 0);
    assert_eq!(rows(&store.snapshot().unwrap()).len(), 40 - next + 2);
}

#[test]
fn a_range_that_is_asked_for_again_is_listed_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    for version in 1..20 {
        store.apply(Batch::of_rows(version, [set("a", "1")])).unwrap();
        store.compact(b"a", b"b");
    }
    assert_eq!(store.shared.asked(), 1);
    store.compact(b"a", b"c");
    assert_eq!(store.shared.asked(), 2);
}

/// No manifest can be written.
#[test]
fn young_tables_have_their_filters_while_compactions_fail() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.compactor.stop();
    for version in 1..6 {
        store.apply(Batch::of_rows(version, [set("a", "1"), set("b", "2")])).unwrap();
    }
    drop(store);
    let data = folder.path().join("data");
    let (version, _) = manifest::current(&data).unwrap();
    // A folder has the name of the next manifests. An opening goes on after the greatest file's number.
    let blocked: Vec<_> = (1..200).map(|ahead| data.join(format!("v{}", version + ahead))).collect();
    let store = {
        let (_, list) = manifest::list(&data).unwrap();
        let (maker, tables) = Maker::open(data.join(TABLES), &list, 1 << 20).unwrap();
        let manifest = Manifest::after(data.clone(), version, false);
        blocked.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        Arc::new(CompactedTables::new(maker, tables, manifest))
    };
    let compactor = Compactor::start(store.clone()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !store.tables().iter().all(|member| member.prefixes.is_some()) {
        assert!(Instant::now() < until, "no filter was built");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(store.tables().flushes(), 5, "the compaction failed");
    compactor.stop();
}
