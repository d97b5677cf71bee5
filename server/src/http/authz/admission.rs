//! Admits requests: to the database in the path, to databases that are named elsewhere, and requests of pages from
//! other origins.

use std::sync::Arc;

use hyper::Method;
use hyper::header::{HOST, ORIGIN};

use crate::http::app::stores::Documents;
use crate::http::authn::principal::Proof;
use crate::http::authz::rights::{admit_elsewhere, is_of_the_system, not_member, not_server_admin};
use crate::http::authz::rules_of;
use crate::http::authz::security::Security;
use crate::http::error::{ApiError, Result};
use crate::http::request::Request;

/// The security object of a database.
pub(crate) async fn security(request: &Request, db: &str) -> Result<Arc<Security>> {
    let securities = &request.app.securities;
    request.with_database(db, |database: Documents| async move { Ok(securities.of(&database).await?) }).await
}

/// Admits a writer of a database that a request names outside its path.
pub(crate) async fn authorize_writer(request: &Request, db: &str) -> Result<()> {
    refuse_pages(request, db)?;
    if request.principal.is_server_admin() {
        return Ok(());
    }
    if rules_of(db).is_some() {
        return Err(not_member(&request.principal));
    }
    if is_of_the_system(db) {
        // Even if the database is missing.
        return Err(not_server_admin());
    }
    let admit = |database: Documents| async move { admit_elsewhere(&request.app, &database, &request.principal).await };
    request.with_database(db, admit).await
}

/// Refuses what a page of another origin would change by credentials that a browser sends along unasked: a session's
/// cookie, or a password that somebody typed into its dialog. Such a page may send simple requests, forms for example,
/// without asking first. A page that `cors/origins` admits may ask, so it is let through.
///
/// Browsers say where a page is from, in a header that no page can set (`Sec-Fetch-Site`).
pub(crate) fn refuse_borrowed(request: &Request) -> Result<()> {
    let is_foreign = matches!(request.header("sec-fetch-site"), Some("cross-site" | "same-site"));
    let changes = !matches!(request.method, Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_foreign || !changes || request.principal.proof == Proof::Nothing {
        return Ok(());
    }
    let origin = request.header(ORIGIN).unwrap_or_default();
    if request.app.auth.settings().cors.admits(origin) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "pages of other origins may not do this with your session unless cors/origins names theirs",
    ))
}

/// Refuses requests of pages from other origins that act with the server's rights:
/// - while everyone is an administrator, since any page could make itself a permanent one;
/// - where `cors/origins=*` with `cors/credentials=true` admits every page, unless `cors/origins` also names the page's
///   origin.
///
/// Browsers send `Origin` with requests that may change something. `name` is a database's, or the first part of a path.
pub(crate) fn refuse_pages(request: &Request, name: &str) -> Result<()> {
    let is_closed =
        matches!(name, "_node" | "_cluster_setup" | "_replicate" | "_couch_layer") || rules_of(name).is_some();
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
    if auth.is_open_admin() {
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
