//! A store that records its operations, so that a layer's work can be repeated raw.

use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Direction, Durability, Result};
use occ::store::{ApplyError, Batch, Snapshot, Store};
use parking_lot::Mutex;

/// A read of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawRead {
    /// One key.
    Get(Bytes),
    /// The first rows of a range.
    Range {
        /// The first key.
        begin: Bytes,
        /// The first key beyond the range.
        end: Bytes,
        /// Direction of the read.
        direction: Direction,
        /// Number of rows that were requested.
        asked: usize,
    },
}

impl RawRead {
    /// Repeats the read on a snapshot. Returns the bytes of the returned keys and values.
    pub fn replay<V: Snapshot>(&self, snapshot: &V) -> Result<usize> {
        match self {
            RawRead::Get(key) => Ok(snapshot.get(key)?.map_or(0, |value| key.len() + value.len())),
            RawRead::Range { begin, end, direction, asked } => snapshot
                .range(begin, end, *direction)
                .take(*asked)
                .map(|row| row.map(|(key, value)| key.len() + value.len()))
                .sum(),
        }
    }
}

/// Recorded operations of a store.
#[derive(Debug, Default)]
pub struct Log {
    batches: Mutex<Vec<Batch>>,
    reads: Mutex<Vec<RawRead>>,
}

impl Log {
    /// The batches applied since the last call.
    pub fn take_batches(&self) -> Vec<Batch> {
        std::mem::take(&mut *self.batches.lock())
    }

    /// The reads since the last call.
    pub fn take_reads(&self) -> Vec<RawRead> {
        std::mem::take(&mut *self.reads.lock())
    }
}

/// Passes all operations to a store, and records them.
#[derive(Debug)]
pub struct Recording<S> {
    inner: S,
    log: Arc<Log>,
}

impl<S: Store> Recording<S> {
    /// Records the operations on `inner`.
    pub fn new(inner: S) -> (Self, Arc<Log>) {
        let log = Arc::new(Log::default());
        (Recording { inner, log: log.clone() }, log)
    }
}

impl<S: Store> Store for Recording<S> {
    type Snapshot = RecordingSnapshot<S::Snapshot>;

    fn snapshot(&self) -> Result<Self::Snapshot> {
        Ok(RecordingSnapshot { inner: self.inner.snapshot()?, log: self.log.clone() })
    }

    fn refreshed(&self, snapshot: &Self::Snapshot) -> Option<Self::Snapshot> {
        let inner = self.inner.refreshed(&snapshot.inner)?;
        Some(RecordingSnapshot { inner, log: self.log.clone() })
    }

    fn apply(&self, batch: Batch) -> Result<(), ApplyError> {
        self.log.batches.lock().push(batch.clone());
        self.inner.apply(batch)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}

/// A snapshot of a [`Recording`] store.
#[derive(Clone, Debug)]
pub struct RecordingSnapshot<V> {
    inner: V,
    log: Arc<Log>,
}

impl<V: Snapshot> Snapshot for RecordingSnapshot<V> {
    type Range<'a> = RecordingRange<'a, V>;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.log.reads.lock().push(RawRead::Get(Bytes::copy_from_slice(key)));
        self.inner.get(key)
    }

    fn range<'a>(&'a self, begin: &[u8], end: &[u8], direction: Direction) -> RecordingRange<'a, V> {
        let (first, last) = (Bytes::copy_from_slice(begin), Bytes::copy_from_slice(end));
        let mut reads = self.log.reads.lock();
        reads.push(RawRead::Range { begin: first, end: last, direction, asked: 0 });
        RecordingRange { rows: self.inner.range(begin, end, direction), log: &self.log, place: reads.len() - 1 }
    }
}

/// Rows of a [`RecordingSnapshot`].
pub struct RecordingRange<'a, V: Snapshot + 'a> {
    rows: V::Range<'a>,
    log: &'a Log,
    place: usize,
}

impl<'a, V: Snapshot + 'a> Iterator for RecordingRange<'a, V> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(RawRead::Range { asked, .. }) = self.log.reads.lock().get_mut(self.place) {
            *asked += 1;
        }
        self.rows.next()
    }
}
