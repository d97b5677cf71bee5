//! What happened: transactions with what they read and appended, when, and how they ended.

use std::collections::BTreeMap;

/// A transaction of a history: its index.
pub type TransactionId = usize;

/// What an append adds to a list; no two appends of a history add the same.
pub type Element = u64;

/// One operation of a transaction, in the order they were made.
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
        /// What was there.
        list: Vec<Element>,
    },
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It committed.
    Committed,
    /// It certainly did not.
    Failed,
    /// Nobody knows: what it appended may be there or not.
    Unknown,
}

/// A transaction as it was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What it did.
    pub operations: Vec<Operation>,
    /// How it ended.
    pub outcome: Outcome,
    /// A moment before its first operation, on a clock that all transactions share. No two moments of
    /// a history are equal.
    pub begun: u64,
    /// A moment after its end.
    pub ended: u64,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The transactions, in any order.
    pub transactions: Vec<Recorded>,
    /// Every list as it stood when all had ended.
    pub last: BTreeMap<u32, Vec<Element>>,
}
