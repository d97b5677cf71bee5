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
//! packed: the text itself, which begins in the metadata's row and continues in these
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
//! * There is no recursion. No content of a store can cause a panic.

mod explode;
mod implode;
mod metadata;
mod order;
mod packed;

use bytes::Bytes;
use thiserror::Error;

use crate::rows::tuple;
use json::{JsonKind, JsonText};

pub use metadata::RevisionMetadata;

/// The layout of a body in rows. It is stored with every revision; the database's setting applies to new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyFormat {
    /// One row for each leaf, as in RFC 004.
    #[default]
    Exploded,
    /// The text in as few rows as possible, an alternative in RFC 004.
    Packed,
}

impl BodyFormat {
    /// Its name in requests and answers.
    pub fn name(self) -> &'static str {
        match self {
            BodyFormat::Exploded => "exploded",
            BodyFormat::Packed => "packed",
        }
    }
}

impl std::str::FromStr for BodyFormat {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        [BodyFormat::Exploded, BodyFormat::Packed].into_iter().find(|format| format.name() == name).ok_or(())
    }
}

/// Maximum number of bytes to allocate because of the metadata alone, which may be corrupt.
const MAX_RESERVE: u64 = 16 << 20;

/// Limits on the rows of a body. The defaults are FoundationDB's.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Maximum length of a key in bytes, including the prefix.
    pub max_key_bytes: usize,
    /// Maximum length of a value in bytes. A limit below [`BodyLimits::MIN_VALUE_BYTES`] is raised to that.
    pub max_value_bytes: usize,
    /// Maximum sum of [`row_cost`] of an exploded body.
    pub max_exploded_cost: usize,
}

impl BodyLimits {
    /// Minimum of the limit on values: room for the longest integer element, and for the metadata.
    pub const MIN_VALUE_BYTES: usize = 512;

    fn value_bytes(&self) -> usize {
        self.max_value_bytes.max(BodyLimits::MIN_VALUE_BYTES)
    }
}

impl Default for BodyLimits {
    fn default() -> BodyLimits {
        // 4 MB of a transaction's 10 MB. The rest is for rows of the replaced revision, for indexes, and for other
        // documents of the same transaction.
        BodyLimits { max_key_bytes: 10_000, max_value_bytes: 100_000, max_exploded_cost: 4_000_000 }
    }
}

/// Part of a transaction's size that one row takes, as FoundationDB counts a `set`: the mutation (40 bytes, key and
/// value) and its write conflict range (32 bytes, the key twice and one byte more).
///
/// Document rows are written without a conflict range, but are counted with it: a program that writes them with one
/// must not exceed the limit either. With typical keys this is about 200 bytes a row.
pub fn row_cost(key_bytes: usize, value_bytes: usize) -> usize {
    const MUTATION: usize = 40;
    const CONFLICT_RANGE: usize = 32;
    MUTATION + key_bytes + value_bytes + CONFLICT_RANGE + 2 * key_bytes + 1
}

/// A body that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body is JSON but not an object.
    #[error("Document must be a JSON object")]
    NotAnObject,
    /// The common prefix of the body's keys is too long.
    #[error("the key takes {bytes} bytes, {limit} are allowed")]
    KeyTooLong {
        /// Length of the key in bytes.
        bytes: usize,
        /// Maximum length.
        limit: usize,
    },
}

/// Rows in the store that this layer did not write in this form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the stored document is corrupt: {reason}")]
pub struct CorruptDocument {
    /// The reason.
    pub reason: &'static str,
}

impl CorruptDocument {
    /// The layout is that of a later version.
    pub const UNKNOWN_FORMAT: CorruptDocument = CorruptDocument { reason: "its format is not known to this version" };

    fn new(reason: &'static str) -> CorruptDocument {
        CorruptDocument { reason }
    }
}

/// Positions of a row in the arena: of its key, of its value, which begins where the key ends, and of its end.
#[derive(Clone, Copy, Debug)]
struct RowSpan {
    key: usize,
    value: usize,
    end: usize,
}

/// Memory that is reused for one body after the other.
pub(crate) use explode::Memory as BodyMemory;

/// A body as rows, in one buffer.
#[derive(Clone, Debug)]
pub struct StoredBody {
    format: BodyFormat,
    arena: Bytes,
    /// In key order: the metadata's row is the first.
    rows: Vec<RowSpan>,
    cost: usize,
}

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

    /// The layout that was chosen.
    pub fn format(&self) -> BodyFormat {
        self.format
    }

    /// The rows in key order, with full keys. The metadata's row is the first.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.rows.iter().map(|row| (&self.arena[row.key..row.value], &self.arena[row.value..row.end]))
    }

    /// The same rows, sharing the body's memory.
    pub(crate) fn shared_rows(&self) -> impl ExactSizeIterator<Item = (Bytes, Bytes)> {
        self.rows.iter().map(|row| (self.arena.slice(row.key..row.value), self.arena.slice(row.value..row.end)))
    }

    /// Number of rows, including the metadata's.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// The sum of [`row_cost`] over all rows.
    pub fn cost(&self) -> usize {
        self.cost
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
        return Err(CorruptDocument::new("its length is not the one that was written"));
    }
    if crc32fast::hash(&text) != metadata.checksum() {
        return Err(CorruptDocument::new("its checksum is not the one that was written"));
    }
    JsonText::from_normalised(text).ok_or(CorruptDocument::new("it is not UTF-8"))
}

/// Joins all rows below a path into that part of an exploded body. Each row is the suffix of its key after that path,
/// and its value. `None` if only the whole body tells the order of the members.
///
/// # Errors
/// [`CorruptDocument`] for rows that form no value. A missing row is not noticed.
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
    // One leaf, or one in parts that is too long for a value, or elements of arrays.
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
/// [`CorruptDocument`] for rows that form no document. A missing row is not noticed.
pub(crate) fn decode_members(rows: &[(&[u8], &[u8])]) -> Result<JsonText, CorruptDocument> {
    JsonText::from_normalised(implode::implode_members(rows)?).ok_or(CorruptDocument::new("it is not UTF-8"))
}
