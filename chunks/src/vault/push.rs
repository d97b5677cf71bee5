//! Stores a folder in the database.
//!
//! ```text
//!  scan ─► compare (documents, 100 at a time) ─► read and cut, on a thread ─► rounds of chunks
//!                                                     ─► the documents of files whose chunks are all stored
//! ```
//!
//! The last writer wins, and reports it. A file's document is read before the file, and the new document replaces that
//! leaf. If another client was faster, the document is read again. If it now has the same content, nothing is left to
//! do; otherwise the new one replaces the winner, and the file is reported. Other leaves are not touched.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::document::{FileDocument, Meaning};
use super::known::{Known, content, look, others};
use super::listing::Listing;
use super::local::{LocalFile, Scan, scan};
use super::reader::{CutFile, Event, read_files};
use super::round::{self, ROUND_BYTES, ROUND_CHUNKS};
use super::{Problem, Progress, Vault, path};
use crate::chunk::Chunk;
use crate::environment::pause;
use crate::error::{Error, Result};
use crate::livesync::{Form, in_clear, sealed, sealed_path};
use crate::store::{Body, Edit, Refusal};
use crate::write::Receipt;

/// Number of documents read at a time.
const READ_AT_ONCE: usize = 100;
/// Number of files' documents written at a time, and of chunks named in them.
const WRITE_AT_ONCE: usize = 200;
const CHILDREN_AT_ONCE: usize = 50_000;

/// Options of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushOptions {
    /// Whether to read every file. Otherwise a file with its document's size and time of change counts as
    /// unchanged.
    pub checksum: bool,
    /// Whether to mark files as deleted that are no longer in the folder.
    pub delete: bool,
}

/// Result of a push.
#[derive(Clone, Debug, Default)]
pub struct Pushed {
    /// Number of files that got a new revision.
    pub written: u64,
    /// Number of files that needed no new revision.
    pub unchanged: u64,
    /// Number of files marked as deleted.
    pub deleted: u64,
    /// Bytes of files read.
    pub bytes_read: u64,
    /// Number of chunks stored.
    pub new_chunks: u64,
    /// Number of chunks that were there already. A chunk may count once for each round.
    pub known_chunks: u64,
    /// Bytes of the new chunks' data; for binary files in base64.
    pub chunk_bytes: u64,
    /// Bytes of the index and data documents written for them.
    pub document_bytes: u64,
    /// Files that could not be pushed, with the reason.
    pub problems: Vec<Problem>,
    /// Files that need attention: those with other leaves than the written one, or with replaced edits.
    pub notes: Vec<Problem>,
}

/// A file to be pushed.
#[derive(Clone, Debug)]
struct Outgoing {
    local: LocalFile,
    known: Option<Known>,
}

struct Push<'v, P> {
    vault: &'v Vault,
    form: Form,
    pushed: Pushed,
    progress: P,
    at: Progress,
}

impl Vault {
    /// Stores the files below `folder`. `progress` gets the progress.
    ///
    /// # Errors
    /// [`Error::Folder`] if the folder cannot be read; [`Error::Cutting`]; [`Error::Passphrase`] if the vault is
    /// encrypted and locked, and then nothing is written; the errors of storing chunks. Failures of single files
    /// are in [`Pushed::problems`].
    pub async fn push(
        &self,
        folder: &Path,
        options: PushOptions,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Pushed> {
        let cannot = |error: std::io::Error| Error::Folder { path: folder.to_owned(), what: error.to_string() };
        let Scan { files, problems, present, unread_folders } = scan(folder).map_err(cannot)?;
        let form = self.chunks.form().await?;
        let mut push = Push {
            vault: self,
            form,
            pushed: Pushed { problems, ..Pushed::default() },
            progress,
            at: Progress::default(),
        };
        push.at.total_bytes = files.iter().map(|file| file.bytes).sum();
        let outgoing = push.compare(files, options).await?;
        if !outgoing.is_empty() {
            self.chunks.agree_on_cutting().await?;
            if self.chunks.has_clients().await? {
                let what = "cannot read files pushed here until `chunks migrate --back` has given the chunks their own documents again";
                push.pushed.notes.push(Problem::new("LiveSync's clients", what));
            }
            push.send(folder, outgoing, cannot).await?;
        }
        if options.delete && unread_folders > 0 {
            let what = "nothing was marked as deleted, since a part of the folder could not be read";
            push.pushed.problems.push(Problem::new(folder.to_string_lossy(), what));
        } else if options.delete {
            push.delete(&present).await?;
        }
        Ok(push.pushed)
    }
}

impl<P: FnMut(Progress) + Send> Push<'_, P> {
    /// The files that differ from their documents, or may differ.
    async fn compare(&mut self, files: Vec<LocalFile>, options: PushOptions) -> Result<Vec<Outgoing>> {
        let mut outgoing = Vec::new();
        let mut files = files.into_iter().peekable();
        while files.peek().is_some() {
            let mut some: Vec<LocalFile> = files.by_ref().take(READ_AT_ONCE).collect();
            some.retain_mut(|file| match self.form.file_id(&file.path) {
                Ok(id) => {
                    file.id = id;
                    true
                }
                Err(reason) => {
                    self.pushed.problems.push(Problem::new(file.path.as_str(), reason));
                    false
                }
            });
            let ids: Vec<String> = some.iter().map(|file| file.id.clone()).collect();
            for (local, leaves) in some.into_iter().zip(self.vault.chunks.store.leaves(&ids, false).await?) {
                let bytes = local.bytes;
                match look(&local.path, &local.id, &leaves, self.vault.chunks.key.as_deref(), &mut self.pushed.notes) {
                    Err(reason) => self.pushed.problems.push(Problem::new(local.path, reason)),
                    Ok(Some((file, _)))
                        if !options.checksum
                            && !file.deleted
                            && (file.size, file.mtime) == (bytes, local.mtime)
                            && file.path == local.path =>
                    {
                        self.pushed.unchanged += 1;
                    }
                    Ok(found) => {
                        outgoing.push(Outgoing { local, known: found.map(|(file, rev)| Known::of(&file, rev)) });
                        continue;
                    }
                }
                self.step(bytes, 1);
            }
        }
        Ok(outgoing)
    }

    /// Reads, cuts and stores files.
    async fn send(
        &mut self,
        folder: &Path,
        mut outgoing: Vec<Outgoing>,
        cannot: impl Fn(std::io::Error) -> Error,
    ) -> Result<()> {
        let locals = outgoing.iter().map(|file| file.local.clone()).enumerate().collect();
        let mut events = read_files(folder.to_owned(), locals, self.form.clone()).map_err(&cannot)?;
        let (mut round, mut bytes) = (HashMap::<String, Chunk>::new(), 0);
        // The chunks that waiting and current files refer to.
        let mut receipt = Receipt::default();
        let (mut waiting, mut ended) = (Vec::<(usize, CutFile)>::new(), 0);
        // Number of chunks that the waiting files name.
        let mut children = 0;
        while let Some(event) = events.recv().await {
            let is_inside = matches!(event, Event::Pieces(..));
            match event {
                Event::Pieces(pieces, of) => {
                    for (id, chunk) in pieces {
                        let length = chunk.data.len();
                        if round.insert(id, chunk).is_none() {
                            bytes += length;
                        }
                    }
                    self.pushed.bytes_read += of;
                    self.step(of, 0);
                }
                Event::Done(number, cut) => {
                    ended += 1;
                    children += cut.children.len();
                    waiting.push((number, cut));
                    self.step(0, 1);
                }
                Event::Failed(number, reason) => {
                    ended += 1;
                    if let Some(file) = outgoing.get(number) {
                        self.pushed.problems.push(Problem::new(file.local.path.as_str(), reason));
                    }
                    self.step(0, 1);
                }
            }
            // Preferably between two files: then the receipts of the earlier files can be dropped.
            let is_full = bytes >= ROUND_BYTES
                || round.len() >= ROUND_CHUNKS
                || children >= 4 * ROUND_CHUNKS
                || receipt.ids.len() >= ROUND_CHUNKS;
            let is_more = bytes >= 2 * ROUND_BYTES || round.len() >= 2 * ROUND_CHUNKS;
            if is_full && !is_inside || is_more {
                self.store(&mut round, &mut receipt).await?;
                self.write(&mut outgoing, std::mem::take(&mut waiting), &receipt).await?;
                (bytes, children) = (0, 0);
                if !is_inside {
                    receipt = Receipt::default();
                }
            }
        }
        self.store(&mut round, &mut receipt).await?;
        self.write(&mut outgoing, waiting, &receipt).await?;
        if ended < outgoing.len() {
            // The thread ended unexpectedly.
            return Err(cannot(std::io::Error::other("reading the files ended before they were read")));
        }
        Ok(())
    }

    async fn store(&mut self, round: &mut HashMap<String, Chunk>, receipt: &mut Receipt) -> Result<()> {
        if round.is_empty() {
            return Ok(());
        }
        let chunks = &self.vault.chunks;
        // Prefixes grow in advance: there will be at least this number of chunks.
        chunks.prepare(self.pushed.new_chunks + round.len() as u64).await?;
        let stored = round::store(chunks, round.drain()).await?;
        self.pushed.new_chunks += stored.new;
        self.pushed.known_chunks += stored.known;
        self.pushed.chunk_bytes += stored.chunk_bytes;
        self.pushed.document_bytes += stored.document_bytes;
        receipt.merge(stored);
        Ok(())
    }

    /// Writes the documents of files whose chunks are stored.
    async fn write(
        &mut self,
        outgoing: &mut [Outgoing],
        waiting: Vec<(usize, CutFile)>,
        receipt: &Receipt,
    ) -> Result<()> {
        let mut waiting = waiting.into_iter().peekable();
        while waiting.peek().is_some() {
            let (mut some, mut children) = (Vec::new(), 0);
            while let Some(file) = waiting.next_if(|(_, cut)| {
                some.is_empty() || some.len() < WRITE_AT_ONCE && children + cut.children.len() <= CHILDREN_AT_ONCE
            }) {
                children += file.1.children.len();
                some.push(file);
            }
            self.write_some(outgoing, some, receipt).await?;
        }
        Ok(())
    }

    async fn write_some(
        &mut self,
        outgoing: &mut [Outgoing],
        mut some: Vec<(usize, CutFile)>,
        receipt: &Receipt,
    ) -> Result<()> {
        let chunks = &self.vault.chunks;
        for attempt in 0..chunks.attempts {
            // The changed files.
            let (mut changed, mut edits) = (Vec::new(), Vec::new());
            for (number, cut) in some {
                let Some(Outgoing { local, known }) = outgoing.get(number) else { continue };
                let content = content(&cut.children, cut.kind, cut.bytes);
                let is_same = |known: &Known| known.content == content && known.path == local.path && !known.deleted;
                if known.as_ref().is_some_and(is_same) {
                    self.pushed.unchanged += 1;
                    continue;
                }
                let file = FileDocument {
                    path: local.path.clone(),
                    children: cut.children.clone(),
                    ctime: known.as_ref().map(|known| known.ctime).or(cut.ctime).unwrap_or(cut.mtime),
                    mtime: cut.mtime,
                    size: cut.bytes,
                    kind: cut.kind,
                    deleted: false,
                    inline: Default::default(),
                };
                let rev = known.as_ref().map(|known| known.rev.clone());
                let body = self.form.file(file.to_body())?;
                edits.push(Edit { id: local.id.clone(), rev, deleted: false, body });
                changed.push((number, cut));
            }
            if edits.is_empty() {
                return Ok(());
            }
            let written = chunks.put_files(edits, receipt).await?;
            some = Vec::new();
            for ((number, cut), written) in changed.into_iter().zip(written) {
                let Some(file) = outgoing.get(number) else { continue };
                let problem = match written {
                    Ok(_) => {
                        self.pushed.written += 1;
                        continue;
                    }
                    Err(Refusal::Conflict | Refusal::Unknown(_)) => {
                        some.push((number, cut));
                        continue;
                    }
                    Err(Refusal::TooLarge) => {
                        let count = cut.children.len();
                        format!("its {count} chunks are more than the server takes in a document")
                    }
                    Err(Refusal::Other(reason)) => reason,
                };
                self.pushed.problems.push(Problem::new(file.local.path.as_str(), problem));
            }
            if some.is_empty() {
                return Ok(());
            }
            pause(&*chunks.environment, attempt).await;
            self.look_again(outgoing, &mut some).await?;
        }
        for (number, _) in some {
            let Some(file) = outgoing.get(number) else { continue };
            let what = format!("gave up after {} attempts: others were faster each time", chunks.attempts);
            self.pushed.problems.push(Problem::new(file.local.path.as_str(), what));
        }
        Ok(())
    }

    /// Reads the documents of these files again.
    async fn look_again(&mut self, outgoing: &mut [Outgoing], some: &mut Vec<(usize, CutFile)>) -> Result<()> {
        let ids: Vec<String> =
            some.iter().filter_map(|(number, _)| Some(outgoing.get(*number)?.local.id.clone())).collect();
        let mut found = self.vault.chunks.store.leaves(&ids, false).await?.into_iter();
        let mut still = Vec::new();
        for (number, cut) in some.drain(..) {
            let (Some(file), Some(leaves)) = (outgoing.get_mut(number), found.next()) else { continue };
            let local = &file.local;
            // Its other leaves have been reported already.
            match look(&local.path, &local.id, &leaves, self.vault.chunks.key.as_deref(), &mut Vec::new()) {
                Err(reason) => {
                    self.pushed.problems.push(Problem::new(local.path.as_str(), reason));
                    continue;
                }
                Ok(found) => {
                    let now = found.map(|(document, rev)| Known::of(&document, rev));
                    let rev_of = |known: &Option<Known>| known.as_ref().map(|known| known.rev.clone());
                    let is_mine =
                        now.as_ref().is_some_and(|now| now.content == content(&cut.children, cut.kind, cut.bytes));
                    if !is_mine && rev_of(&now) != rev_of(&file.known) {
                        let what = match rev_of(&now) {
                            Some(rev) => {
                                format!("was changed in the database meanwhile; this push goes on top of {rev}")
                            }
                            None => "was deleted in the database meanwhile; this push creates it again".into(),
                        };
                        self.pushed.notes.push(Problem::new(local.path.as_str(), what));
                    }
                    file.known = now;
                }
            }
            still.push((number, cut));
        }
        *some = still;
        Ok(())
    }

    /// Marks files that are not in the folder as deleted. Their chunks and documents stay, as in LiveSync.
    async fn delete(&mut self, present: &HashSet<String>) -> Result<()> {
        let chunks = &self.vault.chunks;
        let mut listing = Listing::new();
        while let Some(page) = listing.next(chunks).await? {
            let mut edits = Vec::new();
            let mut paths = Vec::new();
            for (id, leaves) in page {
                let Some(winner) = leaves.first() else { continue };
                let Meaning::File(file) = Meaning::of(&id, winner, chunks.key.as_deref()) else { continue };
                if file.deleted || present.contains(&id) || present.contains(&path::id_of(&file.path)) {
                    continue;
                }
                if leaves.len() > 1 {
                    self.pushed.notes.push(others(&file.path, leaves.len()));
                }
                let Some(body) = self.deleted_body(&winner.body)? else { continue };
                paths.push(file.path);
                edits.push(Edit { id, rev: Some(winner.rev.clone()), deleted: false, body });
            }
            if edits.is_empty() {
                continue;
            }
            for (path, written) in paths.into_iter().zip(chunks.store.write(edits).await?) {
                match written {
                    Ok(_) => self.pushed.deleted += 1,
                    Err(Refusal::Conflict) => {
                        let what = "was changed in the database meanwhile, and is not marked as deleted";
                        self.pushed.problems.push(Problem::new(path, what));
                    }
                    Err(refusal) => {
                        self.pushed.problems.push(Problem::new(path, format!("is not marked as deleted: {refusal}")));
                    }
                }
            }
        }
        Ok(())
    }

    /// A file's document, marked as deleted; `None` if it cannot be read. In an encrypted vault the time is
    /// encrypted too.
    ///
    /// # Errors
    /// [`Error::Passphrase`] if it cannot be encrypted.
    fn deleted_body(&self, body: &Body) -> Result<Option<Body>> {
        let chunks = &self.vault.chunks;
        let Ok(deleted) = in_clear(body, chunks.key.as_deref()) else { return Ok(None) };
        let mut deleted = deleted.into_owned();
        deleted.insert("deleted".into(), true.into());
        deleted.insert("mtime".into(), chunks.environment.now_ms().into());
        if let (Some(_), Some(key)) = (sealed_path(body), &chunks.key) {
            deleted = sealed(deleted, |text| key.seal(text, &*chunks.environment))?;
        }
        // Unchanged: encrypted, if it was.
        if let Some(eden) = body.get("eden") {
            deleted.insert("eden".into(), eden.clone());
        }
        Ok(Some(deleted))
    }

    fn step(&mut self, bytes: u64, files: u64) {
        self.at.bytes += bytes;
        self.at.files += files;
        // A file may have grown since it was counted.
        self.at.total_bytes = self.at.total_bytes.max(self.at.bytes);
        (self.progress)(self.at);
    }
}
