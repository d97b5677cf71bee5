//! Restores a shipped store into a new folder, as it was at a time. The folder is a snapshot: whoever opens it first gives
//! its databases new incarnations.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use disk::wal::follow::Replay;
use disk::{DiskStore, NewCopy};
use kv_api::{STORED_FORMAT, error};

use super::form::{BASES, Base, LOG, Segment, log_path, table_path};
use crate::error::{Error, Result};
use crate::repository::{Repository, bytes_of};

/// A store that was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredShip {
    /// The time that its state is of, in milliseconds since 1970.
    pub ms: u64,
    /// The time of the next state in the place; `None` if there is none.
    pub next_ms: Option<u64>,
    /// The time of its tables.
    pub base_ms: u64,
    /// Number of segments that were applied to them.
    pub segments: u64,
}

impl Repository {
    /// Restores the shipped store as it was at a time, or the newest state, into a new folder. `progress` gets each file.
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
        let (number, base) = self.base_at(at_ms).await?;
        if (base.engine.as_str(), base.stored_format) != (S::ENGINE, STORED_FORMAT) {
            return Err(Error::refused(format!(
                "the store was shipped by another version (engine {}, format {}): restore it with that one",
                base.engine, base.stored_format
            )));
        }
        let copy = NewCopy::create(folder, S::ENGINE)?;
        self.write_base(&base, number, copy.path(), progress).await?;
        let mut replay = Replay::<S>::open(copy.path())?;
        if replay.version() != base.version {
            return Err(Error::damaged(BASES, "its tables are not those of its version"));
        }
        let mut restored = RestoredShip { ms: base.ms, next_ms: None, base_ms: base.ms, segments: 0 };
        for number in number.. {
            let path = log_path(number);
            progress(&path);
            let Some(segment) = self.segment_or_end(number).await? else { break };
            let Segment { head, records } = segment;
            if (head.begins && restored.segments > 0) || head.ms > at_ms {
                restored.next_ms = Some(head.ms);
                break;
            }
            for record in &records {
                replay.apply(record).map_err(|error| match error.code() {
                    error::FILE_CORRUPT => Error::damaged(&path, error.to_string()),
                    _ => error.into(),
                })?;
            }
            restored.ms = head.ms;
            restored.segments += 1;
        }
        if restored.segments == 0 {
            return Err(Error::damaged(&log_path(number), "it is missing, and a base needs it"));
        }
        copy.finish(replay.finish()?)?;
        Ok(restored)
    }

    /// The newest base that is not later.
    async fn base_at(&self, at_ms: u64) -> Result<(u64, Base)> {
        for number in self.numbers(BASES).await?.into_iter().rev() {
            let base = self.base(number).await?;
            if base.ms <= at_ms {
                return Ok((number, base));
            }
        }
        Err(Error::refused("nothing was shipped here by then, or it is no longer kept; `backup list` shows the times"))
    }

    /// `None` behind the last segment.
    async fn segment_or_end(&self, number: u64) -> Result<Option<Segment>> {
        match self.segment(number).await {
            Err(Error::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
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
                Err(Error::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
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

fn failed(path: &Path, cause: io::Error) -> Error {
    Error::Io { file: path.display().to_string(), cause }
}
