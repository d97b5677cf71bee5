//! Whether every file can be had back.

use super::assembly::{Assembly, Sink};
use super::document::{FileDocument, Meaning};
use super::listing::Listing;
use super::{Problem, Progress, Vault};
use crate::error::Result;

/// What putting all files together showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedFiles {
    /// Files that can be had back, deleted ones that are kept and conflicting revisions among them.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What cannot be had back, and why.
    pub problems: Vec<Problem>,
}

impl Vault {
    /// Puts every file together, at each of its live leaves: all its chunks are there, each has the content that
    /// its id says, and together they have the size that its document says.
    ///
    /// # Errors
    /// The store's failures. A file that cannot be put together is none.
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
        // Deleted files and conflicting revisions are not in the total.
        self.at.total_bytes = self.at.total_bytes.max(self.at.bytes);
        (self.progress)(self.at);
        Ok(())
    }
    fn end(&mut self, _: &FileDocument) -> std::result::Result<(), String> {
        Ok(())
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
