//! Counts log lines that are repeated.
//!
//! The same failure of the same job is printed once a minute. At the end of the minute, the number of repetitions is
//! printed. So a peer that always fails cannot fill the disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time for which the same line is counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of remembered lines. Further ones are always printed.
const MOST: usize = 1_000;

/// The lines that were printed lately.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Mutex<HashMap<String, Seen>>);

#[derive(Debug)]
struct Seen {
    since: Instant,
    printed: u64,
    counted: u64,
}

/// A line that was not printed each time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repeated {
    pub(crate) line: String,
    pub(crate) times: u64,
}

impl Repeats {
    /// Whether to print a line now. It is printed up to `most` times a minute, and counted otherwise.
    pub(crate) fn print(&self, line: &str, most: u64) -> bool {
        self.print_at(line, most, Instant::now())
    }

    fn print_at(&self, line: &str, most: u64, now: Instant) -> bool {
        let mut lines = self.0.lock();
        if let Some(seen) = lines.get_mut(line) {
            let is_printed = seen.printed < most;
            *(if is_printed { &mut seen.printed } else { &mut seen.counted }) += 1;
            return is_printed;
        }
        if lines.len() < MOST {
            lines.insert(line.to_owned(), Seen { since: now, printed: 1, counted: 0 });
        }
        true
    }

    /// The counted lines whose minute is over. Call it from time to time.
    pub(crate) fn over(&self) -> Vec<Repeated> {
        self.over_at(Instant::now())
    }

    fn over_at(&self, now: Instant) -> Vec<Repeated> {
        let over = |seen: &Seen| now.duration_since(seen.since) >= WINDOW;
        let over: Vec<_> = self.0.lock().extract_if(|_, seen| over(seen)).collect();
        let counted = over.into_iter().filter(|(_, seen)| seen.counted > 0);
        counted.map(|(line, seen)| Repeated { line, times: seen.counted }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_printed_once_in_a_minute_and_then_counted() {
        let (repeats, begin) = (Repeats::default(), Instant::now());
        assert!(repeats.print_at("a", 1, begin) && repeats.print_at("b", 2, begin) && repeats.print_at("b", 2, begin));
        for _ in 0..60 {
            assert!(!repeats.print_at("a", 1, begin + WINDOW / 2));
        }
        assert_eq!(repeats.over_at(begin + WINDOW / 2), []);
        assert_eq!(repeats.over_at(begin + WINDOW), [Repeated { line: "a".into(), times: 60 }]);
        assert!(repeats.print_at("a", 1, begin + WINDOW));
        // The number of remembered lines is bounded.
        for number in 0..2 * MOST {
            assert!(repeats.print_at(&number.to_string(), 1, begin));
        }
        assert!(repeats.0.lock().len() <= MOST);
    }
}
