//! The state that all handles and transactions of a database share.

use std::time::Duration;

use bytes::Bytes;
use kv_api::figures::{Counter, Histogram};
use kv_api::{Error, Figure, Limits, Result, error};

use crate::Clock;
use crate::commit::Pipeline;
use crate::estimate::sample::Sample;
use crate::faults::{Fault, Hook};
use crate::random::Random;
use crate::store::{Batch, Snapshot, Store};
use crate::sync::{Arc, Mutex, OnceLock, lock};
use crate::watches::Watches;
use crate::window::timeline::Timeline;
use crate::window::{Held, Hold, Window};

/// The key of the last commit version: eight bytes big-endian, after two bytes of the format. A system key,
/// which users cannot reach.
const VERSION_KEY: &[u8] = b"\xff/occ/version";

/// The format of this crate's own rows in a store.
const FORMAT: u16 = 1;

/// Bounds of the histogram of transactions per batch.
const BATCH_SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 1_024, 4_096];

/// Counts of batches.
pub(crate) struct Batches {
    /// Number of transactions in each.
    pub(crate) sizes: Histogram,
    pub(crate) bytes: Counter,
}

/// See the [module](self).
pub(crate) struct Core<S: Store> {
    pub(crate) clock: SharedClock,
    pub(crate) limits: Limits,
    pub(crate) random: Random,
    pub(crate) timeline: Timeline,
    window: Mutex<Window<S::Snapshot>>,
    pub(crate) pipeline: Pipeline,
    pub(crate) watches: Watches,
    pub(crate) batches: Batches,
    pub(crate) sample: Mutex<Sample>,
    /// Whether it only [follows](Core::replay) another database.
    pub(crate) is_standby: bool,
    /// For tests of a suite.
    pub(crate) fault: Option<Fault>,
    pub(crate) hook: Hook,
    /// The error of every operation after the database closed or failed. Set once.
    closed: OnceLock<Error>,
    /// The last field, so that it is dropped last: dropping a snapshot of the window may remove files of a folder, and
    /// the store holds the folder's lock.
    pub(crate) store: S,
}

/// Closes the database when the last handle is dropped. The committer thread has only the core.
pub(crate) struct Handle<S: Store> {
    pub(crate) core: Arc<Core<S>>,
}

impl<S: Store> Drop for Handle<S> {
    fn drop(&mut self) {
        // Everything acknowledged is synced already, and no caller is left to get an error.
        let _ = self.core.close();
    }
}

/// The injected clock.
#[derive(Clone)]
pub(crate) struct SharedClock(pub(crate) Arc<dyn Clock>);

impl std::ops::Deref for SharedClock {
    type Target = dyn Clock;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::fmt::Debug for SharedClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({:?})", self.0.now())
    }
}

impl<S: Store> Core<S> {
    pub(crate) fn open(
        store: S,
        clock: Arc<dyn Clock>,
        limits: Limits,
        seed: u64,
        is_standby: bool,
        fault: Option<Fault>,
        hook: Hook,
    ) -> Result<Self> {
        let snapshot = store.snapshot()?;
        let last = last_version(&snapshot)?;
        let sample = Sample::open(&snapshot, store.outlives_process())?;
        let timeline = Timeline::new(clock.now(), last);
        Ok(Core {
            store,
            clock: SharedClock(clock),
            limits,
            random: Random::new(seed),
            timeline,
            window: Mutex::new(Window::new(timeline, limits.read_window, snapshot)),
            pipeline: Pipeline::default(),
            watches: Watches::new(limits.watches),
            batches: Batches { sizes: Histogram::new(BATCH_SIZES), bytes: Counter::default() },
            sample: Mutex::new(sample),
            is_standby,
            fault,
            hook,
            closed: OnceLock::new(),
        })
    }

    /// Adds the row that records a batch's version, if the store outlives the process.
    pub(crate) fn record_version(&self, batch: &mut Batch) {
        if self.store.outlives_process() {
            let mark = [FORMAT.to_be_bytes().as_slice(), &batch.version().to_be_bytes()].concat();
            batch.set(Bytes::from_static(VERSION_KEY), mark.into());
        }
    }

    /// Fails if the database is closed or has failed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    pub(crate) fn closed_error(&self) -> Error {
        self.closed.get().cloned().unwrap_or_else(closed)
    }

    /// Closes the database after a failure of its store. Every later operation fails with the cause.
    pub(crate) fn break_down(&self, cause: Error) {
        let detail = cause.context().unwrap_or(cause.name());
        let error = Error::new(cause.code())
            .with_context(format!("the database closed when its store failed; open it again. The failure: {detail}"));
        self.shut(error);
    }

    fn shut(&self, error: Error) -> bool {
        let first = self.closed.set(error).is_ok();
        self.watches.fail_all(&self.closed_error());
        first
    }

    /// Closes the database. Commits in progress end, the store is synced, and every later operation fails.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        if let Err(error) = self.check_open() {
            self.stop();
            return if error.code() == error::SHUTDOWN_IN_PROGRESS { Ok(()) } else { Err(error) };
        }
        self.stop();
        if self.shut(closed()) { self.store.close() } else { Ok(()) }
    }

    pub(crate) fn figures(&self) -> Vec<Figure> {
        let sizes = self.batches.sizes.distribution(1.0);
        let snapshots = self.with_window(|window| window.snapshot_count()) as f64;
        let (queued, watches) = (self.pipeline.queued_bytes() as f64, self.watches.count() as f64);
        vec![
            Figure::histogram("couch_layer_batch_commits", "commits that share a batch", sizes),
            Figure::counter("couch_layer_batch_bytes_total", "bytes of all batches", self.batches.bytes.value()),
            Figure::gauge("couch_layer_commit_queue_bytes", "bytes that wait to be committed", queued),
            Figure::gauge("couch_layer_snapshots", "snapshots that are kept for transactions", snapshots),
            Figure::gauge("couch_layer_watches", "watches that wait for a change", watches),
        ]
    }

    /// Whether a version is within the window by the clock.
    pub(crate) fn is_young(&self, version: i64) -> bool {
        let width = i64::try_from(self.limits.read_window.as_micros()).unwrap_or(i64::MAX);
        version >= self.timeline.version_at(self.clock.now()).saturating_sub(width)
    }

    /// Acts on the window under its lock. Snapshots that leave the window are dropped after the lock is released,
    /// since that may take a while.
    pub(crate) fn with_window<T>(&self, act: impl FnOnce(&mut Window<S::Snapshot>) -> T) -> T {
        let (outcome, dropped) = {
            let mut window = lock(&self.window);
            (act(&mut window), window.take_dropped())
        };
        drop(dropped);
        outcome
    }

    /// The newest version that can be read, its snapshot, and a hold on the snapshot.
    pub(crate) fn newest(&self) -> (i64, Arc<S::Snapshot>, Hold<S::Snapshot>) {
        let now = self.clock.now();
        self.with_window(|window| {
            window.refresh_head(|snapshot| self.store.refreshed(snapshot));
            (window.newest(now), window.head().clone(), window.hold_head())
        })
    }

    /// The snapshot at a version, and a hold on it.
    pub(crate) fn snapshot_at(&self, version: i64) -> Result<Held<S::Snapshot>> {
        let now = self.clock.now();
        self.with_window(|window| window.at(version, now))
    }

    /// A random part of `backoff`.
    pub(crate) fn jittered(&self, backoff: Duration) -> Duration {
        backoff.mul_f64(self.random.fraction())
    }
}

fn closed() -> Error {
    Error::new(error::SHUTDOWN_IN_PROGRESS).with_context("the database is closed")
}

/// The commit version of the newest batch in a store; 0 if there is none. An engine can check with it, while it
/// opens, that nothing was lost.
pub fn last_version(snapshot: &impl Snapshot) -> Result<i64> {
    snapshot.get(VERSION_KEY)?.map_or(Ok(0), |mark| read_mark(&mark))
}

fn read_mark(mark: &[u8]) -> Result<i64> {
    let damaged = || Error::new(error::FILE_CORRUPT).with_context("the store's version mark is damaged");
    let (format, version) = mark.split_at_checked(2).ok_or_else(damaged)?;
    let format = u16::from_be_bytes(format.try_into().map_err(|_| damaged())?);
    if format != FORMAT {
        return Err(Error::new(error::UNSUPPORTED_OPERATION).with_context(format!(
            "the store has format {format}, this program reads format {FORMAT}: use the version that wrote it"
        )));
    }
    let version = i64::from_be_bytes(version.try_into().map_err(|_| damaged())?);
    if version < 0 { Err(damaged()) } else { Ok(version) }
}
