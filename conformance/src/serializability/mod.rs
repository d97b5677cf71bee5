//! Is there a serial order? Histories of real concurrent transactions, and a checker that knows
//! nothing of the engine.
//!
//! The method is Elle's (Kingsbury and Alvaro, "Elle: inferring isolation anomalies from
//! experimental observations", 2020): every key holds a list, transactions append elements that are
//! unique and read whole lists. A list that was read tells in which order its elements were written,
//! hence which transaction depends on which. A history is strictly serializable only if those
//! dependencies, with the order of time added, have no cycle; a cycle is an anomaly, and which kinds
//! of dependency it is made of gives the anomaly its name (Adya, "Weak consistency", 1999).
//!
//! ```text
//!   ww  T1 wrote the element just before T2's         T1 ──► T2
//!   wr  T2 read a list that ends in T1's element      T1 ──► T2
//!   rw  T1 read a list to which T2 appended next      T1 ──► T2
//!   rt  T1 ended before T2 began                      T1 ──► T2
//! ```

mod checker;
mod graph;
mod history;
mod workload;

pub use checker::{Anomaly, AnomalyKind, check};
pub use history::{Element, History, Operation, Outcome, Recorded, TransactionId};
pub use workload::{Recorder, Workload, record};

use crate::random::number;

/// The seed of `CONFORMANCE_SEED`, or another one each time, printed: threads interleave as they please anyway.
pub(crate) fn fresh_seed() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = number("CONFORMANCE_SEED", now);
    println!("CONFORMANCE_SEED={seed}");
    seed
}

/// How many times as long histories are to be: `CONFORMANCE_HISTORIES`.
pub(crate) fn times() -> u32 {
    u32::try_from(number("CONFORMANCE_HISTORIES", 1)).unwrap_or(u32::MAX)
}

/// Fails unless the history has a serial order, and so many commits that this shows something.
pub(crate) fn must_be_serial(history: &History, workload: Workload) {
    let is_committed = |transaction: &&Recorded| transaction.outcome == Outcome::Committed;
    let committed = history.transactions.iter().filter(is_committed).count();
    assert!(committed * 20 > history.transactions.len(), "{committed} commits: so few that nothing is shown");
    if let Err(anomaly) = check(history) {
        panic!("{workload:?}: {anomaly}");
    }
}
