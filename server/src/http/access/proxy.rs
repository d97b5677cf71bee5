//! Proxy authentication, if the configuration switches it on: a proxy before the server names the client in headers, and
//! signs its name with the secret that both know.
//!
//! ```text
//!  X-Auth-CouchDB-UserName: anna
//!  X-Auth-CouchDB-Roles: staff,lead
//!  X-Auth-CouchDB-Token: hexadecimal HMAC of the name, with chttpd_auth/secret
//! ```
//!
//! A name with a colon is not believed: the signature of a session is an HMAC of `NAME:TIME`, which may have the same key,
//! so its holder could otherwise present it as the token of a name of this form. Users and administrators have no colons in
//! their names.
//!
//! Without `chttpd_auth/secret` no such header is believed. With `proxy_use_secret = false` all are believed, from everybody
//! who can reach the server, as in CouchDB.
//!
//! Source: CouchDB's `couch_httpd_auth.erl`.

use hmac::{Hmac, KeyInit, Mac};
use hyper::header::HeaderMap;
use sha1::Sha1;
use sha2::Sha256;

use crate::http::access::passwords::unhex;
use crate::http::access::principal::{Principal, Proof};
use crate::http::access::rows::Rows;

/// The headers, and what is to be believed.
#[derive(Debug)]
pub(crate) struct Proxy {
    name: String,
    roles: String,
    token: String,
    uses_secret: bool,
}

impl Proxy {
    /// `None` unless `chttpd/authentication_handlers` names the handler.
    pub(crate) fn read(rows: &Rows) -> Option<Proxy> {
        let handlers = rows.get("chttpd", "authentication_handlers")?;
        if !handlers.contains("proxy_authentication_handler") {
            return None;
        }
        let header = |name: &str, usual: &str| rows.get("chttpd_auth", name).unwrap_or(usual).to_owned();
        Some(Proxy {
            name: header("x_auth_username", "X-Auth-CouchDB-UserName"),
            roles: header("x_auth_roles", "X-Auth-CouchDB-Roles"),
            token: header("x_auth_token", "X-Auth-CouchDB-Token"),
            uses_secret: rows.get("chttpd_auth", "proxy_use_secret") != Some("false"),
        })
    }

    /// The client that the proxy names; `None` if it names none, or the signature is wrong.
    pub(crate) fn principal(&self, headers: &HeaderMap, rows: &Rows) -> Option<Principal> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let name = text(&self.name).filter(|name| !name.is_empty() && !name.contains(':'))?;
        if self.uses_secret {
            let secret = rows.get("chttpd_auth", "secret").filter(|secret| !secret.is_empty())?;
            let token = unhex(text(&self.token)?)?;
            if !is_signed::<Hmac<Sha256>>(secret, name, &token) && !is_signed::<Hmac<Sha1>>(secret, name, &token) {
                return None;
            }
        }
        let roles = text(&self.roles).unwrap_or_default().split(',').map(str::trim).filter(|role| !role.is_empty());
        let roles = roles.map(str::to_owned).collect();
        Some(Principal { name: Some(name.to_owned()), roles, proof: Proof::Proxy })
    }
}

fn is_signed<M: Mac + KeyInit>(secret: &str, name: &str, token: &[u8]) -> bool {
    let mac = <M as KeyInit>::new_from_slice(secret.as_bytes()).ok();
    mac.is_some_and(|mac| mac.chain_update(name).verify_slice(token).is_ok())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::http::access::rows::rows_of;
    use crate::http::access::session;
    use crate::http::access::settings::Session;
    use crate::http::ids::hex;

    const ON: (&str, &str, &str) = ("chttpd", "authentication_handlers", "{chttpd_auth, proxy_authentication_handler}");

    fn named(rows: &[(&str, &str, &str)], headers: &[(&'static str, &str)]) -> Option<(String, Vec<String>)> {
        let rows = rows_of(rows);
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        Proxy::read(&rows)?.principal(&headers, &rows).map(|found| (found.name.unwrap(), found.roles))
    }

    #[test]
    fn a_signed_name_is_believed_and_no_other() {
        let token = |name: &str| {
            let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(b"geheim").unwrap();
            hex(&mac.chain_update(name).finalize().into_bytes())
        };
        // CouchDB's example of its documentation: SHA-1.
        let mac = <Hmac<Sha1> as KeyInit>::new_from_slice(b"geheim").unwrap();
        let old = hex(&mac.chain_update("anna").finalize().into_bytes());
        let secret = ("chttpd_auth", "secret", "geheim");
        let (name, roles) = (("x-auth-couchdb-username", "anna"), ("x-auth-couchdb-roles", "a, b"));
        let anna = Some(("anna".to_owned(), vec!["a".to_owned(), "b".to_owned()]));
        for token in [&token("anna"), &old] {
            let headers = [name, roles, ("x-auth-couchdb-token", token.as_str())];
            assert_eq!(named(&[ON, secret], &headers), anna);
            assert_eq!(named(&[secret], &headers), None, "off");
            assert_eq!(named(&[ON], &headers), None, "no secret");
            assert_eq!(named(&[ON, ("chttpd_auth", "secret", "")], &headers), None);
        }
        for wrong in [token("berta"), String::new(), "zz".to_owned(), token("anna")[..40].to_owned()] {
            assert_eq!(named(&[ON, secret], &[name, ("x-auth-couchdb-token", &wrong)]), None, "{wrong}");
        }
        assert_eq!(named(&[ON, secret], &[name, roles]), None);
        assert_eq!(named(&[ON, secret], &[roles, ("x-auth-couchdb-token", &token(""))]), None, "nobody is named");
        assert_eq!(named(&[ON, ("chttpd_auth", "proxy_use_secret", "false")], &[name, roles]), anna);
    }

    #[test]
    fn the_signature_of_a_session_is_no_token() {
        let settings = Session { seconds: 600, is_persistent: false, domain: None, same_site: None };
        // Without a salt, sessions are signed with the secret itself.
        let cookie = session::begin(b"geheim", "", "anna", &settings, false, 1_700_000_000).unwrap();
        let value = cookie.to_str().unwrap().split(['=', ';']).nth(1).unwrap();
        let signed = URL_SAFE_NO_PAD.decode(value).unwrap();
        let (name, signature) = ("anna:6553F100", &signed["anna:6553F100:".len()..]);
        assert!(is_signed::<Hmac<Sha256>>("geheim", name, signature));
        let headers = [
            ("x-auth-couchdb-username", name),
            ("x-auth-couchdb-roles", "_admin"),
            ("x-auth-couchdb-token", &hex(signature)),
        ];
        assert_eq!(named(&[ON, ("chttpd_auth", "secret", "geheim")], &headers), None);
    }
}
