//! How files of a repository are sealed.
//!
//! ```text
//!  passphrase ─ PBKDF2-SHA-256, 600,000 rounds, the repository's salt ─► opens the repository's key
//!  repository's key ─ HKDF-SHA-256, a salt of each file, its path ─► AES-256-GCM
//! ```
//!
//! The repository's key is random, so the passphrase can change without rewriting files. Each file has its own key, and
//! the numbers of its frames are the nonces, so no nonce is used twice. The path is part of the key: a file in the
//! place of another one does not open.

use std::fmt;

use aes_gcm::aead::{Aead, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce};
use hkdf::Hkdf;
use model::Environment;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Length of keys and salts.
pub(crate) const KEY: usize = 32;

/// Rounds of PBKDF2 for new repositories.
pub(crate) const ROUNDS: u32 = 600_000;

/// Maximum number of rounds that a repository may ask for. They take some seconds.
pub(crate) const MOST_ROUNDS: u32 = 20_000_000;

/// The first bytes of a sealed file.
const MAGIC: &[u8; 8] = b"CLBKSEA1";

/// The key that files are sealed with; `None` if they are not encrypted.
#[derive(Clone)]
pub(crate) struct Key(Option<[u8; KEY]>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Key(…)" } else { "Key(none)" })
    }
}

impl Key {
    pub(crate) const NONE: Key = Key(None);

    pub(crate) fn new(key: [u8; KEY]) -> Key {
        Key(Some(key))
    }

    /// The key of a passphrase. Takes a noticeable part of a second.
    pub(crate) fn of_passphrase(passphrase: &[u8], salt: &[u8], rounds: u32) -> Key {
        let mut key = [0; KEY];
        kdf::pbkdf2_sha256(passphrase, salt, rounds, &mut key);
        Key(Some(key))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The cipher of a file.
    pub(crate) fn cipher(&self, salt: &[u8], path: &str) -> Cipher {
        Cipher(self.0.and_then(|key| {
            let mut own = [0; KEY];
            Hkdf::<Sha256>::new(Some(salt), &key).expand(path.as_bytes(), &mut own).ok()?;
            Aes256Gcm::new_from_slice(&own).ok().map(Box::new)
        }))
    }

    /// Seals a small file as a whole. Appends a hash that can be checked without the key.
    pub(crate) fn seal(&self, path: &str, plain: &[u8], environment: &dyn Environment) -> Result<Vec<u8>> {
        let mut salt = [0; KEY];
        environment.random(&mut salt);
        let mut file = MAGIC.to_vec();
        file.push(u8::from(!self.is_none()));
        file.extend_from_slice(&salt);
        file.extend(self.cipher(&salt, path).seal(0, plain)?);
        let hash = Sha256::digest(&file);
        file.extend_from_slice(&hash);
        Ok(file)
    }

    /// The content of a small file.
    pub(crate) fn open(&self, path: &str, file: &[u8]) -> Result<Vec<u8>> {
        let damaged = |reason: &str| Error::damaged(path, reason);
        let body = checked(file).ok_or_else(|| damaged("its bytes are not those that were written"))?;
        let rest = body
            .strip_prefix(MAGIC)
            .ok_or_else(|| damaged("it is not a file of a backup, or a later version wrote it"))?;
        let (is_sealed, rest) = rest.split_first().ok_or_else(|| damaged("it is too short"))?;
        let (salt, sealed) = rest.split_at_checked(KEY).ok_or_else(|| damaged("it is too short"))?;
        if (*is_sealed == 1) == self.is_none() {
            return Err(damaged("it is not sealed as its repository says"));
        }
        self.cipher(salt, path).open(0, sealed).ok_or_else(|| damaged("it does not open with the repository's key"))
    }
}

/// The bytes of a file before the hash at its end, if the hash is right.
pub(crate) fn checked(file: &[u8]) -> Option<&[u8]> {
    let (body, hash) = file.split_at_checked(file.len().checked_sub(KEY)?)?;
    (Sha256::digest(body).as_slice() == hash).then_some(body)
}

/// The cipher of one file. Without a key it leaves the bytes unchanged.
pub(crate) struct Cipher(Option<Box<Aes256Gcm>>);

impl Cipher {
    /// Seals a frame. Its number must be unique in the file.
    pub(crate) fn seal(&self, frame: u32, plain: &[u8]) -> Result<Vec<u8>> {
        let Some(cipher) = &self.0 else { return Ok(plain.to_vec()) };
        let sealed = Nonce::try_from(&nonce(frame)[..]).ok().and_then(|nonce| cipher.encrypt(&nonce, plain).ok());
        sealed.ok_or_else(|| Error::refused(format!("the cipher refuses {} bytes", plain.len())))
    }

    pub(crate) fn open(&self, frame: u32, sealed: &[u8]) -> Option<Vec<u8>> {
        let Some(cipher) = &self.0 else { return Some(sealed.to_vec()) };
        Nonce::try_from(&nonce(frame)[..]).ok().and_then(|nonce| cipher.decrypt(&nonce, sealed).ok())
    }
}

fn nonce(frame: u32) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[8..].copy_from_slice(&frame.to_be_bytes());
    nonce
}
