//! A leaf as one JSON document with the contents of its attachments.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::write::GzDecoder;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{Edit, Encoding, JsonWriter};

use crate::ByteStream;
use crate::error::Error;
use crate::types::{Attachment, Revision};

/// Number of compressed bytes that are unpacked at a time.
const PACKED_AT_ONCE: usize = 4 << 10;

/// Number of bytes that become four characters of base64.
const GROUP: usize = 3;

impl Revision {
    /// The document as JSON, and its length: the members, `_rev`, `_deleted`, `_revisions` if its ancestors were read,
    /// and the attachments with these contents, decompressed. A replicated write takes it unchanged.
    ///
    /// # Errors
    /// The stream fails where a content fails, or is not compressed as its attachment says.
    pub fn into_json(mut self, contents: Vec<ByteStream>) -> (u64, ByteStream) {
        let attachments = std::mem::take(&mut self.attachments);
        let mut next = Vec::new();
        begin_document(&mut JsonWriter::new(&mut next), &self.into_edit());
        let (mut length, mut pieces) = (0, Vec::new());
        for (place, (attachment, content)) in attachments.iter().zip(contents).enumerate() {
            next.extend_from_slice(if place == 0 { br#","_attachments":{"# } else { b"," });
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
        if !attachments.is_empty() {
            next.push(b'}');
        }
        next.push(b'}');
        length += next.len() as u64;
        pieces.push(piece(next));
        (length, stream::iter(pieces).flatten().boxed())
    }
}

/// Everything of a document except its attachments.
pub(crate) fn begin_document(json: &mut JsonWriter<'_>, edit: &Edit) {
    json.begin_object().name("_id").str(&edit.id);
    if let Some(rev) = &edit.rev {
        json.name("_rev").display(rev);
    }
    json.members_of(&edit.body);
    if edit.deleted {
        json.name("_deleted").bool(true);
    }
    if let Some(history) = &edit.history {
        json.name("_revisions").begin_object().name("start").u64(history.position).name("ids").begin_array();
        for hash in &history.ids {
            json.display(hash);
        }
        json.end_array().end_object();
    }
}

pub(crate) fn piece(bytes: Vec<u8>) -> ByteStream {
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

#[cfg(test)]
mod tests {
    use model::JsonText;

    use super::*;
    use crate::error::Result;

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
    fn a_document_has_its_length_and_all_contents_whatever_their_pieces() {
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
            let (length, json) = revision.clone().into_json(contents);
            let pieces: Vec<Bytes> = futures_util::FutureExt::now_or_never(json.try_collect()).unwrap().unwrap();
            let sent = pieces.concat();
            assert_eq!(sent.len() as u64, length);
            let json = JsonText::parse(&sent).unwrap();
            assert_eq!(json.get("_id").unwrap().as_str().unwrap(), "a\"b");
            let data = |name: &str| {
                let data = json.get("_attachments").unwrap().get(name).unwrap().get("data").unwrap();
                STANDARD.decode(data.as_str().unwrap().as_bytes()).unwrap()
            };
            assert!(data("text") == text && data("picture \"x\"") == picture && data("empty").is_empty(), "{size}");
        }
        let alone = Revision { attachments: Vec::new(), ..revision.clone() };
        let (length, json) = alone.into_json(Vec::new());
        let pieces: Vec<Bytes> = futures_util::FutureExt::now_or_never(json.try_collect()).unwrap().unwrap();
        let json = pieces.concat();
        assert_eq!(json, br#"{"_id":"a\"b","_rev":"1-967a00dff5e02add41819138abb3284d","n":1}"#);
        assert_eq!(json.len() as u64, length);
        let damaged = unpacked(&revision.attachments[0], in_pieces(b"no gzip", 3));
        assert!(futures_util::FutureExt::now_or_never(damaged.try_collect::<Vec<_>>()).unwrap().is_err());
    }
}
