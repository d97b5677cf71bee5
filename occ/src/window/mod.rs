//! The window: which versions can be read, and the snapshot of each.
//!
//! ```text
//!   versions   ──────┬───────────┬────────────────┬──────────────►
//!   snapshots        from 10     from 17          from 42 = head
//!                    └ reads at 10..17             └ reads at 42 up to the newest read version
//! ```
//!
//! A snapshot keeps the store from reclaiming what later batches replaced. So only the window owns snapshots. A
//! transaction has a [`Hold`], which finds the snapshot as long as the window keeps it. The window drops a snapshot
//! when its versions are too old, or earlier if much was written since:
//!
//! | written since               | the snapshot is kept |
//! |-----------------------------|----------------------|
//! | [`RECENT`], or one batch    | for any transaction that may set such a read version |
//! | up to [`MOST_BYTES`]        | while a transaction reads at it |
//! | more                        | no: 1007 before the window has passed, rather than memory without a bound |
//!
//! Snapshots are dropped by calls, not by a timer: by each commit, by the first read of each transaction, and by a
//! read that is too late. An idle database keeps its snapshots. They cost nothing while nothing is written.
//!
//! Invariants: a snapshot is added only after its batch is synced; the newest read version that was returned is
//! below every later commit version; a version older than the window, by the clock, cannot be read, nor can one
//! from before the database was opened.

pub(crate) mod timeline;

use std::collections::VecDeque;
use std::time::Duration;

use kv_api::{Error, Result, error};

use crate::sync::{Arc, Weak};
use crate::window::timeline::Timeline;

/// Snapshots that are kept even if no transaction reads at them. The snapshot before the newest is always one of them.
/// A snapshot may hold memory that the store has not flushed yet, so it may keep several times these bytes. The memory
/// that recent batches replaced has to fit a processor's cache: with 10 MiB, commits of ten and a hundred rows to the
/// engine in memory are 23 and 34 % slower, and with 1,024 snapshots a PUT of a document takes 9 % more.
const RECENT: Recent = Recent { snapshots: 64, bytes: 256 << 10 };

/// No snapshot is kept after this many bytes were written since.
const MOST_BYTES: u64 = 256 << 20;

struct Recent {
    snapshots: usize,
    /// Bytes of the batches that followed.
    bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Window<V> {
    timeline: Timeline,
    /// Width of the window, in versions.
    width: i64,
    /// The newest snapshots without a gap. The last one is the head.
    snapshots: VecDeque<Entry<V>>,
    /// Older snapshots that transactions read at.
    held: VecDeque<Entry<V>>,
    /// Bytes of all batches.
    bytes: u64,
    /// Snapshots that left the window. They are dropped after its lock is released.
    dropped: Vec<Arc<V>>,
    /// The newest version that can be read.
    newest: i64,
    /// The commit version of the batch in progress.
    committing: Option<i64>,
}

/// A snapshot and its versions.
#[derive(Debug)]
struct Entry<V> {
    from: i64,
    /// The first version of the next snapshot; the greatest number in the head.
    until: i64,
    /// Bytes of all batches up to this snapshot.
    bytes: u64,
    snapshot: Arc<V>,
    /// Each transaction that reads this snapshot has a clone.
    readers: Arc<()>,
}

impl<V> Entry<V> {
    fn is_read(&self) -> bool {
        Arc::strong_count(&self.readers) > 1
    }

    fn hold(&self) -> Hold<V> {
        Hold { snapshot: Arc::downgrade(&self.snapshot), _reader: self.readers.clone() }
    }
}

/// A transaction's reference to the snapshot that it reads. It does not keep the snapshot alive.
#[derive(Debug)]
pub(crate) struct Hold<V> {
    snapshot: Weak<V>,
    _reader: Arc<()>,
}

/// A snapshot for one read, and a hold on it for later reads.
pub(crate) type Held<V> = (Arc<V>, Hold<V>);

impl<V> Hold<V> {
    /// The snapshot, for the duration of a read. `None` if the window has dropped or refreshed it.
    pub(crate) fn snapshot(&self) -> Option<Arc<V>> {
        self.snapshot.upgrade()
    }
}

impl<V> Window<V> {
    pub(crate) fn new(timeline: Timeline, width: Duration, snapshot: V) -> Self {
        let width = i64::try_from(width.as_micros()).unwrap_or(i64::MAX);
        let newest = timeline.first();
        let first =
            Entry { from: newest, until: i64::MAX, bytes: 0, snapshot: Arc::new(snapshot), readers: Arc::default() };
        let (snapshots, held, dropped) = (VecDeque::from([first]), VecDeque::new(), Vec::new());
        Window { timeline, width, snapshots, held, bytes: 0, dropped, newest, committing: None }
    }

    /// The newest version that can be read. Versions advance with time, even if nothing is committed.
    pub(crate) fn newest(&mut self, now: Duration) -> i64 {
        if self.committing.is_none() {
            self.newest = self.newest.max(self.timeline.version_at(now));
        }
        self.prune(now);
        self.newest
    }

    /// The snapshot at `version`: 1009 if the version is in the future, 1007 if it is too old.
    pub(crate) fn at(&mut self, version: i64, now: Duration) -> Result<Held<V>> {
        if version > self.newest(now) {
            return Err(Error::new(error::FUTURE_VERSION));
        }
        let is_young = version >= self.oldest(now);
        let entry = self.entry(version).filter(|_| is_young).ok_or(Error::new(error::TRANSACTION_TOO_OLD))?;
        Ok((entry.snapshot.clone(), entry.hold()))
    }

    /// Number of snapshots that are kept.
    pub(crate) fn snapshot_count(&self) -> usize {
        self.snapshots.len() + self.held.len()
    }

    fn entry(&self, version: i64) -> Option<&Entry<V>> {
        let snapshots = match self.snapshots.front() {
            Some(first) if first.from <= version => &self.snapshots,
            _ => &self.held,
        };
        let at = snapshots.partition_point(|entry| entry.from <= version).checked_sub(1)?;
        snapshots.get(at).filter(|entry| version < entry.until)
    }

    /// The oldest version that can be read, and that a commit may have read at. What was committed before the
    /// database was opened is unknown, as after a recovery of FoundationDB.
    pub(crate) fn oldest(&self, now: Duration) -> i64 {
        let newest = self.timeline.version_at(now).max(self.newest);
        newest.saturating_sub(self.width).max(self.timeline.first())
    }

    /// Begins a batch and returns its commit version.
    pub(crate) fn begin_batch(&mut self, now: Duration) -> i64 {
        let version = self.timeline.version_at(now).max(self.newest.saturating_add(1));
        self.committing = Some(version);
        version
    }

    /// Begins a batch of another database, and returns the version at which it can be read here: its own, or the next
    /// one where reads have passed it already.
    pub(crate) fn begin_replay(&mut self, version: i64, now: Duration) -> i64 {
        let version = self.begin_batch(now).max(version);
        self.committing = Some(version);
        version
    }

    /// Makes a batch of `bytes` readable. It is in the store and synced.
    pub(crate) fn publish(&mut self, version: i64, snapshot: Arc<V>, bytes: usize, now: Duration) {
        self.committing = None;
        self.newest = version;
        self.bytes += bytes as u64;
        if let Some(head) = self.snapshots.back_mut() {
            head.until = version;
        }
        let readers = Arc::default();
        self.snapshots.push_back(Entry { from: version, until: i64::MAX, bytes: self.bytes, snapshot, readers });
        self.prune(now);
        // Drop the snapshots whose transactions have ended. There are few.
        let dropped = &mut self.dropped;
        self.held.retain(|entry| {
            let is_read = entry.is_read();
            if !is_read {
                dropped.push(entry.snapshot.clone());
            }
            is_read
        });
    }

    /// Skips the version of a batch that was not written.
    pub(crate) fn abandon(&mut self, version: i64) {
        self.committing = None;
        self.newest = version;
    }

    /// Whether a batch is in progress.
    pub(crate) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    fn head_entry(&self) -> &Entry<V> {
        // There is always one: `new` adds it and `prune` leaves it.
        &self.snapshots[self.snapshots.len() - 1]
    }

    /// The newest snapshot.
    pub(crate) fn head(&self) -> &Arc<V> {
        &self.head_entry().snapshot
    }

    /// A hold on the newest snapshot.
    pub(crate) fn hold_head(&self) -> Hold<V> {
        self.head_entry().hold()
    }

    /// Replaces the newest snapshot by the result of `refreshed`: another snapshot of the same rows.
    pub(crate) fn refresh_head(&mut self, refreshed: impl FnOnce(&V) -> Option<V>) {
        if let Some(head) = self.snapshots.back_mut()
            && let Some(snapshot) = refreshed(&head.snapshot)
        {
            self.dropped.push(std::mem::replace(&mut head.snapshot, Arc::new(snapshot)));
        }
    }

    fn prune(&mut self, now: Duration) {
        let (oldest, bytes) = (self.oldest(now), self.bytes);
        let is_too_old = |entry: &Entry<V>| entry.until <= oldest || bytes - entry.bytes > MOST_BYTES;
        while let Some(entry) = self.held.pop_front_if(|entry| is_too_old(entry)) {
            self.dropped.push(entry.snapshot);
        }
        while self.snapshots.len() > 1 {
            let are_many = self.snapshots.len() > RECENT.snapshots;
            let is_last = self.snapshots.len() == 2;
            let is_recent = |entry: &Entry<V>| is_last || !are_many && bytes - entry.bytes <= RECENT.bytes;
            let entry = self.snapshots.pop_front_if(|entry| is_too_old(entry) || !is_recent(entry));
            let Some(entry) = entry else { break };
            match entry.is_read() && !is_too_old(&entry) {
                true => self.held.push_back(entry),
                false => self.dropped.push(entry.snapshot),
            }
        }
    }

    /// Takes the snapshots that left the window since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<Arc<V>> {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn window() -> Window<&'static str> {
        Window::new(Timeline::new(Duration::ZERO, 0), 5 * SECOND, "empty")
    }

    fn snapshot(window: &mut Window<&'static str>, version: i64, now: Duration) -> Result<&'static str, i32> {
        window.at(version, now).map(|(snapshot, _)| *snapshot).map_err(|error| error.code())
    }

    /// Publishes a batch of `bytes` and returns its version.
    fn write(window: &mut Window<&'static str>, snapshot: &'static str, bytes: u64) -> i64 {
        let version = window.begin_batch(SECOND);
        window.publish(version, Arc::new(snapshot), bytes as usize, SECOND);
        version
    }

    #[test]
    fn reads_at_any_version_of_the_window() {
        let mut window = window();
        let first = write(&mut window, "one", 1);
        let second = write(&mut window, "two", 1);
        assert_eq!(second, first + 1);
        assert_eq!(snapshot(&mut window, first - 1, SECOND), Ok("empty"));
        assert_eq!(snapshot(&mut window, first, SECOND), Ok("one"));
        assert_eq!(snapshot(&mut window, second, SECOND), Ok("two"));
        assert_eq!(snapshot(&mut window, second + 1, SECOND), Err(1009));
        assert_eq!(snapshot(&mut window, second + 1, 2 * SECOND), Ok("two"), "versions pass with time");
        assert_eq!(snapshot(&mut window, second, 7 * SECOND), Err(1007));
        assert_eq!((*window.head().as_ref(), window.snapshots.len()), ("two", 1));
    }

    #[test]
    fn what_is_written_leaves_the_recent_views_and_those_that_are_read() {
        let mut window = window();
        let first = write(&mut window, "one", 1);
        let (_, hold) = window.at(first, SECOND).unwrap();
        let second = write(&mut window, "two", 1);
        let third = write(&mut window, "three", RECENT.bytes);
        assert_eq!(snapshot(&mut window, second, SECOND), Ok("two"));
        write(&mut window, "four", 1);
        assert_eq!(snapshot(&mut window, first - 1, SECOND), Err(1007));
        assert_eq!(snapshot(&mut window, first, SECOND), Ok("one"), "a transaction reads it");
        assert_eq!(snapshot(&mut window, second, SECOND), Err(1007), "in a gap");
        assert_eq!(snapshot(&mut window, third, SECOND), Ok("three"));
        assert_eq!(window.take_dropped().len(), 2);
        drop(hold);
        write(&mut window, "five", 1);
        assert_eq!(snapshot(&mut window, first, SECOND), Err(1007), "nobody reads it any more");

        for _ in 0..2 * RECENT.snapshots {
            write(&mut window, "more", 0);
        }
        assert_eq!((window.snapshots.len(), window.held.len()), (RECENT.snapshots, 0));
    }

    #[test]
    fn a_view_that_is_read_goes_with_time_and_with_very_many_bytes() {
        for bytes in [0, MOST_BYTES] {
            let mut window = window();
            let version = write(&mut window, "one", 1);
            let (snapshot, hold) = window.at(version, SECOND).unwrap();
            drop(snapshot);
            write(&mut window, "two", RECENT.bytes + 1);
            assert!(hold.snapshot().is_some());
            write(&mut window, "three", bytes);
            if bytes == 0 {
                window.newest(5 * SECOND);
                assert!(hold.snapshot().is_some());
                window.newest(7 * SECOND);
            }
            window.take_dropped();
            assert!(hold.snapshot().is_none());
        }
    }

    #[test]
    fn the_view_before_the_newest_is_kept_however_large_the_batch() {
        let mut window = window();
        let first = write(&mut window, "one", 1);
        write(&mut window, "two", 10 * RECENT.bytes);
        assert_eq!(snapshot(&mut window, first, SECOND), Ok("one"));
        write(&mut window, "three", 1);
        assert_eq!(snapshot(&mut window, first, SECOND), Err(1007));
    }

    /// A transaction goes on reading with the refreshed snapshot, which the window keeps for it.
    #[test]
    fn a_refreshed_view_replaces_the_one_that_is_held() {
        let mut window = window();
        let version = write(&mut window, "one", 1);
        let hold = window.hold_head();
        window.refresh_head(|_| Some("refreshed"));
        window.take_dropped();
        assert!(hold.snapshot().is_none());
        write(&mut window, "two", RECENT.bytes + 1);
        assert_eq!(snapshot(&mut window, version, SECOND), Ok("refreshed"));
    }

    #[test]
    fn no_read_version_reaches_a_commit_under_way() {
        let mut window = window();
        let version = window.begin_batch(SECOND);
        assert!(window.newest(3 * SECOND) < version);
        assert_eq!(*window.head().as_ref(), "empty");
        window.publish(version, Arc::new("one"), 1, 3 * SECOND);
        assert!(window.newest(3 * SECOND) >= version);
    }
}
