//! Moves a folder to `engine-lsm`, once.
//!
//! ```text
//!   folder/couch-layer.json    redb ──────────────────► moving ──────────────► lsm
//!   folder/                    data.redb, log.0, …      │                      data/, synced
//!   folder/moving/             data/, synced made here ─┼─► moved up last ─►   gone
//!   folder/former/             a copy of the mark       │ ◄─ all old files     a folder of redb, as it was
//!                              and rows compared        │
//! ```
//!
//! Until the mark says `moving` the old files are untouched, and a former program opens the folder as before: what is in
//! `moving` is made anew by the next try. From then on the files only change their places, and the next try goes on
//! where this one ended; no program opens the folder meanwhile.
//!
//! Invariants:
//!
//! * The mark becomes `moving` after all rows were written, synced, and compared with the old ones.
//! * While `moving/data` is there, everything beside `moving` and `former` is old. It is moved up after all old files
//!   are in `former`, durably.
//! * Nothing old is deleted: `former` is a whole folder of the former engine.
//! * The side file `synced` comes with the data: should a disk lose the data behind a sync, the folder is refused.

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

/// The engines whose folders are read.
const ENGINES: [&str; 2] = ["redb", "fjall"];

/// What the mark says while the files change their places.
const MOVING: &str = "moving";

/// Where the new files are made.
const NEW: &str = "moving";

/// Where the old files are kept.
const OLD: &str = "former";

/// For the links of a reader, in the folder of the new files.
const SCRATCH: &str = "links";

const CACHE_BYTES: u64 = 32 << 20;

/// Rows between two reports.
const REPORT: u64 = 1 << 14;

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many rows were written.
    Writing(u64),
    /// So many rows were compared.
    Comparing(u64),
    /// The files change their places.
    Renaming,
}

/// What a move came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where the old files are.
    pub former: PathBuf,
    /// Rows that were written. `None` where an earlier try had written them.
    pub rows: Option<u64>,
}

/// Whether a folder with this mark is to be moved, or was left amid a move.
pub fn is_former(mark: &Mark) -> bool {
    mark.engine == MOVING || ENGINES.contains(&mark.engine.as_str())
}

/// Moves the database in `folder`, which keeps its old files in a folder `former` within. It takes as much room again as
/// the rows do. `report` is told how far it is.
///
/// # Errors
///
/// 1529 when another process has the folder open; 2108 when there is nothing to move in it, or of another format; 2000
/// when old files of an earlier move are in the way; 1522 when it is damaged; 1510 when the disk fails or is full. Nothing
/// has moved then, or the next call goes on.
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
                // Room on the disk. The next try removes what is left.
                let _ = fs::remove_dir_all(&new);
            })?;
            Mark { engine: MOVING.into(), format: 1 }.write(folder)?;
            Some(rows)
        }
    };
    report(Step::Renaming);
    rename(folder).map_err(|cause| {
        io_error(format!("cannot rename the files in {}; the next try goes on", folder.display()), &cause)
    })?;
    Mark { engine: LsmStore::ENGINE.into(), format: LsmStore::FORMAT }.write(folder)?;
    Ok(Moved { former: folder.join(OLD), rows })
}

/// Makes the new files: how many rows they have.
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
    // Closes its files.
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

/// Removes what an earlier try has left. 2000 when `old` holds more than a mark.
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

/// Reads all rows again, from both sides.
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

/// Lets the files change their places: all that an earlier try has not. A rename counts once both folders are synced.
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
    // The data first: while they are in their old place, no file of theirs is in the new one.
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
