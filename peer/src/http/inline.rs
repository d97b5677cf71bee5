//! Streams a document with its attachments inside the JSON of `_bulk_docs`: for ids that a URL cannot have, and for
//! pouchdb-server. That server reads `multipart/related` differently: it stores compressed parts as they are, and
//! crashes at a part without a file name.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::write::GzDecoder;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{Encoding, JsonText, JsonWriter};
use reqwest::Body;

use super::answers::refusal;
use super::sent::begin_document;
use super::{Http, Method, ceilings};
use crate::ByteStream;
use crate::error::{Error, Result};
use crate::types::{Attachment, Revision};

/// Status of a target that does not have an attachment which was assumed to be there.
const MISSING_STUB: u16 = 412;

/// Number of compressed bytes that are unpacked at a time.
const PACKED_AT_ONCE: usize = 4 << 10;

/// Number of bytes that become a group of four characters in base64.
const GROUP: usize = 3;

impl Http {
    /// Writes a leaf that was made elsewhere. All its attachments must have contents, since a stub needs a digest at
    /// pouchdb-server.
    pub(super) async fn put_inline(&self, revision: &Revision, contents: Vec<Option<ByteStream>>) -> Result<()> {
        let contents: Option<Vec<ByteStream>> = contents.into_iter().collect();
        let no_stubs = || Error::refused("the server takes no attachments without their contents");
        let contents = contents.ok_or_else(|| no_stubs().with_status(MISSING_STUB))?;
        let (length, body) = body(revision, contents);
        let url = self.url(&["_bulk_docs"], &[])?;
        let (ceiling, body) = (ceilings::written(revision.id.len(), 1), Body::wrap_stream(body));
        let answer =
            self.send_stream(ceiling, Method::POST, url, "application/json", length, body).await?.into_json()?;
        // Leaves that were written have no row.
        answer.root().elements().find_map(refusal).map_or(Ok(()), Err)
    }
}

/// The request's body and its length.
fn body(revision: &Revision, contents: Vec<ByteStream>) -> (u64, ByteStream) {
    let mut next = br#"{"new_edits":false,"docs":["#.to_vec();
    let mut document = Vec::new();
    begin_document(
        &mut JsonWriter::new(&mut document),
        &Revision { attachments: Vec::new(), ..revision.clone() }.into_edit(),
    );
    next.extend(document);
    next.extend_from_slice(br#","_attachments":{"#);
    let (mut length, mut pieces) = (0, Vec::new());
    for (place, (attachment, content)) in revision.attachments.iter().zip(contents).enumerate() {
        if place > 0 {
            next.push(b',');
        }
        let quoted = |text: &str, out: &mut Vec<u8>| {
            JsonWriter::new(out).str(text);
        };
        quoted(&attachment.name, &mut next);
        next.extend_from_slice(br#":{"content_type":"#);
        quoted(&attachment.content_type, &mut next);
        next.extend_from_slice(format!(r#","revpos":{},"data":""#, attachment.revpos).as_bytes());
        length += next.len() as u64 + attachment.length.div_ceil(GROUP as u64) * 4;
        pieces.extend([piece(std::mem::take(&mut next)), in_base64(unpacked(attachment, content))]);
        next.extend_from_slice(br#""}"#);
    }
    next.extend_from_slice(b"}}]}");
    length += next.len() as u64;
    pieces.push(piece(next));
    (length, stream::iter(pieces).flatten().boxed())
}

fn piece(bytes: Vec<u8>) -> ByteStream {
    stream::once(std::future::ready(Ok::<_, Error>(Bytes::from(bytes)))).boxed()
}

/// The decompressed bytes of an attachment.
fn unpacked(attachment: &Attachment, packed: ByteStream) -> ByteStream {
    if attachment.encoding == Encoding::Identity {
        return packed;
    }
    let damaged = || Error::nonsense("an attachment is not compressed as it says");
    let state = Some((packed, GzDecoder::new(Vec::new()), Bytes::new(), attachment.length));
    let step = move |state: Option<(ByteStream, GzDecoder<Vec<u8>>, Bytes, u64)>| async move {
        let Some((mut packed, mut decoder, mut rest, left)) = state else { return Ok(None) };
        if rest.is_empty() {
            rest = packed.try_next().await?.unwrap_or_default();
        }
        let is_last = rest.is_empty();
        // Decompressed in small pieces, since they may become a thousand times as long.
        decoder.write_all(&rest.split_to(rest.len().min(PACKED_AT_ONCE))).map_err(|_| damaged())?;
        let out = match is_last {
            true => decoder.try_finish().map(|()| std::mem::take(decoder.get_mut())).map_err(|_| damaged())?,
            false => std::mem::take(decoder.get_mut()),
        };
        let left = left.checked_sub(out.len() as u64).ok_or_else(damaged)?;
        Ok(Some((Bytes::from(out), (!is_last).then_some((packed, decoder, rest, left)))))
    };
    stream::try_unfold(state, step).boxed()
}

/// The bytes in base64. Bytes of an incomplete group wait for the next ones.
fn in_base64(bytes: ByteStream) -> ByteStream {
    let step = |state: Option<(ByteStream, Vec<u8>)>| async move {
        let Some((mut bytes, mut waiting)) = state else { return Ok(None) };
        match bytes.try_next().await? {
            Some(piece) => {
                waiting.extend_from_slice(&piece);
                let rest = waiting.split_off(waiting.len() / GROUP * GROUP);
                Ok(Some((Bytes::from(STANDARD.encode(waiting)), Some((bytes, rest)))))
            }
            None => Ok(Some((Bytes::from(STANDARD.encode(waiting)), None))),
        }
    };
    stream::try_unfold(Some((bytes, Vec::new())), step).boxed()
}

/// Whether the description of a database is pouchdb-server's.
pub(super) fn is_pouchdb(info: &JsonText) -> bool {
    info.get("adapter").or_else(|| info.get("backend_adapter")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(bytes: &[u8], size: usize) -> ByteStream {
        let pieces: Vec<Result<Bytes>> = bytes.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        stream::iter(pieces).boxed()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_body_has_its_length_and_all_contents_whatever_their_pieces() {
        let (text, picture) = ("text \u{e4} ".repeat(500).into_bytes(), vec![7; 1_000]);
        let packed = gzip(&text);
        let attachment = |name: &str, encoding, length: usize, encoded: usize| Attachment {
            name: name.to_owned(),
            content_type: "a/\"b\"".to_owned(),
            revpos: 1,
            length: length as u64,
            encoding,
            encoded_length: encoded as u64,
        };
        let revision = Revision {
            id: "a\"b".to_owned(),
            rev: "1-967a00dff5e02add41819138abb3284d".parse().unwrap(),
            deleted: false,
            body: JsonText::parse(br#"{"n":1}"#).unwrap(),
            history: None,
            attachments: vec![
                attachment("text", Encoding::Gzip, text.len(), packed.len()),
                attachment("picture \"x\"", Encoding::Identity, picture.len(), picture.len()),
                attachment("empty", Encoding::Identity, 0, 0),
            ],
            held: crate::Held::default(),
        };
        for size in [1, 2, 3, 7, 100_000] {
            let contents = vec![in_pieces(&packed, size), in_pieces(&picture, size), in_pieces(b"", 1)];
            let (length, body) = body(&revision, contents);
            let pieces: Vec<Bytes> = futures_util::FutureExt::now_or_never(body.try_collect()).unwrap().unwrap();
            let sent = pieces.concat();
            assert_eq!(sent.len() as u64, length);
            let json = JsonText::parse(&sent).unwrap();
            let document = json.get("docs").unwrap().elements().next().unwrap();
            assert_eq!(document.get("_id").unwrap().as_str().unwrap(), "a\"b");
            let data = |name: &str| {
                let data = document.get("_attachments").unwrap().get(name).unwrap().get("data").unwrap();
                STANDARD.decode(data.as_str().unwrap().as_bytes()).unwrap()
            };
            assert!(data("text") == text && data("picture \"x\"") == picture && data("empty").is_empty(), "{size}");
        }
        let damaged = unpacked(&revision.attachments[0], in_pieces(b"no gzip", 3));
        assert!(futures_util::FutureExt::now_or_never(damaged.try_collect::<Vec<_>>()).unwrap().is_err());
    }
}
