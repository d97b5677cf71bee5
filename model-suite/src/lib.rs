//! A suite for CouchDB's document model, on any engine.
//!
//! [`conformance`] tests an engine's transactions, and this crate tests the documents on top of them. Each scenario is
//! written once, with the public API of [`model`], and reaches every engine by the same list. The RFCs of CouchDB on
//! FoundationDB decide what is right (001: revisions, 003: changes, 004: bodies). If they do not say, CouchDB 3
//! decides.
//!
//! ```text
//!   an engine's tests/model.rs
//!        │  model_suite::suite!(MemHarness)       one #[test] for each scenario
//!        │  model_suite::tape!(MemHarness, 25)    random histories against an oracle
//!   ┌────▼───────────────────────────────────────────────────────────────┐
//!   │ conformance::Harness   opens an engine, as for its suite           │
//!   │ Stage                  an empty keyspace for one scenario          │
//!   │ scenarios/, tape/      model::Layer on it, or on a wrapper of it   │
//!   └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! * Each scenario gets its own keyspace. No scenario clears a store.
//! * Scenarios are compiled once, in this crate, for [`kv_api::AnyDatabase`].
//! * This crate does not depend on an engine. `model` and `conformance` do not depend on each other.

mod list;
mod scenario;
mod scenarios;
mod stage;
pub mod tape;

#[doc(hidden)]
pub use conformance::__tests;
pub use list::scenarios;
pub use scenario::{Scenario, run};
