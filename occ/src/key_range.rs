//! Half-open ranges of keys, and sets of them.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

/// The keys from `begin` up to, not including, `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub begin: Bytes,
    /// The first key beyond the range.
    pub end: Bytes,
}

impl KeyRange {
    /// The range of one key. Both ends share one allocation.
    pub fn point(key: &[u8]) -> Self {
        let mut after = Vec::with_capacity(key.len() + 1);
        after.extend_from_slice(key);
        after.push(0);
        let end = Bytes::from(after);
        KeyRange { begin: end.slice(..key.len()), end }
    }

    /// The range between two keys, which are copied.
    pub fn copied(begin: &[u8], end: &[u8]) -> Self {
        KeyRange { begin: Bytes::copy_from_slice(begin), end: Bytes::copy_from_slice(end) }
    }

    /// Whether the range has no keys.
    pub fn is_empty(&self) -> bool {
        self.begin >= self.end
    }

    /// Whether the range has exactly one key.
    pub fn is_point(&self) -> bool {
        self.end.len() == self.begin.len() + 1 && self.end.ends_with(&[0]) && self.end.starts_with(&self.begin)
    }

    /// Bytes of both ends.
    pub fn len(&self) -> usize {
        self.begin.len() + self.end.len()
    }
}

/// Whether `boundary` is the first key after `key`.
pub(crate) fn is_after(boundary: &[u8], key: &[u8]) -> bool {
    boundary.strip_suffix(&[0]) == Some(key)
}

/// A set of keys, as disjoint ranges that do not touch. FoundationDB calls it a coalesced range map.
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    ends: BTreeMap<Bytes, Bytes>,
}

impl RangeSet {
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes every key.
    pub fn clear(&mut self) {
        self.ends.clear();
    }

    /// Adds a non-empty range.
    pub fn insert(&mut self, range: KeyRange) {
        let KeyRange { mut begin, mut end } = range;
        // Writers usually continue where they stopped: the last range grows.
        if let Some(mut last) = self.ends.last_entry()
            && *last.key() <= begin
            && *last.get() >= begin
        {
            if *last.get() < end {
                last.insert(end);
            }
            return;
        }
        if let Some((before, until)) = self.at_or_before(&begin) {
            if *until >= end {
                return;
            }
            if *until >= begin {
                begin = before.clone();
            }
        }
        // Ranges that begin within the new range, or where it ends, become part of it.
        while let Some((next, until)) = self.first_from(&begin) {
            if *next > end {
                break;
            }
            if *until > end {
                end = until.clone();
            }
            let next = next.clone();
            self.ends.remove(&next);
        }
        self.ends.insert(begin, end);
    }

    /// Removes the keys from `begin` up to, not including, `end`.
    pub fn remove(&mut self, begin: &Bytes, end: &Bytes) {
        if let Some((before, until)) = self.at_or_before(begin)
            && until > begin
        {
            let (before, until) = (before.clone(), until.clone());
            if before == *begin {
                self.ends.remove(&before);
            } else {
                self.ends.insert(before, begin.clone());
            }
            if until > *end {
                self.ends.insert(end.clone(), until);
                return;
            }
        }
        while let Some((next, until)) = self.first_from(begin) {
            if next >= end {
                break;
            }
            let (next, until) = (next.clone(), until.clone());
            self.ends.remove(&next);
            if until > *end {
                self.ends.insert(end.clone(), until);
                break;
            }
        }
    }

    /// The range around `key`.
    pub fn containing(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        self.at_or_before(key).filter(|(_, end)| end.as_ref() > key)
    }

    /// Whether `key` is in the set.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.containing(key).is_some()
    }

    /// Whether any key from `begin` up to, not including, `end` is in the set.
    pub fn intersects(&self, begin: &[u8], end: &[u8]) -> bool {
        begin < end && (self.contains(begin) || self.first_from(begin).is_some_and(|(next, _)| next.as_ref() < end))
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.ends.iter()
    }

    /// The ranges, in order.
    pub(crate) fn into_ranges(self) -> impl Iterator<Item = KeyRange> {
        self.ends.into_iter().map(|(begin, end)| KeyRange { begin, end })
    }

    /// The ranges that share a key with the range from `begin` to `end`, in order and not clipped.
    pub fn overlapping<'a>(&'a self, begin: &'a [u8], end: &'a [u8]) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> {
        let first = self.at_or_before(begin).filter(|(from, until)| until.as_ref() > begin && from.as_ref() < begin);
        first.into_iter().chain(
            self.ends
                .range::<[u8], _>((Bound::Included(begin), Bound::Unbounded))
                .take_while(move |(from, _)| from.as_ref() < end),
        )
    }

    fn at_or_before(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        // Most sets are empty, and a search would cost a read a thousand instructions.
        if self.is_empty() {
            return None;
        }
        self.ends.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }

    fn first_from(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        self.ends.range::<[u8], _>((Bound::Included(key), Bound::Unbounded)).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Compares with a set of the 64 one-byte keys.
    #[test]
    fn agrees_with_a_set_of_single_keys() {
        for seed in 0..200 {
            let random = Random::new(seed);
            let (mut set, mut model) = (RangeSet::default(), [false; 64]);
            for _ in 0..60 {
                let (a, b) = ((random.next() % 64) as u8, (random.next() % 64) as u8);
                let (low, high) = (a.min(b), a.max(b) + 1);
                let (begin, end) = (Bytes::from(vec![low]), Bytes::from(vec![high]));
                let insert = random.next().is_multiple_of(2);
                if insert {
                    set.insert(KeyRange { begin, end });
                } else {
                    set.remove(&begin, &end);
                }
                model[low as usize..high as usize].fill(insert);
                for key in 0..64u8 {
                    assert_eq!(set.contains(&[key]), model[key as usize], "seed {seed}, key {key}");
                    let any = model[key as usize..(key as usize + 7).min(64)].contains(&true);
                    assert_eq!(set.intersects(&[key], &[(key + 7).min(64)]), any, "seed {seed}");
                    assert_eq!(set.overlapping(&[key], &[(key + 7).min(64)]).next().is_some(), any, "seed {seed}");
                }
                let ranges: Vec<_> = set.iter().collect();
                assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "seed {seed}: not coalesced: {ranges:?}");
            }
        }
    }

    #[test]
    fn a_point_is_known_as_one() {
        assert!(KeyRange::point(b"ab").is_point());
        assert!(!KeyRange::copied(b"ab", b"ac").is_point());
        assert!(KeyRange::copied(b"b", b"a").is_empty());
    }
}
