//! The suite that every engine must pass.
//!
//! A scenario is written once, against the traits of `kv-api`, and runs on every engine. FoundationDB is the
//! specification: a scenario claims only what its documentation or its source says. Where the documentation is
//! silent and engines may differ, the scenario allows everything that FoundationDB may do.
//!
//! ```text
//!   an engine's tests/conformance.rs
//!        │  conformance::suite!(MemHarness)      one #[test] for each scenario
//!   ┌────▼──────────────────────────────────────────────────────┐
//!   │ Harness     opens a database for one scenario             │
//!   │ Space, Tx   a subspace of it, and shorthand for scenarios   │
//!   │ scenarios/  one file for each clause                      │
//!   └────┬──────────────────────────────────────────────────────┘
//!        │  kv_api::AnyDatabase: scenarios are compiled once, here, for all engines
//!   the engine, or a wrapper around it
//! ```
//!
//! Engines on disk add the tests of [`durability`](mod@durability), with one more line.
//!
//! # Invariants
//!
//! * Each scenario gets a fresh subspace and touches no other key. No scenario wipes a store.
//! * `docs/fdb-semantics.md` maps each clause to its scenarios. A test fails when page and suite differ.
//! * This crate depends on neither `occ` nor an engine.
//!
//! Sources: FoundationDB 7.3, `ReadYourWrites.actor.cpp`, `WriteMap.cpp`, `NativeAPI.actor.cpp`,
//! `Atomic.h`, `ThreadSafeTransaction.cpp`, `fdb_c.cpp`, `fdb.options`, `api-c.rst`,
//! `developer-guide.rst`, and the workloads of its own simulation.

pub mod chaos;
pub mod durability;
mod expect;
mod harness;
mod hold;
pub mod interleave;
mod list;
pub mod mirror;
mod missing;
pub mod oracle;
pub mod random;
pub mod recorded;
mod runtime;
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
pub use runtime::block_on;
pub use scenario::{Scenario, run};
pub use shrink::shrink;
pub use space::{Space, Tx};

/// The page for authors of engines, compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/new-engine.md")]
pub struct NewEngine;
