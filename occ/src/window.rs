//! The window: which versions can be read, and the view of each.
//!
//! ```text
//!   versions   ──────┬───────────┬────────────────┬──────────────►
//!   views          from 10     from 17          from 42 = head
//!                    └ reads at 10..17             └ reads at 42 up to the newest read version
//! ```
//!
//! A view holds on to what later batches replaced, which the store could otherwise use again: under very
//! many writes only those views are kept whose versions somebody was told ([`Window::tell`]) and may ask
//! for. Transactions that have begun hold their own view.
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
/// than the memory.
const MOST: Extent = Extent { views: 4096, changes: 100_000 };

/// The same for views at whose versions nobody was told: nobody is going to ask for them, but for who
/// made a version up.
const UNTOLD: Extent = Extent { views: 64, changes: 2_000 };

#[derive(Clone, Copy, Debug)]
struct Extent {
    views: usize,
    changes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Window<V> {
    timeline: Timeline,
    /// How many versions can be read at.
    width: i64,
    /// The newest views without a gap; the last is the head.
    views: VecDeque<Entry<V>>,
    /// Older ones, at whose versions somebody was told.
    told: VecDeque<Entry<V>>,
    /// The changes of all batches.
    changes: u64,
    /// Views that nobody needs any more: to be dropped outside of the window's lock.
    dropped: Vec<V>,
    /// The newest version that can be read at.
    newest: i64,
    /// The commit version of the batch that is under way.
    committing: Option<i64>,
}

/// A view and the versions at which it holds.
#[derive(Debug)]
struct Entry<V> {
    from: i64,
    /// Where the next one begins; of the head, beyond all.
    until: i64,
    /// The changes of all batches up to it.
    changes: u64,
    told: bool,
    view: V,
}

impl<V: Clone> Window<V> {
    pub(crate) fn new(timeline: Timeline, width: Duration, view: V) -> Self {
        let width = i64::try_from(width.as_micros()).unwrap_or(i64::MAX);
        let newest = timeline.first();
        let views = VecDeque::from([Entry { from: newest, until: i64::MAX, changes: 0, told: false, view }]);
        let (told, dropped) = (VecDeque::new(), Vec::new());
        Window { timeline, width, views, told, changes: 0, dropped, newest, committing: None }
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
        match self.entry(version) {
            Some(entry) => {
                // Who asked once may ask again.
                entry.told = true;
                Ok(entry.view.clone())
            }
            None => Err(Error::new(error::TRANSACTION_TOO_OLD)),
        }
    }

    /// Keeps the view at `version`, which somebody is told, while the window lasts; where a batch was
    /// committed there, the view right before it too.
    pub(crate) fn tell(&mut self, version: i64) {
        let Some(entry) = self.entry(version) else { return };
        entry.told = true;
        if entry.from == version
            && let Some(before) = self.entry(version - 1)
        {
            before.told = true;
        }
    }

    fn entry(&mut self, version: i64) -> Option<&mut Entry<V>> {
        let views = match self.views.front() {
            Some(first) if first.from <= version => &mut self.views,
            _ => &mut self.told,
        };
        let at = views.partition_point(|entry| entry.from <= version).checked_sub(1)?;
        views.get_mut(at).filter(|entry| version < entry.until)
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
        self.changes += changes as u64;
        if let Some(head) = self.views.back_mut() {
            head.until = version;
        }
        self.views.push_back(Entry { from: version, until: i64::MAX, changes: self.changes, told: false, view });
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

    /// Puts what `renewed` gives for the newest view in its place: the same rows.
    pub(crate) fn renew(&mut self, renewed: impl FnOnce(&V) -> Option<V>) {
        if let Some(head) = self.views.back_mut()
            && let Some(view) = renewed(&head.view)
        {
            self.dropped.push(std::mem::replace(&mut head.view, view));
        }
    }

    fn advance(&mut self, now: Duration) {
        if self.committing.is_none() {
            self.newest = self.newest.max(self.timeline.version_at(now));
        }
        self.prune(now);
    }

    fn prune(&mut self, now: Duration) {
        let oldest = self.oldest(now);
        let changes = self.changes;
        let is_beyond = |entry: &Entry<V>, views: usize, most: Extent| {
            entry.until <= oldest || views > most.views || changes - entry.changes > most.changes
        };
        while self.views.len() > 1 {
            let views = self.views.len();
            let Some(entry) = self.views.pop_front_if(|entry| is_beyond(entry, views, UNTOLD)) else { break };
            match entry.told {
                true => self.told.push_back(entry),
                false => self.dropped.push(entry.view),
            }
        }
        loop {
            let views = self.views.len() + self.told.len();
            let Some(entry) = self.told.pop_front_if(|entry| is_beyond(entry, views, MOST)) else { break };
            self.dropped.push(entry.view);
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

    /// Publishes a batch of so many changes; its version.
    fn write(window: &mut Window<&'static str>, view: &'static str, changes: usize) -> i64 {
        let version = window.begin_batch(SECOND);
        window.publish(version, view, changes, SECOND);
        version
    }

    #[test]
    fn very_many_changes_leave_what_somebody_was_told() {
        let mut window = window();
        let first = write(&mut window, "one", 1);
        let second = write(&mut window, "two", 1);
        let third = write(&mut window, "three", 1);
        window.tell(second);
        for _ in 0..UNTOLD.views {
            write(&mut window, "more", 1);
        }
        assert_eq!(window.at(first - 1, SECOND).unwrap_err().code(), 1007, "nobody was told");
        assert_eq!(window.at(first, SECOND).unwrap(), "one", "right before one that somebody was told");
        assert_eq!(window.at(second, SECOND).unwrap(), "two");
        assert_eq!(window.at(third, SECOND).unwrap_err().code(), 1007, "in a gap");
        assert_eq!(window.take_dropped(), ["empty", "three"]);
        let last = write(&mut window, "last", UNTOLD.changes as usize + 1);
        assert_eq!((window.views.len(), window.told.len()), (1, 2));
        assert_eq!(window.at(last - 1, SECOND).unwrap_err().code(), 1007);
        assert_eq!(window.at(last, SECOND).unwrap(), "last");
        assert_eq!(window.at(second, 6 * SECOND).unwrap(), "two");
        assert_eq!(window.at(second, 7 * SECOND).unwrap_err().code(), 1007);
        assert!(window.told.is_empty());
    }

    #[test]
    fn very_many_changes_shorten_the_window() {
        let mut window = window();
        let first = write(&mut window, "one", MOST.changes as usize);
        window.tell(first);
        assert_eq!(window.at(first, SECOND).unwrap(), "one");
        let second = write(&mut window, "two", MOST.changes as usize);
        assert_eq!(window.at(first, SECOND).unwrap(), "one");
        assert_eq!(window.at(first - 1, SECOND).unwrap_err().code(), 1007);
        assert_eq!(window.take_dropped(), ["empty"]);
        window.tell(second);
        for _ in 0..2 * MOST.views {
            let version = write(&mut window, "more", 1);
            window.tell(version);
        }
        assert_eq!(window.views.len() + window.told.len(), MOST.views);
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
