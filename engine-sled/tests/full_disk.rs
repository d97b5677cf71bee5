//! A disk that fills up: a clear error, and what was acknowledged is there once there is room. On a
//! small disk in memory, where this user may mount one; else there is nothing to try it on.

use std::path::Path;
use std::process::Command;

use engine_sled::{SledDatabase, SledOptions};
use futures_executor::block_on;
use kv_api::{Database, RangeRequest, Read, Transaction, TransactionExt};

struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path) -> Option<Self> {
        Self::run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(path))
            .then_some(SmallDisk(path))
    }

    fn grow(&self) -> bool {
        Self::run(Command::new("mount").args(["-o", "remount,size=64m"]).arg(self.0))
    }

    fn run(command: &mut Command) -> bool {
        command.output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        Self::run(Command::new("umount").arg(self.0));
    }
}

#[test]
fn a_full_disk_is_an_error_and_takes_nothing_back() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path()) else {
        return eprintln!("not tried: this user cannot mount a small disk");
    };
    let open = || SledDatabase::open(folder.path().join("db"), SledOptions::new().cache_bytes(8 << 20));
    let mut acknowledged = 0usize;
    let db = open().unwrap();
    let error = loop {
        let tx = db.begin().unwrap();
        // Bytes that do not compress well and differ from row to row.
        let value: Vec<u8> =
            (0..1000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ acknowledged as u8).collect();
        tx.set(format!("{acknowledged:06}").as_bytes(), &value);
        match block_on(tx.commit()) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 20_000, "the disk does not fill up");
    };
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(error.is_maybe_committed(), "{error}");
    let error = db.begin().unwrap_err();
    assert!(error.code() == 1510 && error.to_string().contains("the disk is full"), "{error}");
    drop(db);
    assert!(disk.grow());
    let db = open().unwrap();
    let tx = db.begin().unwrap();
    let rows = block_on(tx.get_all(RangeRequest::keys("", "\u{7f}"), Read::Snapshot)).unwrap();
    // The last commit was not acknowledged, and may be there or not.
    assert!((acknowledged..=acknowledged + 1).contains(&rows.len()), "{} of {acknowledged}", rows.len());
    tx.set(b"and on", b"it goes");
    block_on(tx.commit()).unwrap();
}
