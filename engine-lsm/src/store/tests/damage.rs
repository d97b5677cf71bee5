//! Damaged blocks of tables.

use kv_api::{Database, KeySelector, RangeRequest, Read, Transaction, TransactionExt};

use super::*;
use crate::{LsmDatabase, LsmOptions, give_up};

/// Rows of 1,000 bytes that do not compress, so that a block has some three. Their values begin with their numbers.
fn stored(folder: &Path, from: usize, to: usize) {
    let database = LsmDatabase::open(folder, LsmOptions::new()).unwrap();
    let transaction = database.begin().unwrap();
    let mut random = Random(from as u64 + 1);
    for n in from..to {
        let noise: Vec<u8> = (0..250).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect();
        transaction.set(key(n), [format!("value of {n}.").into_bytes(), noise].concat());
    }
    futures_executor::block_on(transaction.commit()).unwrap();
    database.close().unwrap();
}

fn key(n: usize) -> Bytes {
    format!("row/{n:04}").into()
}

/// Changes a byte in the value of a row.
fn damage(folder: &Path, n: usize) {
    damage_at(folder, format!("value of {n}.").as_bytes());
}

/// Changes a byte of the only place that has these.
fn damage_at(folder: &Path, needle: &[u8]) {
    let mut damaged = 0;
    for entry in fs::read_dir(folder.join("data/tables")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            bytes[at + 2] ^= 1;
            fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
}

/// All rows that can be read, in either direction, and the damaged ranges between them.
fn walked(database: &LsmDatabase, direction: Direction) -> (Vec<Bytes>, Vec<(Bytes, Bytes)>) {
    let transaction = database.begin().unwrap();
    let (mut begin, mut end) = (Bytes::from("row/"), Bytes::from("row0"));
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    while begin < end {
        let (from, to) = (begin.clone(), end.clone());
        let request =
            RangeRequest::selectors(KeySelector::first_greater_or_equal(from), KeySelector::first_greater_or_equal(to));
        let request = if direction == Direction::Reverse { request.reverse() } else { request };
        let (reached, is_last) = match futures_executor::block_on(transaction.get_range(&request, Read::Snapshot)) {
            Ok(batch) => {
                found.extend(batch.rows.iter().map(|row| row.key.clone()));
                (batch.rows.last().map(|row| (row.key.clone(), kv_api::keys::key_after(&row.key))), !batch.more)
            }
            Err(error) => {
                let (from, to) = error.damage().unwrap_or_else(|| panic!("{error}"));
                damaged.push((from.clone(), to.clone()));
                (Some((from.clone(), to.clone())), false)
            }
        };
        let Some((from, to)) = reached.filter(|_| !is_last) else { break };
        match direction {
            Direction::Forward => begin = to,
            Direction::Reverse => end = from,
        }
    }
    (found, damaged)
}

#[test]
fn reads_name_the_damage_and_go_on_after_it() {
    let folder = tempfile::tempdir().unwrap();
    stored(folder.path(), 0, 500);
    damage(folder.path(), 100);
    damage(folder.path(), 300);
    let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
    let (found, damaged) = walked(&database, Direction::Forward);
    assert_eq!(damaged.len(), 2, "{damaged:?}");
    assert!(found.len() > 480 && found.is_sorted(), "{}", found.len());
    for n in 0..500 {
        let is_damaged = damaged.iter().any(|(from, to)| *from <= key(n) && key(n) < *to);
        assert_ne!(is_damaged, found.contains(&key(n)), "each row is found, or in a damaged range: {n}");
        let read = futures_executor::block_on(database.begin().unwrap().get(&key(n), Read::Snapshot));
        assert_eq!(is_damaged, read.as_ref().is_err_and(|error| error.damage().is_some()), "{n}");
        assert!(read.is_err() || read.unwrap().is_some());
    }
    assert!(damaged[0].0 <= key(100) && key(100) < damaged[0].1);
    let (mut backwards, mut places) = walked(&database, Direction::Reverse);
    backwards.reverse();
    places.reverse();
    assert_eq!((backwards, places), (found, damaged));
}

/// A flush that failed at damage would stop all commits, and the next opening too.
#[test]
fn rows_beside_damage_can_be_removed_and_the_rest_stays_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    stored(folder.path(), 0, 200);
    // Older tables have rows among the damaged ones too.
    stored(folder.path(), 200, 400);
    damage(folder.path(), 100);
    for _ in 0..2 {
        let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
        let transaction = database.begin().unwrap();
        transaction.clear_range(b"row/0050", b"row/0250");
        futures_executor::block_on(transaction.commit()).unwrap();
        database.close().unwrap();
        drop((transaction, database));
        let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
        let (found, damaged) = walked(&database, Direction::Forward);
        assert_eq!(found.len(), 200, "{damaged:?}");
        assert_eq!(damaged.len(), 1);
        assert!(damaged[0].0 <= key(100) && key(100) < damaged[0].1);
    }
}

#[test]
fn damaged_blocks_are_given_up_in_a_range_only() {
    let folder = tempfile::tempdir().unwrap();
    stored(folder.path(), 0, 500);
    damage(folder.path(), 100);
    assert_eq!(give_up(folder.path(), b"other", b"other0").unwrap(), []);
    let is_damaged = || {
        let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
        walked(&database, Direction::Forward).1
    };
    let before = is_damaged();
    assert_eq!(before.len(), 1);
    assert_eq!(give_up(folder.path(), b"row/0000", b"row/0200").unwrap(), before);
    assert_eq!(is_damaged(), []);
    let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
    let rows = futures_executor::block_on(
        database.begin().unwrap().get_all(RangeRequest::keys("row/", "row0"), Read::Snapshot),
    );
    assert!((480..500).contains(&rows.unwrap().len()));
}

/// A flush removes large rows of another flush. Nothing is below the two.
#[test]
fn tombstones_of_a_table_that_is_written_again_still_hide_what_waits() {
    let folder = tempfile::tempdir().unwrap();
    let large = |n: usize| Bytes::from(format!("large/{n:04}"));
    let commit = |change: &dyn Fn(&<LsmDatabase as Database>::Transaction)| {
        let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
        let transaction = database.begin().unwrap();
        change(&transaction);
        futures_executor::block_on(transaction.commit()).unwrap();
        drop(transaction);
        database.close().unwrap();
    };
    let noise = |seed: usize, bytes: usize| -> Vec<u8> {
        let mut random = Random(seed as u64 + 1);
        (0..bytes / 4).flat_map(|_| (random.below(1 << 31) as u32).to_le_bytes()).collect()
    };
    commit(&|transaction| (0..10).for_each(|n| transaction.set(large(n), noise(n, 20_000))));
    commit(&|transaction| {
        (0..10).for_each(|n| transaction.clear(&large(n)));
        for n in 0..100 {
            transaction.set(key(n), [format!("value of {n}.").into_bytes(), noise(n, 1_000)].concat());
        }
    });
    damage_at(folder.path(), &noise(50, 1_000)[100..130]);
    assert_eq!(give_up(folder.path(), b"row/0000", b"row/0100").unwrap().len(), 1);
    let tables = open(folder.path()).shared.tables();
    let hidden: u64 = tables.iter().filter(|member| member.tombstones() > 0).map(|member| member.hides).sum();
    assert!((150_000..300_000).contains(&hidden), "{hidden} bytes");
}
