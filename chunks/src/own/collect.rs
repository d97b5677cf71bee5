//! Removes the chunks with documents of their own that no file needs.
//!
//! ```text
//!  run 1    census ─► begin ─► condemn                                            edits of files acquit, or bring back,
//!  later    begin ─► census ─► delete what an earlier run condemned, condemn more what they name, at any time
//!                         └──► note what all devices have passed, and remove the text of what they passed long ago
//!                              and no conflict needs
//! ```
//!
//! The database does the steps (`model`, `write/collect.rs`), and says why none of them takes a chunk that a file names.
//! Here the chunks are found, and what holds everything back. Nothing is condemned or removed while anything does.

use kv_api::Database;
use model::{COLLECTED_AT_ONCE, Collection, Condemning, Discarded, Documents, Due, Emptied, InTrash};
use serde_json::{Value, json};

use super::census::{Amount, CensusOptions, Named};
use super::json::{amount, named};
use super::trash::Trash;
use super::would_collect::{WouldCollect, would_collect_vault};
use super::{cut, titles};
use crate::error::{Error, Result, StoreError};

/// Number of rows of the trash that are read, and of chunks that are tried for deletion, at a time.
const ROWS: usize = 1_000;
/// Number of chunks that stay for a reason and are named.
const NAMED_LEFT: usize = 20;

/// Why nothing leaves the trash if the clock is not trusted.
const CLOCK: &str = "the clock is not trusted this time: the last run that nothing held is more than half of the time of the \
                     trash ago, or seems yet to come; look at the clock, and run it more often";

/// Options of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaultCollectOptions {
    /// Time between condemning a chunk and deleting it, in milliseconds.
    pub grace_ms: u64,
    /// Time for which the text of a deleted chunk stays in the trash after all devices have passed its deletion, in
    /// milliseconds. A device that connected must send within it what it wrote before. `None`: no text leaves the trash.
    pub trash_ms: Option<u64>,
    /// The census. A run condemns or deletes at most as many chunks as it names.
    pub census: CensusOptions,
}

/// What a collection did.
#[derive(Clone, Debug)]
pub struct VaultCollected {
    /// What was found. If it has anything that holds back, nothing was done.
    pub found: WouldCollect,
    /// Number of chunks that are condemned since this run.
    pub condemned: u64,
    /// Chunks that were deleted into the trash.
    pub deleted: Amount,
    /// Chunks whose text left the trash for good, and those that stay: that all devices have passed, and others.
    pub emptied: Emptied,
    /// For which devices the trash waits: those that connected least recently. `None` if it waits for none.
    pub waits_for: Option<String>,
    /// What is condemned and in the trash after this run.
    pub trash: Trash,
    /// Chunks that were to be condemned or deleted and stay, with reasons.
    pub left: Named<(String, String)>,
    /// Whether there are more unreferenced chunks than one run takes.
    pub more: bool,
    /// Why the run ended before it had done everything. What the figures say was done.
    pub failed: Option<Error>,
}

/// Collects the chunks of a vault in a database of this process. An interrupted run leaves a consistent state, and the
/// next one goes on. Of two runs at once the first ends with an error. `progress` gets the number of documents read.
///
/// # Errors
/// Those of [`would_collect_vault`], which has the reasons why nothing is done; the store's failures. A failure
/// after something may have been written is [`VaultCollected::failed`].
pub async fn collect_vault<D: Database>(
    documents: &Documents<D>,
    options: VaultCollectOptions,
    progress: impl FnMut(u64) + Send,
) -> Result<VaultCollected> {
    // The first one begins after its census, so a vault that is refused pays nothing. So it may only condemn: another
    // first run may have condemned meanwhile, and a file may have named a chunk before that.
    let collection = match documents.last_collection().await.map_err(failure)? {
        0 => None,
        _ => Some(documents.begin_collection().await.map_err(failure)?),
    };
    let mut found = would_collect_vault(documents, options.census, progress).await?;
    let unreferenced = std::mem::take(&mut found.census.unreferenced_named.first);
    let more = found.census.unreferenced.count > unreferenced.len() as u64;
    let mut done = VaultCollected {
        found,
        condemned: 0,
        deleted: Amount::default(),
        emptied: Emptied::default(),
        waits_for: None,
        trash: Trash::default(),
        left: Named::default(),
        more,
        failed: None,
    };
    if done.found.holds.is_empty() && done.found.census.is_known() {
        let taken = match collection {
            Some(collection) => done.take(documents, collection, &unreferenced, options).await,
            None if unreferenced.is_empty() => Ok(()),
            None => done.condemn_first(documents, &unreferenced).await,
        };
        done.failed = taken.err().map(failure);
    } else if let Some(collection) = collection
        && done.found.passed().is_none()
    {
        // A device of which too little is known has the whole period when it is known again.
        documents.note_passed(collection, None, 0).await.map_err(failure)?;
    }
    done.found.census.unreferenced_named.first = unreferenced;
    match Trash::read(documents).await {
        Ok(trash) => done.trash = trash,
        Err(error) if done.has_written() => done.failed = done.failed.or(Some(error)),
        Err(error) => return Err(done.failed.unwrap_or(error)),
    }
    Ok(done)
}

/// A failure of a step.
fn failure(error: model::Error) -> Error {
    match error.status() {
        507 => Error::Setting("the disk is full: a collection needs room for the trash".into()),
        _ => StoreError::from(error).into(),
    }
}

impl VaultCollected {
    /// The only step of a vault's first collection.
    async fn condemn_first<D: Database>(
        &mut self,
        documents: &Documents<D>,
        unreferenced: &[String],
    ) -> model::Result<()> {
        let condemning = documents.begin_condemning().await?;
        self.condemn(documents, condemning, unreferenced).await
    }

    async fn condemn<D: Database>(
        &mut self,
        documents: &Documents<D>,
        condemning: Condemning,
        chunks: &[String],
    ) -> model::Result<()> {
        // What one call condemns is one transaction, so a failure leaves nothing uncounted.
        for some in chunks.chunks(COLLECTED_AT_ONCE) {
            let done = documents.condemn(condemning, some).await?;
            self.condemned += done.documents;
            self.stay(done.left);
        }
        Ok(())
    }

    /// Carries out the steps. `unreferenced` are in order.
    async fn take<D: Database>(
        &mut self,
        documents: &Documents<D>,
        collection: Collection,
        unreferenced: &[String],
        options: VaultCollectOptions,
    ) -> model::Result<()> {
        // The trash first: it gives back room, and what follows takes some.
        let passed = self.found.passed();
        let due = match (passed, options.trash_ms) {
            (Some(_), None) => Due::default(),
            // If nobody can tell what all devices have passed, the period begins anew.
            (passed, trash_ms) => documents.note_passed(collection, passed, trash_ms.unwrap_or_default()).await?,
        };
        if due.clock_jumped {
            self.found.trash_holds.push(CLOCK.into());
        }
        let mut next = Some(None);
        while let Some(from) = next {
            let page = documents.trash(from, ROWS).await?;
            next = page.next.map(Some);
            let (trashed, condemned): (Vec<InTrash>, _) =
                page.documents.into_iter().partition(|one| one.trashed.is_some());
            if let Some(passed) = passed {
                let trashed = trashed.into_iter().filter(|one| !self.found.census.lacks(&one.id));
                let ids: Vec<String> = trashed.map(|one| one.id).collect();
                documents.empty_trash(collection, &ids, due.upto, passed.seq, &mut self.emptied).await?;
            }
            // A chunk that was condemned by mistake, beside an edit, begins anew.
            if !self.more {
                let condemned = condemned.into_iter().map(|one| one.id);
                let named: Vec<String> = condemned.filter(|id| unreferenced.binary_search(id).is_err()).collect();
                documents.acquit(collection, &named).await?;
            }
        }
        if passed.is_some() && self.emptied.waiting > 0 {
            self.waits_for = Some(titles(self.found.last_to_pass()));
        }
        for some in unreferenced.chunks(ROWS) {
            let mut discarded = Discarded::default();
            let done = documents.discard_condemned_into(collection, some, options.grace_ms, &mut discarded).await;
            self.deleted.count += discarded.documents;
            self.deleted.bytes += discarded.bytes;
            self.stay(discarded.left);
            done?;
            self.condemn(documents, collection.into(), &discarded.not_condemned).await?;
        }
        Ok(())
    }

    /// Whether anything was condemned or deleted, or left the trash.
    pub fn has_written(&self) -> bool {
        self.condemned > 0 || self.deleted.count > 0 || self.emptied.documents > 0
    }

    /// Counts chunks that stay, and names the first.
    fn stay(&mut self, left: Vec<(String, String)>) {
        self.left.count += left.len() as u64;
        let more = NAMED_LEFT.saturating_sub(self.left.first.len());
        self.left.first.extend(left.into_iter().take(more));
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let mut told = self.found.to_json();
        let VaultCollected { condemned, deleted, emptied, waits_for, trash, left, more, .. } = self;
        let Emptied { passed, documents, bytes, .. } = *emptied;
        told["collected"] = json!({
            "condemned": condemned,
            "deleted": amount(deleted),
            "emptied": amount(&Amount { count: documents, bytes }),
            "passed": passed,
            "waits_for": waits_for,
            "trash": trash.to_json(),
            "left": named(left, |(id, why)| json!({"chunk": cut(id), "why": cut(why)})),
            "more": more,
        });
        told
    }
}
