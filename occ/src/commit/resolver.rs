//! The resolver: when each key was last written, and whether a transaction has read something that changed since.
//!
//! Single keys have their version in a sorted map. Cleared ranges, which cover keys that may not exist, are
//! disjoint intervals in another one:
//!
//! ```text
//!   keys      b: 7      d: 8          k: 9
//!   ranges         [c ──── f): 9
//!   a read of [d, e) at version 8 conflicts: the range was cleared at 9
//! ```
//!
//! Checking one key is a look-up in each map. Checking a range steps over its keys that were written within the
//! window of read versions, until one is too new.
//!
//! A history of all writes, oldest first, shows which have left the window.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::KeyRange;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    /// The version at which each key was written last.
    keys: BTreeMap<Arc<[u8]>, i64>,
    /// Cleared ranges by their begin: the end, and the version at which the range was cleared. Disjoint.
    ranges: BTreeMap<Bytes, (Bytes, i64)>,
    /// The newest version in both maps.
    newest: i64,
    /// The version and the key, or the begin of the range, of each write within the window.
    history: VecDeque<(i64, Arc<[u8]>)>,
}

impl Resolver {
    /// Whether any key of any of the ranges, which are not empty, was written after `version`.
    pub(crate) fn any_changed_since(&self, ranges: &[KeyRange], version: i64) -> bool {
        self.newest > version && ranges.iter().any(|range| self.changed_since(range, version))
    }

    fn changed_since(&self, range: &KeyRange, version: i64) -> bool {
        let (begin, end) = (range.begin.as_ref(), range.end.as_ref());
        let written = match range.is_point() {
            true => self.keys.get(begin).is_some_and(|&written| written > version),
            false => {
                let keys = (Bound::Included(begin), Bound::Excluded(end));
                self.keys.range::<[u8], _>(keys).any(|(_, &written)| written > version)
            }
        };
        written || self.cleared_since(begin, end, version)
    }

    fn cleared_since(&self, begin: &[u8], end: &[u8], version: i64) -> bool {
        let before = self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(end))).rev();
        before.take_while(|(_, (until, _))| until.as_ref() > begin).any(|(_, (_, cleared))| *cleared > version)
    }

    /// Records that a range, which is not empty, was written at `version`. Versions never fall.
    pub(crate) fn write(&mut self, range: &KeyRange, version: i64) {
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
            self.history.push_back((cleared, range.end.as_ref().into()));
        }
        self.ranges.insert(range.begin.clone(), (range.end.clone(), version));
        self.history.push_back((version, range.begin.as_ref().into()));
    }

    /// Records that a key was written at `version`.
    pub(crate) fn write_key(&mut self, key: &[u8], version: i64) {
        self.newest = version;
        let key: Arc<[u8]> = key.into();
        self.keys.insert(key.clone(), version);
        self.history.push_back((version, key));
    }

    /// Drops what was written before `oldest` and not since.
    pub(crate) fn forget_before(&mut self, oldest: i64) {
        while let Some((version, key)) = self.history.pop_front_if(|(version, _)| *version < oldest) {
            if self.keys.get(&key) == Some(&version) {
                self.keys.remove(&key);
            }
            if self.ranges.get(&*key).is_some_and(|(_, cleared)| *cleared == version) {
                self.ranges.remove(&*key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
