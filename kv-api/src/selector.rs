//! Key selectors: a key, named by its position relative to another key.

use bytes::Bytes;

use crate::keys;

/// Names a key by its distance from another: "the `offset`th key after the last key that is less
/// than (or, with `or_equal`, less than or equal to) `key`" (FoundationDB's `developer-guide.rst`,
/// "Key selectors").
///
/// A selector that resolves before the first key gives the empty key; one beyond the last key gives `\xff`.
///
/// ```
/// use kv_api::KeySelector;
///
/// let third_after = KeySelector::first_greater_than(b"k".as_slice()).plus(2);
/// assert_eq!((third_after.or_equal, third_after.offset), (true, 3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeySelector {
    /// The reference key.
    pub key: Bytes,
    /// Whether `key` itself counts as the last key less than or equal to it.
    pub or_equal: bool,
    /// Distance from that last key; 1 is the next key.
    pub offset: i32,
}

impl KeySelector {
    /// The last key less than `key`.
    pub fn last_less_than(key: impl Into<Bytes>) -> Self {
        KeySelector { key: key.into(), or_equal: false, offset: 0 }
    }

    /// The last key less than or equal to `key`.
    pub fn last_less_or_equal(key: impl Into<Bytes>) -> Self {
        KeySelector { key: key.into(), or_equal: true, offset: 0 }
    }

    /// The first key greater than `key`.
    pub fn first_greater_than(key: impl Into<Bytes>) -> Self {
        KeySelector { key: key.into(), or_equal: true, offset: 1 }
    }

    /// The first key greater than or equal to `key`.
    pub fn first_greater_or_equal(key: impl Into<Bytes>) -> Self {
        KeySelector { key: key.into(), or_equal: false, offset: 1 }
    }

    /// The selector moved by `by` keys, backwards where `by` is negative. Saturates.
    #[must_use]
    pub fn plus(mut self, by: i32) -> Self {
        self.offset = self.offset.saturating_add(by);
        self
    }

    /// The same selector without `or_equal`: "less than or equal to k" becomes "less than the key after k".
    /// FoundationDB does this before it resolves a selector.
    #[must_use]
    pub fn without_or_equal(self) -> Self {
        if self.or_equal {
            KeySelector { key: keys::key_after(&self.key), or_equal: false, offset: self.offset }
        } else {
            self
        }
    }
}
