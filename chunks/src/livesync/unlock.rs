//! From a passphrase to a vault that can be read: its key, proved on what the vault has.

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

/// Ciphertexts that a key is tried on.
const SAMPLES: usize = 4;

impl ChunkStore {
    /// The same vault, with the passphrase that its clients have encrypted it with: files and chunks can be read
    /// then, and new ones are encrypted where the vault says so. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Passphrase`] where it is not the one, or where the salt is not there that belongs to it; the
    /// store's failures.
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
        let key = Key::derive(passphrase, &salt);
        let samples = self.samples().await?;
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

    /// Some ciphertexts with their documents' or chunks' ids; none where nothing is encrypted.
    async fn samples(&self) -> Result<Vec<(String, String)>> {
        let mut samples = Vec::new();
        let files = self.store.list(&IdRange::prefix("f:").limit(SAMPLES).with_bodies()).await?;
        for row in files.rows {
            let sealed = row.body.as_ref().and_then(sealed_path).map(str::to_owned);
            samples.extend(sealed.map(|sealed| (row.id, sealed)));
        }
        if !samples.is_empty() {
            return Ok(samples);
        }
        let own = self.store.list(&IdRange::prefix(ENCRYPTED_CHUNK).limit(SAMPLES)).await?;
        let mut ids: BTreeSet<String> = own.rows.into_iter().map(|row| row.id).collect();
        let mut listing = Listing::new();
        while ids.is_empty()
            && let Some(page) = listing.next(self).await?
        {
            let leaves = page.iter().flat_map(|(id, leaves)| leaves.iter().map(move |leaf| (id, leaf)));
            let entries = leaves.filter_map(|(id, leaf)| Entry::read(id, &leaf.body, None).ok().flatten());
            let encrypted = entries.flat_map(|entry| entry.children).filter(|id| id.starts_with(ENCRYPTED_CHUNK));
            ids.extend(encrypted.take(SAMPLES));
        }
        let ids: Vec<String> = ids.into_iter().collect();
        let found = self.get(&ids).await?.into_iter();
        let encrypted = found.filter_map(|(id, chunk)| Some((id, chunk.filter(|chunk| chunk.encrypted)?.data)));
        // What the first encryption wrote proves nothing of this one.
        samples.extend(encrypted.filter(|(_, sealed)| sealed.starts_with(SEALED)));
        Ok(samples)
    }
}
