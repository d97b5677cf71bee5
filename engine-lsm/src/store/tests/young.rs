//! Flushes and the runs of level 1.

use super::*;
use crate::tables::YOUNG;

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
