//! Keys from passwords: PBKDF2 with an HMAC (RFC 8018, section 5.2).
//!
//! Generic code is compiled in the crate that names its types. Development builds optimise this crate, so a login with
//! 600,000 rounds takes less than half a second there. Unoptimised, it would take ten.
//!
//! Each function fills `key` with the key that PBKDF2 derives from a password and a salt in `rounds`. It is slow on
//! purpose: do not call it on a thread that serves others.
//!
//! ```
//! let mut key = [0; 4];
//! kdf::pbkdf2_sha1(b"password", b"salt", 2, &mut key);
//! assert_eq!(key, [0xea, 0x6c, 0x01, 0x4d]); // RFC 6070
//! ```

use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

/// PBKDF2 with the HMAC of SHA-1.
pub fn pbkdf2_sha1(password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    pbkdf2_hmac::<Sha1>(password, salt, rounds, key);
}

/// PBKDF2 with the HMAC of SHA-224.
pub fn pbkdf2_sha224(password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    pbkdf2_hmac::<Sha224>(password, salt, rounds, key);
}

/// PBKDF2 with the HMAC of SHA-256.
pub fn pbkdf2_sha256(password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    pbkdf2_hmac::<Sha256>(password, salt, rounds, key);
}

/// PBKDF2 with the HMAC of SHA-384.
pub fn pbkdf2_sha384(password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    pbkdf2_hmac::<Sha384>(password, salt, rounds, key);
}

/// PBKDF2 with the HMAC of SHA-512.
pub fn pbkdf2_sha512(password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    pbkdf2_hmac::<Sha512>(password, salt, rounds, key);
}
