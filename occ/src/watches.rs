//! Watches: transactions that wait for a key to change.
//!
//! A transaction creates a watch and its commit arms it. The watch completes when a committed value differs
//! from the one that the transaction saw. Values are compared, so writing the same value completes nothing, and
//! a change that is undone before it is seen is missed, as FoundationDB allows.
//!
//! Source: FoundationDB's `Transaction::setupWatches`, `DatabaseContext::increaseWatchCounter`.

use std::collections::BTreeMap;

use bytes::Bytes;
use kv_api::{Error, Result, error};

use crate::store::{Batch, Snapshot};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Promise, Weak, lock};

/// One watch.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) key: Bytes,
    /// Identifies the watch among those of its key.
    number: u64,
    /// The value that the transaction saw, with its own writes.
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

    /// Completes the watch if `value` is not the one that was seen.
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
    /// Number of keys in `armed`. A batch reads it without the lock.
    keys: AtomicUsize,
    armed: Mutex<BTreeMap<Bytes, Armed>>,
}

/// The watches of a key by their numbers, so that one can be removed without searching.
type Armed = BTreeMap<u64, Weak<Watch>>;

/// Watched keys that a batch changes, with their watches.
pub(crate) type Touched = BTreeMap<Bytes, Vec<Arc<Watch>>>;

/// The watches of a database.
#[derive(Debug)]
pub(crate) struct Watches {
    table: Arc<Table>,
    most: usize,
    /// Number of watches created so far.
    numbers: AtomicU64,
    deferred: Mutex<Vec<Weak<Watch>>>,
}

impl Watches {
    pub(crate) fn new(most: usize) -> Self {
        Watches { table: Arc::default(), most, numbers: AtomicU64::new(0), deferred: Mutex::default() }
    }

    /// Number of watches that were created and have not completed.
    pub(crate) fn count(&self) -> usize {
        self.table.outstanding.load(Ordering::Relaxed)
    }

    /// Creates a watch, not armed yet: 1032 if there are too many.
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

    /// Arms watches. Every batch that begins from now on finds them. For earlier batches the caller asks the
    /// window afterwards: it compares the watches with the head, and calls [`defer`](Self::defer) if a batch is
    /// in progress.
    pub(crate) fn arm(&self, watches: &[Arc<Watch>]) {
        let mut armed = lock(&self.table.armed);
        for watch in watches {
            armed.entry(watch.key.clone()).or_default().insert(watch.number, Arc::downgrade(watch));
        }
        self.table.keys.store(armed.len(), Ordering::Release);
    }

    /// Remembers watches that were armed while a batch was in progress: the batch may have looked for watches before.
    /// Called under the window's lock, like [`take_deferred`](Self::take_deferred): so the batch is either still in
    /// progress or published.
    pub(crate) fn defer(&self, watches: &[Arc<Watch>]) {
        lock(&self.deferred).extend(watches.iter().map(Arc::downgrade));
    }

    /// Takes the deferred watches, to compare them with the snapshot of the batch that was just published.
    pub(crate) fn take_deferred(&self) -> Vec<Weak<Watch>> {
        std::mem::take(&mut *lock(&self.deferred))
    }

    /// Fails if any watch is counted or armed.
    #[cfg(test)]
    pub(crate) fn assert_none(&self) {
        assert_eq!(self.table.outstanding.load(Ordering::Relaxed), 0, "watches are counted");
        assert!(lock(&self.table.armed).is_empty() && !self.any(), "watches are armed");
    }

    /// Whether any key is watched. Read without a lock: a watch that is armed later finds the batch in the
    /// window.
    pub(crate) fn any(&self) -> bool {
        self.table.keys.load(Ordering::Acquire) > 0
    }

    /// The watched keys that a batch changes, with their watches.
    pub(crate) fn touched(&self, batch: &Batch) -> Touched {
        let mut touched = Touched::new();
        if !self.any() {
            return touched;
        }
        let armed = lock(&self.table.armed);
        let cleared = batch.clears().iter().flat_map(|(begin, end)| armed.range(begin.clone()..end.clone()));
        let written = batch.rows().filter_map(|(key, _)| armed.get_key_value(key));
        for (key, watches) in cleared.chain(written) {
            touched.entry(key.clone()).or_insert_with(|| watches.values().filter_map(Weak::upgrade).collect());
        }
        touched
    }

    /// Compares watches with the values in `snapshot`. Each key is read once, however many watches it has.
    pub(crate) fn compare<V: Snapshot>(touched: Touched, snapshot: &V) {
        for (key, watches) in touched {
            match snapshot.get(&key) {
                Ok(value) => watches.iter().for_each(|watch| watch.compare(value.as_ref())),
                // The watcher's next read gets the error. A needless wake-up is allowed.
                Err(_) => watches.iter().for_each(|watch| watch.finish(Ok(()))),
            }
        }
    }

    /// Fails every armed watch, because the database closes.
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
