//! Versionstamps in keys and values: where they go, and the range of keys that a pending one may become.

use bytes::{Bytes, BytesMut};
use kv_api::{Error, Result, Versionstamp, error};

use crate::KeyRange;

/// `text` with the stamp filled in, and without its offset. Copied only if it is shared.
pub(crate) fn fill(text: Bytes, stamp: &Versionstamp) -> Bytes {
    let offset = stamp_offset(&text);
    let mut filled = BytesMut::from(text);
    if let Some(offset) = offset {
        filled[offset..offset + Versionstamp::LEN].copy_from_slice(stamp.as_bytes());
    }
    filled.truncate(filled.len().saturating_sub(4));
    filled.freeze()
}

/// The offset of the stamp in `text`: its last four bytes, little-endian. `None` if the stamp would not end before
/// those four bytes.
fn stamp_offset(text: &[u8]) -> Option<usize> {
    let body = text.len().checked_sub(4)?;
    let offset = i32::from_le_bytes(text[body..].try_into().ok()?);
    let offset = usize::try_from(offset).ok()?;
    (offset.checked_add(Versionstamp::LEN)? <= body).then_some(offset)
}

/// Fails with 2000 unless `text` has room for a stamp at its offset.
pub(crate) fn check_offset(text: &[u8]) -> Result<()> {
    stamp_offset(text).map(|_| ()).ok_or_else(|| {
        Error::new(error::CLIENT_INVALID_OPERATION)
            .with_context("the last four bytes must be the offset of ten bytes within the versionstamped key or value")
    })
}

/// A versionstamped key before its stamp is known.
#[derive(Debug)]
pub(crate) struct PendingKey {
    /// The key with the least stamp that it may get, its offset still at the end (`transformVersionstampKey`).
    /// The write map keeps the operation under this key.
    pub(crate) least_key: Bytes,
    /// From the first key that it may become to the first key beyond (`getVersionstampKeyRange`).
    pub(crate) range: KeyRange,
}

impl PendingKey {
    /// The pending key for `key`, whose offset was checked, of a transaction that commits after `version`. Its
    /// range ends at `max_key` at the latest.
    pub(crate) fn new(key: &[u8], version: i64, max_key: &[u8]) -> Self {
        let offset = stamp_offset(key).unwrap_or(0);
        let stamp = offset..key.len().min(offset + Versionstamp::LEN);
        let least = Versionstamp::new(version.max(0) as u64, 0);
        let mut least_key = key.to_vec();
        least_key[stamp.clone()].copy_from_slice(&least.as_bytes()[..stamp.len()]);
        // The offset's four bytes leave room for the zero.
        let mut beyond = key.to_vec();
        beyond[stamp].fill(0xff);
        beyond.truncate(key.len().saturating_sub(4));
        beyond.push(0);
        let end = if beyond.as_slice() < max_key { beyond.into() } else { Bytes::copy_from_slice(max_key) };
        let begin = Bytes::copy_from_slice(&least_key[..key.len().saturating_sub(4)]);
        PendingKey { least_key: least_key.into(), range: KeyRange { begin, end } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(text: &[u8], stamp: &Versionstamp) -> Bytes {
        fill(Bytes::copy_from_slice(text), stamp)
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
            assert_eq!(check_offset(&text).unwrap_err().code(), 2000, "{body} bytes, offset {offset}");
        }
        assert_eq!(stamp_offset(b"abc"), None);
        assert_eq!(stamp_offset(&[vec![0; 10], vec![0; 4]].concat()), Some(0));
    }

    #[test]
    fn a_stamped_key_lies_in_its_range() {
        let key = [b"p".as_slice(), &[0; 10], b"s", &1u32.to_le_bytes()].concat();
        let pending = PendingKey::new(&key, 7, b"\xff");
        let KeyRange { begin, end } = &pending.range;
        for stamp in [Versionstamp::new(7, 0), Versionstamp::new(8, 9), Versionstamp::PENDING] {
            let key = stamped(&key, &stamp);
            assert!(*begin <= key && key < *end);
        }
        assert!(stamped(&key, &Versionstamp::new(6, u16::MAX)) < *begin);
        assert!(*begin <= pending.least_key && pending.least_key < *end);
        assert_eq!(pending.least_key, [&stamped(&key, &Versionstamp::new(7, 0)), &key[key.len() - 4..]].concat());
        assert_eq!(end, &[&stamped(&key, &Versionstamp::PENDING)[..], &[0]].concat());
        // A stamp at the very beginning of the key would reach into the system's keys.
        let key = [[0xff; 10].as_slice(), &[0; 4]].concat();
        assert_eq!(PendingKey::new(&key, 0, b"\xff").range.end, b"\xff".as_slice());
    }
}
