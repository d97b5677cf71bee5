//! Authentication and authorisation of a request.
//!
//! There is one administrator, or none. Without one every request is the administrator's ("admin party"), so such
//! a server listens on loopback only. With one the server behaves like CouchDB 3 with an administrator and no
//! users: databases are closed to everyone else until their `_security` opens them.
//!
//! Cookies are CouchDB's: base64url of `name:time:signature`, with `time` in hexadecimal seconds. The signature is
//! HMAC-SHA256 with the store's secret over name, time and a digest of the password. So a changed password ends
//! every session, and a restart ends none.
//!
//! Sources: CouchDB's `couch_httpd_auth.erl` and `chttpd_auth_request.erl`.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue};
use model::{JsonRef, JsonText};
use sha2::Sha256;

use crate::http::access::principal::{Principal, Proof};
use crate::http::error::{ApiError, Result};
use crate::http::ids::hex;

/// Duration of a session in seconds. Requests in its last nine tenths renew it.
const SESSION_SECONDS: u64 = 600;

const COOKIE_NAME: &str = "AuthSession";

/// Length of the secret for signing cookies, in bytes.
pub(crate) const SECRET_BYTES: usize = 32;

/// The administrator's name and password. Its `Debug` shows no password.
#[derive(Clone)]
pub struct Administrator {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Administrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Administrator").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The client of a request, and the cookie that renews the session when it is due.
#[derive(Debug)]
pub(crate) struct Authenticated {
    pub(crate) principal: Principal,
    pub(crate) renewal: Option<HeaderValue>,
}

/// Knows the administrator and signs sessions.
pub(crate) struct Auth {
    administrator: Option<Administrator>,
    secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("administrator", &self.administrator).finish_non_exhaustive()
    }
}

impl Auth {
    pub(crate) fn new(administrator: Option<Administrator>, secret: [u8; SECRET_BYTES]) -> Self {
        Auth { administrator, secret }
    }

    /// Whether everyone is the administrator.
    pub(crate) fn is_party(&self) -> bool {
        self.administrator.is_none()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes keys of every length; the other arm cannot come, and would sign with another key.
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).unwrap_or_else(|_| Hmac::<Sha256>::new(&Default::default()));
        for part in parts {
            // The length first, so that no two lists of parts have one signature.
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    /// The principal with this name and password.
    pub(crate) async fn login(&self, name: &str, password: &str, proof: Proof) -> Result<Principal> {
        if self.knows(name, password) {
            return Ok(Principal::administrator(name, proof));
        }
        Err(ApiError::unauthorized("Name or password is incorrect."))
    }

    /// Whether these are the administrator's name and password. Takes equally long for right, wrong and partly
    /// right passwords.
    fn knows(&self, name: &str, password: &str) -> bool {
        let Some(administrator) = &self.administrator else { return false };
        let expected = self.mac(&[b"login", administrator.name.as_bytes(), administrator.password.as_bytes()]);
        let given = self.mac(&[b"login", name.as_bytes(), password.as_bytes()]);
        given.verify(&expected.finalize().into_bytes()).is_ok()
    }

    /// The client of the request. A wrong password is refused. An expired or forged cookie proves nothing.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<Authenticated> {
        if let Some(found) = self.session(headers)? {
            return Ok(found);
        }
        let principal = match basic_credentials(headers) {
            Some((name, password)) => self.login(&name, &password, Proof::Basic).await?,
            None if self.is_party() => Principal::party(),
            None => Principal::anonymous(),
        };
        Ok(Authenticated { principal, renewal: None })
    }

    fn session(&self, headers: &HeaderMap) -> Result<Option<Authenticated>> {
        let Some(cookie) = cookie_value(headers).filter(|cookie| !cookie.is_empty()) else { return Ok(None) };
        let malformed = || ApiError::bad_request("Malformed AuthSession cookie. Please clear your cookies.");
        let decoded = URL_SAFE_NO_PAD.decode(cookie.trim_end_matches('=')).map_err(|_| malformed())?;
        let text = String::from_utf8(decoded).map_err(|_| malformed())?;
        // The name may contain colons; time and signature do not.
        let mut parts = text.rsplitn(3, ':');
        let (Some(signature), Some(time), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(malformed());
        };
        let Some(administrator) = self.administrator.as_ref().filter(|known| known.name == name) else {
            return Ok(None);
        };
        let Ok(begun) = u64::from_str_radix(time, 16) else { return Ok(None) };
        let now = seconds_now();
        let signature = unhex(signature).ok_or_else(malformed)?;
        if self.session_mac(administrator, time).verify_slice(&signature).is_err()
            || now >= begun.saturating_add(SESSION_SECONDS)
        {
            return Ok(None);
        }
        let left = (begun + SESSION_SECONDS).saturating_sub(now);
        let renewal = if left * 10 < SESSION_SECONDS * 9 { self.session_cookie(now) } else { None };
        let principal = Principal::administrator(&administrator.name, Proof::Cookie);
        Ok(Some(Authenticated { principal, renewal }))
    }

    fn session_mac(&self, administrator: &Administrator, time: &str) -> Hmac<Sha256> {
        let password = self.mac(&[b"password", administrator.password.as_bytes()]).finalize().into_bytes();
        self.mac(&[b"session", administrator.name.as_bytes(), time.as_bytes(), &password])
    }

    /// A cookie that begins a session of the administrator now.
    pub(crate) fn begin_session(&self) -> Option<HeaderValue> {
        self.session_cookie(seconds_now())
    }

    fn session_cookie(&self, now: u64) -> Option<HeaderValue> {
        let administrator = self.administrator.as_ref()?;
        let time = format!("{now:X}");
        let signature = hex(&self.session_mac(administrator, &time).finalize().into_bytes());
        let value = URL_SAFE_NO_PAD.encode(format!("{}:{time}:{signature}", administrator.name));
        // CouchDB states the end of a session in both ways, and nano reads only this one.
        let end = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now + SESSION_SECONDS));
        let lifetime = format!("Expires={end}; Max-Age={SESSION_SECONDS}");
        HeaderValue::try_from(format!("{COOKIE_NAME}={value}; Version=1; {lifetime}; Path=/; HttpOnly")).ok()
    }

    /// A cookie that ends a session at the client.
    pub(crate) fn end_session() -> HeaderValue {
        HeaderValue::from_static(
            "AuthSession=; Version=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=0; Path=/; HttpOnly",
        )
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?) as u8)).collect()
}

fn cookie_value(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value.trim_matches('"')).next()
}

/// The name and password of `Authorization: Basic`. A malformed header is ignored.
fn basic_credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let encoded = encoded.trim();
    let decoded = STANDARD.decode(encoded).or_else(|_| URL_SAFE.decode(encoded)).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (name, password) = text.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

/// Whether everyone is a member of a database with this security object: one that names neither
/// members nor their roles. The default of CouchDB 3 names `_admin`.
pub(crate) fn is_public(security: &JsonText) -> bool {
    let Some(members) = security.get("members").or_else(|| security.get("readers")) else { return true };
    let is_empty = |list: Option<JsonRef<'_>>| list.is_none_or(|list| list.elements().next().is_none());
    is_empty(members.get("names")) && is_empty(members.get("roles"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(password: &str) -> Auth {
        let administrator = Administrator { name: "ad:min".into(), password: password.into() };
        Auth::new(Some(administrator), [7; SECRET_BYTES])
    }

    fn headers(name: hyper::header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    fn cookie(value: &HeaderValue) -> HeaderMap {
        headers(COOKIE, value.to_str().unwrap().split(';').next().unwrap())
    }

    #[tokio::test]
    async fn a_session_is_its_own_proof() {
        let auth = auth("secret");
        let found = auth.authenticate(&cookie(&auth.begin_session().unwrap())).await.unwrap();
        assert_eq!(found.principal, Principal::administrator("ad:min", Proof::Cookie));
        assert!(found.renewal.is_none());
        let sent = auth.session_cookie(1_700_000_000 - SESSION_SECONDS).unwrap();
        assert!(sent.to_str().unwrap().contains("; Expires=Tue, 14 Nov 2023 22:13:20 GMT; "), "{sent:?}");
    }

    #[tokio::test]
    async fn old_forged_and_foreign_sessions_prove_nothing() {
        let auth = auth("secret");
        let who = async |headers: &HeaderMap| auth.authenticate(headers).await.map(|found| found.principal);
        let now = seconds_now();
        let at = |time| cookie(&auth.session_cookie(time).unwrap());
        assert!(auth.authenticate(&at(now - 100)).await.unwrap().renewal.is_some());
        assert_eq!(who(&at(now - SESSION_SECONDS)).await.unwrap(), Principal::anonymous());
        let other_password = super::tests::auth("changed").begin_session().unwrap();
        assert_eq!(who(&cookie(&other_password)).await.unwrap(), Principal::anonymous());
        let forged = URL_SAFE_NO_PAD.encode(format!("ad:min:{:X}:{}", now + 1000, "00".repeat(32)));
        assert_eq!(who(&headers(COOKIE, &format!("a=b; AuthSession={forged}"))).await.unwrap(), Principal::anonymous());
        for malformed in ["!!", "YQ", "AAAA"] {
            let refused = who(&headers(COOKIE, &format!("AuthSession={malformed}"))).await.unwrap_err();
            assert_eq!(refused.status(), 400);
        }
    }

    #[test]
    fn passwords_are_compared_whole() {
        let auth = auth("secret");
        assert!(auth.knows("ad:min", "secret"));
        for (name, password) in [("ad:min", "secre"), ("ad:min", "secrets"), ("admin", "secret"), ("", "")] {
            assert!(!auth.knows(name, password), "{name}:{password}");
        }
    }

    #[tokio::test]
    async fn without_an_administrator_everyone_is_one_but_passwords_are_still_refused() {
        let party = Auth::new(None, [7; SECRET_BYTES]);
        assert_eq!(party.authenticate(&HeaderMap::new()).await.unwrap().principal, Principal::party());
        let basic = headers(AUTHORIZATION, "Basic YTpi");
        assert_eq!(party.authenticate(&basic).await.unwrap_err().status(), 401);
    }

    #[test]
    fn a_database_is_public_when_its_security_names_nobody() {
        let public = |text: &str| is_public(&JsonText::parse(text.as_bytes()).unwrap());
        assert!(public("{}"));
        assert!(public(r#"{"admins":{"names":["x"]}}"#));
        assert!(public(r#"{"members":{"names":[],"roles":[]}}"#));
        assert!(!public(r#"{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}"#));
        assert!(!public(r#"{"members":{"names":["x"]}}"#));
    }
}
