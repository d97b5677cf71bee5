//! The form in which a vault's clients write files. A push must use the same.

use std::sync::Arc;

use serde_json::Value;

use super::{ENCRYPTED_CHUNK, Entry, Key, MILESTONE, sealed, sealed_path};
use crate::ChunkStore;
use crate::contents::Contents;
use crate::environment::TimedEnvironment;
use crate::error::{Error, Result};
use crate::placement::{DATA_PREFIX, data_parts};
use crate::store::{Body, IdRange};
use crate::vault::{Listing, id_of};

/// Number of data documents examined at a time. If files are in clear, it is the total number.
const DATA_SAMPLES: usize = 4;

/// Form of new files and chunks.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    key: Option<Arc<Key>>,
    obfuscates: bool,
    environment: Arc<dyn TimedEnvironment>,
}

impl ChunkStore {
    /// The form in which files must be written.
    ///
    /// # Errors
    /// [`Error::Passphrase`] if the vault is encrypted and locked, if it is in clear and was unlocked, or if
    /// nothing proves the passphrase. [`Error::Setting`] if its clients write in an unknown way.
    pub(crate) async fn form(&self) -> Result<Form> {
        let milestone = self.store.local(MILESTONE).await?.unwrap_or_default();
        let agreed = milestone.get("tweak_values").and_then(|values| values.get("PREFERRED"));
        let is_set = |name: &str| agreed.and_then(|values| values.get(name)) == Some(&Value::Bool(true));
        let is_encrypted = is_set("encrypt") || agreed.is_none() && self.looks_encrypted().await?;
        match (is_encrypted, &self.key) {
            (true, None) => {
                let what = "this vault is encrypted: a push must encrypt too, and needs its passphrase";
                return Err(Error::Passphrase(what.into()));
            }
            (false, Some(_)) => {
                let what =
                    "a passphrase was given, but this vault is not encrypted, so a push would not encrypt either";
                return Err(Error::Passphrase(what.into()));
            }
            (true, Some(key)) if key.is_doubtful => {
                let what = "nothing in this vault proves the passphrase: no encrypted chunk was found to try it \
                            on, and the vault's clients cannot read files pushed with another passphrase";
                return Err(Error::Passphrase(what.into()));
            }
            _ => {}
        }
        if is_set("handleFilenameCaseSensitive") {
            let what =
                "the clients of this vault distinguish A.md from a.md, and this program does not: nothing is pushed";
            return Err(Error::Setting(what.into()));
        }
        for (name, known) in [("E2EEAlgorithm", "v2"), ("hashAlg", "xxhash64")] {
            let found = agreed.and_then(|values| values.get(name));
            if let Some(found) = found.filter(|found| is_encrypted && **found != known) {
                return Err(Error::Setting(format!(
                    "the clients of this vault have set {name} to {found}, and this program knows \"{known}\": nothing is pushed"
                )));
            }
        }
        let obfuscates = match agreed {
            Some(_) => is_set("usePathObfuscation"),
            None => !self.store.list(&IdRange::prefix("f:").limit(1)).await?.rows.is_empty(),
        };
        let obfuscates = is_encrypted && obfuscates;
        Ok(Form { key: self.key.clone(), obfuscates, environment: self.environment.clone() })
    }

    /// Whether anything is encrypted, for a vault without a setting. Examines all files: one that was pushed in
    /// clear by mistake must not lead to more.
    ///
    /// # Errors
    /// [`Error::Passphrase`] if the documents cannot be read, so that it stays unknown; the store's errors.
    async fn looks_encrypted(&self) -> Result<bool> {
        for prefix in ["f:", ENCRYPTED_CHUNK] {
            if !self.store.list(&IdRange::prefix(prefix).limit(1)).await?.rows.is_empty() {
                return Ok(true);
            }
        }
        let is_encrypted = |id: &String| id.starts_with(ENCRYPTED_CHUNK);
        // Whether anything is known to be in clear, and why something may still be encrypted.
        let (mut in_clear, mut doubt) = (false, None);
        let mut listing = Listing::new();
        while let Some(page) = listing.next(self).await? {
            for (id, leaf) in page.iter().flat_map(|(id, leaves)| leaves.iter().map(move |leaf| (id, leaf))) {
                if sealed_path(&leaf.body).is_some() {
                    return Ok(true);
                }
                match Entry::read(id, &leaf.body, None) {
                    Ok(Some(entry)) if entry.children.iter().chain(&entry.inline).any(is_encrypted) => return Ok(true),
                    Ok(entry) => in_clear |= entry.is_some_and(|entry| !entry.children.is_empty()),
                    Err(why) => doubt = Some(format!("\"{id}\" {why}")),
                }
            }
        }
        let files_in_clear = in_clear;
        let mut range = Some(IdRange::prefix(DATA_PREFIX).limit(DATA_SAMPLES).with_bodies());
        while let Some(next) = range {
            let page = self.store.list(&next).await?;
            for row in page.rows.iter().filter(|row| data_parts(&row.id).is_some()) {
                match row.body.as_ref().map(|body| Contents::read(&row.id, body)) {
                    Some(Ok(contents)) if contents.sizes().keys().any(is_encrypted) => return Ok(true),
                    Some(Ok(contents)) => in_clear |= !contents.sizes().is_empty(),
                    Some(Err(error)) => doubt = Some(error.to_string()),
                    None => {}
                }
            }
            // Chunks decide only if no file does.
            range = page.rest.filter(|_| !files_in_clear);
        }
        match doubt {
            Some(why) if !in_clear => Err(Error::Passphrase(format!(
                "nothing is pushed, since it is unknown whether this vault is encrypted: {why}"
            ))),
            _ => Ok(false),
        }
    }
}

impl Form {
    /// The id of a file's document.
    ///
    /// # Errors
    /// The reason why the path has no id.
    pub(crate) fn file_id(&self, path: &str) -> std::result::Result<String, String> {
        match &self.key {
            Some(_) if self.obfuscates && path.contains(':') => {
                Err("there is a colon in its path, and LiveSync does not obfuscate such a path".into())
            }
            Some(key) if self.obfuscates => Ok(key.file_id(path)),
            _ => Ok(id_of(path)),
        }
    }

    /// A file's document.
    ///
    /// # Errors
    /// [`Error::Passphrase`] if it cannot be encrypted.
    pub(crate) fn file(&self, body: Body) -> Result<Body> {
        match &self.key {
            Some(key) if self.obfuscates => sealed(body, |text| key.seal(text, &*self.environment)),
            _ => Ok(body),
        }
    }

    /// A piece of a file as a chunk, with its id.
    ///
    /// # Errors
    /// As for [`file`](Self::file).
    pub(crate) fn chunk(&self, piece: String) -> Result<(String, crate::Chunk)> {
        Ok(match &self.key {
            Some(key) => (key.chunk_id(&piece), crate::Chunk::encrypted(key.seal(&piece, &*self.environment)?)),
            None => (crate::chunk_id(&piece), crate::Chunk::plain(piece)),
        })
    }
}
