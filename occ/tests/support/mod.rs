//! A store for tests: a map that is copied with each batch. It fails on request.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of this module")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use kv_api::{Database, Direction, Durability, Error, RangeRequest, Read, Result, Transaction, TransactionExt, error};
use occ::store::{ApplyError, Batch, Snapshot, Store};
use occ::{ManualClock, OccBuilder, OccDatabase};

pub use futures_executor::block_on;

pub type Map = BTreeMap<Bytes, Bytes>;
pub type Db = OccDatabase<TestStore>;

/// Requested failures of the store, and counts of its calls.
#[derive(Debug, Default)]
pub struct Control {
    pub refuse_apply: AtomicBool,
    pub fail_apply: AtomicBool,
    pub fail_sync: AtomicBool,
    pub panic_in_apply: AtomicBool,
    pub applies: AtomicUsize,
    pub syncs: AtomicUsize,
    pub gets: AtomicUsize,
    /// Every `get` of a snapshot fails.
    pub fail_get: AtomicBool,
    /// Number of rows that ranges returned.
    pub scanned: AtomicUsize,
    pub closes: AtomicUsize,
    /// Number of snapshots that existed when a handle on the store was dropped last.
    pub snapshots_at_drop: AtomicUsize,
    /// A test holds it to block every sync.
    pub sync_gate: Mutex<()>,
    pub head: Mutex<Arc<Map>>,
    /// The replacement of the newest snapshot.
    pub refreshed: Mutex<Option<Arc<Map>>>,
    /// Each snapshot holds a clone.
    living: Arc<()>,
}

impl Control {
    fn head(&self) -> MutexGuard<'_, Arc<Map>> {
        self.head.lock().unwrap()
    }

    fn snapshot(self: &Arc<Self>, rows: Arc<Map>) -> TestSnapshot {
        TestSnapshot { control: self.clone(), rows, _living: self.living.clone() }
    }

    /// Number of snapshots that exist.
    pub fn living_snapshots(&self) -> usize {
        Arc::strong_count(&self.living) - 1
    }
}

#[derive(Clone, Debug, Default)]
pub struct TestStore(pub Arc<Control>);

impl Drop for TestStore {
    fn drop(&mut self) {
        self.0.snapshots_at_drop.store(self.0.living_snapshots(), Ordering::Relaxed);
    }
}

impl Store for TestStore {
    type Snapshot = TestSnapshot;

    fn snapshot(&self) -> Result<TestSnapshot> {
        Ok(self.0.snapshot(self.0.head().clone()))
    }

    fn refreshed(&self, _: &TestSnapshot) -> Option<TestSnapshot> {
        Some(self.0.snapshot(self.0.refreshed.lock().unwrap().take()?))
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        assert!(!self.0.panic_in_apply.load(Ordering::Relaxed), "told to panic");
        if self.0.refuse_apply.load(Ordering::Relaxed) {
            return Err(ApplyError::NothingApplied(Error::new(error::IO_ERROR).with_context("told to refuse")));
        }
        if self.0.fail_apply.load(Ordering::Relaxed) {
            return Err(ApplyError::Unknown(Error::new(error::IO_ERROR).with_context("told to fail")));
        }
        self.0.applies.fetch_add(1, Ordering::Relaxed);
        let mut head = self.0.head();
        let map = Arc::make_mut(&mut head);
        batch.apply_to(map);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _gate = self.0.sync_gate.lock().unwrap();
        self.0.syncs.fetch_add(1, Ordering::Relaxed);
        if self.0.fail_sync.load(Ordering::Relaxed) {
            return Err(Error::new(error::IO_ERROR).with_context("told to fail"));
        }
        Ok(())
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }

    fn close(&self) -> Result<()> {
        self.0.closes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct TestSnapshot {
    control: Arc<Control>,
    rows: Arc<Map>,
    _living: Arc<()>,
}

impl Snapshot for TestSnapshot {
    type Range<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.control.gets.fetch_add(1, Ordering::Relaxed);
        if self.control.fail_get.load(Ordering::Relaxed) {
            return Err(Error::new(error::IO_ERROR).with_context("told to fail"));
        }
        Ok(self.rows.get(key).cloned())
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> Self::Range<'a> {
        let rows = self.rows.range::<[u8], _>((Bound::Included(begin), Bound::Excluded(end)));
        let row = |(key, value): (&Bytes, &Bytes)| {
            self.control.scanned.fetch_add(1, Ordering::Relaxed);
            Ok((key.clone(), value.clone()))
        };
        match direction {
            Direction::Forward => Box::new(rows.map(row)),
            Direction::Reverse => Box::new(rows.rev().map(row)),
        }
    }
}

/// A database with a clock that stands still.
pub fn open() -> (Db, ManualClock, Arc<Control>) {
    let store = TestStore::default();
    let (clock, control) = (ManualClock::new(), store.0.clone());
    clock.advance(std::time::Duration::from_secs(100));
    (OccBuilder::new().clock(clock.clone()).seed(1).open(store).unwrap(), clock, control)
}

pub fn put(db: &Db, rows: &[(&str, &str)]) {
    let tx = db.begin().unwrap();
    for (key, value) in rows {
        tx.set(key.as_bytes(), value.as_bytes());
    }
    block_on(tx.commit()).unwrap();
}

pub fn get(tx: &impl Transaction, key: &str) -> Option<String> {
    try_get(tx, key).unwrap()
}

pub fn try_get(tx: &impl Transaction, key: &str) -> Result<Option<String>> {
    let value = block_on(tx.get(key.as_bytes(), Read::Serializable))?;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
}

pub fn now(db: &Db, key: &str) -> Option<String> {
    get(&db.begin().unwrap(), key)
}

/// The rows of a request as `k=v`.
pub fn rows(tx: &impl Transaction, request: RangeRequest) -> String {
    let rows = block_on(tx.get_all(request, Read::Serializable)).unwrap();
    let show = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    rows.iter().map(|row| format!("{}={}", show(&row.key), show(&row.value))).collect::<Vec<_>>().join(" ")
}

pub fn commit(tx: &impl Transaction) -> i32 {
    code(block_on(tx.commit()))
}

/// 0 or the error's code.
pub fn code<T>(result: Result<T>) -> i32 {
    result.map_or_else(|error| error.code(), |_| 0)
}
