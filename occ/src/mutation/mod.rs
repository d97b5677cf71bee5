//! What a transaction writes.

pub mod atomic;
pub(crate) mod versionstamp;

use bytes::Bytes;
use kv_api::MutationType;

use crate::KeyRange;

/// What a transaction does to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// Sets the value; `None` removes the key.
    Set(Option<Bytes>),
    /// Applies an atomic operation with an operand.
    Atomic(MutationType, Bytes),
}

impl Write {
    /// Whether it waits for the transaction's versionstamp.
    pub(crate) fn is_versionstamped(&self) -> bool {
        matches!(self, Write::Atomic(operation, _) if operation.is_versionstamped())
    }
}

/// One change of a transaction. The order of changes matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Key {
        key: Bytes,
        write: Write,
        /// Whether transactions that read the key conflict. A versionstamped key conflicts in any case.
        conflicts: bool,
    },
    ClearRange(KeyRange),
}
