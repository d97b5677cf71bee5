//! Files: documents whose `children` are chunks, in order.
//!
//! A file is written after its chunks, and while the receipt for them is fresh: a collection keeps what
//! nobody refers to for the grace, and no longer.

use std::collections::{BTreeMap, BTreeSet};

use crate::ChunkStore;
use crate::error::{Error, Result};
use crate::livesync::Entry;
use crate::settings::Settings;
use crate::store::{Body, Edit, Refusal, Written};
use crate::write::{Receipt, refused};

/// Chunks looked for at a time.
const AT_ONCE: usize = 500;

/// What a check of all files found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Files, at their live leaves, that can be read.
    pub files: u64,
    /// Chunks that they refer to.
    pub chunks: u64,
    /// Chunks that are nowhere, each with the files that refer to it.
    pub missing: BTreeMap<String, Vec<String>>,
    /// Data documents that should have some of these and cannot be read, or whose objects cannot.
    pub damaged: Vec<String>,
    /// Files of which it cannot be read which chunks they refer to, with the reason; they are not among `files`.
    pub unread: Vec<String>,
}

impl ChunkStore {
    /// Writes a file over its leaf `rev`, once all chunks in its `children` are known to be there. Those
    /// that `receipt` does not have, or has had for long, are looked for first.
    ///
    /// # Errors
    /// [`Error::Missing`] where chunks are not there: store them, and try again. [`Error::Contended`]
    /// where `rev` is no leaf any more; the file is left as it is.
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

    /// Writes several files in one batch, each with an outcome of its own; no two of one id. Otherwise as
    /// [`put_file`](Self::put_file).
    ///
    /// # Errors
    /// [`Error::Missing`] where chunks of any of them are not there, [`Error::Unread`] where it cannot be read which they
    /// are; nothing was written then.
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

    /// Looks for every chunk of every file, at all of the file's live leaves.
    ///
    /// # Errors
    /// The store's failures. A chunk that is missing is none.
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
                // What LiveSync keeps in the file itself needs no chunk.
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
        // Those of one index together.
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

    /// Brings chunks that are missing here from another database: the one of a client that was away for
    /// longer than the grace, or a copy. Those whose data document is damaged, or its object, are stored in another
    /// one. Gives those that are still missing: each that was brought is read back.
    ///
    /// # Errors
    /// As [`put`](Self::put), and the failures of both stores.
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
