//! A history: transactions with their reads and appends, their times and their outcomes.

use std::collections::BTreeMap;

/// A transaction of a history: its index.
pub type TransactionId = usize;

/// Element that an append adds to a list. Every append of a history adds another one.
pub type Element = u64;

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Appended an element to the list of a key.
    Append {
        /// The key.
        key: u32,
        /// The element.
        element: Element,
    },
    /// Read the whole list of a key.
    Read {
        /// The key.
        key: u32,
        /// The list that was read.
        list: Vec<Element>,
    },
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction committed.
    Committed,
    /// The transaction certainly did not commit.
    Failed,
    /// The outcome is unknown: the appended elements may be there or not.
    Unknown,
}

/// A recorded transaction.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its operations, in order.
    pub operations: Vec<Operation>,
    /// Its outcome.
    pub outcome: Outcome,
    /// A moment before its first operation, on a clock shared by all transactions. All moments of a history are
    /// distinct.
    pub begun: u64,
    /// A moment after its end.
    pub ended: u64,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The transactions, in any order.
    pub transactions: Vec<Recorded>,
    /// Every list at the end of all transactions.
    pub last: BTreeMap<u32, Vec<Element>>,
}
