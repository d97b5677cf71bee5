//! Figures of this server's last hour, for the console: a sample every ten seconds, in memory, from its start on.
//!
//! They show what happened before somebody looked. Who keeps figures for longer reads `_prometheus`.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Time between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

/// Number of samples that are kept: those of an hour.
const MOST: usize = 360;

/// The figures of a sample. All but the median time and the memory are numbers since the start.
pub(crate) const NAMES: [&str; 8] =
    ["requests", "writes", "reads", "commits", "failed", "scans", "median_ms", "memory"];

/// A time in milliseconds since 1970, and the figures.
pub(crate) type Sample = (u64, [f64; NAMES.len()]);

/// The last samples, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Hour(Mutex<VecDeque<Sample>>);

impl Hour {
    pub(crate) fn keep(&self, sample: Sample) {
        let mut samples = self.0.lock();
        if samples.len() == MOST {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The samples after a time.
    pub(crate) fn after(&self, ms: u64) -> Vec<Sample> {
        self.0.lock().iter().filter(|(at, _)| *at > ms).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let hour = Hour::default();
        (0..400).for_each(|at| hour.keep((at, [0.0; NAMES.len()])));
        let kept = hour.after(0);
        assert_eq!((kept.len(), kept[0].0, kept[MOST - 1].0), (MOST, 40, 399));
        assert_eq!(hour.after(398).len(), 1);
    }
}
