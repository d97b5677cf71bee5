//! Cross-origin requests (CORS), off unless origins are named.
//!
//! Source: CouchDB's `chttpd_cors.erl`. A preflight that is not allowed is answered like any other `OPTIONS` request,
//! without CORS headers.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use crate::http::wire::response::{self, Response};

const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, COPY, PATCH, OPTIONS";
const HEADERS: &[&str] = &[
    "accept",
    "accept-language",
    "authorization",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "destination",
    "expires",
    "if-match",
    "if-none-match",
    "last-event-id",
    "last-modified",
    "origin",
    "pragma",
    "x-couch-full-commit",
    "x-couch-id",
    "x-couch-persist",
    "x-couch-request-id",
    "x-couchdb-www-authenticate",
    "x-http-method-override",
    "x-requested-with",
];
const EXPOSED: &str = "content-type, cache-control, accept-ranges, etag, location, server, x-couch-request-id, \
    x-couch-update-newrev, x-couchdb-body-time";

/// The allowed origins.
#[derive(Clone, Debug, Default)]
pub struct CorsOptions {
    /// Origins (`https://example.com`), or `*` for all. Empty: no cross-origin requests.
    pub origins: Vec<String>,
    /// Whether browsers may send cookies and passwords. Has no effect with `*`.
    pub credentials: bool,
}

impl CorsOptions {
    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
    }

    fn add_origin(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.append(VARY, HeaderValue::from_static("Origin"));
        // Credentials for every origin would give any page the administrator's session.
        if self.credentials && !self.origins.iter().any(|allowed| allowed == "*") {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }

    /// The answer to an allowed preflight; `None` for every other request.
    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        if self.origins.is_empty() || *method != Method::OPTIONS {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?.to_str().ok()?;
        if !self.allows(origin.to_str().ok()?) || !METHODS.split(", ").any(|method| method == asked) {
            return None;
        }
        let mut response = response::empty(StatusCode::NO_CONTENT);
        let allowed = response.headers_mut();
        self.add_origin(origin, allowed);
        allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        allowed.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            let known = |name: &str| name.is_empty() || HEADERS.iter().any(|known| known.eq_ignore_ascii_case(name));
            if !wanted.to_str().ok()?.split(',').all(|name| known(name.trim())) {
                return None;
            }
            allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        Some(response)
    }

    /// Lets a page of an allowed origin see the answer.
    pub(crate) fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        let Some(origin) = origin.filter(|origin| origin.to_str().is_ok_and(|origin| self.allows(origin))) else {
            return;
        };
        self.add_origin(origin, headers);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}
