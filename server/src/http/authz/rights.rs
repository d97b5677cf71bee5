//! Rights on databases, for requests that name them in their path and for those that name them elsewhere.

use hyper::header::{HOST, ORIGIN};

use crate::http::access::principal::Principal;
use crate::http::app::stores::Documents;
use crate::http::authz;
use crate::http::authz::security::Security;
use crate::http::error::{ApiError, Result};
use crate::http::replicator;
use crate::http::request::Request;

pub(crate) fn not_server_admin() -> ApiError {
    ApiError::unauthorized("You are not a server admin.")
}

/// The security object of a database.
pub(crate) async fn security(request: &Request, db: &str) -> Result<Security> {
    let security = |database: Documents| async move { Ok(database.security().await?) };
    Ok(Security::new(request.with_database(db, security).await?))
}

/// Refuses a client that may not read the database.
pub(crate) fn require_member(security: &Security, principal: &Principal) -> Result<()> {
    if security.is_member(principal) { Ok(()) } else { Err(not_member(principal)) }
}

/// Refuses a client that is no server administrator and may not use the database. Returns whether it is the database's
/// administrator.
pub(crate) fn standing(db: &str, security: &Security, principal: &Principal) -> Result<bool> {
    let (is_member, is_admin) = match authz::rules_of(db) {
        Some(rules) => (rules.is_member(security, principal), rules.is_admin(security, principal)),
        None => (security.is_member(principal), security.is_admin(principal)),
    };
    if is_member { Ok(is_admin) } else { Err(not_member(principal)) }
}

/// The refusal of a client that a database does not admit. Browsers' clients log out on a 401, so whoever has logged in gets
/// a 403.
pub(crate) fn not_member(principal: &Principal) -> ApiError {
    match principal.name {
        None => ApiError::unauthorized("You are not authorized to access this db."),
        Some(_) => ApiError::forbidden("You are not allowed to access this db."),
    }
}

/// The refusal of a client that is no administrator of the database, likewise.
pub(crate) fn not_database_admin(principal: &Principal) -> ApiError {
    let reason = "You are not a db or server admin.";
    if principal.name.is_some() { ApiError::forbidden(reason) } else { ApiError::unauthorized(reason) }
}

/// Admits a writer of a database that a request names outside its path. Returns whether it is the database's
/// administrator.
pub(crate) async fn authorize_writer(request: &Request, db: &str) -> Result<bool> {
    refuse_pages(request, db)?;
    if request.principal.is_server_admin() {
        return Ok(true);
    }
    if authz::rules_of(db).is_some() {
        return Err(not_member(&request.principal));
    }
    if is_of_the_system(db) {
        return Err(not_server_admin());
    }
    standing(db, &security(request, db).await?, &request.principal)
}

/// Whether a database is for server administrators, whatever its `_security`: what lies there acts with the rights of
/// the server. Its replications read and write databases of this server.
pub(crate) fn is_of_the_system(db: &str) -> bool {
    db.starts_with('_') || replicator::has_jobs(db)
}

/// Refuses requests of pages from other origins that act with the server's rights:
/// - while everyone is an administrator, since any page could make itself a permanent one;
/// - where `cors/origins=*` with `cors/credentials=true` admits every page, unless `cors/origins` also names the page's
///   origin.
///
/// Browsers send `Origin` with what may change something. `name` is of a database, or begins a path.
pub(crate) fn refuse_pages(request: &Request, name: &str) -> Result<()> {
    let is_closed = matches!(name, "_node" | "_cluster_setup" | "_replicate") || authz::rules_of(name).is_some();
    if !is_closed {
        return Ok(());
    }
    let Some(origin) = request.headers.get(ORIGIN) else { return Ok(()) };
    let host = request.header(HOST).unwrap_or_default();
    let auth = &request.app.auth;
    let scheme = if auth.is_secure(&request.headers) { "https://" } else { "http://" };
    let origin = origin.to_str().unwrap_or_default();
    if origin.strip_prefix(scheme) == Some(host) {
        return Ok(());
    }
    if auth.is_party() {
        return Err(ApiError::forbidden(
            "without an administrator pages of other origins may not do this; set COUCHDB_USER and COUCHDB_PASSWORD",
        ));
    }
    let cors = &auth.settings().cors;
    if cors.trusts_every_page() && !cors.names(origin) {
        return Err(ApiError::forbidden(
            "pages of other origins may not do this unless cors/origins names their origin; * does not name it",
        ));
    }
    Ok(())
}
