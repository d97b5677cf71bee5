//! Reads and writes one attachment of a document, by its name.
//!
//! Source: `db_attachment_req/4` of CouchDB's `chttpd_db.erl`.

use kv_api::Database;

use super::{Attachment, AttachmentEdit, AttachmentReader, Content, check_attachment_name};
use crate::documents::Documents;
use crate::error::{Error, ErrorKind, NotFound, Result};
use crate::read::document::{Document, GetOptions};
use crate::rows::revid::RevId;
use crate::write::edit::Edit;
use json::JsonText;

impl<D: Database> Documents<D> {
    /// Reads an attachment of the winner, or of the leaf `rev`. Returns that leaf's revision, and a reader of the
    /// content, which decompresses it; [`stored`](AttachmentReader::stored) does not.
    ///
    /// # Errors
    /// 404: the document or the leaf is `missing` or `deleted`, or has no such attachment.
    pub async fn attachment(&self, id: &str, rev: Option<&RevId>, name: &str) -> Result<(RevId, AttachmentReader<D>)> {
        let document = self.get(id, &GetOptions { rev: rev.cloned(), ..GetOptions::default() }).await?;
        let attachment = find(&document, name)?;
        Ok((document.rev.clone(), self.attachment_reader(attachment)))
    }

    /// Adds an attachment to a document, in front of the others, or replaces the one with its name. Returns the new
    /// revision. Without `rev`, creates the document, or creates it again after a deletion.
    ///
    /// # Errors
    /// 409: [`ErrorKind::MissingRev`] if the document never had the revision `rev`; a conflict if it is no longer a
    /// live leaf, or if no revision was given for a live document; 400 for an invalid name; the errors that
    /// [`write`](Self::write) returns for an edit.
    pub async fn put_attachment(
        &self,
        id: &str,
        rev: Option<&RevId>,
        name: &str,
        content_type: &str,
        content: Content,
    ) -> Result<RevId> {
        check_attachment_name(name)?;
        let new = AttachmentEdit::new(name, content_type, content);
        let edit = match rev {
            None => Edit { attachments: vec![new], ..Edit::new(id, JsonText::empty_object()) },
            Some(rev) => replacing(self.leaf_named(id, rev).await?, name, Some(new)),
        };
        self.put(edit).await
    }

    /// Removes an attachment from a document. Returns the new revision.
    ///
    /// # Errors
    /// 404 if there is no such attachment; 409 as for [`put_attachment`](Self::put_attachment).
    pub async fn delete_attachment(&self, id: &str, rev: Option<&RevId>, name: &str) -> Result<RevId> {
        let Some(rev) = rev else {
            let document = self.get(id, &GetOptions::default()).await?;
            find(&document, name)?;
            return Err(Error::conflict());
        };
        let document = self.leaf_named(id, rev).await?;
        find(&document, name)?;
        self.put(replacing(document, name, None)).await
    }

    async fn leaf_named(&self, id: &str, rev: &RevId) -> Result<Document> {
        let options = GetOptions { rev: Some(rev.clone()), ..GetOptions::default() };
        let found = self.get(id, &options).await;
        let is_missing = |error: &Error| matches!(error.kind(), ErrorKind::NotFound(NotFound::Missing));
        if !found.as_ref().is_err_and(is_missing) {
            return found;
        }
        // The body of a replaced revision is missing too, but its edit is a conflict, which clients retry.
        Err(if self.is_known(id, rev).await? { Error::conflict() } else { ErrorKind::MissingRev.into() })
    }
}

fn find<'d>(document: &'d Document, name: &str) -> Result<&'d Attachment> {
    let found = document.attachments.iter().find(|attachment| attachment.name == name);
    found.ok_or_else(|| Error::not_found(NotFound::Attachment))
}

/// The edit of a leaf that replaces the attachment with this name, or removes it.
fn replacing(document: Document, name: &str, new: Option<AttachmentEdit>) -> Edit {
    let others = document.attachments.into_iter().filter(|attachment| attachment.name != name);
    let attachments = new.into_iter().chain(others.map(|other| AttachmentEdit::stub(other.name))).collect();
    Edit { attachments, ..Edit::new(document.id, document.body).over(document.rev) }
}
