//! The sequencer: versions.
//!
//! Versions advance by a million in a second of clock time, as FoundationDB's do, and by one at least
//! from one commit to the next. They start at the clock's own time or right after the last version the
//! store remembers, whichever is later, so that none ever repeats, over restarts too; a clock that
//! counts from the Unix epoch keeps them in step with time.

use std::time::Duration;

/// Maps clock time to versions. Fixed when the database opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    opened: Duration,
    first: i64,
}

impl Timeline {
    /// The timeline of a database that is opened `now` and last committed at `last`.
    pub(crate) fn new(now: Duration, last: i64) -> Self {
        Timeline { opened: now, first: micros(now).max(last.saturating_add(1)).max(1) }
    }

    /// The version that belongs to a time.
    pub(crate) fn version_at(&self, now: Duration) -> i64 {
        self.first.saturating_add(micros(now.saturating_sub(self.opened)))
    }

    /// The first version of all.
    pub(crate) fn first(&self) -> i64 {
        self.first
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_the_clock_and_never_fall_behind_the_store() {
        let hour = Duration::from_secs(3600);
        assert_eq!(Timeline::new(hour, 0).version_at(hour), 3_600_000_000);
        // The machine's clock was set back: versions go on from where they were.
        let timeline = Timeline::new(hour, 9_000_000_000);
        assert_eq!(timeline.version_at(hour), 9_000_000_001);
        assert_eq!(timeline.version_at(hour + Duration::from_millis(1)), 9_000_001_001);
    }
}
