//! Keys from passwords: PBKDF2 with an HMAC (RFC 8018, section 5.2).
//!
//! Generic code is compiled in the crate that names its types. Development builds optimise this crate, so that a login with
//! 600,000 rounds takes less than half a second in them. Unoptimised, it takes ten.

use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

/// The hash function of the HMAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-1.
    Sha1,
    /// SHA-224.
    Sha224,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

/// Fills `key` with the key that `rounds` of PBKDF2 derive from a password and a salt. It takes a noticeable time on
/// purpose: do not call it on a thread that serves others.
///
/// ```
/// let mut key = [0; 4];
/// kdf::pbkdf2(kdf::Hash::Sha1, b"password", b"salt", 2, &mut key);
/// assert_eq!(key, [0xea, 0x6c, 0x01, 0x4d]); // RFC 6070
/// ```
pub fn pbkdf2(hash: Hash, password: &[u8], salt: &[u8], rounds: u32, key: &mut [u8]) {
    match hash {
        Hash::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, rounds, key),
        Hash::Sha224 => pbkdf2::pbkdf2_hmac::<Sha224>(password, salt, rounds, key),
        Hash::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, rounds, key),
        Hash::Sha384 => pbkdf2::pbkdf2_hmac::<Sha384>(password, salt, rounds, key),
        Hash::Sha512 => pbkdf2::pbkdf2_hmac::<Sha512>(password, salt, rounds, key),
    }
}
