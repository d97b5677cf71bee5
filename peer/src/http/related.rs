//! A document with its attachments in one request, as `multipart/related`.
//!
//! The length is known before the first byte: CouchDB and proxies require it. A document without sent attachments is
//! plain JSON: CouchDB stores a `multipart/related` without a second part, but never answers it.
//!
//! Source: `length_multipart_stream/3` of `couch_httpd_multipart.erl`.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use model::{Encoding, JsonWriter};
use reqwest::Body;

use crate::ByteStream;
use crate::error::Error;
use crate::types::Revision;
use crate::whole::begin_document;

/// A body to send.
pub(super) struct Related {
    pub(super) content_type: String,
    pub(super) length: u64,
    pub(super) body: Body,
}

impl Related {
    /// `boundary` must not occur in any part: it is random.
    pub(super) fn new(revision: &Revision, contents: Vec<Option<ByteStream>>, boundary: &str) -> Related {
        let is_alone = contents.iter().all(Option::is_none);
        let mut first = match is_alone {
            true => Vec::new(),
            false => format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").into_bytes(),
        };
        let mut json = JsonWriter::new(&mut first);
        begin_document(&mut json, &Revision { attachments: Vec::new(), ..revision.clone() }.into_edit());
        json.name("_attachments").begin_object();
        for (attachment, content) in revision.attachments.iter().zip(&contents) {
            json.name(&attachment.name).begin_object().name("content_type").str(&attachment.content_type);
            json.name("revpos").u64(attachment.revpos).name("length").u64(attachment.length);
            if content.is_none() {
                json.name("stub").bool(true);
            } else {
                json.name("follows").bool(true);
                if attachment.encoding == Encoding::Gzip {
                    json.name("encoding").str("gzip").name("encoded_length").u64(attachment.encoded_length);
                }
            }
            json.end_object();
        }
        json.end_object().end_object();
        let mut length = first.len() as u64;
        if is_alone {
            return Related { content_type: "application/json".to_owned(), length, body: Body::from(first) };
        }
        let mut pieces: Vec<ByteStream> = vec![piece(first)];
        for (attachment, content) in revision.attachments.iter().zip(contents) {
            let Some(content) = content else { continue };
            let packed = if attachment.encoding == Encoding::Gzip { "Content-Encoding: gzip\r\n" } else { "" };
            // The receiver uses the order of the parts. Names and types may contain characters that end a header.
            let bytes = attachment.encoded_length;
            let head = format!("\r\n--{boundary}\r\nContent-Length: {bytes}\r\n{packed}\r\n");
            length += head.len() as u64 + bytes;
            pieces.push(piece(head.into_bytes()));
            pieces.push(content);
        }
        let end = format!("\r\n--{boundary}--");
        length += end.len() as u64;
        pieces.push(piece(end.into_bytes()));
        let body = Body::wrap_stream(stream::iter(pieces).flatten());
        Related { content_type: format!("multipart/related; boundary=\"{boundary}\""), length, body }
    }
}

fn piece(bytes: Vec<u8>) -> ByteStream {
    stream::once(std::future::ready(Ok::<_, Error>(Bytes::from(bytes)))).boxed()
}

#[cfg(test)]
mod tests {
    use model::JsonText;

    use super::*;
    use crate::types::Attachment;

    #[test]
    fn a_document_of_which_no_attachment_is_sent_is_plain_json() {
        let attachment = Attachment {
            name: "a".to_owned(),
            content_type: "text/plain".to_owned(),
            revpos: 1,
            length: 3,
            encoding: Encoding::Identity,
            encoded_length: 3,
        };
        let revision = Revision {
            id: "x".to_owned(),
            rev: "2-b".parse().unwrap(),
            deleted: false,
            body: JsonText::empty_object(),
            history: None,
            attachments: vec![attachment],
            held: crate::Held::default(),
        };
        let alone = Related::new(&revision, vec![None], "boundary");
        let sent = alone.body.as_bytes().expect("it is not a stream");
        let json = JsonText::parse(sent).unwrap();
        let stub = json.get("_attachments").and_then(|attachments| attachments.get("a")?.get("stub")?.as_bool());
        assert_eq!(
            (alone.content_type.as_str(), alone.length, stub),
            ("application/json", sent.len() as u64, Some(true))
        );
        let with_one = Related::new(&revision, vec![Some(piece(b"abc".to_vec()))], "boundary");
        assert_eq!(with_one.content_type, "multipart/related; boundary=\"boundary\"");
    }
}
