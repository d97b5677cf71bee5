//! Bodies as rows, and what limits them.

use bytes::Bytes;
use thiserror::Error;

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
pub(super) const MAX_RESERVE: u64 = 16 << 20;

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

    pub(super) fn value_bytes(&self) -> usize {
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

    pub(super) fn new(reason: &'static str) -> CorruptDocument {
        CorruptDocument { reason }
    }
}

/// Positions of a row in the arena: of its key, of its value, which begins where the key ends, and of its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSpan {
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) end: usize,
}

/// A body as rows, in one buffer.
#[derive(Clone, Debug)]
pub struct StoredBody {
    pub(super) format: BodyFormat,
    pub(super) arena: Bytes,
    /// In key order: the metadata's row is the first.
    pub(super) rows: Vec<RowSpan>,
    pub(super) cost: usize,
}

impl StoredBody {
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
