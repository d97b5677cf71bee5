//! The resolver: when each key was last written, and whether a transaction has read something that changed since.
//!
//! Some thousands of consecutive writes form a generation. One sorted map has the version of each single key. Another
//! has the cleared ranges, as disjoint intervals:
//!
//! ```text
//!   earlier   [ versions 1 to 4 ]  [ 4 to 6 ]        forgotten whole, once they left the window of read versions
//!   current   keys      b: 7      d: 8          k: 9
//!             ranges         [c ──── f): 9
//!             a read of [d, e) at version 8 conflicts: the range was cleared at 9
//! ```
//!
//! A check searches the generations with writes after its read version: for most transactions only the current one.
//! Checking one key is a look-up in each map. Checking a range visits its keys in the generation until one is too new.
//!
//! Why not one map: it would hold all keys of five seconds, some hundred thousand. Each insertion and each removal
//! would search memory outside of any cache.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;

use crate::KeyRange;
use crate::key_map::KeyMap;

/// Number of writes after which a generation ends with its batch. Small in tests, so that they have many.
const FULL: usize = if cfg!(test) { 64 } else { 4096 };

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    /// Oldest first.
    earlier: VecDeque<Generation>,
    current: Generation,
}

/// Consecutive writes.
#[derive(Debug, Default)]
struct Generation {
    /// The version at which each key was written last.
    keys: KeyMap<i64>,
    /// Cleared ranges by their start: the end, and the version at which the range was cleared. Disjoint.
    ranges: BTreeMap<Bytes, (Bytes, i64)>,
    /// The newest version in both maps, or before this generation if it has no write yet.
    newest: i64,
}

impl Resolver {
    /// Whether any key in any of the ranges was written after `version`. No range may be empty.
    pub(crate) fn any_changed_since(&self, ranges: &[KeyRange], version: i64) -> bool {
        let newest_first = std::iter::once(&self.current).chain(self.earlier.iter().rev());
        newest_first
            .take_while(|generation| generation.newest > version)
            .any(|generation| ranges.iter().any(|range| generation.changed_since(range, version)))
    }

    /// Records that a non-empty range was written at `version`. Versions never decrease.
    pub(crate) fn write(&mut self, range: &KeyRange, version: i64) {
        self.current.write(range, version);
    }

    /// Records that a key was written at `version`.
    pub(crate) fn write_key(&mut self, key: &[u8], version: i64) {
        self.current.write_key(key, version);
    }

    /// Ends a batch: forgets the generations that were written before `oldest`.
    pub(crate) fn forget_before(&mut self, oldest: i64) {
        if self.current.len() >= FULL {
            let next = Generation { newest: self.current.newest, ..Generation::default() };
            self.earlier.push_back(std::mem::replace(&mut self.current, next));
        }
        while self.earlier.pop_front_if(|generation| generation.newest < oldest).is_some() {}
    }
}

impl Generation {
    fn len(&self) -> usize {
        self.keys.len() + self.ranges.len()
    }

    fn changed_since(&self, range: &KeyRange, version: i64) -> bool {
        let (begin, end) = (range.begin.as_ref(), range.end.as_ref());
        let written = match range.is_point() {
            true => self.keys.get(begin).is_some_and(|&written| written > version),
            false => self.keys.range(begin, end).any(|(_, &written)| written > version),
        };
        written || self.cleared_since(begin, end, version)
    }

    fn cleared_since(&self, begin: &[u8], end: &[u8], version: i64) -> bool {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(end))).rev();
        before.take_while(|(_, (until, _))| until.as_ref() > begin).any(|(_, (_, cleared))| *cleared > version)
    }

    fn write(&mut self, range: &KeyRange, version: i64) {
        if range.is_point() {
            return self.write_key(&range.begin, version);
        }
        self.newest = version;
        // The older ranges keep what the new one does not cover.
        let reaches_in =
            self.ranges.range::<Bytes, _>(..&range.begin).next_back().filter(|(_, (end, _))| *end > range.begin);
        if let Some((begin, (end, cleared))) = reaches_in.map(|(begin, range)| (begin.clone(), range.clone())) {
            self.ranges.insert(begin, (range.begin.clone(), cleared));
            self.ranges.insert(range.begin.clone(), (end, cleared));
        }
        let covered = self.ranges.extract_if(range.begin.clone()..range.end.clone(), |_, _| true).last();
        if let Some((_, (end, cleared))) = covered.filter(|(_, (end, _))| *end > range.end) {
            self.ranges.insert(range.end.clone(), (end, cleared));
        }
        self.ranges.insert(range.begin.clone(), (range.end.clone(), version));
    }

    fn write_key(&mut self, key: &[u8], version: i64) {
        self.newest = version;
        // A copy: a clone would keep alive what lies around the key, its document for instance.
        self.keys.set(Bytes::copy_from_slice(key), version);
    }
}

#[cfg(test)]
mod tests;
