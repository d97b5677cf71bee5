//! The size of a transaction, counted as FoundationDB counts it.
//!
//! FoundationDB adds up keys, values and the conflict ranges of both sides. For each mutation and range it adds
//! the size of the C++ struct that carries it (`VectorRef::expectedSize` in `flow/Arena.h` over `MutationRef`
//! and `KeyRangeRef`). The same numbers here make the same transactions too large.

use bytes::Bytes;

use crate::KeyRange;
use crate::key_range::{RangeSet, is_after};
use crate::mutation::{Mutation, Write};

/// `sizeof(MutationRef)` in FoundationDB 7.3: a type, two strings of 12 bytes, the checksum's fields.
pub(super) const MUTATION: usize = 44;

/// `sizeof(KeyRangeRef)`: two strings of 12 bytes.
pub(super) const RANGE: usize = 24;

/// Size of a mutation.
pub(super) fn of_mutation(mutation: &Mutation) -> usize {
    match mutation {
        Mutation::Key { key, write, .. } => of_write(key, write),
        Mutation::ClearRange(range) => MUTATION + range.len(),
    }
}

/// Size of the mutation that writes a key. A clear of one key is a range from the key to the one after it.
pub(super) fn of_write(key: &Bytes, write: &Write) -> usize {
    let value = match write {
        Write::Set(Some(value)) | Write::Atomic(_, value) => value.len(),
        Write::Set(None) => key.len() + 1,
    };
    MUTATION + key.len() + value
}

/// Size of a conflict range.
pub(crate) fn of_range(range: &KeyRange) -> usize {
    RANGE + range.len()
}

/// Size of the conflict range of one key.
pub(crate) fn of_key(key: &[u8]) -> usize {
    RANGE + 2 * key.len() + 1
}

/// Size of conflict ranges and of conflicting keys, both sorted. As in FoundationDB, ranges that overlap or
/// touch count as one.
pub(crate) fn joined_conflicts<'a>(ranges: &RangeSet, keys: impl Iterator<Item = &'a Bytes>) -> usize {
    let mut ranges = ranges.iter().map(|(begin, end)| (begin, End::At(end))).peekable();
    let mut keys = keys.map(|key| (key, End::After(key))).peekable();
    let mut total = 0;
    let mut last: Option<End<'_>> = None;
    loop {
        let range_first = match (ranges.peek(), keys.peek()) {
            (Some((range, _)), Some((key, _))) => *range <= *key,
            (range, _) => range.is_some(),
        };
        let Some((begin, end)) = (if range_first { ranges.next() } else { keys.next() }) else { return total };
        match last {
            Some(before) if before.reaches(begin) => {
                if before.is_before(end) {
                    total = total - before.len() + end.len();
                    last = Some(end);
                }
            }
            _ => {
                total += RANGE + begin.len() + end.len();
                last = Some(end);
            }
        }
    }
}

/// The end of a range.
#[derive(Clone, Copy, Debug)]
enum End<'a> {
    /// At this key.
    At(&'a [u8]),
    /// At the key right after this one: the key with a zero byte appended.
    After(&'a [u8]),
}

impl End<'_> {
    fn len(self) -> usize {
        match self {
            End::At(key) => key.len(),
            End::After(key) => key.len() + 1,
        }
    }

    /// Whether a range that begins at `begin` overlaps or touches an earlier one that ends here.
    fn reaches(self, begin: &[u8]) -> bool {
        match self {
            End::At(key) => begin <= key,
            End::After(key) => begin <= key || is_after(begin, key),
        }
    }

    fn is_before(self, other: End<'_>) -> bool {
        match (self, other) {
            (End::At(one), End::At(other)) | (End::After(one), End::After(other)) => one < other,
            (End::At(one), End::After(other)) => one <= other,
            (End::After(one), End::At(other)) => one < other && !is_after(other, one),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::Random;

    /// Compares with a set that has the keys as ranges. Keys are zeros and ones, so that many touch.
    #[test]
    fn counts_what_a_set_of_all_would_hold() {
        for seed in 0..2_000 {
            let random = Random::new(seed);
            let key = || -> Bytes { (0..random.next() % 5).map(|_| (random.next() % 2) as u8).collect() };
            let (mut ranges, mut all, mut keys) = (RangeSet::default(), RangeSet::default(), BTreeSet::new());
            for _ in 0..random.next() % 12 {
                if random.next().is_multiple_of(3) {
                    let (one, other) = (key(), key());
                    if one != other {
                        let range = KeyRange { begin: one.clone().min(other.clone()), end: one.max(other) };
                        ranges.insert(range.clone());
                        all.insert(range);
                    }
                } else {
                    let key = key();
                    all.insert(KeyRange::point(&key));
                    keys.insert(key);
                }
            }
            let expected: usize = all.iter().map(|(begin, end)| RANGE + begin.len() + end.len()).sum();
            assert_eq!(joined_conflicts(&ranges, keys.iter()), expected, "seed {seed}: {ranges:?}, {keys:?}");
        }
    }
}
