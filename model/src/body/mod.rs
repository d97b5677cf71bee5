//! Bodies of documents as rows of the `docs` subspace, and back.
//!
//! Source: RFC 004, "Document Subspace and Versioning", with the extensions drawn below.
//!
//! ```text
//! key: {prefix …, DocID, NotDeleted, RevPosition, RevHash} ‖ suffix
//!
//!   suffix                       value
//!   (nothing)                    RevisionMetadata, see `metadata`
//!
//! exploded: one row for each leaf, its path in the key
//!   {"foo", "bar"}               {123}          numbers, strings, true, false, null as tuple elements
//!   {"states", 0}                {"MA"}         indexes of arrays are integers, names are strings
//!   {"empty"}                    {b"{}"}        a BYTES value is the JSON text of what no element
//!   {"none"}                     {b"[]"}        stands for: empty containers and integers of
//!   {"huge"}                     {b"1000…"}     over 255 bytes
//!   {"long", b"\0\0"}            {"first part"} a BYTES element at the end of a path numbers the
//!   {"long", b"\0\1"}            {"second"}     parts of one leaf that is too long for one value
//!
//! packed: the text itself, begun in the metadata and gone on with where it does not fit
//!   {1}                          {b"…text"}
//!   {2}                          {b"…text"}
//! ```
//!
//! # Invariants
//! * `decode(encode(body)) == body`, text for text: members keep their order. Where that is not the
//!   order of the keys, the metadata say what it is (see `order`).
//! * The metadata carry the length and the checksum of the text; a document that lost a row, or holds
//!   a foreign one, is [`CorruptDocument`], never a wrong answer.
//! * An exploded body costs at most [`BodyLimits::max_exploded_cost`] and has no key longer than
//!   [`BodyLimits::max_key_bytes`]; any other is packed, whatever was asked for.
//! * Nothing recurses. Nothing that is read from a store can panic.

mod explode;
mod implode;
mod metadata;
mod order;
mod packed;

use bytes::Bytes;
use thiserror::Error;

use json::{JsonKind, JsonText};

pub use metadata::RevisionMetadata;

/// How a body is laid out in rows. It is recorded with every revision; databases choose it for what
/// is written next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyFormat {
    /// One row for each leaf, as RFC 004 has it.
    #[default]
    Exploded,
    /// The text in as few rows as fit, the alternative that RFC 004 names.
    Packed,
}

/// How many bytes are reserved at most on the word of the metadata alone, which may be corrupt.
const MAX_RESERVE: u64 = 16 << 20;

/// What the rows of one body may measure. The defaults are FoundationDB's.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// The longest key in bytes, prefix included.
    pub max_key_bytes: usize,
    /// The longest value in bytes; at least [`BodyLimits::MIN_VALUE_BYTES`], less counts as that.
    pub max_value_bytes: usize,
    /// The largest sum of [`row_cost`] for which a body is exploded.
    pub max_exploded_cost: usize,
}

impl BodyLimits {
    /// The least limit on values that this layout works with: room for the longest integer element
    /// and for the metadata.
    pub const MIN_VALUE_BYTES: usize = 512;

    fn value_bytes(&self) -> usize {
        self.max_value_bytes.max(BodyLimits::MIN_VALUE_BYTES)
    }
}

impl Default for BodyLimits {
    fn default() -> BodyLimits {
        // 4 MB of the 10 MB of a transaction: the rest is for the rows of the revision that is
        // replaced, for indexes, and for other documents of the same transaction.
        BodyLimits { max_key_bytes: 10_000, max_value_bytes: 100_000, max_exploded_cost: 4_000_000 }
    }
}

/// What one row takes of a transaction's size, as FoundationDB counts a `set`: the mutation (40
/// bytes, key and value) and its write conflict range (32 bytes, the key twice and one byte more).
///
/// Document rows go without their conflict range, yet are counted with it: whoever writes them in
/// another way must not fail for it. At the usual length of keys this is about 200 bytes a row.
pub fn row_cost(key_bytes: usize, value_bytes: usize) -> usize {
    const MUTATION: usize = 40;
    const CONFLICT_RANGE: usize = 32;
    MUTATION + key_bytes + value_bytes + CONFLICT_RANGE + 2 * key_bytes + 1
}

/// A body that cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BodyError {
    /// The body is JSON, but no object.
    #[error("Document must be a JSON object")]
    NotAnObject,
    /// What all of the body's keys begin with is too long by itself.
    #[error("the key takes {bytes} bytes, {limit} are allowed")]
    KeyTooLong {
        /// What the key would take, in bytes.
        bytes: usize,
        /// What it may take.
        limit: usize,
    },
}

/// Rows in a store that are not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the stored document is corrupt: {reason}")]
pub struct CorruptDocument {
    /// What does not fit.
    pub reason: &'static str,
}

impl CorruptDocument {
    /// Its layout is one of a later version.
    pub const UNKNOWN_FORMAT: CorruptDocument = CorruptDocument { reason: "its format is not known to this version" };

    fn new(reason: &'static str) -> CorruptDocument {
        CorruptDocument { reason }
    }
}

/// Where a row's key begins and ends in the arena, and where its value ends, which begins there.
#[derive(Clone, Copy, Debug)]
struct Row {
    key: usize,
    value: usize,
    end: usize,
}

/// What one body after the other is laid out in.
pub(crate) use explode::Memory as BodyMemory;

/// A body as rows, all in one buffer.
#[derive(Clone, Debug)]
pub struct StoredBody {
    format: BodyFormat,
    arena: Bytes,
    /// The metadata's row is the first.
    rows: Vec<Row>,
    cost: usize,
}

impl StoredBody {
    /// Lays `body`, a JSON object without its special members, out in rows below `key_prefix` (which
    /// ends with the revision's hash).
    ///
    /// `preferred` is heeded unless the body would cost too much exploded, a path in it is too long for a key, or
    /// its order does not fit the metadata: then it is packed.
    ///
    /// # Errors
    /// [`BodyError::NotAnObject`]; [`BodyError::KeyTooLong`] where the prefix alone is too long.
    pub fn encode(
        body: &JsonText,
        key_prefix: &[u8],
        preferred: BodyFormat,
        limits: &BodyLimits,
    ) -> Result<StoredBody, BodyError> {
        Self::encode_in(body, key_prefix, preferred, limits, &mut BodyMemory::default())
    }

    /// The same, with memory that was used before.
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

    /// Which layout was chosen.
    pub fn format(&self) -> BodyFormat {
        self.format
    }

    /// The rows, keys with their prefix, in the order of the keys: the metadata come first.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.rows.iter().map(|row| (&self.arena[row.key..row.value], &self.arena[row.value..row.end]))
    }

    /// The same rows, which share the body's memory.
    pub(crate) fn shared_rows(&self) -> impl ExactSizeIterator<Item = (Bytes, Bytes)> {
        self.rows.iter().map(|row| (self.arena.slice(row.key..row.value), self.arena.slice(row.value..row.end)))
    }

    /// How many rows there are, the metadata's included.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// The sum of [`row_cost`] over all rows.
    pub fn cost(&self) -> usize {
        self.cost
    }
}

/// Puts a body together again from all rows below its prefix, in the order of their keys, the
/// metadata first. `prefix_len` is the length of the prefix that the keys share.
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

/// Puts a body together again from the value of its metadata row and the other rows, in the order of
/// their keys, each as the suffix of its key behind the prefix, and its value.
///
/// # Errors
/// As [`decode_rows`].
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
