//! Writing documents.
//!
//! ```text
//!  edits ─► checked ─► groups ─► drafts ─► one transaction for each group:
//!                                  instance and first reads      one round trip
//!                                  second reads, where needed    one round trip
//!                                  plans ─► rows ─► commit
//! ```
//!
//! Interactive edits of one document go to different groups and are done in order, each on top of the one before it.
//! Replicated edits of one document are merged together and make one [plan](plan::Plan). A group holds as many edits as
//! should fit into a transaction. A group that proves too large or too slow is done in halves. Each edit has its own
//! result. A refused edit does not affect the other edits, nor does a document with damaged rows.
//!
//! Sources: RFC 001 and RFC 003; `fabric2_db:update_docs/3` of CouchDB's FoundationDB branch.

mod apply;
mod attachments;
mod attempt;
pub(crate) mod collect;
mod decide;
mod draft;
pub(crate) mod edit;
mod edits;
mod empty_trash;
pub(crate) mod ended;
mod group;
mod indexes;
mod interactive;
mod join;
mod keep;
mod merge;
mod patch;
mod plan;
pub(crate) mod policy;
mod prepare;
mod purge;
pub(crate) mod quota;
mod resolve;
mod revive;
mod rewrite;
mod stem;
pub(crate) mod txids;
pub(crate) mod unguarded;
mod validate;
pub(crate) mod validation;
mod verdicts;

use kv_api::error::{TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD};
use kv_api::{Database, RetryError, Transaction, TransactionOption};

use crate::attachments::check_attachments;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::DatabaseKeys;
use crate::limits::{LOCAL_PREFIX, check_document_size};
use crate::parallel;
use crate::rows::body::BodyLimits;
use crate::rows::branch::Branch;
use crate::rows::instance::Instance;
use crate::write::edit::{Edit, EditResult, WriteMode, check_body};
use crate::write::quota::gives_back;
use crate::write::validation::{Validating, Writing};

use apply::Writer;
use attempt::{Attempt, MissingStub};
use draft::{BodyContext, Draft, DraftMemory, Turn};
use plan::Plan;
use verdicts::Verdicts;

pub use collect::{COLLECTED_AT_ONCE, Collection, Condemned, Condemning, Discarded, InTrash, TrashPage};
pub use edits::{Begun, Edits, Token};
pub use empty_trash::Emptied;
pub use rewrite::{REWRITE_JOBS, Rewriting};
pub use stem::Stemming;

impl<D: Database> Documents<D> {
    /// Writes edits. Returns their results in order. A refused edit (a conflict, a bad id, a body that is too large)
    /// does not affect the others.
    ///
    /// Large batches take several transactions. Edits that one of them wrote stay written if a later one fails. An edit
    /// whose transaction failed has the store's error as its result.
    ///
    /// Edits of different documents may be written in another order than they have in the batch; interactive edits of
    /// one document may not. Replicated edits of one document that fit into a transaction are merged together. Their
    /// order does not matter, except that the first of two bodies for one revision is stored.
    ///
    /// # Errors
    /// 404 if the database is gone; the store's error if nothing was written. As in CouchDB, one bad attachment fails
    /// the whole batch: `missing_stub`, `attachment_too_large`. But if another transaction of the batch, or another
    /// writer, removed the attachment of a stub meanwhile, only that edit fails.
    pub async fn write(&self, mut edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<EditResult>> {
        let mut results: Vec<Option<EditResult>> = Vec::with_capacity(edits.len());
        for edit in &mut edits {
            results.push(self.admit(edit, mode).await?.err().map(Err));
        }
        if self.is_partitioned() && results.iter().any(Option::is_some) {
            // Another database of this name may not be partitioned.
            self.is_partitioned_now().await?;
        }
        if mode == WriteMode::Interactive && edits.iter().any(|edit| edit.kept_of().is_some()) {
            Box::pin(self.name_kept(&mut edits, &mut results)).await?;
        }
        let fit: Vec<usize> = (0..edits.len()).filter(|&index| results[index].is_none()).collect();
        for &index in &fit {
            if !edits[index].attachments.is_empty() {
                Box::pin(self.upload_data(&mut edits[index])).await?;
            }
        }
        // The last group in the list is done first, so the halves of a group can be pushed to the end.
        let mut groups = group::groups(&edits, fit, mode, self.revs_limit_seen(), self.format_seen());
        groups.reverse();
        if groups.len() > 1 {
            Box::pin(self.check_stubs(&edits, &groups, mode)).await?;
        }
        let mut wrote = false;
        let verdicts = Verdicts::default();
        while let Some(group) = groups.pop() {
            let members: Vec<Turn<'_>> = group.iter().map(|&turn| Turn { turn, edit: &edits[turn] }).collect();
            // Once something is written, the rest of the batch must be tried.
            let missing_stub = if wrote { MissingStub::FailsItsEdit } else { MissingStub::FailsTheBatch };
            match self.write_group(&members, mode, missing_stub, &verdicts).await {
                Ok(group_results) => {
                    wrote |= group_results.iter().any(Result::is_ok);
                    for (&index, result) in group.iter().zip(group_results) {
                        let is_one_of_several =
                            || group.iter().filter(|&&other| edits[other].id == edits[index].id).count() > 1;
                        if result.as_ref().is_err_and(Error::is_refusal) && is_one_of_several() {
                            // A plan is refused as a whole. So each of its edits gets its own plan. The verdicts are
                            // known already.
                            groups.push(vec![index]);
                            continue;
                        }
                        results[index] = Some(result);
                    }
                }
                Err(error) if group.len() > 1 && error.kv_error().is_some_and(is_too_much) => {
                    let (earlier, later) = group::halves(&edits, group);
                    groups.extend([later, earlier]);
                }
                Err(error) if error.kv_error().is_some_and(|error| error.code() == TRANSACTION_TOO_LARGE) => {
                    for index in group {
                        results[index] = Some(Err(ErrorKind::DocumentTooLarge(edits[index].id.clone()).into()));
                    }
                }
                Err(error) if !wrote => return Err(error),
                Err(error) => {
                    for index in group.into_iter().chain(groups.drain(..).flatten()) {
                        results[index] = Some(Err(error.clone()));
                    }
                }
            }
        }
        let missing = || Err(Error::without_result());
        Ok(results.into_iter().map(|result| result.unwrap_or_else(missing)).collect())
    }

    /// Writes one interactive edit. Returns the new revision.
    ///
    /// # Errors
    /// 409, and the errors that [`write`](Self::write) returns for an edit.
    pub async fn put(&self, edit: Edit) -> Result<crate::RevId> {
        let result = self.write(vec![edit], WriteMode::Interactive).await?.pop();
        result.unwrap_or_else(|| Err(Error::without_result()))
    }

    /// Adds the attachments that edits keep to the attachments that they name.
    async fn name_kept(&self, edits: &mut [Edit], results: &mut [Option<EditResult>]) -> Result<()> {
        for (edit, result) in edits.iter_mut().zip(results).filter(|(_, result)| result.is_none()) {
            let Some(rev) = edit.kept_of() else { continue };
            let (id, rev) = (edit.id.as_str(), &rev);
            let list = self.read(|transaction| async move { self.kept(&transaction, id, rev).await }).await;
            *result = alone(list)?.and_then(|list| edit.keep(list)).err().map(Err);
        }
        Ok(())
    }

    /// Asks whether the writer may make an edit; the validator may change it. Then checks the edit. The outer error
    /// ends the whole write.
    async fn admit(&self, edit: &mut Edit, mode: WriteMode) -> Result<Result<()>> {
        match self.authorize(Writing::Edit(edit, mode)).await {
            Err(error) if error.is_of_edit() => return Ok(Err(error)),
            authorized => authorized?,
        }
        let checked = self.check_edit(edit);
        if self.quota.is_some() && checked.is_ok() {
            return Ok(self.refused_by_quota(edit, mode).await?.map_or(Ok(()), |full| Err(full.into())));
        }
        Ok(checked)
    }

    fn check_edit(&self, edit: &Edit) -> Result<()> {
        self.check_id(&edit.id)?;
        if edit.id.starts_with(LOCAL_PREFIX) {
            return Err(ErrorKind::IllegalDocId("Local documents have no edits.".into()).into());
        }
        check_document_size(&edit.id, edit.body.len(), self.max_document_size())?;
        check_attachments(&edit.id, &edit.attachments)?;
        check_body(&edit.body)
    }

    /// Writes edits in one transaction. Returns their results in order. Edits of one document are adjacent; interactive
    /// edits are of different documents.
    async fn write_group(
        &self,
        edits: &[Turn<'_>],
        mode: WriteMode,
        missing_stub: MissingStub,
        verdicts: &Verdicts,
    ) -> Result<Vec<EditResult>> {
        let drafts = self.drafts(edits, mode);
        let drafts = drafts.as_slice();
        if self.validates_seen() && matches!(self.validating, Validating::By(_)) {
            Box::pin(self.ask_early(drafts, mode, verdicts)).await;
        }
        // A transaction of several edits that became too old is not retried, but done in halves.
        let hopeless = |error: &kv_api::Error| edits.len() > 1 && is_too_much(error);
        let frees_space = drafts.iter().all(|draft| gives_back(draft.edit));
        self.thin_counts_if_due().await;
        self.shared
            .guard
            .run_unless(hopeless, |transaction| async move {
                if frees_space {
                    transaction.set_option(TransactionOption::BypassStorageQuota);
                }
                let attempt = self.attempt(&transaction, drafts, mode, verdicts);
                Attempt { missing_stub, ..attempt }.run().await
            })
            .await
    }

    /// Drafts edits, as far as that needs no read from the store.
    fn drafts<'e>(&self, edits: &[Turn<'e>], mode: WriteMode) -> Vec<Draft<'e>> {
        let (place, format) = (self.body_context(), self.format_seen());
        parallel::map(self.shared.threads, edits, DraftMemory::default, |memory, edit| {
            Draft::new(*edit, mode, place, format, memory)
        })
    }

    fn body_context(&self) -> BodyContext<'_> {
        let limits = self.engine().limits();
        let (max_key_bytes, max_value_bytes) = (limits.key_bytes, limits.value_bytes);
        BodyContext {
            keys: self.keys(),
            limits: BodyLimits { max_key_bytes, max_value_bytes, ..BodyLimits::default() },
        }
    }
}

/// Writes the rows of a document that has exactly these branches, as part of a transaction: the winner with a new
/// sequence, its change and its listing. Its previous rows must be cleared, except bodies. This does not adjust the
/// counters: the caller must.
pub(crate) fn write_kept<T: Transaction>(
    transaction: &T,
    keys: &DatabaseKeys,
    instance: &Instance,
    id: &str,
    kept: Vec<Branch>,
) {
    let winner = kept.iter().map(|branch| &branch.leaf).max().cloned();
    if winner.is_none() {
        return;
    }
    let branches = kept.len() as u64;
    let (removed, added) = (Vec::new(), Vec::new());
    let plan = Plan { removed, added, changed: kept, winner, branches, before: None, brings_back: false };
    let mut writer = Writer::new(transaction, keys, instance, 1, Vec::new());
    writer.apply(0, id, &plan, 0..0, Vec::new());
    writer.finish();
}

/// Whether half of the transaction may succeed: the whole affects too many bytes, or takes too long.
pub(crate) fn is_too_much(error: &kv_api::Error) -> bool {
    matches!(error.code(), TRANSACTION_TOO_LARGE | TRANSACTION_TOO_OLD)
}
