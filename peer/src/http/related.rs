//! A document with its attachments in one request, as `multipart/related`.
//!
//! The length is known before the first byte: CouchDB and proxies require it.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use model::{Encoding, JsonWriter};
use reqwest::Body;

use super::sent::begin_document;
use crate::ByteStream;
use crate::error::Error;
use crate::types::Revision;

/// A body to send.
pub(super) struct Related {
    pub(super) content_type: String,
    pub(super) length: u64,
    pub(super) body: Body,
}

impl Related {
    /// `boundary` must not occur in any part: it is random.
    pub(super) fn new(revision: &Revision, contents: Vec<Option<ByteStream>>, boundary: &str) -> Related {
        let mut first = format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").into_bytes();
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
