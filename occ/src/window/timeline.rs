//! The timeline: which version belongs to which time.
//!
//! Versions advance by a million for each second of clock time, as in FoundationDB, and by at least one for
//! each commit. They start at the clock's time, or after the last version that the store recorded if that is
//! later. So no version repeats, not even after a restart. A clock that counts from the Unix epoch keeps
//! versions in step with time.

use std::time::Duration;

/// Maps clock time to versions. Fixed when the database opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeline {
    opened: Duration,
    first: i64,
}

impl Timeline {
    /// The timeline of a database that opens at `now` and committed last at version `last`.
    pub(crate) fn new(now: Duration, last: i64) -> Self {
        Timeline { opened: now, first: micros(now).max(last.saturating_add(1)).max(1) }
    }

    /// The version that belongs to a time.
    pub(crate) fn version_at(&self, now: Duration) -> i64 {
        self.first.saturating_add(micros(now.saturating_sub(self.opened)))
    }

    /// The first version of this opening.
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
        // The machine's clock was set back: versions go on from the last one.
        let timeline = Timeline::new(hour, 9_000_000_000);
        assert_eq!(timeline.version_at(hour), 9_000_000_001);
        assert_eq!(timeline.version_at(hour + Duration::from_millis(1)), 9_000_001_001);
    }
}
