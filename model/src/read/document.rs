//! A document as read, and the options of a read.
//!
//! Source: CouchDB's `couch_doc:to_json_obj/2`. The order of members is the same.

use crate::attachments::{Attachment, JsonForm, write_attachments};
use crate::error::Result;
use crate::feed::seq::Seq;
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, RevHistory};
use json::{JsonText, JsonWriter};

/// The data that a reader requests in addition to the body. CouchDB's `meta=true` means `revs_info`, `conflicts` and
/// `deleted_conflicts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// This revision instead of the winner. It must be a leaf: only leaves have bodies.
    pub rev: Option<RevId>,
    /// With `rev`: the newest leaf that descends from it.
    pub latest: bool,
    /// The revision's ancestors.
    pub revs: bool,
    /// The winner's ancestors, and which of them can be read.
    pub revs_info: bool,
    /// The live leaves that lost.
    pub conflicts: bool,
    /// The tombstones that lost.
    pub deleted_conflicts: bool,
    /// The sequence of the document's last change.
    pub local_seq: bool,
    /// The contents of all attachments: each is [wanted](Attachment::wanted).
    pub attachments: bool,
    /// The contents of the attachments that are newer than the newest of these revisions in the leaf's history. If none
    /// of them is in it: the contents of all attachments. Overrides `attachments`.
    pub atts_since: Option<Vec<RevId>>,
    /// How compressed attachments are encoded, in their JSON.
    pub att_encoding_info: bool,
}

/// Whether a revision's body can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevStatus {
    /// It can.
    Available,
    /// It cannot: it is not a leaf, and only leaves have bodies.
    Missing,
    /// It is a tombstone.
    Deleted,
}

impl RevStatus {
    /// CouchDB's name for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            RevStatus::Available => "available",
            RevStatus::Missing => "missing",
            RevStatus::Deleted => "deleted",
        }
    }
}

/// An entry of `_revs_info`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevInfo {
    /// The revision.
    pub rev: RevId,
    /// Whether its body can be read.
    pub status: RevStatus,
}

/// A document at one of its leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its id.
    pub id: String,
    /// The leaf.
    pub rev: RevId,
    /// Whether the leaf is a tombstone.
    pub deleted: bool,
    /// Its members, without the special ones such as `_id`.
    pub body: JsonText,
    /// The leaf and its known ancestors, if requested.
    pub revisions: Option<RevHistory>,
    /// The leaf and its known ancestors with their status, if requested.
    pub revs_info: Option<Vec<RevInfo>>,
    /// The live leaves that lost, best first; only if requested and if there are any.
    pub conflicts: Option<Vec<RevId>>,
    /// The tombstones that lost, best first; only if requested and if there are any.
    pub deleted_conflicts: Option<Vec<RevId>>,
    /// The sequence of the document's last change, if requested.
    pub local_seq: Option<Seq>,
    /// Its attachments, in order.
    pub attachments: Vec<Attachment>,
    /// Whether JSON tells how compressed attachments are encoded.
    pub att_encoding_info: bool,
}

/// The body and the attachments of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) text: JsonText,
    pub(crate) attachments: Vec<Attachment>,
}

impl Body {
    /// The body of a tombstone without a stored body.
    pub(crate) fn empty() -> Body {
        Body { text: JsonText::empty_object(), attachments: Vec::new() }
    }

    /// Approximate number of bytes that were read for it.
    pub(crate) fn bytes_read(&self) -> usize {
        const ATTACHMENT_BYTES: usize = 200;
        let bytes = |one: &Attachment| ATTACHMENT_BYTES + one.name.len() + one.content_type.len();
        self.text.len() + self.attachments.iter().map(bytes).sum::<usize>()
    }
}

impl Edit {
    /// An edit that replaces a document as read. Its attachments are kept.
    pub fn replacing(document: &Document, body: JsonText) -> Self {
        Edit { keeps_attachments: true, ..Edit::new(&*document.id, body).over(document.rev.clone()) }
    }
}

impl Document {
    pub(crate) fn new(id: String, rev: RevId, deleted: bool, body: Body) -> Self {
        let Body { text: body, attachments } = body;
        Document {
            id,
            rev,
            deleted,
            body,
            revisions: None,
            revs_info: None,
            conflicts: None,
            deleted_conflicts: None,
            local_seq: None,
            attachments,
            att_encoding_info: false,
        }
    }

    /// Marks all attachments as wanted, in documents of listings and feeds.
    pub fn want_attachments(&mut self) {
        for attachment in &mut self.attachments {
            attachment.wanted = true;
        }
    }

    /// Shows at most this many revisions of the history. After the limit was lowered, rows have more until they are
    /// stemmed.
    pub(crate) fn forget_beyond(&mut self, revs_limit: usize) {
        if let Some(revisions) = &mut self.revisions {
            revisions.ids.truncate(revs_limit);
        }
        if let Some(infos) = &mut self.revs_info {
            infos.truncate(revs_limit);
        }
    }

    /// Marks the attachments whose contents are requested. `history` returns the leaf and its ancestors.
    pub(crate) fn mark_wanted(
        &mut self,
        options: &GetOptions,
        history: impl FnOnce() -> Result<RevHistory>,
    ) -> Result<()> {
        if self.attachments.is_empty() {
            return Ok(());
        }
        self.att_encoding_info = options.att_encoding_info;
        let newer_than = match &options.atts_since {
            Some(known) => history()?.newest_of(known),
            None if options.attachments => None,
            None => return Ok(()),
        };
        for attachment in &mut self.attachments {
            attachment.wanted = newer_than.is_none_or(|position| attachment.revpos > position);
        }
        Ok(())
    }

    /// Appends the document as CouchDB writes it: `_id`, `_rev`, the body's members, then the other special members.
    /// Attachments have their data if it was [loaded](crate::Documents::load_attachments); otherwise they are stubs.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        self.write_json_as(out, JsonForm::Inline { encoding_info: self.att_encoding_info }, true);
    }

    /// The same for the first part of a multipart body. The wanted attachments follow in the other parts.
    pub fn write_json_following(&self, out: &mut Vec<u8>) {
        self.write_json_as(out, JsonForm::Follows, true);
    }

    fn write_json_as(&self, out: &mut Vec<u8>, form: JsonForm, names_rev: bool) {
        let mut json = JsonWriter::new(out);
        json.begin_object();
        json.name("_id").str(&self.id);
        if names_rev {
            self.rev.write_json(json.name("_rev"));
        }
        json.members_of(&self.body);
        if self.deleted {
            json.name("_deleted").bool(true);
        }
        if let Some(revisions) = &self.revisions {
            json.name("_revisions").begin_object();
            json.name("start").u64(revisions.position);
            json.name("ids").begin_array();
            for hash in &revisions.ids {
                json.display(hash);
            }
            json.end_array().end_object();
        }
        if let Some(revs_info) = &self.revs_info {
            json.name("_revs_info").begin_array();
            for info in revs_info {
                json.begin_object();
                info.rev.write_json(json.name("rev"));
                json.name("status").str(info.status.as_str());
                json.end_object();
            }
            json.end_array();
        }
        for (name, revs) in [("_conflicts", &self.conflicts), ("_deleted_conflicts", &self.deleted_conflicts)] {
            if let Some(revs) = revs {
                json.name(name).begin_array();
                for rev in revs {
                    rev.write_json(&mut json);
                }
                json.end_array();
            }
        }
        if let Some(seq) = &self.local_seq {
            json.name("_local_seq").display(seq);
        }
        write_attachments(&mut json, &self.attachments, form);
        json.end_object();
    }

    /// The JSON that [`write_json`](Self::write_json) writes.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body.len() + self.id.len() + 96);
        self.write_json(&mut out);
        out
    }

    /// The same as a JSON value, without the revision: for a document that has no revision yet.
    pub(crate) fn to_text_without_rev(&self) -> JsonText {
        let mut out = Vec::with_capacity(self.body.len() + self.id.len() + 64);
        self.write_json_as(&mut out, JsonForm::Inline { encoding_info: false }, false);
        JsonText::from_normalised(out).unwrap_or_else(JsonText::empty_object)
    }

    /// The same as a JSON value. The writer's output is normalised, so it is not parsed again.
    pub fn to_text(&self) -> JsonText {
        JsonText::from_normalised(self.to_json()).unwrap_or_else(JsonText::empty_object)
    }
}

/// The leaves to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenRevs {
    /// All of them.
    All,
    /// The leaves that are these revisions or, with [`GetOptions::latest`], descend from them.
    These(Vec<RevId>),
}

/// One result of `open_revs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenRev {
    /// The leaf.
    Found(Document),
    /// There is no such leaf.
    Missing(RevId),
}

/// One request of a bulk get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkGet {
    /// The document.
    pub id: String,
    /// The leaf. Without it all leaves are read, as in CouchDB.
    pub rev: Option<RevId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_couchdbs_order() {
        let rev = |text: &str| RevId::parse(text).unwrap();
        let body = |text: &str| Body { text: JsonText::parse(text.as_bytes()).unwrap(), attachments: Vec::new() };
        let mut document = Document::new("a\"b".into(), rev("2-b"), true, body(r#"{"z":1,"a":2}"#));
        document.revisions =
            Some(RevHistory { position: 2, ids: vec![rev("2-b").into_hash(), rev("1-a").into_hash()] });
        document.revs_info = Some(vec![RevInfo { rev: rev("2-b"), status: RevStatus::Deleted }]);
        document.conflicts = Some(vec![rev("1-c")]);
        document.local_seq = Some(Seq::ZERO);
        assert_eq!(
            String::from_utf8(document.to_json()).unwrap(),
            r#"{"_id":"a\"b","_rev":"2-b","z":1,"a":2,"_deleted":true,"_revisions":{"start":2,"ids":["b","a"]},"#
                .to_owned()
                + r#""_revs_info":[{"rev":"2-b","status":"deleted"}],"_conflicts":["1-c"],"#
                + r#""_local_seq":"00000000000000000000000000"}"#
        );
        let empty = Document::new("x".into(), rev("1-a"), false, body("{}"));
        assert_eq!(empty.to_json(), br#"{"_id":"x","_rev":"1-a"}"#);
        assert_eq!(empty.to_text_without_rev().as_str(), r#"{"_id":"x"}"#);
    }
}
