//! Elements of keys that consist of several parts, and the ends of ranges.

use super::Leaf;
use crate::attachments::ContentId;
use crate::error::{Error, Result};
use crate::feed::seq::Seq;
use crate::limits::MAX_ID_BYTES;
use crate::rows::revid::{RevHash, RevId};
use crate::rows::row::{self, Reader, STAMP_LEN};
use crate::rows::tuple;

/// Appends a subspace and a document's id. Ids in requests may have any length. An id that is too long is cut to a key
/// that sorts in the same place and that documents never have.
pub(super) fn push_id(out: &mut Vec<u8>, subspace: u64, id: &str) {
    tuple::append_u64(out, subspace);
    tuple::append_str(out, cut(id, MAX_ID_BYTES));
}

/// The start of a text, cut only if it is longer than `limit`. Among texts within the limit it sorts like the
/// whole text.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit { text } else { &text[..text.ceil_char_boundary(limit + 1)] }
}

pub(super) fn push_content(out: &mut Vec<u8>, subspace: u64, content: &ContentId) {
    tuple::append_u64(out, subspace);
    tuple::append_bytes(out, &content.sha256);
    tuple::append_u64(out, content.length);
}

pub(super) fn read_content(reader: &mut Reader<'_>) -> Result<ContentId> {
    let sha256 = reader.bytes()?.as_ref().try_into().map_err(|_| Error::corrupt("a content's hash of wrong length"))?;
    Ok(ContentId { sha256, length: reader.int()? })
}

pub(super) fn push_leaf(out: &mut Vec<u8>, leaf: &Leaf) {
    tuple::append_bool(out, leaf.not_deleted);
    tuple::append_u64(out, leaf.rev.position());
    tuple::append_bytes(out, leaf.rev.hash().as_bytes());
}

pub(super) fn read_leaf(reader: &mut Reader<'_>) -> Result<Leaf> {
    let not_deleted = reader.bool()?;
    Ok(Leaf { not_deleted, rev: read_rev(reader)? })
}

/// Reads a revision's two elements.
pub(crate) fn read_rev(reader: &mut Reader<'_>) -> Result<RevId> {
    let position = reader.int()?;
    let hash = RevHash::from_bytes(&reader.bytes()?);
    let rev = hash.and_then(|hash| RevId::new(position, hash));
    rev.map_err(|_| Error::corrupt("a row with an impossible revision"))
}

/// Appends a sequence as its two elements.
pub(super) fn push_seq(out: &mut Vec<u8>, incarnation: u8, stamp: &[u8; STAMP_LEN]) {
    tuple::append_u64(out, u64::from(incarnation));
    row::append_stamp(out, stamp);
}

pub(crate) fn read_seq(reader: &mut Reader<'_>) -> Result<Seq> {
    Ok(Seq::new(read_incarnation(reader)?, &reader.stamp()?))
}

/// Reads an incarnation, which is the first element of a sequence.
pub(crate) fn read_incarnation(reader: &mut Reader<'_>) -> Result<u8> {
    u8::try_from(reader.int()?).map_err(|_| Error::corrupt("an incarnation over 255"))
}

/// The placeholder for a transaction's versionstamp until the commit, with the edit's number in the transaction.
pub(crate) fn pending_stamp(edit: u16) -> [u8; STAMP_LEN] {
    let mut stamp = [0xff; STAMP_LEN];
    stamp[STAMP_LEN - 2..].copy_from_slice(&edit.to_be_bytes());
    stamp
}

/// The first key after `key` and everything below it. The byte appended here is far above the type codes that elements
/// begin with. A longer string that continues the last element of `key` with a NUL has exactly this byte next, so its
/// keys are not included.
pub(crate) fn end_of(key: &[u8]) -> Vec<u8> {
    let mut end = Vec::with_capacity(key.len() + 1);
    end.extend_from_slice(key);
    end.push(BEYOND);
    end
}

/// The element, `true`, that follows the leaf in the keys of its attachments. Bodies have strings, integers or nothing
/// there, which all sort before `true`.
pub(crate) const ATTACHMENTS: u8 = 0x27;

/// The byte that [`end_of`] appends.
pub(crate) const BEYOND: u8 = 0xff;

pub(super) fn misplaced(key: &[u8]) -> Error {
    Error::corrupt(format!("a key where it does not belong: {}", key.escape_ascii()))
}
