//! How many bodies of replaced revisions a database keeps, or for how long; see [`replaced`](crate::replaced).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::limits::{REVS_LIMITS, is_system_database};

/// Longest time for which anything is kept, in milliseconds: about 300 years.
pub const MOST_MILLISECONDS: u64 = 10_000_000_000_000;

/// The replaced revisions whose bodies a database keeps.
///
/// As text it is a number of revisions, `10`, or a time in seconds, minutes, hours, days or weeks: `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeepReplaced {
    /// The last ones of each document, this many.
    Revisions(u32),
    /// Those that were replaced within this time, in milliseconds.
    Milliseconds(u64),
}

/// The units of times, the longest first.
const UNITS: [(char, u64); 5] =
    [('w', 7 * 86_400_000), ('d', 86_400_000), ('h', 3_600_000), ('m', 60_000), ('s', 1_000)];

impl KeepReplaced {
    /// # Errors
    /// 400 for nothing, or for more than a database may keep.
    pub(crate) fn check(self) -> Result<()> {
        let is_possible = match self {
            KeepReplaced::Revisions(number) => REVS_LIMITS.contains(&number),
            KeepReplaced::Milliseconds(number) => (1..=MOST_MILLISECONDS).contains(&number),
        };
        if is_possible { Ok(()) } else { Err(invalid()) }
    }

    /// The same for a database of this name. System databases keep none: their documents are only for their owners,
    /// and another user may have the same name later.
    pub(crate) fn check_for(self, name: &str) -> Result<()> {
        if is_system_database(name) {
            return Err(Error::bad_request("A system database keeps no replaced revisions"));
        }
        self.check()
    }

    /// Whether it keeps any. A database that no longer keeps any may still have some.
    pub(crate) fn keeps_any(&self) -> bool {
        *self != KeepReplaced::Revisions(0)
    }

    /// Maximum number of revisions of a document. It is never more than the number that a branch remembers.
    pub(crate) fn most(self, revs_limit: u32) -> usize {
        match self {
            KeepReplaced::Revisions(number) => number.min(revs_limit) as usize,
            KeepReplaced::Milliseconds(_) => revs_limit as usize,
        }
    }

    /// Whether a revision replaced at `since_ms` is no longer kept.
    pub(crate) fn is_over(self, since_ms: u64, now_ms: u64) -> bool {
        match self {
            KeepReplaced::Revisions(number) => number == 0,
            KeepReplaced::Milliseconds(number) => since_ms.saturating_add(number) <= now_ms,
        }
    }
}

fn invalid() -> Error {
    let reason = format!(
        "`keep_replaced` must be a number of revisions up to {}, or a time such as 30d or 12h",
        REVS_LIMITS.end()
    );
    Error::bad_request(reason)
}

/// The milliseconds of a time such as `30d`, in seconds, minutes, hours, days or weeks; `None` for anything else.
pub fn parse_time(text: &str) -> Option<u64> {
    let (_, milliseconds) = UNITS.iter().find(|(unit, _)| text.ends_with(*unit))?;
    let digits = text.get(..text.len() - 1).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    Some(digits.parse::<u64>().ok()?.saturating_mul(*milliseconds))
}

impl FromStr for KeepReplaced {
    type Err = Error;

    fn from_str(text: &str) -> Result<KeepReplaced> {
        let revisions = || {
            let digits = Some(text).filter(|text| text.bytes().all(|digit| digit.is_ascii_digit()))?;
            digits.parse().ok().map(KeepReplaced::Revisions)
        };
        let keep = parse_time(text).map(KeepReplaced::Milliseconds).or_else(revisions).ok_or_else(invalid)?;
        keep.check().map(|()| keep)
    }
}

impl fmt::Display for KeepReplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            KeepReplaced::Revisions(number) => write!(f, "{number}"),
            KeepReplaced::Milliseconds(number) => {
                let fits = |(_, unit): &&(char, u64)| number.is_multiple_of(*unit);
                // Times in text are whole seconds.
                let (unit, milliseconds) = UNITS[1..].iter().find(fits).unwrap_or(&('s', 1_000));
                write!(f, "{}{unit}", number / milliseconds)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_written_and_read_as_text() {
        for (text, keep) in [
            ("1", KeepReplaced::Revisions(1)),
            ("4000", KeepReplaced::Revisions(4_000)),
            ("30d", KeepReplaced::Milliseconds(30 * 86_400_000)),
            ("14d", KeepReplaced::Milliseconds(14 * 86_400_000)),
            ("36h", KeepReplaced::Milliseconds(36 * 3_600_000)),
            ("90s", KeepReplaced::Milliseconds(90_000)),
        ] {
            assert_eq!((text.parse::<KeepReplaced>().unwrap(), keep.to_string().as_str()), (keep, text));
        }
        assert_eq!("2w".parse::<KeepReplaced>().unwrap().to_string(), "14d");
        for wrong in
            ["", "0", "4001", "d", "0d", "-1", "+1", "1.5d", "1 d", "30D", "99999999999999w", "1é", "dd", "1dd"]
        {
            assert_eq!(wrong.parse::<KeepReplaced>().unwrap_err().status(), 400, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_too_old_ends_to_the_millisecond() {
        let keep = KeepReplaced::Milliseconds(1_000);
        assert_eq!([999, 1_999, 2_000].map(|now| keep.is_over(1_000, now)), [false, false, true]);
        assert!(!keep.is_over(u64::MAX, u64::MAX - 1) && KeepReplaced::Revisions(0).is_over(9, 9));
        assert_eq!((keep.most(7), KeepReplaced::Revisions(9).most(7), KeepReplaced::Revisions(3).most(7)), (7, 7, 3));
    }
}
