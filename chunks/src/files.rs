//! Files: documents whose `children` are chunks, in order.
//!
//! A file is written after its chunks, and while the receipt for them is fresh: a collection keeps unreferenced
//! chunks for the grace period only.

use std::collections::{BTreeMap, BTreeSet};

use crate::ChunkStore;
use crate::database::refused;
use crate::error::{Error, Result};
use crate::livesync::Entry;
use crate::settings::Settings;
use crate::store::{Body, Edit, Refusal, Written};
use crate::write::Receipt;

/// Number of chunks looked up at a time.
const AT_ONCE: usize = 500;

/// Result of a check of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of readable files, each live leaf counted.
    pub files: u64,
    /// Number of chunks that they refer to.
    pub chunks: u64,
    /// Missing chunks, each with the files that refer to it.
    pub missing: BTreeMap<String, Vec<String>>,
    /// Data documents that should have some of them, but are unreadable or have unreadable objects.
    pub damaged: Vec<String>,
    /// Files whose references cannot be read, with the reason. They are not among `files`.
    pub unread: Vec<String>,
}

impl ChunkStore {
    /// Writes a file over its leaf `rev`, once all chunks in its `children` are known to exist. Looks up those that
    /// `receipt` does not cover, or no longer covers.
    ///
    /// # Errors
    /// [`Error::Missing`] if chunks are missing: store them and try again. [`Error::Contended`] if `rev` is no
    /// longer a leaf; the file is left as it is.
    pub async fn put_file(&self, id: &str, rev: Option<&str>, body: Body, receipt: &Receipt) -> Result<String> {
        let edit = Edit { id: id.to_owned(), rev: rev.map(str::to_owned), deleted: false, body };
        let mut failure = None;
        let written = self.put_files(vec![edit], receipt).await?.pop();
        let written = written.unwrap_or_else(|| Err(Refusal::Unknown(String::new())));
        match (refused(id, &written, &mut failure)?, written, failure) {
            (false, Ok(rev), _) => Ok(rev),
            (_, _, Some(failure)) => Err(failure.into()),
            _ => Err(Error::Contended { what: format!("\"{id}\""), attempts: 1 }),
        }
    }

    /// Writes several files in one batch, each with its own result. Ids must differ. Otherwise like
    /// [`put_file`](Self::put_file).
    ///
    /// # Errors
    /// [`Error::Missing`] if chunks of any of them are missing, [`Error::Unread`] if its references cannot be
    /// read. Nothing is written then.
    pub async fn put_files(&self, files: Vec<Edit>, receipt: &Receipt) -> Result<Vec<Written>> {
        let mut named = Vec::new();
        for edit in &files {
            let entry = Entry::read(&edit.id, &edit.body, self.key.as_deref());
            let entry = entry.map_err(|what| Error::Unread { files: 1, first: format!("\"{}\" {what}", edit.id) })?;
            named.extend(entry.unwrap_or_default().children);
        }
        let settings = self.settings().await?;
        let grace = settings.map_or(Settings::default().grace_ms, |settings| settings.grace_ms);
        let is_fresh = self.environment.now_ms().saturating_sub(receipt.checked_ms) < grace / 4;
        let unsure: BTreeSet<String> = named.into_iter().filter(|id| !is_fresh || !receipt.ids.contains(id)).collect();
        if !unsure.is_empty() {
            let (_, missing) = self.ensure(unsure).await?;
            if !missing.is_empty() {
                return Err(Error::Missing(missing));
            }
        }
        Ok(self.store.write(files).await?)
    }

    /// Looks up every chunk of every file, at all of the file's live leaves.
    ///
    /// # Errors
    /// The store's errors. A missing chunk is not an error.
    pub async fn verify(&self, mut progress: impl FnMut(u64) + Send) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
        self.each_file(|file, found| {
            let unread = found.iter().find_map(|found| found.as_ref().err());
            match unread {
                Some(what) => verified.unread.push(format!("\"{file}\" {what}")),
                None => verified.files += 1,
            }
            for entry in found.into_iter().flatten() {
                // Chunks inside the file's document need no data document.
                for chunk in entry.children.into_iter().filter(|chunk| !entry.inline.contains(chunk)) {
                    let files = wanted.entry(chunk).or_default();
                    if files.last().is_none_or(|last| last != file) {
                        files.push(file.to_owned());
                    }
                }
            }
        })
        .await?;
        let mut ids: Vec<String> = wanted.keys().cloned().collect();
        // Chunks of one index together.
        ids.sort_by_key(|id| crate::id::Bucket::of(id));
        for some in ids.chunks(AT_ONCE) {
            for (id, found) in self.read_found(some).await? {
                if found.is_none() {
                    verified.missing.insert(id.clone(), wanted.remove(&id).unwrap_or_default());
                }
            }
            verified.chunks += some.len() as u64;
            progress(verified.chunks);
        }
        let missing: Vec<String> = verified.missing.keys().cloned().collect();
        let mut damaged = BTreeMap::new();
        for some in missing.chunks(AT_ONCE) {
            damaged.extend(self.damaged_places(some).await?);
        }
        verified.damaged = damaged.into_values().map(|error| error.to_string()).collect();
        Ok(verified)
    }

    /// Copies missing chunks from another database: a copy, or the one of a client that was away for longer than the
    /// grace period. Chunks whose data document or object is damaged are stored in another document. Returns the chunks
    /// that are still missing; each copied one is read back.
    ///
    /// # Errors
    /// As for [`put`](Self::put), and the errors of both stores.
    pub async fn repair(&self, missing: &[String], source: &ChunkStore) -> Result<(Receipt, Vec<String>)> {
        let (mut receipt, mut still) = (Receipt::default(), Vec::new());
        for some in missing.chunks(AT_ONCE) {
            let mut brought = Vec::new();
            for (id, chunk) in source.get(some).await? {
                match chunk {
                    Some(chunk) => brought.push((id, chunk)),
                    None => still.push(id),
                }
            }
            let damaged = self.damaged_places(some).await?.into_keys().collect();
            let ids: Vec<String> = brought.iter().map(|(id, _)| id.clone()).collect();
            receipt.merge(self.put_beside(brought, damaged).await?);
            let found = self.get(&ids).await?.into_iter();
            still.extend(found.filter_map(|(id, chunk)| chunk.is_none().then_some(id)));
        }
        Ok((receipt, still))
    }
}
