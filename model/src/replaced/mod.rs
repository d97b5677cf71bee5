//! Bodies of replaced revisions, in databases that keep them.
//!
//! An edit drops the body of the revision that it replaces (RFC 004). In a database with the setting it moves the body
//! to other keys instead:
//!
//! ```text
//!  docs   (6, DocID, Leaf, …)          of leaves only
//!            │ the edit that replaces the leaf copies these rows, with the list of attachments
//!            ▼
//!  (19, DocID, Leaf, …)                its body, the same rows
//!  (18, DocID, Leaf)                   (Format = 1, SinceMs, Size, HasAttachments)
//!  (18, SinceMs, DocID, Leaf)          empty: what is too old is found by its time
//! ```
//!
//! So whatever reads `docs` sees leaves only, as in other databases. References to contents stay as they are: a replaced
//! revision refers to its attachments as the leaf did.
//!
//! `SinceMs` is the clock of the process that replaced the revision, and reads compare it with their own clock. Versions
//! would not do: on FoundationDB they cannot be turned into times for as long as bodies are kept.
//!
//! # Invariants
//! * A revision is a leaf, or has rows here, or neither. An edit that adds a leaf removes the rows that it had here.
//! * Every edit of a document reads the document's rows in `(18, DocID)`, with a conflict range, if the instance row says
//!   that there may be some. A database without the setting reads and writes nothing for it.
//! * Whatever removes a row of `(18, DocID)` reads it with a conflict range. So an edit and a removal that meet conflict.
//!   A removal never touches `docs`.
//!
//! A purge of a document removes all its rows here: nothing of what was purged can be read any more.

mod forget;
mod read;

pub use forget::FORGET_JOBS;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::str::FromStr;

use kv_api::{KeyValue, Transaction};

use crate::attachments::{ContentId, list_at};
use crate::error::{Error, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf};
use crate::limits::REVS_LIMITS;
use crate::row::Reader;
use crate::tuple;
use crate::unguarded::Unguarded;

const FORMAT: u64 = 1;

/// Longest time for which bodies are kept: about 300 years.
const MOST_MILLISECONDS: u64 = 10_000_000_000_000;

/// The replaced revisions whose bodies a database keeps.
///
/// As text it is a number of revisions, `10`, or a time in seconds, minutes, hours, days or weeks: `30d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// Whether it keeps any. A database that keeps none any more may have some left.
    pub(crate) fn keeps_any(&self) -> bool {
        *self != KeepReplaced::Revisions(0)
    }

    /// Maximum number of revisions of a document. It is never more than a branch remembers.
    pub(crate) fn most(self, revs_limit: u32) -> usize {
        match self {
            KeepReplaced::Revisions(number) => number.min(revs_limit) as usize,
            KeepReplaced::Milliseconds(_) => revs_limit as usize,
        }
    }

    /// Whether a revision that was replaced at `since_ms` is not kept any more.
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

impl FromStr for KeepReplaced {
    type Err = Error;

    fn from_str(text: &str) -> Result<KeepReplaced> {
        let unit = UNITS.iter().find(|(unit, _)| text.ends_with(*unit));
        let digits = text.strip_suffix(|last: char| unit.is_some_and(|(unit, _)| *unit == last)).unwrap_or(text);
        let number = Some(digits).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
        let number: u64 = number.and_then(|number| number.parse().ok()).ok_or_else(invalid)?;
        let keep = match unit {
            Some((_, milliseconds)) => KeepReplaced::Milliseconds(number.saturating_mul(*milliseconds)),
            None => KeepReplaced::Revisions(u32::try_from(number).map_err(|_| invalid())?),
        };
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

/// The row of a replaced revision whose body is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) leaf: Leaf,
    /// When it was replaced, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Size of its body in bytes; zero for a tombstone that stores none.
    pub(crate) size: u64,
    /// Whether it has attachments.
    pub(crate) attachments: bool,
}

impl Replaced {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        for number in [FORMAT, self.since_ms, self.size] {
            tuple::append_u64(&mut out, number);
        }
        tuple::append_bool(&mut out, self.attachments);
        out
    }

    pub(crate) fn read(leaf: Leaf, value: &[u8]) -> Result<Replaced> {
        let mut reader = Reader::new(value);
        match reader.int()? {
            FORMAT => {}
            other => return Err(Error::unknown_format(format!("a replaced revision in format {other}"))),
        }
        let replaced = Replaced { leaf, since_ms: reader.int()?, size: reader.int()?, attachments: reader.bool()? };
        reader.end()?;
        Ok(replaced)
    }

    /// The replaced revisions in the rows of a document. A row that cannot be read is left out, and stays.
    pub(crate) fn of_document(keys: &DatabaseKeys, rows: &[KeyValue]) -> Vec<Replaced> {
        let read = |row: &KeyValue| Replaced::read(keys.read_replaced(&row.key)?.1, &row.value);
        rows.iter().filter_map(|row| read(row).ok()).collect()
    }

    /// Sets its rows. `docs` are the rows of its body as a leaf.
    pub(crate) fn set(&self, transaction: &impl Transaction, keys: &DatabaseKeys, id: &str, docs: &[KeyValue]) {
        let leaf = &self.leaf;
        transaction.set(keys.key(DatabaseKey::Replaced(id, leaf)), self.write());
        transaction.set_unguarded(keys.key(DatabaseKey::ReplacedSince(self.since_ms, id, leaf)), &[]);
        let (from, to) = (keys.key(DatabaseKey::Doc(id, leaf)).len(), keys.key(DatabaseKey::ReplacedDoc(id, leaf)));
        for row in docs {
            transaction.set_unguarded([&to, &row.key[from..]].concat(), row.value.clone());
        }
    }

    /// Clears its rows.
    pub(crate) fn clear(&self, transaction: &impl Transaction, keys: &DatabaseKeys, id: &str) {
        transaction.clear(&keys.key(DatabaseKey::Replaced(id, &self.leaf)));
        transaction.clear_unguarded(&keys.key(DatabaseKey::ReplacedSince(self.since_ms, id, &self.leaf)));
        if self.size > 0 {
            let (begin, end) = keys.bounds(DatabaseKey::ReplacedDoc(id, &self.leaf));
            transaction.clear_range_unguarded(&begin, &end);
        }
    }

    /// Reads the contents of its attachments. The call issues the read.
    pub(crate) fn contents<T: Transaction>(
        &self,
        transaction: &T,
        keys: &DatabaseKeys,
        id: &str,
    ) -> impl Future<Output = Result<HashSet<ContentId>>> + Send + use<T> {
        let key = DatabaseKey::ReplacedAttachments(id, &self.leaf);
        let list = self.attachments.then(|| list_at(transaction, keys, key));
        async move {
            let Some(list) = list else { return Ok(HashSet::new()) };
            Ok(list.await?.into_iter().map(|attachment| attachment.content).collect())
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
    fn rows_round_trip_and_torn_ones_are_errors() {
        let leaf = Leaf { not_deleted: true, rev: "2-ab".parse().unwrap() };
        let replaced = Replaced { leaf: leaf.clone(), since_ms: 1 << 41, size: 300, attachments: true };
        let row = replaced.write();
        assert_eq!(Replaced::read(leaf.clone(), &row).unwrap(), replaced);
        for cut in 0..row.len() {
            assert!(Replaced::read(leaf.clone(), &row[..cut]).is_err(), "cut at {cut}");
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
