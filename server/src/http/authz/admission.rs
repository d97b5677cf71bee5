//! Admits requests: to the database in the path, to databases that are named elsewhere, and requests of pages from
//! other origins.

use std::sync::Arc;

use hyper::Method;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, ORIGIN};

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

/// Refuses what a page of another site would change by a proof that its user's browser sends unasked: a session's
/// cookie, a password that somebody typed into its dialog, a proxy's login, or that everyone is an administrator.
///
/// Only simple requests are looked at, forms for example. For all others (`PUT`, `DELETE`, JSON) a browser asks first,
/// so `cors` has decided already, here or at a proxy. A token does not go along unasked.
///
/// `is_login`: the request has no proof yet and would get one. A page could sign its visitor in as somebody else.
pub(crate) fn refuse_borrowed(request: &Request, is_login: bool) -> Result<()> {
    let is_simple = request.method == Method::POST && is_simple_type(request.headers.get(CONTENT_TYPE));
    let is_borrowed =
        matches!(request.principal.proof, Proof::Cookie | Proof::Basic | Proof::Proxy(_) | Proof::OpenAdmin);
    if !is_simple || !(is_login || is_borrowed) || !is_from_elsewhere(request) {
        return Ok(());
    }
    let cors = &request.app.auth.settings().cors;
    if cors.allowed.credentials && request.header(ORIGIN).is_some_and(|origin| cors.names(origin)) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "pages of other sites may not do this with your login unless cors/origins names their origin and \
         cors/credentials is true; or send JSON",
    ))
}

/// Whether a browser sends a `POST` of this type for a page of another site without asking first. What cannot be read
/// counts as such.
///
/// Source: the Fetch standard, "CORS-safelisted request-header".
fn is_simple_type(content_type: Option<&HeaderValue>) -> bool {
    let Some(content_type) = content_type.and_then(|value| value.to_str().ok()) else { return true };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_readable = essence.split_once('/').is_some_and(|(kind, name)| {
        let is_token = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
        };
        is_token(kind) && is_token(name)
    });
    !is_readable || matches!(&*essence, "text/plain" | "application/x-www-form-urlencoded" | "multipart/form-data")
}

/// Whether a browser sent the request for a page of another site. It says so in a header that no page can set
/// (`Sec-Fetch-Site`), but not to a server without TLS on another machine: there its `Origin` tells.
fn is_from_elsewhere(request: &Request) -> bool {
    match request.header("sec-fetch-site") {
        Some(site) => matches!(site, "cross-site" | "same-site"),
        None => request.headers.get(ORIGIN).is_some_and(|origin| {
            let scheme = if request.app.auth.is_secure(&request.headers) { "https://" } else { "http://" };
            let host = origin.to_str().ok().and_then(|origin| origin.strip_prefix(scheme));
            // A proxy before the server may replace the host, and say the one that it was asked by.
            let forwarded = request.app.auth.settings().forwarded.host(&request.headers);
            host.is_none() || (host != request.header(HOST) && host != forwarded)
        }),
    }
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
    if auth.is_open_admin() && !auth.shows_setup_token(&request.headers) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_a_browser_sends_without_asking_are_simple() {
        let is_simple = |text: &str| is_simple_type(Some(&HeaderValue::from_str(text).unwrap()));
        assert!(is_simple_type(None));
        for text in [
            "",
            "text/plain",
            " Text/Plain;charset=utf-8",
            "text/plain; application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "json",
            "text/",
            "text/plain,application/json",
        ] {
            assert!(is_simple(text), "{text:?}");
        }
        for text in ["application/json", "application/JSON; charset=utf-8", "multipart/related", "image/svg+xml"] {
            assert!(!is_simple(text), "{text:?}");
        }
    }
}
