//! The packed layout: the text itself, in as few rows as possible.
//!
//! Normalised text has no NUL, so a BYTES element takes only two bytes more than its content.

use super::metadata::RevisionMetadata;
use super::stored::{BodyError, BodyFormat, BodyLimits, CorruptDocument, MAX_RESERVE, RowSpan, StoredBody, row_cost};
use crate::rows::tuple::{self, Element};
use json::JsonText;

/// Size of a BYTES element's type code and end.
const ELEMENT_FRAME: usize = 2;

/// Lays out a packed body.
pub(super) fn pack(body: &JsonText, key_prefix: &[u8], limits: &BodyLimits) -> Result<StoredBody, BodyError> {
    let text = body.as_bytes();
    let metadata = RevisionMetadata::packed(text);
    let first = text.len().min(limits.value_bytes() - metadata.len());
    let (beginning, rest) = text.split_at(first);
    let metadata = metadata.with_payload(beginning);

    let parts = rest.len().div_ceil(limits.value_bytes() - ELEMENT_FRAME);
    // A part's number takes at most nine bytes.
    let frames = parts * (key_prefix.len() + 9 + ELEMENT_FRAME);
    let mut arena = Vec::with_capacity(key_prefix.len() + metadata.len() + rest.len() + frames);
    let (mut rows, mut cost) = (Vec::with_capacity(1 + parts), 0);
    let mut row = |number: u64, value: &dyn Fn(&mut Vec<u8>)| {
        let key = arena.len();
        arena.extend_from_slice(key_prefix);
        if number > 0 {
            tuple::append_u64(&mut arena, number);
        }
        let row = RowSpan { key, value: arena.len(), end: 0 };
        if row.value - row.key > limits.max_key_bytes {
            let bytes = row.value - row.key;
            return Err(BodyError::KeyTooLong { bytes, limit: limits.max_key_bytes });
        }
        value(&mut arena);
        let row = RowSpan { end: arena.len(), ..row };
        cost += row_cost(row.value - row.key, row.end - row.value);
        rows.push(row);
        Ok(())
    };
    row(0, &|out| metadata.append_to(out))?;
    for (number, part) in (1..).zip(rest.chunks(limits.value_bytes() - ELEMENT_FRAME)) {
        row(number, &|out| tuple::append_bytes(out, part))?;
    }
    Ok(StoredBody { format: BodyFormat::Packed, arena: arena.into(), rows, cost })
}

/// Joins the text of a packed body.
pub(super) fn join<'a>(
    metadata: &RevisionMetadata<'_>,
    rows: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Vec<u8>, CorruptDocument> {
    let mut text = Vec::with_capacity(metadata.text_bytes().min(MAX_RESERVE) as usize);
    text.extend_from_slice(metadata.payload());
    for (number, (suffix, value)) in (1..).zip(rows) {
        match tuple::read(suffix) {
            Some((Element::Integer(found), [])) if found.as_u64() == Some(number) => {}
            _ => return Err(CorruptDocument::new("a part of its text is missing")),
        }
        match tuple::read(value) {
            Some((Element::Bytes(part), [])) => text.extend_from_slice(&part),
            _ => return Err(CorruptDocument::new("a part of its text cannot be read")),
        }
    }
    Ok(text)
}
