//! Proxy authentication, if the configuration enables it: a proxy before the server names the client in headers, and
//! signs its name with the secret that both know.
//!
//! ```text
//!  X-Auth-CouchDB-UserName: anna
//!  X-Auth-CouchDB-Roles: staff,lead
//!  X-Auth-CouchDB-Token: hexadecimal HMAC of the name, with chttpd_auth/secret, by one of chttpd_auth/hash_algorithms
//! ```
//!
//! A name with a colon is refused: the signature of a session is an HMAC of `NAME:TIME`, possibly with the same key, so
//! its holder could otherwise present it as the token of such a name. Users and administrators have no colons in their
//! names.
//!
//! Without `chttpd_auth/secret` such headers are ignored. With `proxy_use_secret = false` all are trusted, from
//! everybody who can reach the server, as in CouchDB.
//!
//! Source: CouchDB's `couch_httpd_auth.erl`.

use hyper::header::HeaderMap;

use crate::http::authn::passwords::{Prf, same, unhex};
use crate::http::authn::principal::{Principal, Proof, Voucher};
use crate::http::config::rows::SettingRows;
use crate::http::wire::headers::text;

/// The names of the headers, and which of them are trusted.
#[derive(Debug)]
pub(crate) struct Proxy {
    name: String,
    roles: String,
    token: String,
    uses_secret: bool,
    algorithms: Vec<Prf>,
}

impl Proxy {
    /// `None` unless `chttpd/authentication_handlers` names the handler of proxies.
    pub(crate) fn read(rows: &SettingRows) -> Option<Proxy> {
        let handlers = rows.get("chttpd", "authentication_handlers")?;
        if !handlers.contains("proxy_authentication_handler") {
            return None;
        }
        let header = |name: &str| rows.get("chttpd_auth", name).unwrap_or_default().to_owned();
        Some(Proxy {
            name: header("x_auth_username"),
            roles: header("x_auth_roles"),
            token: header("x_auth_token"),
            uses_secret: rows.get("chttpd_auth", "proxy_use_secret") != Some("false"),
            algorithms: Prf::of_signatures(rows),
        })
    }

    /// The voucher for all names. `secret` is the store's.
    pub(crate) fn voucher(&self, rows: &SettingRows, secret: &[u8]) -> Voucher {
        let key = rows.get("chttpd_auth", "secret").filter(|_| self.uses_secret);
        Voucher::new(secret, key.unwrap_or_default(), None)
    }

    /// The client that the proxy names; `None` if the name is missing or the signature is wrong. `secret` is the
    /// store's.
    pub(crate) fn principal(&self, headers: &HeaderMap, rows: &SettingRows, secret: &[u8]) -> Option<Principal> {
        let text = |name: &str| headers.get(name).map(text);
        let name = text(&self.name).filter(|name| !name.is_empty() && !name.contains(':'))?;
        if self.uses_secret {
            let key = rows.get("chttpd_auth", "secret").filter(|key| !key.is_empty())?;
            let token = unhex(&text(&self.token)?)?;
            if !self.algorithms.iter().any(|algorithm| same(&algorithm.sign(key.as_bytes(), &name), &token)) {
                return None;
            }
        }
        let roles = text(&self.roles).unwrap_or_default();
        let roles = roles.split(',').map(str::trim).filter(|role| !role.is_empty());
        let roles = roles.map(str::to_owned).collect();
        Some(Principal { name: Some(name.into_owned()), roles, proof: Proof::Proxy(self.voucher(rows, secret)) })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::http::authn::session;
    use crate::http::config::rows::rows_of;
    use crate::http::config::settings::{Flags, Settings};
    use crate::http::config::unkept::Unkept;
    use model::hex;

    const ON: (&str, &str, &str) = ("chttpd", "authentication_handlers", "{chttpd_auth, proxy_authentication_handler}");

    fn named(rows: &[(&str, &str, &str)], headers: &[(&'static str, &str)]) -> Option<(String, Vec<String>)> {
        let rows = rows_of(rows);
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        Proxy::read(&rows)?.principal(&headers, &rows, b"store").map(|found| (found.name.unwrap(), found.roles))
    }

    #[test]
    fn a_signed_name_is_trusted_and_no_other() {
        let by = |algorithm: Prf, name: &str| hex(&algorithm.sign(b"geheim", name));
        let token = |name: &str| by(Prf::Sha256, name);
        // CouchDB's example of its documentation: SHA-1.
        let old = by(Prf::Sha1, "anna");
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
        for (algorithms, is_trusted) in [("sha256", false), ("sha512, sha", true), ("sha512", false), ("x", false)] {
            let rows = [ON, secret, ("chttpd_auth", "hash_algorithms", algorithms)];
            let found = named(&rows, &[name, roles, ("x-auth-couchdb-token", &old)]);
            assert_eq!(found.is_some(), is_trusted, "{algorithms}");
        }
        let unlisted = by(Prf::Sha512, "anna");
        for wrong in [token("berta"), unlisted, String::new(), "zz".to_owned(), token("anna")[..40].to_owned()] {
            assert_eq!(named(&[ON, secret], &[name, ("x-auth-couchdb-token", &wrong)]), None, "{wrong}");
        }
        assert_eq!(named(&[ON, secret], &[name, roles]), None);
        assert_eq!(named(&[ON, secret], &[roles, ("x-auth-couchdb-token", &token(""))]), None, "nobody is named");
        assert_eq!(named(&[ON, ("chttpd_auth", "proxy_use_secret", "false")], &[name, roles]), anna);
    }

    #[test]
    fn the_signature_of_a_session_is_no_token() {
        let settings = Settings::new(Vec::new(), &Unkept::default(), &Flags::default()).session;
        // Without a salt, sessions are signed with the secret itself.
        let cookie = session::begin(b"geheim", "", "anna", &settings, false, 1_700_000_000).unwrap();
        let value = cookie.to_str().unwrap().split(['=', ';']).nth(1).unwrap();
        let signed = URL_SAFE_NO_PAD.decode(value).unwrap();
        let (name, signature) = ("anna:6553F100", &signed["anna:6553F100:".len()..]);
        assert_eq!(Prf::Sha256.sign(b"geheim", name), signature);
        let headers = [
            ("x-auth-couchdb-username", name),
            ("x-auth-couchdb-roles", "_admin"),
            ("x-auth-couchdb-token", &hex(signature)),
        ];
        assert_eq!(named(&[ON, ("chttpd_auth", "secret", "geheim")], &headers), None);
    }
}
