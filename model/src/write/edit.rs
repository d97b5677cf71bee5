//! An edit of a document, as a client submits it.
//!
//! Source: CouchDB's `couch_doc:from_json_obj/2`. Bad input gets the same errors.

use std::borrow::Cow;
use std::sync::Arc;

use crate::attachments::{Attachment, AttachmentEdit, read_attachments};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{check_attachment_count, check_document_id};
use crate::rows::revid::{RevHash, RevId};
use json::{JsonKind, JsonRef, JsonText, SplitObject};

/// How an edit finds its place in the document's revision tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteMode {
    /// The edit names the leaf that it replaces, and the layer computes the new revision. An edit that names no current
    /// leaf is a conflict.
    Interactive,
    /// The edit has its revision and ancestors (`new_edits=false`) and is merged into the tree. It is never a conflict.
    Replicated,
}

/// The result of an edit: its revision, or the reason why it was refused.
pub type EditResult = Result<RevId>;

/// A revision and its known ancestors: `_revisions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevHistory {
    /// Position of the first of `ids`.
    pub position: u64,
    /// Hash of the revision, then those of its ancestors, parent first.
    pub ids: Vec<RevHash>,
}

impl RevHistory {
    /// The revision itself, if there is one with a valid position.
    pub fn leaf(&self) -> Option<RevId> {
        RevId::new(self.position, self.ids.first()?.clone()).ok()
    }

    /// Position of the newest revision in the history that is one of these.
    pub(crate) fn newest_of(&self, revs: &[RevId]) -> Option<u64> {
        let positions = (0..=self.position).rev().zip(&self.ids);
        let is_one =
            |(position, id): &(u64, &RevHash)| revs.iter().any(|rev| rev.position() == *position && rev.hash() == *id);
        positions.into_iter().find(is_one).map(|(position, _)| position)
    }
}

/// One edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The document.
    pub id: String,
    /// Interactive: the leaf to replace, if any. Replicated: the revision itself, if there is no `history`.
    pub rev: Option<RevId>,
    /// Whether the edit deletes the document.
    pub deleted: bool,
    /// The members without the special ones. An edit whose body has a special member is refused.
    pub body: JsonText,
    /// Replicated: the revision and its ancestors. Clones of the edit share it: a client may send millions of
    /// ancestors.
    pub history: Option<Arc<RevHistory>>,
    /// The attachments, in order.
    pub attachments: Vec<AttachmentEdit>,
    /// Interactive edits of a live leaf: whether the leaf's attachments that `attachments` does not name are kept,
    /// behind those. Otherwise they are removed. A deletion removes all.
    pub keeps_attachments: bool,
}

impl Edit {
    /// An edit that creates a document, or creates it again after a deletion.
    pub fn new(id: impl Into<String>, body: JsonText) -> Self {
        let (attachments, keeps_attachments) = (Vec::new(), false);
        Edit { id: id.into(), rev: None, deleted: false, body, history: None, attachments, keeps_attachments }
    }

    /// The same edit, replacing the leaf `rev`.
    #[must_use]
    pub fn over(mut self, rev: RevId) -> Self {
        self.rev = Some(rev);
        self
    }

    /// The same edit as a deletion.
    #[must_use]
    pub fn deleting(mut self) -> Self {
        self.deleted = true;
        self
    }

    /// The same edit as one made elsewhere, with its revision and ancestors.
    #[must_use]
    pub fn with_history(mut self, history: RevHistory) -> Self {
        self.rev = history.leaf();
        self.history = Some(Arc::new(history));
        self
    }

    /// The live leaf whose attachments are kept.
    pub(crate) fn kept_of(&self) -> Option<RevId> {
        self.rev.clone().filter(|_| self.keeps_attachments && !self.deleted)
    }

    /// Also names these attachments of the replaced leaf.
    ///
    /// # Errors
    /// 413 for too many attachments.
    pub(crate) fn keep(&mut self, attachments: Vec<Attachment>) -> Result<()> {
        self.keeps_attachments = false;
        for kept in attachments {
            if self.attachments.iter().all(|attachment| attachment.name != kept.name) {
                self.attachments.push(AttachmentEdit::stub(kept.name));
            }
        }
        check_attachment_count(&self.id, self.attachments.len())
    }

    /// Separates the special members of a document from its body. `id` is the id from the request's path, if any. It
    /// overrides the id in the document.
    ///
    /// # Errors
    /// `bad_request` if the document is not an object, a revision is invalid, a replicated edit has no revision, or an
    /// attachment has no data; `illegal_docid`; `doc_validation` for unknown members that start with an underscore.
    pub fn from_json(id: Option<&str>, json: &JsonText, mode: WriteMode) -> Result<Edit> {
        Edit::from_json_or_rev(id, None, json, mode)
    }

    /// The same. A replicated edit without its own revision gets the revision that the request `named` outside the
    /// document.
    ///
    /// # Errors
    /// As [`Edit::from_json`].
    pub fn from_json_or_rev(id: Option<&str>, named: Option<&RevId>, json: &JsonText, mode: WriteMode) -> Result<Edit> {
        // Reading stops at the first unknown member: there may be millions.
        let mut unknown = None;
        let split = json.split_top(|name| {
            if is_special(name) && !KNOWN.contains(&name) && unknown.is_none() {
                unknown = Some(name.to_owned());
            }
            unknown.is_none() && is_special(name)
        });
        let SplitObject { special, rest: body } =
            split.ok_or_else(|| Error::bad_request("Document must be a JSON object"))?;
        let (mut own_id, mut rev, mut deleted, mut history) = (None, None, false, None);
        let mut attachments = None;
        for (name, value) in special {
            match name.as_ref() {
                "_id" => own_id = Some(read_id(value)?),
                "_rev" => rev = Some(read_rev(value)?),
                "_deleted" => {
                    let flag = value.as_bool();
                    deleted = flag.ok_or_else(|| Error::doc_validation("Bad special document member: _deleted"))?;
                }
                "_revisions" => history = Some(read_history(value)?),
                "_attachments" => attachments = Some(value),
                // Reads add the other members, and clients may send them back.
                _ => {}
            }
        }
        if let Some(unknown) = unknown {
            return Err(bad_member(&unknown));
        }
        let id = match (id, own_id) {
            (Some(id), _) => id.to_owned(),
            (None, Some(id)) => id.into_owned(),
            (None, None) => String::new(),
        };
        let attachments = attachments.map_or(Ok(Vec::new()), |value| read_attachments(&id, value))?;
        if mode == WriteMode::Replicated {
            // `_revisions` overrides `_rev`, as in CouchDB.
            rev = history.as_ref().and_then(RevHistory::leaf).or(rev).or_else(|| named.cloned());
            if rev.is_none() {
                return Err(missing_revision());
            }
        } else if let Some(history) = history.take() {
            // CouchDB takes the first of `_revisions` as the replaced leaf.
            rev = history.leaf();
        }
        let history = history.map(Arc::new);
        Ok(Edit { id, rev, deleted, body, history, attachments, keeps_attachments: false })
    }

    /// The revision and the ancestors of a replicated edit.
    pub(crate) fn incoming(&self) -> Result<Cow<'_, RevHistory>> {
        match (&self.history, &self.rev) {
            (Some(history), _) if history.leaf().is_some() && history.ids.len() as u64 <= history.position => {
                Ok(Cow::Borrowed(history))
            }
            (Some(history), _) if history.leaf().is_some() => Err(too_many_ancestors()),
            (_, Some(rev)) => Ok(Cow::Owned(RevHistory { position: rev.position(), ids: vec![rev.hash().clone()] })),
            _ => Err(missing_revision()),
        }
    }

    /// Size of the stored body. A tombstone without members and attachments has no stored body.
    pub(crate) fn stored_size(&self) -> u64 {
        if self.deleted && self.body.len() <= 2 && self.attachments.is_empty() { 0 } else { self.body.len() as u64 }
    }
}

/// The special members that an edit may have.
const KNOWN: [&str; 9] = [
    "_id",
    "_rev",
    "_deleted",
    "_revisions",
    "_attachments",
    "_revs_info",
    "_local_seq",
    "_conflicts",
    "_deleted_conflicts",
];

/// Whether a member is not part of a document's body. Some members of CouchDB's replicator are part of the body,
/// despite their underscore.
fn is_special(name: &str) -> bool {
    const KEPT: [&str; 6] = [
        "_access",
        "_replication_state",
        "_replication_state_time",
        "_replication_state_reason",
        "_replication_id",
        "_replication_stats",
    ];
    name.starts_with('_') && !KEPT.contains(&name)
}

/// Checks that this can be a body: an object without special members. A reader would see those twice.
///
/// # Errors
/// 400, like [`Edit::from_json`].
pub(crate) fn check_body(body: &JsonText) -> Result<()> {
    if body.kind() != JsonKind::Object {
        return Err(Error::bad_request("Document must be a JSON object"));
    }
    // Few bodies have such a name at any depth. Only the members of those are checked.
    if body.as_str().contains("\"_")
        && let Some((name, _)) = body.root().members().find(|(name, _)| is_special(name))
    {
        return Err(bad_member(&name));
    }
    Ok(())
}

fn bad_member(name: &str) -> Error {
    Error::doc_validation(format!("Bad special document member: {name}"))
}

fn missing_revision() -> Error {
    Error::bad_request("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
}

fn too_many_ancestors() -> Error {
    Error::doc_validation("_revisions.ids has more entries than _revisions.start")
}

fn read_id(value: JsonRef<'_>) -> Result<Cow<'_, str>> {
    let id = value.as_str();
    let id = id.ok_or_else(|| Error::from(ErrorKind::IllegalDocId("Document id must be a string".into())))?;
    check_document_id(&id)?;
    Ok(id)
}

fn read_rev(value: JsonRef<'_>) -> Result<RevId> {
    let rev = value.as_str().and_then(|text| RevId::parse(&text).ok());
    rev.ok_or_else(|| Error::bad_request("Invalid rev format"))
}

fn read_history(value: JsonRef<'_>) -> Result<RevHistory> {
    if value.kind() != JsonKind::Object {
        return Err(bad_member("_revisions"));
    }
    let start = value.get("start").and_then(JsonRef::as_u64);
    let position = start.ok_or_else(|| Error::doc_validation("_revisions.start isn't an integer."))?;
    let ids = value.get("ids").filter(|ids| ids.kind() == JsonKind::Array);
    let ids = ids.ok_or_else(|| Error::doc_validation("_revisions.ids isn't a array."))?;
    // Counted first: an entry of three bytes becomes one of 24, and a list that grows has room for twice as many.
    let mut hashes = Vec::with_capacity(ids.elements().count());
    for id in ids.elements() {
        let text = id.as_str().ok_or_else(|| Error::doc_validation("RevId isn't a string"))?;
        let hash = RevHash::from_text(&text);
        hashes.push(hash.map_err(|_| Error::doc_validation("RevId isn't a valid hexadecimal"))?);
    }
    if (hashes.len() as u64) > position {
        return Err(too_many_ancestors());
    }
    Ok(RevHistory { position, ids: hashes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(json: &str, mode: WriteMode) -> Result<Edit> {
        Edit::from_json(None, &JsonText::parse(json.as_bytes()).unwrap(), mode)
    }

    #[test]
    fn ancestors_take_their_room_once() {
        let text = format!(r#"{{"_id":"x","_revisions":{{"start":9999,"ids":[{}]}}}}"#, vec!["\"\""; 5_000].join(","));
        let edit = edit(&text, WriteMode::Replicated).unwrap();
        let history = edit.history.as_ref().unwrap();
        assert_eq!((history.ids.len(), history.ids.capacity()), (5_000, 5_000));
        assert!(Arc::ptr_eq(history, edit.clone().history.as_ref().unwrap()));
    }

    #[test]
    fn special_members_are_taken_apart() {
        let json = r#"{"_id":"x","a":1,"_rev":"2-abc","_deleted":true,"_conflicts":["1-x"],"_attachments":{},"b":2}"#;
        let edit = edit(json, WriteMode::Interactive).unwrap();
        assert_eq!((edit.id.as_str(), edit.deleted, edit.body.as_str()), ("x", true, r#"{"a":1,"b":2}"#));
        assert_eq!(edit.rev.unwrap().to_string(), "2-abc");
    }

    #[test]
    fn replicated_edits_bring_their_history() {
        let with = edit(r#"{"_id":"x","_rev":"3-z","_revisions":{"start":3,"ids":["c","b"]}}"#, WriteMode::Replicated);
        let with = with.unwrap();
        assert_eq!(with.rev.as_ref().unwrap().to_string(), "3-c");
        assert_eq!(with.incoming().unwrap().ids.len(), 2);
        let alone = edit(r#"{"_id":"x","_rev":"3-z"}"#, WriteMode::Replicated).unwrap();
        assert_eq!(alone.incoming().unwrap().leaf().unwrap().to_string(), "3-z");
        assert_eq!(edit(r#"{"_id":"x"}"#, WriteMode::Replicated).unwrap_err().status(), 400);
    }

    #[test]
    fn a_body_is_an_object_without_special_members() {
        let check = |json: &str| check_body(&JsonText::parse(json.as_bytes()).unwrap());
        for json in ["{}", r#"{"a":{"_id":1},"b":"_id","_access":[],"_replication_id":"x"}"#, r#"{"x_":1}"#] {
            check(json).unwrap();
        }
        for json in [r#"{"a":1,"_id":"evil"}"#, r#"{"\u005fdeleted":true}"#, r#"{"_":0}"#] {
            let error = check(json).unwrap_err();
            assert_eq!((error.status(), error.error()), (400, "doc_validation"), "{json}");
        }
        assert_eq!(check("[]").unwrap_err().reason(), "Document must be a JSON object");
    }

    #[test]
    fn bad_documents_have_couchdbs_answers() {
        for (json, status, error, reason) in [
            ("[]", 400, "bad_request", "Document must be a JSON object"),
            (r#"{"_id":1}"#, 400, "illegal_docid", "Document id must be a string"),
            (r#"{"_id":"_x"}"#, 400, "illegal_docid", "Only reserved document ids may start with underscore."),
            (r#"{"_rev":"x"}"#, 400, "bad_request", "Invalid rev format"),
            (r#"{"_rev":1}"#, 400, "bad_request", "Invalid rev format"),
            (r#"{"_id":"a","_foo":1,"_bar":2,"_rev":"x"}"#, 400, "doc_validation", "Bad special document member: _foo"),
            (r#"{"_foo":1}"#, 400, "doc_validation", "Bad special document member: _foo"),
            (r#"{"_deleted":"yes"}"#, 400, "doc_validation", "Bad special document member: _deleted"),
            (r#"{"_revisions":1}"#, 400, "doc_validation", "Bad special document member: _revisions"),
            (r#"{"_revisions":{"start":"1"}}"#, 400, "doc_validation", "_revisions.start isn't an integer."),
            (r#"{"_revisions":{"start":1,"ids":{}}}"#, 400, "doc_validation", "_revisions.ids isn't a array."),
            (r#"{"_revisions":{"start":1,"ids":[2]}}"#, 400, "doc_validation", "RevId isn't a string"),
            (r#"{"_attachments":{"a.txt":{}}}"#, 400, "bad_request", "Invalid attachment data for a.txt"),
            (r#"{"_attachments":[]}"#, 400, "doc_validation", "Bad special document member: _attachments"),
        ] {
            let found = edit(json, WriteMode::Interactive).unwrap_err();
            assert_eq!((found.status(), found.error(), found.reason().as_ref()), (status, error, reason), "{json}");
        }
    }
}
