//! Records of documents, and blocks of them.
//!
//! ```text
//!  block   = record …
//!  record  = length of the rest (4) │ length of the header (4) │ header, JSON │ body of each leaf, JSON
//! ```
//!
//! A header names a document's leaves with their ancestors and attachments, or says that the document is gone. Bodies
//! are the members without the special ones, as the database has them.

use model::{Attachment, Document, Edit, Encoding, JsonText, RevHash, RevHistory, RevId};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::pack::ObjectId;

/// A document.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// Empty for a document that is gone.
    pub(crate) leaves: Vec<Leaf>,
}

#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) head: LeafHead,
    pub(crate) body: JsonText,
}

#[derive(Serialize, Deserialize)]
struct RecordHead {
    id: String,
    leaves: Vec<LeafHead>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LeafHead {
    pub(crate) rev: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) deleted: bool,
    /// Hash of the revision, then those of its ancestors, parent first.
    ids: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) attachments: Vec<AttachmentHead>,
    body: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachmentHead {
    pub(crate) name: String,
    pub(crate) content_type: String,
    pub(crate) revpos: u64,
    pub(crate) length: u64,
    pub(crate) encoded_length: u64,
    gzip: bool,
    pub(crate) content: ObjectId,
}

impl AttachmentHead {
    pub(crate) fn of(attachment: &Attachment) -> Self {
        AttachmentHead {
            name: attachment.name.clone(),
            content_type: attachment.content_type.clone(),
            revpos: attachment.revpos,
            length: attachment.length,
            encoded_length: attachment.encoded_length,
            gzip: attachment.encoding == Encoding::Gzip,
            content: ObjectId(*attachment.sha256()),
        }
    }

    pub(crate) fn as_peer(&self) -> peer::Attachment {
        peer::Attachment {
            name: self.name.clone(),
            content_type: self.content_type.clone(),
            revpos: self.revpos,
            length: self.length,
            encoding: if self.gzip { Encoding::Gzip } else { Encoding::Identity },
            encoded_length: self.encoded_length,
        }
    }
}

impl Leaf {
    pub(crate) fn of(document: Document) -> Result<Self> {
        let ids = match &document.revisions {
            Some(history) => history.ids.iter().map(ToString::to_string).collect(),
            None => vec![document.rev.hash().to_string()],
        };
        let body = u32::try_from(document.body.len()).map_err(|_| Error::refused("a body of over four gigabytes"))?;
        let head = LeafHead {
            rev: document.rev.to_string(),
            deleted: document.deleted,
            ids,
            attachments: document.attachments.iter().map(AttachmentHead::of).collect(),
            body,
        };
        Ok(Leaf { head, body: document.body })
    }

    /// The edit that writes the leaf, without its attachments.
    pub(crate) fn edit(&self, id: &str) -> Result<(RevId, Edit), String> {
        let rev = RevId::parse(&self.head.rev).map_err(|error| error.to_string())?;
        let hash = |id: &String| RevHash::from_text(id).map_err(|error| error.to_string());
        let ids = self.head.ids.iter().map(hash).collect::<Result<_, _>>()?;
        let history = RevHistory { position: rev.position(), ids };
        if history.leaf().as_ref() != Some(&rev) {
            return Err(format!("the ancestors of {rev} are those of another revision"));
        }
        let mut edit = Edit::new(id, self.body.clone()).with_history(history);
        edit.deleted = self.head.deleted;
        Ok((rev, edit))
    }
}

/// A local document as a record: its revision is `0-N`.
pub(crate) fn of_local(row: &model::LocalRow) -> Result<Option<Record>> {
    let (Some(rev), Some(body)) = (row.rev, &row.body) else { return Ok(None) };
    let bytes = u32::try_from(body.len()).map_err(|_| Error::refused("a body of over four gigabytes"))?;
    let (ids, attachments) = (Vec::new(), Vec::new());
    let head = LeafHead { rev: format!("0-{rev}"), deleted: false, ids, attachments, body: bytes };
    Ok(Some(Record { id: row.id.clone(), leaves: vec![Leaf { head, body: body.clone() }] }))
}

impl Record {
    pub(crate) fn append_to(&self, block: &mut Vec<u8>) -> Result<()> {
        let head =
            RecordHead { id: self.id.clone(), leaves: self.leaves.iter().map(|leaf| leaf.head.clone()).collect() };
        let head = serde_json::to_vec(&head).map_err(|error| Error::refused(error.to_string()))?;
        let length = 4 + head.len() + self.leaves.iter().map(|leaf| leaf.body.len()).sum::<usize>();
        let small =
            |length: usize| u32::try_from(length).map_err(|_| Error::refused("a document of over four gigabytes"));
        block.extend_from_slice(&small(length)?.to_le_bytes());
        block.extend_from_slice(&small(head.len())?.to_le_bytes());
        block.extend_from_slice(&head);
        for leaf in &self.leaves {
            block.extend_from_slice(leaf.body.as_bytes());
        }
        Ok(())
    }

    /// The contents of its attachments.
    pub(crate) fn contents(&self) -> impl Iterator<Item = ObjectId> {
        self.leaves.iter().flat_map(|leaf| leaf.head.attachments.iter().map(|attachment| attachment.content))
    }
}

/// The records of a block.
pub(crate) fn read_block(mut block: &[u8]) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    while !block.is_empty() {
        let (mut rest, after) = take_counted(block)?;
        let (head, bodies) = take_counted(rest)?;
        let head: RecordHead = serde_json::from_slice(head).map_err(|error| error.to_string())?;
        rest = bodies;
        let mut leaves = Vec::with_capacity(head.leaves.len());
        for head in head.leaves {
            let (body, next) = rest.split_at_checked(head.body as usize).ok_or("a record that is cut off")?;
            rest = next;
            let body = JsonText::parse(body).map_err(|error| error.to_string())?;
            leaves.push(Leaf { head, body });
        }
        if !rest.is_empty() {
            return Err("a record that is too long".to_owned());
        }
        records.push(Record { id: head.id, leaves });
        block = after;
    }
    Ok(records)
}

/// Bytes after their length, and the rest.
fn take_counted(bytes: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let cut = || "a record that is cut off".to_owned();
    let (count, rest) = bytes.split_at_checked(4).ok_or_else(cut)?;
    let count = count.try_into().map(u32::from_le_bytes).map_err(|_| cut())?;
    rest.split_at_checked(count as usize).ok_or_else(cut)
}
