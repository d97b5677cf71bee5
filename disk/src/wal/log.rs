//! The log on the disk: commits that are not flushed to the store below yet.
//!
//! Two files take turns. While the runs of one are flushed, commits go to the other. A file is overwritten from its
//! beginning, so that after the first round a sync allocates no blocks and updates no length. When no commit comes for
//! a while, the files shrink.
//!
//! ```text
//!   0              8              16             24
//!   ├──────────────┼──────────────┼──────────────┼────────┬────────┬────────┬─
//!   │ "occ log3"   │ salt         │ checksum     │ record │ record │ record │ the rest of an earlier
//!   ├──────────────┴──────────────┴──────────────┼────────┴────────┴────────┴─ round, or zeros
//!     the head, the same in both files
//!
//!   record
//!   0          8          16         24         32         40         48         56
//!   ├──────────┼──────────┼──────────┼──────────┼──────────┼──────────┼──────────┼──────────────────
//!   │ checksum │ round    │ salt     │ previous │ version  │ length   │ the run's│ a run (`run`), or
//!   ├──────────┴──────────┴──────────┴──────────┴──────────┴──────────┴──length──┴─ packed (`pack`)
//! ```
//!
//! Numbers are big-endian. A run is packed if its length differs from the record's. The salt is chosen at random when
//! the log is begun, so that no written value can look like a record. Each turn is a round, and has a number. A record
//! is valid if its checksum is right, its salt is the log's, and its previous version is that of the record before it.
//! So the rest of an earlier round ends the log, and so does a record that was not written completely.
//!
//! Invariants:
//!
//! * The heads and the files' names are synced before the first record is written. If one head is damaged, the
//!   other has the salt.
//! * A record is written after those before it are synced. So a record behind the end of the log, with the log's salt
//!   and newer than the data below, means damage: the records between were lost. Such a log is refused and left as it
//!   is.
//! * The records of a file are flushed and synced below before the file is emptied or overwritten. After a
//!   crash all of the log is applied again, even if the store has part of it: if a sync of the store failed
//!   before the crash, Linux shows pages that are not on the disk.
//! * A failed sync is not retried: see [`WalStore`](super::WalStore).
//!
//! Sources: FoundationDB's `fdbserver/DiskQueue.actor.cpp`, which has two files too; SQLite's write-ahead log
//! for the salt; Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use kv_api::{Error, Result, error};
use twox_hash::XxHash64;

use super::pack::unpacked;
use super::run::Run;
use crate::folder::{io_error, sync_folder};

/// Bytes before a record's run.
pub(crate) const HEAD: usize = 56;

/// First bytes of a file.
const MAGIC: [u8; 8] = *b"occ log3";

/// Name of the form of the records.
pub const FORM: &str = match std::str::from_utf8(&MAGIC) {
    Ok(form) => form,
    Err(_) => "",
};

/// Bytes before the first record.
pub(super) const FILE_HEAD: usize = 24;

/// Zeros written ahead of the records, and synced with the record that needs the room.
const AHEAD: usize = 1 << 20;

/// Records of this length or more get no zeros behind them: the next record may be as long and would overwrite them.
const LARGE: usize = AHEAD / 8;

/// Space behind the records that is not worth a [`Log::shrink`].
const KEPT: u64 = 2 * AHEAD as u64;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Log {
    files: [LogFile; 2],
    /// Index of the file that is being written.
    turn: usize,
    round: u64,
    salt: u64,
    position: u64,
    /// End of the records of the other file.
    other_end: u64,
    /// Version of the newest record.
    version: i64,
    synced: bool,
    /// Error of the first failed sync.
    failed: Option<Error>,
}

#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
    /// Bytes of the file, records and zeros.
    length: u64,
    unsynced: bool,
}

#[derive(Debug)]
struct Record {
    previous: i64,
    version: i64,
    /// The run, or its packed form.
    run: Bytes,
    run_length: usize,
}

impl Record {
    /// The run; 1522 if it is damaged.
    fn run(self) -> Result<Run> {
        let is_packed = self.run_length != self.run.len();
        let run = if is_packed { unpacked(&self.run, self.run_length).unwrap_or_default() } else { self.run };
        Run::decode(run)
    }
}

/// A record as the log has it, for who [follows](super::follow) the log.
#[derive(Clone, Debug)]
pub struct LogRecord {
    previous: i64,
    version: i64,
    bytes: Bytes,
}

impl LogRecord {
    pub(super) fn new(previous: i64, version: i64, bytes: Bytes) -> Self {
        LogRecord { previous, version, bytes }
    }

    /// Version of the record before it.
    pub fn previous(&self) -> i64 {
        self.previous
    }

    /// Version of its batch.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Its bytes, in the [form](FORM) of this build.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its run; 1522 if it is damaged.
    pub(super) fn run(&self) -> Result<Run> {
        let damaged = || Error::new(error::FILE_CORRUPT).with_context("a record of the log is damaged");
        let salt = self.bytes.get(16..24).ok_or_else(damaged)?;
        record_at(&self.bytes, 0, salt).ok_or_else(damaged)?.0.run()
    }
}

/// The valid records from `at` to the end, of any salts. `None` if anything else is there.
pub(super) fn split(bytes: &Bytes, mut at: usize) -> Option<Vec<LogRecord>> {
    let mut records = Vec::new();
    while at < bytes.len() {
        let salt = bytes.get(at + 16..at + 24)?;
        let (record, end) = record_at(bytes, at, salt)?;
        records.push(LogRecord::new(record.previous, record.version, bytes.slice(at..end)));
        at = end;
    }
    Some(records)
}

fn paths(folder: &Path) -> [PathBuf; 2] {
    [folder.join("log.0"), folder.join("log.1")]
}

/// Reads the log of `folder`, over a store at `version`. Returns the log's newest version and the runs that lead to it,
/// also from before `version` if the log has them. No runs if the store is newer than its log. Changes nothing. 1522 if
/// the log is damaged.
pub(crate) fn recover(folder: &Path, version: i64) -> Result<(Vec<Run>, i64)> {
    let mut files = Vec::new();
    for path in paths(folder) {
        match std::fs::read(&path) {
            Ok(bytes) => files.push((Bytes::from(bytes), path)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(io_error(format!("cannot read {}", path.display()), &cause)),
        }
    }
    let Some(common) = files.iter().find_map(|(bytes, _)| salt_of(bytes)) else {
        // The heads are durable before the first record.
        return match files.iter().find(|(bytes, _)| bytes.len() > FILE_HEAD) {
            Some((_, path)) => Err(damaged(path, "has records, but neither of its files has a head")),
            None => Ok((Vec::new(), version)),
        };
    };
    let mut logs = Vec::new();
    for (bytes, path) in &files {
        let salt = salt_of(bytes).unwrap_or_else(|| common.clone());
        logs.push((read(bytes, &salt, version, path)?, path));
    }
    logs.sort_by_key(|((round, _), _)| *round);
    let mut runs = Vec::new();
    let mut end = None;
    for ((_, records), path) in logs {
        for record in records {
            if end != Some(record.previous) {
                // The store below must have everything before this gap.
                if record.previous > version {
                    let reason = format!("continues from version {}, but the data end at {version}", record.previous);
                    return Err(damaged(path, &reason));
                }
                runs.clear();
            }
            end = Some(record.version);
            runs.push(record.run().map_err(|_| damaged(path, "holds a record that cannot be read"))?);
        }
    }
    match end {
        Some(end) if end >= version => Ok((runs, end)),
        _ => Ok((Vec::new(), version)),
    }
}

/// The salt in a file's head.
fn salt_of(bytes: &Bytes) -> Option<Bytes> {
    let head = bytes.get(..FILE_HEAD)?;
    let whole = head[..8] == MAGIC && head[16..] == checksum(&head[..16]).to_be_bytes();
    whole.then(|| bytes.slice(8..16))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::new(error::FILE_CORRUPT)
        .with_context(format!("the log {} is damaged: it {what}; restore the folder from a backup", path.display()))
}

/// The valid records, and the round of the first. 1522 if a record newer than `version` follows after their end. Older
/// ones may: they are of an earlier round, which was flushed and is being overwritten.
fn read(bytes: &Bytes, salt: &[u8], version: i64, path: &Path) -> Result<(u64, Vec<Record>)> {
    let mut records: Vec<Record> = Vec::new();
    let mut at = FILE_HEAD;
    while let Some((record, end)) = record_at(bytes, at, salt) {
        if records.last().is_some_and(|last| last.version != record.previous) {
            break;
        }
        records.push(record);
        at = end;
    }
    let round = bytes.get(FILE_HEAD + 8..).and_then(<[u8]>::first_chunk).map_or(0, |round| u64::from_be_bytes(*round));
    let rest = bytes.get(at + 1..).unwrap_or_default();
    let finder = memchr::memmem::Finder::new(salt);
    for place in finder.find_iter(rest).filter_map(|place| (at + 1 + place).checked_sub(16)) {
        if record_at(bytes, place, salt).is_some_and(|(record, _)| record.version > version) {
            return Err(damaged(path, &format!("cannot be read at {at}, and continues at {place}")));
        }
    }
    Ok((round, records))
}

/// The record at `at` and its end, if the record is valid.
fn record_at(bytes: &Bytes, at: usize, salt: &[u8]) -> Option<(Record, usize)> {
    let head = bytes.get(at..at.checked_add(HEAD)?)?;
    let number = |place: usize| head[place * 8..].first_chunk::<8>().map_or(0, |eight| u64::from_be_bytes(*eight));
    let end = usize::try_from(number(5)).ok().and_then(|length| (at + HEAD).checked_add(length))?;
    if head[16..24] != *salt || end > bytes.len() || number(0) != checksum(&bytes[at + 8..end]) {
        return None;
    }
    let (previous, version) = (i64::try_from(number(3)).ok()?, i64::try_from(number(4)).ok()?);
    let run_length = usize::try_from(number(6)).ok()?;
    (previous < version).then(|| (Record { previous, version, run: bytes.slice(at + HEAD..end), run_length }, end))
}

fn checksum(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

impl Log {
    /// Begins an empty log that continues from `version`. The former log's records must be flushed and synced below.
    /// `synced`: syncs reach the disk.
    ///
    /// Its files are new: after a failed sync of the former files, or of their names, no later sync makes them durable.
    pub(crate) fn begin(folder: &Path, version: i64, synced: bool) -> Result<Self> {
        let salt = salt();
        let mut head = [MAGIC, salt.to_be_bytes()].concat();
        head.extend_from_slice(&checksum(&head).to_be_bytes());
        let open = |path: PathBuf| -> Result<LogFile> {
            let create = || -> io::Result<File> {
                if let Err(cause) = std::fs::remove_file(&path)
                    && cause.kind() != io::ErrorKind::NotFound
                {
                    return Err(cause);
                }
                let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
                file.write_all(&head)?;
                if synced {
                    file.sync_data()?;
                }
                Ok(file)
            };
            let file =
                create().map_err(|cause| io_error(format!("cannot begin the log {}", path.display()), &cause))?;
            Ok(LogFile { file, path, length: FILE_HEAD as u64, unsynced: false })
        };
        let [one, other] = paths(folder);
        let files = [open(one)?, open(other)?];
        if synced {
            sync_folder(folder)
                .map_err(|cause| io_error(format!("cannot begin the log in {}", folder.display()), &cause))?;
        }
        let (position, other_end) = (FILE_HEAD as u64, FILE_HEAD as u64);
        Ok(Log { files, turn: 0, round: 1, salt, position, other_end, version, synced, failed: None })
    }

    /// Appends a record. After [`HEAD`] bytes it has the run, or its packed form; `run_length` is the run's length.
    /// After an error the log is unchanged.
    pub(crate) fn append(&mut self, version: i64, record: &mut [u8], run_length: usize) -> Result<()> {
        let length = (record.len() - HEAD) as u64;
        let numbers = [self.round, self.salt, self.version as u64, version as u64, length, run_length as u64];
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
            // Without the zeros ahead a sync only takes longer.
            *length = self.position;
            if self.synced && record.len() < LARGE && file.write_all(&vec![0; AHEAD]).is_ok() {
                *length += AHEAD as u64;
            }
        }
        Ok(())
    }

    /// Version of the newest record.
    pub(crate) fn version(&self) -> i64 {
        self.version
    }

    /// Makes the appended records durable. After one failure it always fails: earlier records may never have reached
    /// the disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        for LogFile { file, path, unsynced, .. } in &mut self.files {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            if self.synced && *unsynced {
                let outcome = file.sync_data();
                self.failed = outcome.err().map(|cause| io_error(format!("cannot sync {}", path.display()), &cause));
            }
            *unsynced = false;
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Continues in the other file, whose records are flushed and synced below.
    pub(crate) fn switch_files(&mut self) {
        self.other_end = self.position;
        self.turn = 1 - self.turn;
        self.round += 1;
        self.position = FILE_HEAD as u64;
    }

    /// The heads and records: of the file that is written, and with `both` of the other one. A log of them is a log of its
    /// own. Each with the name of its file.
    pub(crate) fn records(&self, both: bool) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let ends = [(self.turn, self.position), (1 - self.turn, self.other_end)];
        let files = ends.into_iter().take(if both { 2 } else { 1 });
        let read = |(index, end): (usize, u64)| {
            let path = &self.files[index].path;
            let mut bytes = Vec::with_capacity(usize::try_from(end).unwrap_or_default());
            let read = File::open(path).and_then(|file| file.take(end).read_to_end(&mut bytes));
            let read = read.and_then(|read| match read as u64 == end {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            });
            read.map_err(|cause| io_error(format!("cannot read {}", path.display()), &cause))?;
            Ok((path.file_name().unwrap_or_default().into(), bytes))
        };
        files.map(read).collect()
    }

    /// Frees the space behind the records, and that of the other file, whose records are flushed and synced below. A
    /// file that cannot be cut stays, and is overwritten later.
    pub(crate) fn shrink(&mut self) {
        for (index, LogFile { file, length, .. }) in self.files.iter_mut().enumerate() {
            let used = if index == self.turn { self.position } else { FILE_HEAD as u64 };
            if *length > used + KEPT && file.set_len(used).is_ok() {
                *length = used;
            }
        }
    }

    /// Empties both files, when everything is flushed and synced below.
    pub(crate) fn clear(&mut self) -> Result<()> {
        for LogFile { file, path, length, .. } in &mut self.files {
            file.set_len(0).map_err(|cause| io_error(format!("cannot empty {}", path.display()), &cause))?;
            *length = 0;
        }
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "writers of values must not predict it; no outcome depends on it")]
fn salt() -> u64 {
    RandomState::new().hash_one(0)
}
