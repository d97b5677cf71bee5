//! Unlocks a vault: derives the key from a passphrase, and tests it on the vault's contents.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::key::{SEALED, SYNC_PARAMETERS};
use super::{ENCRYPTED_CHUNK, Entry, Key, sealed_path};
use crate::ChunkStore;
use crate::error::{Error, Result};
use crate::store::IdRange;
use crate::vault::Listing;

/// Number of ciphertexts that test a key, and of chunks read at a time.
const SAMPLES: usize = 4;
/// Maximum number of chunks examined: some may be missing, or encrypted by LiveSync's first encryption.
const CANDIDATES: usize = 200;

/// Material to test a key on.
#[derive(Default)]
struct Samples {
    /// Ciphertexts with the ids of their documents or chunks.
    sealed: Vec<(String, String)>,
    /// Whether any files or chunks were found.
    has_files: bool,
}

impl ChunkStore {
    /// The same vault with its clients' passphrase: files and chunks can be read, and new ones are encrypted where
    /// the vault's setting asks for it. Writes nothing. If nothing in the vault proves the passphrase, it can only
    /// be used for reading.
    ///
    /// # Errors
    /// [`Error::Passphrase`] if it is wrong, or if the salt that belongs to it is missing; the store's errors.
    pub async fn unlock(mut self, passphrase: &str) -> Result<ChunkStore> {
        let refused = |what: String| Err(Error::Passphrase(what));
        let Some(parameters) = self.store.local(SYNC_PARAMETERS).await? else {
            return refused(format!(
                "there is no \"{SYNC_PARAMETERS}\" in this database, whose salt a passphrase needs: it is a local \
                 document, which neither replication nor an export carries; copy it from the database that LiveSync's \
                 clients use"
            ));
        };
        let salt = parameters.get("pbkdf2salt").and_then(Value::as_str).and_then(|salt| STANDARD.decode(salt).ok());
        let Some(salt) = salt.filter(|salt| !salt.is_empty()) else {
            return refused(format!("\"{SYNC_PARAMETERS}\" has no \"pbkdf2salt\" in base64"));
        };
        let mut key = Key::derive(passphrase, &salt);
        let Samples { sealed: samples, has_files } = self.samples().await?;
        key.is_doubtful = samples.is_empty() && has_files;
        if let Some((name, _)) = samples.first()
            && !samples.iter().any(|(_, sealed)| key.open(sealed).is_ok())
        {
            let others = match samples.len() {
                1 => String::new(),
                count => format!(", nor {} others that were tried", count - 1),
            };
            return refused(format!("the passphrase is wrong: it does not open \"{name}\"{others}"));
        }
        self.key = Some(Arc::new(key));
        Ok(self)
    }

    /// Finds material to test a key on.
    async fn samples(&self) -> Result<Samples> {
        let mut samples = Samples::default();
        let files = self.store.list(&IdRange::prefix("f:").limit(SAMPLES).with_bodies()).await?;
        for row in files.rows {
            let sealed = row.body.as_ref().and_then(sealed_path).map(str::to_owned);
            samples.sealed.extend(sealed.map(|sealed| (row.id, sealed)));
        }
        if !samples.sealed.is_empty() {
            return Ok(samples);
        }
        let own = self.store.list(&IdRange::prefix(ENCRYPTED_CHUNK).limit(CANDIDATES)).await?;
        let own: Vec<String> = own.rows.into_iter().map(|row| row.id).collect();
        samples.has_files = !own.is_empty();
        let mut tried = self.try_chunks(&own, &mut samples).await?;
        let mut listing = Listing::new();
        while samples.sealed.is_empty()
            && tried < CANDIDATES
            && let Some(page) = listing.next(self).await?
        {
            let mut ids = BTreeSet::new();
            for (id, leaf) in page.iter().flat_map(|(id, leaves)| leaves.iter().map(move |leaf| (id, leaf))) {
                let entry = Entry::read(id, &leaf.body, None);
                samples.has_files |= !matches!(entry, Ok(None));
                samples.sealed.extend(sealed_path(&leaf.body).map(|sealed| (id.clone(), sealed.to_owned())));
                let children = entry.ok().flatten().into_iter().flat_map(|entry| entry.children);
                ids.extend(children.filter(|id| id.starts_with(ENCRYPTED_CHUNK)));
            }
            let ids: Vec<String> = ids.into_iter().collect();
            tried += self.try_chunks(&ids, &mut samples).await?;
        }
        Ok(samples)
    }

    /// Adds the ciphertexts of chunks, a few at a time until there are some. Returns the number of chunks
    /// examined.
    async fn try_chunks(&self, ids: &[String], samples: &mut Samples) -> Result<usize> {
        let mut tried = 0;
        for some in ids.chunks(SAMPLES) {
            if !samples.sealed.is_empty() {
                break;
            }
            tried += some.len();
            let found = self.get(some).await?.into_iter();
            let encrypted = found.filter_map(|(id, chunk)| Some((id, chunk.filter(|chunk| chunk.encrypted)?.data)));
            // Ciphertexts of the first encryption prove nothing about this one.
            samples.sealed.extend(encrypted.filter(|(_, sealed)| sealed.starts_with(SEALED)));
        }
        Ok(tried)
    }
}
