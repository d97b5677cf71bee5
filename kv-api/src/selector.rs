//! Key selectors: naming a key by its place among the others.

use bytes::Bytes;

use crate::keys;

/// Names a key by its distance from another: "the `offset`th key after the last key that is less
/// than (or, with `or_equal`, less than or equal to) `key`" (FoundationDB's `developer-guide.rst`,
/// "Key selectors").
///
/// A selector that resolves before the first key gives the empty key, one past the last gives `\xff`.
///
/// ```
/// use kv_api::KeySelector;
///
/// let third_after = KeySelector::first_greater_than(b"k".as_slice()).plus(2);
/// assert_eq!((third_after.or_equal, third_after.offset), (true, 3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeySelector {
    /// The key from which the place is counted.
    pub key: Bytes,
    /// Whether `key` itself counts as the last key at or before.
    pub or_equal: bool,
    /// How many keys to go on from there; 1 is the next.
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

    /// The selector `by` keys further on (back, where it is negative). Saturates.
    #[must_use]
    pub fn plus(mut self, by: i32) -> Self {
        self.offset = self.offset.saturating_add(by);
        self
    }

    /// The same selector with `or_equal` taken into the key, as FoundationDB does before it uses one:
    /// "less than or equal to k" is "less than the key after k".
    #[must_use]
    pub fn without_or_equal(self) -> Self {
        if self.or_equal {
            KeySelector { key: keys::key_after(&self.key), or_equal: false, offset: self.offset }
        } else {
            self
        }
    }
}
