//! The folder of a standby: a snapshot that nobody has taken into use, with a note of the last segment that it has.
//!
//! ```text
//!   FOLDER.standby-new       being restored
//!   FOLDER                   follows: a mark of a snapshot, and standby.json
//!   FOLDER.standby-old       was replaced
//!   FOLDER.standby-removed   is being removed, so a part of it may be gone
//! ```
//!
//! Whatever has one of these names beside the folder is removed.
//!
//! The note says that the standby is promoted before anything else is done for that. So a promotion that was
//! interrupted is finished at the next start, and nothing is ever applied to a store that took writes of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use disk::DiskStore;
use disk::folder::{Folder, Mark, sync_folder};
use serde::{Deserialize, Serialize};

use super::form::{BASES, STORE, json};
use super::restore::RestoredShip;
use crate::error::{Error, Result};
use crate::repository::Repository;

const NOTE: &str = "standby.json";
const NEW_NOTE: &str = "standby.json.new";

const NEW: &str = "standby-new";
const OLD: &str = "standby-old";
const REMOVED: &str = "standby-removed";

/// What a folder is for who would follow with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyFolder {
    /// There is no store yet.
    Missing,
    /// It follows.
    Follows,
    /// It was promoted, or taken into use in another way: it is a store of its own.
    Promoted,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    /// The name of the store that it follows.
    pub(super) store: String,
    /// Number of the last segment that it has.
    pub(super) segment: u64,
    /// The time of that segment, in milliseconds since 1970.
    pub(super) ms: u64,
    /// Whether it is to be promoted.
    pub(super) promoted: bool,
}

impl Note {
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NOTE);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| Error::damaged(&path.display().to_string(), error.to_string())),
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(cause) => Err(failed(&path, cause)),
        }
    }

    /// Replaces the note, durably.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let (new, path) = (folder.join(NEW_NOTE), folder.join(NOTE));
        let text = json(self)?;
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_folder(folder)
        });
        written.map_err(|cause| failed(&path, cause))
    }
}

/// What a folder is. Finishes what was interrupted when a store was put in place.
///
/// # Errors
/// [`Error::Refused`] if it has a store that never followed; [`Error::Damaged`] for its note.
pub fn standby_folder(folder: &Path) -> Result<StandbyFolder> {
    if Mark::read(folder)?.is_none() && is_standby(&beside(folder, NEW))? {
        put_in_place(folder)?;
    }
    discard(folder, OLD)?;
    match (Mark::read(folder)?, Note::read(folder)?) {
        (None, None) => Ok(StandbyFolder::Missing),
        (Some(mark), Some(note)) if mark.copied && !note.promoted => Ok(StandbyFolder::Follows),
        (Some(_), Some(_)) => Ok(StandbyFolder::Promoted),
        (None, Some(_)) => Err(Error::damaged(&folder.display().to_string(), "it has a standby's note and no mark")),
        (Some(_), None) => Err(Error::refused(format!(
            "the folder {} has a store of its own: a standby needs a new folder",
            folder.display()
        ))),
    }
}

/// Notes that the standby in a folder is to be promoted: it follows no more, and whoever opens it next takes it into
/// use.
///
/// # Errors
/// [`Error::Refused`] if it is no standby; those of the disk.
pub fn promote_standby(folder: &Path) -> Result<()> {
    match Note::read(folder)? {
        Some(note) => Note { promoted: true, ..note }.write(folder),
        None => Err(Error::refused(format!("the folder {} is not that of a standby", folder.display()))),
    }
}

/// Gives the store that was [restored](Repository::restore_standby) for a standby its folder. What the folder had is
/// removed, if it is a standby that nobody has open.
///
/// # Errors
/// [`Error::Refused`] if the folder has anything else; those of the disk.
pub fn replace_standby<S: DiskStore>(folder: &Path) -> Result<()> {
    discard(folder, OLD)?;
    let old = beside(folder, OLD);
    if Mark::read(folder)?.is_some() {
        let owned = Folder::open_copy(folder, S::ENGINE)?;
        if !is_standby(folder)? {
            return Err(Error::refused(format!("the folder {} is not that of a standby", folder.display())));
        }
        // On Windows an open file keeps its folder.
        drop(owned);
        fs::rename(folder, &old).map_err(|cause| failed(folder, cause))?;
    }
    put_in_place(folder)?;
    discard(folder, OLD)
}

/// Removes what is beside the folder under one of our names. It gets another name first: a folder of which a part is
/// removed would not be recognised.
fn discard(folder: &Path, ending: &str) -> Result<()> {
    let (from, removed) = (beside(folder, ending), beside(folder, REMOVED));
    // Of an attempt that was interrupted.
    if_there(&removed, fs::remove_dir_all(&removed))?;
    if_there(&from, fs::rename(&from, &removed))?;
    if_there(&removed, fs::remove_dir_all(&removed))
}

fn if_there(path: &Path, done: io::Result<()>) -> Result<()> {
    match done {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(failed(path, cause)),
        _ => Ok(()),
    }
}

fn put_in_place(folder: &Path) -> Result<()> {
    // An empty folder is replaced, and no other.
    if_there(folder, fs::remove_dir(folder))?;
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let placed = fs::rename(beside(folder, NEW), folder).and_then(|()| sync_folder(parent));
    placed.map_err(|cause| failed(folder, cause))
}

/// Whether a folder has a store that follows, or that was restored to do so.
fn is_standby(folder: &Path) -> Result<bool> {
    let is_copy = Mark::read(folder)?.is_some_and(|mark| mark.copied);
    Ok(is_copy && Note::read(folder)?.is_some_and(|note| !note.promoted))
}

fn beside(folder: &Path, ending: &str) -> PathBuf {
    let mut name = folder.file_name().map_or_else(OsString::new, OsString::from);
    name.push(format!(".{ending}"));
    folder.with_file_name(name)
}

fn failed(path: &Path, cause: io::Error) -> Error {
    Error::Io { file: path.display().to_string(), cause }
}

impl Repository {
    /// Restores the newest state that was shipped beside the folder of a standby, as
    /// [`restore_shipped`](Self::restore_shipped) does; [`replace_standby`] puts it in place. `from`: the segment from
    /// which on the standby cannot be continued.
    ///
    /// # Errors
    /// [`Error::Refused`] if no base completes that segment or a later one yet; those of a restore.
    pub async fn restore_standby<S: DiskStore>(
        &self,
        folder: &Path,
        from: u64,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<RestoredShip> {
        let newest = self.numbers(BASES).await?.last().copied().unwrap_or(0);
        let waits =
            || Error::refused(format!("no tables were shipped since segment {from}, where the log is broken off"));
        if newest < from {
            return Err(waits());
        }
        let new = beside(folder, NEW);
        // Of an attempt that was interrupted.
        discard(folder, NEW)?;
        let store = self.shipped_store().await?;
        let restored = self.restore_shipped::<S>(&new, None, progress).await?;
        if restored.segment < from {
            discard(folder, NEW)?;
            return Err(waits());
        }
        Note { store, segment: restored.segment, ms: restored.ms, promoted: false }.write(&new)?;
        Ok(restored)
    }

    /// The name of the store that is shipped there.
    pub(super) async fn shipped_store(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.opened(STORE).await?).into_owned())
    }
}
