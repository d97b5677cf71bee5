//! Sorted keys in one piece of memory: a search among them stays within a few cache lines, where keys
//! of their own would cost two cache misses each.
//!
//! ```text
//!   bytes      a/appl e a/banana a/cherry
//!   ends            6          14       22
//!   shared        a/                          what all begin with, but for the first
//!   heads           -    banana\0\0 cherry\0\0     the eight bytes after it, as a number
//!   steps           -    …                         of each so many heads one
//! ```
//!
//! A search compares heads, which lie side by side, and looks at a key only where two heads are the
//! same: among very many blocks each look is a cache miss, and so are the first halvings of the heads, one
//! after the other. So the steps lie in the block itself, and leave a line or two of the heads to search. The
//! first key of a block may be the empty one, which shares nothing, and stands apart.

use std::cmp::Ordering;

/// Keys in ascending order, which the owner sees to.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyBlock {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// Of the first key: 0.
    heads: Vec<u64>,
    /// The head of each 2^`stride`th key, but for the first.
    steps: [u64; STEPS],
    stride: u32,
    shared: usize,
    /// What is shared, as much of it as fits.
    beginning: [u8; BEGINNING],
}

/// The places that a search for a key is still among, and the key's head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    head: u64,
    from: usize,
    to: usize,
}

const BEGINNING: usize = 16;

const STEPS: usize = 15;

/// Heads in a cache line.
const LINE: usize = 8;

impl KeyBlock {
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut block = Self::default();
        block.insert(0, key);
        block
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of all keys.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The key at a place below [`len`](Self::len).
    pub(crate) fn key(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.ends[at] as usize]
    }

    /// How many keys are before `key`, which the first one is.
    pub(crate) fn before(&self, key: &[u8]) -> usize {
        self.search(self.narrow(key), |found| found < key)
    }

    /// How many keys are `key` or before it, as the first one is.
    pub(crate) fn up_to(&self, key: &[u8]) -> usize {
        self.up_to_among(self.narrow(key), key)
    }

    /// The same, when a search for `key` has been [narrowed](Self::narrow).
    pub(crate) fn up_to_among(&self, places: Places, key: &[u8]) -> usize {
        self.search(places, |found| found <= key)
    }

    /// Narrows a search with what lies in the block itself.
    pub(crate) fn narrow(&self, key: &[u8]) -> Places {
        let count = self.len();
        let settled = |at| Places { head: 0, from: at, to: at };
        if count <= 1 {
            return settled(count);
        }
        let near = self.shared.min(BEGINNING);
        let mut order = key[..key.len().min(near)].cmp(&self.beginning[..near]);
        if order.is_eq() && self.shared > near {
            order = key[..key.len().min(self.shared)].cmp(&self.key(1)[..self.shared]);
        }
        match order {
            Ordering::Less => return settled(1),
            Ordering::Greater => return settled(count),
            Ordering::Equal => {}
        }
        let head = head(key, self.shared);
        let steps = &self.steps[..(count - 1) >> self.stride];
        let before = steps.iter().take_while(|step| **step < head).count();
        let up_to = before + steps[before..].iter().take_while(|step| **step == head).count();
        Places { head, from: (before << self.stride) + 1, to: ((up_to + 1) << self.stride).min(count) }
    }

    /// How many keys from the front are before one, or at it and `is_before`; the first one is.
    fn search(&self, places: Places, is_before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (places.from, places.to);
        while low < high {
            let middle = low + (high - low) / 2;
            let goes_before = match self.heads[middle].cmp(&places.head) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => is_before(self.key(middle)),
            };
            if goes_before { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Reads what [`narrow`](Self::narrow) will read, and gives some number of it.
    pub(crate) fn touch(&self) -> u64 {
        self.steps[0] ^ self.steps[STEPS / 2] ^ self.steps[STEPS - 1] ^ (self.shared ^ self.ends.len()) as u64
    }

    /// Reads what [`up_to_among`](Self::up_to_among) will read first, and gives some number of it.
    pub(crate) fn touch_among(&self, places: Places) -> u64 {
        self.heads[places.from..places.to].iter().step_by(LINE).fold(0, |all, head| all ^ head)
    }

    /// Reads where the key at a place is, and gives some number of it.
    pub(crate) fn touch_end(&self, at: usize) -> u64 {
        self.start(at) as u64
    }

    /// Takes the steps among the heads from a place on, before which no head has changed.
    fn take_steps(&mut self, from: usize) {
        let last = self.len().saturating_sub(1);
        let stride = (last / (STEPS + 1)).checked_ilog2().map_or(0, |log| log + 1);
        let from = if stride == self.stride { (from >> stride).saturating_sub(1) } else { 0 };
        self.stride = stride;
        for (at, step) in self.steps[..last >> stride].iter_mut().enumerate().skip(from) {
            *step = self.heads[(at + 1) << stride];
        }
    }

    pub(crate) fn insert(&mut self, at: usize, key: &[u8]) {
        if at == 0 {
            return self.replace(0, 0, Some(key));
        }
        let (start, old) = (self.start(at), self.bytes.len());
        self.bytes.resize(old + key.len(), 0);
        self.bytes.copy_within(start..old, start + key.len());
        self.bytes[start..start + key.len()].copy_from_slice(key);
        for end in &mut self.ends[at..] {
            *end += key.len() as u32;
        }
        self.ends.insert(at, (start + key.len()) as u32);
        self.heads.insert(at, head(key, self.shared));
        let other = if at == 1 { 2 } else { 1 };
        if other >= self.len() || !self.shares(other, key) {
            self.take_heads();
        } else {
            self.take_steps(at);
        }
    }

    /// Puts `key`, or nothing, in the place of the keys from `from` up to, not including, `to`.
    pub(crate) fn replace(&mut self, from: usize, to: usize, key: Option<&[u8]>) {
        let (start, end) = (self.start(from), self.start(to));
        let new = key.unwrap_or_default();
        self.bytes.splice(start..end, new.iter().copied());
        // Blocks are split long before they come near to four gigabytes.
        let (gone, came) = ((end - start) as u32, new.len() as u32);
        for end in &mut self.ends[to..] {
            *end = *end - gone + came;
        }
        self.ends.splice(from..to, key.map(|_| start as u32 + came));
        self.heads.splice(from..to, key.map(|key| if from == 0 { 0 } else { head(key, self.shared) }));
        let moved_into_the_first_place = from == 0 && (to, key.is_some()) != (1, true);
        let other = if from == 1 { 2 } else { 1 };
        let shares = from == 0 || key.is_none() || other >= self.len() || self.shares(other, new);
        if moved_into_the_first_place || !shares || self.len() <= 2 {
            self.take_heads();
        } else {
            self.take_steps(from);
        }
    }

    /// Takes the keys from `at` on off.
    pub(crate) fn split_off(&mut self, at: usize) -> KeyBlock {
        let start = self.start(at);
        let bytes = self.bytes.split_off(start);
        let ends = self.ends.split_off(at).into_iter().map(|end| end - start as u32).collect();
        let mut tail = KeyBlock { bytes, ends, ..KeyBlock::default() };
        self.take_heads();
        tail.take_heads();
        tail
    }

    /// Keeps the keys whose place `keep` says yes to.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        let mut kept = KeyBlock::default();
        for (at, _) in keep.iter().enumerate().take(self.len()).filter(|(_, keep)| **keep) {
            kept.bytes.extend_from_slice(self.key(at));
            kept.ends.push(kept.bytes.len() as u32);
        }
        kept.take_heads();
        *self = kept;
    }

    pub(crate) fn append(&mut self, other: &KeyBlock) {
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| end + offset));
        self.take_heads();
    }

    /// Whether `key` begins with what is shared, of which the key at `other` is an example.
    fn shares(&self, other: usize, key: &[u8]) -> bool {
        let prefix = self.key(other).get(..self.shared);
        prefix.is_some() && prefix == key.get(..self.shared)
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    /// Finds what is shared, and the heads after it.
    fn take_heads(&mut self) {
        let count = self.len();
        // In order: what the second and the last share, those between share too.
        self.shared = match count {
            0 | 1 => 0,
            _ => self.key(1).iter().zip(self.key(count - 1)).take_while(|(one, other)| one == other).count(),
        };
        let near = self.shared.min(BEGINNING);
        if near > 0 {
            let start = self.start(1);
            self.beginning[..near].copy_from_slice(&self.bytes[start..start + near]);
        }
        let heads = (0..count).map(|at| if at == 0 { 0 } else { head(self.key(at), self.shared) }).collect();
        self.heads = heads;
        self.take_steps(0);
    }
}

/// The eight bytes of a key after those that are shared, filled up with zeros: of two keys that share
/// them, the lesser never has the greater head.
fn head(key: &[u8], shared: usize) -> u64 {
    let rest = key.get(shared..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(eight)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn keys(block: &KeyBlock) -> Vec<&[u8]> {
        (0..block.len()).map(|at| block.key(at)).collect()
    }

    #[test]
    fn keeps_keys_as_a_vector_would() {
        let mut block = KeyBlock::of(b"b");
        block.insert(0, b"");
        assert_eq!(keys(&block), [b"".as_slice(), b"b"]);
        block.insert(2, b"ccc");
        block.insert(3, b"dd");
        assert_eq!(keys(&block), [b"".as_slice(), b"b", b"ccc", b"dd"]);
        assert_eq!(block.up_to(b"c"), 2);
        block.replace(1, 3, Some(b"longer"));
        assert_eq!(keys(&block), [b"".as_slice(), b"longer", b"dd"]);
        let tail = block.split_off(1);
        assert_eq!((keys(&block), keys(&tail)), (vec![b"".as_slice()], vec![b"longer".as_slice(), b"dd"]));
        block.append(&tail);
        block.replace(0, 1, None);
        assert_eq!((block.len(), block.bytes()), (2, 8));
        block.retain(&[false, true]);
        assert_eq!(keys(&block), [b"dd"]);
        block.replace(0, 1, None);
        assert!(block.is_empty());
    }

    /// Against a sorted vector: keys of few letters and many shared beginnings, so that heads are often
    /// the same, with zeros, which heads are filled up with.
    #[test]
    fn finds_keys_as_a_vector_would() {
        let random = Random::new(7);
        let key = || -> Vec<u8> {
            let beginnings: [&[u8]; 4] = [b"", b"p", b"prefix/", b"prefix/of/many/"];
            let beginning = beginnings[random.next() as usize % 4];
            let rest = (0..random.next() % 12).map(|_| b"\0\x01a"[random.next() as usize % 3]);
            beginning.iter().copied().chain(rest).collect()
        };
        for _ in 0..30 {
            let mut block = KeyBlock::of(b"");
            let mut model: Vec<Vec<u8>> = vec![Vec::new()];
            for _ in 0..400 {
                let (key, other) = (key(), key());
                let at = model.partition_point(|known| *known < key).max(1);
                match random.next() % 20 {
                    0 => {
                        let to = at + (random.next() as usize % 4).min(model.len() - at);
                        block.replace(at, to, None);
                        model.drain(at..to);
                    }
                    1 => {
                        let (tail, rest) = (block.split_off(at), model.split_off(at));
                        assert_eq!(keys(&tail), rest);
                        if random.next().is_multiple_of(2) {
                            block.append(&tail);
                            model.extend(rest);
                        }
                    }
                    2 => {
                        let keep: Vec<bool> =
                            model.iter().map(|key| key.is_empty() || !random.next().is_multiple_of(8)).collect();
                        block.retain(&keep);
                        let mut kept = keep.iter();
                        model.retain(|_| *kept.next().unwrap());
                    }
                    _ if !key.is_empty() && model.get(at) != Some(&key) => {
                        block.insert(at, &key);
                        model.insert(at, key);
                    }
                    _ => {}
                }
                assert_eq!(block.before(&other), model.partition_point(|known| *known < other).max(1));
                assert_eq!(block.up_to(&other), model.partition_point(|known| *known <= other));
            }
            assert_eq!(keys(&block), model);
        }
    }
}
