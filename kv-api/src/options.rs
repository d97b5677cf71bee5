//! Options of a transaction.

use std::time::Duration;

/// An option of a transaction, by FoundationDB's names (`fdb.options`, scope `TransactionOption`).
///
/// *Persistent* options survive [`on_error`](crate::Transaction::on_error). No option survives
/// [`reset`](crate::Transaction::reset), unless it is a default of the engine's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOption {
    /// Fails the transaction with 1031 once this much time has passed since it began, in milliseconds. Zero means
    /// never. Persistent.
    Timeout(Duration),
    /// Number of retries before `on_error` returns the error; `None` for no limit. Persistent.
    RetryLimit(Option<u32>),
    /// Longest pause of `on_error`. Persistent. FoundationDB's default is one second.
    MaxRetryDelay(Duration),
    /// Maximum number of bytes that the transaction may affect: 2101 above it. From 32 to the engine's own limit.
    SizeLimit(usize),
    /// The next write adds no write conflict range: it makes no other transaction fail.
    NextWriteNoWriteConflictRange,
    /// Snapshot reads see the transaction's own writes (the default).
    SnapshotRywEnable,
    /// Snapshot reads do not see the transaction's own writes.
    SnapshotRywDisable,
    /// No read sees the transaction's own writes. Allowed only before the first read or write: 2000 afterwards.
    ReadYourWritesDisable,
    /// A key with a pending versionstamp reads as its operand, instead of failing with 1036.
    BypassUnreadable,
    /// The read version may miss commits that other clients made just before. Embedded engines ignore the option: their
    /// read versions miss no commits.
    CausalReadRisky,
    /// Lower priority than the default, for background work. Embedded engines ignore the option: they have no
    /// priorities. See [`in_background`](crate::Database::in_background).
    PriorityBatch,
    /// A tag, by which an operator limits the rate of transactions, from the next read version on. Later tags of an
    /// attempt are ignored. With global tag throttling off, FoundationDB throttles tags that write much by itself, but
    /// not those that read much (`tag`, not `auto_throttle_tag`). Embedded engines ignore tags, and so does that of
    /// FoundationDB unless it is opened with tags.
    Tag(Tag),
    /// The transaction commits even when storage is short and others fail with 1225. For transactions that shrink the
    /// data.
    BypassStorageQuota,
    /// Reads of keys at and above `\xff` are allowed.
    ReadSystemKeys,
}

/// A transaction's tag: up to [`LONGEST`](Tag::LONGEST) bytes of text.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    bytes: [u8; Tag::LONGEST],
    length: u8,
}

impl Tag {
    /// Length of the longest tag, in bytes.
    pub const LONGEST: usize = 16;

    /// The tag with this text; `None` if it is too long.
    pub fn new(text: &str) -> Option<Tag> {
        let mut bytes = [0; Tag::LONGEST];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Tag { bytes, length: text.len() as u8 })
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        // It was made of text.
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tag({:?})", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_short_texts() {
        for text in ["", "notes", "0123456789abcdef"] {
            assert_eq!(Tag::new(text).unwrap().as_str(), text);
        }
        assert_eq!(Tag::new("0123456789abcdefg"), None);
    }
}
