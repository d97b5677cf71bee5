//! Cookies of sessions: `AuthSession`, as CouchDB makes them.
//!
//! ```text
//!  base64url( NAME : TIME : HMAC(secret ‖ salt, NAME : TIME) )      TIME in hexadecimal seconds
//! ```
//!
//! The HMAC uses SHA-256, unless `chttpd_auth/hash_algorithms` starts with another function. Signatures by any listed
//! function are accepted, so sessions survive a change of the first one.
//!
//! The store keeps the secret, so a session survives a restart and is valid at all servers of the store. The salt is
//! that of the user's stored password, so a new password ends all sessions.
//!
//! Source: CouchDB's `couch_httpd_auth.erl`.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{NO_PAD, URL_SAFE_NO_PAD};
use base64::{Engine as _, alphabet};
use hyper::header::{COOKIE, HeaderMap, HeaderValue};

use crate::http::authn::passwords::same;
use crate::http::config::settings::Session;
use crate::http::error::{ApiError, Result};
use crate::http::wire::headers::text;

const COOKIE_NAME: &str = "AuthSession";

/// Base64 whose last letter may have unused bits that are not zero, as in a cookie that was cut.
const CUT_SHORT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// The parts of a cookie, not verified yet. Its `Debug` shows the name only.
pub(crate) struct Claim {
    pub(crate) name: String,
    time: String,
    signature: Vec<u8>,
}

/// A valid session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Valid {
    /// Whether less than nine tenths of its time are left, so that the session must be renewed.
    pub(crate) is_to_be_renewed: bool,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Claim {
    /// The cookie of a request; `None` without one.
    ///
    /// # Errors
    /// 400 for a cookie that no server made.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Claim>> {
        let Some(cookie) = cookie_value(headers).filter(|cookie| !cookie.is_empty()) else { return Ok(None) };
        let malformed = || ApiError::bad_request("Malformed AuthSession cookie. Please clear your cookies.");
        let decoded = CUT_SHORT.decode(cookie.trim_end_matches('=')).map_err(|_| malformed())?;
        // The signature is binary and may contain colons.
        let mut parts = decoded.splitn(3, |byte| *byte == b':');
        let (Some(name), Some(time), Some(signature)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(malformed());
        };
        // It has the parts of a cookie, so it is treated like a forged one.
        let (Ok(name), Ok(time)) = (String::from_utf8(name.to_vec()), String::from_utf8(time.to_vec())) else {
            return Ok(None);
        };
        Ok(Some(Claim { name, time, signature: signature.to_vec() }))
    }

    /// The session, if the cookie is this user's and valid now; `None` if it is forged or expired, or made for another
    /// password.
    pub(crate) fn verify(&self, secret: &[u8], salt: &str, settings: &Session, now: u64) -> Option<Valid> {
        let key = [secret, salt.as_bytes()].concat();
        let signed = format!("{}:{}", self.name, self.time);
        if !settings.algorithms.iter().any(|algorithm| same(&algorithm.sign(&key, &signed), &self.signature)) {
            return None;
        }
        let left = self.left(settings, now)?;
        Some(Valid { is_to_be_renewed: left.saturating_mul(10) < settings.seconds.saturating_mul(9) })
    }

    /// Whether it has expired, or its time is invalid. The user's document is not needed for this.
    pub(crate) fn is_over(&self, settings: &Session, now: u64) -> bool {
        self.left(settings, now).is_none()
    }

    /// The seconds until its end.
    fn left(&self, settings: &Session, now: u64) -> Option<u64> {
        let begun = u64::from_str_radix(&self.time, 16).ok()?;
        begun.saturating_add(settings.seconds).checked_sub(now).filter(|left| *left > 0)
    }
}

/// A cookie that starts a session now. `is_secure`: the client uses TLS.
pub(crate) fn begin(
    secret: &[u8],
    salt: &str,
    name: &str,
    settings: &Session,
    is_secure: bool,
    now: u64,
) -> Option<HeaderValue> {
    let (key, signed) = ([secret, salt.as_bytes()].concat(), format!("{name}:{now:X}"));
    let signature = settings.algorithms.first()?.sign(&key, &signed);
    let value = URL_SAFE_NO_PAD.encode([signed.as_bytes(), b":", &signature].concat());
    let mut cookie = HeaderValue::try_from(attributes(&value, settings, is_secure, now)).ok()?;
    cookie.set_sensitive(true);
    Some(cookie)
}

/// A cookie that ends a session at the client. As in CouchDB, it is empty and expires like any other.
pub(crate) fn end(settings: &Session, is_secure: bool, now: u64) -> Option<HeaderValue> {
    HeaderValue::try_from(attributes("", settings, is_secure, now)).ok()
}

fn attributes(value: &str, settings: &Session, is_secure: bool, now: u64) -> String {
    let mut cookie = format!("{COOKIE_NAME}={value}; Version=1");
    if settings.is_persistent {
        // CouchDB states the end of a session in both ways. nano reads only this one.
        let end = UNIX_EPOCH + Duration::from_secs(now.saturating_add(settings.seconds));
        cookie.push_str(&format!("; Expires={}; Max-Age={}", httpdate::fmt_http_date(end), settings.seconds));
    }
    cookie.push_str("; Path=/");
    if let Some(domain) = &settings.domain {
        cookie.push_str(&format!("; Domain={domain}"));
    }
    if is_secure {
        cookie.push_str("; Secure");
    }
    cookie.push_str("; HttpOnly");
    if let Some(same_site) = settings.same_site {
        cookie.push_str(&format!("; SameSite={same_site}"));
    }
    cookie
}

pub(crate) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn cookie_value(headers: &HeaderMap) -> Option<String> {
    let of_session = |cookies: Cow<'_, str>| {
        let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value.trim_matches('"').to_owned())
    };
    // Other pages of the host set cookies too, with any letters in them.
    headers.get_all(COOKIE).iter().map(text).find_map(of_session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::authn::passwords::Prf;

    const SECRET: &[u8] = b"92de07df7e7a3fe14808cef90a7cc0d91";

    fn settings() -> Session {
        Session { seconds: 600, is_persistent: true, domain: None, same_site: None, algorithms: vec![Prf::Sha256] }
    }

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(value).unwrap())])
    }

    fn claim(cookie: &HeaderValue) -> Claim {
        Claim::read(&headers(cookie.to_str().unwrap().split(';').next().unwrap())).unwrap().unwrap()
    }

    #[test]
    fn a_session_is_its_own_proof() {
        let cookie = begin(SECRET, "salt", "anna", &settings(), false, 1_700_000_000 - 600).unwrap();
        let ends = "; Version=1; Expires=Tue, 14 Nov 2023 22:13:20 GMT; Max-Age=600; Path=/; HttpOnly";
        assert!(cookie.to_str().unwrap().ends_with(ends));
        let claim = claim(&cookie);
        assert_eq!(claim.name, "anna");
        let at = |now: u64| claim.verify(SECRET, "salt", &settings(), now).map(|valid| valid.is_to_be_renewed);
        let begun = 1_700_000_000 - 600;
        assert_eq!((at(begun), at(begun + 60), at(begun + 61)), (Some(false), Some(false), Some(true)));
        assert_eq!((at(begun + 599), at(begun + 600), at(u64::MAX)), (Some(true), None, None));
        assert_eq!(claim.verify(SECRET, "new salt", &settings(), begun), None);
        assert_eq!(claim.verify(b"other", "salt", &settings(), begun), None);
        let is_over = |now: u64| claim.is_over(&settings(), now);
        assert_eq!((is_over(begun), is_over(begun + 599), is_over(begun + 600)), (false, false, true));
        assert_eq!(
            (format!("{cookie:?}"), format!("{claim:?}")),
            ("Sensitive".into(), "Claim { name: \"anna\", .. }".into())
        );
    }

    #[test]
    fn listed_algorithms_are_accepted_and_the_first_one_signs() {
        let by = |algorithms: &[Prf]| Session { algorithms: algorithms.to_vec(), ..settings() };
        let begun = |algorithms: &[Prf]| claim(&begin(SECRET, "salt", "anna", &by(algorithms), false, 1000).unwrap());
        let is_valid =
            |claim: &Claim, algorithms: &[Prf]| claim.verify(SECRET, "salt", &by(algorithms), 1001).is_some();
        let (new, old) = (begun(&[Prf::Sha512, Prf::Sha1]), begun(&[Prf::Sha1]));
        assert_eq!((new.signature.len(), old.signature.len()), (64, 20));
        assert!(is_valid(&new, &[Prf::Sha256, Prf::Sha512]) && is_valid(&old, &[Prf::Sha512, Prf::Sha1]));
        assert!(!is_valid(&new, &[Prf::Sha256, Prf::Sha1]) && !is_valid(&old, &[Prf::Sha256]));
    }

    #[test]
    fn every_changed_byte_ends_it() {
        let cookie = begin(SECRET, "salt", "anna", &settings(), false, 1000).unwrap();
        let cookie = cookie.to_str().unwrap().split(';').next().unwrap().strip_prefix("AuthSession=").unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(cookie).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let sent = headers(&format!("AuthSession={}", URL_SAFE_NO_PAD.encode(&changed)));
            if let Ok(Some(claim)) = Claim::read(&sent) {
                assert_eq!(claim.verify(SECRET, "salt", &settings(), 1001), None, "byte {at}");
            }
            let cut = headers(&format!("AuthSession={}", URL_SAFE_NO_PAD.encode(&bytes[..at])));
            if let Ok(Some(claim)) = Claim::read(&cut) {
                assert_eq!(claim.verify(SECRET, "salt", &settings(), 1001), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn what_no_server_made_is_malformed() {
        // "_zoxOgE" has a name that is not UTF-8. The other one ends with unused bits that are not zero.
        assert!(Claim::read(&headers("AuthSession=_zoxOgE")).unwrap().is_none());
        assert_eq!(Claim::read(&headers("AuthSession=YToxOmJ=")).unwrap().unwrap().name, "a");
        for malformed in ["!!", "YQ", "AAAA", "YTpi"] {
            let refused = Claim::read(&headers(&format!("a=b; AuthSession={malformed}"))).unwrap_err();
            assert_eq!(refused.status(), 400, "{malformed}");
        }
        for none in ["a=b", "AuthSession=", "AuthSession", "BAuthSession=!!"] {
            assert!(Claim::read(&headers(none)).unwrap().is_none());
        }
    }

    #[test]
    fn attributes_follow_the_configuration() {
        let domain = Some("example.com".to_owned());
        let settings = Session { domain, seconds: 60, is_persistent: false, same_site: Some("Lax"), ..settings() };
        let cookie = begin(SECRET, "", "anna", &settings, true, 0).unwrap();
        let cookie = cookie.to_str().unwrap();
        assert!(
            cookie.ends_with("; Version=1; Path=/; Domain=example.com; Secure; HttpOnly; SameSite=Lax"),
            "{cookie}"
        );
        let end = end(&Session { is_persistent: true, ..settings }, false, 0).unwrap();
        let expected =
            "AuthSession=; Version=1; Expires=Thu, 01 Jan 1970 00:01:00 GMT; Max-Age=60; Path=/; Domain=example.com";
        assert!(end.to_str().unwrap().starts_with(expected));
    }
}
