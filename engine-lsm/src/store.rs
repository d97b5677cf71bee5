//! The store: turns flushed batches into tables. The thread in [`compactor`](crate::compactor) compacts them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use disk::DiskStore;
use disk::folder::{io_error, sync_folder};
use disk::panics::{Panicked, silently};
use kv_api::{Direction, Durability, Result};
use lsm_tree::compaction::filter::Factory;
use lsm_tree::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, RestartIntervalPolicy,
};
use lsm_tree::{AbstractTree, AnyTree, Cache, CompressionType, Config, DescriptorTable, SequenceNumberCounter, Slice};
use occ::RangeSet;
use occ::store::{ApplyError, Batch, Store};

use crate::compactor::{CompactedTree, Compactor};
use crate::error::{corrupt, failed_to_read, kv_error};
use crate::prefixes::Collector;
use crate::tables::Tables;
use crate::turn::{CompactionTurns, Turns, Writer};
use crate::view::LsmView;
use crate::{keys, manifest};

/// Maximum number of table files that are kept open.
const MOST_OPEN: usize = 200;

/// Filter bits for each key. The last level, with nine of ten rows, has no filter: most keys that are looked up
/// exist.
const FILTER_BITS: f32 = 10.0;
const LEVELS: usize = 7;

/// A log-structured merge tree as a store.
#[derive(Debug)]
pub struct LsmStore {
    shared: Arc<CompactedTree>,
    compactor: Compactor,
    durability: Durability,
}

impl DiskStore for LsmStore {
    const ENGINE: &'static str = "lsm";
    /// Without a sync, rows that are in no table yet exist in memory only.
    const DURABILITIES: &'static [Durability] = &[Durability::Disk, Durability::Process];

    fn open(folder: &Path, cache_bytes: u64, durability: Durability) -> Result<Self> {
        let data = folder.join("data");
        let tried = format!("cannot open {}", data.display());
        if !data.try_exists().map_err(|cause| io_error(&tried, &cause))? {
            create(folder, &data)?;
        }
        manifest::check(&data)?;
        manifest::make_durable(&data)?;
        manifest::remove_temporary(&data)?;
        let turns = Arc::new(Turns::new(data.clone()));
        // The error reports the panic.
        let tree = match silently("", || open_tree(&data, cache_bytes, Some(turns.clone()))) {
            Ok(tree) => tree.map_err(|failure| kv_error(&failure, &tried))?,
            Err(Panicked) => return Err(corrupt(&format!("{tried}: the data is damaged"))),
        };
        let shared = Arc::new(CompactedTree::new(tree, data, turns));
        Ok(LsmStore { compactor: Compactor::start(shared.clone())?, shared, durability })
    }
}

/// Creates a new tree, completely or not at all: a folder `data` without a manifest is damaged.
fn create(folder: &Path, data: &Path) -> Result<()> {
    let new = folder.join("data.new");
    let tried = format!("cannot create {}", data.display());
    let failed = |cause: std::io::Error| io_error(&tried, &cause);
    if new.exists() {
        fs::remove_dir_all(&new).map_err(failed)?;
    }
    // This syncs the new files.
    open_tree(&new, 0, None).map_err(|failure| kv_error(&failure, &tried))?;
    fs::rename(&new, data).map_err(failed)?;
    sync_folder(folder).map_err(|cause| {
        // No later sync makes this name durable for certain. The next opening creates the tree again.
        let _ = fs::rename(data, &new);
        failed(cause)
    })
}

fn open_tree(data: &Path, cache_bytes: u64, turns: Option<Arc<Turns>>) -> lsm_tree::Result<AnyTree> {
    let numbers = SequenceNumberCounter::default();
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS));
    let mut filters = vec![filter; LEVELS];
    filters[LEVELS - 1] = FilterPolicyEntry::None;
    let config = Config::new(data, numbers.clone(), SequenceNumberCounter::default())
        .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(MOST_OPEN))))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        .data_block_restart_interval_policy(RestartIntervalPolicy::all(8))
        .filter_policy(FilterPolicy::new(filters))
        .with_compaction_filter_factory(turns.map(|turns| Arc::new(CompactionTurns(turns)) as Arc<dyn Factory>));
    let tree = config.open()?;
    numbers.set(tree.get_highest_persisted_seqno().map_or(1, |number| number + 1));
    Ok(tree)
}

impl LsmStore {
    /// Writes tables of rows in key order, and makes them public.
    fn write(&self, rows: impl Iterator<Item = Result<Point>>) -> Result<()> {
        let mut rows = rows.peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let failed = |failure| kv_error(&failure, "cannot write a table");
        let mut table = self.shared.tree().ingestion().map_err(failed)?;
        let mut prefixes = Collector::default();
        for row in rows {
            let (key, value) = row?;
            let key = Slice::from(keys::stored(&key).as_ref());
            prefixes.add(&key);
            match value {
                Some(value) => table.write(key, Slice::from(value.as_ref())),
                None => table.write_tombstone(key),
            }
            .map_err(failed)?;
        }
        self.shared.publish(prefixes.finish(), || table.finish().map_err(failed))
    }
}

impl Store for LsmStore {
    type View = LsmView;

    fn view(&self) -> Result<LsmView> {
        Ok(LsmView(self.shared.newest()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        self.shared.make_room().map_err(ApplyError::NothingApplied)?;
        let (clears, rows) = batch.into_parts();
        self.shared.guarded(Writer::Flush, || {
            let tables = self.shared.newest().tables();
            self.write(with_tombstones(&tables, rows, &clears))
        })
    }

    /// Tables and manifests are synced when they are written.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn close(&self) -> Result<()> {
        self.compactor.stop();
        Ok(())
    }
}

/// A key and its new value; `None` removes the key.
type Point = (Bytes, Option<Bytes>);

/// The rows of a batch, merged with a tombstone for each stored row that the batch clears.
fn with_tombstones<'a, P: Iterator<Item = Point> + 'a>(
    tables: &'a Arc<Tables>,
    points: P,
    clears: &'a RangeSet,
) -> impl Iterator<Item = Result<Point>> + use<'a, P> {
    let cleared = clears
        .iter()
        .flat_map(|(begin, end)| tables.range(&keys::stored(begin), &keys::stored(end), Direction::Forward));
    let cleared = cleared.map(|row| {
        let (key, _) = row.map_err(failed_to_read)?;
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
