//! Encodes documents' bodies as rows of the `docs` subspace, and decodes them.
//!
//! Source: RFC 004, "Document Subspace and Versioning", with the extensions drawn below.
//!
//! ```text
//! key: {prefix …, DocID, NotDeleted, RevPosition, RevHash} ‖ suffix
//!
//!   suffix                       value
//!   (nothing)                    RevisionMetadata, see `metadata`
//!
//! exploded: one row for each leaf, with its path in the key
//!   {"foo", "bar"}               {123}          numbers, strings, true, false, null as tuple elements
//!   {"states", 0}                {"MA"}         indexes of arrays are integers, names are strings
//!   {"empty"}                    {b"{}"}        a BYTES value is JSON text that has no tuple element:
//!   {"none"}                     {b"[]"}        empty containers, and integers of more than 255 bytes
//!   {"huge"}                     {b"1000…"}
//!   {"long", b"\0\0"}            {"first part"} a BYTES element at the end of a path is the number of a
//!   {"long", b"\0\1"}            {"second"}     part of a leaf that is too long for one value
//!
//! packed: the text itself, which starts in the metadata's row and continues in these
//!   {1}                          {b"…text"}
//!   {2}                          {b"…text"}
//! ```
//!
//! # Invariants
//! * `decode(encode(body)) == body`, byte for byte: members keep their order. If it is not key order, the metadata
//!   describe it (see `order`).
//! * The metadata have the length and the checksum of the text. A document with a missing or foreign row is
//!   [`CorruptDocument`], never a wrong body.
//! * An exploded body costs at most [`BodyLimits::max_exploded_cost`] and has no key longer than
//!   [`BodyLimits::max_key_bytes`]. Any other body is packed, even if exploded is preferred.
//! * There is no recursion. The contents of a store cannot cause a panic.

mod explode;
mod implode;
mod metadata;
mod order;
mod packed;
mod stored;

use json::{JsonKind, JsonText};

use crate::rows::tuple;

pub use metadata::RevisionMetadata;
pub use stored::{BodyError, BodyFormat, BodyLimits, CorruptDocument, StoredBody, row_cost};

/// Memory that is reused for one body after the other.
pub(crate) use explode::Memory as BodyMemory;

impl StoredBody {
    /// Lays out `body`, a JSON object without special members, in rows below `key_prefix`, which ends with the
    /// revision's hash.
    ///
    /// The layout is `preferred`, except that a body is packed if it would cost too much exploded, if one of its paths
    /// is too long for a key, or if its order does not fit in the metadata.
    ///
    /// # Errors
    /// [`BodyError::NotAnObject`]; [`BodyError::KeyTooLong`] if the prefix alone is too long.
    pub fn encode(
        body: &JsonText,
        key_prefix: &[u8],
        preferred: BodyFormat,
        limits: &BodyLimits,
    ) -> Result<StoredBody, BodyError> {
        Self::encode_in(body, key_prefix, preferred, limits, &mut BodyMemory::default())
    }

    /// The same, reusing memory.
    pub(crate) fn encode_in(
        body: &JsonText,
        key_prefix: &[u8],
        preferred: BodyFormat,
        limits: &BodyLimits,
        memory: &mut BodyMemory,
    ) -> Result<StoredBody, BodyError> {
        if body.kind() != JsonKind::Object {
            return Err(BodyError::NotAnObject);
        }
        if preferred == BodyFormat::Exploded
            && let Some(exploded) = explode::explode(body, key_prefix, limits, memory)
        {
            return Ok(exploded);
        }
        packed::pack(body, key_prefix, limits)
    }
}

/// Builds a body from all rows below its prefix, in key order, the metadata first. `prefix_len` is the length of the
/// keys' common prefix.
///
/// # Errors
/// [`CorruptDocument`] if these are not exactly the rows that were written for one body.
pub fn decode_rows<'a>(
    prefix_len: usize,
    rows: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<JsonText, CorruptDocument> {
    let mut rows = rows.into_iter();
    let (key, metadata) = rows.next().ok_or(CorruptDocument::new("it has no rows"))?;
    if key.len() != prefix_len {
        return Err(CorruptDocument::new("it has no metadata"));
    }
    decode_body(metadata, rows.map(|(key, value)| (key.get(prefix_len..).unwrap_or_default(), value)))
}

/// Builds a body from the value of its metadata row and the other rows, in key order. Each row is the suffix of its key
/// after the prefix, and its value.
///
/// # Errors
/// Like [`decode_rows`].
pub fn decode_body<'a>(
    metadata: &[u8],
    rows: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<JsonText, CorruptDocument> {
    let metadata = RevisionMetadata::read(metadata)?;
    let text = match metadata.format() {
        BodyFormat::Exploded => implode::implode(&metadata, rows.into_iter())?,
        BodyFormat::Packed => packed::join(&metadata, rows.into_iter())?,
    };
    if text.len() as u64 != metadata.text_bytes() {
        return Err(CorruptDocument::new("its length differs from the written one"));
    }
    if crc32fast::hash(&text) != metadata.checksum() {
        return Err(CorruptDocument::new("its checksum differs from the written one"));
    }
    JsonText::from_normalised(text).ok_or(CorruptDocument::new("it is not UTF-8"))
}

/// Joins all rows below a path into that part of an exploded body. Each row is the suffix of its key after that path,
/// and its value. `None` if only the whole body has the order of the members.
///
/// # Errors
/// [`CorruptDocument`] for rows that do not form a value. A missing row is not noticed.
pub(crate) fn decode_part(
    metadata: &RevisionMetadata<'_>,
    rows: &[(&[u8], &[u8])],
) -> Result<Option<JsonText>, CorruptDocument> {
    if !is_in_order(metadata, rows) {
        return Ok(None);
    }
    let text = implode::implode_part(rows)?;
    JsonText::from_normalised(text).map(Some).ok_or(CorruptDocument::new("it is not UTF-8"))
}

/// Whether the rows below a path are in the order of the document. Each row is the suffix of its key after that path,
/// and its value.
pub(crate) fn is_in_order(metadata: &RevisionMetadata<'_>, rows: &[(&[u8], &[u8])]) -> bool {
    // One leaf, or a leaf in parts, or elements of arrays.
    let has_no_name = |suffix: &[u8]| {
        let mut rest = suffix;
        while let Some(&code) = rest.first() {
            match tuple::element_len(rest) {
                Some(length) if code != tuple::STRING => rest = rest.get(length..).unwrap_or_default(),
                _ => return false,
            }
        }
        true
    };
    metadata.payload().is_empty() || rows.len() == 1 || rows.iter().all(|(suffix, _)| has_no_name(suffix))
}

/// Joins the rows of some members of an exploded body, in key order, into a document that has only these. Each row is
/// the suffix of its key after the body's prefix, and its value. [`is_in_order`] must hold below each member.
///
/// # Errors
/// [`CorruptDocument`] for rows that do not form a document. A missing row is not noticed.
pub(crate) fn decode_members(rows: &[(&[u8], &[u8])]) -> Result<JsonText, CorruptDocument> {
    JsonText::from_normalised(implode::implode_members(rows)?).ok_or(CorruptDocument::new("it is not UTF-8"))
}
