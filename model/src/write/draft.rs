//! A draft of an edit: the work that needs no read, namely its revision and the layout of its body in rows.
//!
//! ```text
//!  draft ─► attempt 1: reads ─► plan ─► rows of the draft ─► commit
//!                                 └ other parent or layout: drafted again, and kept
//!           attempt 2: …
//! ```
//!
//! Drafting a body of some megabytes takes time, and a read version lasts five seconds. So the draft is made before the
//! transaction's first read, based on a guess: that the edit extends the revision it names, and that the layout of
//! bodies has not changed. If the guess was wrong, the draft is made again and kept for the next attempt, which then
//! loses no time.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::attachments::{Attachment, AttachmentEdit, resolve};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::{DatabaseKey, DatabaseKeys, Leaf};
use crate::rows::body::{BodyError, BodyFormat, BodyLimits, BodyMemory, StoredBody};
use crate::rows::etf::{self, AttachmentDigest};
use crate::rows::revid::RevId;
use crate::write::edit::{Edit, WriteMode};

/// An edit, and its index in the request.
#[derive(Clone, Copy)]
pub(super) struct Turn<'e> {
    pub(super) turn: usize,
    pub(super) edit: &'e Edit,
}

/// An edit with its draft.
pub(super) struct Draft<'e> {
    pub(super) edit: &'e Edit,
    /// Its index in the request.
    pub(super) turn: usize,
    mode: WriteMode,
    /// The attachments of the new leaf; `None` until stubs are looked up, and if there are none.
    attachments: Mutex<Option<Result<Arc<[Attachment]>>>>,
    made: Mutex<Option<Made>>,
    body: Mutex<Option<Body>>,
}

/// The leaf that an edit makes over a parent, or the leaf that a replicated edit has.
struct Made {
    parent: Option<RevId>,
    leaf: Result<Leaf>,
}

struct Body {
    leaf: Leaf,
    format: BodyFormat,
    rows: Result<Option<Arc<StoredBody>>>,
}

/// The keys and the size limits of bodies.
#[derive(Clone, Copy)]
pub(super) struct BodyContext<'k> {
    pub(super) keys: &'k DatabaseKeys,
    pub(super) limits: BodyLimits,
}

/// Memory that is reused for one draft after the other.
#[derive(Default)]
pub(super) struct DraftMemory {
    term: etf::Term,
    key: Vec<u8>,
    body: BodyMemory,
}

impl<'e> Draft<'e> {
    /// Drafts `edit`. `format` is the probable layout of the database's bodies.
    pub(super) fn new(
        Turn { turn, edit }: Turn<'e>,
        mode: WriteMode,
        place: BodyContext<'_>,
        format: BodyFormat,
        memory: &mut DraftMemory,
    ) -> Self {
        let draft =
            Draft { edit, turn, mode, attachments: Mutex::new(None), made: Mutex::new(None), body: Mutex::new(None) };
        if draft.has_stubs() && mode == WriteMode::Interactive {
            // The revision depends on the attachments that the stubs refer to.
            return draft;
        }
        if !edit.attachments.is_empty() && !draft.has_stubs() {
            draft.resolve(&[]);
        }
        let leaf = match mode {
            WriteMode::Interactive => draft.revision(edit.rev.as_ref(), &mut memory.term),
            WriteMode::Replicated => incoming(edit),
        };
        let body = leaf.as_ref().ok().map(|leaf| Body::new(edit, leaf, place, format, memory));
        let made = Made { parent: edit.rev.clone(), leaf };
        Draft { made: Mutex::new(Some(made)), body: Mutex::new(body), ..draft }
    }

    /// How the edit finds its place in the tree.
    pub(super) fn mode(&self) -> WriteMode {
        self.mode
    }

    /// Whether attachments of the replaced leaf must be looked up.
    pub(super) fn has_stubs(&self) -> bool {
        self.edit.attachments.iter().any(AttachmentEdit::is_stub)
    }

    /// Looks up stubs in the attachments of the replaced leaf.
    pub(super) fn resolve(&self, replaced: &[Attachment]) {
        self.set_attachments(resolve(self.edit, self.mode, replaced).map(Arc::from));
    }

    /// Records that stubs cannot be looked up, with the reason.
    pub(super) fn refuse_attachments(&self, error: Error) {
        self.set_attachments(Err(error));
    }

    fn set_attachments(&self, attachments: Result<Arc<[Attachment]>>) {
        *self.attachments.lock() = Some(attachments);
        if self.mode == WriteMode::Interactive {
            *self.made.lock() = None;
        }
    }

    /// The attachments of the new leaf.
    pub(super) fn attachments(&self) -> Result<Arc<[Attachment]>> {
        let missing = || Err(Error::corrupt("attachments that were not looked up"));
        self.attachments.lock().clone().unwrap_or_else(missing)
    }

    /// The leaf that the edit makes over `parent`.
    fn revision(&self, parent: Option<&RevId>, memory: &mut etf::Term) -> Result<Leaf> {
        if self.edit.attachments.is_empty() {
            return revision(self.edit, parent, &[], memory);
        }
        let attachments = self.attachments()?;
        let digests: Vec<AttachmentDigest<'_>> = attachments
            .iter()
            .map(|attachment| AttachmentDigest {
                name: &attachment.name,
                content_type: &attachment.content_type,
                md5: attachment.digest,
            })
            .collect();
        revision(self.edit, parent, &digests, memory)
    }

    /// The leaf that an interactive edit makes over `parent`.
    pub(super) fn made_over(&self, parent: Option<&RevId>) -> Result<Leaf> {
        let mut made = self.made.lock();
        if let Some(made) = made.as_ref().filter(|made| made.parent.as_ref() == parent) {
            return made.leaf.clone();
        }
        let leaf = self.revision(parent, &mut etf::Term::default());
        made.insert(Made { parent: parent.cloned(), leaf }).leaf.clone()
    }

    /// The leaf that the edit would make over a parent, though it is a replicated one.
    pub(super) fn leaf_over(&self, parent: &RevId) -> Result<Leaf> {
        self.revision(Some(parent), &mut etf::Term::default())
    }

    /// The leaf of the last draft.
    pub(super) fn leaf(&self) -> Result<Leaf> {
        let missing = || Err(Error::corrupt("an edit that was not drafted"));
        self.made.lock().as_ref().map_or_else(missing, |made| made.leaf.clone())
    }

    /// The rows of the body at `leaf`; `None` for a tombstone without a stored body.
    pub(super) fn rows(
        &self,
        leaf: &Leaf,
        place: BodyContext<'_>,
        format: BodyFormat,
    ) -> Result<Option<Arc<StoredBody>>> {
        let mut body = self.body.lock();
        let fits = |body: &&Body| body.leaf == *leaf && body.format == format;
        if let Some(body) = body.as_ref().filter(fits) {
            return body.rows.clone();
        }
        body.insert(Body::new(self.edit, leaf, place, format, &mut DraftMemory::default())).rows.clone()
    }
}

impl Body {
    fn new(edit: &Edit, leaf: &Leaf, place: BodyContext<'_>, format: BodyFormat, memory: &mut DraftMemory) -> Self {
        Body { leaf: leaf.clone(), format, rows: lay_out(edit, leaf, place, format, memory) }
    }
}

fn lay_out(
    edit: &Edit,
    leaf: &Leaf,
    place: BodyContext<'_>,
    format: BodyFormat,
    memory: &mut DraftMemory,
) -> Result<Option<Arc<StoredBody>>> {
    if edit.stored_size() == 0 {
        return Ok(None);
    }
    let DraftMemory { key, body, .. } = memory;
    place.keys.write(key, DatabaseKey::Doc(&edit.id, leaf));
    let stored = StoredBody::encode_in(&edit.body, key, format, &place.limits, body);
    stored.map(|stored| Some(Arc::new(stored))).map_err(|error| match error {
        BodyError::NotAnObject => Error::bad_request("Document must be a JSON object"),
        BodyError::KeyTooLong { .. } => ErrorKind::IllegalDocId("Document id is too long".into()).into(),
    })
}

/// The leaf that `edit` makes over `parent` with these attachments.
fn revision(
    edit: &Edit,
    parent: Option<&RevId>,
    attachments: &[AttachmentDigest<'_>],
    memory: &mut etf::Term,
) -> Result<Leaf> {
    let term = etf::RevisionTerm { deleted: edit.deleted, parent, body: &edit.body, attachments };
    let rev = term.revision_in(memory).map_err(|_| Error::bad_request("No revision can follow the given one"))?;
    Ok(Leaf { not_deleted: !edit.deleted, rev })
}

/// The leaf in a replicated edit.
fn incoming(edit: &Edit) -> Result<Leaf> {
    let rev = edit.incoming()?.leaf().ok_or_else(|| Error::bad_request("Invalid rev format"))?;
    Ok(Leaf { not_deleted: !edit.deleted, rev })
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::JsonText;

    #[test]
    fn what_was_drafted_is_what_is_written_and_what_was_not_is_kept() {
        let keys = DatabaseKeys::new(b"", 0);
        let place = BodyContext { keys: &keys, limits: BodyLimits::default() };
        let edit = Edit::new("a", JsonText::parse(br#"{"n":1}"#).unwrap());
        let turn = Turn { turn: 0, edit: &edit };
        let draft = Draft::new(turn, WriteMode::Interactive, place, BodyFormat::Exploded, &mut DraftMemory::default());
        let drafted = draft.body.lock().as_ref().unwrap().rows.clone().unwrap().unwrap();
        let leaf = draft.made_over(None).unwrap();
        let rows = |leaf: &Leaf, format| draft.rows(leaf, place, format).unwrap().unwrap();
        assert!(Arc::ptr_eq(&rows(&leaf, BodyFormat::Exploded), &drafted));

        // Now the edit extends a tombstone, and is packed: it is drafted again, once.
        let tombstone: RevId = "2-abc".parse().unwrap();
        let other = draft.made_over(Some(&tombstone)).unwrap();
        assert_eq!((leaf.rev.position(), other.rev.position()), (1, 3));
        let again = rows(&other, BodyFormat::Packed);
        assert_eq!(again.format(), BodyFormat::Packed);
        assert!(Arc::ptr_eq(&rows(&other, BodyFormat::Packed), &again));
        assert_eq!(draft.made_over(Some(&tombstone)).unwrap(), other);
    }
}
