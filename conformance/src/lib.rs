//! The suite that decides what an engine is.
//!
//! A scenario is written once, against the traits of `kv-api`, and reaches every engine: the same
//! list, by count and by name. FoundationDB is the specification, and a scenario claims nothing that
//! its documentation or its source does not say; where the documentation is silent and engines may
//! differ, the scenario allows what FoundationDB may do.
//!
//! ```text
//!   an engine's tests/conformance.rs
//!        │  conformance::suite!(MemHarness)      one #[test] for each scenario
//!   ┌────▼──────────────────────────────────────────────────────┐
//!   │ Harness     opens a database for one scenario             │
//!   │ Space, Tx   a subspace of it, and short ways to speak     │
//!   │ scenarios/  one file for each clause                      │
//!   └────┬──────────────────────────────────────────────────────┘
//!        │  kv_api::AnyDatabase: scenarios are compiled once, here, for all engines
//!   the engine, or a wrapper around it
//! ```
//!
//! Engines on disk prove more, with one more line: [`durability`](mod@durability).
//!
//! # Invariants
//!
//! * Each scenario gets a fresh subspace and leaves every other key alone; no scenario wipes a store.
//! * `docs/fdb-semantics.md` maps each clause to its scenarios; a test fails on any drift.
//! * Nothing here knows `occ` or an engine.
//!
//! Sources: FoundationDB 7.3, `ReadYourWrites.actor.cpp`, `WriteMap.cpp`, `NativeAPI.actor.cpp`,
//! `Atomic.h`, `ThreadSafeTransaction.cpp`, `fdb_c.cpp`, `fdb.options`, `api-c.rst`,
//! `developer-guide.rst`, and the workloads of its own simulation.

pub mod chaos;
pub mod durability;
mod expect;
mod harness;
mod list;
pub mod mirror;
mod missing;
pub mod oracle;
pub mod random;
pub mod recorded;
mod scenario;
mod scenarios;
pub mod serializability;
mod shrink;
mod space;
pub mod tape;
pub mod wrappers;

pub use expect::{Failure, Outcome};
pub use harness::{Clock, Fixture, Harness, Keyspace};
pub use list::{CLAUSES, scenarios};
pub use missing::{Missing, REQUIRE};
pub use scenario::{Scenario, block_on, run};
pub use shrink::shrink;
pub use space::{Space, Tx};

/// The page for those who write an engine, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/new-engine.md")]
pub struct NewEngine;
