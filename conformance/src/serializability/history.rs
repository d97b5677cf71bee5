//! A history: transactions with their reads and appends, their times and their outcomes.

use std::collections::BTreeMap;

/// A transaction of a history: its index.
pub type TransactionId = usize;

/// Element that an append adds to a list. All elements of a history are distinct.
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

impl History {
    /// Decides the unknown outcomes, for a history whose clients lost a store that then ended: a transaction that has
    /// not happened by its moment `ended` never will. It committed if any of its elements is there at the end. So a
    /// check finds a transaction that is there in part, or was seen and is gone.
    pub fn settle(&mut self) {
        let last = &self.last;
        let is_there = |operation: &Operation| match operation {
            Operation::Append { key, element } => last.get(key).is_some_and(|list| list.contains(element)),
            Operation::Read { .. } => false,
        };
        for transaction in self.transactions.iter_mut().filter(|one| one.outcome == Outcome::Unknown) {
            let happened = transaction.operations.iter().any(is_there);
            transaction.outcome = if happened { Outcome::Committed } else { Outcome::Failed };
        }
    }
}
