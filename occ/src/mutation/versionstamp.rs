//! Versionstamps filled into keys and values, when the commit version is known.

use bytes::{Bytes, BytesMut};
use kv_api::{Error, Result, Versionstamp, error};

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

/// Where the stamp goes in `text`, whose last four bytes say so in little-endian; `None` where there
/// is no room for it. The room ends before those four bytes.
pub(crate) fn stamp_offset(text: &[u8]) -> Option<usize> {
    let body = text.len().checked_sub(4)?;
    let offset = i32::from_le_bytes(text[body..].try_into().ok()?);
    let offset = usize::try_from(offset).ok()?;
    (offset.checked_add(Versionstamp::LEN)? <= body).then_some(offset)
}

/// 2000 unless `text` has room for a stamp where it says.
pub(crate) fn checked_stamp_offset(text: &[u8]) -> Result<usize> {
    stamp_offset(text).ok_or_else(|| {
        Error::new(error::CLIENT_INVALID_OPERATION)
            .with_context("a versionstamped key or value ends with the offset of ten bytes within it, in four bytes")
    })
}

/// A versionstamped key before its stamp is known.
#[derive(Debug)]
pub(crate) struct StampedKey {
    /// The key with the least stamp it may get, its offset still at the end (`transformVersionstampKey`):
    /// the place in the write map where the operation waits.
    pub(crate) waiting: Bytes,
    beyond: Bytes,
}

impl StampedKey {
    /// `key`, whose offset was checked, of a transaction that commits after `version`; its range ends at
    /// `max_key` at the latest.
    pub(crate) fn new(key: &[u8], version: i64, max_key: &[u8]) -> Self {
        let offset = stamp_offset(key).unwrap_or(0);
        let stamp = offset..key.len().min(offset + Versionstamp::LEN);
        let least = Versionstamp::new(version.max(0) as u64, 0);
        let mut waiting = key.to_vec();
        waiting[stamp.clone()].copy_from_slice(&least.as_bytes()[..stamp.len()]);
        // The offset's four bytes leave room for the zero.
        let mut beyond = key.to_vec();
        beyond[stamp].fill(0xff);
        beyond.truncate(key.len().saturating_sub(4));
        beyond.push(0);
        let beyond = if beyond.as_slice() < max_key { beyond.into() } else { Bytes::copy_from_slice(max_key) };
        StampedKey { waiting: waiting.into(), beyond }
    }

    /// The keys that it may become (`getVersionstampKeyRange`), as the first of them and the first beyond.
    pub(crate) fn range(&self) -> (&[u8], &Bytes) {
        (&self.waiting[..self.waiting.len().saturating_sub(4)], &self.beyond)
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

    fn stamped(text: &[u8], stamp: &Versionstamp) -> Bytes {
        Stamps::default().fill(text, stamp)
    }

    #[test]
    fn stamps_go_where_the_offset_says() {
        let stamp = Versionstamp::new(0x0102, 3);
        let text = [b"ab".as_slice(), &[0xff; 10], b"c", &2u32.to_le_bytes()].concat();
        assert_eq!(stamped(&text, &stamp), [b"ab".as_slice(), stamp.as_bytes(), b"c"].concat());
        assert_eq!(stamp_offset(&text), Some(2));
    }

    #[test]
    fn offsets_without_room_are_refused() {
        for (body, offset) in [(9, 0), (10, 1), (10, -1), (12, 3), (12, i32::MAX)] {
            let text = [vec![0; body], offset.to_le_bytes().to_vec()].concat();
            assert_eq!(checked_stamp_offset(&text).unwrap_err().code(), 2000, "{body} bytes, offset {offset}");
        }
        assert_eq!(stamp_offset(b"abc"), None);
        assert_eq!(stamp_offset(&[vec![0; 10], vec![0; 4]].concat()), Some(0));
    }

    #[test]
    fn a_stamped_key_lies_in_its_range() {
        let key = [b"p".as_slice(), &[0; 10], b"s", &1u32.to_le_bytes()].concat();
        let pending = StampedKey::new(&key, 7, b"\xff");
        let (begin, end) = pending.range();
        for stamp in [Versionstamp::new(7, 0), Versionstamp::new(8, 9), Versionstamp::PENDING] {
            let key = stamped(&key, &stamp);
            assert!(begin <= key.as_ref() && key < end);
        }
        assert!(stamped(&key, &Versionstamp::new(6, u16::MAX)) < begin);
        assert!(begin <= pending.waiting.as_ref() && pending.waiting < end);
        assert_eq!(pending.waiting, [&stamped(&key, &Versionstamp::new(7, 0)), &key[key.len() - 4..]].concat());
        assert_eq!(end, &[&stamped(&key, &Versionstamp::PENDING)[..], &[0]].concat());
        // A stamp at the very beginning of the key would reach into the system's keys.
        let key = [[0xff; 10].as_slice(), &[0; 4]].concat();
        assert_eq!(StampedKey::new(&key, 0, b"\xff").range().1, &b"\xff"[..]);
    }
}
