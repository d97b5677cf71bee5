//! The row that says what every client of a database has passed, and since when.
//!
//! ```text
//!  (Format, Clients, Number, Time, Seq, Time, Seq, …)     both grow from mark to mark
//! ```
//!
//! At `Time` every client of the list with the digest `Clients` had connected after `Seq`. A tombstone has been passed since
//! the first mark whose sequence is not before its own. So one row serves all documents.

use super::row::Reader;
use super::tuple;
use crate::error::{Error, Result};
use crate::feed::seq::Seq;

const FORMAT: u64 = 1;

/// Maximum number of marks.
const MOST_MARKS: usize = 100;
/// A mark is kept for each of so many parts of the period.
const PARTS: u64 = 32;
/// A shorter jump of the clock is not seen. So runs of each day are no jumps, however short the period is.
const LEAST_JUMP_MS: u64 = 2 * 24 * 3_600 * 1_000;

/// What every client has passed, as the caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The sequence that all of them have passed.
    pub seq: Seq,
    /// A digest of their list. With another one all periods begin anew, since a client may have entered the list.
    pub clients: u64,
}

impl Passed {
    /// The shortest period that makes sense, in milliseconds: in a shorter one no jump of the clock is seen.
    pub const SHORTEST_MS: u64 = LEAST_JUMP_MS;

    /// The longest time between two calls of [`note_passed`](crate::Documents::note_passed) with this period, in
    /// milliseconds. After a longer one the clock may have jumped.
    pub fn longest_pause_ms(kept_ms: u64) -> u64 {
        LEAST_JUMP_MS.max(kept_ms / 2)
    }
}

/// What every client passed long ago.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The sequence that all of them had passed at the beginning of the period; `None` if nothing is known of that time.
    pub upto: Option<Seq>,
    /// Whether the clock is not trusted this time: the last run was more than half of the period ago, or is yet to come.
    pub clock_jumped: bool,
}

/// The row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassedRow {
    clients: u64,
    marks: Vec<Mark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// In milliseconds since 1970.
    at_ms: u64,
    seq: Seq,
}

impl PassedRow {
    /// Notes what all clients have passed now. Returns what they had passed `kept_ms` ago, as earlier calls noted.
    ///
    /// A clock that jumps ahead would end each period. So all of them begin anew if the last call was long ago by the
    /// clock, or is far in the future. If it is a little in the future, the call does nothing: a machine may begin with
    /// a clock that is behind.
    pub(crate) fn note(&mut self, passed: Passed, now_ms: u64, kept_ms: u64) -> Due {
        let mut due = Due::default();
        if let Some(newest) = self.marks.last() {
            let is_far = newest.at_ms.abs_diff(now_ms) > Passed::longest_pause_ms(kept_ms);
            due.clock_jumped = is_far || newest.at_ms > now_ms;
            if is_far {
                self.marks.clear();
            } else if due.clock_jumped {
                return due;
            }
        }
        if self.clients != passed.clients {
            *self = PassedRow { clients: passed.clients, marks: Vec::new() };
        }
        // A client may go back: its database was an old copy.
        self.marks.retain(|mark| mark.seq <= passed.seq);
        let begin_ms = now_ms.saturating_sub(kept_ms);
        if let Some(at) = self.marks.iter().rposition(|mark| mark.at_ms <= begin_ms) {
            due.upto = Some(self.marks[at].seq);
            self.marks.drain(..at);
        }
        // What the last mark covers is then passed later, by a part of the period at most.
        let is_close = match &self.marks[..] {
            [.., before, last] => last.at_ms - before.at_ms < kept_ms / PARTS,
            _ => false,
        };
        if is_close || self.marks.len() >= MOST_MARKS {
            self.marks.pop();
        }
        self.marks.push(Mark { at_ms: now_ms, seq: passed.seq });
        due
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + 24 * self.marks.len());
        tuple::append_u64(&mut out, FORMAT);
        tuple::append_u64(&mut out, self.clients);
        tuple::append_u64(&mut out, self.marks.len() as u64);
        for mark in &self.marks {
            tuple::append_u64(&mut out, mark.at_ms);
            tuple::append_bytes(&mut out, mark.seq.as_bytes());
        }
        out
    }

    pub(crate) fn read(value: &[u8]) -> Result<PassedRow> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a row of what was passed in format {other}"))),
        }
        let (clients, count) = (reader.int()?, reader.int()?);
        let mut marks: Vec<Mark> = Vec::new();
        for _ in 0..count {
            let at_ms = reader.int()?;
            let seq = <[u8; Seq::LEN]>::try_from(reader.bytes()?.as_ref());
            let seq = seq.map_err(|_| Error::corrupt("a sequence of another length in what was passed"))?;
            let mark = Mark { at_ms, seq: Seq::from_bytes(seq) };
            if marks.last().is_some_and(|last| last.at_ms > mark.at_ms || last.seq > mark.seq) {
                return Err(Error::corrupt("what was passed is not in order"));
            }
            marks.push(mark);
        }
        reader.end()?;
        Ok(PassedRow { clients, marks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 3_600 * 1_000;
    const KEPT: u64 = 30;
    const BEGIN: u64 = 20_000;

    fn seq(number: u64) -> Seq {
        Seq::end_of(1, number)
    }

    /// A run on a day, when all clients have passed this sequence. Returns the sequence that is due.
    fn run(row: &mut PassedRow, day: u64, number: u64) -> Due {
        row.note(Passed { seq: seq(number), clients: 7 }, day * DAY_MS, KEPT * DAY_MS)
    }

    fn due(number: u64) -> Due {
        Due { upto: Some(seq(number)), clock_jumped: false }
    }

    const JUMPED: Due = Due { upto: None, clock_jumped: true };

    /// Runs of each day, with a sequence that grows each day.
    fn days(row: &mut PassedRow, days: std::ops::Range<u64>) {
        for day in days {
            run(row, day, day);
        }
    }

    #[test]
    fn rows_round_trip_and_torn_ones_are_errors() {
        let mut row = PassedRow::default();
        assert_eq!(PassedRow::read(&row.write()).unwrap(), row);
        days(&mut row, BEGIN..BEGIN + 3);
        let written = row.write();
        assert_eq!(PassedRow::read(&written).unwrap(), row);
        for cut in 0..written.len() {
            assert!(PassedRow::read(&written[..cut]).is_err(), "cut at {cut}");
        }
        row.marks.swap(0, 2);
        assert!(PassedRow::read(&row.write()).is_err(), "not in order");
    }

    #[test]
    fn what_was_passed_is_due_after_the_period_and_not_before() {
        let mut row = PassedRow::default();
        for day in BEGIN..BEGIN + 200 {
            let found = run(&mut row, day, day);
            let upto = found.upto.map_or(0, |upto| upto.version());
            assert!(!found.clock_jumped && (upto == 0 || upto <= day - KEPT), "day {day}: {upto}");
            // A mark may stand for two days.
            assert!(day < BEGIN + KEPT + 1 || upto + 1 >= day - KEPT, "day {day}: {upto}");
            assert!(row.marks.len() as u64 <= PARTS + 3);
        }
    }

    #[test]
    fn runs_of_each_minute_take_few_marks_and_delay_little() {
        let (mut row, minute_ms) = (PassedRow::default(), 60_000);
        for minute in 0..3 * KEPT * 1_440 {
            let now_ms = BEGIN * DAY_MS + minute * minute_ms;
            let passed = Passed { seq: seq(minute), clients: 7 };
            let upto = row.note(passed, now_ms, KEPT * DAY_MS).upto;
            let age_ms = upto.map(|upto| (minute - upto.version()) * minute_ms);
            assert!(age_ms.is_none_or(|age_ms| age_ms >= KEPT * DAY_MS));
            assert!(minute < 2 * KEPT * 1_440 || age_ms.unwrap() <= (KEPT + 3) * DAY_MS);
            assert!(row.marks.len() as u64 <= PARTS + 4);
        }
    }

    #[test]
    fn another_list_and_a_client_that_went_back_begin_the_period_anew() {
        let mut row = PassedRow::default();
        days(&mut row, BEGIN..BEGIN + 60);
        let mut other = row.clone();
        let passed = Passed { seq: seq(BEGIN + 60), clients: 8 };
        assert_eq!(other.note(passed, (BEGIN + 60) * DAY_MS, KEPT * DAY_MS), Due::default());
        assert_eq!(other.marks.len(), 1);
        // It has passed what was due, and nothing after that.
        let back = run(&mut row, BEGIN + 60, BEGIN + 29);
        assert!(back.upto.unwrap() <= seq(BEGIN + 29));
        for day in BEGIN + 61..BEGIN + 90 {
            assert!(run(&mut row, day, day).upto.is_none_or(|upto| upto <= seq(BEGIN + 29)), "day {day}");
        }
    }

    #[test]
    fn a_clock_that_jumps_ends_nothing() {
        let mut row = PassedRow::default();
        days(&mut row, BEGIN..BEGIN + 20);
        // Ahead, and it stays there.
        let mut ahead = row.clone();
        assert_eq!(run(&mut ahead, BEGIN + 400, BEGIN + 20), JUMPED);
        for day in BEGIN + 401..BEGIN + 430 {
            assert_eq!(run(&mut ahead, day, day).upto, None, "day {day}");
        }
        assert_eq!(run(&mut ahead, BEGIN + 430, BEGIN + 430), due(BEGIN + 20));
        // Ahead, and back again.
        let mut back = row.clone();
        assert_eq!(run(&mut back, BEGIN + 400, BEGIN + 20), JUMPED);
        assert_eq!(run(&mut back, BEGIN + 20, BEGIN + 20), JUMPED);
        for day in BEGIN + 21..BEGIN + 50 {
            assert_eq!(run(&mut back, day, day).upto, None, "day {day}");
        }
        assert_eq!(run(&mut back, BEGIN + 50, BEGIN + 50), due(BEGIN + 20));
        // A little behind, for one run.
        let before = row.clone();
        assert_eq!(run(&mut row, BEGIN + 9, BEGIN + 20), JUMPED);
        assert_eq!(row, before);
        // A machine that began in 1970.
        assert_eq!(run(&mut row, 0, BEGIN + 20), JUMPED);
        assert_eq!(run(&mut row, BEGIN + 21, BEGIN + 21), JUMPED);
        assert_eq!(run(&mut row, BEGIN + 22, BEGIN + 22).upto, None);
    }

    #[test]
    fn marks_are_bounded_whatever_the_periods_are() {
        let mut row = PassedRow::default();
        for number in 0..1_000 {
            let kept_ms = if number % 2 == 0 { 31 } else { u64::MAX };
            row.note(Passed { seq: seq(number), clients: 7 }, number, kept_ms);
            assert!(row.marks.len() <= MOST_MARKS);
        }
    }
}
