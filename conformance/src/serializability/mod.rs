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
pub use workload::{Workload, record};
