//! Writes a document as `multipart/related`: its JSON, then the requested attachments in their stored form.

use std::sync::Arc;

use model::{Document, Encoding};

use crate::http::app::App;
use crate::http::app::stores::Documents;
use crate::http::error::Result;
use crate::http::handlers::document::contents::{read_ahead, send_all};
use crate::http::wire::multipart::writer::{Multipart, PartHead, head};
use crate::http::wire::response::{BodyWriter, Stop};

/// A document of an answer in parts, if no attachment is requested. As in CouchDB, stubs then say how their contents
/// are stored.
pub(crate) fn all_stubs(document: &Document) -> Vec<u8> {
    let mut json = Vec::new();
    document.write_json_following(&mut json);
    json
}

/// A document to be sent with its attachments.
pub(crate) struct Related {
    document: Document,
    /// The bytes before the first content.
    begin: Vec<u8>,
    /// The header of each attachment's part.
    heads: Vec<String>,
    multipart: Multipart,
}

impl Related {
    /// `None` if no attachment is requested; the answer is plain JSON then.
    pub(crate) fn new(document: &Document) -> Result<Option<Self>> {
        let wanted: Vec<_> = document.attachments.iter().filter(|attachment| attachment.wanted).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let multipart = Multipart::new()?;
        let mut begin = multipart.begin().into_bytes();
        begin.extend_from_slice(head("application/json").as_bytes());
        document.write_json_following(&mut begin);
        let heads = wanted.iter().map(|attachment| {
            let head = PartHead {
                name: &attachment.name,
                content_type: &attachment.content_type,
                length: attachment.encoded_length,
                is_gzip: attachment.encoding == Encoding::Gzip,
            };
            [multipart.next(), head.write()].concat()
        });
        let heads = heads.collect();
        Ok(Some(Related { document: document.clone(), begin, heads, multipart }))
    }

    pub(crate) fn content_type(&self) -> String {
        self.multipart.content_type("related")
    }

    /// Length of the body in bytes.
    pub(crate) fn length(&self) -> u64 {
        let wanted = self.document.attachments.iter().filter(|attachment| attachment.wanted);
        let contents: u64 = wanted.map(|attachment| attachment.encoded_length).sum();
        let heads: usize = self.heads.iter().map(String::len).sum();
        let frame = self.begin.len() + heads + self.multipart.next().len() + Multipart::END.len();
        contents + frame as u64
    }

    /// Sends the body.
    pub(crate) async fn send(self, app: &Arc<App>, database: &Documents, writer: &BodyWriter) -> Result<(), Stop> {
        writer.send(self.begin).await?;
        let wanted = self.document.attachments.iter().filter(|attachment| attachment.wanted);
        for (attachment, head) in wanted.zip(self.heads) {
            writer.send(head).await?;
            send_all(read_ahead(app, database.attachment_reader(attachment).stored()), writer).await?;
        }
        Ok(writer.send([&*self.multipart.next(), Multipart::END].concat()).await?)
    }
}
