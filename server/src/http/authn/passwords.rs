//! Passwords as CouchDB stores them.
//!
//! ```text
//!  admins        -pbkdf2:sha256-KEY,SALT,ITERATIONS     -pbkdf2-KEY,SALT,ITERATIONS     -hashed-KEY,SALT
//!  _users        password_scheme, pbkdf2_prf, iterations, derived_key, salt; or password_sha, salt
//! ```
//!
//! Keys are in hexadecimal, and the salt is the text of its digits. Without a PRF it is SHA-1, as before CouchDB 3.4.
//!
//! Computing a key takes a large part of a second on purpose; [`super::hashing`] decides when it is done.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use model::{JsonText, JsonWriter};
use sha1::{Digest, Sha1};
use sha2::{Sha224, Sha256, Sha384, Sha512};

use crate::http::config::rows::SettingRows;
use crate::http::ids::random_hex;

/// Maximum number of iterations. With more, a client that may write a document of `_users` could occupy the thread that
/// hashes.
pub(crate) const MOST_ITERATIONS: u32 = 2_000_000;

/// Maximum length of a salt in bytes. Salts made here have 32.
pub(crate) const LONGEST_SALT: usize = 256;

/// The pseudorandom function of PBKDF2, an HMAC. It signs, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prf {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl Prf {
    const ALL: [(Prf, &str, usize); 5] = [
        (Prf::Sha1, "sha", 20),
        (Prf::Sha224, "sha224", 28),
        (Prf::Sha256, "sha256", 32),
        (Prf::Sha384, "sha384", 48),
        (Prf::Sha512, "sha512", 64),
    ];

    pub(crate) fn named(name: &str) -> Option<Prf> {
        Self::ALL.into_iter().find(|(_, known, _)| *known == name).map(|(prf, _, _)| prf)
    }

    /// The functions in `chttpd_auth/hash_algorithms`, which sign sessions and proxies' names. The first one signs
    /// here.
    pub(crate) fn of_signatures(rows: &SettingRows) -> Vec<Prf> {
        let names = rows.auth("hash_algorithms", Some).unwrap_or_default().split(',');
        let known: Vec<Prf> = names.filter_map(|name| Prf::named(name.trim())).collect();
        // Not the default of the setting, which also lists an old function.
        if known.is_empty() { vec![Prf::Sha256] } else { known }
    }

    /// The HMAC of a text, with a key of any length.
    pub(crate) fn sign(self, key: &[u8], text: &str) -> Vec<u8> {
        fn of<M: Mac + KeyInit>(key: &[u8], text: &str) -> Vec<u8> {
            keyed::<M>(key).chain_update(text).finalize().into_bytes().to_vec()
        }
        match self {
            Prf::Sha1 => of::<Hmac<Sha1>>(key, text),
            Prf::Sha224 => of::<Hmac<Sha224>>(key, text),
            Prf::Sha256 => of::<Hmac<Sha256>>(key, text),
            Prf::Sha384 => of::<Hmac<Sha384>>(key, text),
            Prf::Sha512 => of::<Hmac<Sha512>>(key, text),
        }
    }

    fn row(self) -> (&'static str, usize) {
        Self::ALL.into_iter().find(|(prf, _, _)| *prf == self).map_or(("sha256", 32), |(_, name, bytes)| (name, bytes))
    }

    fn derive(self, password: &str, salt: &str, iterations: u32, key: &mut [u8]) {
        let derive = match self {
            Prf::Sha1 => kdf::pbkdf2_sha1,
            Prf::Sha224 => kdf::pbkdf2_sha224,
            Prf::Sha256 => kdf::pbkdf2_sha256,
            Prf::Sha384 => kdf::pbkdf2_sha384,
            Prf::Sha512 => kdf::pbkdf2_sha512,
        };
        derive(password.as_bytes(), salt.as_bytes(), iterations, key);
    }
}

/// How a password is stored, CouchDB's `password_scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// SHA-1 of password and salt, CouchDB's scheme before 1.3.
    Simple,
    Pbkdf2 {
        prf: Prf,
        iterations: u32,
    },
    /// PBKDF2 of the digits of the simple hash. It strengthens stored hashes without the password. New passwords are
    /// not stored like this.
    SimplePbkdf2 {
        prf: Prf,
        iterations: u32,
    },
}

impl Scheme {
    fn key(self, password: &str, salt: &str) -> Vec<u8> {
        let simple = || Sha1::digest([password, salt].concat());
        let derive = |prf: Prf, password: &str, iterations| {
            let mut key = vec![0; prf.row().1];
            prf.derive(password, salt, iterations, &mut key);
            key
        };
        match self {
            Scheme::Simple => simple().to_vec(),
            Scheme::Pbkdf2 { prf, iterations } => derive(prf, password, iterations),
            Scheme::SimplePbkdf2 { prf, iterations } => derive(prf, &model::hex(&simple()), iterations),
        }
    }
}

/// A stored password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Verifier {
    scheme: Scheme,
    pub(crate) salt: String,
    key: Vec<u8>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

impl Verifier {
    /// Hashes a new password, with a new salt.
    pub(crate) fn new(password: &str, scheme: Scheme) -> Result<Verifier, getrandom::Error> {
        Ok(Self::salted(password, scheme, random_hex::<16>()?))
    }

    fn salted(password: &str, scheme: Scheme, salt: String) -> Verifier {
        Verifier { scheme, key: scheme.key(password, &salt), salt }
    }

    /// The same password in another scheme. The salt stays, since it signs sessions.
    pub(crate) fn upgraded(&self, password: &str, scheme: Scheme) -> Verifier {
        Self::salted(password, scheme, self.salt.clone())
    }

    pub(crate) fn is_by(&self, scheme: Scheme) -> bool {
        self.scheme == scheme
    }

    /// Iterations of PBKDF2; `None` for other schemes.
    pub(crate) fn iterations(&self) -> Option<u32> {
        match self.scheme {
            Scheme::Simple => None,
            Scheme::Pbkdf2 { iterations, .. } | Scheme::SimplePbkdf2 { iterations, .. } => Some(iterations),
        }
    }

    /// Whether this is the password. Takes as long for a wrong one.
    pub(crate) fn matches(&self, password: &str) -> bool {
        let mut key = self.scheme.key(password, &self.salt);
        // Some keys are shorter than their function's output. PBKDF2's shorter key is the start of the longer one.
        key.truncate(self.key.len());
        same(&key, &self.key)
    }

    /// A keyed digest of the stored password and the one that a client gives. The key is random, so the digest alone
    /// does not help to find the password.
    pub(crate) fn proof(&self, key: &[u8; 32], password: &str) -> [u8; 32] {
        let scheme = format!("{:?}", self.scheme);
        mac(key, &[scheme.as_bytes(), self.salt.as_bytes(), &self.key, password.as_bytes()])
    }

    /// Reads the value of an administrator in the configuration.
    pub(crate) fn of_admin(value: &str) -> Option<Verifier> {
        if let Some(rest) = value.strip_prefix("-hashed-") {
            let (key, salt) = rest.split_once(',')?;
            return Self::checked(Scheme::Simple, salt, key);
        }
        let rest = value.strip_prefix("-pbkdf2")?;
        let (prf, rest) = match rest.strip_prefix(':') {
            Some(rest) => {
                let (prf, rest) = rest.split_once('-')?;
                (Prf::named(prf)?, rest)
            }
            None => (Prf::Sha1, rest.strip_prefix('-')?),
        };
        let mut parts = rest.splitn(3, ',');
        let (key, salt, iterations) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        Self::checked(Scheme::Pbkdf2 { prf, iterations }, salt, key)
    }

    /// The value of an administrator in the configuration.
    pub(crate) fn to_admin(&self) -> String {
        let (key, salt) = (model::hex(&self.key), &self.salt);
        match self.scheme {
            Scheme::Simple => format!("-hashed-{key},{salt}"),
            // Only users have passwords of the second scheme.
            Scheme::Pbkdf2 { prf, iterations } | Scheme::SimplePbkdf2 { prf, iterations } => {
                format!("-pbkdf2:{}-{key},{salt},{iterations}", prf.row().0)
            }
        }
    }

    /// Reads the members of a document of `_users`. `None` if nobody can log in with it.
    pub(crate) fn of_user(body: &JsonText) -> Option<Verifier> {
        let text = |name: &str| Some(body.get(name)?.as_str()?.into_owned());
        let salt = text("salt").unwrap_or_default();
        let pbkdf2 = || {
            let prf = text("pbkdf2_prf").map_or(Some(Prf::Sha1), |name| Prf::named(&name))?;
            let iterations = body.get("iterations")?.as_u64()?.try_into().ok()?;
            Some((prf, iterations, text("derived_key")?))
        };
        let (scheme, key) = match text("password_scheme").as_deref() {
            None | Some("simple") => (Scheme::Simple, text("password_sha")?),
            Some("pbkdf2") => pbkdf2().map(|(prf, iterations, key)| (Scheme::Pbkdf2 { prf, iterations }, key))?,
            Some("simple+pbkdf2") => {
                pbkdf2().map(|(prf, iterations, key)| (Scheme::SimplePbkdf2 { prf, iterations }, key))?
            }
            Some(_) => return None,
        };
        Self::checked(scheme, &salt, &key)
    }

    /// The members of a document of `_users` that hold a password, or held one in another scheme.
    pub(crate) const MEMBERS: [&str; 7] =
        ["password", "password_scheme", "pbkdf2_prf", "salt", "iterations", "derived_key", "password_sha"];

    /// Writes the members of a document of `_users`.
    pub(crate) fn write_user(&self, json: &mut JsonWriter<'_>) {
        match self.scheme {
            Scheme::Simple => {
                json.name("password_scheme").str("simple").name("salt").str(&self.salt);
                json.name("password_sha").str(&model::hex(&self.key));
            }
            Scheme::Pbkdf2 { prf, iterations } | Scheme::SimplePbkdf2 { prf, iterations } => {
                let is_plain = matches!(self.scheme, Scheme::Pbkdf2 { .. });
                json.name("password_scheme")
                    .str(if is_plain { "pbkdf2" } else { "simple+pbkdf2" })
                    .name("pbkdf2_prf")
                    .str(prf.row().0);
                json.name("salt").str(&self.salt).name("iterations").u64(iterations.into());
                json.name("derived_key").str(&model::hex(&self.key));
            }
        }
    }

    /// A stored password, if its key has a possible length and takes bounded time to compute.
    fn checked(scheme: Scheme, salt: &str, key: &str) -> Option<Verifier> {
        let key = unhex(key)?;
        let is_possible = match scheme {
            Scheme::Simple => key.len() == 20,
            Scheme::Pbkdf2 { prf, iterations } | Scheme::SimplePbkdf2 { prf, iterations } => {
                (1..=MOST_ITERATIONS).contains(&iterations) && key.len() >= 16 && key.len() <= prf.row().1
            }
        };
        (is_possible && salt.len() <= LONGEST_SALT).then(|| Verifier { scheme, salt: salt.to_owned(), key })
    }
}

/// HMAC-SHA256 over a list of parts.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = keyed::<Hmac<Sha256>>(key);
    for part in parts {
        // The length comes first, so that different lists of parts never have the same digest.
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// An HMAC with a key of any length.
fn keyed<M: Mac + KeyInit>(key: &[u8]) -> M {
    // HMAC takes keys of every length, so the other arm is never reached. It would sign with another key.
    <M as KeyInit>::new_from_slice(key).unwrap_or_else(|_| <M as KeyInit>::new(&Default::default()))
}

/// Whether two secrets are equal, in a time that does not depend on where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    let of = |bytes: &[u8]| keyed::<Hmac<Sha256>>(b"same").chain_update(bytes).finalize();
    of(one) == of(other)
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?) as u8)).collect()
}

/// Whether the value of an administrator in the configuration is a hash that passwords can match.
pub(crate) fn is_password_hash(value: &str) -> bool {
    Verifier::of_admin(value).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of RFC 6070, and of Python's `hashlib.pbkdf2_hmac` for the other functions.
    #[test]
    fn keys_are_those_of_pbkdf2() {
        let key = |prf, iterations| model::hex(&Scheme::Pbkdf2 { prf, iterations }.key("password", "salt"));
        assert_eq!(key(Prf::Sha1, 4096), "4b007901b765489abead49d926f721d065a429c1");
        assert_eq!(key(Prf::Sha256, 4096), "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a");
    }

    #[test]
    fn stored_passwords_are_read_written_and_matched() {
        let of_prf = |(prf, name, _)| {
            assert_eq!(Prf::named(name), Some(prf));
            [Scheme::Pbkdf2 { prf, iterations: 3 }, Scheme::SimplePbkdf2 { prf, iterations: 3 }]
        };
        let sha256 = Scheme::Pbkdf2 { prf: Prf::Sha256, iterations: 10 };
        for scheme in Prf::ALL.into_iter().flat_map(of_prf).chain([Scheme::Simple]) {
            let verifier = Verifier::new("geheim", scheme).unwrap();
            assert_eq!((verifier.salt.len(), verifier.is_by(scheme)), (32, true));
            assert!(verifier.matches("geheim") && !verifier.matches("Geheim") && !verifier.matches(""));
            if !matches!(scheme, Scheme::SimplePbkdf2 { .. }) {
                assert_eq!(Verifier::of_admin(&verifier.to_admin()), Some(verifier.clone()));
            }
            let body = JsonText::parse(&crate::http::wire::response::object_text(|json| verifier.write_user(json)));
            assert_eq!(Verifier::of_user(&body.unwrap()), Some(verifier.clone()));
            let upgraded = verifier.upgraded("geheim", sha256);
            assert!(upgraded.matches("geheim") && upgraded.salt == verifier.salt && upgraded.is_by(sha256));
            assert!(!format!("{verifier:?}").contains(&verifier.salt));
        }
        // SHA-1 of "geheim" and the salt "abc".
        let simple = format!("-hashed-{},abc", model::hex(&Sha1::digest("geheimabc")));
        let simple = Verifier::of_admin(&simple).unwrap();
        assert!(simple.matches("geheim") && !simple.matches("geheima"));
        let old = "-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,4096";
        assert!(Verifier::of_admin(old).unwrap().matches("password"));
        // A simple hash that a script made stronger: PBKDF2 of the digits of the SHA-1 of "passwordsalt".
        let key =
            Scheme::Pbkdf2 { prf: Prf::Sha1, iterations: 2 }.key(&model::hex(&Sha1::digest("passwordsalt")), "salt");
        let stronger = format!(
            r#"{{"password_scheme":"simple+pbkdf2","iterations":2,"salt":"salt","derived_key":"{}"}}"#,
            model::hex(&key)
        );
        let stronger = Verifier::of_user(&JsonText::parse(stronger.as_bytes()).unwrap()).unwrap();
        assert!(stronger.matches("password") && !stronger.matches("passwordsalt"));
    }

    #[test]
    fn what_is_no_stored_password_is_not_read() {
        for wrong in [
            "",
            "plain",
            "-hashed-00,salt",
            "-pbkdf2-zz,salt,10",
            "-pbkdf2:md5-4b007901b765489abead49d926f721d065a429c1,salt,10",
            "-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt",
            "-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,0",
            "-pbkdf2-4b007901b765489abead49d926f721d065a429c1,salt,-1",
            "-pbkdf2-é,salt,10",
        ] {
            assert_eq!(Verifier::of_admin(wrong), None, "{wrong}");
        }
        let key = "4b007901b765489abead49d926f721d065a429c1";
        let admin = |salt: usize, iterations: u32| {
            Verifier::of_admin(&format!("-pbkdf2-{key},{},{iterations}", "s".repeat(salt))).is_some()
        };
        assert!(admin(LONGEST_SALT, MOST_ITERATIONS));
        assert!(!admin(LONGEST_SALT + 1, 1) && !admin(1, MOST_ITERATIONS + 1) && !admin(1, 4_000_000_000));
        for wrong in
            ["{}", r#"{"derived_key":1}"#, r#"{"password_scheme":"pbkdf2","iterations":1}"#, r#"{"password_sha":""}"#]
        {
            assert_eq!(Verifier::of_user(&JsonText::parse(wrong.as_bytes()).unwrap()), None, "{wrong}");
        }
    }
}
