//! Texts of any length in a database, such as the security object: a head row, then the text in parts.
//!
//! ```text
//!  key          = (Format, Rev, Bytes)
//!  key ‖ Part   = up to 90,000 bytes of text, Part = 0, 1, …
//! ```

use kv_api::{KeyValue, RangeRequest, Transaction};

use crate::error::{Error, Result};
use crate::keys;
use crate::rows::row::Reader;
use crate::rows::tuple;
use json::JsonText;

const FORMAT: u64 = 1;
const PART_BYTES: usize = 90_000;

/// The head row: the revision, and the length of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlobHead {
    pub(crate) rev: u64,
    pub(crate) bytes: u64,
}

/// All rows of the text at `key`.
pub(crate) fn range(key: &[u8]) -> RangeRequest {
    RangeRequest::keys(key.to_vec(), keys::end_of(key))
}

/// Removes the text at `key`.
pub(crate) fn clear<T: Transaction>(transaction: &T, key: &[u8]) {
    transaction.clear_range(key, &keys::end_of(key));
}

/// Replaces the text at `key`.
pub(crate) fn set<T: Transaction>(transaction: &T, key: &[u8], rev: u64, text: &JsonText) {
    clear(transaction, key);
    let mut head = Vec::with_capacity(24);
    tuple::append_u64(&mut head, FORMAT);
    tuple::append_u64(&mut head, rev);
    tuple::append_u64(&mut head, text.len() as u64);
    transaction.set(key, &head);
    let mut part_key = key.to_vec();
    for (part, bytes) in text.as_bytes().chunks(PART_BYTES).enumerate() {
        part_key.truncate(key.len());
        tuple::append_u64(&mut part_key, part as u64);
        transaction.set(&part_key, bytes);
    }
}

pub(crate) fn read_head(value: &[u8]) -> Result<BlobHead> {
    let mut reader = Reader::new(value);
    match reader.int()? {
        FORMAT => {}
        other => return Err(Error::corrupt(format!("a text in unknown format {other}"))),
    }
    let head = BlobHead { rev: reader.int()?, bytes: reader.int()? };
    reader.end()?;
    Ok(head)
}

/// Reads the text in these rows; `None` if there are no rows.
pub(crate) fn read(rows: &[KeyValue]) -> Result<Option<(BlobHead, JsonText)>> {
    let Some((head, parts)) = rows.split_first() else { return Ok(None) };
    let head = read_head(&head.value)?;
    let mut text = Vec::with_capacity(usize::try_from(head.bytes).unwrap_or(0).min(parts.len() * PART_BYTES));
    for part in parts {
        text.extend_from_slice(&part.value);
    }
    if text.len() as u64 != head.bytes {
        return Err(Error::corrupt("a text whose length is not that in its first row"));
    }
    let text = JsonText::from_normalised(text).ok_or_else(|| Error::corrupt("a text that is not UTF-8"))?;
    Ok(Some((head, text)))
}
