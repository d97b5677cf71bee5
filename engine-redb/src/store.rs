//! The store: one redb table. A snapshot is a read transaction, a batch a write transaction.
//!
//! redb writes changed pages elsewhere and then turns a root pointer, with a checksum over what the
//! root reaches; a commit of durability `Immediate` syncs the file before it returns. So `apply`
//! leaves nothing for `sync` to do, and costs one sync of the file: the same as applying first and
//! syncing after, without a second, empty commit.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use disk::DiskStore;
use disk::folder::sync_folder;
use disk::panics::{Panicked, caught, silently};
use kv_api::{Direction, Durability, Error, KeyValue, RangeBatch, Result, error};
use occ::store::{ApplyError, Batch, Most, Store, View};
use redb::{Database, Range, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction};

use crate::error::{failed, kv_error};
use crate::{batch, row};

/// A file of up to so many bytes is walked whole when it is opened: a second or so from memory, a few
/// from a disk.
const WALK_UP_TO: u64 = 1 << 30;

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

/// One redb table as a store.
#[derive(Debug)]
pub struct RedbStore {
    database: Database,
    durability: Durability,
}

impl DiskStore for RedbStore {
    const ENGINE: &'static str = "redb";
    const FORMAT: u32 = 4;
    /// 2 was without a log, 3 with one whose files had no head.
    const FORMER: &'static [u32] = &[2, 3];
    /// redb keeps commits that are not synced in memory, until the database is closed.
    const DURABILITIES: &'static [Durability] = &[Durability::Disk, Durability::Process];

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        let file = folder.join("data.redb");
        let tried = format!("cannot open {}", file.display());
        let cache_bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        // A panic is told by the error, and so is one of what is dropped half open.
        let database = match silently("", || open_and_check(&file, cache_bytes)) {
            Ok(database) => database.map_err(|failure| kv_error(failure, &tried))?,
            Err(Panicked) => {
                return Err(Error::new(error::FILE_CORRUPT)
                    .with_context(format!("{tried}: the data is damaged; restore the folder from a backup")));
            }
        };
        let store = RedbStore { database, durability };
        // Views need the table to be there.
        let write = store.begin_write()?;
        write.open_table(ROWS).map_err(failed)?;
        write.commit().map_err(failed)?;
        Ok(store)
    }
}

/// Opens the file, and walks it unless it is large: redb compares checksums only then. After a kill it
/// has done so by itself. What it cannot mend is an error; what it mends by going back to the commit
/// before, the side file tells.
fn open_and_check(file: &Path, cache_bytes: usize) -> Result<Database, redb::Error> {
    if !file.try_exists()? {
        // Whole or not at all: redb refuses what a loss of power leaves of a file that was being made.
        let new = file.with_extension("redb.new");
        // Empties what an earlier try has left.
        File::create(&new)?;
        drop(Database::builder().create(&new)?);
        File::open(&new)?.sync_all()?;
        fs::rename(&new, file)?;
        file.parent().map_or(Ok(()), sync_folder)?;
    }
    let walked = Arc::new(AtomicBool::new(false));
    let repairing = walked.clone();
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes).set_repair_callback(move |_| repairing.store(true, Ordering::Relaxed));
    let mut database = builder.create(file)?;
    if !walked.load(Ordering::Relaxed) && file.metadata()?.len() <= WALK_UP_TO {
        database.check_integrity()?;
    }
    Ok(database)
}

impl RedbStore {
    fn begin_write(&self) -> Result<WriteTransaction> {
        let mut write = self.database.begin_write().map_err(failed)?;
        let durability = match self.durability {
            Durability::Disk => redb::Durability::Immediate,
            _ => redb::Durability::None,
        };
        write.set_durability(durability).map_err(failed)?;
        Ok(write)
    }
}

impl Store for RedbStore {
    type View = RedbView;

    fn view(&self) -> Result<RedbView> {
        let read = self.database.begin_read().map_err(failed)?;
        // The table keeps the transaction's snapshot alive.
        Ok(RedbView(Arc::new(read.open_table(ROWS).map_err(failed)?)))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let write = self.begin_write().map_err(ApplyError::NothingApplied)?;
        // Until the commit turns the root, the pages written belong to nobody.
        let mut rows = write.open_table(ROWS).map_err(failed).map_err(ApplyError::NothingApplied)?;
        batch::write(&mut rows, batch).map_err(ApplyError::NothingApplied)?;
        drop(rows);
        write.commit().map_err(|failure| ApplyError::Unknown(failed(failure)))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn close(&self) -> Result<()> {
        if self.durability == Durability::Disk {
            return Ok(());
        }
        // A synced commit takes every commit before it to the disk.
        let mut last = self.database.begin_write().map_err(failed)?;
        last.set_durability(redb::Durability::Immediate).map_err(failed)?;
        last.commit().map_err(failed)
    }
}

/// A snapshot of a [`RedbStore`].
#[derive(Clone)]
pub struct RedbView(Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>);

impl std::fmt::Debug for RedbView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbView").finish_non_exhaustive()
    }
}

impl View for RedbView {
    type Range<'a> = RedbRange;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        caught("redb", || {
            let row = self.0.get(key).map_err(failed)?;
            row.map(|row| row::value(key, row.value()).map(Bytes::copy_from_slice)).transpose()
        })
    }

    fn range(&self, begin: &[u8], end: &[u8], direction: Direction) -> RedbRange {
        RedbRange::new(self.rows(begin, end), direction)
    }

    fn read(&self, begin: &[u8], end: &[u8], direction: Direction, most: Most) -> Result<RangeBatch> {
        let mut rows = self.rows(begin, end)?;
        let mut batch = RangeBatch::default();
        let mut left = most;
        loop {
            let piece = Most { rows: left.rows.min(PIECE.rows), bytes: left.bytes.min(PIECE.bytes) };
            batch.more = copy(&mut rows, direction, piece, |key, value| {
                if batch.rows.is_empty() {
                    batch.rows.reserve(left.rows.min(FEW));
                }
                left.rows -= 1;
                left.bytes = left.bytes.saturating_sub(key.len() + value.len());
                batch.rows.push(KeyValue { key, value });
            })?;
            if !batch.more || left.rows == 0 || left.bytes == 0 {
                return Ok(batch);
            }
        }
    }
}

type Rows = Range<'static, &'static [u8], &'static [u8]>;

impl RedbView {
    fn rows(&self, begin: &[u8], end: &[u8]) -> Result<Rows> {
        caught("redb", || self.0.range(begin..end).map_err(failed))
    }
}

/// The most that shares a piece of memory.
const PIECE: Most = Most { rows: 64, bytes: 64 * 1024 };

/// Room is made for so many rows at first: those of a document, as a rule.
const FEW: usize = 16;

/// Copies rows out of redb's pages into one piece of memory that they share, until `most` is reached, and says
/// whether it was. What comes before an error is given too.
fn copy(rows: &mut Rows, direction: Direction, most: Most, mut give: impl FnMut(Bytes, Bytes)) -> Result<bool> {
    let room = most.rows.min(FEW);
    let mut bytes = Vec::with_capacity(room * 128);
    let mut ends: Vec<(usize, usize)> = Vec::with_capacity(room);
    let hasher = crc32fast::Hasher::new();
    let copied = caught("redb", || {
        while ends.len() < most.rows && bytes.len() < most.bytes {
            let row = match direction {
                Direction::Forward => rows.next(),
                Direction::Reverse => rows.next_back(),
            };
            let Some(row) = row else { return Ok(false) };
            let (key, row) = row.map_err(failed)?;
            let key_end = bytes.len() + key.value().len();
            row::append(&mut bytes, key.value(), row.value(), hasher.clone())?;
            ends.push((key_end, bytes.len()));
        }
        Ok(true)
    });
    let bytes = Bytes::from(bytes);
    let mut from = 0;
    for (key_end, end) in ends {
        give(bytes.slice(from..key_end), bytes.slice(key_end..end));
        from = end;
    }
    copied
}

/// Rows of a [`RedbView`]. They are copied some at a time: first one, since many readers want no more, then
/// four times as many each time.
pub struct RedbRange {
    /// `None` after the last row and after an error.
    rows: Option<Rows>,
    direction: Direction,
    ready: std::vec::IntoIter<Result<(Bytes, Bytes)>>,
    /// How many rows are copied next.
    next: usize,
}

impl RedbRange {
    fn new(rows: Result<Rows>, direction: Direction) -> Self {
        let (rows, failure) = match rows {
            Ok(rows) => (Some(rows), None),
            Err(error) => (None, Some(Err(error))),
        };
        RedbRange { rows, direction, ready: Vec::from_iter(failure).into_iter(), next: 1 }
    }

    /// Copies the next rows.
    fn copy(&mut self) -> Vec<Result<(Bytes, Bytes)>> {
        let Some(rows) = &mut self.rows else { return Vec::new() };
        let mut ready = Vec::with_capacity(self.next + 1);
        let most = Most { rows: self.next, ..PIECE };
        let copied = copy(rows, self.direction, most, |key, value| ready.push(Ok((key, value))));
        self.next = (self.next * 4).min(PIECE.rows);
        if !matches!(copied, Ok(true)) {
            self.rows = None;
        }
        ready.extend(copied.err().map(Err));
        ready
    }
}

impl std::fmt::Debug for RedbRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedbRange").field("direction", &self.direction).finish_non_exhaustive()
    }
}

impl Iterator for RedbRange {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.as_slice().is_empty() {
            self.ready = self.copy().into_iter();
        }
        self.ready.next()
    }
}
