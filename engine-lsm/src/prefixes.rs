//! Filters of key prefixes, which let a range read skip tables that have nothing in the range.
//!
//! ```text
//!   keys      a1b2c3d4 ids/0 …    a1b2c3d4 ids/1 …    e5f6a7b8 ids/0 …
//!   prefixes  a1b2c3d4            e5f6a7b8                                of 8 bytes
//!             a1b2c3d4 ids/0 …    a1b2c3d4 ids/1 …    e5f6a7b8 ids/0 …    of 16, and so on
//! ```
//!
//! A document is a range of keys with a long common prefix. A table's own filter knows only whole keys, so without this
//! filter a range read would search every flushed table: a block of the index and a block of rows each, mostly for
//! nothing.
//!
//! The filter is in memory, and is built while the table is written. Flushes, level 1 and the base have one, which takes
//! about a megabyte for sixteen of a table. Tables below have none: nearly every document is there. After an opening the
//! young tables get theirs soon, and the base when it is written again.

use twox_hash::XxHash3_64;

/// Prefix lengths are multiples of this number of bytes.
const STEP: usize = 8;

/// Maximum length of a prefix: enough for a document's id, too short for each of its rows.
const MOST: usize = 48;

/// A table with more prefixes, such as the clear of a large database, is always searched: a filter's size must be bounded.
const MOST_PREFIXES: usize = 1 << 20;

/// Bits for each prefix; two are set. About one range in thirty is searched for nothing.
const BITS: usize = 10;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// The filter's bits. None where any key may occur.
    words: Vec<u64>,
}

/// Collects the prefixes of keys, which arrive in order.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    hashes: Vec<u64>,
    last: Vec<u8>,
}

impl Collector {
    pub(crate) fn add(&mut self, key: &[u8]) {
        if self.hashes.len() > MOST_PREFIXES {
            return;
        }
        let known = common(&self.last, key);
        let lengths = (STEP..=key.len().min(MOST)).step_by(STEP);
        self.hashes.extend(lengths.filter(|length| *length > known).map(|length| hash(&key[..length])));
        self.last.clear();
        self.last.extend_from_slice(key);
    }

    /// The filter.
    pub(crate) fn finish(self) -> Prefixes {
        if self.hashes.len() > MOST_PREFIXES {
            return Prefixes::of_anything();
        }
        let words = (self.hashes.len() * BITS).div_ceil(64).max(1);
        let mut prefixes = Prefixes { words: vec![0; words] };
        for hash in self.hashes {
            for (word, bit) in prefixes.places(hash) {
                prefixes.words[word] |= bit;
            }
        }
        prefixes
    }
}

impl Prefixes {
    /// The filter of a table that is always searched.
    pub(crate) fn of_anything() -> Self {
        Prefixes { words: Vec::new() }
    }

    /// Whether the keys from `begin` up to, not including, `end` may occur. `false` is certain.
    pub(crate) fn may_have(&self, begin: &[u8], end: &[u8]) -> bool {
        // All keys between `begin` and `end` have this prefix.
        let length = common(begin, end).min(MOST) / STEP * STEP;
        length == 0
            || self.words.is_empty()
            || self.places(hash(&begin[..length])).iter().all(|(word, bit)| self.words[*word] & bit != 0)
    }

    /// The word and the bit of each half of a hash. The half, taken as a part of one, gives the place.
    fn places(&self, hash: u64) -> [(usize, u64); 2] {
        [hash >> 32, hash & u64::from(u32::MAX)].map(|half| {
            let place = (half * (self.words.len() as u64 * 64)) >> 32;
            ((place / 64) as usize, 1 << (place % 64))
        })
    }
}

fn hash(prefix: &[u8]) -> u64 {
    XxHash3_64::oneshot(prefix)
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_with_a_key_in_it_is_never_skipped() {
        let mut number = 1u64;
        let mut below = |bound: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % bound
        };
        // Up to 63 bytes, many of them with common prefixes.
        let mut key = || -> Vec<u8> {
            let parts: String = (0..9).map(|_| format!("{:06}/", below(6))).collect();
            parts.into_bytes()[..below(64) as usize].to_vec()
        };
        let mut keys: Vec<Vec<u8>> = (0..500).map(|_| key()).collect();
        keys.sort();
        keys.dedup();
        let mut collector = Collector::default();
        keys.iter().for_each(|key| collector.add(key));
        let prefixes = collector.finish();
        let mut skipped = 0;
        for _ in 0..20_000 {
            let (one, other) = (key(), key());
            let (begin, end) = match one.len() % 2 {
                0 => (one.clone(), [one.as_slice(), b"\xff"].concat()),
                _ => (one.clone().min(other.clone()), one.max(other)),
            };
            let has = keys.iter().any(|key| *key >= begin && *key < end);
            let may_have = prefixes.may_have(&begin, &end);
            assert!(may_have || !has, "{begin:?} to {end:?}");
            skipped += usize::from(!may_have);
        }
        assert!(keys.iter().all(|key| prefixes.may_have(key, &[key.as_slice(), &[0]].concat())));
        assert!(skipped > 500, "{skipped}");
        assert!(!Collector::default().finish().may_have(b"12345678", b"123456789"));
    }

    #[test]
    fn a_table_of_very_many_keys_is_always_searched() {
        let mut collector = Collector::default();
        (0..=MOST_PREFIXES as u64 + 10).for_each(|key| collector.add(&key.to_be_bytes()));
        assert!(collector.hashes.len() < MOST_PREFIXES + 10);
        let prefixes = collector.finish();
        assert!(prefixes.words.is_empty() && prefixes.may_have(&[0; 9], &[0; 10]));
    }
}
