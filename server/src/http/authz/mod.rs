//! What a client may.
//!
//! ```text
//!   admission ────── which requests are admitted
//!   rights ───────── who may use a database
//!     └─ security ────── its `_security`
//!   writer ───────── who may write there: asked at the model's hook for validators, by every write
//!     └─ rules ───────── databases with rules of their own about their documents
//!          ├─ users ─────────── `_users`
//!          │    └─ auth_design ──── the document in which CouchDB has them
//!          └─ replications ──── `_replicator`
//! ```
//!
//! Who a client is, [`authn`](crate::http::authn) tells.

pub(crate) mod admission;
pub(crate) mod auth_design;
pub(crate) mod client;
pub(crate) mod replications;
pub(crate) mod rights;
pub(crate) mod rules;
pub(crate) mod security;
pub(crate) mod users;
pub(crate) mod writer;

use crate::http::authn::users::DATABASE;
use crate::http::authz::replications::Replications;
use crate::http::authz::rules::Rules;
use crate::http::authz::users::Users;
use crate::http::jobs::replicator;

/// The rules of a database, if it has some.
pub(crate) fn rules_of(db: &str) -> Option<&'static dyn Rules> {
    match db {
        DATABASE => Some(&Users),
        db if replicator::has_jobs(db) => Some(&Replications),
        _ => None,
    }
}
