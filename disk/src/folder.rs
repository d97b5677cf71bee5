//! The folder of a database: its mark, and the lock of its owner.
//!
//! ```text
//!   folder/
//!     couch-layer.json    the mark: {"engine":"sled","format":12}, written once and whole
//!     LOCK                locked by the process that has the database open, like the mark
//!     …                   the engine's own files
//! ```
//!
//! A snapshot that nobody has taken into use has a mark of another engine, `snapshot of lsm`. Builds that know no
//! snapshots refuse it too.
//!
//! A folder is opened by its mark. A folder of another engine, format or program is refused before anything in it is
//! touched. A new folder gets its mark first: the mark is written under another name, synced and renamed, and the
//! folder is synced. So after a crash the folder is either new or has a complete mark.
//!
//! `LOCK` is locked first, so that one process at a time makes a folder. But it is empty, so somebody may remove it,
//! and the next process would lock a new file. So the mark is locked too: the folder is not opened without it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use kv_api::{Error, Result, STORED_FORMAT, error, other_format};

const MARK_FILE: &str = "couch-layer.json";
/// What the mark of a snapshot has before the name of its engine.
const SNAPSHOT_OF: &str = "snapshot of ";
const NEW_MARK_FILE: &str = "couch-layer.json.new";
const LOCK_FILE: &str = "LOCK";

/// The content of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The engine's name, as in its URL.
    pub engine: String,
    /// The format of everything in it: [`STORED_FORMAT`] of the build that made it.
    pub format: u32,
    /// Whether it is a snapshot that nobody has taken into use.
    pub copied: bool,
}

impl Mark {
    /// The mark of a folder. `None` if the folder or its mark does not exist. Changes nothing.
    pub fn read(folder: &Path) -> Result<Option<Mark>> {
        let path = folder.join(MARK_FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(cause) => return Err(io_error(format!("cannot read {}", path.display()), &cause)),
        };
        let parsed: Option<Mark> = serde_json::from_slice::<serde_json::Value>(&text).ok().and_then(|mark| {
            let format = u32::try_from(mark.get("format")?.as_u64()?).ok()?;
            let named = mark.get("engine")?.as_str()?;
            let (engine, copied) = named.strip_prefix(SNAPSHOT_OF).map_or((named, false), |engine| (engine, true));
            Some(Mark { engine: engine.to_owned(), format, copied })
        });
        parsed.map(Some).ok_or_else(|| {
            Error::new(error::FILE_CORRUPT)
                .with_context(format!("{} is damaged: restore the folder from a backup", path.display()))
        })
    }
}

/// A folder that this process owns until the value is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The locks are held while these files are open: `LOCK` and the mark.
    _locks: [Option<File>; 2],
}

impl Folder {
    /// Opens the folder of this engine at `path`. Creates it if it does not exist, and takes it if it is empty.
    ///
    /// 1529 when another process has it open; 2108 for another engine or format; 2000 when it is a file, or a folder
    /// with other files; 1514 when it cannot be written; 1522 when its mark is damaged. Each error says what to do.
    pub fn open(path: &Path, engine: &str) -> Result<Folder> {
        Self::open_as(path, engine, false)
    }

    /// The same for a snapshot that nobody has taken into use, which is refused otherwise: 2000.
    pub fn open_copy(path: &Path, engine: &str) -> Result<Folder> {
        Self::open_as(path, engine, true)
    }

    fn open_as(path: &Path, engine: &str, is_copy: bool) -> Result<Folder> {
        let cannot_write = |cause| io_error(format!("cannot write to the folder {}", path.display()), &cause);
        if !check_mark(path, engine, is_copy)? {
            create(path).map_err(|cause| io_error(format!("cannot create the folder {}", path.display()), &cause))?;
            check_empty(path)?;
        }
        let lock_file = lock(path, LOCK_FILE)?;
        // The process that held the lock until now may have written a mark.
        if check_mark(path, engine, is_copy)? {
            // The process that wrote it may have been killed before the name was durable. A loss of power could then
            // remove the mark and keep later writes.
            sync_folder(path).map_err(cannot_write)?;
        } else {
            check_empty(path)?;
            write_mark(path, engine).map_err(cannot_write)?;
        }
        // On Windows a locked file can be read by its owner only, and an open `LOCK` cannot be removed.
        let mark = if cfg!(windows) { None } else { Some(lock(path, MARK_FILE)?) };
        Ok(Folder { path: path.to_owned(), _locks: [Some(lock_file), mark] })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether a folder has the mark of this engine: `false` without a mark. Fails for another engine's.
fn check_mark(path: &Path, engine: &str, may_be_copy: bool) -> Result<bool> {
    let Some(found) = Mark::read(path)? else { return Ok(false) };
    if found.engine != engine {
        return Err(Error::new(error::UNSUPPORTED_OPERATION).with_context(format!(
            "the folder {} holds a database of the engine {}, not {}: open it with that engine, or choose another folder",
            path.display(),
            found.engine,
            engine
        )));
    }
    if found.format != STORED_FORMAT {
        let sentence = format!("the folder {} was {}", path.display(), other_format(u64::from(found.format)));
        return Err(Error::new(error::UNSUPPORTED_OPERATION).with_context(sentence));
    }
    if found.copied && !may_be_copy {
        return Err(Error::new(error::CLIENT_INVALID_OPERATION).with_context(format!(
            "the folder {} is a snapshot that is not in use: start a server on it, or take it into use by `couch-layer adopt`",
            path.display()
        )));
    }
    Ok(true)
}

/// Whether systems, file managers and appliances put a file of this name into any folder.
fn is_of_the_system(name: &OsStr) -> bool {
    const NAMES: [&str; 16] = [
        "lost+found",
        ".DS_Store",
        ".Spotlight-V100",
        ".fseventsd",
        ".TemporaryItems",
        "desktop.ini",
        "Thumbs.db",
        "$RECYCLE.BIN",
        "System Volume Information",
        "@eaDir",
        "@Recycle",
        "#recycle",
        ".directory",
        ".snapshot",
        ".snapshots",
        ".zfs",
    ];
    let name = name.to_string_lossy();
    NAMES.contains(&&*name) || ["._", ".nfs", ".fuse_hidden", ".Trash"].iter().any(|begin| name.starts_with(begin))
}

/// Fails unless the folder is empty. Files of an interrupted creation and [the system's](is_of_the_system) do not
/// count.
fn check_empty(path: &Path) -> Result<()> {
    let cannot_read = |cause: io::Error| io_error(format!("cannot read the folder {}", path.display()), &cause);
    for entry in fs::read_dir(path).map_err(cannot_read)? {
        let name = entry.map_err(cannot_read)?.file_name();
        if is_of_the_system(&name) {
            tracing::warn!(
                "{} in the folder {} is not the database's, and is left alone",
                name.display(),
                path.display()
            );
        } else if name != LOCK_FILE && name != NEW_MARK_FILE {
            return Err(Error::new(error::CLIENT_INVALID_OPERATION).with_context(format!(
                "the folder {} holds other things ({}) and no database of this program: choose an empty folder, or a new one",
                path.display(),
                name.display()
            )));
        }
    }
    Ok(())
}

/// Locks a file of the folder. Creates it if it does not exist.
fn lock(path: &Path, name: &str) -> Result<File> {
    let file = path.join(name);
    let cannot_lock = |cause: &io::Error| io_error(format!("cannot write to {}", file.display()), cause);
    let mut options = OpenOptions::new();
    // Network file systems lock only files opened for writing.
    options.write(true).create(true).truncate(false);
    // Others may read and write it, but not remove it: FILE_SHARE_READ and FILE_SHARE_WRITE.
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 3);
    let lock = options.open(&file).map_err(|cause| cannot_lock(&cause))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::new(error::LOCK_FILE_FAILURE).with_context(format!(
            "the folder {} is open in another process: stop that one first, or talk to it instead of opening its folder",
            path.display()
        ))),
        Err(TryLockError::Error(cause)) => Err(cannot_lock(&cause)),
    }
}

/// The mark of a new folder. After an error there is none, and the next opening writes it again: a failed sync may have
/// lost its name for good, whatever a later sync reports.
fn write_mark(path: &Path, engine: &str) -> io::Result<()> {
    replace_mark(path, engine, sync_folder).inspect_err(|_| drop(fs::remove_file(path.join(MARK_FILE))))
}

/// Writes a mark over the one that a folder may have. After an error it has either of them.
fn replace_mark(path: &Path, engine: &str, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let text = serde_json::json!({ "engine": engine, "format": STORED_FORMAT }).to_string();
    let (new, marked) = (path.join(NEW_MARK_FILE), path.join(MARK_FILE));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, &marked)?;
    sync(path)
}

/// Marks a folder as a snapshot that nobody has taken into use. Durable, with all names in the folder.
pub(crate) fn mark_copy(path: &Path, engine: &str) -> io::Result<()> {
    write_mark(path, &format!("{SNAPSHOT_OF}{engine}"))
}

/// Makes a snapshot an ordinary store. Called by the process that has it open, once no version that the copied store gave
/// out can have another meaning here.
///
/// # Errors
/// The disk's errors. The folder has a mark then, that of a snapshot or the new one.
pub fn take_into_use(path: &Path) -> Result<()> {
    let Some(mark) = Mark::read(path)? else {
        let sentence = format!("the folder {} has no mark", path.display());
        return Err(Error::new(error::FILE_CORRUPT).with_context(sentence));
    };
    replace_mark(path, &mark.engine, sync_folder)
        .map_err(|cause| io_error(format!("cannot write the mark of {}", path.display()), &cause))
}

/// Number of folders `NAME.partial-N` that interrupted copies may leave before there must be room for another one.
const MOST_PARTIAL: u32 = 1_000;

/// Creates a folder beside the place of a new one, for who fills it and then gives it its name. Nobody else may read
/// it. Its file `LOCK` is locked while the copy is made: what a process left that was killed is removed by the next one.
pub(crate) fn create_partial(parent: &Path, name: &OsStr) -> Result<(PathBuf, File)> {
    remove_abandoned(parent, name);
    let cannot = |cause: &io::Error| io_error(format!("cannot create a folder in {}", parent.display()), cause);
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    for number in 0..MOST_PARTIAL {
        let mut partial = name.to_owned();
        partial.push(format!(".partial-{number}"));
        let path = parent.join(partial);
        match builder.create(&path) {
            // Of another copy, which may be running.
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {}
            created => {
                created.map_err(|cause| cannot(&cause))?;
                let lock = lock(&path, LOCK_FILE).inspect_err(|_| drop(fs::remove_dir_all(&path)))?;
                return Ok((path, lock));
            }
        }
    }
    Err(cannot(&io::Error::other("too many copies of this name were interrupted: remove those beside it")))
}

/// Removes the folders `NAME.partial-N` of processes that have ended: nobody has their locks. One without a file `LOCK`
/// is left alone, since its process may be about to create it.
fn remove_abandoned(parent: &Path, name: &OsStr) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let is_partial = path.file_stem() == Some(name)
            && path.extension().and_then(OsStr::to_str).is_some_and(|ending| {
                ending.strip_prefix("partial-").is_some_and(|number| number.parse::<u32>().is_ok())
            });
        // Not a link to a folder of somebody else.
        if !is_partial || !path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            continue;
        }
        // Somebody may have taken the copy into use under this name, or it is of another build.
        let is_copy = || Mark::read(&path).is_ok_and(|mark| mark.is_none_or(|mark| mark.copied));
        let Ok(lock) = OpenOptions::new().write(true).open(path.join(LOCK_FILE)) else { continue };
        if lock.try_lock().is_ok() && is_at(&lock, &path.join(LOCK_FILE)) && is_copy() {
            let removed = remove_locked(&path, lock);
            let folder = path.display();
            match removed {
                Ok(()) => tracing::info!(%folder, "removed what an interrupted copy left"),
                Err(error) => tracing::warn!(%folder, %error, "cannot remove what an interrupted copy left"),
            }
        }
    }
}

/// Whether an open file is still the one at `path`: another process may have removed it, and made a new one.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
        file.metadata().ok().map(place) == fs::metadata(path).ok().map(place)
    }
    // On Windows an open file is not removed.
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}

/// Removes a folder. Its lock is the last file: if this is interrupted, the next one goes on.
fn remove_locked(path: &Path, lock: File) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == LOCK_FILE => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    // On Windows an open file is not removed.
    if cfg!(windows) {
        drop(lock);
    }
    fs::remove_dir_all(path)
}

/// Renames a folder. Fails if anything has the new name.
pub(crate) fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems do not know the flag.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {}
            renamed => return Ok(renamed?),
        }
    }
    // Without the flag an empty folder would be replaced.
    if to.symlink_metadata().is_ok() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    fs::rename(from, to)
}

/// Creates a folder and its parents, and makes their names durable. This comes before the mark, so that no mark
/// lies in a folder that a loss of power could take away.
///
/// A process that was killed here may have left folders whose names are not durable, so all parents are synced. Errors
/// count up to the first parent that existed before: this user may have no access to those above. After an error the
/// new folders are removed: a failed sync may have lost their names for good, whatever a later sync reports.
fn create(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let there = path.ancestors().skip(1).find(|folder| folder.exists()).map(Path::to_owned);
    let is_new = !path.exists();
    let outcome = fs::create_dir_all(&path).and_then(|()| sync_names(&path, there.as_deref()));
    if outcome.is_err() && is_new {
        let new = path.ancestors().take_while(|folder| Some(*folder) != there.as_deref());
        new.for_each(|folder| drop(fs::remove_dir(folder)));
    }
    outcome
}

/// Syncs all folders above `path`. An error matters up to `there`.
fn sync_names(path: &Path, there: Option<&Path>) -> io::Result<()> {
    for folder in path.ancestors().skip(1) {
        sync_folder(folder)?;
        if Some(folder) == there {
            break;
        }
    }
    let above = there.into_iter().flat_map(|there| there.ancestors().skip(1));
    above.take_while(|folder| sync_folder(folder).is_ok()).count();
    Ok(())
}

/// Makes the names in a folder durable.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    // Windows cannot open folders as files, and makes names durable by itself.
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// The error of a failed disk operation: what was tried, the system's message, and what to do.
pub fn io_error(tried: impl AsRef<str>, cause: &io::Error) -> Error {
    let (code, advice) = match cause.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            (error::STORAGE_QUOTA_EXCEEDED, ": the disk is full; make room")
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (error::FILE_NOT_WRITABLE, ": give this user the right to read and write there")
        }
        ErrorKind::NotFound => (error::FILE_NOT_FOUND, ""),
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            (error::CLIENT_INVALID_OPERATION, ": a folder is needed, and this is a file")
        }
        _ => (error::IO_ERROR, ""),
    };
    Error::new(code).with_context(format!("{} ({cause}){advice}", tried.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark { engine: "test".into(), format: STORED_FORMAT, copied: false }
    }

    fn code(path: &Path, engine: &str) -> i32 {
        Folder::open(path, engine).map_or_else(|error| error.code(), |_| 0)
    }

    /// Every file of a folder, with its bytes.
    fn files(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect();
        files.sort();
        files
    }

    #[test]
    fn a_new_folder_becomes_ours_and_has_one_owner() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("deep/data");
        let first = Folder::open(&path, "test").unwrap();
        assert_eq!(Mark::read(&path).unwrap(), Some(mark()));
        let refused = Folder::open(&path, "test").unwrap_err();
        assert_eq!(refused.code(), 1529);
        assert!(refused.to_string().contains("another process"), "{refused}");
        drop(first);
        assert_eq!(code(&path, "test"), 0);
    }

    /// `LOCK` is empty, so somebody may remove it.
    #[cfg(unix)]
    #[test]
    fn a_folder_without_its_lock_file_still_has_one_owner() {
        let root = tempfile::tempdir().unwrap();
        let first = Folder::open(root.path(), "test").unwrap();
        fs::write(root.path().join("data"), "of the engine").unwrap();
        fs::remove_file(root.path().join(LOCK_FILE)).unwrap();
        assert_eq!(code(root.path(), "test"), 1529);
        assert_eq!(code(root.path(), "test"), 1529, "with a new file");
        fs::rename(root.path().join(MARK_FILE), root.path().join("away")).unwrap();
        assert_eq!(code(root.path(), "test"), 2000);
        fs::rename(root.path().join("away"), root.path().join(MARK_FILE)).unwrap();
        drop(first);
        assert_eq!(code(root.path(), "test"), 0);
    }

    #[test]
    fn what_the_system_puts_into_a_new_folder_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let names = ["lost+found", "@eaDir", ".DS_Store", "._data", "Thumbs.db", ".nfs000001", ".fuse_hidden01"];
        names.iter().for_each(|name| fs::write(root.path().join(name), name).unwrap());
        assert_eq!(code(root.path(), "test"), 0);
        for name in names {
            assert_eq!(fs::read_to_string(root.path().join(name)).unwrap(), name);
        }
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join(".bashrc"), "").unwrap();
        assert_eq!(code(other.path(), "test"), 2000);
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("data");
        drop(Folder::open(&path, "test").unwrap());
        let before = files(&path);
        assert_eq!(code(&path, "other"), 2108);
        assert_eq!(files(&path), before);
        for format in [1, 4, STORED_FORMAT - 1, STORED_FORMAT + 1] {
            fs::write(path.join(MARK_FILE), format!(r#"{{"engine":"test","format":{format}}}"#)).unwrap();
            let before = files(&path);
            let refused = Folder::open(&path, "test").unwrap_err();
            assert_eq!(refused.code(), 2108);
            let says = format!("written by couch-layer format {format}; this build reads format {STORED_FORMAT}");
            assert!(refused.to_string().contains(&says), "{refused}");
            assert_eq!(files(&path), before);
        }

        let other = root.path().join("photos");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("cat.jpg"), "meow").unwrap();
        let before = files(&other);
        let refused = Folder::open(&other, "test").unwrap_err();
        assert_eq!(refused.code(), 2000);
        assert!(refused.to_string().contains("cat.jpg"), "{refused}");
        assert_eq!(files(&other), before);
        assert_eq!(Mark::read(&other).unwrap(), None);

        assert_eq!(code(&other.join("cat.jpg"), "test"), 2000);
        assert_eq!(Mark::read(&root.path().join("nowhere")).unwrap(), None);
        fs::write(path.join(MARK_FILE), "{").unwrap();
        assert_eq!(code(&path, "test"), 1522);
    }

    /// A process that was killed holds no locks. A copy that is being made is not removed, nor what is not ours.
    #[test]
    fn what_interrupted_copies_left_is_removed_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let name = OsStr::new("a.copy");
        let partial = |number: u32| root.path().join(format!("a.copy.partial-{number}"));
        let (running, _lock) = create_partial(root.path(), name).unwrap();
        assert_eq!(running, partial(0));
        for number in [1, 5] {
            fs::create_dir_all(partial(number).join("data/deep")).unwrap();
            fs::write(partial(number).join("data/deep/table"), "rows").unwrap();
            fs::write(partial(number).join(LOCK_FILE), "").unwrap();
        }
        // Its process may be about to create its lock.
        fs::create_dir(partial(2)).unwrap();
        // A store that somebody took into use, and one that nobody can read.
        for (number, mark) in [(7, r#"{"engine": "lsm", "format": 18}"#), (8, "?")] {
            fs::create_dir(partial(number)).unwrap();
            fs::write(partial(number).join(LOCK_FILE), "").unwrap();
            fs::write(partial(number).join(MARK_FILE), mark).unwrap();
        }
        let others = ["b.copy.partial-1", "a.copy.partial-x", "a.copy.partial-1.old", "a.copy"];
        for other in others {
            fs::create_dir(root.path().join(other)).unwrap();
            fs::write(root.path().join(other).join(LOCK_FILE), "").unwrap();
        }
        let (again, lock) = create_partial(root.path(), name).unwrap();
        assert_eq!(again, partial(1));
        assert!(!again.join("data").exists() && !partial(5).exists(), "what was left is gone");
        assert!([0, 2, 7, 8].iter().all(|number| partial(*number).exists()));
        assert!(others.iter().all(|other| root.path().join(other).join(LOCK_FILE).exists()));
        drop(lock);
        assert_eq!(create_partial(root.path(), name).unwrap().0, partial(1), "its process ended too");
    }

    #[test]
    fn a_snapshot_is_opened_by_who_takes_it_into_use() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("copy");
        let (partial, lock) = create_partial(root.path(), OsStr::new("copy")).unwrap();
        assert_ne!(create_partial(root.path(), OsStr::new("copy")).unwrap().0, partial);
        drop(lock);
        fs::write(partial.join("data"), "of the engine").unwrap();
        assert_eq!(code(&partial, "test"), 2000, "it has no mark yet");
        mark_copy(&partial, "test").unwrap();
        // Not even an empty folder is replaced.
        fs::create_dir(&path).unwrap();
        assert_eq!(rename_to_new(&partial, &path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::remove_dir(&path).unwrap();
        rename_to_new(&partial, &path).unwrap();
        let refused = Folder::open(&path, "test").unwrap_err();
        assert_eq!(refused.code(), 2000);
        assert!(refused.to_string().contains("couch-layer adopt"), "{refused}");
        assert_eq!(Folder::open_copy(&path, "other").unwrap_err().code(), 2108);
        // A build that knows no snapshots compares the engine's name.
        let text = fs::read_to_string(path.join(MARK_FILE)).unwrap();
        assert!(text.contains(r#""engine":"snapshot of test""#), "{text}");
        let owned = Folder::open_copy(&path, "test").unwrap();
        // The new mark cannot be written.
        fs::create_dir(path.join(NEW_MARK_FILE)).unwrap();
        take_into_use(&path).unwrap_err();
        assert!(Mark::read(&path).unwrap().unwrap().copied);
        fs::remove_dir(path.join(NEW_MARK_FILE)).unwrap();
        // Its name cannot be synced.
        let failed = replace_mark(&path, "test", |_| Err(ErrorKind::Other.into()));
        assert!(failed.is_err() && Mark::read(&path).unwrap().is_some(), "never without a mark");
        replace_mark(&path, "snapshot of test", sync_folder).unwrap();
        take_into_use(&path).unwrap();
        assert_eq!(Mark::read(&path).unwrap(), Some(mark()));
        assert_eq!(code(&path, "test"), 1529, "it is still owned");
        drop(owned);
        assert_eq!(code(&path, "test"), 0);
    }

    #[test]
    fn a_creation_that_was_interrupted_is_finished() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LOCK_FILE), "").unwrap();
        fs::write(root.path().join(NEW_MARK_FILE), "{\"eng").unwrap();
        assert_eq!(code(root.path(), "test"), 0);
        assert_eq!(Mark::read(root.path()).unwrap(), Some(mark()));
    }

    #[test]
    fn disk_errors_say_what_to_do() {
        let full = io_error("cannot write x", &io::Error::from(ErrorKind::StorageFull));
        assert_eq!(full.code(), 1225);
        assert!(full.to_string().contains("disk is full"), "{full}");
        let read_only = io_error("cannot write x", &io::Error::from(ErrorKind::ReadOnlyFilesystem));
        assert_eq!(read_only.code(), 1514);
    }
}
