//! What a client may.
//!
//! ```text
//!   rights ───────── who may use a database
//!     ├─ security ────── its `_security`
//!     └─ rules ───────── databases with rules of their own about their documents
//!          ├─ users ─────────── `_users`
//!          │    └─ admitted ─────── the same for replications and the command line
//!          └─ replications ──── `_replicator`
//! ```
//!
//! Who a client is, [`access`](crate::http::access) tells.

pub(crate) mod admitted;
pub(crate) mod replications;
pub(crate) mod rights;
pub(crate) mod rules;
pub(crate) mod security;
pub(crate) mod users;
