//! The log on the disk: what was committed and is not in the store below yet.
//!
//! Two files take turns: while the store below takes what is in one, commits go to the other. A file that
//! is used again is written over from its beginning, so that after the first round a sync has no blocks to
//! place and no length to note.
//!
//! ```text
//!   log.0   ├─ record ─┼─ record ─┼─ record ─┼ … what is left of an earlier round, or zeros
//!   log.1   ├─ record ─┼ …
//!
//!   record  checksum  round  salt  previous  version  length │ a run (`run`)
//!           ─────────────── 8 bytes big-endian each ────────
//! ```
//!
//! Each turn is a round, with a number that grows and a salt nobody can foresee. A record counts when its
//! checksum does, its round and salt are those of the file's first record, and it goes on from the one before:
//! so what is left of an earlier round ends the log, and so does a record that was being written.
//!
//! Invariant: a record is written when those before it are synced. So a record that counts behind one that
//! does not means damage, and what came after it would be lost: the log is refused then, as it is, unless all of
//! that is in the store below.
//!
//! Source: FoundationDB's `fdbserver/DiskQueue.actor.cpp`, which has two files too; SQLite's write-ahead log for
//! the salt.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kv_api::{Error, Result, error};
use twox_hash::XxHash64;

use super::run::Run;
use crate::folder::io_error;

/// Bytes before a record's run.
pub(crate) const HEAD: usize = 48;

/// Zeros are written so far ahead, and synced with the record that needs the room.
const AHEAD: usize = 1 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Log {
    files: [LogFile; 2],
    /// The file that is written.
    turn: usize,
    round: u64,
    salt: u64,
    position: u64,
    /// The version of the newest record.
    version: i64,
    synced: bool,
}

#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
    /// As far as it has bytes on the disk.
    length: u64,
    unsynced: bool,
}

#[derive(Debug)]
struct Record {
    previous: i64,
    version: i64,
    run: Bytes,
}

fn paths(folder: &Path) -> [PathBuf; 2] {
    [folder.join("log.0"), folder.join("log.1")]
}

/// The runs in the logs of `folder` that go on from `version`, and the version that they lead to. Changes
/// nothing. 1522 for damage.
pub(crate) fn recover(folder: &Path, version: i64) -> Result<(Vec<Run>, i64)> {
    let mut logs = Vec::new();
    for path in paths(folder) {
        let cannot = |cause| io_error(format!("cannot read {}", path.display()), &cause);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => Bytes::from(bytes),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(cannot(cause)),
        };
        let (round, records) = read(&bytes, version, &path)?;
        logs.push((round, path, records));
    }
    logs.sort_by_key(|(round, ..)| *round);
    let (mut version, mut runs) = (version, Vec::new());
    for (_, path, records) in logs {
        for record in records {
            if record.version <= version {
                continue;
            }
            if record.previous != version {
                return Err(damaged(
                    &path,
                    &format!("goes on from version {}, the data end at {version}", record.previous),
                ));
            }
            version = record.version;
            runs.push(Run::decode(record.run).map_err(|_| damaged(&path, "holds a record that cannot be read"))?);
        }
    }
    Ok((runs, version))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::new(error::FILE_CORRUPT)
        .with_context(format!("the log {} is damaged: it {what}; restore the folder from a backup", path.display()))
}

/// The records that count, and their round. Behind their end none may count that is newer than `version`: an
/// earlier round may be there that is being written over, and is in the store below.
fn read(bytes: &Bytes, version: i64, path: &Path) -> Result<(u64, Vec<Record>)> {
    let mut records: Vec<Record> = Vec::new();
    let mut at = 0;
    let mark = bytes.get(8..24).unwrap_or_default();
    while let Some((record, end)) = record_at(bytes, at, mark) {
        if records.last().is_some_and(|last| last.version != record.previous) {
            break;
        }
        records.push(record);
        at = end;
    }
    let round = mark.first_chunk::<8>().map_or(0, |round| u64::from_be_bytes(*round));
    let rest = bytes.get(at + 1..).unwrap_or_default();
    let finder = memchr::memmem::Finder::new(mark);
    for place in finder.find_iter(rest).filter_map(|place| (at + 1 + place).checked_sub(8)) {
        if record_at(bytes, place, mark).is_some_and(|(record, _)| record.version > version) {
            return Err(damaged(path, &format!("cannot be read at {at}, and goes on at {place}")));
        }
    }
    Ok((round, records))
}

/// The record that begins at `at`, if it counts, and where it ends.
fn record_at(bytes: &Bytes, at: usize, mark: &[u8]) -> Option<(Record, usize)> {
    let head = bytes.get(at..at.checked_add(HEAD)?)?;
    let number = |place: usize| head[place * 8..].first_chunk::<8>().map_or(0, |eight| u64::from_be_bytes(*eight));
    let end = usize::try_from(number(5)).ok().and_then(|length| (at + HEAD).checked_add(length))?;
    if head[8..24] != *mark || end > bytes.len() || number(0) != checksum(&bytes[at + 8..end]) {
        return None;
    }
    let (previous, version) = (i64::try_from(number(3)).ok()?, i64::try_from(number(4)).ok()?);
    (previous < version).then(|| (Record { previous, version, run: bytes.slice(at + HEAD..end) }, end))
}

fn checksum(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

impl Log {
    /// An empty log in `folder`, that goes on from `version`. What was in it must be in the store below, and
    /// synced. `synced`: a sync reaches the disk.
    pub(crate) fn begin(folder: &Path, version: i64, synced: bool) -> Result<Self> {
        let open = |path: PathBuf| -> Result<LogFile> {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
            let file = file.map_err(|cause| io_error(format!("cannot open {}", path.display()), &cause))?;
            Ok(LogFile { file, path, length: 0, unsynced: false })
        };
        let [one, other] = paths(folder);
        let files = [open(one)?, open(other)?];
        Ok(Log { files, turn: 0, round: 1, salt: salt(), position: 0, version, synced })
    }

    /// Appends a record of a run that has [`HEAD`] bytes before it. After an error the log is as it was.
    pub(crate) fn append(&mut self, version: i64, record: &mut [u8]) -> Result<()> {
        let length = (record.len() - HEAD) as u64;
        let numbers = [self.round, self.salt, self.version as u64, version as u64, length];
        for (place, number) in numbers.into_iter().enumerate() {
            record[8 + place * 8..16 + place * 8].copy_from_slice(&number.to_be_bytes());
        }
        let checksum = checksum(&record[8..]);
        record[..8].copy_from_slice(&checksum.to_be_bytes());
        let LogFile { file, path, length, unsynced } = &mut self.files[self.turn];
        let written = file.seek(SeekFrom::Start(self.position)).and_then(|_| file.write_all(record));
        written.map_err(|cause| io_error(format!("cannot write {}", path.display()), &cause))?;
        *unsynced = true;
        self.position += record.len() as u64;
        self.version = version;
        if self.position > *length {
            // Without the room ahead a sync takes longer, and that is all.
            *length = self.position;
            if self.synced && file.write_all(&vec![0; AHEAD]).is_ok() {
                *length += AHEAD as u64;
            }
        }
        Ok(())
    }

    /// Makes what was appended durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        for LogFile { file, path, unsynced, .. } in &mut self.files {
            if self.synced && *unsynced {
                file.sync_data().map_err(|cause| io_error(format!("cannot sync {}", path.display()), &cause))?;
            }
            *unsynced = false;
        }
        Ok(())
    }

    /// Goes on in the other file, whose records are in the store below, and synced.
    pub(crate) fn take_turns(&mut self) {
        self.turn = 1 - self.turn;
        self.round += 1;
        self.salt = salt();
        self.position = 0;
    }

    /// Lets everything go: it is in the store below, and synced.
    pub(crate) fn clear(&mut self) -> Result<()> {
        for LogFile { file, path, length, .. } in &mut self.files {
            file.set_len(0).map_err(|cause| io_error(format!("cannot empty {}", path.display()), &cause))?;
            *length = 0;
        }
        self.take_turns();
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "not to be foreseen by who writes values; no outcome depends on it")]
fn salt() -> u64 {
    RandomState::new().hash_one(0)
}
