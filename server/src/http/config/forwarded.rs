//! What a proxy before the server reports about the client, in headers that the configuration names.
//!
//! Clients that reach the server without the proxy can send these headers too. The first three affect only URLs in
//! answers and `Secure` cookies. The address affects lockouts, so no header is read for it unless the configuration
//! names one.
//!
//! Source: `absolute_uri` and `peer` in CouchDB's `chttpd.erl`.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderName};

use crate::http::config::rows::SettingRows;

/// The names of the headers; `None` for one that is ignored.
#[derive(Debug)]
pub(crate) struct Forwarded {
    host: Option<HeaderName>,
    scheme: Option<HeaderName>,
    is_secure: Option<HeaderName>,
    address: Option<HeaderName>,
}

fn value<'h>(headers: &'h HeaderMap, name: Option<&HeaderName>) -> Option<&'h str> {
    headers.get(name?)?.to_str().ok()
}

impl Forwarded {
    pub(crate) fn read(rows: &SettingRows) -> Forwarded {
        let header = |name: &str| rows.read("chttpd", name, |header| header.parse().ok());
        Forwarded {
            host: header("x_forwarded_host"),
            scheme: header("x_forwarded_proto"),
            is_secure: header("x_forwarded_ssl"),
            address: header("peer_header"),
        }
    }

    /// Whether this is one of the headers.
    pub(crate) fn names(&self, name: &HeaderName) -> bool {
        [&self.host, &self.scheme, &self.is_secure, &self.address].into_iter().any(|one| one.as_ref() == Some(name))
    }

    /// The host that the client sees.
    pub(crate) fn host<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        value(headers, self.host.as_ref())
    }

    /// Whether the client speaks TLS with the proxy.
    pub(crate) fn is_secure(&self, headers: &HeaderMap) -> bool {
        value(headers, self.is_secure.as_ref()) == Some("on") || value(headers, self.scheme.as_ref()) == Some("https")
    }

    /// The address of the client. If there are several, as in `X-Forwarded-For`, the proxy added the last one.
    pub(crate) fn address(&self, headers: &HeaderMap) -> Option<IpAddr> {
        value(headers, self.address.as_ref())?.rsplit(',').next()?.trim().parse().ok()
    }
}

#[cfg(test)]
#[test]
fn a_proxy_is_trusted_by_the_headers_that_are_configured() {
    use crate::http::config::rows::rows_of;

    let headers: HeaderMap = [
        ("x-forwarded-host", "couch.example"),
        ("x-forwarded-ssl", "on"),
        ("x-host", "other.example"),
        ("x-proto", "https"),
        ("x-forwarded-for", "192.0.2.7, 192.0.2.9"),
    ]
    .into_iter()
    .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
    .collect();
    let usual = Forwarded::read(&rows_of(&[]));
    assert_eq!((usual.host(&headers), usual.is_secure(&headers)), (Some("couch.example"), true));
    assert_eq!(usual.address(&headers), None, "a client could name any");
    let named = [
        ("chttpd", "x_forwarded_host", "X-Host"),
        ("chttpd", "x_forwarded_ssl", "X-None"),
        ("chttpd", "x_forwarded_proto", "X-Proto"),
        ("chttpd", "peer_header", "X-Forwarded-For"),
    ];
    let own = Forwarded::read(&rows_of(&named));
    assert_eq!((own.host(&headers), own.is_secure(&headers)), (Some("other.example"), true));
    assert_eq!(own.address(&headers), Some("192.0.2.9".parse().unwrap()));
    let insecure = Forwarded::read(&rows_of(&[named[1]]));
    assert!(!insecure.is_secure(&headers));
}
