//! Reading a range.

use bytes::Bytes;

use crate::{KeySelector, keys};

/// Which way a range is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Direction {
    /// From the first key to the last.
    #[default]
    Forward,
    /// From the last key to the first.
    Reverse,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// A range to read: from the key that `begin` names up to, not including, the key that `end` names.
///
/// ```
/// use kv_api::RangeRequest;
///
/// let newest = RangeRequest::prefix(b"log/").reverse().limit(1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// Selects the first key.
    pub begin: KeySelector,
    /// Selects the first key beyond the range.
    pub end: KeySelector,
    /// Maximum number of rows in a batch; 0 for no limit.
    pub limit: usize,
    /// Target size of a batch in bytes of keys and values: the batch ends with the row that reaches it. 0 leaves
    /// the size to the engine.
    pub target_bytes: usize,
    /// Which way to read.
    pub direction: Direction,
}

impl RangeRequest {
    /// The keys from `begin` up to, not including, `end`.
    pub fn keys(begin: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self::selectors(KeySelector::first_greater_or_equal(begin), KeySelector::first_greater_or_equal(end))
    }

    /// The keys between two selectors.
    pub fn selectors(begin: KeySelector, end: KeySelector) -> Self {
        RangeRequest { begin, end, limit: 0, target_bytes: 0, direction: Direction::Forward }
    }

    /// Every key that begins with `prefix`. (A prefix of `\xff` bytes only reaches to the end of the user keys.)
    pub fn prefix(prefix: &[u8]) -> Self {
        let end = keys::prefix_end(prefix).unwrap_or_else(|| Bytes::from_static(keys::SYSTEM_BEGIN));
        Self::keys(Bytes::copy_from_slice(prefix), end)
    }

    /// At most this many rows in a batch.
    #[must_use]
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = rows;
        self
    }

    /// About this many bytes in a batch.
    #[must_use]
    pub fn target_bytes(mut self, bytes: usize) -> Self {
        self.target_bytes = bytes;
        self
    }

    /// From the last key to the first.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.direction = Direction::Reverse;
        self
    }

    /// The rest of this request after `batch`: it starts beyond the batch's last key, and its limit is reduced by
    /// the batch's rows. `None` when the batch was the last, or the limit is used up.
    pub fn after(&self, batch: &RangeBatch) -> Option<RangeRequest> {
        if !batch.more {
            return None;
        }
        let last = batch.rows.last()?;
        let mut rest = self.clone();
        if self.limit > 0 {
            rest.limit = self.limit.checked_sub(batch.rows.len()).filter(|&left| left > 0)?;
        }
        match self.direction {
            Direction::Forward => rest.begin = KeySelector::first_greater_than(last.key.clone()),
            Direction::Reverse => rest.end = KeySelector::first_greater_or_equal(last.key.clone()),
        }
        Some(rest)
    }
}

/// Part of a range, in the requested order.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangeBatch {
    /// The rows.
    pub rows: Vec<KeyValue>,
    /// Whether the range may have more rows. The caller continues with [`RangeRequest::after`].
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &'static str) -> KeyValue {
        KeyValue { key: key.into(), value: Bytes::new() }
    }

    #[test]
    fn continuation_goes_on_after_the_last_row() {
        let request = RangeRequest::keys("a", "z").limit(5);
        let batch = RangeBatch { rows: vec![row("b"), row("c")], more: true };
        let rest = request.after(&batch).unwrap();
        assert_eq!((rest.begin, rest.limit), (KeySelector::first_greater_than("c"), 3));

        let rest = request.clone().reverse().after(&RangeBatch { rows: vec![row("y"), row("x")], more: true }).unwrap();
        assert_eq!(rest.end, KeySelector::first_greater_or_equal("x"));

        assert_eq!(request.after(&RangeBatch { rows: vec![row("b")], more: false }), None);
        assert_eq!(request.limit(1).after(&RangeBatch { rows: vec![row("b")], more: true }), None);
    }
}
