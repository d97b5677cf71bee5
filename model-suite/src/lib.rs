//! CouchDB's document model, proved over any engine.
//!
//! What [`conformance`] is for an engine's transactions this is for the documents on top of them: each
//! scenario is written once, through the public API of [`model`], and reaches every engine by the same
//! list. The RFCs of CouchDB on FoundationDB say what holds (001: revisions, 003: changes, 004: bodies);
//! where they are silent, CouchDB 3 does.
//!
//! ```text
//!   an engine's tests/model.rs
//!        │  model_suite::suite!(MemHarness)       one #[test] for each scenario
//!        │  model_suite::tape!(MemHarness, 25)    random histories against an oracle
//!   ┌────▼───────────────────────────────────────────────────────────────┐
//!   │ conformance::Harness   opens an engine, the one its suite opens    │
//!   │ Stage                  its keyspace, empty and nobody else's       │
//!   │ scenarios/, tape/      model::Layer on it, or on a wrapper of it   │
//!   └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! * Each scenario gets a keyspace of its own; no scenario wipes a store.
//! * Scenarios are compiled once, here, on [`kv_api::AnyDatabase`].
//! * Nothing here knows an engine; `model` and `conformance` know nothing of each other.

mod list;
mod scenario;
mod scenarios;
mod stage;
pub mod tape;

#[doc(hidden)]
pub use conformance::__tests;
pub use list::scenarios;
pub use scenario::{Scenario, run};
