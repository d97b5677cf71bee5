//! The files below a folder.
//!
//! Links are not followed: their targets are outside the folder, or in it anyway. Entries that cannot be files of a
//! vault are reported and left alone.

use std::collections::HashSet;
use std::fs::{self, FileType, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Problem;
use super::path::{self, DRAFT_SUFFIX};

/// A file on disk.
#[derive(Clone, Debug)]
pub(crate) struct LocalFile {
    /// Path relative to the folder, with `/` between its components.
    pub(crate) path: String,
    /// Id of its document.
    pub(crate) id: String,
    pub(crate) bytes: u64,
    /// Time of the last change, in milliseconds since 1970.
    pub(crate) mtime: u64,
}

/// Contents of a folder.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The files, in the order of their ids.
    pub(crate) files: Vec<LocalFile>,
    /// Skipped entries, with the reason.
    pub(crate) problems: Vec<Problem>,
    /// Ids of all entries, skipped files included.
    pub(crate) present: HashSet<String>,
    /// Number of folders that could not be read. Their contents are unknown.
    pub(crate) unread_folders: u64,
}

/// Scans everything below `folder`. Memory: the names.
///
/// # Errors
/// If `folder` itself cannot be read.
pub(crate) fn scan(folder: &Path) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((full, relative)) = folders.pop() {
        let entries = match fs::read_dir(&full) {
            Ok(entries) => entries,
            Err(error) if relative.is_empty() => return Err(error),
            Err(error) => {
                scan.unread_folders += 1;
                scan.problems.push(Problem::new(relative, format!("the folder cannot be read: {error}")));
                continue;
            }
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    scan.unread_folders += 1;
                    scan.problems.push(Problem::new(relative.as_str(), format!("the folder cannot be read: {error}")));
                    break;
                }
            };
            let name = entry.file_name();
            let join = |name: &str| if relative.is_empty() { name.to_owned() } else { format!("{relative}/{name}") };
            let Some(name) = name.to_str() else {
                scan.problems.push(Problem::new(join(&name.to_string_lossy()), "its name is not in UTF-8"));
                continue;
            };
            let path = join(name);
            let found = entry.file_type().and_then(|kind| Ok((kind, entry.metadata()?)));
            match found {
                Ok((kind, _)) if kind.is_dir() => folders.push((entry.path(), path)),
                found => scan.take(path, found),
            }
        }
    }
    scan.files.sort_by(|one, other| (&one.id, &one.path).cmp(&(&other.id, &other.path)));
    scan.set_namesakes_apart();
    Ok(scan)
}

impl Scan {
    fn take(&mut self, path: String, found: io::Result<(FileType, Metadata)>) {
        let id = path::id_of(&path);
        if path.ends_with(DRAFT_SUFFIX) {
            // Left by an interrupted pull. The next pull replaces it.
            return;
        }
        self.present.insert(id.clone());
        let problem = match found {
            Err(error) => format!("its metadata cannot be read: {error}"),
            Ok((kind, _)) if kind.is_symlink() => "it is a symbolic link, which is not followed".into(),
            Ok((kind, _)) if !kind.is_file() => "it is not an ordinary file".into(),
            Ok((_, metadata)) => match path::check(&path) {
                Err(reason) => reason,
                Ok(()) => {
                    let mtime = mtime_of(&metadata);
                    self.files.push(LocalFile { path, id, bytes: metadata.len(), mtime });
                    return;
                }
            },
        };
        self.problems.push(Problem::new(path, problem));
    }

    /// Skips files whose paths differ only in the case of letters: they would share one document.
    fn set_namesakes_apart(&mut self) {
        let mut apart = Vec::with_capacity(self.files.len());
        let files = std::mem::take(&mut self.files);
        for namesakes in files.chunk_by(|one, other| one.id == other.id) {
            match namesakes {
                [alone] => apart.push(alone.clone()),
                several => {
                    let names: Vec<String> = several.iter().map(|file| path::shown(&file.path)).collect();
                    let what = format!("{} would share one document; rename all but one", names.join(", "));
                    let path = several.first().map(|file| file.path.clone()).unwrap_or_default();
                    self.problems.push(Problem::new(path, what));
                }
            }
        }
        self.files = apart;
    }
}

/// Time of a file's last change, in milliseconds since 1970.
pub(crate) fn mtime_of(metadata: &Metadata) -> u64 {
    metadata.modified().map_or(0, milliseconds)
}

/// Time of a file's creation, if the system knows it.
pub(crate) fn ctime_of(metadata: &Metadata) -> Option<u64> {
    metadata.created().ok().map(milliseconds)
}

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}

/// Path below a folder for a file of the vault.
pub(crate) fn place(folder: &Path, path: &str) -> PathBuf {
    path.split('/').fold(folder.to_owned(), |place, name| place.join(name))
}
