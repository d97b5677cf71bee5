//! Clears of very many rows, as pending intervals. For stores where removing a row is a write.
//!
//! ```text
//!   pending    ├───────────────────────────┤         all rows in here count as absent
//!   set(k)     ├──────────┤ k ├────────────┤         a write cuts its key out
//!   purge                     ├────────────┤         rows are removed from the front, and so is the interval
//! ```
//!
//! The store records its pending intervals in a row, in the batch that changes them. A thread of the store removes the
//! rows.

use bytes::Bytes;
use kv_api::{Error, Result, error};

use occ::{KeyRange, RangeSet};

/// Encodes intervals: each key after its length, four bytes big-endian.
pub fn encode(pending: &RangeSet) -> Vec<u8> {
    let mut record = Vec::new();
    for key in pending.iter().flat_map(|(begin, end)| [begin, end]) {
        record.extend_from_slice(&(key.len() as u32).to_be_bytes());
        record.extend_from_slice(key);
    }
    record
}

/// Decodes intervals; 1522 if they are damaged.
pub fn decode(record: &[u8]) -> Result<RangeSet> {
    let damaged = || Error::new(error::FILE_CORRUPT).with_context("the record of pending clears is damaged");
    let mut rest = record;
    let mut key = || -> Option<Bytes> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (key, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        rest = after;
        Some(Bytes::copy_from_slice(key))
    };
    let mut pending = RangeSet::default();
    while let Some(begin) = key() {
        let range = KeyRange { begin, end: key().ok_or_else(damaged)? };
        if range.is_empty() {
            return Err(damaged());
        }
        pending.insert(range);
    }
    if rest.is_empty() { Ok(pending) } else { Err(damaged()) }
}

/// The parts of the range from `begin` to `end` that no interval covers, in order.
pub fn uncovered(pending: &RangeSet, begin: &[u8], end: &[u8]) -> Vec<KeyRange> {
    let mut parts = Vec::new();
    let mut from = Bytes::copy_from_slice(begin);
    for (cleared, until) in pending.overlapping(begin, end) {
        if from < *cleared {
            parts.push(KeyRange { begin: from, end: cleared.clone() });
        }
        from = until.clone();
    }
    if from.as_ref() < end {
        parts.push(KeyRange { begin: from, end: Bytes::copy_from_slice(end) });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_damage_is_noticed() {
        let mut pending = RangeSet::default();
        assert_eq!(decode(&encode(&pending)).unwrap().iter().count(), 0);
        pending.insert(KeyRange::copied(b"", b"a"));
        pending.insert(KeyRange::copied(b"b\0", b"c"));
        let record = encode(&pending);
        assert!(decode(&record).unwrap().iter().eq(pending.iter()));
        for length in 1..record.len() {
            if let Ok(part) = decode(&record[..length]) {
                assert_eq!(part.iter().count(), 1, "cut at {length}");
            }
        }
        let parts = uncovered(&pending, b"", b"d");
        let expected = [KeyRange::copied(b"a", b"b\0"), KeyRange::copied(b"c", b"d")];
        assert_eq!(parts, expected);
        assert!(uncovered(&pending, b"bb", b"bc").is_empty());
    }
}
