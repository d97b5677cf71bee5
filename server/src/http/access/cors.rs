//! Cross-origin requests (CORS), off unless origins are named.
//!
//! Source: CouchDB's `chttpd_cors.erl`. A preflight that is not allowed is answered like any other `OPTIONS` request. As any
//! other answer, that one names the origin where it is allowed.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use crate::http::access::rows::Rows;
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
    "x-couchdb-vhost-path",
    "x-couchdb-www-authenticate",
    "x-http-method-override",
    "x-requested-with",
];
const ALWAYS_EXPOSED: &str = "content-type, cache-control";
const EXPOSED: &str =
    "accept-ranges, etag, location, server, x-couch-request-id, x-couch-update-newrev, x-couchdb-body-time";
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The allowed origins.
#[derive(Clone, Debug, Default)]
pub struct CorsOptions {
    /// Origins (`https://example.com`), or `*` for all. Empty: no cross-origin requests.
    pub origins: Vec<String>,
    /// Whether browsers may send cookies and passwords, from every page if `origins` has `*`.
    pub credentials: bool,
}

/// What pages of other origins may do.
#[derive(Debug)]
pub(crate) struct Cors {
    pub(crate) allowed: CorsOptions,
    /// The methods and headers that a preflight may name.
    methods: Vec<String>,
    headers: Vec<String>,
    /// The same methods, as preflights are told.
    told_methods: HeaderValue,
    max_age: HeaderValue,
    exposed: HeaderValue,
}

impl Cors {
    /// Reads the section `cors`. `flags` count where it does not say which origins there are.
    pub(super) fn read(rows: &Rows, flags: &CorsOptions) -> Cors {
        let is_enabled = rows.flag("chttpd", "enable_cors").or_else(|| rows.flag("httpd", "enable_cors"));
        let allowed = match is_enabled {
            Some(false) => CorsOptions::default(),
            Some(true) => CorsOptions {
                origins: rows.get("cors", "origins").map_or_else(|| flags.origins.clone(), list),
                credentials: rows.flag("cors", "credentials").unwrap_or(flags.credentials),
            },
            None => flags.clone(),
        };
        // What no header can say is as if it were not set.
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let configured = |name: &str| rows.get("cors", name).filter(|text| value(text).is_some());
        let methods = list(configured("methods").unwrap_or(METHODS));
        let exposed = list(configured("exposed_headers").unwrap_or(EXPOSED)).join(", ").to_ascii_lowercase();
        Cors {
            allowed,
            told_methods: value(&methods.join(", ")).unwrap_or(HeaderValue::from_static(METHODS)),
            methods,
            headers: match configured("headers") {
                Some(names) => list(names),
                None => HEADERS.iter().map(|&name| name.to_owned()).collect(),
            },
            max_age: configured("max_age").and_then(value).unwrap_or(MAX_AGE),
            exposed: value(format!("{ALWAYS_EXPOSED}, {exposed}").trim_end_matches(", "))
                .unwrap_or(HeaderValue::from_static(ALWAYS_EXPOSED)),
        }
    }

    /// Whether the configuration lists this origin. As in CouchDB, and as browsers send them, origins are compared with case.
    pub(crate) fn names(&self, origin: &str) -> bool {
        self.allowed.origins.iter().any(|allowed| allowed == origin)
    }

    /// Whether pages of every origin may send passwords. `add-cors-to-couchdb` and similar tools set this.
    pub(crate) fn trusts_every_page(&self) -> bool {
        self.allowed.credentials && self.names("*")
    }

    fn allows(&self, origin: &str) -> bool {
        self.names("*") || self.names(origin)
    }

    fn add_origin(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.append(VARY, HeaderValue::from_static("Origin"));
        if self.allowed.credentials && origin != "*" {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }

    /// The answer to an allowed preflight; `None` for every other request.
    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        if self.allowed.origins.is_empty() || *method != Method::OPTIONS {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?.to_str().ok()?;
        if !self.allows(origin.to_str().ok()?) || !self.methods.iter().any(|method| method == asked) {
            return None;
        }
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let is_known =
            |name: &str| name.is_empty() || self.headers.iter().any(|known| known.eq_ignore_ascii_case(name));
        if let Some(wanted) = wanted
            && !wanted.to_str().ok()?.split(',').all(|name| is_known(name.trim()))
        {
            return None;
        }
        let mut response = response::empty(StatusCode::NO_CONTENT);
        let allowed = response.headers_mut();
        self.add_origin(origin, allowed);
        allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, self.told_methods.clone());
        allowed.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        // As in CouchDB it is there without headers too.
        allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.cloned().unwrap_or(HeaderValue::from_static("")));
        Some(response)
    }

    /// Lets a page of an allowed origin see the answer. That to a preflight has its headers already.
    pub(crate) fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.allowed.origins.is_empty() || headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        let Some(origin) = origin.filter(|origin| origin.to_str().is_ok_and(|origin| self.allows(origin))) else {
            return;
        };
        self.add_origin(origin, headers);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
