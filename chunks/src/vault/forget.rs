//! Deletes the documents of files that were marked as deleted long ago. Until then they keep their chunks.

use super::document::Meaning;
use super::listing::Listing;
use super::{Problem, Vault};
use crate::error::Result;
use crate::store::{Edit, Leaf};

/// Result; of a dry run, what it would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Number of deleted files whose documents were ended.
    pub files: u64,
    /// Number of deleted files that stay because they were deleted later.
    pub kept: u64,
    /// Deleted files that stay for another reason.
    pub problems: Vec<Problem>,
}

/// Decision about a file.
enum Fate {
    NotDeleted,
    TooYoung,
    Forget,
}

impl Vault {
    /// Ends the documents of files that were marked as deleted at least `older_than_ms` ago, at each of their live
    /// leaves. Later collections remove their chunks, unless other files refer to them. With `dry_run` nothing is
    /// written.
    ///
    /// # Errors
    /// The store's failures.
    pub async fn forget(&self, older_than_ms: u64, dry_run: bool) -> Result<Forgotten> {
        let mut forgotten = Forgotten::default();
        let before_ms = self.chunks.environment.now_ms().saturating_sub(older_than_ms);
        let mut listing = Listing::new();
        while let Some(page) = listing.next(&self.chunks).await? {
            let mut due = Vec::new();
            for (id, leaves) in page {
                match self.fate(&id, &leaves, before_ms) {
                    Ok(Fate::NotDeleted) => {}
                    Ok(Fate::TooYoung) => forgotten.kept += 1,
                    Ok(Fate::Forget) => due.push((id, leaves)),
                    Err(what) => forgotten.problems.push(Problem::new(id, what)),
                }
            }
            if dry_run {
                forgotten.files += due.len() as u64;
                continue;
            }
            for (id, leaves) in due {
                match self.end(&id, leaves).await? {
                    None => forgotten.files += 1,
                    Some(what) => forgotten.problems.push(Problem::new(id, what)),
                }
            }
        }
        Ok(forgotten)
    }

    /// Decides about a file with these live leaves, the winner first.
    fn fate(&self, id: &str, leaves: &[Leaf], before_ms: u64) -> std::result::Result<Fate, String> {
        let is_deleted = |leaf: &Leaf| leaf.body.get("deleted") == Some(&serde_json::Value::Bool(true));
        if !leaves.first().is_some_and(is_deleted) {
            return Ok(Fate::NotDeleted);
        }
        let mut fate = Fate::Forget;
        for leaf in leaves {
            match Meaning::of(id, leaf, self.chunks.key.as_deref()) {
                Meaning::Other => return Ok(Fate::NotDeleted),
                Meaning::Closed(reason) => return Err(reason),
                Meaning::File(file) if !file.deleted => {
                    return Err("has a conflicting revision that is not deleted; it is left".into());
                }
                Meaning::File(file) if file.mtime == 0 => return Err("does not say when it was deleted".into()),
                Meaning::File(file) if file.mtime > before_ms => fate = Fate::TooYoung,
                Meaning::File(_) => {}
            }
        }
        Ok(fate)
    }

    /// Ends all leaves, the winner last. If another client was faster, returns why they were not ended.
    async fn end(&self, id: &str, leaves: Vec<Leaf>) -> Result<Option<String>> {
        for leaf in leaves.into_iter().rev() {
            for written in self.chunks.store.write(vec![Edit::delete(id, leaf.rev)]).await? {
                if let Err(refusal) = written {
                    return Ok(Some(format!("was changed meanwhile, and is left: {refusal}")));
                }
            }
        }
        Ok(None)
    }
}
