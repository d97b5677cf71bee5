//! Many rows read at once are those that a range has one after the other.

use bytes::Bytes;
use disk::DiskStore;
use engine_redb::RedbStore;
use kv_api::{Direction, Durability};
use occ::store::{Batch, Most, Store, View};

const ALL: Most = Most { rows: usize::MAX, bytes: usize::MAX };

fn key(n: u32) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

/// A row for each size of a value.
fn filled(folder: &std::path::Path, sizes: impl Iterator<Item = usize>) -> RedbStore {
    let store = RedbStore::open(folder, 1 << 20, Durability::Disk).unwrap();
    let rows = (0..).zip(sizes).map(|(n, size)| (key(n), vec![n as u8; size].into()));
    store.apply(Batch::of_rows(1, rows)).unwrap();
    store
}

#[test]
fn rows_at_once_are_those_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    // Empty ones, small ones, and such that fill a piece of memory alone.
    let sizes = (0..700).map(|n| [0, 10, 300, 5_000, 70_000][if n % 50 == 0 { n / 50 % 5 } else { n % 3 }]);
    let store = filled(folder.path(), sizes);
    let view = store.view().unwrap();
    for direction in [Direction::Forward, Direction::Reverse] {
        for (begin, end) in [(0, 700), (0, 0), (3, 4), (100, 164), (100, 165), (650, 900), (800, 900)] {
            let (begin, end) = (key(begin), key(end.max(begin + 1)));
            let rows: Vec<_> = view.range(&begin, &end, direction).map(Result::unwrap).collect();
            let bytes_up_to = |count: usize| rows[..count].iter().map(|(key, value)| key.len() + value.len()).sum();
            for most in [1, 2, 16, 63, 64, 65, 128, 500, usize::MAX].map(|rows| Most { rows, ..ALL }) {
                let limits = [usize::MAX, bytes_up_to(rows.len().min(70)), bytes_up_to(rows.len()), 1, 65_536];
                for most in limits.map(|bytes| Most { bytes: bytes.max(1), ..most }) {
                    let read = view.read(&begin, &end, direction, most).unwrap();
                    let enough = (1..=rows.len()).find(|&count| count >= most.rows || bytes_up_to(count) >= most.bytes);
                    assert_eq!(read.more, enough.is_some(), "{most:?}");
                    let read = read.rows.into_iter().map(|row| (row.key, row.value));
                    assert!(read.eq(rows[..enough.unwrap_or(rows.len())].iter().cloned()), "{most:?}");
                }
            }
        }
    }
}
