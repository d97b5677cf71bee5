//! The resolver: which keys were written when, and whether a transaction read something that changed.
//!
//! One map from half-open key ranges to the version that last wrote them, as boundaries in key order:
//! the version at a boundary holds up to the next. Ranges, not keys, since a range clear may cover
//! keys that do not exist, and a range read may cover keys that did not.
//!
//! ```text
//!   boundary   ""      b       b\0     f       k
//!   version    0       7       0       9       0           b was written at 7, [f, k) at 9
//! ```
//!
//! The boundaries lie in chunks of a few hundred, each with the greatest version in it, so that a check
//! looks into the two chunks at its ends and skims one number for each chunk between. What is older
//! than the window is merged away chunk by chunk, a little with each commit.
//!
//! Invariants: boundaries are strictly ascending; the first is the empty key; no chunk is empty; no
//! version is above the last one written; versions below `oldest` may read as any version below it.
//!
//! Source: FoundationDB's `fdbserver/SkipList.cpp`, whose skip list with a maximum on each level this
//! is in two levels.

use crate::KeyRange;
use crate::key_block::KeyBlock;
use crate::key_range::is_after;

/// The most boundaries of a chunk, and the most bytes of their keys.
const CHUNK: usize = 256;
const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Debug)]
struct Chunk {
    keys: KeyBlock,
    versions: Vec<i64>,
}

impl Chunk {
    /// The place of the last boundary at or before `key`, which is not before the chunk.
    fn at_or_before(&self, key: &[u8]) -> usize {
        self.keys.up_to(key).saturating_sub(1)
    }

    /// The place of the first boundary at or after `key`.
    fn from(&self, key: &[u8]) -> usize {
        self.keys.before(key)
    }

    fn maximum(&self) -> i64 {
        self.versions.iter().copied().max().unwrap_or(0)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Resolver {
    chunks: Vec<Chunk>,
    /// The first boundary of each chunk, and the greatest version in it.
    firsts: KeyBlock,
    maxima: Vec<i64>,
    oldest: i64,
    /// The next chunk to clean, and the boundaries that may be looked at for it.
    finger: usize,
    allowance: usize,
}

impl Resolver {
    pub(crate) fn new() -> Self {
        Resolver {
            chunks: vec![Chunk { keys: KeyBlock::of(b""), versions: vec![0] }],
            firsts: KeyBlock::of(b""),
            maxima: vec![0],
            oldest: 0,
            finger: 0,
            allowance: 0,
        }
    }

    /// How many boundaries are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.keys.len()).sum()
    }

    /// Whether any key of `range`, which is not empty, was written after `version`.
    pub(crate) fn changed_since(&self, range: &KeyRange, version: i64) -> bool {
        let first = self.chunk_of(&range.begin);
        let last = if range.is_point() { first } else { self.chunk_before(&range.end).max(first) };
        if self.maxima[first..=last].iter().all(|&maximum| maximum <= version) {
            return false;
        }
        let chunk = &self.chunks[first];
        let from = chunk.at_or_before(&range.begin);
        if first == last {
            // Of a point, the boundary at or before it decides; the next is at most the key after it.
            let until = if range.is_point() { from + 1 } else { chunk.from(&range.end) };
            return chunk.versions[from..until].iter().any(|&written| written > version);
        }
        let until = self.chunks[last].from(&range.end);
        self.maxima[first + 1..last].iter().any(|&maximum| maximum > version)
            || chunk.versions[from..].iter().any(|&written| written > version)
            || self.chunks[last].versions[..until].iter().any(|&written| written > version)
    }

    /// Records that `range`, which is not empty, was written at `version`: no less than any before.
    pub(crate) fn write(&mut self, range: &KeyRange, version: i64) {
        self.allowance += 3;
        if range.is_point() {
            return self.write_point(&range.begin, version);
        }
        // What follows the range keeps the version that it had.
        self.split_at(&range.end);
        let first = self.chunk_of(&range.begin);
        let last = self.chunk_before(&range.end).max(first);
        let place = self.chunks[first].at_or_before(&range.begin);
        // The boundaries within the range go; one at its begin takes their place.
        let at_begin = self.chunks[first].keys.key(place) == range.begin.as_ref();
        let from = if at_begin { place } else { place + 1 };
        if last > first {
            self.drop_up_to(first, last, &range.end);
        }
        let chunk = &mut self.chunks[first];
        let to = if last > first { chunk.keys.len() } else { chunk.from(&range.end) };
        if at_begin && to == from + 1 {
            chunk.versions[from] = version;
        } else {
            chunk.keys.replace(from, to, Some(&range.begin));
            chunk.versions.splice(from..to, [version]);
        }
        self.maxima[first] = version;
        self.split_if_long(first);
    }

    /// Records that `key` was written at `version`: most of what is written; two searches, one insertion.
    pub(crate) fn write_key(&mut self, key: &[u8], version: i64) {
        self.allowance += 3;
        self.write_point(key, version);
    }

    fn write_point(&mut self, key: &[u8], version: i64) {
        let at = self.chunk_of(key);
        let follows = self.chunks.get(at + 1).is_some_and(|next| is_after(next.keys.key(0), key));
        let chunk = &mut self.chunks[at];
        let place = chunk.at_or_before(key);
        let at_key = chunk.keys.key(place) == key;
        let ends = match place + 1 < chunk.keys.len() {
            true => is_after(chunk.keys.key(place + 1), key),
            // The key after this one may be the first of the next chunk.
            false => follows,
        };
        let before = chunk.versions[place];
        match (at_key, ends) {
            (true, true) => chunk.versions[place] = version,
            (true, false) => {
                chunk.versions[place] = version;
                chunk.keys.insert(place + 1, &[key, b"\0"].concat());
                chunk.versions.insert(place + 1, before);
            }
            (false, true) => {
                chunk.keys.insert(place + 1, key);
                chunk.versions.insert(place + 1, version);
            }
            (false, false) => {
                chunk.keys.insert_with_next(place + 1, key);
                chunk.versions.splice(place + 1..place + 1, [version, before]);
            }
        }
        self.maxima[at] = version;
        self.split_if_long(at);
    }

    /// Drops the boundaries before `end` in the chunks after `first` up to `last`.
    fn drop_up_to(&mut self, first: usize, last: usize, end: &[u8]) {
        let chunk = &mut self.chunks[last];
        let to = chunk.from(end);
        chunk.keys.replace(0, to, None);
        chunk.versions.drain(..to);
        let mut gone_to = last + 1;
        if !chunk.keys.is_empty() {
            self.firsts.replace(last, last + 1, Some(chunk.keys.key(0)));
            self.maxima[last] = chunk.maximum();
            gone_to = last;
        }
        self.chunks.drain(first + 1..gone_to);
        self.firsts.replace(first + 1, gone_to, None);
        self.maxima.drain(first + 1..gone_to);
    }

    /// Forgets what was written before `oldest`, a little at a time: about as much as was written since
    /// the last call, three times over.
    pub(crate) fn forget_before(&mut self, oldest: i64) {
        self.oldest = self.oldest.max(oldest);
        self.allowance += 10;
        loop {
            if self.finger >= self.chunks.len() {
                self.finger = 0;
            }
            let cost = self.chunks[self.finger].keys.len().max(16);
            if self.allowance < cost {
                return;
            }
            self.allowance -= cost;
            self.clean(self.finger);
            if self.finger == 0 {
                // One round is enough for now, however large the allowance.
                self.allowance = self.allowance.min(CHUNK);
            }
        }
    }

    /// Merges old neighbours in one chunk, drops the chunk when it empties or joins it to the one
    /// before when both are short; moves the finger on.
    fn clean(&mut self, at: usize) {
        let oldest = self.oldest;
        let mut before = match at.checked_sub(1) {
            Some(before) => self.chunks[before].versions.last().copied().unwrap_or(0),
            None => oldest, // The first boundary always stays.
        };
        let chunk = &mut self.chunks[at];
        let mut keep = Vec::with_capacity(chunk.keys.len());
        for &version in &chunk.versions {
            keep.push(before >= oldest || version >= oldest);
            before = version;
        }
        if keep.contains(&false) {
            chunk.keys.retain(&keep);
            let mut kept = keep.iter();
            chunk.versions.retain(|_| kept.next().copied().unwrap_or(true));
        }
        let joins = at > 0
            && chunk.keys.len() + self.chunks[at - 1].keys.len() < CHUNK / 2
            && self.chunks[at].keys.bytes() + self.chunks[at - 1].keys.bytes() < CHUNK_BYTES / 2;
        if self.chunks[at].keys.is_empty() || joins {
            let gone = self.chunks.remove(at);
            self.firsts.replace(at, at + 1, None);
            self.maxima.remove(at);
            let into = &mut self.chunks[at - 1];
            into.keys.append(&gone.keys);
            into.versions.extend(gone.versions);
            self.maxima[at - 1] = into.maximum();
        } else {
            let chunk = &self.chunks[at];
            if self.firsts.key(at) != chunk.keys.key(0) {
                self.firsts.replace(at, at + 1, Some(chunk.keys.key(0)));
            }
            self.maxima[at] = chunk.maximum();
            self.finger = at + 1;
        }
    }

    /// The chunk that holds the last boundary at or before `key`.
    fn chunk_of(&self, key: &[u8]) -> usize {
        self.firsts.up_to(key).saturating_sub(1)
    }

    /// The chunk that holds the last boundary before `key`.
    fn chunk_before(&self, key: &[u8]) -> usize {
        self.firsts.before(key).saturating_sub(1)
    }

    fn split_at(&mut self, key: &[u8]) {
        let at = self.chunk_of(key);
        let chunk = &mut self.chunks[at];
        let place = chunk.at_or_before(key);
        if chunk.keys.key(place) != key {
            let version = chunk.versions[place];
            chunk.keys.insert(place + 1, key);
            chunk.versions.insert(place + 1, version);
            self.split_if_long(at);
        }
    }

    fn split_if_long(&mut self, at: usize) {
        let chunk = &mut self.chunks[at];
        if chunk.keys.len() < 2 || (chunk.keys.len() <= CHUNK && chunk.keys.bytes() <= CHUNK_BYTES) {
            return;
        }
        let cut = chunk.keys.len() / 2;
        let tail = Chunk { keys: chunk.keys.split_off(cut), versions: chunk.versions.split_off(cut) };
        self.maxima[at] = chunk.maximum();
        self.firsts.insert(at + 1, tail.keys.key(0));
        self.maxima.insert(at + 1, tail.maximum());
        self.chunks.insert(at + 1, tail);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;

    use super::*;
    use crate::random::Random;

    fn key(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes()[6..])
    }

    fn check(resolver: &Resolver) {
        let mut last: Option<&[u8]> = None;
        for (at, chunk) in resolver.chunks.iter().enumerate() {
            assert_eq!(chunk.keys.len(), chunk.versions.len());
            assert_eq!((resolver.firsts.key(at), resolver.maxima[at]), (chunk.keys.key(0), chunk.maximum()));
            for key in (0..chunk.keys.len()).map(|at| chunk.keys.key(at)) {
                assert!(last.is_none_or(|last| last < key));
                last = Some(key);
            }
        }
        assert!(resolver.firsts.key(0).is_empty());
        assert_eq!(resolver.firsts.len(), resolver.chunks.len());
    }

    /// Against one version for each of 4,096 keys.
    #[test]
    fn agrees_with_a_version_for_each_key() {
        const KEYS: u64 = 4096;
        for seed in 0..20 {
            let random = Random::new(seed);
            let mut resolver = Resolver::new();
            let mut model = vec![0i64; KEYS as usize];
            let mut oldest = 0;
            for version in 1..3000i64 {
                let low = random.next() % KEYS;
                let long = if random.next().is_multiple_of(20) { KEYS } else { 4 };
                let high = (low + 1 + random.next() % long).min(KEYS);
                let range = if random.next().is_multiple_of(3) {
                    model[low as usize] = version;
                    KeyRange::point(&key(low))
                } else {
                    model[low as usize..high as usize].fill(version);
                    KeyRange { begin: key(low), end: key(high) }
                };
                resolver.write(&range, version);
                if random.next().is_multiple_of(5) {
                    oldest = (version - 500).max(0);
                    resolver.forget_before(oldest);
                    check(&resolver);
                }
                let low = random.next() % KEYS;
                let high = (low + 1 + random.next() % long).min(KEYS);
                let since = oldest + (random.next() % 500) as i64;
                let expected = model[low as usize..high as usize].iter().any(|&written| written > since);
                let range = KeyRange { begin: key(low), end: key(high) };
                assert_eq!(resolver.changed_since(&range, since), expected, "seed {seed}, version {version}");
                let expected = model[low as usize] > since;
                assert_eq!(resolver.changed_since(&KeyRange::point(&key(low)), since), expected, "seed {seed}");
            }
            check(&resolver);
        }
    }

    #[test]
    fn what_left_the_window_is_forgotten() {
        let mut resolver = Resolver::new();
        for version in 1..=20_000i64 {
            resolver.write(&KeyRange::point(&version.to_be_bytes()), version);
            resolver.forget_before(version - 1_000);
        }
        assert!(resolver.len() < 6_000, "{} boundaries for a window of 1,000 keys", resolver.len());
        for _ in 0..10_000 {
            resolver.forget_before(30_000);
        }
        assert_eq!(resolver.len(), 1);
        check(&resolver);
    }

    /// Ranges spread over all keys, each written by its own commit, and checks among them.
    #[allow(clippy::disallowed_methods, reason = "measures time")]
    fn cost_of_a_check(among: u64) -> Duration {
        const CHECKS: u64 = 200_000;
        let random = Random::new(1);
        let key = |number: u64| Bytes::from(format!("some/prefix/{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let mut resolver = Resolver::new();
        let started = Instant::now();
        for number in 0..among {
            resolver.write(&KeyRange::point(&key(number)), number as i64);
        }
        println!("{among} ranges: {:?} for a write", started.elapsed() / among as u32);
        let points: Vec<_> = (0..CHECKS).map(|_| KeyRange::point(&key(random.next() % among))).collect();
        let short: Vec<_> = points
            .iter()
            .map(|point| KeyRange { begin: point.begin.clone(), end: [&point.begin[..], b"\xff"].concat().into() })
            .collect();
        let mut slowest = Duration::ZERO;
        for (what, ranges) in [("a key", &points), ("a short range", &short)] {
            // Half of the ranges were written since, and every check must look into its chunk. The median
            // of many parts: others use the machine too.
            let mut costs: Vec<Duration> = Vec::new();
            for part in ranges.chunks(1_000) {
                let started = Instant::now();
                let found = part.iter().filter(|range| resolver.changed_since(range, among as i64 / 2)).count();
                assert!((300..700).contains(&found), "{found}");
                costs.push(started.elapsed() / part.len() as u32);
            }
            costs.sort();
            let cost = costs[costs.len() / 2];
            println!("{among} ranges: {cost:?} for a check of {what}, from {:?}", costs[0]);
            slowest = slowest.max(cost);
        }
        slowest
    }

    /// `cargo test -p occ --release --lib -- --ignored --nocapture cost`
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_a_check_among_a_million_ranges_and_a_thousand() {
        let (few, many) = (cost_of_a_check(1_000), cost_of_a_check(1_000_000));
        println!("{:.1} times", many.as_secs_f64() / few.as_secs_f64());
    }
}
