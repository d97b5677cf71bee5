//! A sorted map from keys that is made for runs: what a transaction writes comes mostly in ascending order,
//! a few rows here, a few there.
//!
//! ```text
//!   chunks   [ a  c  d ]  [ f  g  h  k ]  [ p  q ]
//!                              └ the last one inserted; what fits right behind it needs no search
//! ```
//!
//! Entries lie in chunks of a few dozen. A search goes over the first keys of the chunks, then into one.
//!
//! Invariants: keys are strictly ascending; no chunk is empty.

use bytes::Bytes;

/// The most entries of a chunk.
const MOST: usize = 32;

/// Room for so many is made at first: what a transaction on one document writes.
const FEW: usize = 8;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct KeyMap<V> {
    chunks: Vec<Vec<(Bytes, V)>>,
    last: Place,
}

/// Where an entry is, or would be: its chunk, and its number in it. Holds until something is inserted or
/// removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: usize,
    at: usize,
}

impl<V> Default for KeyMap<V> {
    fn default() -> Self {
        KeyMap { chunks: Vec::new(), last: Place::default() }
    }
}

impl<V> KeyMap<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
    }

    /// The place of `key`: `Err` for where it is to be inserted.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Place, Place> {
        if let Some(found) = self.find_behind_last(key) {
            return found;
        }
        let chunk = self.chunk_of(key);
        let Some(entries) = self.chunks.get(chunk) else { return Err(Place::default()) };
        let place = |at| Place { chunk, at };
        entries.binary_search_by(|(found, _)| found.as_ref().cmp(key)).map(place).map_err(place)
    }

    fn find_behind_last(&self, key: &[u8]) -> Option<Result<Place, Place>> {
        let Place { chunk, at } = self.last;
        let entries = self.chunks.get(chunk)?;
        if entries.get(at)?.0.as_ref() >= key {
            return None;
        }
        let behind = Place { chunk, at: at + 1 };
        let next = entries.get(at + 1).or_else(|| self.chunks.get(chunk + 1)?.first());
        match next {
            Some((next, _)) if next.as_ref() <= key => None,
            _ => Some(Err(behind)),
        }
    }

    /// The entry at a place that [`find`](Self::find) found.
    pub(crate) fn value_mut(&mut self, place: Place) -> &mut V {
        &mut self.chunks[place.chunk][place.at].1
    }

    /// Inserts a key at the place that [`find`](Self::find) said.
    pub(crate) fn insert(&mut self, place: Place, key: Bytes, value: V) -> &mut V {
        let Place { mut chunk, mut at } = place;
        if self.chunks.is_empty() {
            self.chunks.push(Vec::with_capacity(FEW));
        }
        let entries = &mut self.chunks[chunk];
        if entries.len() == MOST {
            // Behind all others, as when everything comes in order, chunks are left full.
            let cut = if at == MOST && chunk + 1 == self.chunks.len() { MOST } else { MOST / 2 };
            let entries = &mut self.chunks[chunk];
            let mut tail = Vec::with_capacity(MOST);
            tail.extend(entries.drain(cut..));
            if at >= cut {
                (chunk, at) = (chunk + 1, at - cut);
                tail.insert(at, (key, value));
            } else {
                entries.insert(at, (key, value));
            }
            self.chunks.insert(place.chunk + 1, tail);
        } else if at == entries.len() {
            entries.push((key, value));
        } else {
            entries.insert(at, (key, value));
        }
        self.last = Place { chunk, at };
        self.value_mut(self.last)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let place = self.find(key).ok()?;
        self.chunks.get(place.chunk)?.get(place.at).map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<(Bytes, V)> {
        let place = self.find(key).ok()?;
        let entry = self.chunks[place.chunk].remove(place.at);
        if self.chunks[place.chunk].is_empty() {
            self.chunks.remove(place.chunk);
        }
        Some(entry)
    }

    /// Whether there may be entries from `begin` up to, not including, `end`: none if both would be inserted
    /// right behind the last one.
    pub(crate) fn may_hold_any(&self, begin: &[u8], end: &[u8]) -> bool {
        let behind_last = matches!(self.find_behind_last(begin), Some(Err(_)));
        !behind_last || self.find_behind_last(end).is_none()
    }

    /// Takes the entries from `begin` up to, not including, `end` out, in order.
    pub(crate) fn take_range(&mut self, begin: &[u8], end: &[u8]) -> Vec<(Bytes, V)> {
        let (from, to) = self.bounds(begin, end);
        let mut taken = Vec::new();
        if from == to {
            return taken;
        }
        if from.chunk == to.chunk {
            taken.extend(self.chunks[from.chunk].drain(from.at..to.at));
        } else {
            taken.extend(self.chunks[from.chunk].drain(from.at..));
            if let Some(entries) = self.chunks.get_mut(to.chunk) {
                let rest = entries.split_off(to.at);
                let beginning = std::mem::replace(entries, rest);
                taken.extend(self.chunks.drain(from.chunk + 1..to.chunk).flatten());
                taken.extend(beginning);
            } else {
                taken.extend(self.chunks.drain(from.chunk + 1..).flatten());
            }
        }
        self.chunks.retain(|entries| !entries.is_empty());
        taken
    }

    /// The entries from `begin` up to, not including, `end`, from either side.
    pub(crate) fn range(&self, begin: &[u8], end: &[u8]) -> Range<'_, V> {
        let (front, back) = self.bounds(begin, end);
        Range { chunks: &self.chunks, front, back }
    }

    /// All entries in order, in pieces.
    pub(crate) fn into_chunks(self) -> Vec<Vec<(Bytes, V)>> {
        self.chunks
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Bytes, &V)> {
        self.chunks.iter().flatten().map(|(key, value)| (key, value))
    }

    fn bounds(&self, begin: &[u8], end: &[u8]) -> (Place, Place) {
        if begin >= end {
            return Default::default();
        }
        (self.first_from(begin), self.first_from(end))
    }

    /// The place of the first entry at or after `key`; behind the last one, the beginning of a chunk that is
    /// not there.
    fn first_from(&self, key: &[u8]) -> Place {
        let chunk = self.chunk_of(key);
        let Some(entries) = self.chunks.get(chunk) else { return Place::default() };
        match entries.partition_point(|(found, _)| found.as_ref() < key) {
            at if at == entries.len() => Place { chunk: chunk + 1, at: 0 },
            at => Place { chunk, at },
        }
    }

    /// The chunk that holds the last entry at or before `key`, or the first one.
    fn chunk_of(&self, key: &[u8]) -> usize {
        let begins_by = |entries: &Vec<(Bytes, V)>| entries.first().is_some_and(|(first, _)| first.as_ref() <= key);
        self.chunks.partition_point(begins_by).saturating_sub(1)
    }
}

/// Some entries of a [`KeyMap`].
#[derive(Debug)]
pub(crate) struct Range<'a, V> {
    chunks: &'a [Vec<(Bytes, V)>],
    /// The next entry from the front.
    front: Place,
    /// The one behind the next entry from the back.
    back: Place,
}

impl<'a, V> Iterator for Range<'a, V> {
    type Item = (&'a Bytes, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        if self.front == self.back {
            return None;
        }
        let entries = self.chunks.get(self.front.chunk)?;
        let (key, value) = entries.get(self.front.at)?;
        self.front.at += 1;
        if self.front.at == entries.len() {
            self.front = Place { chunk: self.front.chunk + 1, at: 0 };
        }
        Some((key, value))
    }
}

impl<V> DoubleEndedIterator for Range<'_, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front == self.back {
            return None;
        }
        if self.back.at == 0 {
            self.back.chunk = self.back.chunk.checked_sub(1)?;
            self.back.at = self.chunks.get(self.back.chunk)?.len();
        }
        self.back.at -= 1;
        let (key, value) = self.chunks.get(self.back.chunk)?.get(self.back.at)?;
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::Random;

    fn check(map: &KeyMap<u64>, model: &BTreeMap<Bytes, u64>, what: &str) {
        assert!(map.iter().eq(model.iter()), "{what}");
        assert!(map.chunks.iter().all(|entries| !entries.is_empty() && entries.len() <= MOST), "{what}");
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()), "{what}");
    }

    /// Against the standard library's, with runs of keys here and there, over a keyspace so narrow that they
    /// meet.
    #[test]
    fn does_what_a_tree_does() {
        for seed in 0..60 {
            let random = Random::new(seed);
            let width = [50, 400, 4_000][seed as usize % 3];
            let key = |n: u64| Bytes::copy_from_slice(&n.to_be_bytes()[6..]);
            let (mut map, mut model) = (KeyMap::default(), BTreeMap::<Bytes, u64>::new());
            for step in 0..600 {
                let what = format!("seed {seed}, step {step}");
                let begin = random.next() % width;
                let end = begin + random.next() % (width / 4);
                match random.next() % 40 {
                    0 => {
                        let taken = map.take_range(&key(begin), &key(end));
                        let expected: Vec<_> =
                            model.range(key(begin)..key(end)).map(|(k, v)| (k.clone(), *v)).collect();
                        model.retain(|known, _| expected.iter().all(|(key, _)| key != known));
                        assert_eq!(taken, expected, "{what}");
                    }
                    1 if random.next().is_multiple_of(20) => {
                        map.clear();
                        model.clear();
                    }
                    2..=7 => {
                        let removed = map.remove(&key(begin));
                        assert_eq!(removed, model.remove_entry(&key(begin)), "{what}");
                    }
                    8..=20 => {
                        for n in begin..begin + random.next() % 20 {
                            match map.find(&key(n)) {
                                Ok(place) => *map.value_mut(place) = step,
                                Err(place) => drop(*map.insert(place, key(n), step)),
                            }
                            model.insert(key(n), step);
                        }
                    }
                    _ => {
                        assert_eq!(map.get(&key(begin)), model.get(&key(begin)), "{what}");
                        let expected: Vec<_> = model.range(key(begin)..key(end)).collect();
                        assert!(expected.is_empty() || map.may_hold_any(&key(begin), &key(end)), "{what}");
                        assert_eq!(map.range(&key(begin), &key(end)).collect::<Vec<_>>(), expected, "{what}");
                        let backwards: Vec<_> = expected.into_iter().rev().collect();
                        assert_eq!(map.range(&key(begin), &key(end)).rev().collect::<Vec<_>>(), backwards, "{what}");
                        let mut both = map.range(&key(begin), &key(end));
                        while both.next().is_some() {
                            both.next_back();
                        }
                        assert!(both.next_back().is_none(), "{what}");
                    }
                }
                check(&map, &model, &what);
            }
            assert!(map.into_chunks().into_iter().flatten().eq(model), "seed {seed}");
        }
    }

    #[test]
    fn what_comes_in_order_leaves_full_chunks() {
        let mut map = KeyMap::default();
        for n in 0..10 * MOST as u32 {
            let key = Bytes::copy_from_slice(&n.to_be_bytes());
            let place = map.find(&key).unwrap_err();
            map.insert(place, key.clone(), ());
            assert!(!map.may_hold_any(&[&key[..], b"a"].concat(), &[&key[..], b"b"].concat()));
        }
        assert_eq!(map.chunks.len(), 10);
    }
}
