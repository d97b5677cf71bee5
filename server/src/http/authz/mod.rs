//! What a client may do.
//!
//! ```text
//!   admission ────── which requests are admitted
//!   rights ───────── who may use a database
//!     └─ security ────── its `_security`
//!   writer ───────── who may write there: called by the model's hook for validators, for every write
//!     └─ rules ───────── databases with rules about their documents
//!          ├─ users ─────────── `_users`
//!          │    └─ auth_design ──── the document in which CouchDB has them
//!          └─ replications ──── `_replicator`
//! ```
//!
//! [`authn`](crate::http::authn) finds out who a client is.

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

/// The rules of a database, if it has any.
pub(crate) fn rules_of(db: &str) -> Option<&'static dyn Rules> {
    match db {
        DATABASE => Some(&Users),
        db if replicator::has_jobs(db) => Some(&Replications),
        _ => None,
    }
}
