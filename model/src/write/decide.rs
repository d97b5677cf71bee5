//! Decides edits: each document gets a plan, from its branches and from the stubs of its edits.

use std::ops::Range;

use kv_api::{Database, Read, TransactionExt};

use super::attempt::{Attempt, Decisions, TARGET_BYTES};
use super::draft::Draft;
use super::ended;
use super::interactive::{self, FirstDecision};
use super::merge::{self, Incoming};
use super::plan::{Decided, Plan};
use crate::error::{Result, alone};
use crate::keys::DatabaseKey;
use crate::rows::branch::branches;
use crate::write::edit::WriteMode;

impl<'e, D: Database> Attempt<'_, 'e, D> {
    /// Decides the edits, document by document.
    pub(super) async fn decide(&self) -> Result<Decisions<'e>> {
        match self.mode {
            WriteMode::Interactive => self.decide_interactive().await,
            WriteMode::Replicated => self.decide_replicated().await,
        }
    }

    async fn decide_interactive(&self) -> Result<Decisions<'e>> {
        let Attempt { transaction, drafts, .. } = *self;
        let keys = self.documents.keys();
        let instance = self.documents.instance(transaction, Read::Serializable);
        if drafts.iter().any(Draft::has_stubs) {
            Box::pin(self.look_up_stubs()).await?;
        }
        let first: Vec<_> = drafts.iter().map(|draft| interactive::begin(transaction, keys, draft)).collect();
        let instance = instance.await?;
        let mut plans: Vec<Result<Option<Plan>>> = Vec::with_capacity(drafts.len());
        let mut losing = Vec::new();
        for (index, first) in first.into_iter().enumerate() {
            plans.push(match alone(interactive::decide(keys, &instance, &drafts[index], first).await)? {
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
            plans[index] = plan.map(Some).map_err(|damage| damage.of_document(&edit.id));
        }
        let documents = plans.into_iter().zip(drafts).enumerate();
        let documents = documents.map(|(at, (plan, draft))| Decided { id: &draft.edit.id, drafts: at..at + 1, plan });
        Ok(Decisions { instance, documents: documents.collect() })
    }

    async fn decide_replicated(&self) -> Result<Decisions<'e>> {
        let Attempt { transaction, drafts, .. } = *self;
        let keys = self.documents.keys();
        let instance = self.documents.instance(transaction, Read::Serializable);
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
            Box::pin(self.look_up_replicated_stubs(known.collect())).await?;
        }
        let (mut decided, mut hidden) = (Vec::with_capacity(documents.len()), Vec::new());
        for (edits, known) in documents.into_iter().zip(known) {
            let drafts = &drafts[edits.clone()];
            let id = drafts[0].edit.id.as_str();
            // An edit without a valid revision is left out: its own result is the error.
            let incoming = drafts.iter().enumerate().filter_map(|(place, draft)| {
                let (rev, history) = (draft.leaf().ok()?.rev, draft.edit.incoming().ok()?);
                Some(Incoming { edit: draft.edit, place, rev, history })
            });
            let tree = match &known {
                Ok(tree) if ended::is_hidden(&instance, tree) && drafts.iter().any(|draft| !draft.edit.deleted) => {
                    Some(tree.clone())
                }
                _ => None,
            };
            let plan = known.and_then(|known| merge::merge(&instance, incoming.collect(), known));
            if let (Ok(None), Some(tree)) = (&plan, tree) {
                hidden.push((decided.len(), tree, self.documents.has_ended(transaction, id, Read::Serializable)));
            }
            decided.push(Decided { id, drafts: edits, plan: plan.map_err(|damage| damage.of_document(id)) });
        }
        for (place, tree, has_ended) in hidden {
            if has_ended.await? {
                let Decided { id, drafts: edits, plan } = &mut decided[place];
                let again = ended::write_again(&instance, &drafts[edits.clone()], tree);
                *plan = again.map_err(|damage| damage.of_document(id));
            }
        }
        Ok(Decisions { instance, documents: decided })
    }
}
