//! Sorted keys in one piece of memory: a search among them stays within a few cache lines, where keys
//! of their own would cost two cache misses each.
//!
//! ```text
//!   bytes   a p p l e b a n a n a c h e r r y
//!   ends            5           11          17
//! ```

/// Keys, in an order that the owner keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyBlock {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

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

    /// How many keys from the front satisfy `before`, which the others do not.
    pub(crate) fn partition_point(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if before(self.key(middle)) { low = middle + 1 } else { high = middle }
        }
        low
    }

    pub(crate) fn insert(&mut self, at: usize, key: &[u8]) {
        self.replace(at, at, Some(key));
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
    }

    /// Takes the keys from `at` on off.
    pub(crate) fn split_off(&mut self, at: usize) -> KeyBlock {
        let start = self.start(at);
        let bytes = self.bytes.split_off(start);
        let ends = self.ends.split_off(at).into_iter().map(|end| end - start as u32).collect();
        KeyBlock { bytes, ends }
    }

    /// Keeps the keys whose place `keep` says yes to.
    pub(crate) fn retain(&mut self, keep: &[bool]) {
        let mut kept = KeyBlock::default();
        for (at, _) in keep.iter().enumerate().take(self.len()).filter(|(_, keep)| **keep) {
            kept.bytes.extend_from_slice(self.key(at));
            kept.ends.push(kept.bytes.len() as u32);
        }
        *self = kept;
    }

    pub(crate) fn append(&mut self, other: &KeyBlock) {
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| end + offset));
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(block: &KeyBlock) -> Vec<&[u8]> {
        (0..block.len()).map(|at| block.key(at)).collect()
    }

    #[test]
    fn keeps_keys_as_a_vector_would() {
        let mut block = KeyBlock::of(b"b");
        block.insert(0, b"");
        block.insert(2, b"ccc");
        block.insert(3, b"dd");
        assert_eq!(keys(&block), [b"".as_slice(), b"b", b"ccc", b"dd"]);
        assert_eq!(block.partition_point(|key| key <= b"c".as_slice()), 2);
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
}
