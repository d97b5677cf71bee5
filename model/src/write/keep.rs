//! Keeps the bodies of replaced revisions, in databases with that setting; see [`replaced`](crate::replaced).
//!
//! ```text
//!  before rows are written   the document's replaced revisions, with a conflict range; the replaced bodies
//!  written                   new replaced revisions with their bodies; surplus or old ones are cleared
//! ```
//!
//! A purge keeps nothing, and clears all replaced revisions of the document.

use std::collections::HashSet;

use futures_util::StreamExt;
use kv_api::error::TRANSACTION_TOO_LARGE;
use kv_api::{Database, KeyValue, Read, Transaction, TransactionExt};

use super::attempt::{Attempt, Decisions};
use super::plan::{Decided, Plan};
use crate::attachments::ContentId;
use crate::error::{Result, alone};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf};
use crate::replaced::Replaced;
use crate::replaced::keep_replaced::KeepReplaced;
use crate::rows::body::row_cost;
use crate::rows::branch::Branch;
use crate::rows::instance::Instance;

/// Maximum number of replaced revisions of a document that an edit clears.
const CLEARED_AT_ONCE: usize = 10;

/// Size of a body from which on its rows are read in large batches.
const LARGE_BODY: u64 = 30_000;

/// Bytes of a transaction reserved for all rows except bodies.
const OTHER_ROWS: usize = 1_000_000;

/// The replaced revisions that the plans of a transaction keep and forget.
pub(super) struct Keeping(Vec<OfDocument>);

#[derive(Default)]
struct OfDocument {
    /// The replaced revisions to keep, with the rows of their bodies.
    kept: Vec<(Replaced, Vec<KeyValue>)>,
    /// The replaced revisions to clear, with the contents of their attachments.
    forgotten: Vec<(Replaced, HashSet<ContentId>)>,
}

impl Keeping {
    /// Whether the plan at this place keeps the body of a branch that it removes.
    pub(super) fn keeps(&self, place: usize, branch: &Branch) -> bool {
        self.0.get(place).is_some_and(|document| document.kept.iter().any(|(kept, _)| kept.leaf == branch.leaf))
    }

    /// The revisions with attachments that the plan at this place forgets.
    pub(super) fn forgotten(&self, place: usize) -> Vec<(Leaf, HashSet<ContentId>)> {
        let forgotten = self.0.get(place).map(|document| document.forgotten.iter());
        let with_contents = forgotten.into_iter().flatten().filter(|(_, contents)| !contents.is_empty());
        with_contents.map(|(replaced, contents)| (replaced.leaf.clone(), contents.clone())).collect()
    }

    /// Whether attachments are forgotten.
    pub(super) fn has_attachments(&self) -> bool {
        self.0.iter().flat_map(|document| &document.forgotten).any(|(_, contents)| !contents.is_empty())
    }

    /// Writes the rows of the plans that were not refused.
    pub(super) fn write(self, transaction: &impl Transaction, keys: &DatabaseKeys, decided: &[Decided<'_>]) {
        let made = decided.iter().zip(self.0).filter(|(decided, _)| matches!(decided.plan, Ok(Some(_))));
        for (Decided { id, .. }, OfDocument { kept, forgotten }) in made {
            for (replaced, _) in forgotten {
                replaced.clear(transaction, keys, id);
            }
            for (replaced, docs) in kept {
                replaced.set(transaction, keys, id, &docs);
            }
        }
    }
}

impl<D: Database> Attempt<'_, '_, D> {
    /// Reads the revisions that the plans keep and forget. A body that does not fit into the edit's transaction is not
    /// kept.
    pub(super) async fn prepare_keeping(&self, keep: KeepReplaced, decisions: &mut Decisions<'_>) -> Result<Keeping> {
        let Decisions { instance, documents: decided } = decisions;
        let (transaction, keys) = (self.transaction, self.documents.keys());
        let now_ms = self.documents.shared.guard.environment.now_ms();
        let most = keep.most(instance.revs_limit);
        let limit = self.documents.engine().limits().transaction_bytes.saturating_sub(OTHER_ROWS);
        let plans = || decided.iter().filter(|decided| !decided.is_purge()).flat_map(|one| one.plan.iter().flatten());
        let replaced: u64 = plans().flat_map(|plan| newest(plan, most)).map(|branch| branch.size).sum();
        if decided.len() > 1 && replaced > limit as u64 {
            // Checked before the bodies are read: the edits are then done in halves.
            return Err(kv_api::Error::new(TRANSACTION_TOO_LARGE).into());
        }
        let reads: Vec<_> = decided
            .iter()
            .map(|decided| {
                let Decided { id, plan, .. } = decided;
                let plan = plan.as_ref().ok().and_then(Option::as_ref)?;
                let known = transaction.get_all(keys.range(DatabaseKey::ReplacedOf(id)), Read::Serializable);
                let most = if decided.is_purge() { 0 } else { most };
                let bodies: Vec<_> = newest(plan, most)
                    .map(|branch| {
                        // A leaf never changes, and its row provides the conflict.
                        let range = keys.range(DatabaseKey::Doc(id, &branch.leaf));
                        // Without a target, FoundationDB reports the end of a small range at once: one round trip
                        // instead of two.
                        let range = if branch.size > LARGE_BODY { range.target_bytes(limit) } else { range };
                        let batches = (branch.size > 0).then(|| Box::pin(transaction.stream(range, Read::Snapshot)));
                        let (size, attachments) = (branch.size, branch.attachments);
                        (Replaced { leaf: branch.leaf.clone(), since_ms: now_ms, size, attachments }, batches)
                    })
                    .collect();
                Some((known, bodies))
            })
            .collect();
        let mut costs = self.body_costs(instance, decided);
        let mut documents = Vec::with_capacity(decided.len());
        for (place, read) in reads.into_iter().enumerate() {
            let mut document = OfDocument::default();
            let Some((known, bodies)) = read else {
                documents.push(document);
                continue;
            };
            for (replaced, batches) in bodies {
                let (mut rows, mut cost) = (Vec::new(), 0);
                if let Some(mut batches) = batches {
                    while cost <= limit
                        && let Some(batch) = batches.next().await.transpose()?
                    {
                        cost += batch.iter().map(|row| row_cost(row.key.len(), row.value.len())).sum::<usize>();
                        rows.extend(batch);
                    }
                }
                if costs[place] + cost <= limit {
                    costs[place] += cost;
                    document.kept.push((replaced, rows));
                }
            }
            let is_purge = decided[place].is_purge();
            let Decided { id, plan, .. } = &mut decided[place];
            let known = Replaced::of_document(keys, &known.await?);
            if let Ok(Some(planned)) = plan {
                let is_over = |replaced: &Replaced| keep.is_over(replaced.since_ms, now_ms);
                let room = most.saturating_sub(document.kept.len());
                let gone = if is_purge { known } else { surplus(known, planned, room, is_over) };
                let contents: Vec<_> = gone.iter().map(|one| one.contents(transaction, keys, id)).collect();
                for (replaced, contents) in gone.into_iter().zip(contents) {
                    match alone(contents.await)? {
                        Ok(contents) => document.forgotten.push((replaced, contents)),
                        // Its contents would be lost track of. An edit does not change it.
                        Err(damage) if is_purge => *plan = Err(damage.of_document(id)),
                        Err(_) => {}
                    }
                }
            }
            documents.push(document);
        }
        if decided.len() > 1 && costs.iter().sum::<usize>() > limit {
            // The edits are then done in halves.
            return Err(kv_api::Error::new(TRANSACTION_TOO_LARGE).into());
        }
        Ok(Keeping(documents))
    }

    /// The costs of the bodies that each plan adds.
    fn body_costs(&self, instance: &Instance, decided: &[Decided<'_>]) -> Vec<usize> {
        let mut costs = Vec::with_capacity(decided.len());
        for Decided { drafts: edits, plan, .. } in decided {
            let mut cost = 0;
            let edits = &self.drafts[edits.clone()];
            for new in plan.iter().flatten().flat_map(|plan| &plan.added) {
                let rows = edits[new.edit].rows(&new.leaf, self.documents.body_context(), instance.format);
                cost += rows.ok().flatten().map_or(0, |body| body.cost());
            }
            costs.push(cost);
        }
        costs
    }
}

/// The newest branches that a plan removes, at most this many. A branch that it also adds stays a leaf.
fn newest(plan: &Plan, most: usize) -> impl Iterator<Item = &Branch> {
    let mut removed: Vec<&Branch> =
        plan.removed.iter().filter(|branch| plan.added.iter().all(|new| new.leaf != branch.leaf)).collect();
    removed.sort_by(|one, other| other.leaf.rev.cmp(&one.leaf.rev));
    removed.into_iter().take(most)
}

/// The replaced revisions of a document to clear: those that become leaves again, and the oldest beyond a
/// number or a time.
fn surplus(known: Vec<Replaced>, plan: &Plan, room: usize, is_over: impl Fn(&Replaced) -> bool) -> Vec<Replaced> {
    let is_leaf = |replaced: &Replaced| plan.added.iter().any(|new| new.leaf == replaced.leaf);
    let (mut gone, mut known): (Vec<Replaced>, Vec<Replaced>) = known.into_iter().partition(is_leaf);
    known.sort_by(|one, other| (one.since_ms, &one.leaf.rev).cmp(&(other.since_ms, &other.leaf.rev)));
    let too_many = known.len().saturating_sub(room);
    let too_old = known.iter().take_while(|replaced| is_over(replaced)).count();
    known.truncate(too_many.max(too_old).min(CLEARED_AT_ONCE));
    gone.append(&mut known);
    gone
}
