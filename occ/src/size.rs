//! The size of a transaction, counted as FoundationDB counts it.
//!
//! FoundationDB adds up keys, values and both sides' conflict ranges, and for each mutation and range
//! the size of the C++ struct that carries it (`VectorRef::expectedSize` in `flow/Arena.h` over
//! `MutationRef` and `KeyRangeRef`). The same numbers here make the same transactions too large.

use crate::KeyRange;

/// `sizeof(MutationRef)` in FoundationDB 7.3: a type, two strings of 12 bytes, the checksum's fields.
pub(crate) const MUTATION: usize = 44;

/// `sizeof(KeyRangeRef)`: two strings of 12 bytes.
pub(crate) const RANGE: usize = 24;

/// What a conflict range adds.
pub(crate) fn of_range(range: &KeyRange) -> usize {
    RANGE + range.len()
}

/// What the conflict range of one key adds.
pub(crate) fn of_key(key: &[u8]) -> usize {
    RANGE + 2 * key.len() + 1
}
