//! Ends a document's conflicts.
//!
//! ```text
//!  in one transaction    all branches, and the bodies of the live leaves
//!                        the caller decides the body
//!                        a tombstone over each loser, a new leaf over the winner: merged as replicated edits,
//!                        which makes one plan
//! ```
//!
//! The revisions are those of interactive edits. So two replicas that resolve a conflict in the same way agree.

use json::JsonText;
use kv_api::{Database, Read, TransactionExt};

use super::attempt::TARGET_BYTES;
use super::draft::{Draft, DraftMemory, Turn};
use super::verdicts::Verdicts;
use crate::attachments::{Attachment, AttachmentEdit};
use crate::documents::Documents;
use crate::error::{Error, Result};
use crate::keys::DatabaseKey;
use crate::limits::check_document_size;
use crate::read::document::Document;
use crate::read::winner::{body_of, body_or_empty, why_not_live};
use crate::rows::branch::{Branch, branches};
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, RevHistory, WriteMode, check_body};
use crate::write::txids::Outcome;
use crate::write::validation::Writing;

impl<D: Database> Documents<D> {
    /// Ends the conflicts of a document: deletes all live leaves except the winner, and gives the winner the body that
    /// `merge` returns. `merge` gets the live leaves, the winner first, and may run any number of times. The winner
    /// keeps its attachments. It keeps its revision if its body stays the same. Returns the winner's revision
    /// afterwards.
    ///
    /// A document without conflicts is not changed.
    ///
    /// # Errors
    /// 404; an invalid body; errors of `merge`.
    pub async fn resolve(&self, id: &str, merge: impl Fn(&[Document]) -> Result<JsonText>) -> Result<RevId> {
        self.authorize(Writing::Computed(id)).await?;
        self.check_ids(&[id]).await?;
        let merge = &merge;
        let verdicts = &Verdicts::default();
        let run = |transaction| self.resolve_once(transaction, id, merge, verdicts);
        let resolved = self.shared.guard.run(run).await;
        resolved.map_err(|error| error.of_document(id))
    }

    async fn resolve_once(
        &self,
        transaction: D::Transaction,
        id: &str,
        merge: &impl Fn(&[Document]) -> Result<JsonText>,
        verdicts: &Verdicts,
    ) -> Result<Outcome<RevId>> {
        let keys = self.keys();
        let instance = self.instance(&transaction, Read::Serializable);
        let range = keys.range(DatabaseKey::RevisionsOf(id)).target_bytes(TARGET_BYTES);
        let rows = transaction.get_all(range, Read::Serializable).await?;
        instance.await?;
        let known = branches(keys, id, &rows)?;
        let live: Vec<&Branch> = known.iter().rev().filter(|branch| branch.leaf.not_deleted).collect();
        let Some((winner, losers)) = live.split_first() else {
            return Err(why_not_live(&transaction, keys, id).await?);
        };
        if losers.is_empty() {
            return Ok(Outcome::ReadOnly(winner.leaf.rev.clone()));
        }
        let bodies: Vec<_> = live.iter().map(|branch| body_of(&transaction, keys, id, &branch.leaf)).collect();
        let mut leaves = Vec::with_capacity(live.len());
        for (branch, body) in live.iter().zip(bodies) {
            let body = body_or_empty(&branch.leaf, body.await?)?;
            leaves.push(Document::new(id.to_owned(), branch.leaf.rev.clone(), false, body));
        }
        let body = merge(&leaves)?;
        check_body(&body)?;
        check_document_size(id, body.len(), self.max_document_size())?;

        let mut edits = Vec::with_capacity(live.len());
        for loser in losers {
            let tombstone = Edit::new(id, JsonText::empty_object()).deleting();
            edits.push(self.made_over(tombstone, loser, &[])?);
        }
        let mut after = winner.leaf.rev.clone();
        if body != leaves[0].body {
            let attachments = &leaves[0].attachments;
            let stubs = attachments.iter().map(|one| AttachmentEdit::stub(one.name.clone())).collect();
            let edit = self.made_over(Edit { attachments: stubs, ..Edit::new(id, body) }, winner, attachments)?;
            after = edit.rev.clone().ok_or_else(|| Error::corrupt("an edit without a revision"))?;
            edits.push(edit);
        }
        let turns: Vec<Turn<'_>> = edits.iter().map(|edit| Turn { turn: 0, edit }).collect();
        let drafts = self.drafts(&turns, WriteMode::Replicated);
        let attempt = self.attempt(&transaction, &drafts, WriteMode::Replicated, verdicts);
        let (Outcome::Write(results) | Outcome::ReadOnly(results)) = attempt.run().await?;
        results.into_iter().collect::<Result<Vec<RevId>>>()?;
        Ok(Outcome::Write(after))
    }

    /// An interactive edit over a leaf, as the replicated edit that makes the same revision. `attachments` are those
    /// that its stubs stand for.
    fn made_over(&self, edit: Edit, parent: &Branch, attachments: &[Attachment]) -> Result<Edit> {
        let edit = edit.over(parent.leaf.rev.clone());
        let (turn, mut memory) = (Turn { turn: 0, edit: &edit }, DraftMemory::default());
        let draft = Draft::new(turn, WriteMode::Interactive, self.body_context(), self.format_seen(), &mut memory);
        if draft.has_stubs() {
            draft.resolve(attachments);
        }
        let made = draft.made_over(edit.rev.as_ref())?.rev;
        let mut ids = vec![made.hash().clone()];
        ids.extend(parent.path()?);
        drop(draft);
        Ok(edit.with_history(RevHistory { position: made.position(), ids }))
    }
}
