//! The key from a passphrase, and LiveSync's use of it ("E2EE V2").
//!
//! ```text
//!  passphrase ─ PBKDF2-SHA-256, 310,000 rounds, the database's salt ─► master key
//!  master key ─ HKDF-SHA-256, a salt of each text's own ─► AES-256-GCM
//!  "%=" base64( iv 12 │ salt 32 │ ciphertext and tag )
//!  "%$" base64( salt of the master key 32 │ iv 12 │ salt 32 │ ciphertext and tag )
//! ```
//!
//! The second form stands by itself: texts that lie in no database have it ([`seal_settings`]).
//!
//! The database's salt is in a local document ([`SYNC_PARAMETERS`]). Replications and exports do not copy it. Ids of
//! chunks and files depend on the passphrase only, so that all clients give a piece the same id.

use std::fmt;

use aes_gcm::aead::{Aead, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hkdf::Hkdf;
use sha2::{Digest, Sha256};

use crate::environment::TimedEnvironment;
use crate::error::Error;
use crate::id::hashed_id;

/// Local document with the database's salt.
pub(crate) const SYNC_PARAMETERS: &str = "_local/obsidian_livesync_sync_parameters";
/// Prefix of the ids of encrypted chunks.
pub(crate) const ENCRYPTED_CHUNK: &str = "h:+";

/// Prefix of a ciphertext.
pub(crate) const SEALED: &str = "%=";
/// Prefix of a ciphertext that begins with the salt of its master key.
const SEALED_BY_ITSELF: &str = "%$";
const ROUNDS: u32 = 310_000;
const IV: usize = 12;
const SALT: usize = 32;
/// LiveSync's constant before the part of the passphrase that goes into ids.
const ID_SALT: &str = "a83hrf7f\u{3}y7sa8g31";

/// The keys from a passphrase and a database's salt. The passphrase itself is not kept.
pub(crate) struct Key {
    master: [u8; 32],
    /// Stands for the passphrase in the ids of chunks.
    in_chunk_ids: String,
    /// The same in the ids of files with obfuscated paths.
    in_file_ids: String,
    /// Whether it may differ from the vault's key: the vault has files, but nothing was found to test the key on.
    pub(crate) is_doubtful: bool,
}

impl Key {
    /// Derives the keys, which takes a noticeable part of a second.
    pub(crate) fn derive(passphrase: &str, salt: &[u8]) -> Key {
        let mut master = [0; 32];
        kdf::pbkdf2_sha256(passphrase.as_bytes(), salt, ROUNDS, &mut master);
        let units: Vec<u16> = passphrase.encode_utf16().collect();
        // Three quarters of it, rounded down.
        let part = units.len() * 3 / 4;
        let hashed: Vec<u16> = ID_SALT.encode_utf16().chain(units.into_iter().take(part)).collect();
        Key { master, in_chunk_ids: mixed_hash(&hashed), in_file_ids: hex(passphrase), is_doubtful: false }
    }

    /// Encrypts a text. The ciphertext differs each time.
    ///
    /// # Errors
    /// [`Error::Passphrase`] if the cipher refuses it.
    pub(crate) fn seal(&self, text: &str, environment: &dyn TimedEnvironment) -> crate::Result<String> {
        Ok(format!("{SEALED}{}", STANDARD.encode(self.sealed(text, environment)?)))
    }

    fn sealed(&self, text: &str, environment: &dyn TimedEnvironment) -> crate::Result<Vec<u8>> {
        let mut bytes = vec![0; IV + SALT];
        environment.random(&mut bytes);
        let (iv, salt) = bytes.split_at(IV);
        let sealed = Nonce::try_from(iv).ok().and_then(|iv| self.cipher(salt)?.encrypt(&iv, text.as_bytes()).ok());
        let Some(sealed) = sealed else {
            return Err(Error::Passphrase(format!("the cipher refuses a text of {} bytes", text.len())));
        };
        bytes.extend(sealed);
        Ok(bytes)
    }

    /// Decrypts a ciphertext.
    ///
    /// # Errors
    /// The reason why it cannot be decrypted, as a predicate of the ciphertext.
    pub(crate) fn open(&self, sealed: &str) -> Result<String, String> {
        let text = sealed.strip_prefix(SEALED);
        let text = text.ok_or("is encrypted in a way that this program does not know (only LiveSync's E2EE V2)")?;
        let bytes = STANDARD.decode(text).map_err(|_| "is damaged: its ciphertext is not in base64")?;
        let parts = bytes.split_at_checked(IV).and_then(|(iv, rest)| Some((iv, rest.split_at_checked(SALT)?)));
        let (iv, (salt, content)) = parts.ok_or("is damaged: its ciphertext is too short")?;
        let opened = Nonce::try_from(iv).ok().and_then(|iv| self.cipher(salt)?.decrypt(&iv, content).ok());
        let opened = opened.ok_or("does not open with this passphrase, or is damaged")?;
        String::from_utf8(opened).map_err(|_| "is damaged: the decrypted bytes are not text".into())
    }

    fn cipher(&self, salt: &[u8]) -> Option<Aes256Gcm> {
        let mut key = [0; 32];
        Hkdf::<Sha256>::new(Some(salt), &self.master).expand(&[], &mut key).ok()?;
        Aes256Gcm::new_from_slice(&key).ok()
    }

    /// The id of a piece of a file.
    pub(crate) fn chunk_id(&self, piece: &str) -> String {
        hashed_id(ENCRYPTED_CHUNK, piece, &format!("-{}", self.in_chunk_ids))
    }

    /// The id of the document of a file with this path, where paths are obfuscated.
    pub(crate) fn file_id(&self, path: &str) -> String {
        format!("f:{}", hex(&format!("{}:{}", self.in_file_ids, path.to_lowercase())))
    }
}

/// Encrypts a text that lies in no database by a passphrase: LiveSync's settings in a link
/// (`obsidian://setuplivesync?settings=…`). The ciphertext differs each time. Takes a noticeable part of a second.
///
/// Source: `encryptWithEphemeralSalt` in octagonal-wheels' `encryption/hkdf.ts`.
///
/// # Errors
/// [`Error::Passphrase`] if the cipher refuses it.
pub fn seal_settings(settings: &str, passphrase: &str, environment: &dyn TimedEnvironment) -> crate::Result<String> {
    let mut bytes = vec![0; SALT];
    environment.random(&mut bytes);
    let key = Key::derive(passphrase, &bytes);
    bytes.extend(key.sealed(settings, environment)?);
    Ok(format!("{SEALED_BY_ITSELF}{}", STANDARD.encode(bytes)))
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn hex(text: &str) -> String {
    model::hex(&Sha256::digest(text.as_bytes()))
}

/// LiveSync's hash of a passphrase: variants of murmur3 and FNV-1a over UTF-16 units, each in base 36. Murmur3
/// multiplies integers. JavaScript multiplies doubles instead and loses low bits, so they must be lost here too.
fn mixed_hash(units: &[u16]) -> String {
    let length: Vec<u16> = units.len().to_string().encode_utf16().collect();
    let (mut murmur, mut fnv) = (1.0_f64, 0x811c_9dc5_u32);
    let mut count = 0_u32;
    for &unit in length.iter().chain(units) {
        count += 1;
        fnv = (fnv ^ u32::from(unit)).wrapping_mul(0x0100_0193);
        let scrambled = to_u32(f64::from(unit) * f64::from(0xcc9e_2d51_u32)).rotate_left(15).cast_signed();
        let scrambled = to_u32(f64::from(scrambled) * f64::from(0x1b87_3593));
        let mixed = (to_u32(murmur) ^ scrambled).rotate_left(13).cast_signed();
        murmur = f64::from(mixed) * 5.0 + f64::from(0xe654_6b64_u32);
    }
    let mut murmur = to_u32(murmur) ^ count;
    murmur = (murmur ^ murmur >> 16).wrapping_mul(0x85eb_ca6b);
    // In JavaScript, `h ^= h >>> 13` of a signed number shifts its unsigned form.
    murmur = (murmur ^ murmur >> 13).wrapping_mul(0xc2b2_ae35);
    murmur ^= murmur >> 16;
    crate::id::base36(u64::from(murmur)) + &crate::id::base36(u64::from(fnv))
}

/// JavaScript's conversion of a number to 32 bits.
fn to_u32(number: f64) -> u32 {
    // Below 2^32, and whole.
    number.rem_euclid(4_294_967_296.0) as u32
}

#[cfg(test)]
mod tests {
    use model::SystemEnvironment;

    use super::*;

    /// The inverse, which only LiveSync needs.
    fn opened(sealed: &str, passphrase: &str) -> Result<String, String> {
        let bytes = STANDARD.decode(sealed.strip_prefix(SEALED_BY_ITSELF).unwrap()).unwrap();
        let (salt, rest) = bytes.split_at(SALT);
        Key::derive(passphrase, salt).open(&format!("{SEALED}{}", STANDARD.encode(rest)))
    }

    #[test]
    fn settings_open_with_their_passphrase_only() {
        let settings = r#"{"couchDB_USER":"ä"}"#;
        let [one, other] = [(); 2].map(|()| seal_settings(settings, "right", &SystemEnvironment).unwrap());
        assert_ne!(one, other);
        assert_eq!(opened(&one, "right").as_deref(), Ok(settings));
        assert!(opened(&one, "wrong").is_err());
    }

    /// A ciphertext of octagonal-wheels 0.1.45.
    #[test]
    fn the_form_is_that_of_livesync() {
        let sealed = "%$zcAjCUjbvfOu5oIAq4XTQ3K1FKWJB6VMo93CVW9HKUp0Hs61ycfiE1quipmwkmTRRC1WiixOIOhyyDPK/SWE2EvYNONOWn4G\
                      zeHuGX2iiU3+pFrTOGZvEsQScoTxmqwTSA==";
        assert_eq!(opened(sealed, "pass").as_deref(), Ok("hello"));
    }
}
