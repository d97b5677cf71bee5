//! A disk fills up: the error is clear, and once there is room again, all acknowledged commits are there. Uses a small
//! tmpfs. Skipped if this user cannot mount one.

use std::path::Path;
use std::process::Command;

use kv_api::{Error, Transaction};

use super::folder::{self, commit, rows, temporary};
use super::harness::DiskHarness;
use super::kills::skip;
use crate::random::Random;

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

fn value(at: usize) -> Vec<u8> {
    // Incompressible bytes.
    let mut random = Random::new(at as u64);
    (0..500).flat_map(|_| random.bits().to_le_bytes()).collect()
}

/// Writes until the disk is full, makes room, and opens the folder again.
///
/// # Panics
///
/// When the error is not clear, or something acknowledged is lost.
pub fn full_disk<H: DiskHarness>(harness: &H) {
    let folder = temporary();
    let Some(disk) = SmallDisk::mount(folder.path()) else {
        return skip(harness, "was not tried on a full disk: this user cannot mount a small one");
    };
    let path = folder.path().join("db");
    let open = || match folder::open(harness, &path) {
        Ok(database) => database,
        Err(error) => panic!("{} does not open: {error}", harness.engine()),
    };
    let is_clear = |error: &Error| error.context().is_some_and(|context| context.contains("the disk is full"));
    let put =
        |database: &H::Database, at: usize| commit(database, |tx| tx.set(format!("{at:06}").as_bytes(), value(at)));
    let database = open();
    let mut acknowledged = 0;
    let error = loop {
        match put(&database, acknowledged) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 20_000, "the disk does not fill up");
    };
    assert!(is_clear(&error), "{error}");
    // Later commits must have the same error, whether or not the failure of this commit is certain.
    let maybe = error.is_maybe_committed();
    for _ in 0..3 {
        match put(&database, acknowledged) {
            Err(error) => assert!(is_clear(&error), "then: {error}"),
            Ok(_) => acknowledged += 1,
        }
    }
    drop(database);
    assert!(disk.grow(), "the small disk cannot be made larger");
    let database = open();
    let found = rows(&database).unwrap_or_else(|error| panic!("cannot read: {error}"));
    let count = found.len();
    assert!(count == acknowledged || maybe && count == acknowledged + 1, "{count} rows of {acknowledged}");
    for (at, (key, found)) in found.iter().enumerate() {
        assert!(key == format!("{at:06}").as_bytes() && *found == value(at), "row {at} is another");
    }
    if let Err(error) = commit(&database, |tx| tx.set(b"and on", b"it goes")) {
        panic!("there is room, and a commit fails: {error}");
    }
    println!("{}: {acknowledged} rows survived a full disk; the error was {error}", harness.engine());
}
