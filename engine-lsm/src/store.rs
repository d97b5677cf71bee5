//! The store: turns flushed batches into tables. The thread in [`compactor`](crate::compactor) compacts them.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use disk::folder::{io_error, sync_folder};
use disk::panics::{Panicked, caught, silently};
use disk::{CopiedTable, DiskStore};
use kv_api::{Direction, Durability, Error, Figure, Result, error};
use lsm_tree::{InternalValue, Slice, ValueType};
use occ::RangeSet;
use occ::store::{ApplyError, Batch, Store};

use crate::compactor::{CompactedTables, Compactor};
use crate::error::{corrupt, kv_error};
use crate::keys;
use crate::maker::{Maker, Place};
use crate::manifest::{self, Manifest, TABLES};
use crate::snapshot::LsmSnapshot;
use crate::tables::{LAST, Member, Tables};

/// A log-structured merge tree as a store.
#[derive(Debug)]
pub struct LsmStore {
    pub(crate) shared: Arc<CompactedTables>,
    compactor: Compactor,
    durability: Durability,
}

impl DiskStore for LsmStore {
    const ENGINE: &'static str = "lsm";
    /// Without syncs, rows that are not in a table yet exist only in memory.
    const DURABILITIES: &'static [Durability] = &[Durability::Disk, Durability::Process];

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        let data = folder.join("data");
        let tried = format!("cannot open {}", data.display());
        if !data.try_exists().map_err(|cause| io_error(&tried, &cause))? {
            create(folder, &data)?;
        }
        let (version, list) = manifest::list(&data)?;
        // On a full disk no file is deleted: a loss of power may bring back the previous manifest. The next flush,
        // which needs room too, writes a new one.
        let is_unsure = match manifest::make_durable(&data) {
            Err(error) if error.code() == error::STORAGE_QUOTA_EXCEEDED => true,
            outcome => outcome.map(|()| false)?,
        };
        // The error reports the panic.
        let (maker, tables) = match silently("", || Maker::open(data.join(TABLES), &list, cache_bytes)) {
            Ok(opened) => opened.map_err(|failure| kv_error(&failure, &tried))?,
            Err(Panicked) => return Err(corrupt(&format!("{tried}: the data is damaged"))),
        };
        if !is_unsure {
            let listed = list.iter().flatten().flatten().map(|listed| listed.number).collect();
            manifest::remove_leftovers(&data, version, &listed);
        }
        let manifest = Manifest::after(data, version, is_unsure);
        let shared = Arc::new(CompactedTables::new(maker, tables, manifest));
        Ok(LsmStore { compactor: Compactor::start(shared.clone())?, shared, durability })
    }

    fn hidden_bytes(snapshot: &LsmSnapshot, batch: &Batch) -> u64 {
        removed_bytes(&snapshot.0.tables(), batch)
    }

    /// Tables never change, and the snapshot keeps their files meanwhile.
    fn copy_snapshot(&self, snapshot: &LsmSnapshot, folder: &Path) -> Result<Vec<CopiedTable>> {
        let (tables, own) = (snapshot.0.tables(), &self.shared.maker.folder);
        let data = folder.join("data");
        let there = data.join(TABLES);
        let linked = fs::create_dir_all(&there).and_then(|()| {
            let names = tables.iter().map(|member| member.number().to_string());
            names.into_iter().try_for_each(|name| fs::hard_link(own.join(&name), there.join(name)))?;
            sync_folder(&there)
        });
        linked.map_err(|cause| match cause.kind() {
            ErrorKind::CrossesDevices => Error::new(error::CLIENT_INVALID_OPERATION).with_context(format!(
                "{} is on another file system than {}",
                folder.display(),
                own.display()
            )),
            _ => io_error(format!("cannot link tables in {}", there.display()), &cause),
        })?;
        Manifest::new(data).write(&tables).map_err(|unwritten| unwritten.cause)?;
        sync_folder(folder).map_err(|cause| io_error(format!("cannot sync {}", folder.display()), &cause))?;
        // A number is given again if the tables with the greatest ones are gone when the store is opened.
        let name = |member: &Arc<Member>| CopiedTable {
            path: format!("data/{TABLES}/{}", member.number()),
            name: format!("{}-{:032x}", member.number(), member.table.checksum().into_u128()),
        };
        Ok(tables.iter().map(name).collect())
    }

    /// The name ends with the checksum of the file's bytes.
    fn is_table(name: &str, bytes: &[u8]) -> bool {
        let checksum = name.split_once('-').and_then(|(_, digits)| u128::from_str_radix(digits, 16).ok());
        checksum == Some(twox_hash::XxHash3_128::oneshot(bytes))
    }
}

/// Number of a batch's ranges whose bytes are looked up, which reads indexes of tables.
const SAMPLED_RANGES: usize = 64;

/// Bytes of the rows that a batch removes, roughly.
fn removed_bytes(tables: &Tables, batch: &Batch) -> u64 {
    let between = |begin: &[u8], end: &[u8]| tables.file_bytes(&keys::stored(begin), &keys::stored(end));
    let every = batch.clears().iter().count().div_ceil(SAMPLED_RANGES).max(1);
    let cleared: u64 = batch.clears().iter().step_by(every).map(|(begin, end)| between(begin, end)).sum();
    let removed = batch.rows().filter(|(_, value)| value.is_none());
    let removed: u64 = removed.filter_map(|(key, _)| tables.row_bytes(0, &keys::stored(key))).sum();
    removed.saturating_add(cleared.saturating_mul(every as u64))
}

/// Creates a new tree, completely or not at all: a folder `data` without a manifest is damaged.
fn create(folder: &Path, data: &Path) -> Result<()> {
    let new = folder.join("data.new");
    let tried = format!("cannot create {}", data.display());
    let failed = |cause: std::io::Error| io_error(&tried, &cause);
    if new.exists() {
        fs::remove_dir_all(&new).map_err(failed)?;
    }
    let tables = new.join(TABLES);
    fs::create_dir_all(&tables).and_then(|()| sync_folder(&tables)).map_err(failed)?;
    // This syncs the new files and their names.
    Manifest::new(new.clone()).write(&Tables::default()).map_err(|unwritten| unwritten.cause)?;
    fs::rename(&new, data).map_err(failed)?;
    sync_folder(folder).map_err(|cause| {
        // A later sync might not make this name durable. The next opening creates the tree again.
        let _ = fs::rename(data, &new);
        failed(cause)
    })
}

impl LsmStore {
    /// Writes tables of rows in key order, and publishes them in place of the dropped ones.
    fn write(&self, rows: impl Iterator<Item = Result<Point>>, is_dropped: impl Fn(&Member) -> bool) -> Result<()> {
        let failed = |failure| kv_error(&failure, "cannot write a table");
        let before = self.shared.tables();
        let mut tables = self.shared.maker.begin(Place { level: 0, base: LAST });
        for row in rows {
            let (key, value) = row?;
            let key = keys::stored(&key);
            let (kind, hides) = match &value {
                Some(_) => (ValueType::Value, 0),
                None => (ValueType::Tombstone, before.row_bytes(0, &key).unwrap_or(0)),
            };
            let value = Slice::from(value.as_deref().unwrap_or_default());
            tables.write(InternalValue::from_components(key.as_ref(), value, 0, kind), hides).map_err(failed)?;
        }
        let new = tables.finish_flush().map_err(failed)?;
        self.shared.publish_flush(new, is_dropped)
    }

    /// Writes a batch. Tables inside a cleared range are dropped; rows of other tables in it get a tombstone each.
    fn flush(&self, batch: Batch) -> Result<()> {
        let (clears, rows) = batch.into_parts();
        if clears.is_empty() {
            return self.write(rows.map(Ok), |_| false);
        }
        let cleared: Vec<_> = clears.iter().map(|(begin, end)| (keys::stored(begin), keys::stored(end))).collect();
        let is_dropped = |member: &Member| {
            let after = cleared.partition_point(|(begin, _)| **begin <= *member.first());
            after.checked_sub(1).is_some_and(|at| *member.last() < *cleared[at].1)
        };
        self.shared.while_clearing(|| {
            let left = Arc::new(self.shared.tables().filtered(|member| !is_dropped(member)));
            self.write(with_tombstones(&left, rows, &clears), is_dropped)
        })
    }
}

impl Store for LsmStore {
    type Snapshot = LsmSnapshot;

    fn snapshot(&self) -> Result<LsmSnapshot> {
        Ok(LsmSnapshot(self.shared.newest()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let flushed = self.shared.make_room().and_then(|()| caught("a flush", || self.flush(batch)));
        flushed.map_err(ApplyError::NothingApplied)
    }

    /// Tables and manifests are synced when they are written.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn compact(&self, begin: &[u8], end: &[u8]) {
        self.shared.ask(&keys::stored(begin), &keys::stored(end));
    }

    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        self.shared.is_asked(&keys::stored(begin), &keys::stored(end))
    }

    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        Some(self.shared.tables().file_bytes(&keys::stored(begin), &keys::stored(end)))
    }

    fn figures(&self) -> Vec<Figure> {
        self.shared.figures()
    }

    fn close(&self) -> Result<()> {
        self.compactor.stop();
        Ok(())
    }
}

/// A key and its new value; `None` removes the key.
type Point = (Bytes, Option<Bytes>);

/// The rows of a cleared range. Rows of damaged blocks stay unreadable: a flush that failed at them would always fail,
/// and all commits with it.
fn cleared_rows(
    tables: &Arc<Tables>,
    begin: &[u8],
    end: &[u8],
) -> impl Iterator<Item = Result<(Slice, Slice)>> + use<> {
    let (tables, end) = (tables.clone(), keys::stored(end).into_owned());
    let mut rows = tables.range(&keys::stored(begin), &end, Direction::Forward);
    std::iter::from_fn(move || {
        let row = rows.next()?;
        let Some((from, _)) = row.as_ref().err().and_then(Error::damage) else { return Some(row) };
        tracing::error!("some of the rows to remove cannot be read: the data is damaged; check all databases");
        rows = tables.readable(&keys::stored(from), &end);
        rows.next()
    })
}

/// The rows of a batch, merged with a tombstone for each stored row that the batch clears.
fn with_tombstones<'a, P: Iterator<Item = Point> + 'a>(
    tables: &'a Arc<Tables>,
    points: P,
    clears: &'a RangeSet,
) -> impl Iterator<Item = Result<Point>> + use<'a, P> {
    let cleared = clears.iter().flat_map(|(begin, end)| cleared_rows(tables, begin, end));
    let cleared = cleared.map(|row| {
        let (key, _) = row?;
        Ok((Bytes::copy_from_slice(keys::ours(&key)), None))
    });
    let (mut points, mut cleared) = (points.peekable(), cleared.peekable());
    std::iter::from_fn(move || {
        let (Some(Ok(removal)), Some(point)) = (cleared.peek(), points.peek()) else {
            return cleared.next().or_else(|| points.next().map(Ok));
        };
        match removal.0.cmp(&point.0) {
            std::cmp::Ordering::Less => cleared.next(),
            std::cmp::Ordering::Equal => {
                cleared.next();
                points.next().map(Ok)
            }
            std::cmp::Ordering::Greater => points.next().map(Ok),
        }
    })
}

#[cfg(test)]
mod tests;
