//! A patch: an edit whose body is computed from the body that it replaces.
//!
//! ```text
//!  in one transaction    read the leaf and its body, as of one moment
//!                        apply the patch to the document as clients read it
//!                        decide and write the result like any other edit of that leaf
//! ```
//!
//! The edit reads its leaf's row with a conflict range, and every edit of a document writes the winner's row. So if
//! another edit was written after the body was read, the transaction fails, and the patch is applied to the new
//! document. So two concurrent patches of different members both take effect. The revision is the same as that of a
//! `PUT` of the result.

use kv_api::error::TRANSACTION_TOO_LARGE;
use kv_api::{Database, Read, RetryError};

use super::draft::{Draft, DraftMemory, Turn};
use super::verdicts::Verdicts;
use crate::attachments::AttachmentSource;
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, Result};
use crate::keys::Leaf;
use crate::read::document::{Body, Document};
use crate::read::winner::{body_of, last_live, why_not_live};
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, WriteMode};
use crate::write::txids::Outcome;
use crate::write::validation::Writing;
use json::{Patch, PatchError};

impl<D: Database> Documents<D> {
    /// Applies a patch to a document's winner, or to the live leaf `rev` if it is given. Returns the new revision.
    ///
    /// The patch sees the document as [`Document::to_json`] writes it: `_id`, `_rev`, the members, and `_attachments`
    /// as stubs. It may remove attachments, and may delete the document by setting `_deleted`. It cannot add
    /// attachments.
    ///
    /// # Errors
    /// 404 if the document is missing or deleted; 409 if `rev` is not a live leaf, if the patch changes `_rev`, or if
    /// it does not fit the document; 400 for a malformed patch, or if the result is not a valid document; 413.
    pub async fn patch(&self, id: &str, rev: Option<&RevId>, patch: &Patch) -> Result<RevId> {
        self.authorize(Writing::Computed(id)).await?;
        self.check_ids(&[id]).await?;
        let verdicts = &Verdicts::default();
        let run = |transaction| self.patch_once(transaction, id, rev, patch, verdicts);
        let patched = self.shared.guard.run(run).await;
        match patched {
            Err(error) if error.kv_error().is_some_and(|error| error.code() == TRANSACTION_TOO_LARGE) => {
                Err(ErrorKind::DocumentTooLarge(id.to_owned()).into())
            }
            Err(error) => Err(error.of_document(id)),
            patched => patched,
        }
    }

    async fn patch_once(
        &self,
        transaction: D::Transaction,
        id: &str,
        rev: Option<&RevId>,
        patch: &Patch,
        verdicts: &Verdicts,
    ) -> Result<Outcome<RevId>> {
        let instance = self.instance(&transaction, Read::Serializable);
        let (base, body) = self.base(&transaction, id, rev).await?;
        instance.await?;
        let document = Document::new(id.to_owned(), base.clone(), false, body);
        let mut edit = Edit::from_json(Some(id), &patch.apply(&document.to_text())?, WriteMode::Interactive)?;
        // Compared as text: a hash that is not text, which other programs may make, cannot be read back.
        if edit.rev.map(|rev| rev.to_string()) != Some(base.to_string()) {
            return Err(Error::conflict());
        }
        edit.rev = Some(base);
        if edit.attachments.iter().any(|attachment| !matches!(attachment.source, AttachmentSource::Stub)) {
            return Err(Error::bad_request("A patch cannot add attachments."));
        }
        self.check_edit(&edit)?;
        if let Some(full) = self.refused_by_quota(&edit, WriteMode::Interactive).await? {
            return Err(full.into());
        }
        let (turn, mut memory) = (Turn { turn: 0, edit: &edit }, DraftMemory::default());
        let drafts = [Draft::new(turn, WriteMode::Interactive, self.body_context(), self.format_seen(), &mut memory)];
        let attempt = self.attempt(&transaction, &drafts, WriteMode::Interactive, verdicts);
        let missing = || Err(Error::without_result());
        Ok(match attempt.run().await? {
            Outcome::Write(mut made) => Outcome::Write(made.pop().unwrap_or_else(missing)?),
            Outcome::ReadOnly(mut made) => Outcome::ReadOnly(made.pop().unwrap_or_else(missing)?),
        })
    }

    /// The live leaf to patch, and its body.
    async fn base(&self, transaction: &D::Transaction, id: &str, rev: Option<&RevId>) -> Result<(RevId, Body)> {
        let keys = self.keys();
        if let Some(rev) = rev {
            let leaf = Leaf { not_deleted: true, rev: rev.clone() };
            let live = last_live(transaction, keys, id);
            if let Some(body) = body_of(transaction, keys, id, &leaf).await? {
                return Ok((leaf.rev, body));
            }
            // If the document is missing, that is the error, rather than that `rev` is not one of its leaves.
            return Err(match live.await? {
                Some(_) => Error::conflict(),
                None => why_not_live(transaction, keys, id).await?,
            });
        }
        match last_live(transaction, keys, id).await? {
            Some((leaf, body)) => Ok((leaf.rev, body)),
            None => Err(why_not_live(transaction, keys, id).await?),
        }
    }
}

impl From<PatchError> for Error {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::Malformed(why) => Error::bad_request(why),
            PatchError::Failed(why) => ErrorKind::PatchConflict(why).into(),
            PatchError::TooMuch => ErrorKind::PatchTooMuch.into(),
        }
    }
}
