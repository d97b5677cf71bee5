//! Histories of real concurrent transactions, and a checker that looks for a serial order. It does not depend on the
//! engine.
//!
//! The method is Elle's (Kingsbury and Alvaro, "Elle: inferring isolation anomalies from experimental
//! observations", 2020). Every key holds a list. Transactions append unique elements and read whole lists. A list
//! shows in which order its elements were written, hence which transaction depends on which. A history is strictly
//! serializable only if those dependencies, together with real-time order, have no cycle. A cycle is an anomaly,
//! named after the kinds of its dependencies (Adya, "Weak consistency", 1999).
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

/// The seed in `CONFORMANCE_SEED`, or a fresh one. It is printed. A seed repeats choices only: threads interleave
/// anyway.
pub(crate) fn fresh_seed() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = number("CONFORMANCE_SEED", now);
    println!("CONFORMANCE_SEED={seed}");
    seed
}

/// The factor of `CONFORMANCE_HISTORIES`, by which histories become longer.
pub(crate) fn times() -> u32 {
    u32::try_from(number("CONFORMANCE_HISTORIES", 1)).unwrap_or(u32::MAX)
}

/// Panics unless the history has a serial order, and enough commits to be meaningful.
pub(crate) fn must_be_serial(history: &History, workload: Workload) {
    let is_committed = |transaction: &&Recorded| transaction.outcome == Outcome::Committed;
    let committed = history.transactions.iter().filter(is_committed).count();
    assert!(committed * 20 > history.transactions.len(), "{committed} commits: so few that nothing is shown");
    if let Err(anomaly) = check(history) {
        panic!("{workload:?}: {anomaly}");
    }
}
