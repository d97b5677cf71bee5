//! The head of a row in a run: the lengths of its key and its value.

/// Stands for a value's length when the key is removed.
pub(super) const ABSENT: u32 = u32::MAX;

/// Bytes of the two lengths before a row's key.
pub(super) const ROW_HEAD: usize = 8;
