//! Following the log: who follows gets each record once it is durable.
//!
//! ```text
//!   committer   append ─► sync ─► answer            append ─► sync ─► answer
//!                  │         │                         │         │
//!   queue          └ added   └ durable, may be taken   └ added   └ durable, may be taken
//! ```
//!
//! A cut takes what is durable, with the time, under the lock that makes records durable here.
//!
//! The queue shares the memory of the records with the log's runs, and has a bound. Beyond it everything in it is
//! dropped, and who follows begins again from the tables. Commits wait while a following begins, which reads the log,
//! and never for a slow reader. Without a tail nothing is kept.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use kv_api::{Durability, Error, Result, error};
use occ::last_version;
use occ::store::{ApplyError, Batch};
use parking_lot::Mutex;

use super::log::{self, LogRecord};
use super::run::Run;
use crate::on_disk::DiskStore;

/// Bytes of runs that a [`Replay`] applies together.
const REPLAYED_TOGETHER: usize = 16 << 20;

/// Cache of the store that a [`Replay`] writes.
const CACHE: u64 = 16 << 20;

#[derive(Debug)]
struct Queue {
    records: VecDeque<LogRecord>,
    /// Number of records, from the first, that are durable, and the version of the last of them.
    durable: usize,
    version: i64,
    /// Bytes of all records, and the most that there may be.
    bytes: usize,
    most: usize,
    missed: bool,
}

impl Queue {
    fn miss(&mut self) {
        self.records = VecDeque::new();
        (self.durable, self.bytes, self.missed) = (0, 0, true);
    }
}

/// The end of a log, for who follows it. Dropping it ends the following.
#[derive(Debug)]
pub struct Tail(Arc<Mutex<Queue>>);

/// Everything that became durable since the last cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The time of the cut.
    pub ms: u64,
    /// Version of the newest durable batch.
    pub version: i64,
    /// The records, oldest first. Empty if nothing is new.
    pub records: Vec<LogRecord>,
}

/// The tail was read too slowly, or another one took its place, and records are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed;

impl Tail {
    /// Takes what is durable, and asks for the time meanwhile: what was acknowledged up to then is in this cut or an
    /// earlier one, and what begins to be committed later is in a later one.
    ///
    /// # Errors
    /// [`Missed`] from then on, once records are gone.
    pub fn take(&self, now_ms: impl FnOnce() -> u64) -> Result<Cut, Missed> {
        let mut queue = self.0.lock();
        if queue.missed {
            return Err(Missed);
        }
        let durable = std::mem::take(&mut queue.durable);
        let records: Vec<LogRecord> = queue.records.drain(..durable).collect();
        queue.bytes -= records.iter().map(|record| record.bytes().len()).sum::<usize>();
        Ok(Cut { ms: now_ms(), version: queue.version, records })
    }
}

/// The tail that a store has, if anybody follows its log.
#[derive(Debug, Default)]
pub(super) struct Followed(Mutex<Weak<Mutex<Queue>>>);

impl Followed {
    /// Gives these records, which are durable and end at a version, and later ones to a new tail, in place of an earlier
    /// one. Called under the log's lock.
    pub(super) fn begin(&self, records: Vec<LogRecord>, version: i64, most: usize) -> Tail {
        let bytes: usize = records.iter().map(|record| record.bytes().len()).sum();
        let most = most.saturating_add(bytes);
        let queue = Queue { durable: records.len(), records: records.into(), version, bytes, most, missed: false };
        let queue = Arc::new(Mutex::new(queue));
        let earlier = std::mem::replace(&mut *self.0.lock(), Arc::downgrade(&queue));
        if let Some(earlier) = earlier.upgrade() {
            earlier.lock().miss();
        }
        Tail(queue)
    }

    /// Adds a record that was appended. Called under the log's lock.
    pub(super) fn add(&self, record: impl FnOnce() -> LogRecord) {
        let Some(queue) = self.0.lock().upgrade() else { return };
        let mut queue = queue.lock();
        if queue.missed {
            return;
        }
        let record = record();
        queue.bytes += record.bytes().len();
        queue.records.push_back(record);
        if queue.bytes > queue.most {
            queue.miss();
        }
    }

    /// Everything that was added is durable. Called by the thread that adds.
    pub(super) fn synced(&self) {
        if let Some(queue) = self.0.lock().upgrade() {
            let mut queue = queue.lock();
            queue.durable = queue.records.len();
            queue.version = queue.records.back().map_or(queue.version, LogRecord::version);
        }
    }
}

/// Records that are applied together, as one batch.
#[derive(Debug)]
pub(crate) struct Together {
    version: i64,
    runs: Vec<Arc<Run>>,
    bytes: usize,
}

impl Together {
    /// After the batch of a version.
    pub(crate) fn after(version: i64) -> Self {
        Together { version, runs: Vec::new(), bytes: 0 }
    }

    /// Adds a record, unless it is older. Returns whether there are enough.
    ///
    /// # Errors
    /// 1522 if it does not continue the others, or is damaged.
    pub(crate) fn add(&mut self, record: &LogRecord) -> Result<bool> {
        if record.version() > self.version {
            if record.previous() != self.version {
                let sentence = format!("the log continues from version {}, not {}", record.previous(), self.version);
                return Err(Error::new(error::FILE_CORRUPT).with_context(sentence));
            }
            let run = record.run()?;
            self.bytes += run.size();
            self.version = record.version();
            self.runs.push(Arc::new(run));
        }
        Ok(self.bytes >= REPLAYED_TOGETHER)
    }

    /// Takes the batch with the effect of all. `None` if there are none.
    ///
    /// # Errors
    /// 2101 for more bytes than a run can have.
    pub(crate) fn take(&mut self) -> Result<Option<Batch>> {
        self.bytes = 0;
        let runs = std::mem::take(&mut self.runs);
        if runs.is_empty() { Ok(None) } else { Run::batch_of(&runs, self.version).map(Some) }
    }
}

/// Applies records of a log to the store in a folder that nobody has open, as the flushes of its log would have done.
#[derive(Debug)]
pub struct Replay<S> {
    below: S,
    together: Together,
}

impl<S: DiskStore> Replay<S> {
    /// Opens the store without its log.
    ///
    /// # Errors
    /// As [`DiskStore::open`].
    pub fn open(folder: &std::path::Path) -> Result<Self> {
        let below = S::open(folder, CACHE, Durability::Disk)?;
        let version = last_version(&below.snapshot()?)?;
        Ok(Replay { below, together: Together::after(version) })
    }

    /// The version of the newest batch.
    pub fn version(&self) -> i64 {
        self.together.version
    }

    /// Applies a record, unless the store has it.
    ///
    /// # Errors
    /// 1522 if it does not continue the store, or is damaged; the store's errors.
    pub fn apply(&mut self, record: &LogRecord) -> Result<()> {
        if self.together.add(record)? { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        match self.together.take()? {
            Some(batch) => self.below.apply(batch).map_err(ApplyError::into_error),
            None => Ok(()),
        }
    }

    /// Makes everything durable, and closes the store. Returns the version of its newest batch.
    ///
    /// # Errors
    /// The store's errors.
    pub fn finish(mut self) -> Result<i64> {
        self.flush()?;
        self.below.sync()?;
        self.below.close()?;
        Ok(self.version())
    }
}

/// Reads records that were written one after the other, as [`LogRecord::bytes`] gives them.
///
/// # Errors
/// 1522 if they are damaged.
pub fn records(bytes: &Bytes) -> Result<Vec<LogRecord>> {
    log::split(bytes, 0)
        .ok_or_else(|| Error::new(error::FILE_CORRUPT).with_context("records of the log cannot be read"))
}
