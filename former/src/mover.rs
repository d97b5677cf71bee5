//! Moves a folder to `engine-lsm`, once.
//!
//! ```text
//!   folder/couch-layer.json    redb ──────────────────► moving ──────────────►
//!   folder/                    data.redb, log.0, …      │                      data/, synced
//!   folder/moving/             data/, synced made here ─┼─► moved up last ─►   removed
//!   folder/former/             a copy of the mark       │ ◄─ all old files     a complete folder of redb
//!                              and rows compared        │
//! ```
//!
//! Before the mark says `moving`, the old files are untouched and an earlier program can open the folder. The next
//! attempt makes the files in `moving` again. After that, files are only renamed, and the next attempt continues. No
//! program can open the folder meanwhile.
//!
//! Invariants:
//!
//! * The mark becomes `moving` after all rows were written, synced, and compared with the old ones.
//! * While `moving/data` exists, everything beside `moving` and `former` is old. It is moved up after all old files are
//!   in `former`, durably.
//! * No old file is deleted: `former` is a complete folder of the former engine.
//! * The side file `synced` is moved with the data. If a disk loses synced data, the folder is refused.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use disk::DiskStore;
use disk::folder::{COMMON_FILES, Folder, Mark, io_error, sync_folder};
use disk::synced::Synced;
use engine_lsm::LsmStore;
use kv_api::{Direction, Durability, Error, Result, error};
use occ::store::{Store, View};

use crate::{END, Rows};

/// The engines whose folders can be moved.
const ENGINES: [&str; 2] = ["redb", "fjall"];

/// The engine in the mark while files are renamed.
const MOVING: &str = "moving";

/// The folder in which the new files are made.
const NEW: &str = "moving";

/// The folder in which the old files are kept.
const OLD: &str = "former";

/// The folder for the reader's links, within the folder of the new files.
const SCRATCH: &str = "links";

const CACHE_BYTES: u64 = 32 << 20;

/// Number of rows between two reports.
const REPORT: u64 = 1 << 14;

/// The progress of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This number of rows is written.
    Writing(u64),
    /// This number of rows is compared.
    Comparing(u64),
    /// The files are renamed.
    Renaming,
}

/// The result of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The folder of the old files.
    pub former: PathBuf,
    /// Number of rows written. `None` if an earlier attempt wrote them.
    pub rows: Option<u64>,
}

/// Whether a folder with this mark can be moved, or its move was interrupted.
pub fn is_former(mark: &Mark) -> bool {
    mark.engine == MOVING || ENGINES.contains(&mark.engine.as_str())
}

/// Moves the database in `folder`. The old files are kept in the folder `former` within. The disk needs room for all
/// rows again. `report` is called with the progress.
///
/// # Errors
///
/// 1529 if another process has the folder open; 2108 if there is nothing to move, or for another format; 2000 if old
/// files of an earlier move are in the way; 1522 if the folder is damaged; 1510 if the disk fails, 1225 if it is full. Nothing
/// was moved then, or the next call continues.
pub fn move_folder(folder: &Path, mut report: impl FnMut(Step)) -> Result<Moved> {
    let mark = Mark::read(folder)?.filter(is_former).ok_or_else(|| {
        Error::new(error::UNSUPPORTED_OPERATION).with_context(format!(
            "the folder {} holds no database of redb or fjall: there is nothing to move",
            folder.display()
        ))
    })?;
    let _owned = Folder::open(folder, &mark)?;
    let rows = match mark.engine == MOVING {
        true => None,
        false => {
            let new = folder.join(NEW);
            let rows = make(folder, &mark, &new, &mut report).inspect_err(|_| {
                // This frees room on the disk. The next attempt removes what is left.
                let _ = fs::remove_dir_all(&new);
            })?;
            Mark { engine: MOVING.into(), format: 1 }.write(folder)?;
            Some(rows)
        }
    };
    report(Step::Renaming);
    rename(folder).map_err(|cause| {
        io_error(format!("cannot rename the files in {}; the next attempt continues", folder.display()), &cause)
    })?;
    Mark { engine: LsmStore::ENGINE.into(), format: LsmStore::FORMAT }.write(folder)?;
    Ok(Moved { former: folder.join(OLD), rows })
}

/// Makes the new files. Returns the number of rows.
fn make(folder: &Path, mark: &Mark, new: &Path, report: &mut impl FnMut(Step)) -> Result<u64> {
    let cannot = |cause: io::Error| io_error(format!("cannot write to the folder {}", new.display()), &cause);
    let old = folder.join(OLD);
    prepare(&old, new).map_err(cannot)??;
    let scratch = new.join(SCRATCH);
    let rows = crate::read(folder, mark, &scratch)?;
    let store = LsmStore::open(new, CACHE_BYTES, Durability::Disk)?;
    let mut count = 0;
    store.fill(counted(&rows, &mut count, |count| report(Step::Writing(count))))?;
    compare(folder, &rows, &store, |count| report(Step::Comparing(count)))?;
    store.close()?;
    drop(store);
    let version = rows.version();
    // Closes the old files.
    drop(rows);
    let finish = || -> io::Result<()> {
        if scratch.exists() {
            fs::remove_dir_all(&scratch)?;
        }
        let mut synced = Synced::open(&new.join("synced"))?;
        synced.write(version)?;
        synced.sync()?;
        fs::create_dir_all(&old)?;
        sync_folder(new)?;
        sync_folder(folder)
    };
    finish().map_err(cannot)?;
    mark.write(&old)?;
    Ok(count)
}

/// Removes the files of an earlier attempt. Returns 2000 if `old` has more than a mark.
fn prepare(old: &Path, new: &Path) -> io::Result<Result<()>> {
    if new.exists() {
        fs::remove_dir_all(new)?;
    }
    let is_other = |name: &std::ffi::OsString| !COMMON_FILES.iter().any(|file| name == file);
    if old.exists() && fs::read_dir(old)?.filter_map(io::Result::ok).any(|entry| is_other(&entry.file_name())) {
        return Ok(Err(Error::new(error::CLIENT_INVALID_OPERATION).with_context(format!(
            "the folder {} is in the way, where the old files would be kept: move it somewhere else",
            old.display()
        ))));
    }
    fs::create_dir(new)?;
    Ok(Ok(()))
}

fn counted<'a>(
    rows: &'a Rows,
    count: &'a mut u64,
    mut report: impl FnMut(u64) + 'a,
) -> impl Iterator<Item = Result<(Bytes, Bytes)>> + 'a {
    rows.iter().inspect(move |_| {
        *count += 1;
        if count.is_multiple_of(REPORT) {
            report(*count);
        }
    })
}

/// Reads all rows of both sides again, and compares them.
fn compare(folder: &Path, rows: &Rows, store: &LsmStore, report: impl FnMut(u64)) -> Result<()> {
    let view = store.view()?;
    let mut count = 0;
    let mut written = view.range(b"", END, Direction::Forward);
    for row in counted(rows, &mut count, report) {
        if written.next().transpose()? != Some(row?) {
            return Err(differs(folder));
        }
    }
    if written.next().is_some() { Err(differs(folder)) } else { Ok(()) }
}

fn differs(folder: &Path) -> Error {
    Error::new(error::FILE_CORRUPT).with_context(format!(
        "the rows that were written are not those of {}: nothing has moved; look at the disk",
        folder.display()
    ))
}

/// Renames the files, except those that an earlier attempt renamed. A rename is durable when both folders are synced.
fn rename(folder: &Path) -> io::Result<()> {
    let (new, old) = (folder.join(NEW), folder.join(OLD));
    if new.join("data").exists() {
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            if !COMMON_FILES.iter().chain(&[NEW, OLD]).any(|kept| name == **kept) {
                fs::rename(folder.join(&name), old.join(&name))?;
            }
        }
        sync_folder(&old)?;
        sync_folder(folder)?;
    }
    // The data first: while the data are in their old place, no file of theirs is in the new one.
    for name in ["data", "synced"] {
        if new.join(name).exists() {
            fs::rename(new.join(name), folder.join(name))?;
            sync_folder(folder)?;
            sync_folder(&new)?;
        }
    }
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    sync_folder(folder)
}
