//! Computes the attachments of a new leaf from an edit.

use std::collections::HashMap;

use super::{Attachment, AttachmentEdit, AttachmentSource};
use crate::error::{Error, ErrorKind, Result};
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, WriteMode};

impl AttachmentEdit {
    pub(crate) fn is_stub(&self) -> bool {
        self.source == AttachmentSource::Stub
    }

    /// Number of bytes of content that the edit has to write.
    pub(crate) fn bytes_in_memory(&self) -> usize {
        match &self.source {
            AttachmentSource::Content(content) => content.bytes_in_memory(),
            _ => 0,
        }
    }
}

/// The attachments of the leaf that `edit` makes, in the edit's order. Stubs are looked up in `replaced`, the
/// attachments of the replaced leaf.
///
/// # Errors
/// `missing_stub` if a stub names nothing, or an attachment with another `revpos`. `bad_request` for data that was
/// not uploaded.
pub(crate) fn resolve(edit: &Edit, mode: WriteMode, replaced: &[Attachment]) -> Result<Vec<Attachment>> {
    // As in CouchDB, the position after that of the named revision; 1 without one.
    let made = edit.rev.as_ref().map_or(0, RevId::position).saturating_add(1);
    let replaced: HashMap<&str, &Attachment> = replaced.iter().map(|other| (other.name.as_str(), other)).collect();
    let resolved = edit.attachments.iter().map(|attachment| {
        let revpos = match mode {
            WriteMode::Interactive => made,
            WriteMode::Replicated => attachment.revpos.unwrap_or(0),
        };
        resolve_one(edit, attachment, revpos, &replaced)
    });
    resolved.collect()
}

fn resolve_one(
    edit: &Edit,
    attachment: &AttachmentEdit,
    revpos: u64,
    replaced: &HashMap<&str, &Attachment>,
) -> Result<Attachment> {
    let AttachmentEdit { name, content_type, .. } = attachment;
    match &attachment.source {
        AttachmentSource::Stub => {
            let found = replaced.get(name.as_str()).copied();
            let found = found.filter(|found| attachment.revpos.is_none_or(|revpos| revpos == found.revpos));
            found.cloned().ok_or_else(|| ErrorKind::MissingStub { id: edit.id.clone(), name: name.clone() }.into())
        }
        AttachmentSource::Content(content) => Ok(Attachment {
            name: name.clone(),
            content_type: content_type.clone(),
            revpos,
            digest: content.digest(),
            length: content.length(),
            encoded_length: content.encoded_length(),
            encoding: content.encoding(),
            wanted: false,
            data: None,
            content: content.id(),
        }),
        AttachmentSource::Same(other) => {
            let (name, content_type) = (name.clone(), content_type.clone());
            Ok(Attachment { name, content_type, wanted: false, data: None, ..(**other).clone() })
        }
        AttachmentSource::Data(_) | AttachmentSource::Follows(_) => {
            Err(Error::bad_request(format!("The content of the attachment {name} is missing")))
        }
    }
}
