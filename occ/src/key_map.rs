//! A sorted map for keys that come mostly in ascending order, as a transaction writes them.
//!
//! ```text
//!   chunks   [ a  c  d ]  [ f  g  h  k ]  [ p  q ]
//!                              └ inserted last: what fits right behind it needs no search
//! ```
//!
//! Entries lie in chunks of a few dozen. A search looks at the first keys of the chunks, then into one chunk.
//!
//! Invariants: keys are strictly ascending; no chunk is empty.
//!
//! Why not a `BTreeMap`: it compares some sixteen keys to insert the next one of 1,200. With `BTreeMap`s as write map
//! and batch, an exploded document in a bulk of 100 took 121,135 instructions instead of 88,705 (`benches counts`).
//! With one in the resolver, a document in a bulk of 1,000 took 1,700 more, of some 30,000.

use bytes::Bytes;

/// Largest number of entries of a chunk.
const MOST: usize = 32;

/// Capacity of the first chunk: what a transaction on one document writes.
const FEW: usize = 8;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct KeyMap<V> {
    chunks: Vec<Vec<(Bytes, V)>>,
    last: Position,
}

/// Where an entry is, or would be inserted: its chunk, and its index in the chunk. Valid until the map changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    chunk: usize,
    at: usize,
}

impl<V> Default for KeyMap<V> {
    fn default() -> Self {
        KeyMap { chunks: Vec::new(), last: Position::default() }
    }
}

impl<V> KeyMap<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// The position of `key`, or `Err` with the position at which to insert it.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Position, Position> {
        if let Some(found) = self.find_behind_last(key) {
            return found;
        }
        let chunk = self.chunk_of(key);
        let Some(entries) = self.chunks.get(chunk) else { return Err(Position::default()) };
        let position = |at| Position { chunk, at };
        entries.binary_search_by(|(found, _)| found.as_ref().cmp(key)).map(position).map_err(position)
    }

    fn find_behind_last(&self, key: &[u8]) -> Option<Result<Position, Position>> {
        let Position { chunk, at } = self.last;
        let entries = self.chunks.get(chunk)?;
        if entries.get(at)?.0.as_ref() >= key {
            return None;
        }
        let behind = Position { chunk, at: at + 1 };
        let next = entries.get(at + 1).or_else(|| self.chunks.get(chunk + 1)?.first());
        match next {
            Some((next, _)) if next.as_ref() <= key => None,
            _ => Some(Err(behind)),
        }
    }

    /// Sets the value of a key.
    pub(crate) fn set(&mut self, key: Bytes, value: V) {
        // Keys in order are appended, after one comparison.
        if let Some(entries) = self.chunks.last_mut()
            && entries.len() < MOST
            && entries.last().is_some_and(|(last, _)| *last < key)
        {
            return entries.push((key, value));
        }
        match self.find(&key) {
            Ok(position) => *self.value_mut(position) = value,
            Err(position) => drop(self.insert(position, key, value)),
        }
    }

    /// The value at a position that [`find`](Self::find) returned.
    pub(crate) fn value_mut(&mut self, position: Position) -> &mut V {
        &mut self.chunks[position.chunk][position.at].1
    }

    /// Inserts a key at the position that [`find`](Self::find) returned.
    pub(crate) fn insert(&mut self, position: Position, key: Bytes, value: V) -> &mut V {
        let Position { mut chunk, mut at } = position;
        if self.chunks.is_empty() {
            self.chunks.push(Vec::with_capacity(FEW));
        }
        let entries = &mut self.chunks[chunk];
        if entries.len() == MOST {
            // If keys come in order, chunks stay full.
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
            self.chunks.insert(position.chunk + 1, tail);
        } else if at == entries.len() {
            entries.push((key, value));
        } else {
            entries.insert(at, (key, value));
        }
        self.last = Position { chunk, at };
        self.value_mut(self.last)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let position = self.find(key).ok()?;
        self.chunks.get(position.chunk)?.get(position.at).map(|(_, value)| value)
    }

    /// Removes and returns the entries from `begin` up to, not including, `end`, in order.
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
        // The chunks between them are gone: only these two may be empty.
        for touched in [from.chunk + 1, from.chunk] {
            if self.chunks.get(touched).is_some_and(Vec::is_empty) {
                self.chunks.remove(touched);
            }
        }
        taken
    }

    /// The entries from `begin` up to, not including, `end`, in either direction.
    pub(crate) fn range(&self, begin: &[u8], end: &[u8]) -> Range<'_, V> {
        let (front, back) = self.bounds(begin, end);
        Range { chunks: &self.chunks, front, back }
    }

    /// All entries, in order.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (Bytes, V)> {
        self.chunks.into_iter().flatten()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Bytes, &V)> {
        self.chunks.iter().flatten().map(|(key, value)| (key, value))
    }

    fn bounds(&self, begin: &[u8], end: &[u8]) -> (Position, Position) {
        if begin >= end {
            return Default::default();
        }
        let from = match self.find_behind_last(begin) {
            Some(Ok(at) | Err(at)) => self.normal(at),
            None => self.first_from(begin),
        };
        // Most ranges that a writer asks for are empty.
        let is_empty = self.key_at(from).is_none_or(|first| first.as_ref() >= end);
        (from, if is_empty { from } else { self.first_from(end) })
    }

    fn key_at(&self, position: Position) -> Option<&Bytes> {
        self.chunks.get(position.chunk)?.get(position.at).map(|(key, _)| key)
    }

    /// The same position, but the start of the next chunk instead of the end of one.
    fn normal(&self, position: Position) -> Position {
        match self.chunks.get(position.chunk) {
            Some(entries) if position.at == entries.len() => Position { chunk: position.chunk + 1, at: 0 },
            _ => position,
        }
    }

    /// The position of the first entry at or after `key`. Beyond the last entry it is the start of a chunk that
    /// does not exist.
    fn first_from(&self, key: &[u8]) -> Position {
        let chunk = self.chunk_of(key);
        let Some(entries) = self.chunks.get(chunk) else { return Position::default() };
        let at = entries.partition_point(|(found, _)| found.as_ref() < key);
        self.normal(Position { chunk, at })
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
    front: Position,
    /// The position after the next entry from the back.
    back: Position,
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
            self.front = Position { chunk: self.front.chunk + 1, at: 0 };
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

    /// Compares with a `BTreeMap`. Runs of keys come here and there, in a keyspace so narrow that they meet.
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
                    0..=7 => {
                        let end = if step % 4 > 0 { begin + 1 } else { end };
                        let taken = map.take_range(&key(begin), &key(end));
                        let expected: Vec<_> =
                            model.range(key(begin)..key(end)).map(|(k, v)| (k.clone(), *v)).collect();
                        model.retain(|known, _| expected.iter().all(|(key, _)| key != known));
                        assert_eq!(taken, expected, "{what}");
                    }
                    8..=20 => {
                        for n in begin..begin + random.next() % 20 {
                            map.set(key(n), step);
                            model.insert(key(n), step);
                        }
                    }
                    _ => {
                        assert_eq!(map.get(&key(begin)), model.get(&key(begin)), "{what}");
                        let expected: Vec<_> = model.range(key(begin)..key(end)).collect();
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
            assert!(map.into_entries().eq(model), "seed {seed}");
        }
    }

    #[test]
    fn what_comes_in_order_leaves_full_chunks() {
        let mut map = KeyMap::default();
        for n in 0..10 * MOST as u32 {
            let key = Bytes::copy_from_slice(&n.to_be_bytes());
            let position = map.find(&key).unwrap_err();
            map.insert(position, key.clone(), ());
        }
        assert_eq!(map.chunks.len(), 10);
    }
}
