//! What a client may do in a database, wherever the database is named: in a request's path or body, or in a
//! replication.

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::authn::principal::Principal;
use crate::http::authz::rules_of;
use crate::http::authz::security::Security;
use crate::http::error::{ApiError, Result};
use crate::http::jobs::replicator;

pub(crate) fn not_server_admin() -> ApiError {
    ApiError::unauthorized("You are not a server admin.")
}

/// Refuses a client that may not use the database and is not a server administrator. Returns whether it is the
/// database's administrator.
pub(crate) fn standing(db: &str, security: &Security, principal: &Principal) -> Result<bool> {
    let (is_member, is_admin) = match rules_of(db) {
        Some(rules) => (rules.is_member(security, principal), rules.is_admin(security, principal)),
        None => (security.is_member(principal), security.is_admin(principal)),
    };
    if is_member { Ok(is_admin) } else { Err(not_member(principal)) }
}

/// The refusal of a client that a database does not admit. Browsers' clients log out on a 401, so a client that has
/// logged in gets a 403.
pub(crate) fn not_member(principal: &Principal) -> ApiError {
    match principal.name {
        None => ApiError::unauthorized("You are not authorized to access this db."),
        Some(_) => ApiError::forbidden("You are not allowed to access this db."),
    }
}

/// The refusal of a client that is not an administrator of the database, likewise.
pub(crate) fn not_database_admin(principal: &Principal) -> ApiError {
    let reason = "You are not a db or server admin.";
    if principal.name.is_some() { ApiError::forbidden(reason) } else { ApiError::unauthorized(reason) }
}

/// Whether a database is for server administrators only, whatever its `_security`: its documents act with the rights of
/// the server. Its replications read and write databases of this server.
pub(crate) fn is_of_the_system(db: &str) -> bool {
    db.starts_with('_') || replicator::has_jobs(db)
}

/// Admits a client to a database that is not named in the path of a request.
pub(crate) async fn admit_elsewhere(app: &App, database: &Documents, principal: &Principal) -> Result<()> {
    if principal.is_server_admin() {
        return Ok(());
    }
    if is_of_the_system(database.name()) {
        return Err(not_server_admin());
    }
    standing(database.name(), &*app.securities.of(database).await?, principal).map(drop)
}
