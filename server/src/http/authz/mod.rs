//! What a client may.
//!
//! ```text
//!   rights ───────── who may use a database
//!     ├─ security ────── its `_security`
//!     └─ rules ───────── databases with rules of their own about their documents
//!          ├─ users ─────────── `_users`
//!          │    ├─ admitted ─────── the same for replications and the command line
//!          │    └─ auth_design ──── the document in which CouchDB has them
//!          └─ replications ──── `_replicator`
//! ```
//!
//! Every path by which a client writes or reads documents of a database with rules asks [`rules_of`] for them.
//! Who a client is, [`access`](crate::http::access) tells.

pub(crate) mod admitted;
pub(crate) mod auth_design;
pub(crate) mod replications;
pub(crate) mod rights;
pub(crate) mod rules;
pub(crate) mod security;
pub(crate) mod users;

use crate::http::access::users::DATABASE;
use crate::http::authz::replications::Replications;
use crate::http::authz::rules::Rules;
use crate::http::authz::users::Users;
use crate::http::error::Result;
use crate::http::replicator;
use crate::http::request::Request;

/// The rules of a database, if it has some.
pub(crate) fn rules_of(db: &str) -> Option<&'static dyn Rules> {
    match db {
        DATABASE => Some(&Users),
        db if replicator::has_jobs(db) => Some(&Replications),
        _ => None,
    }
}

/// Refuses what only administrators may do with any document of a database that has rules.
pub(crate) fn require_admin(request: &Request, db: &str) -> Result<()> {
    rules_of(db).map_or(Ok(()), |rules| rules.require_admin(request))
}

/// Refuses ways of writing a document whose result is not known before it is written, where there are rules.
pub(crate) fn refuse_unseen(request: &Request, db: &str, id: &str) -> Result<()> {
    rules_of(db).map_or(Ok(()), |rules| rules.refuse_unseen(request, id))
}
