//! The ranges that a transaction has read.
//!
//! Reads append their ranges. The ranges are sorted and joined when the commit takes them, and when their
//! number has doubled: a transaction that reads one key again and again stays small.

use crate::KeyRange;

/// Number of ranges before they are first joined.
const FEW: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct ReadConflicts {
    noted: Vec<KeyRange>,
    /// Number of ranges after the last joining.
    joined: usize,
}

impl ReadConflicts {
    /// Adds a non-empty range.
    pub(crate) fn insert(&mut self, range: KeyRange) {
        if self.noted.len() >= FEW.max(2 * self.joined) {
            self.join();
        }
        self.noted.push(range);
    }

    pub(crate) fn clear(&mut self) {
        self.noted.clear();
        self.joined = 0;
    }

    /// Takes the ranges: sorted, disjoint and not touching.
    pub(crate) fn take(&mut self) -> Vec<KeyRange> {
        self.join();
        self.joined = 0;
        std::mem::take(&mut self.noted)
    }

    fn join(&mut self) {
        self.noted.sort_unstable_by(|one, other| one.begin.cmp(&other.begin));
        self.noted.dedup_by(|next, kept| {
            let joins = next.begin <= kept.end;
            if joins && next.end > kept.end {
                kept.end = std::mem::take(&mut next.end);
            }
            joins
        });
        self.joined = self.noted.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_range::RangeSet;
    use crate::random::Random;

    /// Compares with the set that joins at each insertion.
    #[test]
    fn joins_as_a_set_does() {
        for seed in 0..200 {
            let random = Random::new(seed);
            let (mut noted, mut set) = (ReadConflicts::default(), RangeSet::default());
            for _ in 0..random.next() % 300 {
                let begin = (random.next() % 200) as u8;
                let range = match random.next() % 3 {
                    0 => KeyRange::copied(&[begin], &[begin + 1 + (random.next() % 20) as u8]),
                    1 => KeyRange::point(&[begin]),
                    _ => KeyRange::point(&[begin, 0]),
                };
                noted.insert(range.clone());
                set.insert(range);
            }
            let expected: Vec<_> = set.iter().map(|(begin, end)| KeyRange::copied(begin, end)).collect();
            assert_eq!(noted.take(), expected, "seed {seed}");
            assert!(noted.take().is_empty());
        }
    }

    #[test]
    fn the_same_read_again_takes_no_room() {
        let mut noted = ReadConflicts::default();
        for n in 0..100_000u32 {
            noted.insert(KeyRange::point(&(n % 100).to_be_bytes()));
        }
        assert!(noted.noted.len() <= FEW, "{}", noted.noted.len());
    }
}
