//! The window: which versions can be read, and the view of each.
//!
//! ```text
//!   versions   ──────┬───────────┬────────────────┬──────────────►
//!   views          from 10     from 17          from 42 = head
//!                    └ reads at 10..17             └ reads at 42 up to the newest read version
//! ```
//!
//! Invariants: a view is here only once its batch is synced; the newest read version that was handed
//! out is below every commit version that is given later; a version older than the window by the clock
//! is not readable, even where nothing was written since.

use std::collections::VecDeque;
use std::time::Duration;

use kv_api::{Error, Result, error};

use crate::sequencer::Timeline;

/// More views than this, and views before more changed keys than this, are not kept: under very many
/// writes the oldest part of the window is given up (1007 for those who set such a read version) rather
/// than the memory. Transactions that have begun hold their own view.
const MOST_VIEWS: usize = 4096;
const MOST_CHANGES: usize = 100_000;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Window<V> {
    timeline: Timeline,
    /// How many versions can be read at.
    width: i64,
    views: VecDeque<Entry<V>>,
    /// The changes of all views but the oldest.
    changes: usize,
    /// Views that nobody needs any more: to be dropped outside of the window's lock.
    dropped: Vec<V>,
    /// The newest version that can be read at.
    newest: i64,
    /// The commit version of the batch that is under way.
    committing: Option<i64>,
}

/// A view, from which version on it holds, and how many changes made it of the one before.
#[derive(Debug)]
struct Entry<V> {
    from: i64,
    changes: usize,
    view: V,
}

impl<V: Clone> Window<V> {
    pub(crate) fn new(timeline: Timeline, width: Duration, view: V) -> Self {
        let width = i64::try_from(width.as_micros()).unwrap_or(i64::MAX);
        let newest = timeline.first();
        let views = VecDeque::from([Entry { from: newest, changes: 0, view }]);
        Window { timeline, width, views, changes: 0, dropped: Vec::new(), newest, committing: None }
    }

    /// The newest version, and its view. Versions pass with time even where nothing is committed.
    pub(crate) fn newest(&mut self, now: Duration) -> (i64, V) {
        self.advance(now);
        (self.newest, self.head().clone())
    }

    /// The view at `version`: 1009 when it is ahead of the database, 1007 when it is too old.
    pub(crate) fn at(&mut self, version: i64, now: Duration) -> Result<V> {
        self.advance(now);
        if version > self.newest {
            return Err(Error::new(error::FUTURE_VERSION));
        }
        if version < self.oldest(now) {
            return Err(Error::new(error::TRANSACTION_TOO_OLD));
        }
        let after = self.views.partition_point(|entry| entry.from <= version);
        match after.checked_sub(1).and_then(|at| self.views.get(at)) {
            Some(entry) => Ok(entry.view.clone()),
            None => Err(Error::new(error::TRANSACTION_TOO_OLD)),
        }
    }

    /// The oldest version that can be read at, and that a commit may have read at.
    pub(crate) fn oldest(&self, now: Duration) -> i64 {
        self.timeline.version_at(now).max(self.newest).saturating_sub(self.width)
    }

    /// Begins a batch: its commit version.
    pub(crate) fn begin_batch(&mut self, now: Duration) -> i64 {
        let version = self.timeline.version_at(now).max(self.newest.saturating_add(1));
        self.committing = Some(version);
        version
    }

    /// The batch is in the store and synced: it can be read.
    pub(crate) fn publish(&mut self, version: i64, view: V, changes: usize, now: Duration) {
        self.committing = None;
        self.newest = version;
        self.changes += changes;
        self.views.push_back(Entry { from: version, changes, view });
        self.prune(now);
    }

    /// The batch committed nothing; its version passes.
    pub(crate) fn abandon(&mut self, version: i64) {
        self.committing = None;
        self.newest = version;
    }

    /// Whether a batch is under way.
    pub(crate) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// The newest view.
    pub(crate) fn head(&self) -> &V {
        // The constructor puts one in and pruning leaves one.
        &self.views[self.views.len() - 1].view
    }

    fn advance(&mut self, now: Duration) {
        if self.committing.is_none() {
            self.newest = self.newest.max(self.timeline.version_at(now));
        }
        self.prune(now);
    }

    fn prune(&mut self, now: Duration) {
        let oldest = self.oldest(now);
        while let Some(next) = self.views.get(1)
            && (next.from <= oldest || self.views.len() > MOST_VIEWS || self.changes > MOST_CHANGES)
        {
            self.changes -= next.changes;
            self.dropped.extend(self.views.pop_front().map(|entry| entry.view));
        }
    }

    /// The views that have left the window since the last call.
    pub(crate) fn take_dropped(&mut self) -> Vec<V> {
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

    #[test]
    fn reads_at_any_version_of_the_window() {
        let mut window = window();
        let first = window.begin_batch(SECOND);
        window.publish(first, "one", 1, SECOND);
        let second = window.begin_batch(SECOND);
        assert_eq!(second, first + 1);
        window.publish(second, "two", 1, SECOND);
        assert_eq!(window.at(first - 1, SECOND).unwrap(), "empty");
        assert_eq!(window.at(first, SECOND).unwrap(), "one");
        assert_eq!(window.at(second, SECOND).unwrap(), "two");
        assert_eq!(window.at(second + 1, SECOND).unwrap_err().code(), 1009);
        assert_eq!(window.at(second + 1, 2 * SECOND).unwrap(), "two", "versions pass with time");
        assert_eq!(window.at(second, 7 * SECOND).unwrap_err().code(), 1007);
        assert_eq!(window.newest(7 * SECOND).1, "two");
        assert_eq!(window.views.len(), 1);
    }

    #[test]
    fn very_many_changes_shorten_the_window() {
        let mut window = window();
        let first = window.begin_batch(SECOND);
        window.publish(first, "one", MOST_CHANGES, SECOND);
        assert_eq!(window.at(first, SECOND).unwrap(), "one");
        let second = window.begin_batch(SECOND);
        window.publish(second, "two", MOST_CHANGES, SECOND);
        assert_eq!(window.at(first, SECOND).unwrap(), "one", "the view before the last batch stays");
        assert_eq!(window.at(first - 1, SECOND).unwrap_err().code(), 1007);
        assert_eq!(window.take_dropped(), ["empty"]);
        for _ in 0..2 * MOST_VIEWS {
            let version = window.begin_batch(SECOND);
            window.publish(version, "more", 1, SECOND);
        }
        assert_eq!(window.views.len(), MOST_VIEWS);
        assert_eq!(window.head(), &"more");
    }

    #[test]
    fn no_read_version_reaches_a_commit_under_way() {
        let mut window = window();
        let version = window.begin_batch(SECOND);
        let (read, view) = window.newest(3 * SECOND);
        assert!(read < version);
        assert_eq!(view, "empty");
        window.publish(version, "one", 1, 3 * SECOND);
        assert!(window.newest(3 * SECOND).0 >= version);
    }
}
