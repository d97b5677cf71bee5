//! Restores files from the database to a folder.

use std::collections::HashSet;
use std::path::Path;

use super::assembly::{Assembly, Sink};
use super::document::{FileDocument, Meaning};
use super::listing::Listing;
use super::target::{DIFFERS, PartialFile, Placed, Present, Target, looks_equal};
use super::{Problem, Progress, Vault};
use crate::error::{Error, Result};

/// Options of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Whether to compare every file. Otherwise a file with its document's size and time of change counts as
    /// equal.
    pub checksum: bool,
    /// Whether to replace files that differ.
    pub force: bool,
}

/// Result of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Number of files written.
    pub written: u64,
    /// Bytes of these files.
    pub bytes_written: u64,
    /// Number of files that were equal already.
    pub equal: u64,
    /// Number of deleted files, which were not written.
    pub deleted: u64,
    /// Files that could not be written, with the reason.
    pub problems: Vec<Problem>,
    /// Files that need attention: those with conflicting revisions. The winner was written.
    pub notes: Vec<Problem>,
}

impl Vault {
    /// Writes the files into `folder`, and creates it if needed. Other files in it stay.
    ///
    /// # Errors
    /// [`Error::Folder`] if the folder cannot be used; the store's errors. Failures of single files are in
    /// [`Pulled::problems`].
    pub async fn pull(
        &self,
        folder: &Path,
        options: PullOptions,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Pulled> {
        let cannot = |error: std::io::Error| Error::Folder { path: folder.to_owned(), what: error.to_string() };
        let target = Target::open(folder).map_err(cannot)?;
        let mut at = Progress::default();
        self.files(|file| at.total_bytes += file.size).await?;
        let write = Write { target, options, pulled: Pulled::default(), open: None, at, progress };
        let mut assembly = Assembly::new(self.chunks.clone(), write, false);
        let mut listing = Listing::new();
        let mut paths = HashSet::new();
        while let Some(page) = listing.next(&self.chunks).await? {
            for (id, leaves) in page {
                let Some(winner) = leaves.first() else { continue };
                let write = assembly.sink();
                match Meaning::of(&id, winner, self.chunks.key.as_deref()) {
                    Meaning::Other => {}
                    Meaning::Closed(reason) => write.pulled.problems.push(Problem::new(id, reason)),
                    Meaning::File(file) if file.deleted => write.pulled.deleted += 1,
                    Meaning::File(file) => {
                        if leaves.len() > 1 {
                            let what = format!("has {} conflicting revisions; the winner is written", leaves.len() - 1);
                            write.pulled.notes.push(Problem::new(file.path.as_str(), what));
                        }
                        if !paths.insert(file.path.clone()) {
                            let what = format!("the document \"{id}\" is another one of this path; it is ignored");
                            write.pulled.problems.push(Problem::new(file.path, what));
                        } else if write.wants(&file) {
                            assembly.add(file).await?;
                        }
                    }
                }
            }
        }
        Ok(assembly.finish().await?.pulled)
    }
}

struct Write<P> {
    target: Target,
    options: PullOptions,
    pulled: Pulled,
    open: Option<PartialFile>,
    at: Progress,
    progress: P,
}

impl<P: FnMut(Progress) + Send> Write<P> {
    /// Whether a file's chunks must be read. Otherwise the file is finished here.
    fn wants(&mut self, file: &FileDocument) -> bool {
        let PullOptions { checksum, force } = self.options;
        match self.target.look(&file.path) {
            Err(reason) => self.pulled.problems.push(Problem::new(file.path.as_str(), reason)),
            Ok(Present::File(metadata)) if !checksum && looks_equal(&metadata, file) => self.pulled.equal += 1,
            Ok(Present::File(metadata)) if !force && metadata.len() != file.size => {
                self.pulled.problems.push(Problem::new(file.path.as_str(), DIFFERS));
            }
            Ok(_) => return true,
        }
        self.step(file.size, 1);
        false
    }

    fn step(&mut self, bytes: u64, files: u64) {
        self.at.bytes += bytes;
        self.at.files += files;
        self.at.total_bytes = self.at.total_bytes.max(self.at.bytes);
        (self.progress)(self.at);
    }
}

impl<P: FnMut(Progress) + Send> Sink for Write<P> {
    fn begin(&mut self, file: &FileDocument) -> std::result::Result<(), String> {
        self.open = Some(self.target.begin(&file.path)?);
        Ok(())
    }

    fn piece(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        if let Some(draft) = &mut self.open {
            draft.write(bytes)?;
        }
        self.step(bytes.len() as u64, 0);
        Ok(())
    }

    fn end(&mut self, file: &FileDocument) -> std::result::Result<(), String> {
        let Some(draft) = self.open.take() else { return Ok(()) };
        match self.target.place(draft, file, self.options.force)? {
            Placed::Written => {
                self.pulled.written += 1;
                self.pulled.bytes_written += file.size;
            }
            Placed::Equal => self.pulled.equal += 1,
        }
        Ok(())
    }

    fn abort(&mut self) {
        if let Some(draft) = self.open.take() {
            draft.remove();
        }
    }

    fn outcome(&mut self, file: &FileDocument, outcome: std::result::Result<(), String>) {
        self.step(0, 1);
        if let Err(what) = outcome {
            self.pulled.problems.push(Problem::new(file.path.as_str(), what));
        }
    }
}
