//! The counters of a database.
//!
//! ```text
//!  (3) = doc_count ‖ doc_del_count ‖ external ‖ edits     four u64, little-endian
//! ```
//!
//! The store sees the counters as one number of 32 bytes. An edit adds its differences in one atomic operation, without
//! a read and without a conflict. A negative difference borrows from the fields above it. The sum undoes that, since no
//! field of the sum is negative.

use crate::error::{Error, Result};

const FIELDS: usize = 4;
const FIELD_BYTES: usize = 8;

/// A database's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Number of documents whose winner is live.
    pub(crate) doc_count: i64,
    /// Number of documents whose winner is a tombstone.
    pub(crate) doc_del_count: i64,
    /// Size of all leaves' bodies in bytes, as compact JSON.
    pub(crate) external: i64,
    /// Number of edits so far, which is the number of sequences given out.
    pub(crate) edits: i64,
}

impl Stats {
    fn fields(self) -> [i64; FIELDS] {
        [self.doc_count, self.doc_del_count, self.external, self.edits]
    }

    /// The operand of the atomic addition.
    pub(crate) fn operand(self) -> [u8; FIELDS * FIELD_BYTES] {
        let mut operand = [0; FIELDS * FIELD_BYTES];
        let mut borrow = 0i128;
        for (field, chunk) in self.fields().into_iter().zip(operand.chunks_exact_mut(FIELD_BYTES)) {
            let value = i128::from(field) + borrow;
            chunk.copy_from_slice(&(value as u64).to_le_bytes());
            borrow = value >> 64;
        }
        operand
    }

    /// Reads the counters' row. A database without edits has no such row.
    pub(crate) fn read(value: Option<&[u8]>) -> Result<Stats> {
        let Some(value) = value else { return Ok(Stats::default()) };
        let fields = value.as_chunks::<FIELD_BYTES>();
        match fields {
            ([doc_count, doc_del_count, external, edits], []) => Ok(Stats {
                doc_count: i64::from_le_bytes(*doc_count),
                doc_del_count: i64::from_le_bytes(*doc_del_count),
                external: i64::from_le_bytes(*external),
                edits: i64::from_le_bytes(*edits),
            }),
            _ => Err(Error::corrupt("counters of wrong length")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(sum: &mut [u8; 32], operand: [u8; 32]) {
        let mut carry = 0;
        for (byte, other) in sum.iter_mut().zip(operand) {
            let total = u16::from(*byte) + u16::from(other) + carry;
            *byte = total as u8;
            carry = total >> 8;
        }
    }

    #[test]
    fn differences_add_up_whatever_their_signs() {
        let stats = |doc_count, doc_del_count, external| Stats { doc_count, doc_del_count, external, edits: 2 };
        let steps = [
            stats(1, 0, 300),
            stats(2, 3, 70),
            stats(-1, 1, -370),
            stats(-2, -4, 1 << 40),
            stats(0, 0, -(1 << 40)),
            stats(5, 0, 0),
            stats(-5, 9, 1),
        ];
        let (mut sum, mut expected) = ([0; 32], [0i64; 4]);
        for step in steps {
            add(&mut sum, step.operand());
            for (total, field) in expected.iter_mut().zip(step.fields()) {
                *total += field;
            }
            assert_eq!(Stats::read(Some(&sum)).unwrap().fields(), expected, "after {step:?}");
        }
        assert!(Stats::read(Some(&[0; 31])).is_err());
    }
}
