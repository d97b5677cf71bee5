//! Figures: an engine's work and state, for people and programs that monitor a server.
//!
//! Work is counted with relaxed additions: once for a batch, never for a row. Figures are listed on request
//! ([`Database::figures`](crate::Database::figures)). Their names and units are those of Prometheus: totals end in
//! `_total`, times are in seconds.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds for times, in microseconds: from half a millisecond to a minute.
pub const TIMES: &[u64] = &[
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];

/// How many values lie between bounds, and their sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One for each bound, and one for values above all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram with these upper bounds, in ascending order.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// An empty histogram of times.
    pub fn of_times() -> Self {
        Self::new(TIMES)
    }

    /// Adds a value.
    pub fn observe(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds a time to a histogram of times.
    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Forgets all values.
    pub fn clear(&self) {
        self.counts.iter().chain([&self.sum]).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Its values so far, divided by `by`: 1, or a million for times in seconds.
    pub fn distribution(&self, by: f64) -> Distribution {
        let mut below = 0;
        let counts = self.counts.iter().map(|count| {
            below += count.load(Ordering::Relaxed);
            below
        });
        let counts = counts.collect();
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / by).collect();
        Distribution { bounds, counts, sum: self.sum.load(Ordering::Relaxed) as f64 / by }
    }

    /// Its times so far, in seconds.
    pub fn seconds(&self) -> Distribution {
        self.distribution(1e6)
    }
}

/// The values of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds.
    pub bounds: Vec<f64>,
    /// Number of values up to each bound, and of all.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
}

impl Distribution {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.last().copied().unwrap_or(0)
    }

    /// The value below which this part of all values lies, roughly: values are assumed to be spread evenly between two
    /// bounds. `None` if there are no values.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = part * self.count() as f64;
        let at = self.counts.iter().position(|count| *count > 0 && *count as f64 >= wanted)?;
        let below = |places: &dyn Fn(usize) -> f64| at.checked_sub(1).map_or(0.0, places);
        let (low, before) = (below(&|at| self.bounds[at]), below(&|at| self.counts[at] as f64));
        // Values above all bounds count as the last bound.
        let high = self.bounds.get(at).copied().unwrap_or(low);
        let inside = self.counts[at] as f64 - before;
        Some(if inside > 0.0 { low + (high - low) * (wanted - before).max(0.0) / inside } else { high })
    }
}

/// The value of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// It grows until the process ends.
    Counter(f64),
    /// The present value.
    Gauge(f64),
    /// The distribution of values.
    Histogram(Distribution),
    /// Quantiles (part and value), then the sum and the number of all values.
    Summary(Vec<(f64, f64)>, f64, u64),
}

/// A figure with its name and meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name: figures of one name have one meaning.
    pub name: Cow<'static, str>,
    /// What it counts.
    pub help: Cow<'static, str>,
    /// What distinguishes it from others of the name.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: Value,
}

impl Figure {
    /// A figure without labels.
    pub fn new(name: impl Into<Cow<'static, str>>, help: impl Into<Cow<'static, str>>, value: Value) -> Figure {
        Figure { name: name.into(), help: help.into(), labels: Vec::new(), value }
    }

    /// A counter.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Figure {
        Figure::new(name, help, Value::Counter(value as f64))
    }

    /// A gauge.
    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Figure {
        Figure::new(name, help, Value::Gauge(value))
    }

    /// A histogram.
    pub fn histogram(name: &'static str, help: &'static str, values: Distribution) -> Figure {
        Figure::new(name, help, Value::Histogram(values))
    }

    /// The same with a label.
    #[must_use]
    pub fn with(mut self, label: &'static str, value: impl Into<String>) -> Figure {
        self.labels.push((label, value.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_tells_how_many_values_are_below_each_bound() {
        let histogram = Histogram::new(&[1, 10, 100]);
        for value in [1, 2, 10, 11, 1_000] {
            histogram.observe(value);
        }
        let seen = histogram.distribution(1.0);
        assert_eq!((seen.counts.as_slice(), seen.sum, seen.count()), ([1, 3, 4, 5].as_slice(), 1_024.0, 5));
        histogram.clear();
        assert_eq!(histogram.distribution(1.0).count(), 0);
    }

    #[test]
    fn quantiles_lie_between_the_bounds_of_their_values() {
        let histogram = Histogram::new(&[10, 20, 40]);
        assert_eq!(histogram.distribution(1.0).quantile(0.5), None);
        (0..10).for_each(|_| histogram.observe(15));
        let seen = histogram.distribution(1.0);
        assert_eq!((seen.quantile(0.0), seen.quantile(0.5), seen.quantile(1.0)), (Some(10.0), Some(15.0), Some(20.0)));
        (0..10).for_each(|_| histogram.observe(1_000));
        assert_eq!(histogram.distribution(1.0).quantile(0.99), Some(40.0), "the last bound");
    }

    #[test]
    fn times_are_in_seconds() {
        let histogram = Histogram::of_times();
        histogram.observe_time(Duration::from_millis(20));
        let seen = histogram.seconds();
        assert!((seen.sum - 0.02).abs() < 1e-9 && (seen.bounds[4] - 0.01).abs() < 1e-9, "{seen:?}");
        assert_eq!((seen.counts[4], seen.counts[5]), (0, 1));
    }
}
