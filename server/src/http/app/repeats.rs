//! Lines of the log that come again and again are counted.
//!
//! The same failure of the same job is printed once in a minute, and at the end of that minute the number of times that it came
//! again. So a peer that always fails fills no disk.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time for which the same line is counted.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of lines that are remembered. Further ones are printed.
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
    /// Whether to print a line now, which is printed up to `most` times in a minute. Otherwise it is counted.
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

    /// The lines whose minute is over and that were counted. Call it from time to time.
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
        // What is remembered is bounded.
        for number in 0..2 * MOST {
            assert!(repeats.print_at(&number.to_string(), 1, begin));
        }
        assert!(repeats.0.lock().len() <= MOST);
    }
}
