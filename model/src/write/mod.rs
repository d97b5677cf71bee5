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
mod draft;
mod edits;
mod group;
mod indexes;
mod interactive;
mod join;
mod keep;
mod merge;
mod patch;
mod plan;
mod purge;
mod resolve;
mod rewrite;
mod stem;
mod validate;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::error::{TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD};
use kv_api::{Database, Read, RetryError, Transaction, TransactionExt, TransactionOption};

use crate::attachments::check_attachments;
use crate::body::{BodyLimits, StoredBody};
use crate::branch::{Branch, branches};
use crate::documents::Documents;
use crate::edit::{Edit, EditResult, WriteMode, check_body};
use crate::edit_counts::EditCount;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::indexes::Indexing;
use crate::instance::Instance;
use crate::keys::{DatabaseKey, DatabaseKeys};
use crate::limits::{LOCAL_PREFIX, check_document_size};
use crate::parallel;
use crate::quota::gives_back;
use crate::txids::Outcome;
use crate::validation::{Validating, Writing};

use apply::Writer;
use draft::{BodyContext, Draft, DraftMemory, Turn};
use interactive::FirstDecision;
use keep::Keeping;
use merge::Incoming;
use plan::{Decided, Plan};
use validate::Verdicts;

pub use edits::{Begun, Edits, Token};
pub use rewrite::{REWRITE_JOBS, Rewriting};
pub use stem::Stemming;

/// Target size of a batch of branches. It is large, so that a document's branches usually take one round trip.
const TARGET_BYTES: usize = 8_000_000;

/// The prepared writes of a transaction's plans on a database.
struct Prepared<'e> {
    /// The plans; those that were refused are errors.
    decided: Vec<Decided<'e>>,
    ready: Vec<Ready>,
    /// Bodies of all added leaves.
    bodies: Vec<Arc<StoredBody>>,
    attached: Option<attachments::Attached<'e>>,
    keeping: Option<Keeping>,
    indexing: Option<Indexing>,
    /// The row that counts edits, if the transaction is to write one.
    edit_count: Option<EditCount>,
}

/// A plan that can be carried out.
struct Ready {
    /// The turn of the last of its edits.
    turn: usize,
    /// Its place among the plans.
    place: usize,
    bodies: Range<usize>,
    /// The rows of attachments.
    lists: Vec<(Bytes, Bytes)>,
}

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
        // The last group is done first, so the halves of a group can be pushed to the end.
        let mut groups = group::groups(&edits, fit, mode, self.revs_limit_seen());
        groups.reverse();
        if groups.len() > 1 {
            Box::pin(self.check_stubs(&edits, &groups, mode)).await?;
        }
        let mut wrote = false;
        let verdicts = Verdicts::default();
        while let Some(group) = groups.pop() {
            let members: Vec<Turn<'_>> = group.iter().map(|&turn| Turn { turn, edit: &edits[turn] }).collect();
            match self.write_group(&members, mode, wrote, &verdicts).await {
                Ok(group_results) => {
                    wrote |= group_results.iter().any(Result::is_ok);
                    for (&index, result) in group.iter().zip(group_results) {
                        let is_one_of_several =
                            || group.iter().filter(|&&other| edits[other].id == edits[index].id).count() > 1;
                        if result.as_ref().is_err_and(Error::is_refusal) && is_one_of_several() {
                            // A plan is refused as a whole. So each of its edits gets a plan of its own. The verdicts
                            // are known already.
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

    /// Adds the attachments that edits keep to those that they name.
    async fn name_kept(&self, edits: &mut [Edit], results: &mut [Option<EditResult>]) -> Result<()> {
        for (edit, result) in edits.iter_mut().zip(results).filter(|(_, result)| result.is_none()) {
            let Some(rev) = edit.kept_of() else { continue };
            let (id, rev) = (edit.id.as_str(), &rev);
            let list = self.read(|transaction| async move { self.kept(&transaction, id, rev).await }).await;
            *result = alone(list)?.and_then(|list| edit.keep(list)).err().map(Err);
        }
        Ok(())
    }

    /// Asks whether the writer may make an edit, which may change it, and checks it then. The outer error ends the whole
    /// write.
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
    /// edits are of different documents. `wrote` tells whether other edits of the same batch were written.
    async fn write_group(
        &self,
        edits: &[Turn<'_>],
        mode: WriteMode,
        wrote: bool,
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
                let (instance, decided) = self.decide(&transaction, drafts, mode).await?;
                self.carry_out(&transaction, &instance, drafts, decided, wrote, verdicts).await
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

    /// Decides the edits, document by document.
    async fn decide<'e>(
        &self,
        transaction: &D::Transaction,
        drafts: &[Draft<'e>],
        mode: WriteMode,
    ) -> Result<(Instance, Vec<Decided<'e>>)> {
        match mode {
            WriteMode::Interactive => self.decide_interactive(transaction, drafts).await,
            WriteMode::Replicated => self.decide_replicated(transaction, drafts).await,
        }
    }

    async fn decide_interactive<'e>(
        &self,
        transaction: &D::Transaction,
        drafts: &[Draft<'e>],
    ) -> Result<(Instance, Vec<Decided<'e>>)> {
        let keys = self.keys();
        let instance = self.instance(transaction, Read::Serializable);
        if drafts.iter().any(Draft::has_stubs) {
            Box::pin(self.look_up_stubs(transaction, drafts)).await?;
        }
        let first: Vec<_> = drafts.iter().map(|draft| interactive::begin(transaction, keys, draft)).collect();
        let instance = instance.await?;
        let mut decided: Vec<Result<Option<Plan>>> = Vec::with_capacity(drafts.len());
        let mut losing = Vec::new();
        for (index, first) in first.into_iter().enumerate() {
            decided.push(match alone(interactive::decide(keys, &instance, &drafts[index], first).await)? {
                Ok(FirstDecision::Decided(plan)) => plan.map(Some),
                Ok(FirstDecision::Losing { target, made }) => {
                    losing.push((index, target, made));
                    Ok(None)
                }
                Err(damage) => Err(damage.of_document(&drafts[index].edit.id)),
            });
        }
        let second: Vec<_> = losing
            .into_iter()
            .map(|(index, target, made)| {
                (index, interactive::weigh(transaction, keys, drafts[index].edit, target, made))
            })
            .collect();
        for (index, second) in second {
            let edit = drafts[index].edit;
            let plan = alone(interactive::decide_losing(keys, &instance, edit, second).await)?;
            decided[index] = plan.map(Some).map_err(|damage| damage.of_document(&edit.id));
        }
        let decided = decided.into_iter().zip(drafts).enumerate();
        let decided = decided.map(|(at, (plan, draft))| Decided { id: &draft.edit.id, drafts: at..at + 1, plan });
        Ok((instance, decided.collect()))
    }

    async fn decide_replicated<'e>(
        &self,
        transaction: &D::Transaction,
        drafts: &[Draft<'e>],
    ) -> Result<(Instance, Vec<Decided<'e>>)> {
        let keys = self.keys();
        let instance = self.instance(transaction, Read::Serializable);
        let mut documents: Vec<Range<usize>> = Vec::with_capacity(drafts.len());
        for edits in drafts.chunk_by(|one, next| one.edit.id == next.edit.id) {
            let begin = documents.last().map_or(0, |before| before.end);
            documents.push(begin..begin + edits.len());
        }
        let reads: Vec<_> = documents
            .iter()
            .map(|edits| {
                let id = &drafts[edits.start].edit.id;
                let range = keys.range(DatabaseKey::RevisionsOf(id)).target_bytes(TARGET_BYTES);
                transaction.get_all(range, Read::Serializable)
            })
            .collect();
        let instance = instance.await?;
        let mut known = Vec::with_capacity(documents.len());
        for (edits, rows) in documents.iter().zip(reads) {
            known.push(branches(keys, &drafts[edits.start].edit.id, &rows.await?));
        }
        if drafts.iter().any(Draft::has_stubs) {
            let known = documents.iter().zip(&known).flat_map(|(edits, known)| {
                let known = known.as_deref().unwrap_or_default();
                drafts[edits.clone()].iter().map(move |draft| (draft, known))
            });
            Box::pin(self.look_up_replicated_stubs(transaction, known.collect())).await?;
        }
        let mut decided = Vec::with_capacity(documents.len());
        for (edits, known) in documents.into_iter().zip(known) {
            let drafts = &drafts[edits.clone()];
            let id = drafts[0].edit.id.as_str();
            // An edit without a valid revision is left out: its own result is the error.
            let incoming = drafts.iter().enumerate().filter_map(|(place, draft)| {
                let (rev, history) = (draft.leaf().ok()?.rev, draft.edit.incoming().ok()?);
                Some(Incoming { edit: draft.edit, place, rev, history })
            });
            let plan = known.and_then(|known| merge::merge(&instance, incoming.collect(), known));
            decided.push(Decided { id, drafts: edits, plan: plan.map_err(|damage| damage.of_document(id)) });
        }
        Ok((instance, decided))
    }

    /// Validates the edits and writes the plans. Returns the results of the edits.
    async fn carry_out(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        drafts: &[Draft<'_>],
        mut decided: Vec<Decided<'_>>,
        wrote: bool,
        verdicts: &Verdicts,
    ) -> Result<Outcome<Vec<EditResult>>> {
        if validate::concerns(instance, &decided) {
            Box::pin(self.validate(transaction, instance, drafts, &mut decided, verdicts)).await?;
        }
        let (decided, written) = self.apply(transaction, instance, drafts, decided, wrote).await?;
        let mut results = Vec::with_capacity(drafts.len());
        for Decided { drafts: edits, plan, .. } in decided {
            for draft in &drafts[edits] {
                results.push(match &plan {
                    Ok(_) => draft.leaf().map(|leaf| leaf.rev),
                    Err(error) => Err(error.clone()),
                });
            }
        }
        Ok(match written {
            0 => Outcome::ReadOnly(results),
            _ => Outcome::Write(results),
        })
    }

    /// Writes the plans. Returns them, some of them refused now, and the number of plans written. `wrote` tells whether
    /// other edits of the same batch were written.
    async fn apply<'e>(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        drafts: &[Draft<'e>],
        decided: Vec<Decided<'e>>,
        wrote: bool,
    ) -> Result<(Vec<Decided<'e>>, usize)> {
        let prepared = self.prepare(transaction, instance, drafts, decided, wrote).await?;
        self.write_prepared(transaction, instance, prepared).await
    }

    /// Reads what the plans need besides documents. Every check that may still refuse an edit is made here, before
    /// anything is written.
    async fn prepare<'e>(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        drafts: &[Draft<'e>],
        mut decided: Vec<Decided<'e>>,
        wrote: bool,
    ) -> Result<Prepared<'e>> {
        self.saw(instance);
        let has_attachments = |decided: &Decided<'_>| matches!(&decided.plan, Ok(Some(plan)) if plan.has_attachments());
        let mut keeping = None;
        if let Some(keep) = instance.keep {
            keeping = Some(Box::pin(self.prepare_keeping(transaction, (instance, keep), drafts, &mut decided)).await?);
        }
        let mut attached = None;
        if decided.iter().any(has_attachments) || keeping.as_ref().is_some_and(Keeping::has_attachments) {
            let attachments = self.prepare_attachments(transaction, drafts, &mut decided, keeping.as_ref());
            attached = Some(Box::pin(attachments).await?);
        }
        if !wrote {
            attachments::no_missing_stub(&decided)?;
        }
        let mut ready = Vec::with_capacity(decided.len());
        let mut bodies = Vec::with_capacity(drafts.len());
        for (place, Decided { drafts: edits, plan, .. }) in decided.iter_mut().enumerate() {
            let edits = &drafts[edits.clone()];
            if let Ok(Some(planned)) = plan {
                let first = bodies.len();
                let turn = self.bodies(instance, edits, planned, &mut bodies);
                let lists = if attached.is_some() {
                    attachments::lists(edits, planned, self.body_context())
                } else {
                    Ok(Vec::new())
                };
                match turn.and_then(|turn| Ok((turn, lists?))) {
                    Ok((turn, lists)) => ready.push(Ready { turn, place, bodies: first..bodies.len(), lists }),
                    Err(error) => {
                        bodies.truncate(first);
                        *plan = Err(error);
                    }
                }
            }
        }
        let mut indexing = None;
        if indexes::concern(instance, &decided) {
            indexing = Some(Box::pin(self.index_edits(transaction, instance, drafts, &mut decided)).await?);
        }
        let edit_count = self.count_edits(transaction, ready.len()).await?;
        Ok(Prepared { decided, ready, bodies, attached, keeping, indexing, edit_count })
    }

    /// Writes what was prepared. Returns the plans, and how many were written.
    async fn write_prepared<'e>(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        prepared: Prepared<'e>,
    ) -> Result<(Vec<Decided<'e>>, usize)> {
        let Prepared { decided, mut ready, bodies, attached, keeping, indexing, edit_count } = prepared;
        if let Some(attached) = attached {
            Box::pin(self.write_attachments(transaction, attached, &decided)).await?;
        }
        if let Some(keeping) = keeping {
            keeping.write(transaction, self.keys(), &decided);
        }
        // Sequences follow the order of the edits in the batch.
        if !ready.is_sorted_by_key(|ready| ready.turn) {
            ready.sort_unstable_by_key(|ready| ready.turn);
        }
        let mut writer = Writer::new(transaction, self.keys(), instance, decided.len(), bodies);
        for Ready { place, bodies, lists, .. } in ready {
            let Decided { id, plan, .. } = &decided[place];
            if let Ok(Some(plan)) = plan {
                writer.apply(place, id, plan, bodies, lists);
            }
        }
        let written = writer.finish();
        if let Some(edit_count) = edit_count {
            edit_count.write(transaction, self.keys(), instance.incarnation);
        }
        if let Some(indexing) = indexing.filter(|_| written > 0) {
            indexing.write(transaction);
        }
        Ok((decided, written))
    }

    /// Appends the bodies of the leaves that a plan adds. Returns the greatest index of their edits in the batch.
    fn bodies(
        &self,
        instance: &Instance,
        edits: &[Draft<'_>],
        plan: &Plan,
        bodies: &mut Vec<Arc<StoredBody>>,
    ) -> Result<usize> {
        let place = self.body_context();
        let mut turn = 0;
        for new in &plan.added {
            let draft = &edits[new.edit];
            turn = turn.max(draft.turn);
            bodies.extend(draft.rows(&new.leaf, place, instance.format)?);
        }
        Ok(turn)
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
    let plan = Plan { removed: Vec::new(), added: Vec::new(), changed: kept, winner, branches, before: None };
    let mut writer = Writer::new(transaction, keys, instance, 1, Vec::new());
    writer.apply(0, id, &plan, 0..0, Vec::new());
    writer.finish();
}

/// Whether half of the transaction may succeed: the whole affects too many bytes, or takes too long.
pub(crate) fn is_too_much(error: &kv_api::Error) -> bool {
    matches!(error.code(), TRANSACTION_TOO_LARGE | TRANSACTION_TOO_OLD)
}
