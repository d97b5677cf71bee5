//! The ids that files name, of a range of hashes, in bounded memory.

use std::collections::HashMap;

use twox_hash::XxHash64;

/// What is known of a chunk that files name, in the order in which it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// Every file that names it has it in its own document.
    Inside,
    /// A file needs its document.
    Needed,
    /// It is there.
    There,
}

/// The ids.
pub(super) struct Ids {
    from: u64,
    /// The last hash of the range.
    upto: u64,
    most: usize,
    found: HashMap<u64, Known>,
}

impl Ids {
    /// None yet, of the hashes from `from` on.
    pub(super) fn new(from: u64, most: usize) -> Self {
        Ids { from, upto: u64::MAX, most: most.max(1), found: HashMap::new() }
    }

    /// Whether a hash is in the range.
    pub(super) fn covers(&self, hash: u64) -> bool {
        (self.from..=self.upto).contains(&hash)
    }

    /// Notes that a file names a chunk, and whether it has it in its own document.
    pub(super) fn name(&mut self, chunk: &str, is_inside: bool) {
        let hash = hash(chunk);
        if !self.covers(hash) {
            return;
        }
        let known = if is_inside { Known::Inside } else { Known::Needed };
        self.found.entry(hash).and_modify(|found| *found = known.max(*found)).or_insert(known);
        while self.found.len() > self.most && self.from < self.upto {
            self.upto = self.from + (self.upto - self.from) / 2;
            let upto = self.upto;
            self.found.retain(|hash, _| *hash <= upto);
        }
    }

    /// Notes that a chunk is there. Returns whether a file names it.
    pub(super) fn meet(&mut self, hash: u64) -> bool {
        self.found.get_mut(&hash).map(|found| *found = Known::There).is_some()
    }

    /// Number of ids.
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    /// The hashes of chunks that files need and that are not there.
    pub(super) fn missing(&self) -> impl Iterator<Item = u64> {
        self.found.iter().filter(|(_, known)| **known == Known::Needed).map(|(hash, _)| *hash)
    }

    /// The first hash after the range.
    pub(super) fn next(&self) -> Option<u64> {
        self.upto.checked_add(1)
    }
}

/// The hash of an id.
pub(super) fn hash(chunk: &str) -> u64 {
    XxHash64::oneshot(1, chunk.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_cover_every_hash_once_in_bounded_memory() {
        let chunks: Vec<String> = (0..1_000).map(|number| format!("h:{number}")).collect();
        let (mut from, mut met, mut passes) = (Some(0), Vec::new(), 0);
        while let Some(first) = from {
            let mut ids = Ids::new(first, 70);
            chunks.iter().for_each(|chunk| {
                ids.name(chunk, false);
                assert!(ids.found.len() <= 70);
            });
            met.extend(chunks.iter().filter(|chunk| ids.covers(hash(chunk)) && ids.meet(hash(chunk))));
            from = ids.next();
            passes += 1;
        }
        met.sort();
        met.dedup();
        assert_eq!(met.len(), chunks.len());
        assert!((15..200).contains(&passes), "{passes} passes");
    }

    #[test]
    fn a_limit_of_one_id_ends() {
        let mut ids = Ids::new(0, 0);
        ids.name("h:a", false);
        ids.name("h:b", false);
        ids.name("h:a", false);
        assert!(ids.found.len() <= 1);
    }

    #[test]
    fn a_chunk_is_missing_if_one_file_needs_its_document() {
        let mut ids = Ids::new(0, 10);
        ids.name("h:inside", true);
        for is_inside in [true, false, true] {
            ids.name("h:needed", is_inside);
            ids.name("h:there", is_inside);
        }
        assert!(ids.meet(hash("h:there")) && ids.meet(hash("h:inside")) && !ids.meet(hash("h:other")));
        ids.name("h:there", false);
        assert_eq!((ids.missing().collect::<Vec<u64>>(), ids.len()), (vec![hash("h:needed")], 3));
    }
}
