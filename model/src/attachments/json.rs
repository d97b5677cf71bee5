//! Attachments in a document's JSON: reading and writing them.
//!
//! Source: `couch_att:from_json/2` and `to_json/4` of CouchDB. Errors and the order of members are the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose};
use bytes::Bytes;

use super::{Attachment, AttachmentEdit, AttachmentSource, Encoding, Follows, check_attachment_name};
use crate::error::{Error, Result};
use crate::limits::check_attachment_count;
use json::{JsonRef, JsonWriter};

/// CouchDB's content type of an attachment that has none.
const DEFAULT_TYPE: &str = "application/octet-stream";

/// As Erlang's `base64:decode/1`: padding is required, and bits after the last byte are ignored.
const BASE_64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// Reads the `_attachments` of the document `id`, in order. A member that is not an object is dropped, as in CouchDB.
///
/// # Errors
/// 413 for too many; `doc_validation` if `_attachments` is not an object; `bad_request` for invalid data, and for a
/// following attachment without a length.
pub(crate) fn read_attachments(id: &str, value: JsonRef<'_>) -> Result<Vec<AttachmentEdit>> {
    if !value.is_object() {
        return Err(Error::doc_validation("Bad special document member: _attachments"));
    }
    let (mut attachments, mut places) = (Vec::new(), HashMap::new());
    for (name, value) in value.members().filter(|(_, value)| value.is_object()) {
        check_attachment_name(&name)?;
        let attachment = read_one(&name, value)?;
        // If two attachments have the same name, the later one counts.
        match places.entry(name) {
            Entry::Occupied(place) => attachments[*place.get()] = attachment,
            Entry::Vacant(place) => {
                check_attachment_count(id, attachments.len() + 1)?;
                place.insert(attachments.len());
                attachments.push(attachment);
            }
        }
    }
    Ok(attachments)
}

fn read_one(name: &str, value: JsonRef<'_>) -> Result<AttachmentEdit> {
    let is = |member: &str| value.get(member).and_then(JsonRef::as_bool) == Some(true);
    let source = if is("stub") {
        AttachmentSource::Stub
    } else if is("follows") {
        AttachmentSource::Follows(read_follows(name, value)?)
    } else {
        let data = value.get("data").and_then(JsonRef::as_str);
        let data = data.and_then(|data| decode(data.as_bytes()));
        AttachmentSource::Data(data.ok_or_else(|| Error::bad_request(invalid_data(name)))?)
    };
    let content_type = value.get("content_type").and_then(JsonRef::as_str);
    Ok(AttachmentEdit {
        name: name.to_owned(),
        content_type: content_type.map_or_else(|| DEFAULT_TYPE.to_owned(), |kind| kind.into_owned()),
        revpos: value.get("revpos").and_then(JsonRef::as_u64),
        source,
    })
}

fn invalid_data(name: &str) -> String {
    format!("Invalid attachment data for {name}")
}

fn decode(text: &[u8]) -> Option<Bytes> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let bytes = if text.iter().any(is_space) {
        BASE_64.decode(text.iter().filter(|byte| !is_space(byte)).copied().collect::<Vec<u8>>())
    } else {
        BASE_64.decode(text)
    };
    bytes.ok().map(Bytes::from)
}

fn read_follows(name: &str, value: JsonRef<'_>) -> Result<Follows> {
    let number = |member: &str| value.get(member).and_then(JsonRef::as_u64);
    let no_length = || Error::bad_request(format!("The attachment {name} follows, but has no length"));
    let encoding = match value.get("encoding").and_then(JsonRef::as_str).as_deref() {
        None | Some("identity") => Encoding::Identity,
        Some("gzip") => Encoding::Gzip,
        Some(other) => {
            let reason =
                format!("The attachment {name} has the encoding {other}, only gzip and identity are supported");
            return Err(Error::bad_request(reason));
        }
    };
    let unpacked = number("length").ok_or_else(no_length)?;
    let length = match encoding {
        Encoding::Identity => unpacked,
        Encoding::Gzip => number("encoded_length").ok_or_else(no_length)?,
    };
    let digest = match value.get("digest").and_then(JsonRef::as_str) {
        None => None,
        Some(digest) => {
            let bytes = digest.strip_prefix("md5-").and_then(|digest| BASE_64.decode(digest).ok());
            let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
            Some(bytes.ok_or_else(|| Error::bad_request(format!("The digest of attachment {name} is not an MD5")))?)
        }
    };
    Ok(Follows { length, encoding, unpacked, digest })
}

/// The form of attachments in a document's JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonForm {
    /// With their data if it was loaded; otherwise as stubs.
    Inline {
        /// Whether compressed ones have their encoding.
        encoding_info: bool,
    },
    /// The wanted ones as following parts.
    Follows,
}

/// Writes `_attachments`, unless there are none.
pub(crate) fn write_attachments(json: &mut JsonWriter<'_>, attachments: &[Attachment], form: JsonForm) {
    if attachments.is_empty() {
        return;
    }
    json.name("_attachments").begin_object();
    for attachment in attachments {
        json.name(&attachment.name).begin_object();
        json.name("content_type").str(&attachment.content_type);
        json.name("revpos").u64(attachment.revpos);
        json.name("digest").str(&attachment.digest_text());
        match (form, &attachment.data) {
            (JsonForm::Inline { .. }, Some(data)) => {
                json.name("data").str(&general_purpose::STANDARD.encode(data));
            }
            (JsonForm::Follows, _) if attachment.wanted => {
                json.name("length").u64(attachment.length);
                json.name("follows").bool(true);
            }
            _ => {
                json.name("length").u64(attachment.length);
                json.name("stub").bool(true);
            }
        }
        let says_encoding = form == JsonForm::Follows || form == JsonForm::Inline { encoding_info: true };
        if says_encoding && attachment.encoding != Encoding::Identity {
            json.name("encoding").str(attachment.encoding.as_str());
            json.name("encoded_length").u64(attachment.encoded_length);
        }
        json.end_object();
    }
    json.end_object();
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::JsonText;

    fn read(text: &str) -> Result<Vec<AttachmentEdit>> {
        read_attachments("a", JsonText::parse(text.as_bytes()).unwrap().root())
    }

    #[test]
    fn data_is_decoded_as_erlang_decodes_it() {
        for (data, bytes) in [("aGk=", "hi"), ("", ""), (" aG\\nk =\\t", "hi"), ("aGl=", "hi")] {
            let found =
                read(&format!(r#"{{"a":{{"data":"{data}","content_type":"text/plain","length":7}}}}"#)).unwrap();
            assert_eq!(found[0].source, AttachmentSource::Data(Bytes::copy_from_slice(bytes.as_bytes())), "{data}");
        }
        for bad in [r#""aGk""#, r#""aGk==""#, r#""aG-_""#, r#""a b*""#, "7", "null"] {
            let error = read(&format!(r#"{{"a":{{"data":{bad}}}}}"#)).unwrap_err();
            assert_eq!((error.status(), error.reason().as_ref()), (400, "Invalid attachment data for a"), "{bad}");
        }
        assert_eq!(read(r#"{"a":{}}"#).unwrap_err().reason(), "Invalid attachment data for a");
        assert_eq!(read("[]").unwrap_err().error(), "doc_validation");
        assert_eq!(read(r#"{"_a":{"data":""}}"#).unwrap_err().status(), 400);
    }

    #[test]
    fn stubs_and_what_follows_are_told_apart() {
        let found = read(
            r#"{"s":{"stub":true,"data":"no","revpos":3,"digest":"md5-x"},"n":7,"":{"data":"aGk="},"":{"data":""},
                "f":{"follows":true,"length":9,"encoded_length":4,"encoding":"gzip","digest":"md5-AAAAAAAAAAAAAAAAAAAAAA=="},
                "p":{"follows":true,"length":9}}"#,
        )
        .unwrap();
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["s", "", "f", "p"], "a member that is not an object is dropped");
        assert_eq!((&found[0].source, found[0].revpos), (&AttachmentSource::Stub, Some(3)));
        assert_eq!(found[1].content_type, DEFAULT_TYPE);
        assert_eq!(found[1].source, AttachmentSource::Data(Bytes::new()), "of two of one name the later");
        let packed = Follows { length: 4, encoding: Encoding::Gzip, unpacked: 9, digest: Some([0; 16]) };
        assert_eq!(found[2].source, AttachmentSource::Follows(packed));
        let plain = Follows { length: 9, encoding: Encoding::Identity, unpacked: 9, digest: None };
        assert_eq!(found[3].source, AttachmentSource::Follows(plain));
        for bad in [
            r#"{"a":{"follows":true}}"#,
            r#"{"a":{"follows":true,"length":1,"encoding":"gzip"}}"#,
            r#"{"a":{"follows":true,"length":1,"encoding":"br"}}"#,
            r#"{"a":{"follows":true,"length":1,"digest":"md5-x"}}"#,
        ] {
            assert_eq!(read(bad).unwrap_err().status(), 400, "{bad}");
        }
    }
}
