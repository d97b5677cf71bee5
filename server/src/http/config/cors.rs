//! Cross-origin requests (CORS), off unless origins are named.
//!
//! Source: CouchDB's `chttpd_cors.erl`. A preflight that is not allowed is answered like any other `OPTIONS` request.
//! Like any other answer, it names the origin if the origin is allowed.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use crate::http::config::rows::{SettingRows, truth};
use crate::http::wire::response::{self, Response};

const ALWAYS_EXPOSED: &str = "content-type, cache-control";

/// The allowed origins.
#[derive(Clone, Debug, Default)]
pub struct CorsOptions {
    /// Origins (`https://example.com`), or `*` for all. Empty: no cross-origin requests.
    pub origins: Vec<String>,
    /// Whether browsers may send cookies and passwords, from every page if `origins` has `*`.
    pub credentials: bool,
}

/// Rights of pages from other origins.
#[derive(Debug)]
pub(crate) struct Cors {
    pub(crate) allowed: CorsOptions,
    /// The methods and headers that a preflight may name.
    methods: Vec<String>,
    headers: Vec<String>,
    /// The same methods, as a header of answers to preflights.
    told_methods: HeaderValue,
    max_age: HeaderValue,
    exposed: HeaderValue,
}

impl Cors {
    /// Reads the section `cors`, which applies if `chttpd/enable_cors` or `httpd/enable_cors` is `true`.
    pub(super) fn read(rows: &SettingRows) -> Cors {
        let set = |section: &str| rows.read_set(section, "enable_cors", truth);
        let [own, earlier] = ["chttpd", "httpd"].map(set);
        let is_enabled = own.or(earlier).unwrap_or_else(|| rows.flag("chttpd", "enable_cors"));
        let allowed = CorsOptions {
            origins: list(rows.get("cors", "origins").unwrap_or_default()),
            credentials: rows.flag("cors", "credentials"),
        };
        let allowed = if is_enabled { allowed } else { CorsOptions::default() };
        // A value that a header cannot contain counts as the default.
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let names = |name: &str| {
            let names = |text: &str| value(text).map(|_| list(text));
            rows.read("cors", name, names).unwrap_or_default()
        };
        let told = |names: &[String]| value(&names.join(", ")).unwrap_or(HeaderValue::from_static(""));
        let methods = names("methods");
        let exposed = names("exposed_headers").into_iter().map(|name| name.to_ascii_lowercase());
        let exposed: Vec<String> = list(ALWAYS_EXPOSED).into_iter().chain(exposed).collect();
        Cors {
            allowed,
            told_methods: told(&methods),
            methods,
            headers: names("headers"),
            max_age: rows.number("cors", "max_age").unwrap_or_default().into(),
            exposed: told(&exposed),
        }
    }

    /// Whether the configuration lists this origin. As in CouchDB, the comparison is case-sensitive; browsers send
    /// origins in lower case.
    pub(crate) fn names(&self, origin: &str) -> bool {
        self.allowed.origins.iter().any(|allowed| allowed == origin)
    }

    /// Whether pages of every origin may send passwords. `add-cors-to-couchdb` and similar tools set this.
    pub(crate) fn trusts_every_page(&self) -> bool {
        self.allowed.credentials && self.names("*")
    }

    /// Whether pages of this origin may use the server.
    pub(crate) fn admits(&self, origin: &str) -> bool {
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
        if !self.admits(origin.to_str().ok()?) || !self.methods.iter().any(|method| method == asked) {
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
        // As in CouchDB, it is sent even if no headers are allowed.
        allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.cloned().unwrap_or(HeaderValue::from_static("")));
        Some(response)
    }

    /// Lets a page of an allowed origin see the answer. The answer to a preflight has its headers already.
    pub(crate) fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.allowed.origins.is_empty() || headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        let Some(origin) = origin.filter(|origin| origin.to_str().is_ok_and(|origin| self.admits(origin))) else {
            return;
        };
        self.add_origin(origin, headers);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}
