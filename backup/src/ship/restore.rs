//! Restores a shipped store into a new folder, as it was at a time. The folder is a snapshot: whoever opens it first gives
//! its databases new incarnations.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use disk::wal::follow::Replay;
use disk::{DiskStore, NewCopy};
use kv_api::{STORED_FORMAT, error};

use super::form::{BASES, Base, LOG, Segment, base_path, log_path, table_path};
use crate::error::{Error, Result};
use crate::repository::{Repository, bytes_of};

/// A store that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredShip {
    /// The time that its state is of, in milliseconds since 1970.
    pub ms: u64,
    /// The time of the next state in the place; `None` if there is none, or if it is damaged.
    pub next_ms: Option<u64>,
    /// Whether the log does not continue from here to the next state: what was acknowledged between is in its tables only.
    pub gap: bool,
    /// The time of its tables.
    pub base_ms: u64,
    /// Number of segments that were applied to them.
    pub segments: u64,
    /// Number of the last of them.
    pub segment: u64,
    /// The file that ended it, which is missing or damaged, and why.
    pub ended_by: Option<(String, String)>,
    /// Files that are missing or damaged, and why. Older tables and more of the log replaced them.
    pub stepped_over: Vec<(String, String)>,
    /// The time of an earlier state that is later than this one, by a clock that was set back. States between the two
    /// times may be of either.
    pub earlier_ms: Option<u64>,
}

impl Repository {
    /// Restores the shipped store as it was at a time, or the newest state, into a new folder. `progress` gets each file.
    /// A base that is damaged is replaced by an older one: the log continues from each of them.
    ///
    /// # Errors
    /// [`Error::Refused`] if nothing was shipped by then; [`Error::Damaged`] names a file of the place.
    pub async fn restore_shipped<S: DiskStore>(
        &self,
        folder: &Path,
        at_ms: Option<u64>,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<RestoredShip> {
        let at_ms = at_ms.unwrap_or(u64::MAX);
        let mut stepped_over = Vec::new();
        let numbers = self.numbers(BASES).await?;
        for (at, number) in numbers.iter().enumerate().rev() {
            match self.restore_base::<S>(*number, folder, at_ms, progress).await {
                Ok(None) => {}
                Ok(Some(restored)) => {
                    let mut earlier_ms = None;
                    for earlier in &numbers[..at] {
                        if let Ok(base) = self.base(*earlier).await {
                            earlier_ms = earlier_ms.max(Some(base.ms).filter(|ms| *ms > restored.base_ms));
                        }
                    }
                    return Ok(RestoredShip { stepped_over, earlier_ms, ..restored });
                }
                Err(Error::Damaged { file, reason }) => {
                    tracing::warn!(file, reason, "a base of the ship cannot be used: an older one is");
                    stepped_over.push((file, reason));
                }
                Err(error) => return Err(error),
            }
        }
        match stepped_over.into_iter().next() {
            Some((file, reason)) => Err(Error::Damaged { file, reason }),
            None => Err(Error::refused(
                "nothing was shipped here by then, or it is no longer kept; `backup list` shows the times",
            )),
        }
    }

    /// The same from one base. `None` if it is later, or was removed meanwhile.
    async fn restore_base<S: DiskStore>(
        &self,
        number: u64,
        folder: &Path,
        at_ms: u64,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Option<RestoredShip>> {
        let base = match self.base(number).await {
            Err(error) if error.is_missing() => return Ok(None),
            base => base?,
        };
        if base.ms > at_ms {
            return Ok(None);
        }
        if (base.engine.as_str(), base.stored_format) != (S::ENGINE, STORED_FORMAT) {
            return Err(Error::refused(format!(
                "the store was shipped by another version (engine {}, format {}): restore it with that one",
                base.engine, base.stored_format
            )));
        }
        let copy = NewCopy::create(folder, S::ENGINE, None)?;
        self.write_base(&base, number, copy.path(), progress).await?;
        let mut replay = Replay::<S>::open(copy.path()).map_err(|error| damage(&base_path(number), error))?;
        if replay.version() != base.version {
            return Err(Error::damaged(&base_path(number), "its tables are not those of its version"));
        }
        let mut restored = RestoredShip {
            ms: base.ms,
            next_ms: None,
            gap: false,
            base_ms: base.ms,
            segments: 0,
            segment: 0,
            ended_by: None,
            stepped_over: Vec::new(),
            earlier_ms: None,
        };
        for number in number.. {
            let path = log_path(number);
            progress(&path);
            let segment = match self.segment_or_end(number).await {
                // The state before it is sound, and said to be earlier.
                Err(Error::Damaged { file, reason }) if restored.segments > 0 => {
                    restored.ended_by = Some((file, reason));
                    break;
                }
                segment => segment?,
            };
            let Some(segment) = segment else { break };
            if segment.head.ms > at_ms || (segment.head.begins && restored.segments > 0) {
                restored.next_ms = Some(segment.head.ms);
                restored.gap = segment.head.begins && !segment.follows(replay.version());
                break;
            }
            for record in &segment.records {
                replay.apply(record).map_err(|error| damage(&path, error))?;
            }
            restored.ms = segment.head.ms;
            restored.segments += 1;
            restored.segment = number;
        }
        if restored.segments == 0 {
            return Err(Error::damaged(&log_path(number), "it is missing, and a base needs it"));
        }
        copy.finish(replay.finish()?)?;
        Ok(Some(restored))
    }

    /// `None` behind the last segment.
    async fn segment_or_end(&self, number: u64) -> Result<Option<Segment>> {
        match self.segment(number).await {
            Err(error) if error.is_missing() => {
                match self.numbers(LOG).await?.last().is_some_and(|last| *last > number) {
                    true => Err(Error::damaged(&log_path(number), "it is missing")),
                    false => Ok(None),
                }
            }
            segment => segment.map(Some),
        }
    }

    async fn write_base(
        &self,
        base: &Base,
        number: u64,
        folder: &Path,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<()> {
        for name in &base.folders {
            let folder = place_in(folder, name)?;
            fs::create_dir(&folder).map_err(|cause| failed(&folder, cause))?;
        }
        for (path, digits) in &base.files {
            let bytes = bytes_of(digits).ok_or_else(|| Error::damaged(BASES, format!("the bytes of {path}")))?;
            write(&place_in(folder, path)?, &bytes)?;
        }
        for table in &base.tables {
            let path = table_path(&table.name);
            progress(&path);
            let bytes = match self.opened(&path).await {
                Err(error) if error.is_missing() => {
                    return Err(Error::damaged(&path, format!("it is missing, and the base {number} needs it")));
                }
                bytes => bytes?,
            };
            write(&place_in(folder, &table.path)?, &bytes)?;
        }
        let folders = base.folders.iter().map(|name| place_in(folder, name)).chain([Ok(folder.to_owned())]);
        folders.into_iter().try_for_each(|folder| {
            let folder = folder?;
            disk::folder::sync_folder(&folder).map_err(|cause| failed(&folder, cause))
        })
    }
}

/// The place of a path in a folder. The place of a ship may not be encrypted, and somebody else's.
fn place_in(folder: &Path, path: &str) -> Result<PathBuf> {
    match Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(folder.join(path)),
        false => Err(Error::damaged(BASES, format!("{path:?} is not a path in a store"))),
    }
}

/// Writes and syncs a new file.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create_new(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|cause| failed(path, cause))
}

/// The store's error about what was read from a file of the place.
fn damage(file: &str, error: kv_api::Error) -> Error {
    match error.code() {
        error::FILE_CORRUPT => Error::damaged(file, error.to_string()),
        _ => error.into(),
    }
}

fn failed(path: &Path, cause: io::Error) -> Error {
    Error::Io { file: path.display().to_string(), cause }
}
