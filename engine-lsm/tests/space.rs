//! The space of a dropped database comes back in a process that does nothing more.

use std::path::Path;
use std::time::{Duration, Instant};

use engine_lsm::{LsmDatabase, LsmOptions};
use futures_executor::block_on;
use kv_api::{Database, Transaction};

/// Bytes of all files in a folder.
fn bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let of = |path: &Path| if path.is_dir() { bytes(path) } else { path.metadata().map_or(0, |file| file.len()) };
    entries.map(|entry| of(&entry.path())).sum()
}

/// Nobody reads or writes after the drop: the log flushes it, and the window of versions drops the old tables.
#[test]
fn a_dropped_range_leaves_the_folder_without_further_use() {
    let folder = tempfile::tempdir().unwrap();
    let database = LsmDatabase::open(folder.path(), LsmOptions::new()).unwrap();
    let mut seed = 7_u64;
    for version in 0..120_u32 {
        let tx = database.begin().unwrap();
        let value = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        };
        let value: Vec<u8> = (0..50_000).map(value).collect();
        (0..10_u8)
            .for_each(|n| tx.set([b"db/", &version.to_be_bytes()[..], &[n]].concat(), [&value[..], &[n]].concat()));
        block_on(tx.commit()).unwrap();
    }
    assert!(bytes(folder.path()) > 60_000_000);
    let tx = database.begin().unwrap();
    tx.clear_range(b"db/", b"db0");
    block_on(tx.commit()).unwrap();
    let begun = Instant::now();
    while bytes(folder.path()) > 6_000_000 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} bytes", bytes(folder.path()));
        std::thread::sleep(Duration::from_millis(100));
    }
}
