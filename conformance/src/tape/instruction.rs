//! The instructions of a tape, and how writes among them are carried out.

use std::fmt;

use kv_api::{ConflictRange, KeySelector, MutationType, RangeRequest, Read, Transaction, TransactionOption};
use serde::{Deserialize, Serialize};

use super::text;

/// Number of transactions that a tape interleaves.
pub const TRANSACTIONS: usize = 4;

/// Result of a step: nothing, or the differing answers of engine and oracle.
pub(super) type Step = Result<(), (String, String)>;

/// A step of a tape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instruction {
    /// Index of the transaction.
    pub transaction: usize,
    /// Action of the transaction.
    pub action: Action,
}

/// An action of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "each is the method of the same name in kv_api::Transaction")]
pub enum Action {
    Get {
        #[serde(with = "text::bytes")]
        key: Vec<u8>,
        #[serde(with = "text::ReadText")]
        read: Read,
    },
    GetKey {
        #[serde(with = "text::SelectorText")]
        selector: KeySelector,
        #[serde(with = "text::ReadText")]
        read: Read,
    },
    GetRange {
        #[serde(with = "text::RequestText")]
        request: RangeRequest,
        #[serde(with = "text::ReadText")]
        read: Read,
    },
    Set {
        #[serde(with = "text::bytes")]
        key: Vec<u8>,
        #[serde(with = "text::bytes")]
        value: Vec<u8>,
    },
    Clear {
        #[serde(with = "text::bytes")]
        key: Vec<u8>,
    },
    ClearRange {
        #[serde(with = "text::bytes")]
        begin: Vec<u8>,
        #[serde(with = "text::bytes")]
        end: Vec<u8>,
    },
    Atomic {
        #[serde(with = "text::MutationText")]
        mutation: MutationType,
        #[serde(with = "text::bytes")]
        key: Vec<u8>,
        #[serde(with = "text::bytes")]
        operand: Vec<u8>,
    },
    StampedValue {
        #[serde(with = "text::bytes")]
        key: Vec<u8>,
        #[serde(with = "text::bytes")]
        operand: Vec<u8>,
    },
    StampedKey {
        #[serde(with = "text::bytes")]
        template: Vec<u8>,
        #[serde(with = "text::bytes")]
        value: Vec<u8>,
    },
    ReadConflict {
        #[serde(with = "text::bytes")]
        begin: Vec<u8>,
        #[serde(with = "text::bytes")]
        end: Vec<u8>,
    },
    WriteConflict {
        #[serde(with = "text::bytes")]
        begin: Vec<u8>,
        #[serde(with = "text::bytes")]
        end: Vec<u8>,
    },
    NextWriteNoWriteConflictRange,
    SnapshotRywDisable,
    SnapshotRywEnable,
    ReadVersion,
    /// Sets the read version to that of the commit this many commits ago.
    SetReadVersion {
        back: usize,
    },
    /// Watches a key. The end of the tape checks whether the watch has fired.
    Watch {
        #[serde(with = "text::bytes")]
        key: Vec<u8>,
    },
    /// An invalid write: a key that is too long.
    KeyTooLong,
    /// An invalid write: at the end of the keyspace.
    KeyOutside,
    /// Commits, checks the outcome, and begins again.
    Commit,
    OnError {
        code: i32,
    },
    Reset,
    Cancel,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Action {
    /// Whether it is an invalid write.
    pub(crate) fn is_wrong(&self) -> bool {
        match self {
            Action::KeyTooLong | Action::KeyOutside => true,
            Action::ClearRange { begin, end } => begin > end,
            _ => false,
        }
    }

    /// Whether it is a write that may change the value of `key`.
    pub(crate) fn may_change(&self, watched: &[u8]) -> bool {
        match self {
            Action::Set { key, .. } | Action::Clear { key } => key == watched,
            Action::Atomic { key, .. } | Action::StampedValue { key, .. } => key == watched,
            Action::ClearRange { begin, end } => begin.as_slice() <= watched && watched < end.as_slice(),
            Action::StampedKey { .. } => true,
            _ => false,
        }
    }

    /// Makes a write or sets an option. Ignores any other action.
    pub(crate) fn write_to<T: Transaction>(&self, transaction: &T) {
        match self {
            Action::Set { key, value } => transaction.set(key, value),
            Action::Clear { key } => transaction.clear(key),
            Action::ClearRange { begin, end } => transaction.clear_range(begin, end),
            Action::Atomic { mutation, key, operand } => transaction.atomic_op(*mutation, key, operand),
            Action::StampedValue { key, operand } => {
                transaction.atomic_op(MutationType::SetVersionstampedValue, key, operand);
            }
            Action::StampedKey { template, value } => {
                transaction.atomic_op(MutationType::SetVersionstampedKey, template, value);
            }
            Action::ReadConflict { begin, end } => transaction.add_conflict_range(begin, end, ConflictRange::Read),
            Action::WriteConflict { begin, end } => transaction.add_conflict_range(begin, end, ConflictRange::Write),
            Action::NextWriteNoWriteConflictRange => {
                transaction.set_option(TransactionOption::NextWriteNoWriteConflictRange);
            }
            Action::SnapshotRywDisable => transaction.set_option(TransactionOption::SnapshotRywDisable),
            Action::SnapshotRywEnable => transaction.set_option(TransactionOption::SnapshotRywEnable),
            Action::KeyTooLong => transaction.set(&[b'k'; 20_000], b""),
            Action::KeyOutside => transaction.set(b"\xff", b""),
            Action::Get { .. }
            | Action::GetKey { .. }
            | Action::GetRange { .. }
            | Action::ReadVersion
            | Action::SetReadVersion { .. }
            | Action::Watch { .. }
            | Action::Commit
            | Action::OnError { .. }
            | Action::Reset
            | Action::Cancel => {}
        }
    }
}
