//! Writes documents as servers read them.

use base64::Engine as _;
use model::{AttachmentSource, Edit, JsonWriter};

use crate::error::{Error, Result};
use crate::whole::begin_document;

/// A document as clients send it. Its attachments are data or stubs.
pub(super) fn document(edit: &Edit) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(edit.body.len() + edit.id.len() + 100);
    let mut json = JsonWriter::new(&mut out);
    begin_document(&mut json, edit);
    if !edit.attachments.is_empty() {
        json.name("_attachments").begin_object();
        for attachment in &edit.attachments {
            json.name(&attachment.name).begin_object().name("content_type").str(&attachment.content_type);
            if let Some(revpos) = attachment.revpos {
                json.name("revpos").u64(revpos);
            }
            match &attachment.source {
                AttachmentSource::Data(bytes) => {
                    let data = base64::engine::general_purpose::STANDARD.encode(bytes);
                    json.name("data").str(&data);
                }
                AttachmentSource::Stub => {
                    json.name("stub").bool(true);
                }
                _ => {
                    let name = &attachment.name;
                    return Err(Error::refused(format!("the attachment {name} is in another store, and is not sent")));
                }
            }
            json.end_object();
        }
        json.end_object();
    }
    json.end_object();
    Ok(out)
}
