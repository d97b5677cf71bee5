//! What a transaction asks the store to change.

pub mod atomic;
pub(crate) mod versionstamp;

use bytes::Bytes;
use kv_api::MutationType;

use crate::KeyRange;
use crate::transaction::size;

/// One change of a transaction, as it is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Set { key: Bytes, value: Bytes },
    ClearRange(KeyRange),
    Atomic { operation: MutationType, key: Bytes, operand: Bytes },
}

impl Mutation {
    /// What it adds to the transaction's size.
    pub(crate) fn size(&self) -> usize {
        size::MUTATION
            + match self {
                Mutation::Set { key, value } => key.len() + value.len(),
                Mutation::ClearRange(range) => range.len(),
                Mutation::Atomic { key, operand, .. } => key.len() + operand.len(),
            }
    }

    /// The key that it changes, or the first of those that it clears.
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Mutation::Set { key, .. } | Mutation::Atomic { key, .. } => key,
            Mutation::ClearRange(range) => &range.begin,
        }
    }

    /// The length of what a stamp is filled into, without its offset; 0 where there is none.
    pub(crate) fn stamped_len(&self) -> usize {
        let text = match self {
            Mutation::Atomic { operation: MutationType::SetVersionstampedKey, key, .. } => key,
            Mutation::Atomic { operation: MutationType::SetVersionstampedValue, operand, .. } => operand,
            _ => return 0,
        };
        text.len().saturating_sub(4)
    }

    /// The key whose value in the store decides the result, if one does.
    pub(crate) fn read_key(&self) -> Option<&Bytes> {
        match self {
            Mutation::Atomic { operation, key, .. } if !operation.is_versionstamped() => Some(key),
            _ => None,
        }
    }
}
