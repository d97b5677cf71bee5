//! JSON Web Tokens: `Authorization: Bearer …`, if the configuration switches them on.
//!
//! ```text
//!  base64url({"alg","kid"}) . base64url({"sub","exp","nbf","_couchdb.roles"}) . base64url(signature)
//! ```
//!
//! A configured key is for one family of algorithms: `jwt_keys/hmac:KID`, `rsa:KID` or `ec:KID` is never used for a
//! token that claims another one. So a public key is never used as the secret of an HMAC. `_default` is for tokens that
//! do not name a key. Without `jwt_auth/required_claims` a token must have `exp`. Unlike in CouchDB, `exp` and `nbf`
//! are checked whenever a token has them, not only if they are required.
//!
//! Sources: RFC 7519, RFC 7515, RFC 8725; CouchDB's `jwtf.erl` and `jwtf_keystore.erl`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use model::{JsonRef, JsonText};
use sha2::{Sha256, Sha384, Sha512};

use crate::http::authn::principal::{Principal, Proof, Voucher};
use crate::http::authn::public_key::Algorithm;
use crate::http::config::rows::SettingRows;
use crate::http::error::{ApiError, Result};

/// The section of the keys.
const KEYS: &str = "jwt_keys";

/// The latest expiry of a token: the greatest whole number that JSON keeps exactly.
const MOST_SECONDS: f64 = 9_007_199_254_740_991.0;

/// How tokens are checked.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// Claims that a token must have, with the value if one is required.
    required: Vec<(String, Option<String>)>,
    /// The path to the list of roles.
    roles: Vec<String>,
}

impl Tokens {
    /// `None` unless `chttpd/authentication_handlers` names the handler of tokens.
    pub(crate) fn read(rows: &SettingRows) -> Option<Tokens> {
        let handlers = rows.get("chttpd", "authentication_handlers")?;
        if !handlers.contains("jwt_authentication_handler") {
            return None;
        }
        let roles = match rows.get("jwt_auth", "roles_claim_path") {
            Some(path) => split_path(path),
            None => vec![rows.get("jwt_auth", "roles_claim_name").unwrap_or_default().to_owned()],
        };
        let required = required_claims(rows.get("jwt_auth", "required_claims").unwrap_or_default());
        Some(Tokens { required, roles })
    }

    /// The client that a token names. `secret` is the store's.
    ///
    /// # Errors
    /// 400 for a malformed token or a wrong signature, 401 for a token that has expired or is not valid yet.
    pub(crate) fn principal(&self, token: &str, rows: &SettingRows, secret: &[u8], now: u64) -> Result<Principal> {
        let wrong = ApiError::bad_request;
        let mut parts = token.split('.');
        let (Some(head), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong("Malformed token"));
        };
        let signed = token.get(..head.len() + 1 + claims.len()).unwrap_or_default();
        let head = decode(head).ok_or_else(|| wrong("Malformed token"))?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| wrong("Malformed token"))?;
        let text =
            |object: &JsonText, name: &str| object.get(name).and_then(JsonRef::as_str).map(|text| text.into_owned());
        // Extensions that must be understood (RFC 7515, 4.1.11). This server supports none of them.
        if head.get("crit").is_some() {
            return Err(wrong("Unsupported crit header parameter"));
        }
        let algorithm = text(&head, "alg").ok_or_else(|| wrong("Missing alg header parameter"))?;
        let key = text(&head, "kid").unwrap_or_else(|| "_default".to_owned());
        let key = verify(&algorithm, &key, rows, signed.as_bytes(), &signature)?;

        // The claims are read only after the signature was checked.
        let claims = decode(claims).ok_or_else(|| wrong("Malformed token"))?;
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(time) => time.as_f64().map(Some).ok_or_else(|| wrong("Malformed token")),
        };
        let end = time("exp")?;
        if end.is_some_and(|end| end <= now as f64) {
            return Err(ApiError::unauthorized("exp not in future"));
        }
        if time("nbf")?.is_some_and(|nbf| nbf > now as f64) {
            return Err(ApiError::unauthorized("nbf not in past"));
        }
        for (name, value) in &self.required {
            // These are in the head, where `alg` is always required.
            match (name.as_str(), text(&head, name).as_deref()) {
                ("typ", None) => return Err(wrong("Missing typ header parameter")),
                ("typ", Some(kind)) if kind != "JWT" => return Err(wrong("Invalid typ header parameter")),
                ("kid", None) => return Err(wrong("Missing kid claim")),
                ("typ" | "kid" | "alg", _) => continue,
                _ => {}
            }
            match (claims.get(name), value) {
                (None, _) => return Err(ApiError::bad_request(format!("Missing {name} claim"))),
                (Some(found), Some(value)) if found.as_str().as_deref() != Some(value.as_str()) => {
                    return Err(ApiError::bad_request(format!("Invalid {name} claim")));
                }
                _ => {}
            }
        }
        let name = text(&claims, "sub").filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| ApiError::unauthorized("Token missing sub claim."))?;
        let roles = self.roles(&claims).ok_or_else(|| wrong("Malformed token"))?;
        // Rounded down to whole seconds, a number that JSON keeps exactly.
        let until = end.map(|end| end.min(MOST_SECONDS) as u64);
        let voucher = Voucher::new(secret, key, until);
        Ok(Principal { name: Some(name), roles, proof: Proof::Token(voucher) })
    }

    /// Whether tokens signed with the key of this voucher are still accepted.
    pub(crate) fn has_key(&self, voucher: &Voucher, rows: &SettingRows, secret: &[u8]) -> bool {
        let mut keys = rows.sections().get(KEYS).into_iter().flat_map(BTreeMap::values);
        keys.any(|key| Voucher::new(secret, key, voucher.until) == *voucher)
    }

    /// `None` if they are neither a list of strings nor a string that lists them.
    fn roles(&self, claims: &JsonText) -> Option<Vec<String>> {
        let found = self.roles.iter().try_fold(claims.root(), |value, name| value.get(name));
        let Some(found) = found else { return Some(Vec::new()) };
        if let Some(list) = found.as_str() {
            return Some(list.split(',').map(|role| role.trim().to_owned()).filter(|role| !role.is_empty()).collect());
        }
        if !found.is_array() {
            return None;
        }
        found.elements().map(|role| role.as_str().map(|role| role.into_owned())).collect()
    }
}

fn decode(part: &str) -> Option<JsonText> {
    let text = JsonText::parse(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()?;
    text.root().is_object().then_some(text)
}

/// Checks the signature, with the configured key of this name. Returns the key.
fn verify<'r>(algorithm: &str, key: &str, rows: &'r SettingRows, signed: &[u8], signature: &[u8]) -> Result<&'r str> {
    let configured = |family: &str| {
        let unknown = || ApiError::bad_request(format!("Unknown kid: {family}:{key}"));
        rows.get(KEYS, &format!("{family}:{key}")).ok_or_else(unknown)
    };
    let secret = |secret: &str| {
        let misconfigured = || ApiError::bad_request("The key of the token is not configured in base64");
        STANDARD.decode(secret).map_err(|_| misconfigured())
    };
    let hmac: fn(&[u8], &[u8], &[u8]) -> bool = match algorithm {
        "HS256" => is_signed::<Hmac<Sha256>>,
        "HS384" => is_signed::<Hmac<Sha384>>,
        "HS512" => is_signed::<Hmac<Sha512>>,
        _ => {
            let algorithm = Algorithm::named(algorithm);
            let algorithm = algorithm.ok_or_else(|| ApiError::bad_request("Invalid alg header parameter"))?;
            let pem = configured(algorithm.family)?;
            return match algorithm.verify(pem, signed, signature) {
                Some(true) => Ok(pem),
                Some(false) => Err(ApiError::bad_request("Bad signature")),
                None => Err(ApiError::bad_request("The configured key is not a public key for the token's algorithm.")),
            };
        }
    };
    let key = configured("hmac")?;
    if hmac(&secret(key)?, signed, signature) { Ok(key) } else { Err(ApiError::bad_request("Bad HMAC")) }
}

fn is_signed<M: Mac + KeyInit>(secret: &[u8], signed: &[u8], signature: &[u8]) -> bool {
    // An empty key would let everyone sign.
    let mac = if secret.is_empty() { None } else { <M as KeyInit>::new_from_slice(secret).ok() };
    mac.is_some_and(|mac| mac.chain_update(signed).verify_slice(signature).is_ok())
}

/// `exp,nbf` or `exp,{iss,"https://issuer"}`.
fn required_claims(text: &str) -> Vec<(String, Option<String>)> {
    let mut claims = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (claim, after) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((pair, after)) => {
                let (name, value) = pair.split_once(',').unwrap_or((pair, ""));
                ((name.trim().to_owned(), Some(value.trim().trim_matches('"').to_owned())), after)
            }
            None => {
                let (name, after) = rest.split_once(',').map_or((rest, ""), |(name, after)| (name, after));
                ((name.trim().to_owned(), None), after)
            }
        };
        if !claim.0.is_empty() {
            claims.push(claim);
        }
        rest = after.trim_start_matches([',', ' ', '\t']);
    }
    claims
}

/// The names of a path with dots; `\.` is a dot in a name.
fn split_path(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '.' => names.push(String::new()),
            '\\' => names.last_mut().into_iter().for_each(|name| name.extend(letters.next())),
            _ => names.last_mut().into_iter().for_each(|name| name.push(letter)),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::config::rows::rows_of;

    const NOW: u64 = 1_700_000_000;

    fn rows(more: &[(&str, &str, &str)]) -> SettingRows {
        let secret = STANDARD.encode("geheim");
        let on = ("chttpd", "authentication_handlers", "{chttpd_auth, jwt_authentication_handler}");
        rows_of(&[&[on, ("jwt_keys", "hmac:_default", &secret)], more].concat())
    }

    fn sign(head: &str, claims: &str, secret: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(claims));
        let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).unwrap();
        let mac = mac.chain_update(&signed).finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac))
    }

    fn check(token: &str, rows: &SettingRows) -> std::result::Result<Principal, (u16, String)> {
        let tokens = Tokens::read(rows).unwrap();
        tokens
            .principal(token, rows, b"store", NOW)
            .map_err(|error| (error.status().as_u16(), error.reason().to_owned()))
    }

    const HEAD: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

    #[test]
    fn tokens_are_off_by_default() {
        assert!(Tokens::read(&rows_of(&[])).is_none());
        assert!(Tokens::read(&rows_of(&[("chttpd", "authentication_handlers", "cookie")])).is_none());
    }

    #[test]
    fn a_token_names_a_user_and_roles() {
        let claims = r#"{"sub":"anna","exp":1700000001,"_couchdb.roles":["a","_admin"],"x":{"y.z":"b, c"}}"#;
        let found = check(&sign(HEAD, claims, "geheim"), &rows(&[])).unwrap();
        let voucher = Voucher::new(b"store", &STANDARD.encode("geheim"), Some(1_700_000_001));
        assert_eq!((found.name.as_deref(), found.proof), (Some("anna"), Proof::Token(voucher)));
        assert_eq!(found.account(), None);
        assert_eq!(found.roles, ["a", "_admin"]);
        let elsewhere = rows(&[("jwt_auth", "roles_claim_path", r"x.y\.z")]);
        assert_eq!(check(&sign(HEAD, claims, "geheim"), &elsewhere).unwrap().roles, ["b", "c"]);
        let named = rows(&[("jwt_keys", "hmac:other", &STANDARD.encode("x"))]);
        assert!(check(&sign(r#"{"alg":"HS256","kid":"other"}"#, claims, "x"), &named).is_ok());
    }

    /// The example of RFC 7515, A.1.
    #[test]
    fn the_example_of_the_rfc_is_signed() {
        let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ+EstJQLr/T+1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow==";
        let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.\
            eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let signature = URL_SAFE_NO_PAD.decode("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk").unwrap();
        let rows = rows_of(&[("jwt_keys", "hmac:_default", key)]);
        verify("HS256", "_default", &rows, signed.as_bytes(), &signature).unwrap();
        verify("HS256", "_default", &rows, &signed.as_bytes()[1..], &signature).unwrap_err();
    }

    /// Only the token's algorithm and key name decide which key is used.
    #[test]
    fn public_keys_prove_and_are_no_secrets() {
        use crate::http::authn::public_key::vectors::{
            EC_KEY_256, EC_KEY_384, EC_KEY_521, ES256, ES384, ES512, RS256, RS512, RSA_KEY,
        };
        let public = |more: &[(&str, &str, &str)]| {
            let on = ("chttpd", "authentication_handlers", "{chttpd_auth, jwt_authentication_handler}");
            rows_of(&[&[on], more].concat())
        };
        let rsa = public(&[("jwt_keys", "rsa:_default", RSA_KEY), ("jwt_keys", "ec:_default", EC_KEY_256)]);
        for token in [RS256, RS512, ES256] {
            assert_eq!(check(token, &rsa).unwrap().name.as_deref(), Some("anna"));
            let (signed, signature) = token.rsplit_once('.').unwrap();
            let (head, _) = signed.split_once('.').unwrap();
            let other = URL_SAFE_NO_PAD.encode(r#"{"sub":"adm","exp":1700000001}"#);
            let forged = check(&format!("{head}.{other}.{signature}"), &rsa);
            assert_eq!(forged.unwrap_err(), (400, "Bad signature".to_owned()));
            for at in (0..token.len()).step_by(3) {
                assert!(check(&token[..at], &rsa).is_err(), "cut at {at}");
            }
        }
        let none = (400, "The configured key is not a public key for the token's algorithm.".to_owned());
        assert_eq!(check(ES384, &rsa).unwrap_err(), none, "a key of another curve");
        assert_eq!(check(ES512, &rsa).unwrap_err(), none, "a key of another curve");
        assert!(check(ES384, &public(&[("jwt_keys", "ec:_default", EC_KEY_384)])).is_ok());
        assert!(check(ES512, &public(&[("jwt_keys", "ec:_default", EC_KEY_521)])).is_ok());
        assert_eq!(check(RS256, &public(&[("jwt_keys", "rsa:_default", "")])).unwrap_err(), none);
        // Who knows the public key signs an HMAC with it: no key of that family is configured, and none is taken
        // instead.
        let claims = r#"{"sub":"adm","exp":1700000001}"#;
        for secret in [RSA_KEY.to_owned(), RSA_KEY.replace("\\n", "\n"), String::new()] {
            for (head, kid) in [(HEAD, "_default"), (r#"{"alg":"HS256","kid":"rsa:_default"}"#, "rsa:_default")] {
                let refused = check(&sign(head, claims, &secret), &rsa).unwrap_err();
                assert_eq!(refused, (400, format!("Unknown kid: hmac:{kid}")));
            }
        }
        // Even if it is configured as one: it is not base64.
        let confused = public(&[("jwt_keys", "hmac:_default", RSA_KEY)]);
        assert!(check(&sign(HEAD, claims, RSA_KEY), &confused).is_err());
        for head in
            [r#"{"alg":"none"}"#, r#"{"alg":"NONE","kid":"_default"}"#, r#"{"alg":["RS256"]}"#, r#"{"alg":"ES256K"}"#]
        {
            let parts = [head, claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
            let signature = RS256.rsplit_once('.').unwrap().1;
            for token in [format!("{parts}."), format!("{parts}.{signature}")] {
                assert_eq!(check(&token, &rsa).unwrap_err().0, 400, "{head}");
            }
        }
    }

    #[test]
    fn extensions_that_must_be_understood_are_not() {
        let claims = r#"{"sub":"anna","exp":1700000001}"#;
        for crit in [r#"["exp"]"#, r#"["b64"]"#, "[]", "null", "7"] {
            let head = format!(r#"{{"alg":"HS256","b64":true,"exp":1,"crit":{crit}}}"#);
            let refused = check(&sign(&head, claims, "geheim"), &rows(&[])).unwrap_err();
            assert_eq!(refused, (400, "Unsupported crit header parameter".to_owned()), "{crit}");
        }
        // Headers that need not be understood are ignored.
        assert!(check(&sign(r#"{"alg":"HS256","b64":true,"x":["crit"]}"#, claims, "geheim"), &rows(&[])).is_ok());
    }

    #[test]
    fn what_nobody_signed_or_is_over_is_refused() {
        let claims = r#"{"sub":"anna","exp":1700000001}"#;
        let good = sign(HEAD, claims, "geheim");
        for at in 0..good.len() {
            let mut changed = good.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            // Some bits of a signature's last letter are unused.
            assert!(check(&changed, &rows(&[])).is_err() || at + 1 == good.len(), "{changed}");
            assert!(check(&good[..at], &rows(&[])).is_err());
        }
        let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode(claims));
        let required = rows(&[("jwt_auth", "required_claims", r#"exp, {iss, "me"}"#)]);
        let typed = || rows(&[("jwt_auth", "required_claims", "alg,kid,typ")]);
        let any = rows(&[("jwt_auth", "required_claims", "")]);
        assert!(check(&sign(HEAD, r#"{"sub":"anna"}"#, "geheim"), &any).is_ok());
        // The kind of access tokens by RFC 9068.
        assert!(check(&sign(r#"{"alg":"HS256","typ":"at+jwt"}"#, claims, "geheim"), &rows(&[])).is_ok());
        assert!(
            check(&sign(r#"{"alg":"HS256","typ":"JWT","kid":"_default"}"#, r#"{"sub":"anna"}"#, "geheim"), &typed())
                .is_ok()
        );
        let roles = |roles: &str| format!(r#"{{"sub":"anna","exp":1700000001,"_couchdb.roles":{roles}}}"#);
        for wrong in ["1", "null", "{}", r#"["a",1]"#] {
            let refused = check(&sign(HEAD, &roles(wrong), "geheim"), &rows(&[]));
            assert_eq!(refused, Err((400, "Malformed token".to_owned())), "{wrong}");
        }
        let empty = rows(&[("jwt_keys", "hmac:empty", "")]);
        for (token, rows, status, reason) in [
            (none, rows(&[]), 400, "Invalid alg header parameter"),
            (sign(r#"{"typ":"JWT"}"#, claims, "geheim"), rows(&[]), 400, "Missing alg header parameter"),
            (sign(r#"{"alg":"HS256","kid":"x"}"#, claims, "geheim"), rows(&[]), 400, "Unknown kid: hmac:x"),
            (sign(r#"{"alg":"HS256","kid":"empty"}"#, claims, ""), empty, 400, "Bad HMAC"),
            (sign(HEAD, claims, "other"), rows(&[]), 400, "Bad HMAC"),
            (sign(HEAD, r#"{"sub":"anna"}"#, "geheim"), rows(&[]), 400, "Missing exp claim"),
            (sign(HEAD, claims, "geheim"), typed(), 400, "Missing kid claim"),
            (
                sign(r#"{"alg":"HS256","kid":"_default"}"#, claims, "geheim"),
                typed(),
                400,
                "Missing typ header parameter",
            ),
            (
                sign(r#"{"alg":"HS256","kid":"_default","typ":"x"}"#, claims, "geheim"),
                typed(),
                400,
                "Invalid typ header parameter",
            ),
            (sign(HEAD, r#"{"sub":"anna","exp":1700000000}"#, "geheim"), rows(&[]), 401, "exp not in future"),
            (
                sign(HEAD, r#"{"sub":"anna","exp":1700000001,"nbf":1700000001}"#, "geheim"),
                rows(&[]),
                401,
                "nbf not in past",
            ),
            (sign(HEAD, r#"{"sub":"anna","exp":"1800000000"}"#, "geheim"), rows(&[]), 400, "Malformed token"),
            (sign(HEAD, r#"{"sub":1,"exp":1700000001}"#, "geheim"), rows(&[]), 401, "Token missing sub claim."),
            (sign(HEAD, claims, "geheim"), required, 400, "Missing iss claim"),
        ] {
            assert_eq!(check(&token, &rows), Err((status, reason.to_owned())), "{token}");
        }
        let required = || rows(&[("jwt_auth", "required_claims", r#"exp,{iss,"me"}"#)]);
        let issued = |by: &str| sign(HEAD, &format!(r#"{{"sub":"a","exp":1700000001,"iss":"{by}"}}"#), "geheim");
        assert!(check(&issued("me"), &required()).is_ok());
        assert_eq!(check(&issued("you"), &required()), Err((400, "Invalid iss claim".to_owned())));
    }
}
