//! The store: a persistent B+ tree. A snapshot is a clone of its root; a batch copies the nodes that it changes if a
//! snapshot still holds them.

use std::ops::Bound;

use bytes::Bytes;
use imbl::OrdMap;
use imbl::ordmap::RangedIter;
use imbl::shared_ptr::DefaultSharedPtr;
use kv_api::{Direction, Durability, Result};
use occ::store::{ApplyError, Batch, Snapshot, Store};
use parking_lot::{Mutex, MutexGuard};

/// A sorted map in memory.
#[derive(Debug, Default)]
pub struct MemStore {
    head: Mutex<OrdMap<Bytes, Bytes>>,
}

impl MemStore {
    fn head(&self) -> MutexGuard<'_, OrdMap<Bytes, Bytes>> {
        // Replaced in one step, so it is consistent even after a panic.
        self.head.lock()
    }
}

impl Store for MemStore {
    type Snapshot = MemSnapshot;

    fn snapshot(&self) -> Result<MemSnapshot> {
        Ok(MemSnapshot(self.head().clone()))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        let mut map = self.head().clone();
        let (clears, rows) = batch.into_parts();
        for (begin, end) in clears.iter() {
            clear_range(&mut map, begin, end);
        }
        for (key, value) in rows {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(key.as_ref()),
            };
        }
        *self.head() = map;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability::Process
    }
}

fn clear_range(map: &mut OrdMap<Bytes, Bytes>, begin: &Bytes, end: &Bytes) {
    /// Number of keys collected at a time, however many are cleared.
    const STEP: usize = 1024;
    loop {
        let keys: Vec<Bytes> = map.range(begin.clone()..end.clone()).take(STEP).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            map.remove(key.as_ref());
        }
        if keys.len() < STEP {
            return;
        }
    }
}

/// A snapshot of a [`MemStore`].
#[derive(Clone, Debug)]
pub struct MemSnapshot(OrdMap<Bytes, Bytes>);

impl Snapshot for MemSnapshot {
    type Range<'a> = MemRange<'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.get(key).cloned())
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> MemRange<'a> {
        // An iterator with two bounds searches for both. A reverse read usually wants one or two rows, so comparing
        // with the other bound is cheaper than searching for it.
        let (first, begin) = match direction {
            Direction::Forward => (Bound::Included(begin), Bytes::new()),
            Direction::Reverse => (Bound::Unbounded, Bytes::copy_from_slice(begin)),
        };
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (first, Bound::Excluded(end));
        MemRange { rows: self.0.range::<_, [u8]>(bounds), begin, direction }
    }
}

/// Rows of a [`MemSnapshot`].
#[derive(Debug)]
pub struct MemRange<'a> {
    rows: RangedIter<'a, Bytes, Bytes, DefaultSharedPtr>,
    /// The bound at which a reverse read ends.
    begin: Bytes,
    direction: Direction,
}

impl Iterator for MemRange<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = match self.direction {
            Direction::Forward => self.rows.next(),
            Direction::Reverse => self.rows.next_back().filter(|(key, _)| **key >= self.begin),
        };
        row.map(|(key, value)| Ok((key.clone(), value.clone())))
    }
}
