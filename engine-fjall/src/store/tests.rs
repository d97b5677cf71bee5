//! Snapshots of the store against copies of a map, over flushes, purges and restarts.

use std::collections::BTreeMap;

use kv_api::Direction;
use occ::store::View;

use super::*;

/// SplitMix64.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

type Model = BTreeMap<Bytes, Bytes>;

/// The store's own rows begin here.
const USERS_END: &[u8] = b"\xff";

/// Of few, with the empty one and some of NULs.
fn key(state: &mut u64) -> Bytes {
    match random(state, 12) {
        0 => Bytes::from(vec![0; random(state, 4) as usize]),
        1 => Bytes::from(vec![0, 0, random(state, 3) as u8]),
        _ => Bytes::from(format!("{:03}", random(state, 300))),
    }
}

fn rows(view: &FjallView, begin: &[u8], end: &[u8], direction: Direction) -> Vec<(Bytes, Bytes)> {
    view.range(begin, end, direction).map(Result::unwrap).collect()
}

fn check(view: &FjallView, model: &Model, state: &mut u64, context: &str) {
    for _ in 0..3 {
        let key = key(state);
        assert_eq!(view.get(&key).unwrap(), model.get(&key).cloned(), "{context}, {key:?}");
    }
    let (one, two) = (key(state), key(state));
    let (begin, end) = (one.clone().min(two.clone()), one.max(two));
    if begin == end {
        return;
    }
    let mut expected: Vec<_> = model.range(begin.clone()..end.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(rows(view, &begin, &end, Direction::Forward), expected, "{context}, {begin:?}..{end:?}");
    expected.reverse();
    assert_eq!(rows(view, &begin, &end, Direction::Reverse), expected, "{context}, {begin:?}..{end:?} in reverse");
}

fn batch(version: i64, state: &mut u64, model: &mut Model) -> Batch {
    let mut batch = Batch::new(version);
    for _ in 0..=random(state, 12) {
        let key = key(state);
        match random(state, 10) {
            0 => {
                let end = self::key(state);
                if key < end {
                    batch.clear_range(KeyRange { begin: key, end });
                }
            }
            1..=3 => batch.clear(key),
            _ => batch.set(key, vec![version as u8; random(state, 1_200) as usize].into()),
        }
    }
    batch.clone().apply_to(model);
    batch
}

fn open_small(folder: &Path, bulk: usize) -> FjallStore {
    fs::create_dir_all(folder).unwrap();
    FjallStore::open_with_bulk(folder, 512 << 10, Durability::OperatingSystem, bulk).unwrap()
}

#[test]
fn snapshots_never_change_and_what_was_written_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..6u64 {
        // Half of them with clears that go the long way round.
        let bulk = if seed % 2 == 0 { BULK } else { 4 };
        let path = folder.path().join(seed.to_string());
        let mut store = open_small(&path, bulk);
        let mut state = seed;
        let mut model = Model::new();
        let mut views = vec![(store.view().unwrap(), model.clone())];
        for version in 1..100 {
            store.apply(batch(version, &mut state, &mut model)).unwrap();
            views.push((store.view().unwrap(), model.clone()));
            if views.len() > 8 {
                views.remove(random(&mut state, 8) as usize);
            }
            match random(&mut state, 20) {
                0 => store.shared.rows.rotate_memtable_and_wait().unwrap(),
                1 => store.shared.rows.major_compact().unwrap(),
                2 => {
                    views.clear();
                    drop(store);
                    store = open_small(&path, bulk);
                }
                _ => {}
            }
            let context = format!("seed {seed}, version {version}");
            views.iter().for_each(|(view, model)| check(view, model, &mut state, &context));
        }
        store.purger.stop();
        while store.shared.purge_step() == Step::Removed {}
        let context = format!("seed {seed}, after the purge");
        let last = store.view().unwrap();
        (0..20).for_each(|_| check(&last, &model, &mut state, &context));
        views.iter().for_each(|(view, model)| check(view, model, &mut state, &context));
        let left = store.shared.rows.range(b"\0".as_slice()..USERS_END).count();
        assert_eq!(left, model.len(), "seed {seed}: rows outlive the purge");
    }
}

/// A store of some tables, closed: what is in it, and the folder of its tables.
fn tables(folder: &Path) -> (Model, PathBuf) {
    let store = open_small(folder, BULK);
    let (mut model, mut state) = (Model::new(), 5);
    for version in 1..60 {
        store.apply(batch(version, &mut state, &mut model)).unwrap();
        if version % 20 == 0 {
            store.shared.rows.rotate_memtable_and_wait().unwrap();
        }
    }
    store.shared.rows.rotate_memtable_and_wait().unwrap();
    store.shared.rows.major_compact().unwrap();
    let path = store.shared.rows.path().join("tables");
    (model, path)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

/// Every row, or the first error.
fn read(folder: &Path) -> Result<Model> {
    let store = FjallStore::open_with_bulk(folder, 512 << 10, Durability::OperatingSystem, BULK)?;
    store.view()?.range(b"", USERS_END, Direction::Forward).collect()
}

#[test]
fn a_damaged_table_is_an_error_or_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let (model, tables) = tables(&whole);
    let tables = tables.strip_prefix(&whole).unwrap();
    let mut state = 11;
    let (mut refused, mut harmless) = (0, 0);
    for trial in 0..100 {
        let damaged = folder.path().join("damaged");
        copy(&whole, &damaged);
        let files: Vec<_> = fs::read_dir(damaged.join(tables)).unwrap().map(|entry| entry.unwrap().path()).collect();
        let file = &files[random(&mut state, files.len() as u64) as usize];
        let mut bytes = fs::read(file).unwrap();
        let at = random(&mut state, bytes.len() as u64) as usize;
        match random(&mut state, 4) {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1 << random(&mut state, 8),
        }
        fs::write(file, bytes).unwrap();
        match read(&damaged) {
            Ok(found) => {
                assert_eq!(found, model, "trial {trial}, byte {at}");
                harmless += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), error::FILE_CORRUPT, "trial {trial}, byte {at}: {error}");
                refused += 1;
            }
        }
        fs::remove_dir_all(damaged).unwrap();
    }
    assert!(refused > 60, "{refused} refused, {harmless} harmless");
}

#[test]
fn what_fjall_would_make_anew_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    tables(&whole);
    for gone in ["version", "keyspaces", "keyspaces/0", "keyspaces/1", "keyspaces/0/current", "keyspaces/1/current"] {
        let damaged = folder.path().join("damaged");
        copy(&whole, &damaged);
        let gone = damaged.join("data").join(gone);
        if gone.is_dir() {
            fs::remove_dir_all(&gone).unwrap()
        } else {
            fs::remove_file(&gone).unwrap()
        }
        let error = read(&damaged).unwrap_err();
        assert_eq!(error.code(), error::FILE_CORRUPT, "{}: {error}", gone.display());
        assert!(!gone.exists(), "{} was made anew", gone.display());
        fs::remove_dir_all(damaged).unwrap();
    }
}

#[test]
fn a_folder_that_was_half_made_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("data.new/keyspaces/1")).unwrap();
    fs::write(folder.path().join("data.new/version"), b"FJL").unwrap();
    let store = open_small(folder.path(), BULK);
    store.apply(Batch::of_rows(1, [("key".into(), "value".into())])).unwrap();
    drop(store);
    assert_eq!(read(folder.path()).unwrap().len(), 1);
    assert!(!folder.path().join("data.new").exists());
}
