//! Writing files below a folder, and nowhere else.
//!
//! A file is written under a name of its own (`.HASH.couch-layer-part`) beside where it goes, and renamed once it is
//! whole: nobody ever sees half of one. What is left by an interruption is replaced by the next pull.
//!
//! No link is followed: each folder on the way is looked at, and made if it is not there. Who may write into the
//! folder while a pull is at work could still put a link there between the look and the write; that is not
//! guarded against.

use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::document::FileDocument;
use super::local::{mtime_of, place};
use super::path::{self, DRAFT_SUFFIX};

type Outcome<T> = Result<T, String>;

/// What is where a file goes.
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

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Draft {
    writer: BufWriter<File>,
    name: PathBuf,
    place: PathBuf,
}

/// What became of a file that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is where it goes.
    Written,
    /// The same was there.
    Equal,
}

impl Target {
    /// The folder `root`, which is made if it is not there. It may be reached through links.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(root: &Path) -> io::Result<Target> {
        fs::create_dir_all(root)?;
        Ok(Target { root: root.canonicalize()? })
    }

    /// What is where a file goes.
    ///
    /// # Errors
    /// Why nothing can be written there.
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
            Ok(metadata) if metadata.is_symlink() => {
                Err("a symbolic link is in its place, which is not followed".into())
            }
            Ok(metadata) if metadata.is_dir() => Err("a folder is in its place".into()),
            Ok(_) => Err("something that is no ordinary file is in its place".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Present::Nothing),
            Err(error) => Err(format!("its place cannot be looked at: {error}")),
        }
    }

    /// Whether there is such a folder, without a link on the way; what is in its way is an error.
    fn is_folder(&self, folder: &str) -> Outcome<bool> {
        let shown = path::shown(folder);
        match fs::symlink_metadata(place(&self.root, folder)) {
            Ok(metadata) if metadata.is_dir() => Ok(true),
            Ok(metadata) if metadata.is_symlink() => {
                Err(format!("the folder {shown} is a symbolic link here, which is not followed"))
            }
            Ok(_) => Err(format!("the folder {shown} is a file here")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(format!("the folder {shown} cannot be looked at: {error}")),
        }
    }

    /// Begins a file; its folders are made.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub(crate) fn begin(&self, path: &str) -> Outcome<Draft> {
        self.look(path)?;
        for (end, _) in path.match_indices('/') {
            let folder = path.get(..end).unwrap_or_default();
            if !self.is_folder(folder)? {
                let made = fs::create_dir(place(&self.root, folder));
                made.map_err(|error| format!("the folder {} cannot be made: {error}", path::shown(folder)))?;
            }
        }
        let place = place(&self.root, path);
        // The same for each attempt at a file, and of no length that a name may not have.
        let hash = twox_hash::XxHash64::oneshot(0, path.as_bytes());
        let name = place.with_file_name(format!(".{hash:016x}{DRAFT_SUFFIX}"));
        match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(&error)),
            _ => {}
        }
        let file = File::create_new(&name).map_err(|error| cannot(&error))?;
        Ok(Draft { writer: BufWriter::with_capacity(1 << 16, file), name, place })
    }

    /// Puts a file that is whole where it goes: over what differs there only if `force` is given.
    ///
    /// # Errors
    /// Why it is not there; what was there is as it was.
    pub(crate) fn place(&self, draft: Draft, file: &FileDocument, force: bool) -> Outcome<Placed> {
        let name = draft.name.clone();
        let placed = self.try_place(draft, file, force);
        if placed != Ok(Placed::Written) {
            let _ = fs::remove_file(name);
        }
        placed
    }

    fn try_place(&self, draft: Draft, file: &FileDocument, force: bool) -> Outcome<Placed> {
        let Draft { writer, name, place } = draft;
        let written = writer.into_inner().map_err(|error| cannot(error.error()))?;
        let present = self.look_at(&place)?;
        if let Present::File(metadata) = &present {
            let is_equal = metadata.len() == file.size && is_equal(&place, &name).map_err(|error| cannot(&error))?;
            if is_equal {
                // So that the next pull sees it at once. Where that is refused, it compares again.
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

/// Why a file that differs is left.
pub(crate) const DIFFERS: &str = "is different here, and is left; --force writes over it";

/// Whether a file on disk is taken for the one that a document describes, without reading it.
pub(crate) fn looks_equal(metadata: &Metadata, file: &FileDocument) -> bool {
    metadata.len() == file.size && mtime_of(metadata) == file.mtime
}

impl Draft {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.writer.write_all(bytes).map_err(|error| cannot(&error))
    }

    /// Takes it away.
    pub(crate) fn remove(self) {
        let name = self.name.clone();
        // What it still holds is not wanted.
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
