//! Writing documents.
//!
//! ```text
//!  edits ─► checked ─► rounds ─► groups ─► drafts ─► one transaction for each group:
//!                                            instance and first reads      one round trip
//!                                            second reads, where needed    one round trip
//!                                            plans ─► rows ─► commit
//! ```
//!
//! A round holds at most one edit of each document, so that edits of one document are done in their
//! order, each on top of the one before it. A group holds as many edits of a round as fit well into a
//! transaction. Each edit has a result of its own; one that is refused leaves its neighbours alone.
//!
//! Sources: RFC 001 and RFC 003; `fabric2_db:update_docs/3` of CouchDB's FoundationDB branch.

mod apply;
mod draft;
mod group;
mod interactive;
mod join;
mod merge;
mod plan;

use kv_api::error::TRANSACTION_TOO_LARGE;
use kv_api::{Database, Read, RetryError, TransactionExt};

use crate::body::BodyLimits;
use crate::documents::Documents;
use crate::edit::{Edit, EditResult, RevHistory, WriteMode};
use crate::error::{Error, ErrorKind, Result};
use crate::instance::Instance;
use crate::keys::DatabaseKey;
use crate::limits::{LOCAL_PREFIX, check_document_id, check_document_size};
use crate::parallel;
use crate::txids::Outcome;

use apply::Writer;
use draft::{Draft, DraftMemory, Place};
use interactive::Found;
use plan::Plan;

pub(crate) use apply::SEQ_FORMAT;
pub(crate) use interactive::branches;

/// An edit, and its turn among those it came with.
#[derive(Clone, Copy)]
struct Turn<'e> {
    turn: usize,
    edit: &'e Edit,
}

impl<D: Database> Documents<D> {
    /// Writes edits; their results, in their order. An edit that is refused (a conflict, a bad id, a
    /// body too large) fails alone.
    ///
    /// Large batches take several transactions: what one of them wrote stays when a later one fails.
    /// An edit whose transaction failed has the store's error as its result.
    ///
    /// Within a batch, edits of different documents may be done in another order than theirs; edits of
    /// one document are not.
    ///
    /// # Errors
    /// 404 where the database is gone, the store's error where nothing was written for it.
    pub async fn write(&self, edits: Vec<Edit>, mode: WriteMode) -> Result<Vec<EditResult>> {
        let mut results: Vec<Option<EditResult>> =
            edits.iter().map(|edit| self.check_edit(edit).err().map(Err)).collect();
        let fit: Vec<usize> = (0..edits.len()).filter(|&index| results[index].is_none()).collect();
        // The last group is done first: groups that turn out too large come back in halves.
        let mut groups = group::groups(&edits, fit);
        groups.reverse();
        let mut wrote = false;
        while let Some(group) = groups.pop() {
            let members: Vec<Turn<'_>> = group.iter().map(|&turn| Turn { turn, edit: &edits[turn] }).collect();
            match self.write_group(&members, mode).await {
                Ok(group_results) => {
                    wrote |= group_results.iter().any(Result::is_ok);
                    for (index, result) in group.into_iter().zip(group_results) {
                        results[index] = Some(result);
                    }
                }
                Err(error) if is_too_large(&error) && group.len() > 1 => {
                    let (earlier, later) = group::halves(&edits, group);
                    groups.extend([later, earlier]);
                }
                Err(error) if is_too_large(&error) => {
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
        let missing = || Err(Error::corrupt("an edit without a result"));
        Ok(results.into_iter().map(|result| result.unwrap_or_else(missing)).collect())
    }

    /// Writes one interactive edit; the revision it made.
    ///
    /// # Errors
    /// 409, and what [`write`](Self::write) may answer for an edit.
    pub async fn put(&self, edit: Edit) -> Result<crate::RevId> {
        self.check_edit(&edit)?;
        let mut results = self.write_group(&[Turn { turn: 0, edit: &edit }], WriteMode::Interactive).await?;
        results.pop().unwrap_or_else(|| Err(Error::corrupt("an edit without a result")))
    }

    fn check_edit(&self, edit: &Edit) -> Result<()> {
        check_document_id(&edit.id)?;
        if edit.id.starts_with(LOCAL_PREFIX) {
            return Err(ErrorKind::IllegalDocId("Local documents have no edits.".into()).into());
        }
        check_document_size(&edit.id, edit.body.len(), self.max_document_size())
    }

    /// Writes edits of different documents in one transaction; their results in the same order.
    async fn write_group(&self, edits: &[Turn<'_>], mode: WriteMode) -> Result<Vec<EditResult>> {
        let (place, format) = (self.place(), self.format_seen());
        let drafts = parallel::map(self.shared.threads, edits, DraftMemory::default, |memory, edit| {
            Draft::new(*edit, mode, place, format, memory)
        });
        let drafts = drafts.as_slice();
        self.shared
            .guard
            .run(|transaction| async move {
                match mode {
                    WriteMode::Interactive => self.attempt_interactive(&transaction, drafts).await,
                    WriteMode::Replicated => self.attempt_replicated(&transaction, drafts).await,
                }
            })
            .await
    }

    async fn attempt_interactive(
        &self,
        transaction: &D::Transaction,
        drafts: &[Draft<'_>],
    ) -> Result<Outcome<Vec<EditResult>>> {
        let keys = self.keys();
        let instance = self.instance(transaction, Read::Serializable);
        let first: Vec<_> = drafts.iter().map(|draft| interactive::begin(transaction, keys, draft)).collect();
        let instance = instance.await?;
        let mut plans: Vec<Option<Result<Plan>>> = Vec::with_capacity(drafts.len());
        let mut losing = Vec::new();
        for (index, first) in first.into_iter().enumerate() {
            plans.push(match interactive::look(keys, &instance, &drafts[index], first).await? {
                Found::Decided(plan) => Some(plan),
                Found::Losing { target, made } => {
                    losing.push((index, target, made));
                    None
                }
            });
        }
        let second: Vec<_> = losing
            .into_iter()
            .map(|(index, target, made)| {
                (index, interactive::weigh(transaction, keys, drafts[index].edit, target, made))
            })
            .collect();
        for (index, second) in second {
            plans[index] = Some(Ok(interactive::settle(keys, &instance, drafts[index].edit, second).await?));
        }
        let undecided = || Err(Error::corrupt("an edit without a plan"));
        let plans = plans.into_iter().map(|plan| plan.unwrap_or_else(undecided).map(Some)).collect();
        Ok(self.carry_out(transaction, &instance, drafts, plans))
    }

    async fn attempt_replicated(
        &self,
        transaction: &D::Transaction,
        drafts: &[Draft<'_>],
    ) -> Result<Outcome<Vec<EditResult>>> {
        /// A document's branches come in as few batches as can be: reading them is one round trip.
        const TARGET_BYTES: usize = 8_000_000;
        let keys = self.keys();
        let instance = self.instance(transaction, Read::Serializable);
        let reads: Vec<_> = drafts
            .iter()
            .map(|draft| {
                let range = keys.range(DatabaseKey::RevisionsOf(&draft.edit.id)).target_bytes(TARGET_BYTES);
                transaction.get_all(range, Read::Serializable)
            })
            .collect();
        let instance = instance.await?;
        let mut plans = Vec::with_capacity(drafts.len());
        for (Draft { edit, .. }, rows) in drafts.iter().zip(reads) {
            let known = branches(keys, &edit.id, &rows.await?)?;
            plans.push(match edit.incoming() {
                Ok(incoming) => Ok(merge::merge(&instance, edit, &incoming, known)?),
                Err(error) => Err(error),
            });
        }
        Ok(self.carry_out(transaction, &instance, drafts, plans))
    }

    /// Writes what was planned; no plan means that the edit's revision is known already.
    fn carry_out(
        &self,
        transaction: &D::Transaction,
        instance: &Instance,
        drafts: &[Draft<'_>],
        mut plans: Vec<Result<Option<Plan>>>,
    ) -> Outcome<Vec<EditResult>> {
        self.saw_format(instance.format);
        let place = self.place();
        let mut ready = Vec::with_capacity(drafts.len());
        for (at, (draft, plan)) in drafts.iter().zip(&mut plans).enumerate() {
            if let Ok(Some(planned)) = plan {
                // The one step that may still refuse an edit comes before anything of it is written.
                match draft.rows(&planned.new.leaf, place, instance.format) {
                    Ok(body) => ready.push((draft.turn, at, body)),
                    Err(error) => *plan = Err(error),
                }
            }
        }
        // Sequences are given in the order in which the edits came.
        if !ready.is_sorted_by_key(|(turn, ..)| *turn) {
            ready.sort_unstable_by_key(|(turn, ..)| *turn);
        }
        let mut writer = Writer::new(transaction, self.keys(), instance, drafts.len());
        for (_, at, body) in ready {
            if let (Some(draft), Some(Ok(Some(plan)))) = (drafts.get(at), plans.get(at)) {
                writer.apply(at, &draft.edit.id, plan, body);
            }
        }
        let outcome = writer.finish();
        let results = drafts.iter().zip(plans).map(|(draft, plan)| match plan {
            Ok(Some(plan)) => Ok(plan.new.leaf.rev),
            Ok(None) => draft.edit.incoming().and_then(|incoming: std::borrow::Cow<'_, RevHistory>| {
                incoming.leaf().ok_or_else(|| Error::bad_request("Invalid rev format"))
            }),
            Err(error) => Err(error),
        });
        match outcome {
            0 => Outcome::ReadOnly(results.collect()),
            _ => Outcome::Write(results.collect()),
        }
    }

    fn place(&self) -> Place<'_> {
        let limits = self.engine().limits();
        let (max_key_bytes, max_value_bytes) = (limits.key_bytes, limits.value_bytes);
        Place { keys: self.keys(), limits: BodyLimits { max_key_bytes, max_value_bytes, ..BodyLimits::default() } }
    }
}

fn is_too_large(error: &Error) -> bool {
    error.kv_error().is_some_and(|error| error.code() == TRANSACTION_TOO_LARGE)
}
