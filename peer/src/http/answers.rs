//! Reads responses of servers.

use std::borrow::Cow;

use model::{AttachmentSource, Edit, Encoding, JsonRef, JsonText, RevId, WriteMode};

use super::address::{attachment_path, is_carried};
use super::answer::{Held, problem};
use crate::error::{Error, ErrorKind, Result};
use crate::text::cut;
use crate::types::{Attachment, Change, Revision};

/// A member that is a string.
pub(super) fn text<'a>(value: JsonRef<'a>, name: &str) -> Option<Cow<'a, str>> {
    value.get(name).and_then(JsonRef::as_str)
}

/// A member that is an array.
pub(super) fn list<'a>(value: JsonRef<'a>, name: &str) -> Result<Vec<JsonRef<'a>>> {
    let list = value.get(name).filter(|list| list.is_array());
    let list = list.ok_or_else(|| Error::nonsense(format!("the server's answer has no {name}")))?;
    Ok(list.elements().collect())
}

/// Maximum length of a sequence. Those of CouchDB name each shard of a database.
const MOST_SEQ: usize = 16_000;

/// Maximum length of the revision of a local document.
const MOST_LOCAL_REV: usize = 1_000;

/// A sequence: a string, or a number from older servers. It will be stored, so a sequence longer than any real one is
/// refused.
pub(super) fn seq(value: JsonRef<'_>) -> Result<String> {
    if value.text().len() > MOST_SEQ {
        return Err(Error::nonsense(format!("the server sent a sequence of more than {MOST_SEQ} bytes")));
    }
    Ok(value.str_or_text().into_owned())
}

/// The revision of a local document, which is sent back.
pub(super) fn local_rev(rev: Cow<'_, str>) -> Result<String> {
    match rev.len() <= MOST_LOCAL_REV {
        true => Ok(rev.into_owned()),
        false => Err(Error::nonsense("the server sent a revision of a local document that is too long")),
    }
}

pub(super) fn rev(text: &str) -> Result<RevId> {
    RevId::parse(text).map_err(|error| Error::nonsense(format!("\"{}\": {error}", cut(text, 100))))
}

/// A row of `_changes`.
pub(super) fn change(row: JsonRef<'_>) -> Result<Change> {
    let id = text(row, "id").ok_or_else(|| Error::nonsense("a row of the server's _changes has no id"))?;
    let revs = row.get("changes").map(JsonRef::elements).into_iter().flatten();
    Ok(Change {
        seq: row.get("seq").map(seq).transpose()?.unwrap_or_default(),
        id: id.into_owned(),
        revs: revs.filter_map(|rev| text(rev, "rev")).map(Cow::into_owned).collect(),
        deleted: row.get("deleted").and_then(JsonRef::as_bool) == Some(true),
        error: text(row, "error")
            .map(|error| (error.into_owned(), text(row, "reason").unwrap_or_default().into_owned())),
    })
}

/// A document as a leaf.
pub(super) fn revision(id: &str, document: &JsonText, held: &Held) -> Result<Revision> {
    let edit = Edit::from_json(Some(id), document, WriteMode::Replicated);
    let edit = edit.map_err(|error| Error::nonsense(format!("the document \"{id}\" is invalid: {error}")))?;
    let rev = edit.rev.ok_or_else(|| Error::nonsense(format!("the document \"{id}\" has no revision")))?;
    let details = document.get("_attachments");
    let mut attachments = Vec::with_capacity(edit.attachments.len());
    for made in edit.attachments {
        if matches!(made.source, AttachmentSource::Data(_)) {
            return Err(Error::nonsense(format!("\"{id}\" comes with attachments that were not requested")));
        }
        let details = details.and_then(|details| details.get(&made.name));
        let number = |name| details.and_then(|details| details.get(name)).and_then(JsonRef::as_u64);
        let no_length = || Error::nonsense(format!("an attachment of \"{id}\" has no length"));
        let length = number("length").ok_or_else(no_length)?;
        let is_gzip = details.and_then(|details| text(details, "encoding")).as_deref() == Some("gzip");
        // If the compressed length is unknown, it is requested uncompressed. In JSON it is always uncompressed.
        let in_json = !attachment_path(id, &made.name).iter().all(|name| is_carried(name));
        let packed = number("encoded_length").filter(|_| is_gzip && !in_json);
        attachments.push(Attachment {
            name: made.name,
            content_type: made.content_type,
            revpos: made.revpos.unwrap_or(0),
            length,
            encoding: if packed.is_some() { Encoding::Gzip } else { Encoding::Identity },
            encoded_length: packed.unwrap_or(length),
        });
    }
    let (id, held) = (id.to_owned(), held.clone());
    let history = edit.history.map(std::sync::Arc::unwrap_or_clone);
    Ok(Revision { id, rev, deleted: edit.deleted, body: edit.body, history, attachments, held })
}

/// The error in a row of `_bulk_docs` or a similar response.
pub(super) fn refusal(row: JsonRef<'_>) -> Option<Error> {
    let name = text(row, "error")?;
    let kind = match name.as_ref() {
        "conflict" => ErrorKind::Conflict,
        "document_too_large" | "attachment_too_large" | "too_large" => ErrorKind::TooLarge,
        "service unavailable" | "internal_server_error" | "insufficient_storage" | "timeout" => ErrorKind::Unavailable,
        // A replication into a full database waits for room.
        "quota_exceeded" => ErrorKind::Unavailable,
        _ => ErrorKind::Refused,
    };
    let status = match name.as_ref() {
        "unauthorized" => Some(401),
        "forbidden" => Some(403),
        // An error of the document itself, for example a validation function that throws. A retry would not help.
        "unknown_error" | "internal_server_error" => Some(500),
        "insufficient_storage" => Some(507),
        "quota_exceeded" => Some(413),
        _ => None,
    };
    let error = Error::new(kind, problem(row).unwrap_or_default());
    Some(status.map_or(error.clone(), |status| error.with_status(status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_whether_to_wait() {
        let of = |error: &str| {
            let row = JsonText::parse(format!(r#"{{"id":"a","error":"{error}","reason":"x"}}"#).as_bytes()).unwrap();
            refusal(row.root()).map(|error| (error.kind(), error.status()))
        };
        assert_eq!(of("insufficient_storage"), Some((ErrorKind::Unavailable, Some(507))));
        assert_eq!(of("quota_exceeded"), Some((ErrorKind::Unavailable, Some(413))));
        assert_eq!(of("internal_server_error"), Some((ErrorKind::Unavailable, Some(500))));
        assert_eq!(of("forbidden"), Some((ErrorKind::Refused, Some(403))));
    }
}
