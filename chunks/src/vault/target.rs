//! Writes files below a folder, and nowhere else.
//!
//! A file is written under a separate name (`.HASH.couch-layer-part`) next to its place, and renamed when it is
//! complete, so a partial file is never visible. If a pull is interrupted, the next one replaces the partial file.
//!
//! Links are not followed: each folder on the way is checked, and created if needed. A process that can write into the
//! folder during a pull could put a link there between check and write. That is not prevented.

use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::document::FileDocument;
use super::local::{mtime_of, place};
use super::path::{self, DRAFT_SUFFIX};

type Outcome<T> = Result<T, String>;

/// The entry at a file's place.
#[derive(Debug)]
pub(crate) enum Present {
    /// Nothing.
    Nothing,
    /// A file.
    File(Metadata),
}

/// A folder that files are written into.
#[derive(Debug)]
pub(crate) struct Target {
    root: PathBuf,
}

/// A file in progress.
#[derive(Debug)]
pub(crate) struct PartialFile {
    writer: BufWriter<File>,
    name: PathBuf,
    place: PathBuf,
}

/// Result of placing a complete file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It was written.
    Written,
    /// An equal file was there.
    Equal,
}

impl Target {
    /// The folder `root`. Creates it if needed. Its path may have links.
    ///
    /// # Errors
    /// The system's errors.
    pub(crate) fn open(root: &Path) -> io::Result<Target> {
        fs::create_dir_all(root)?;
        Ok(Target { root: root.canonicalize()? })
    }

    /// Looks up the entry at a file's place.
    ///
    /// # Errors
    /// The reason why nothing can be written there.
    pub(crate) fn look(&self, path: &str) -> Outcome<Present> {
        path::check(path)?;
        for (end, _) in path.match_indices('/') {
            let folder = path.get(..end).unwrap_or_default();
            if !self.is_folder(folder)? {
                return Ok(Present::Nothing);
            }
        }
        self.look_at(&place(&self.root, path))
    }

    fn look_at(&self, place: &Path) -> Outcome<Present> {
        match fs::symlink_metadata(place) {
            Ok(metadata) if metadata.is_file() => Ok(Present::File(metadata)),
            Ok(metadata) if metadata.is_symlink() => Err("a symbolic link is in its place, and is not followed".into()),
            Ok(metadata) if metadata.is_dir() => Err("a folder is in its place".into()),
            Ok(_) => Err("something that is not an ordinary file is in its place".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Present::Nothing),
            Err(error) => Err(format!("its place cannot be examined: {error}")),
        }
    }

    /// Whether the folder exists, without a link on the way. Anything else in its place is an error.
    fn is_folder(&self, folder: &str) -> Outcome<bool> {
        let shown = path::shown(folder);
        match fs::symlink_metadata(place(&self.root, folder)) {
            Ok(metadata) if metadata.is_dir() => Ok(true),
            Ok(metadata) if metadata.is_symlink() => {
                Err(format!("the folder {shown} is a symbolic link here, which is not followed"))
            }
            Ok(_) => Err(format!("the folder {shown} is a file here")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("the folder {shown} cannot be examined: {error}")),
        }
    }

    /// Starts a file, and creates its folders.
    ///
    /// # Errors
    /// The reason why it cannot be written.
    pub(crate) fn begin(&self, path: &str) -> Outcome<PartialFile> {
        self.look(path)?;
        for (end, _) in path.match_indices('/') {
            let folder = path.get(..end).unwrap_or_default();
            if !self.is_folder(folder)? {
                let made = fs::create_dir(place(&self.root, folder));
                made.map_err(|error| format!("the folder {} cannot be made: {error}", path::shown(folder)))?;
            }
        }
        let place = place(&self.root, path);
        // The same name for each attempt at a file, and of limited length.
        let hash = twox_hash::XxHash64::oneshot(0, path.as_bytes());
        let name = place.with_file_name(format!(".{hash:016x}{DRAFT_SUFFIX}"));
        match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(&error)),
            _ => {}
        }
        let file = File::create_new(&name).map_err(|error| cannot(&error))?;
        Ok(PartialFile { writer: BufWriter::with_capacity(1 << 16, file), name, place })
    }

    /// Moves a complete file to its place. Replaces a different file only with `force`.
    ///
    /// # Errors
    /// The reason why it was not moved. The file there is unchanged.
    pub(crate) fn place(&self, draft: PartialFile, file: &FileDocument, force: bool) -> Outcome<Placed> {
        let name = draft.name.clone();
        let placed = self.try_place(draft, file, force);
        if placed != Ok(Placed::Written) {
            let _ = fs::remove_file(name);
        }
        placed
    }

    fn try_place(&self, draft: PartialFile, file: &FileDocument, force: bool) -> Outcome<Placed> {
        let PartialFile { writer, name, place } = draft;
        let written = writer.into_inner().map_err(|error| cannot(error.error()))?;
        let present = self.look_at(&place)?;
        if let Present::File(metadata) = &present {
            let is_equal = metadata.len() == file.size && is_equal(&place, &name).map_err(|error| cannot(&error))?;
            if is_equal {
                // Sets the time, so that the next pull sees at once that the file is equal. If that fails, the next
                // pull compares contents.
                if let Ok(there) = File::options().write(true).open(&place) {
                    let _ = set_mtime(&there, file.mtime);
                }
                return Ok(Placed::Equal);
            }
            if !force {
                return Err(DIFFERS.into());
            }
            fs::set_permissions(&name, metadata.permissions()).map_err(|error| cannot(&error))?;
        }
        set_mtime(&written, file.mtime).map_err(|error| cannot(&error))?;
        drop(written);
        fs::rename(&name, &place).map_err(|error| cannot(&error))?;
        Ok(Placed::Written)
    }
}

/// The reason why a different file is kept.
pub(crate) const DIFFERS: &str = "is different here, and is left; --force overwrites it";

/// Whether a file on disk counts as equal to a document's without reading it.
pub(crate) fn looks_equal(metadata: &Metadata, file: &FileDocument) -> bool {
    metadata.len() == file.size && mtime_of(metadata) == file.mtime
}

impl PartialFile {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.writer.write_all(bytes).map_err(|error| cannot(&error))
    }

    /// Removes it.
    pub(crate) fn remove(self) {
        let name = self.name.clone();
        // The buffered rest is not needed.
        drop(self.writer.into_parts());
        let _ = fs::remove_file(name);
    }
}

fn set_mtime(file: &File, mtime: u64) -> io::Result<()> {
    match UNIX_EPOCH.checked_add(Duration::from_millis(mtime)) {
        Some(time) => file.set_times(FileTimes::new().set_modified(time)),
        None => Ok(()),
    }
}

fn is_equal(one: &Path, other: &Path) -> io::Result<bool> {
    let mut one = BufReader::with_capacity(1 << 16, File::open(one)?);
    let mut other = BufReader::with_capacity(1 << 16, File::open(other)?);
    let (mut here, mut there) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let read = one.read(&mut here)?;
        if read == 0 {
            return Ok(other.read(&mut there)? == 0);
        }
        let there = there.get_mut(..read).unwrap_or_default();
        match other.read_exact(there) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
        if here.get(..read) != Some(&*there) {
            return Ok(false);
        }
    }
}

fn cannot(error: &io::Error) -> String {
    format!("it cannot be written: {error}")
}
