//! Carries out an attempt: prepares the decided plans, and writes them.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kv_api::{Database, Transaction};

use super::apply::Writer;
use super::attachments::{self, Attached};
use super::attempt::{Attempt, Decisions, MissingStub};
use super::draft::Draft;
use super::indexes;
use super::keep::Keeping;
use super::plan::{Decided, Plan};
use super::revive::Reviving;
use crate::admin::edit_counts::EditCount;
use crate::error::Result;
use crate::indexes::Indexing;
use crate::keys::DatabaseKey;
use crate::rows::body::StoredBody;
use crate::rows::instance::Instance;
use crate::write::edit::EditResult;
use crate::write::txids::Outcome;

/// Decisions, with everything that is written for their plans.
pub(super) struct Prepared<'e> {
    /// The decisions. Plans that were refused are errors.
    pub(super) decisions: Decisions<'e>,
    ready: Vec<Ready>,
    /// Bodies of all added leaves.
    bodies: Vec<Arc<StoredBody>>,
    attached: Option<Attached<'e>>,
    keeping: Option<Keeping>,
    /// What is written for the documents that the edits name.
    reviving: Reviving,
    indexing: Option<Indexing>,
    /// The row that counts edits, if the transaction must write one.
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

impl<'e, D: Database> Attempt<'_, 'e, D> {
    /// Carries out all steps. Returns the results of the edits.
    pub(super) async fn run(&self) -> Result<Outcome<Vec<EditResult>>> {
        let mut decisions = self.decide().await?;
        self.validate(&mut decisions).await?;
        let prepared = self.prepare(decisions).await?;
        let (decided, written) = self.apply(prepared).await?;
        let mut results = Vec::with_capacity(self.drafts.len());
        for Decided { drafts, plan, .. } in decided {
            for draft in &self.drafts[drafts] {
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

    /// Reads what the plans need besides documents. All remaining checks that may refuse an edit are made here, before
    /// anything is written.
    pub(super) async fn prepare(&self, mut decisions: Decisions<'e>) -> Result<Prepared<'e>> {
        self.documents.saw(&decisions.instance);
        let has_attachments = |decided: &Decided<'_>| matches!(&decided.plan, Ok(Some(plan)) if plan.has_attachments());
        let mut keeping = None;
        if let Some(keep) = decisions.instance.keep {
            keeping = Some(Box::pin(self.prepare_keeping(keep, &mut decisions)).await?);
        }
        let mut attached = None;
        if decisions.documents.iter().any(has_attachments) || keeping.as_ref().is_some_and(Keeping::has_attachments) {
            let attachments = self.prepare_attachments(&mut decisions.documents, keeping.as_ref());
            attached = Some(Box::pin(attachments).await?);
        }
        if self.missing_stub == MissingStub::FailsTheBatch {
            attachments::no_missing_stub(&decisions.documents)?;
        }
        let (ready, mut bodies) = self.lay_out(&mut decisions, attached.is_some());
        let mut reviving = Reviving::default();
        if decisions.instance.collections > 0 {
            reviving = Box::pin(self.prepare_reviving(&mut decisions, &mut bodies)).await?;
        }
        let mut indexing = None;
        if indexes::concern(&decisions) {
            indexing = Some(Box::pin(self.index_edits(&mut decisions, &mut reviving)).await?);
        }
        let edit_count = self.documents.count_edits(self.transaction, ready.len() + reviving.plans().count()).await?;
        Ok(Prepared { decisions, ready, bodies, attached, keeping, reviving, indexing, edit_count })
    }

    /// Lays out the leaves that the plans add, and their attachments if there are any. Returns the plans that can be
    /// carried out, and the bodies of all.
    fn lay_out(&self, decisions: &mut Decisions<'e>, has_attachments: bool) -> (Vec<Ready>, Vec<Arc<StoredBody>>) {
        let mut ready = Vec::with_capacity(decisions.documents.len());
        let mut bodies = Vec::with_capacity(self.drafts.len());
        for (place, Decided { drafts, plan, .. }) in decisions.documents.iter_mut().enumerate() {
            let edits = &self.drafts[drafts.clone()];
            if let Ok(Some(planned)) = plan {
                let first = bodies.len();
                let turn = self.bodies(&decisions.instance, edits, planned, &mut bodies);
                let lists = if has_attachments {
                    attachments::lists(edits, planned, self.documents.body_context())
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
        (ready, bodies)
    }

    /// Appends the bodies of the leaves that a plan adds. Returns the greatest index of their edits in the batch.
    fn bodies(
        &self,
        instance: &Instance,
        edits: &[Draft<'_>],
        plan: &Plan,
        bodies: &mut Vec<Arc<StoredBody>>,
    ) -> Result<usize> {
        let place = self.documents.body_context();
        let mut turn = 0;
        for new in &plan.added {
            let draft = &edits[new.edit];
            turn = turn.max(draft.turn);
            bodies.extend(draft.rows(&new.leaf, place, instance.format)?);
        }
        Ok(turn)
    }

    /// Writes the rows of the plans. Returns the decisions, and the number of plans written.
    pub(super) async fn apply(&self, prepared: Prepared<'e>) -> Result<(Vec<Decided<'e>>, usize)> {
        let Prepared { decisions, mut ready, bodies, attached, keeping, reviving, indexing, edit_count } = prepared;
        let Decisions { instance, documents: decided } = decisions;
        let (transaction, keys) = (self.transaction, self.documents.keys());
        if let Some(attached) = attached {
            Box::pin(self.write_attachments(attached, &decided)).await?;
        }
        if let Some(keeping) = keeping {
            keeping.write(transaction, keys, &decided);
        }
        // Sequences follow the order of the edits in the batch.
        if !ready.is_sorted_by_key(|ready| ready.turn) {
            ready.sort_unstable_by_key(|ready| ready.turn);
        }
        let mut writer = Writer::new(transaction, keys, &instance, decided.len() + reviving.plans().count(), bodies);
        // Chunks are read before the files that name them.
        for (place, (id, plan, bodies)) in (decided.len()..).zip(reviving.plans()) {
            writer.apply(place, id, plan, bodies, Vec::new());
        }
        reviving.write_rows(transaction, keys, &decided);
        if reviving.ends_collection {
            // Changes of indexes come later: their row has the number too.
            transaction.set(keys.key(DatabaseKey::Instance), instance.write());
        }
        for Ready { place, bodies, lists, .. } in ready {
            let Decided { id, plan, .. } = &decided[place];
            if let Ok(Some(plan)) = plan {
                writer.apply(place, id, plan, bodies, lists);
            }
        }
        let written = writer.finish();
        if let Some(edit_count) = edit_count {
            edit_count.write(transaction, keys, instance.incarnation);
        }
        if let Some(indexing) = indexing.filter(|_| written > 0) {
            indexing.write(transaction);
        }
        Ok((decided, written))
    }
}
