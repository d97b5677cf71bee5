//! Maintains the indexes in transactions that write documents.

use kv_api::Database;

use crate::error::Result;
use crate::indexes::{Indexing, Source, Touched};
use crate::limits::DESIGN_PREFIX;

use super::attempt::{Attempt, Decisions};
use super::draft::Draft;
use super::plan::Plan;
use super::revive::Reviving;

/// Whether edits or purges affect indexes: the database has indexes, or there are edits of design documents.
pub(super) fn concern(decisions: &Decisions<'_>) -> bool {
    let Decisions { instance, documents } = decisions;
    !instance.indexes.kept.is_empty() || documents.iter().any(|one| one.id.starts_with(DESIGN_PREFIX))
}

/// The effect of a plan on the document's rows in indexes; `None` if the live winner stays the same.
pub(crate) fn touched<'d>(id: &'d str, edits: &'d [Draft<'_>], plan: &'d Plan) -> Result<Option<Touched<'d>>> {
    let before = plan.before.as_ref().map(|(leaf, _)| leaf);
    let had_rows = before.is_some_and(|leaf| leaf.not_deleted);
    let winner = plan.winner.as_ref().filter(|leaf| leaf.not_deleted);
    if before == plan.winner.as_ref() || !had_rows && winner.is_none() {
        return Ok(None);
    }
    let winner = match winner {
        None => None,
        Some(leaf) => {
            let brings = plan.added.iter().find(|new| new.leaf == *leaf).and_then(|new| edits.get(new.edit));
            let source = match brings {
                None => Source::Stored,
                Some(draft) if draft.edit.attachments.is_empty() => Source::Brought(&draft.edit.body, None),
                Some(draft) => Source::Brought(&draft.edit.body, Some(draft.attachments()?)),
            };
            Some((leaf, source))
        }
    };
    Ok(Some(Touched { id, had_rows, winner }))
}

impl<D: Database> Attempt<'_, '_, D> {
    /// Decides the changes of the indexes. A document whose rows there are damaged is refused, without affecting the
    /// others.
    pub(super) async fn index_edits(&self, decisions: &mut Decisions<'_>, reviving: &mut Reviving) -> Result<Indexing> {
        let Decisions { instance, documents: decided } = decisions;
        let (mut documents, mut places) = (Vec::new(), Vec::new());
        for (place, one) in decided.iter().enumerate() {
            if let Ok(Some(plan)) = &one.plan {
                let edits = &self.drafts[one.drafts.clone()];
                if let Some(touched) = touched(one.id, edits, plan)? {
                    documents.push(touched);
                    places.push(place);
                }
            }
        }
        documents.extend(reviving.touched());
        if documents.is_empty() {
            return Ok(Indexing::default());
        }
        let mut indexing = self.documents.index_changes(self.transaction, instance, &documents, false).await?;
        let mut damaged = Vec::new();
        for (at, error) in std::mem::take(&mut indexing.refused) {
            match places.get(at) {
                Some(&place) => decided[place].plan = Err(error),
                None => damaged.push((at - places.len(), error)),
            }
        }
        reviving.leave(&damaged);
        Ok(indexing)
    }
}
