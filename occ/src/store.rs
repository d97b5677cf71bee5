//! The contract of a store: what this crate needs to make a transactional database of it.
//!
//! A [`Store`] is a sorted map of byte strings with cheap snapshots. It knows nothing of transactions,
//! versions or conflicts. One thread at a time writes it, in atomic batches. Any number of threads read it,
//! through [`Snapshot`]s that never change.
//!
//! ```text
//!   time ──►      apply(batch 7)   snapshot()   sync()       apply(batch 8)   snapshot()   sync()
//!   readers see   batch 6 ─────────────────────────┤ batch 7 ───────────────────────────────┤ batch 8
//! ```
//!
//! A snapshot is read only after its newest batch is synced.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Direction, Durability, Error, Figure, Result};

use crate::key_map::KeyMap;
use crate::{KeyRange, RangeSet};

/// Changes that take effect together: ranges to clear, then rows to write.
///
/// A later change of a key replaces an earlier one, so each key appears once. Rows are in key order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    version: i64,
    clears: RangeSet,
    rows: KeyMap<Option<Bytes>>,
    bytes: usize,
}

/// Memory of a row or a range beside its keys and values, roughly.
const OVERHEAD: usize = 64;

impl Batch {
    /// An empty batch with a commit version. Each batch has a greater version than the one before.
    pub fn new(version: i64) -> Self {
        Batch { version, ..Batch::default() }
    }

    /// The batch of a version that sets these rows.
    pub fn of_rows(version: i64, rows: impl IntoIterator<Item = (Bytes, Bytes)>) -> Self {
        let rows = rows.into_iter().map(|(key, value)| (key, Some(value)));
        Batch::of_parts(version, RangeSet::default(), rows)
    }

    /// The batch that clears ranges, then writes rows: a value, or `None` to remove the key.
    pub fn of_parts(version: i64, clears: RangeSet, rows: impl IntoIterator<Item = (Bytes, Option<Bytes>)>) -> Self {
        let mut batch = Batch { version, clears, ..Batch::default() };
        rows.into_iter().for_each(|(key, value)| batch.write(key, value));
        batch
    }

    /// The commit version.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.clears.is_empty() && self.rows.is_empty()
    }

    /// Sets a key.
    pub fn set(&mut self, key: Bytes, value: Bytes) {
        self.write(key, Some(value));
    }

    /// Removes a key, which may be absent.
    pub fn clear(&mut self, key: Bytes) {
        self.write(key, None);
    }

    fn write(&mut self, key: Bytes, value: Option<Bytes>) {
        self.bytes += OVERHEAD + key.len() + value.as_ref().map_or(0, Bytes::len);
        self.rows.set(key, value);
    }

    /// Removes every key of a range that is not empty, including those set earlier in this batch.
    pub fn clear_range(&mut self, range: KeyRange) {
        self.bytes += OVERHEAD + range.len();
        drop(self.rows.take_range(&range.begin, &range.end));
        self.clears.insert(range);
    }

    /// What the batch does to a key: sets it, or removes it (`Some(None)`). `None` if it leaves the key alone.
    pub fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        match self.rows.get(key) {
            Some(value) => Some(value.as_ref()),
            None => self.clears.contains(key).then_some(None),
        }
    }

    /// The ranges to clear before rows are written.
    pub fn clears(&self) -> &RangeSet {
        &self.clears
    }

    /// The rows to write, in key order: a value, or `None` to remove the key.
    pub fn rows(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>)> {
        self.rows.iter().map(|(key, value)| (key, value.as_ref()))
    }

    /// Number of rows to write.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Memory of what was put into the batch, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The ranges to clear, and the rows to write after, in key order.
    pub fn into_parts(self) -> (RangeSet, impl Iterator<Item = (Bytes, Option<Bytes>)>) {
        (self.clears, self.rows.into_entries())
    }

    /// Applies the batch to a map: what every store does in its own way.
    pub fn apply_to(self, map: &mut BTreeMap<Bytes, Bytes>) {
        for range in self.clears.into_ranges() {
            map.extract_if(range.begin..range.end, |_, _| true).for_each(drop);
        }
        for (key, value) in self.rows.into_entries() {
            match value {
                Some(value) => drop(map.insert(key, value)),
                None => drop(map.remove(&key)),
            }
        }
    }
}

/// Why a batch was not applied.
#[derive(Clone, Debug)]
pub enum ApplyError {
    /// The store is certainly as it was before. The commits fail, and the database goes on. Example: the disk was full
    /// before the first byte was written.
    NothingApplied(Error),
    /// Some or all of the batch may have been applied. The outcome of the commits is unknown, and the database
    /// closes.
    Unknown(Error),
}

impl ApplyError {
    /// The store's error.
    pub fn into_error(self) -> Error {
        match self {
            ApplyError::NothingApplied(error) | ApplyError::Unknown(error) => error,
        }
    }
}

/// A sorted map of byte strings under a database of this crate.
pub trait Store: Send + Sync + 'static {
    /// Its snapshots.
    type Snapshot: Snapshot;

    /// A snapshot with every applied batch. Taken after each batch, so it must be cheap.
    fn snapshot(&self) -> Result<Self::Snapshot>;

    /// A cheaper snapshot with the same rows as `snapshot`, if the store has one by now. Called when a transaction
    /// begins to read, so it must be cheap.
    fn refreshed(&self, snapshot: &Self::Snapshot) -> Option<Self::Snapshot> {
        let _ = snapshot;
        None
    }

    /// Applies a batch atomically, also with respect to a crash. Called by one thread at a time.
    fn apply(&self, batch: Batch) -> Result<(), ApplyError>;

    /// Makes every applied batch as durable as [`durability`](Store::durability) says. Called after `apply` by
    /// the same thread, before the batch can be read or its commits are answered.
    fn sync(&self) -> Result<()>;

    /// What an applied and synced batch survives.
    fn durability(&self) -> Durability;

    /// Whether a later process can open the data, at least after a close. The store then records the last commit
    /// version, so that versions go on from there.
    fn outlives_process(&self) -> bool {
        self.durability() != Durability::Process
    }

    /// Asks the store to free the disk space of removed rows between two keys. Returns at once. An engine that needs no
    /// request does nothing.
    fn compact(&self, begin: &[u8], end: &[u8]) {
        let _ = (begin, end);
    }

    /// Whether space between two keys that was [asked for](Store::compact) is not free yet.
    fn is_compacting(&self, begin: &[u8], end: &[u8]) -> bool {
        let _ = (begin, end);
        false
    }

    /// Bytes on the disk of everything between two keys: see [`kv_api::Database::disk_bytes`].
    fn disk_bytes(&self, begin: &[u8], end: &[u8]) -> Option<u64> {
        let _ = (begin, end);
        None
    }

    /// What the store has done since it was opened, and what it holds: see [`kv_api::Database::figures`].
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    /// Copies everything that is applied and synced into a new folder: see [`kv_api::Database::snapshot`].
    fn copy_to(&self, folder: &Path) -> Result<()> {
        Err(kv_api::no_snapshot(folder))
    }

    /// Fails when the rest of the disk is reserved for transactions that shrink the data. Called before each batch,
    /// with the size of its transactions.
    fn check_room(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Takes a function that drops old snapshots and refreshes the newest. A store whose old snapshots keep files calls
    /// it some time after the last batch. Called once, before the first batch.
    fn when_quiet(&self, let_go: Box<dyn Fn() + Send + Sync>) {
        drop(let_go);
    }

    /// Closes the store. Called once; afterwards only snapshots are used.
    fn close(&self) -> Result<()> {
        self.sync()
    }
}

/// A snapshot of a [`Store`]. It never changes.
pub trait Snapshot: Clone + Send + Sync + 'static {
    /// Rows of a range, in the direction asked for.
    type Range<'a>: Iterator<Item = Result<(Bytes, Bytes)>>;

    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The rows from `begin` up to, not including, `end`; `begin` is less than `end`. Rows are read as the
    /// iterator advances: dropping it early costs nothing more.
    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a>;
}

/// The snapshot of a store that keeps its rows in a map, such as stores of tests.
#[derive(Clone, Debug, Default)]
pub struct MapSnapshot(pub Arc<BTreeMap<Bytes, Bytes>>);

impl Snapshot for MapSnapshot {
    type Range<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.get(key).cloned())
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a> {
        let rows = self.0.range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end)));
        let rows = rows.map(|(key, value)| Ok((key.clone(), value.clone())));
        match direction {
            Direction::Forward => Box::new(rows),
            Direction::Reverse => Box::new(rows.rev()),
        }
    }
}
