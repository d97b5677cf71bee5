//! Checks that every file can be restored.

use super::assembly::{Assembly, Sink};
use super::document::{FileDocument, Meaning};
use super::listing::Listing;
use super::{Problem, Progress, Vault};
use crate::error::Result;

/// Result of assembling all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedFiles {
    /// Number of files that can be restored, including deleted ones that are kept and conflicting revisions.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that cannot be restored, with the reason.
    pub problems: Vec<Problem>,
    /// Files that can be restored, and about which there is a doubt: chunks whose ids are not the hash of their data.
    pub warnings: Vec<Problem>,
}

impl Vault {
    /// Assembles every file, at each of its live leaves. Checks that all chunks exist and that the file has
    /// the size in its document. A chunk that does not match its id is a warning.
    ///
    /// # Errors
    /// The store's errors. A file that cannot be restored is not an error.
    pub async fn verify(&self, progress: impl FnMut(Progress) + Send) -> Result<VerifiedFiles> {
        let mut at = Progress::default();
        self.files(|file| at.total_bytes += file.size).await?;
        let sink = Count { verified: VerifiedFiles::default(), at, progress };
        let mut assembly = Assembly::new(self.chunks.clone(), sink, true);
        let mut listing = Listing::new();
        while let Some(page) = listing.next(&self.chunks).await? {
            for (id, leaves) in page {
                for (number, leaf) in leaves.iter().enumerate() {
                    let beside = if number == 0 { String::new() } else { format!(" (revision {})", leaf.rev) };
                    match Meaning::of(&id, leaf, self.chunks.key.as_deref()) {
                        Meaning::Other => {}
                        Meaning::Closed(reason) => {
                            assembly.sink().verified.problems.push(Problem::new(format!("{id}{beside}"), reason));
                        }
                        Meaning::File(mut file) => {
                            file.path += &beside;
                            assembly.add(file).await?;
                        }
                    }
                }
            }
        }
        Ok(assembly.finish().await?.verified)
    }
}

struct Count<P> {
    verified: VerifiedFiles,
    at: Progress,
    progress: P,
}

impl<P: FnMut(Progress) + Send> Sink for Count<P> {
    fn begin(&mut self, _: &FileDocument) -> std::result::Result<(), String> {
        Ok(())
    }
    fn piece(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        self.at.bytes += bytes.len() as u64;
        // The total does not include deleted files and conflicting revisions.
        self.at.total_bytes = self.at.total_bytes.max(self.at.bytes);
        (self.progress)(self.at);
        Ok(())
    }
    fn end(&mut self, _: &FileDocument) -> std::result::Result<(), String> {
        Ok(())
    }
    fn doubt(&mut self, file: &FileDocument, what: String) {
        self.verified.warnings.push(Problem::new(file.path.as_str(), what));
    }
    fn abort(&mut self) {}
    fn outcome(&mut self, file: &FileDocument, outcome: std::result::Result<(), String>) {
        self.at.files += 1;
        match outcome {
            Ok(()) => {
                self.verified.files += 1;
                self.verified.bytes += file.size;
            }
            Err(what) => self.verified.problems.push(Problem::new(file.path.as_str(), what)),
        }
    }
}
