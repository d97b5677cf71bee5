//! How replications take turns if there are more than may run at once.
//!
//! A continuous replication does not end. So at each `interval`, if others wait, up to `churn` continuous ones that
//! have run at least that long are stopped, the oldest first. At their next turn they continue from their checkpoints.
//!
//! Source: `couch_replicator_scheduler.erl`, and the section `replicator` of CouchDB's configuration.

use std::time::Duration;

use crate::http::config::rows::SettingRows;

/// Settings of the section `replicator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// Maximum number of replications that run at a time (`max_jobs`).
    pub(crate) most: usize,
    /// Maximum number of replications stopped at a time for others (`max_churn`).
    pub(crate) churn: usize,
    /// Time between two turns (`interval`).
    pub(crate) interval: Duration,
}

impl Rotation {
    pub(crate) fn read(rows: &SettingRows) -> Rotation {
        let number = |name| rows.positive("replicator", name).unwrap_or(1);
        let count = |name| usize::try_from(number(name)).unwrap_or(usize::MAX);
        Rotation {
            most: count("max_jobs"),
            churn: count("max_churn"),
            interval: Duration::from_millis(number("interval").min(86_400_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    #[test]
    fn turns_are_as_configured() {
        let usual = Rotation { most: 2_000, churn: 20, interval: Duration::from_secs(60) };
        assert_eq!(Rotation::read(&rows_of(&[])), usual);
        let row = |name, value| ("replicator", name, value);
        let wrong = [row("max_jobs", "0"), row("max_churn", "x"), row("interval", "-1")];
        assert_eq!(Rotation::read(&rows_of(&wrong)), usual);
        let own = |interval| [row("max_jobs", "2"), row("max_churn", "1"), row("interval", interval)];
        for (interval, ms) in [("50", 50), ("5min", 300_000)] {
            let expected = Rotation { most: 2, churn: 1, interval: Duration::from_millis(ms) };
            assert_eq!(Rotation::read(&rows_of(&own(interval))), expected);
        }
    }
}
