//! The token that names a server's first administrator.
//!
//! A server without an administrator takes everybody on its machine for one. Behind a proxy, or in a container, everybody
//! comes from its machine. So what would outlast that state needs more: whoever names the first administrator, or
//! changes a setting, shows the token that the server printed when it started.
//!
//! ```text
//!   who asks, while there is no administrator        documents   settings, the first administrator
//!   this machine                                     yes         no
//!   a proxy that says for whom it asks               no          no
//!   whoever shows the token                          yes         yes
//! ```
//!
//! Invariants:
//! * The token is new at each start and in this process only. It is printed, never logged, and in no answer.
//! * It ends with the first administrator. Of two clients who show it at the same time, one names an administrator.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hyper::header::{HOST, HeaderMap, HeaderValue};

use crate::http::authn::passwords::same;

/// The header with the token. A page of another site cannot send it without asking first.
pub(crate) const HEADER: &str = "x-couch-layer-setup-token";

/// Headers by which a proxy says for whom it asks.
const OF_PROXIES: [&str; 8] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// Number of random bytes of a token.
const BYTES: usize = 16;

/// A token. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SetupToken(String);

impl SetupToken {
    /// A new token: 128 random bits in hexadecimal.
    ///
    /// # Errors
    /// That of the system's random number generator.
    pub fn random() -> Result<SetupToken, getrandom::Error> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(SetupToken(model::hex(&bytes)))
    }

    /// The token, to be shown once to whoever started the server.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a request shows this token. The comparison takes the same time for each wrong one.
    pub(crate) fn is(&self, shown: &HeaderValue) -> bool {
        same(self.0.as_bytes(), shown.as_bytes())
    }
}

impl fmt::Debug for SetupToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SetupToken")
    }
}

/// Whether a request came through a proxy that says so. A proxy that adds no header cannot be told from this machine.
pub(crate) fn is_proxied(headers: &HeaderMap) -> bool {
    OF_PROXIES.iter().any(|name| headers.contains_key(*name))
}

/// Whether a request asks a server of this machine by itself: no proxy passed it on, and its host is this machine.
/// (A web page could point a host name of its own at loopback, and ask as everyone may here.)
pub(crate) fn is_of_this_machine(headers: &HeaderMap) -> bool {
    is_local_host(headers) && !is_proxied(headers)
}

/// Whether a request's host is an address, this machine, or missing: pages of other hosts never send that.
pub(crate) fn is_local_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let host = host.to_str().unwrap_or("");
    // Nearly all hosts are an address with a port.
    host.parse::<SocketAddr>().is_ok() || is_local_name(host)
}

pub(crate) fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty()
        || name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_all_of_its_letters_and_shown_by_no_debug() {
        let token = SetupToken::random().unwrap();
        assert_eq!(token.as_str().len(), 2 * BYTES);
        assert_ne!(token, SetupToken::random().unwrap());
        let is = |text: &str| token.is(&HeaderValue::from_str(text).unwrap());
        assert!(is(token.as_str()));
        let shorter = &token.as_str()[1..];
        for wrong in ["", shorter, &token.as_str().to_uppercase().replace(char::is_numeric, "x"), &format!("{token:?}")]
        {
            assert!(!is(wrong), "{wrong}");
        }
        assert!(!format!("{token:?}").contains(token.as_str()));
    }
}
