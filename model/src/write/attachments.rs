//! Additional steps of edits with attachments. Other edits skip them.
//!
//! ```text
//!  before the transaction   inline data is compressed and hashed; if it is large, it is staged
//!  first in each attempt    stubs are looked up in the replaced leaf: the revision depends on them
//!  before rows are written  contents and references: see `Ledger`
//! ```

use std::collections::HashSet;

use bytes::Bytes;
use kv_api::{Database, Read, Transaction};

use super::attempt::Attempt;
use super::draft::{BodyContext, Draft, DraftMemory, Turn};
use super::keep::Keeping;
use super::merge::branches_on;
use super::plan::{Decided, Plan};
use super::verdicts::Verdicts;
use crate::attachments::{Added, Attachment, AttachmentEdit, AttachmentSource, Change, Ledger, list_of, list_rows};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result, alone};
use crate::keys::{DatabaseKey, Leaf};
use crate::read::batch::BATCH_BYTES;
use crate::rows::branch::Branch;
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, WriteMode};

/// Maximum total size of contents that an edit writes itself, if its body leaves room for them. Larger contents are
/// staged.
const MEMORY_BYTES: usize = 2_000_000;

/// The reads and the changes of a transaction's attachments.
pub(super) struct Attached<'e> {
    ledger: Ledger,
    /// The changes of each document, some of them empty.
    changes: Vec<Change<'e>>,
}

impl<D: Database> Documents<D> {
    /// Turns the inline data of an edit into contents.
    ///
    /// # Errors
    /// 413 for an attachment that is too large, 400 for one whose content did not follow; the store's errors.
    pub async fn upload_data(&self, edit: &mut Edit) -> Result<()> {
        for attachment in &mut edit.attachments {
            match &attachment.source {
                AttachmentSource::Data(bytes) => {
                    let content = self.content_of(&attachment.name, &attachment.content_type, bytes).await?;
                    attachment.source = AttachmentSource::Content(content);
                }
                AttachmentSource::Follows(_) => {
                    let reason = format!("The content of the attachment {} did not follow", attachment.name);
                    return Err(Error::bad_request(reason));
                }
                AttachmentSource::Content(_) | AttachmentSource::Stub | AttachmentSource::Same(_) => {}
            }
        }
        let bytes: usize = edit.attachments.iter().map(|attachment| attachment.bytes_in_memory()).sum();
        if bytes > MEMORY_BYTES || bytes + edit.body.len() > BATCH_BYTES {
            for attachment in &mut edit.attachments {
                if let AttachmentSource::Content(content) = &mut attachment.source {
                    *content = self.staged(content).await?;
                }
            }
        }
        Ok(())
    }

    /// The attachments of the leaf whose attachments an edit keeps. A leaf never changes, and the edit of a leaf that
    /// is gone is a conflict, so they may be read before the edit's transaction.
    pub(super) async fn kept(&self, transaction: &D::Transaction, id: &str, rev: &RevId) -> Result<Vec<Attachment>> {
        let leaf = Leaf { not_deleted: true, rev: rev.clone() };
        list_of(transaction, self.keys(), id, &leaf).await.map_err(|error| error.of_document(id))
    }

    /// Looks up the stubs of a batch that takes several transactions, before the first of these.
    ///
    /// # Errors
    /// `missing_stub`; the store's errors.
    pub(super) async fn check_stubs(&self, edits: &[Edit], groups: &[Vec<usize>], mode: WriteMode) -> Result<()> {
        for group in groups {
            let has_stubs = |edit: &Edit| edit.attachments.iter().any(AttachmentEdit::is_stub);
            let with_stubs = group.iter().map(|&turn| &edits[turn]).filter(|edit| has_stubs(edit));
            let ids: HashSet<&str> = with_stubs.map(|edit| edit.id.as_str()).collect();
            let mut memory = DraftMemory::default();
            let drafts: Vec<Draft<'_>> = group
                .iter()
                .filter(|&&turn| ids.contains(edits[turn].id.as_str()))
                .map(|&turn| {
                    let edit = Turn { turn, edit: &edits[turn] };
                    Draft::new(edit, mode, self.body_context(), self.format_seen(), &mut memory)
                })
                .collect();
            let mut rest = drafts.as_slice();
            while !rest.is_empty() {
                let decide = |transaction, most| async move {
                    let (some, rest) = rest.split_at(most);
                    let decisions = self.attempt(&transaction, some, mode, &Verdicts::default()).decide().await?;
                    Ok((decisions.documents, some, rest))
                };
                let (mut decided, some, later) = self.read_batch(rest.len(), decide).await?;
                for Decided { drafts: edits, plan, .. } in &mut decided {
                    if let Ok(Some(planned)) = plan
                        && let Err(error) = added(&some[edits.clone()], planned)
                    {
                        *plan = Err(error);
                    }
                }
                no_missing_stub(&decided)?;
                rest = later;
            }
        }
        Ok(())
    }
}

impl<'e, D: Database> Attempt<'_, 'e, D> {
    /// Looks up the stubs of interactive edits in the leaves that the edits name.
    pub(super) async fn look_up_stubs(&self) -> Result<()> {
        let Attempt { transaction, drafts, .. } = *self;
        let keys = self.documents.keys();
        let reads: Vec<_> = drafts
            .iter()
            .filter(|draft| draft.has_stubs())
            .map(|draft| {
                let id = &draft.edit.id;
                let target = draft.edit.rev.as_ref().map(|rev| {
                    let leaf = Leaf { not_deleted: true, rev: rev.clone() };
                    // Every live leaf has this row.
                    let there = transaction.get(&keys.key(DatabaseKey::Doc(id, &leaf)), Read::Snapshot);
                    (there, list_of(transaction, keys, id, &leaf))
                });
                (draft, target)
            })
            .collect();
        for (draft, target) in reads {
            let Some((there, list)) = target else {
                draft.resolve(&[]);
                continue;
            };
            if there.await?.is_none() {
                draft.refuse_attachments(Error::conflict());
                continue;
            }
            match alone(list.await)? {
                Ok(list) => draft.resolve(&list),
                Err(damage) => draft.refuse_attachments(damage.of_document(&draft.edit.id)),
            }
        }
        Ok(())
    }

    /// Looks up the stubs of replicated edits, each in the nearest ancestor that is a leaf. `known` are the branches of
    /// each draft's document.
    pub(super) async fn look_up_replicated_stubs(&self, drafts: Vec<(&Draft<'_>, &[Branch])>) -> Result<()> {
        let (transaction, keys) = (self.transaction, self.documents.keys());
        let reads: Vec<_> = drafts
            .into_iter()
            .filter(|(draft, _)| draft.has_stubs())
            .map(|(draft, known)| {
                let history = draft.edit.incoming().ok();
                let replaced = history
                    .and_then(|history| branches_on(known, &history).max_by_key(|branch| branch.leaf.rev.position()));
                (draft, replaced.map(|branch| list_of(transaction, keys, &draft.edit.id, &branch.leaf)))
            })
            .collect();
        for (draft, list) in reads {
            match list {
                None => draft.resolve(&[]),
                Some(list) => match alone(list.await)? {
                    Ok(list) => draft.resolve(&list),
                    Err(damage) => draft.refuse_attachments(damage.of_document(&draft.edit.id)),
                },
            }
        }
        Ok(())
    }

    /// Reads the contents and references that the plans need. A plan for which something is missing is refused.
    pub(super) async fn prepare_attachments(
        &self,
        decided: &mut [Decided<'e>],
        keeping: Option<&Keeping>,
    ) -> Result<Attached<'e>> {
        let mut changes = Vec::with_capacity(decided.len());
        for (place, Decided { id, drafts: edits, plan }) in decided.iter_mut().enumerate() {
            let edits = &self.drafts[edits.clone()];
            let mut change = Change::forgetting(id, Vec::new());
            if let Ok(Some(planned)) = plan {
                match added(edits, planned) {
                    Ok(added) => {
                        let is_kept = |branch: &Branch| keeping.is_some_and(|keeping| keeping.keeps(place, branch));
                        let removed = planned.removed.iter().filter(|branch| branch.attachments && !is_kept(branch));
                        change.removed = removed.map(|branch| branch.leaf.clone()).collect();
                        change.added = added;
                        change.forgotten = keeping.map_or_else(Vec::new, |keeping| keeping.forgotten(place));
                    }
                    Err(error) => *plan = Err(error),
                }
            }
            changes.push(change);
        }
        let (root, keys) = (&self.documents.shared.guard.root, self.documents.keys());
        let (ledger, possible) = Ledger::read(self.transaction, root, keys, &changes).await?;
        for (decided, possible) in decided.iter_mut().zip(possible) {
            if let (Ok(Some(_)), Err(error)) = (&decided.plan, possible) {
                decided.plan = Err(error);
            }
        }
        Ok(Attached { ledger, changes })
    }

    /// Writes the contents and references of the plans that were not refused.
    pub(super) async fn write_attachments(&self, attached: Attached<'_>, decided: &[Decided<'_>]) -> Result<()> {
        let Attached { ledger, changes } = attached;
        let made: Vec<bool> = decided.iter().map(|decided| matches!(decided.plan, Ok(Some(_)))).collect();
        let (guard, keys) = (&self.documents.shared.guard, self.documents.keys());
        ledger.write(self.transaction, &guard.root, guard.environment.as_ref(), keys, &changes, &made).await
    }
}

/// Fails if a stub has no attachment. As in CouchDB, this fails the whole request.
pub(super) fn no_missing_stub(decided: &[Decided<'_>]) -> Result<()> {
    let errors = decided.iter().filter_map(|decided| decided.plan.as_ref().err());
    let missing = errors.into_iter().find(|error| matches!(error.kind(), ErrorKind::MissingStub { .. }));
    missing.map_or(Ok(()), |missing| Err(missing.clone()))
}

/// The added leaves of a plan that have attachments.
fn added<'e>(edits: &[Draft<'e>], plan: &Plan) -> Result<Vec<Added<'e>>> {
    let added = plan.added.iter().filter(|new| new.attachments).map(|new| {
        let draft = &edits[new.edit];
        Ok(Added { leaf: new.leaf.clone(), attachments: draft.attachments()?, sources: &draft.edit.attachments })
    });
    added.collect()
}

/// The rows of attachments of the leaves that a plan adds.
pub(super) fn lists(edits: &[Draft<'_>], plan: &Plan, place: BodyContext<'_>) -> Result<Vec<(Bytes, Bytes)>> {
    let mut rows = Vec::new();
    for new in plan.added.iter().filter(|new| new.attachments) {
        let draft = &edits[new.edit];
        let attachments = draft.attachments()?;
        let list = list_rows(place.keys, &draft.edit.id, &new.leaf, &attachments, place.limits.max_value_bytes);
        rows.extend(list);
    }
    Ok(rows)
}
