//! Reads a redb database: one file with one table.
//!
//! redb writes to a file that it opens, and repairs it after a kill. So it gets a wrapper of the file that only reads
//! it and keeps writes in memory ([`Untouched`]).
//!
//! The value of a row is followed by a checksum of key and value, since redb only checks its own checksums when it
//! walks the whole file. This module walks it on opening, so damage outside of rows is found too:
//!
//! ```text
//!   ├── value ──┬─ CRC-32 of key and value, 4 bytes big-endian ─┤
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use crc32fast::Hasher;
use disk::folder::io_error;
use disk::panics::{Panicked, caught, silently};
use kv_api::{Direction, Result};
use occ::store::View;
use parking_lot::Mutex;
use redb::{AccessGuard, Database, ReadOnlyTable, ReadableDatabase, StorageBackend, TableDefinition, TableError};

use crate::error::{corrupt, redb_error};

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

/// Memory for pages. The rows are read once, in order.
const CACHE_BYTES: usize = 16 << 20;

/// The rows of redb's file, without those in the log.
#[derive(Clone)]
pub(crate) struct RedbView(Option<Arc<Opened>>);

/// The fields are dropped in order: the table before its database.
struct Opened {
    rows: ReadOnlyTable<&'static [u8], &'static [u8]>,
    _database: Database,
}

type Row<'a> = (AccessGuard<'a, &'static [u8]>, AccessGuard<'a, &'static [u8]>);

impl RedbView {
    /// Opens the file and walks it completely. There are no rows if the file does not exist: the process that created
    /// the folder ended before it created the file.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("data.redb");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(RedbView(None)),
            Err(cause) => return Err(io_error(format!("cannot open {}", path.display()), &cause)),
        };
        // A panic is reported as an error.
        match silently("", || open(file)) {
            Ok(opened) => opened.map(|opened| RedbView(opened.map(Arc::new))).map_err(redb_error),
            Err(Panicked) => Err(corrupt(&format!("cannot open {}: the data is damaged", path.display()))),
        }
    }
}

/// `None` if the table was not created yet.
fn open(file: File) -> Result<Option<Opened>, redb::Error> {
    let backend = Untouched::new(file)?;
    let mut database = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?;
    database.check_integrity()?;
    match database.begin_read()?.open_table(ROWS) {
        Ok(rows) => Ok(Some(Opened { rows, _database: database })),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// The value of a row. 1522 if it is damaged.
fn value(key: &[u8], row: &[u8]) -> Result<Bytes> {
    let checked = row.split_last_chunk::<4>().filter(|(value, check)| {
        let mut hasher = Hasher::new();
        hasher.update(key);
        hasher.update(value);
        hasher.finalize().to_be_bytes() == **check
    });
    let (value, _) = checked.ok_or_else(|| corrupt("a row in data.redb is damaged"))?;
    Ok(Bytes::copy_from_slice(value))
}

impl View for RedbView {
    type Range<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(opened) = &self.0 else { return Ok(None) };
        caught("redb", || {
            let row = opened.rows.get(key).map_err(redb_error)?;
            row.map(|row| value(key, row.value())).transpose()
        })
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a> {
        let Some(opened) = &self.0 else { return Box::new(std::iter::empty()) };
        let mut rows = match caught("redb", || opened.rows.range(begin..end).map_err(redb_error)) {
            Ok(rows) => rows,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let read = |(key, row): Row<'_>| Ok((Bytes::copy_from_slice(key.value()), value(key.value(), row.value())?));
        Box::new(std::iter::from_fn(move || {
            let next = caught("redb", || {
                let row = match direction {
                    Direction::Forward => rows.next(),
                    Direction::Reverse => rows.next_back(),
                };
                row.map(|row| row.map_err(redb_error).and_then(read)).transpose()
            });
            next.transpose()
        }))
    }
}

/// Size of the blocks in which writes are kept.
const BLOCK: usize = 4096;

/// A file that is never written: writes stay in memory.
struct Untouched(Mutex<Inner>);

struct Inner {
    file: File,
    /// Number of bytes at the beginning that come from the file. The rest was cut off, or never existed.
    file_length: u64,
    length: u64,
    written: HashMap<u64, Box<[u8; BLOCK]>>,
}

impl std::fmt::Debug for Untouched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Untouched").finish_non_exhaustive()
    }
}

impl Untouched {
    fn new(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(Untouched(Mutex::new(Inner { file, file_length: length, length, written: HashMap::new() })))
    }
}

impl Inner {
    /// Reads from the file. Returns zeros after its end.
    fn read_file(&mut self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(self.file_length.saturating_sub(at)).unwrap_or(usize::MAX).min(out.len());
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(&mut out[..there])?;
        out[there..].fill(0);
        Ok(())
    }

    /// The parts of a range of bytes: the block, the position in it, and the range of bytes.
    fn parts(at: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let place = at + done as u64;
            let within = (place % BLOCK as u64) as usize;
            let count = (BLOCK - within).min(length - done);
            let part = (place / BLOCK as u64, within, done..done + count);
            done += count;
            (count > 0).then_some(part)
        })
    }
}

impl StorageBackend for Untouched {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut inner = self.0.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > inner.length) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        inner.read_file(offset, out)?;
        for (block, within, part) in Inner::parts(offset, out.len()) {
            if let Some(bytes) = inner.written.get(&block) {
                let count = part.len();
                out[part].copy_from_slice(&bytes[within..within + count]);
            }
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut inner = self.0.lock();
        if length < inner.length {
            inner.file_length = inner.file_length.min(length);
            inner.written.retain(|block, _| block * (BLOCK as u64) < length);
            if let Some(last) = inner.written.get_mut(&(length / BLOCK as u64)) {
                last[(length % BLOCK as u64) as usize..].fill(0);
            }
        }
        inner.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock();
        for (block, within, part) in Inner::parts(offset, data.len()) {
            let mut bytes = match inner.written.remove(&block) {
                Some(bytes) => bytes,
                None => {
                    let mut bytes = Box::new([0; BLOCK]);
                    inner.read_file(block * BLOCK as u64, bytes.as_mut())?;
                    bytes
                }
            };
            bytes[within..within + part.len()].copy_from_slice(&data[part]);
            inner.written.insert(block, bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Against bytes in memory.
    #[test]
    fn what_is_written_is_read_back_and_the_file_stays_as_it_was() {
        for seed in 0..40 {
            let random = occ::Random::new(seed);
            let below = |bound: u64| random.next() % bound;
            let mut file = tempfile::tempfile().unwrap();
            let before: Vec<u8> = (0..below(30_000)).map(|_| below(256) as u8).collect();
            file.write_all(&before).unwrap();
            let backend = Untouched::new(file.try_clone().unwrap()).unwrap();
            let mut model = before.clone();
            for step in 0..200 {
                let at = below(model.len() as u64 + 1);
                match below(8) {
                    0 => {
                        let length = below(40_000);
                        backend.set_len(length).unwrap();
                        model.resize(length as usize, 0);
                    }
                    1..=3 => {
                        let bytes = vec![step as u8; below(model.len() as u64 - at + 1) as usize];
                        backend.write(at, &bytes).unwrap();
                        model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                    }
                    _ => {
                        let mut out = vec![7; below(model.len() as u64 - at + 1) as usize];
                        backend.read(at, &mut out).unwrap();
                        assert_eq!(out, model[at as usize..][..out.len()], "seed {seed}, step {step}");
                        assert!(backend.read(at, &mut vec![0; model.len() - at as usize + 1]).is_err());
                    }
                }
                assert_eq!(backend.len().unwrap(), model.len() as u64);
            }
            file.seek(SeekFrom::Start(0)).unwrap();
            let mut after = Vec::new();
            file.read_to_end(&mut after).unwrap();
            assert_eq!(after, before, "seed {seed}");
        }
    }
}
