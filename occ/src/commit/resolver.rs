//! The resolver: which keys were written when, and whether a transaction read something that changed.
//!
//! One map from boundaries in key order to the version that last wrote the boundary's own key, and the one
//! that last wrote the keys between it and the next. Ranges, not keys, since a range clear may cover keys
//! that do not exist, and a range read may cover keys that did not. Most of what is written are keys alone:
//! such a one is one boundary, with what was between its neighbours on both of its sides.
//!
//! ```text
//!   boundary   ""      b       f       k
//!   at          0      7       9       0           b was written at 7, [f, k) at 9
//!   behind      0      0       9       0
//! ```
//!
//! The boundaries lie in chunks of a few hundred, each with the greatest version in it, so that a check
//! looks into the two chunks at its ends and skims one number for each chunk between. What is older
//! than the window is merged away chunk by chunk, a little with each commit.
//!
//! Invariants: boundaries are strictly ascending; the first is the empty key; no chunk is empty; no
//! version is above the last one written; versions below `oldest` may read as any version below it; where no
//! key lies between two boundaries, the version there is 0.
//!
//! Source: FoundationDB's `fdbserver/SkipList.cpp`, whose skip list with a maximum on each level this
//! is in two levels.

use std::hint::black_box;

use crate::KeyRange;
use crate::key_block::{KeyBlock, Places};
use crate::key_range::is_after;

/// The most boundaries of a chunk, and the most bytes of their keys.
const CHUNK: usize = 256;
const CHUNK_BYTES: usize = 64 * 1024;

/// So many ranges are looked for together, where there are more chunks than a processor's nearer caches hold.
const TOGETHER: usize = 16;
const FEW: usize = 64;

/// Where a range begins: the last boundary at or before it. The place is known for chunks in which something
/// was written since.
#[derive(Clone, Copy, Debug, Default)]
struct Begin {
    chunk: usize,
    place: usize,
}

/// What was written at a boundary's key, and between it and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    at: i64,
    behind: i64,
}

impl Written {
    fn maximum(self) -> i64 {
        self.at.max(self.behind)
    }
}

#[derive(Debug)]
struct Chunk {
    keys: KeyBlock,
    written: Vec<Written>,
}

impl Chunk {
    /// The place of the last boundary at or before `key`, which is not before the chunk.
    fn at_or_before(&self, key: &[u8]) -> usize {
        self.keys.up_to(key).saturating_sub(1)
    }

    fn has(&self, place: usize, key: &[u8]) -> bool {
        self.keys.key(place) == key
    }

    fn maximum(&self) -> i64 {
        self.written.iter().map(|written| written.maximum()).max().unwrap_or(0)
    }

    fn insert(&mut self, place: usize, key: &[u8], written: Written) {
        self.keys.insert(place, key);
        self.written.insert(place, written);
    }

    /// Drops the boundaries from `from` up to, not including, `to`.
    fn drop_range(&mut self, from: usize, to: usize) {
        if from < to {
            self.keys.replace(from, to, None);
            self.written.drain(from..to);
        }
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
    /// So many chunks are searched one key after the other.
    few: usize,
    /// The next chunk to clean, and the boundaries that may be looked at for it.
    finger: usize,
    allowance: usize,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver {
            chunks: vec![Chunk { keys: KeyBlock::of(b""), written: vec![Written::default()] }],
            firsts: KeyBlock::of(b""),
            maxima: vec![0],
            oldest: 0,
            few: FEW,
            finger: 0,
            allowance: 0,
        }
    }
}

impl Resolver {
    /// How many boundaries are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.keys.len()).sum()
    }

    /// Whether any key of any of the ranges, which are not empty, was written after `version`.
    pub(crate) fn any_changed_since(&self, ranges: &[KeyRange], version: i64) -> bool {
        ranges.chunks(TOGETHER).any(|ranges| {
            let begins = self.begins_of(ranges, version);
            ranges.iter().zip(begins).any(|(range, begin)| self.changed_since(range, begin, version))
        })
    }

    /// Where the ranges begin, of which there are at most [`TOGETHER`].
    fn begins_of(&self, ranges: &[KeyRange], version: i64) -> [Begin; TOGETHER] {
        let mut begins = [Begin::default(); TOGETHER];
        let are_many = self.chunks.len() > self.few;
        for (begin, range) in begins.iter_mut().zip(ranges) {
            begin.chunk = self.chunk_of(&range.begin);
            if !are_many && self.maxima[begin.chunk] > version {
                begin.place = self.chunks[begin.chunk].at_or_before(&range.begin);
            }
        }
        if are_many {
            let begins = begins.iter_mut().zip(ranges);
            self.find_together(begins.filter(|(begin, _)| self.maxima[begin.chunk] > version));
        }
        begins
    }

    /// Finds the places of all begins, a step of all searches at a time, and has all that the step reads read
    /// before it: the processor, which looks a few hundred instructions ahead, then waits for all of it at once,
    /// where each search would wait for itself.
    ///
    /// Source: the interleaved searches of FoundationDB's `fdbserver/SkipList.cpp`.
    fn find_together<'a>(&'a self, begins: impl Iterator<Item = (&'a mut Begin, &'a KeyRange)>) {
        struct Search<'a> {
            chunk: &'a Chunk,
            key: &'a [u8],
            places: Places,
            begin: &'a mut Begin,
        }
        let search = |(begin, range): (&'a mut Begin, &'a KeyRange)| Search {
            chunk: &self.chunks[begin.chunk],
            key: &range.begin,
            places: Places::default(),
            begin,
        };
        let mut searches: Vec<Search<'_>> = begins.map(search).collect();
        read_ahead(searches.iter().map(|search| search.chunk.keys.touch()));
        for search in &mut searches {
            search.places = search.chunk.keys.narrow(search.key);
        }
        read_ahead(searches.iter().map(|search| search.chunk.keys.touch_among(search.places)));
        for search in &mut searches {
            search.begin.place = search.chunk.keys.up_to_among(search.places, search.key).saturating_sub(1);
        }
        read_ahead(searches.iter().map(|Search { chunk, begin, .. }| {
            chunk.keys.touch_end(begin.place) ^ chunk.written[begin.place].at as u64
        }));
        read_ahead(
            searches
                .iter()
                .map(|Search { chunk, begin, .. }| chunk.keys.key(begin.place).first().copied().map_or(0, u64::from)),
        );
    }

    /// Whether any key of a range that begins there was written after `version`.
    fn changed_since(&self, range: &KeyRange, Begin { chunk: first, place: from }: Begin, version: i64) -> bool {
        let is_quiet = self.maxima[first] <= version;
        let begin = &self.chunks[first];
        if range.is_point() {
            if is_quiet {
                return false;
            }
            let written = begin.written[from];
            // Most keys were never written among these versions: the key itself need not be looked at.
            return written.maximum() > version
                && version < if begin.has(from, &range.begin) { written.at } else { written.behind };
        }
        let within_one = !is_quiet && from + 1 < begin.keys.len() && range.end <= begin.keys.key(from + 1);
        let last = if within_one { first } else { self.chunk_before(&range.end).max(first) };
        if self.maxima[first..=last].iter().all(|&maximum| maximum <= version) {
            return false;
        }
        let end = &self.chunks[last];
        let from = if is_quiet { begin.at_or_before(&range.begin) } else { from };
        let to = if within_one { from } else { end.keys.before(&range.end).saturating_sub(1) };
        // Behind the last boundary before the end there may be no key of the range.
        let behind_last = end.written[to].behind > version && !is_after(&range.end, end.keys.key(to));
        if (first, from) == (last, to) {
            return behind_last || (begin.written[from].at > version && begin.has(from, &range.begin));
        }
        let changed = |written: &Written| written.maximum() > version;
        let between = match first == last {
            true => begin.written[from + 1..to].iter().any(changed),
            false => {
                self.maxima[first + 1..last].iter().any(|&maximum| maximum > version)
                    || begin.written[from + 1..].iter().any(changed)
                    || end.written[..to].iter().any(changed)
            }
        };
        between
            || behind_last
            || end.written[to].at > version
            || begin.written[from].behind > version
            || (begin.written[from].at > version && begin.has(from, &range.begin))
    }

    /// Records that `range`, which is not empty, was written at `version`: no less than any before.
    pub(crate) fn write(&mut self, range: &KeyRange, version: i64) {
        self.allowance += 3;
        if range.is_point() {
            return self.write_point(&range.begin, version);
        }
        // What follows the range keeps the version that it had.
        let kept = self.bound(&range.end, version);
        let first = self.chunk_of(&range.begin);
        let end = kept.as_deref().unwrap_or(&range.end);
        let last = self.chunk_before(end).max(first);
        let place = self.chunks[first].at_or_before(&range.begin);
        // The boundaries within the range go; one at its begin takes their place.
        if last > first {
            self.drop_up_to(first, last, end);
        }
        let chunk = &mut self.chunks[first];
        let to = if last > first { chunk.keys.len() } else { chunk.keys.before(end) };
        chunk.drop_range(place + 1, to);
        let no_key_behind = kept.is_some_and(|kept| is_after(&kept, &range.begin));
        let written = Written { at: version, behind: if no_key_behind { 0 } else { version } };
        if chunk.has(place, &range.begin) {
            chunk.written[place] = written;
        } else {
            chunk.insert(place + 1, &range.begin, written);
            if is_after(&range.begin, chunk.keys.key(place)) {
                chunk.written[place].behind = 0;
            }
        }
        self.maxima[first] = version;
        self.split_if_long(first);
    }

    /// Records that `key` was written at `version`: most of what is written; one search, one insertion.
    pub(crate) fn write_key(&mut self, key: &[u8], version: i64) {
        self.allowance += 3;
        self.write_point(key, version);
    }

    fn write_point(&mut self, key: &[u8], version: i64) {
        let at = self.chunk_of(key);
        let mut place = self.chunks[at].at_or_before(key);
        if !self.chunks[at].has(place, key) {
            self.insert_behind(at, place, key);
            place += 1;
        }
        self.chunks[at].written[place].at = version;
        self.maxima[at] = version;
        self.split_if_long(at);
    }

    /// Cuts what lies behind a boundary in two at `key`, which is there: nothing changes its version.
    fn insert_behind(&mut self, at: usize, place: usize, key: &[u8]) {
        let next_chunk = self.chunks.get(at + 1).map(|chunk| chunk.keys.key(0));
        let chunk = &self.chunks[at];
        let next = if place + 1 < chunk.keys.len() { Some(chunk.keys.key(place + 1)) } else { next_chunk };
        let behind = chunk.written[place].behind;
        let no_key_behind = next.is_some_and(|next| is_after(next, key));
        let no_key_before = is_after(key, chunk.keys.key(place));
        let chunk = &mut self.chunks[at];
        chunk.insert(place + 1, key, Written { at: behind, behind: if no_key_behind { 0 } else { behind } });
        if no_key_before {
            chunk.written[place].behind = 0;
        }
    }

    /// Makes `end` a boundary, unless all keys behind the last boundary before it are behind `end` too: that
    /// boundary is given back, as written at `version`.
    fn bound(&mut self, end: &[u8], version: i64) -> Option<Vec<u8>> {
        let at = self.chunk_of(end);
        let chunk = &mut self.chunks[at];
        let place = chunk.at_or_before(end);
        let key = chunk.keys.key(place);
        if key == end {
            return None;
        }
        if is_after(end, key) {
            let kept = key.to_vec();
            chunk.written[place].at = version;
            self.maxima[at] = version;
            return Some(kept);
        }
        self.insert_behind(at, place, end);
        self.split_if_long(at);
        None
    }

    /// Drops the boundaries before `end` in the chunks after `first` up to `last`.
    fn drop_up_to(&mut self, first: usize, last: usize, end: &[u8]) {
        let chunk = &mut self.chunks[last];
        let to = chunk.keys.before(end);
        chunk.drop_range(0, to);
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
            Some(before) => self.chunks[before].written.last().map_or(0, |last| last.behind),
            None => oldest, // The first boundary always stays.
        };
        let chunk = &mut self.chunks[at];
        let mut keep = Vec::with_capacity(chunk.keys.len());
        for written in &chunk.written {
            keep.push(before >= oldest || written.maximum() >= oldest);
            before = written.behind;
        }
        if keep.contains(&false) {
            chunk.keys.retain(&keep);
            let mut kept = keep.iter();
            chunk.written.retain(|_| kept.next().copied().unwrap_or(true));
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
            into.written.extend(gone.written);
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

    fn split_if_long(&mut self, at: usize) {
        let chunk = &mut self.chunks[at];
        if chunk.keys.len() < 2 || (chunk.keys.len() <= CHUNK && chunk.keys.bytes() <= CHUNK_BYTES) {
            return;
        }
        let cut = chunk.keys.len() / 2;
        let tail = Chunk { keys: chunk.keys.split_off(cut), written: chunk.written.split_off(cut) };
        self.maxima[at] = chunk.maximum();
        self.firsts.insert(at + 1, tail.keys.key(0));
        self.maxima.insert(at + 1, tail.maximum());
        self.chunks.insert(at + 1, tail);
    }
}

/// Reads what the numbers are made of.
fn read_ahead(numbers: impl Iterator<Item = u64>) {
    black_box(numbers.fold(0, |all, number| all ^ number));
}

#[cfg(test)]
mod tests;
