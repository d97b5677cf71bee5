//! Versionstamps filled into keys and values, when the commit version is known.

use bytes::{Bytes, BytesMut};
use kv_api::Versionstamp;

use crate::mutation::stamp_offset;

/// Keys and values with their stamps filled in, a few in each piece of memory: few, so that one that stays
/// in a store for long keeps little of the others.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    memory: BytesMut,
    /// Bytes that are still to come, or fewer.
    expected: usize,
}

impl Stamps {
    const PIECE: usize = 512;

    /// How many bytes the texts to come have without their offsets.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.expected = bytes;
    }

    /// `text` with the stamp filled in and the offset removed.
    pub(crate) fn fill(&mut self, text: &[u8], stamp: &Versionstamp) -> Bytes {
        let body = &text[..text.len().saturating_sub(4)];
        if self.memory.capacity() < body.len() {
            self.memory = BytesMut::with_capacity(body.len().max(self.expected.min(Self::PIECE)));
        }
        self.expected = self.expected.saturating_sub(body.len());
        self.memory.extend_from_slice(body);
        let mut filled = self.memory.split();
        if let Some(offset) = stamp_offset(text) {
            filled[offset..offset + Versionstamp::LEN].copy_from_slice(stamp.as_bytes());
        }
        filled.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(before: usize, after: usize) -> Vec<u8> {
        [vec![b'a'; before], vec![0xff; 10], vec![b'z'; after], (before as u32).to_le_bytes().to_vec()].concat()
    }

    #[test]
    fn texts_in_one_piece_of_memory_do_not_touch() {
        let texts: Vec<Vec<u8>> = (0..60).map(|n| text(n * 7 % 50, n * 13 % 90)).chain([text(0, 5_000)]).collect();
        for expected in [0, 100, texts.iter().map(|text| text.len() - 4).sum()] {
            let mut stamps = Stamps::default();
            stamps.expect(expected);
            let stamp = |n| Versionstamp::new(n as u64 * 0x0102_0304, n as u16);
            let filled: Vec<Bytes> = texts.iter().enumerate().map(|(n, text)| stamps.fill(text, &stamp(n))).collect();
            for (n, (text, filled)) in texts.iter().zip(filled).enumerate() {
                let at = stamp_offset(text).unwrap();
                let after = &text[at + 10..text.len() - 4];
                assert_eq!(filled, [&text[..at], stamp(n).as_bytes(), after].concat(), "{n}");
            }
        }
    }
}
