//! What a transaction asks the store to change, and where versionstamps go.

use bytes::Bytes;
use kv_api::{Error, MutationType, Result, Versionstamp, error};

use crate::{KeyRange, size};

/// One change of a transaction, as it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Set { key: Bytes, value: Bytes },
    ClearRange(KeyRange),
    Atomic { operation: MutationType, key: Bytes, operand: Bytes },
}

impl Mutation {
    /// What it adds to the transaction's size.
    pub(crate) fn size(&self) -> usize {
        size::MUTATION
            + match self {
                Mutation::Set { key, value } => key.len() + value.len(),
                Mutation::ClearRange(range) => range.len(),
                Mutation::Atomic { key, operand, .. } => key.len() + operand.len(),
            }
    }

    /// The key that it changes, or the first of those that it clears.
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Mutation::Set { key, .. } | Mutation::Atomic { key, .. } => key,
            Mutation::ClearRange(range) => &range.begin,
        }
    }

    /// The key whose value in the store decides the result, if one does.
    pub(crate) fn read_key(&self) -> Option<&Bytes> {
        match self {
            Mutation::Atomic { operation, key, .. } if !operation.is_versionstamped() => Some(key),
            _ => None,
        }
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

/// `text` with the stamp filled in and the offset removed.
pub(crate) fn stamped(text: &[u8], stamp: &Versionstamp) -> Bytes {
    let body = &text[..text.len().saturating_sub(4)];
    let mut filled = body.to_vec();
    if let Some(offset) = stamp_offset(text) {
        filled[offset..offset + Versionstamp::LEN].copy_from_slice(stamp.as_bytes());
    }
    filled.into()
}

/// The keys that a versionstamped `key` may become, when it commits after `version`
/// (`getVersionstampKeyRange`); up to `max_key`.
pub(crate) fn stamped_key_range(key: &[u8], version: i64, max_key: &[u8]) -> Result<KeyRange> {
    let offset = checked_stamp_offset(key)?;
    let stamp = offset..offset + Versionstamp::LEN;
    let mut begin = key[..key.len() - 4].to_vec();
    let mut end = begin.clone();
    begin[stamp.clone()].copy_from_slice(Versionstamp::new(version.max(0) as u64, 0).as_bytes());
    end[stamp].fill(0xff);
    end.push(0);
    let end = if end.as_slice() < max_key { Bytes::from(end) } else { Bytes::copy_from_slice(max_key) };
    Ok(KeyRange { begin: begin.into(), end })
}

/// `key` with the least stamp it may get, its offset still at the end (`transformVersionstampKey`):
/// the place in the write map where the operation waits.
pub(crate) fn waiting_key(key: &[u8], version: i64) -> Bytes {
    let mut waiting = key.to_vec();
    if let Some(offset) = stamp_offset(key) {
        let least = Versionstamp::new(version.max(0) as u64, 0);
        waiting[offset..offset + Versionstamp::LEN].copy_from_slice(least.as_bytes());
    }
    waiting.into()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let range = stamped_key_range(&key, 7, b"\xff").unwrap();
        for stamp in [Versionstamp::new(7, 0), Versionstamp::new(8, 9), Versionstamp::PENDING] {
            let key = stamped(&key, &stamp);
            assert!(range.begin <= key && key < range.end);
        }
        assert!(stamped(&key, &Versionstamp::new(6, u16::MAX)) < range.begin);
        assert!(range.begin <= waiting_key(&key, 7) && waiting_key(&key, 7) < range.end);
        // A stamp at the very beginning of the key would reach into the system's keys.
        let key = [[0xff; 10].as_slice(), &[0; 4]].concat();
        assert_eq!(stamped_key_range(&key, 0, b"\xff").unwrap().end, b"\xff"[..]);
    }
}
