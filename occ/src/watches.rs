//! Watches: who waits for which key to change.
//!
//! A watch is made by a transaction, armed by its commit, and completes once a committed value differs
//! from the one that the transaction saw. What is compared is the value, so writing the same again
//! wakes nobody, and a change that is undone before it is seen is missed, as FoundationDB allows.
//!
//! Source: FoundationDB's `Transaction::setupWatches`, `DatabaseContext::increaseWatchCounter`.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use kv_api::{Error, Result, error};

use crate::store::{Op, View};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Promise, Weak, lock};

/// One watch.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) key: Bytes,
    /// Tells it from the other watches of its key.
    number: u64,
    /// What its transaction saw, its own writes included.
    seen: Option<Bytes>,
    outcome: Promise<Result<()>>,
    table: Arc<Table>,
    counted: AtomicBool,
}

impl Watch {
    /// Completes the watch.
    pub(crate) fn finish(&self, outcome: Result<()>) {
        if self.outcome.resolve(outcome) {
            self.discount();
        }
    }

    /// Completes it if `value` is not what was seen.
    pub(crate) fn compare(&self, value: Option<&Bytes>) {
        if self.seen.as_ref() != value {
            self.finish(Ok(()));
        }
    }

    pub(crate) fn outcome(&self) -> &Promise<Result<()>> {
        &self.outcome
    }

    fn discount(&self) {
        if self.counted.swap(false, Ordering::Relaxed) {
            self.table.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.discount();
        let mut armed = lock(&self.table.armed);
        if let Some(watches) = armed.get_mut(&self.key) {
            watches.remove(&self.number);
            if watches.is_empty() {
                armed.remove(&self.key);
            }
            self.table.keys.store(armed.len(), Ordering::Release);
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    outstanding: AtomicUsize,
    /// The number of keys in `armed`, so that batches pass by without its lock.
    keys: AtomicUsize,
    armed: Mutex<BTreeMap<Bytes, Armed>>,
}

/// The watches of a key by their numbers: each can be removed without a look at the others.
type Armed = BTreeMap<u64, Weak<Watch>>;

/// Watched keys that a batch changes, and who watches them.
pub(crate) type Touched = BTreeMap<Bytes, Vec<Arc<Watch>>>;

/// The watches of a database.
#[derive(Debug)]
pub(crate) struct Watches {
    table: Arc<Table>,
    most: usize,
    /// How many watches there ever were.
    numbers: AtomicU64,
    deferred: Mutex<Vec<Weak<Watch>>>,
}

impl Watches {
    pub(crate) fn new(most: usize) -> Self {
        Watches { table: Arc::default(), most, numbers: AtomicU64::new(0), deferred: Mutex::default() }
    }

    /// A watch, not yet armed: 1032 when there are too many.
    pub(crate) fn create(&self, key: Bytes, seen: Option<Bytes>) -> Result<Arc<Watch>> {
        let most = self.most;
        self.table
            .outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < most).then_some(count + 1))
            .map_err(|_| Error::new(error::TOO_MANY_WATCHES))?;
        let counted = AtomicBool::new(true);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Watch { key, number, seen, outcome: Promise::default(), table: self.table.clone(), counted }))
    }

    /// Arms watches: batches that begin from now on find them. Which that is the window knows, so the
    /// caller asks it afterwards, and compares them with its head for the batches before, or calls
    /// [`defer`](Self::defer) for the one that is under way.
    pub(crate) fn arm(&self, watches: &[Arc<Watch>]) {
        let mut armed = lock(&self.table.armed);
        for watch in watches {
            armed.entry(watch.key.clone()).or_default().insert(watch.number, Arc::downgrade(watch));
        }
        self.table.keys.store(armed.len(), Ordering::Release);
    }

    /// Remembers watches that were armed when a batch was under way, which may have looked for its own
    /// already. Called under the window's lock, as is [`take_deferred`](Self::take_deferred): so the batch
    /// is either under way still, or published.
    pub(crate) fn defer(&self, watches: &[Arc<Watch>]) {
        lock(&self.deferred).extend(watches.iter().map(Arc::downgrade));
    }

    /// The watches to compare, with the view of the batch that has just been published.
    pub(crate) fn take_deferred(&self) -> Vec<Weak<Watch>> {
        std::mem::take(&mut *lock(&self.deferred))
    }

    /// Fails if any watch is counted or armed.
    #[cfg(test)]
    pub(crate) fn assert_none(&self) {
        assert_eq!(self.table.outstanding.load(Ordering::Relaxed), 0, "watches are counted");
        assert!(lock(&self.table.armed).is_empty() && !self.any(), "watches are armed");
    }

    /// Whether [`touched`](Self::touched) has anything to do. Looked up without a lock: a watch that is
    /// counted only after this look is armed after the batch began, and so finds it in the window.
    pub(crate) fn any(&self) -> bool {
        self.table.keys.load(Ordering::Acquire) > 0
    }

    /// The keys of `ops` that are watched, and by whom.
    pub(crate) fn touched(&self, ops: &[Op]) -> Touched {
        let mut touched = Touched::new();
        if !self.any() {
            return touched;
        }
        let armed = lock(&self.table.armed);
        let mut touch = |key: &Bytes, watches: &Armed| {
            if !touched.contains_key(key) {
                touched.insert(key.clone(), watches.values().filter_map(Weak::upgrade).collect::<Vec<_>>());
            }
        };
        for op in ops {
            match op {
                Op::Set { key, .. } | Op::Clear { key } => {
                    if let Some(watches) = armed.get(key) {
                        touch(key, watches);
                    }
                }
                Op::ClearRange { begin, end } => {
                    for (key, watches) in armed.range::<Bytes, _>((Bound::Included(begin), Bound::Excluded(end))) {
                        touch(key, watches);
                    }
                }
            }
        }
        drop(armed);
        touched
    }

    /// Compares watches with what `view` holds: each key is read once, however many wait for it.
    pub(crate) fn compare<V: View>(touched: Touched, view: &V) {
        for (key, watches) in touched {
            match view.get(&key) {
                Ok(value) => watches.iter().for_each(|watch| watch.compare(value.as_ref())),
                // The reader finds out; a wake-up too many is allowed.
                Err(_) => watches.iter().for_each(|watch| watch.finish(Ok(()))),
            }
        }
    }

    /// Fails every armed watch: the database closes.
    pub(crate) fn fail_all(&self, error: &Error) {
        let all: Vec<Arc<Watch>> = {
            let armed = std::mem::take(&mut *lock(&self.table.armed));
            self.table.keys.store(0, Ordering::Release);
            armed.values().flat_map(BTreeMap::values).filter_map(Weak::upgrade).collect()
        };
        for watch in all {
            watch.finish(Err(error.clone()));
        }
    }
}
