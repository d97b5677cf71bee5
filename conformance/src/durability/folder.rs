//! Test folders, and the contents of the databases in them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use kv_api::{Bytes, Database, RangeRequest, Read, Result, Transaction, TransactionExt, error};
use tempfile::TempDir;

use super::harness::DiskHarness;
use crate::runtime::block_on;

pub(super) type Rows = BTreeMap<Bytes, Bytes>;

/// A new folder, deleted with the handle.
pub(super) fn temporary() -> TempDir {
    done("make a folder", tempfile::tempdir())
}

/// Unwraps the result of a file operation of the test itself.
pub(super) fn done<T>(what: &str, outcome: io::Result<T>) -> T {
    outcome.unwrap_or_else(|error| panic!("cannot {what}: {error}"))
}

/// Opens a folder. The lock of a folder that was just closed may stay for a moment: a child process that another
/// thread is starting inherits the lock until it calls exec.
pub(super) fn open<H: DiskHarness>(harness: &H, folder: &Path) -> Result<H::Database> {
    for _ in 0..200 {
        match harness.open(folder) {
            Err(error) if error.code() == error::LOCK_FILE_FAILURE => thread::sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
    harness.open(folder)
}

/// Copies a file or a folder, recursively.
pub(super) fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        done("make a folder", fs::create_dir_all(to));
        for entry in done("read a folder", fs::read_dir(from)) {
            let name = done("read a folder", entry).file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        done("copy a file", fs::copy(from, to));
    }
}

/// Copies a folder in use, as of one moment: two reads of the whole folder must be equal. Panics if it keeps changing.
pub(super) fn copy_in_use(from: &Path, to: &Path) {
    for (path, bytes) in still(from) {
        let to = path.strip_prefix(from).map_or_else(|_| to.to_owned(), |path| to.join(path));
        match bytes {
            None => done("make a folder", fs::create_dir_all(to)),
            Some(bytes) => done("write a file", fs::write(to, bytes)),
        }
    }
}

fn still(folder: &Path) -> Contents {
    let mut before = None;
    for _ in 0..1_000 {
        match contents(folder) {
            Ok(found) if before.as_ref() == Some(&found) => return found,
            // A file may disappear between listing and reading it.
            found => before = found.ok(),
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} still changes long after the last commit", folder.display());
}

/// The entries of a folder, in order: bytes for files, `None` for folders.
type Contents = Vec<(PathBuf, Option<Vec<u8>>)>;

fn contents(folder: &Path) -> io::Result<Contents> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    let mut found = vec![(folder.to_owned(), None)];
    for path in paths {
        match path.is_dir() {
            true => found.extend(contents(&path)?),
            false => found.push((path.clone(), Some(fs::read(path)?))),
        }
    }
    Ok(found)
}

/// Removes a file or a folder, recursively.
pub(super) fn remove(path: &Path) {
    done("remove", if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) });
}

/// Every file in a folder and below it, in order.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in done("read a folder", fs::read_dir(folder)) {
        let path = done("read a folder", entry).path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Every row of the user's keyspace.
pub(super) fn rows<D: Database>(database: &D) -> Result<Rows> {
    let transaction = database.begin()?;
    let request = RangeRequest::keys(Bytes::new(), Bytes::from_static(b"\xff"));
    let rows = block_on(transaction.get_all(request, Read::Snapshot))?;
    Ok(rows.into_iter().map(|row| (row.key, row.value)).collect())
}

/// Commits a change. Returns its version.
pub(super) fn commit<D: Database>(database: &D, change: impl FnOnce(&D::Transaction)) -> Result<i64> {
    let transaction = database.begin()?;
    change(&transaction);
    block_on(transaction.commit())?;
    transaction.get_committed_version()
}
